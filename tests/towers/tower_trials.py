"""Trials of whole towers: their data, and one of them on several workers."""

from pathlib import Path

import torch
import torch.distributed as dist

from mmts_ray import prepare
from mmts_ray.config import ENCODING, from_flat
from mmts_ray.train import TrainData, train

ALL = {"image_blocks": None, "text_blocks": None, "image_projection": True, "text_projection": True}


def frozen_of(flat, cache):
    """The configuration, and what its trials read."""
    config = from_flat(flat)
    encoding = {k: v for k, v in config.items if k.startswith(ENCODING)}
    return config, prepare.features(encoding, cache_dir=Path(cache), quiet=True)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def together(flats, cache, rank, workers, device):
    """Metrics and parameters of the first trial, and what the second, with a BatchNorm, is refused with."""
    found = {}
    for name, flat in flats.items():
        config, frozen = frozen_of(flat, cache)
        data = TrainData(frozen, device=device, cache_dir=Path(cache))
        try:
            rows = list(train(config, data, test=True, group=dist.group.WORLD))
            model = {k: v.cpu() for k, v in rows[-1].state()["model"].items()}
            found[name] = {"metrics": [row.metrics for row in rows], "model": model}
        except ValueError as problem:
            found[name] = str(problem)
    return found
