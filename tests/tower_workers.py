"""What the processes of test_towers.py run: one trial of whole towers on several workers."""

from pathlib import Path

import torch.distributed as dist

from mmts_ray import prepare
from mmts_ray.config import ENCODING, from_flat
from mmts_ray.train import TrainData, train


def together(flats, cache, rank, workers, device):
    """Metrics and parameters of the first trial, and what the second, with a BatchNorm, is refused with."""
    found = {}
    for name, flat in flats.items():
        config = from_flat(flat)
        encoding = {k: v for k, v in config.items if k.startswith(ENCODING)}
        frozen = prepare.features(encoding, cache_dir=Path(cache), quiet=True)
        data = TrainData(frozen, device=device, cache_dir=Path(cache))
        try:
            rows = list(train(config, data, test=True, group=dist.group.WORLD))
            model = {k: v.cpu() for k, v in rows[-1].state()["model"].items()}
            found[name] = {"metrics": [row.metrics for row in rows], "model": model}
        except ValueError as problem:
            found[name] = str(problem)
    return found
