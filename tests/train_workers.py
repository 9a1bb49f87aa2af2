"""What the processes of test_train_workers.py run: whole trials, one worker's part each."""

import torch
import torch.distributed as dist
from toy import frozen, graded

from mmts_ray.config import from_flat
from mmts_ray.losses import LOSSES
from mmts_ray.train import TrainData, train

SMALL = {
    "data.name": "features",
    "data.path": "unused",
    "model.dim": 6,
    "groups.k": 4,
    "eval.k": 3,
    "train.epochs": 3,
    # 60 training images: a last batch of 2, fewer than the workers of the larger case
    "train.batch_size": 29,
    "train.lr": 0.01,
}
CASES = {
    "fixed temperature": {},
    "learnable temperature": {"schedule.name": "learnable"},
    "temperature per sample": {"schedule.name": "cosine"},
    "replaced": {"loss.r_mix": 0.4},
    "weighted": {"loss.r_mix": 0.4, "loss.mix_mode": "weighted"},
    "teacher": {"loss.angular_margin": 0.2, "loss.filter_threshold": 0.8},
    "teachers by branch": {
        "loss.angular_margin": 0.1,
        "loss.soft_labels": "code",
        "loss.filter_threshold_image": 0.9,
    },
    "everything": {
        "schedule.name": "cosine",
        "loss.r_mix": 0.3,
        "loss.angular_margin": 0.1,
        "loss.filter_threshold": 0.9,
        "train.captions": "all",
    },
    "max margin": {"loss.name": "max_margin", "schedule.name": "cosine"},
    "siglip": {"loss.name": "siglip", "schedule.name": "learnable"},
    "siglip per sample": {"loss.name": "siglip", "schedule.name": "cosine", "train.captions": "all"},
    "regularized": {"loss.name": "regularized_info_nce", "train.captions": "all"},
    "arccon": {"loss.name": "arccon", "schedule.name": "cosine"},
    "isogclr": {"loss.name": "isogclr", "schedule.value": 0.01},
    "isogclr, all captions": {"loss.name": "isogclr", "schedule.name": "cosine", "train.captions": "all"},
    "sms": {"loss.name": "sms", "schedule.value": 0.6},
    "triplet": {"loss.name": "triplet", "schedule.name": "cosine"},
    "cosine rate": {"train.lr_schedule": "cosine", "train.warmup": 0.3},
    "any relevant caption": {"loss.name": "max_margin", "schedule.name": "cosine", "train.captions": "relevant"},
    "clipped": {"train.lr_schedule": "linear", "train.clip": 0.01},
}
# float64 tells a wrong gradient from rounding; float32 is what trials run in
DTYPE = {2: torch.float32, 3: torch.float64}
assert {flat.get("loss.name", "info_nce") for flat in CASES.values()} == set(LOSSES)


def config_of(case):
    return from_flat({**SMALL, **CASES[case]})


def data_of(dtype, device="cpu"):
    made = graded(frozen(captions_each=2))
    as_type = {name: getattr(made, name).astype(str(dtype).removeprefix("torch.")) for name in ("image_NI", "text_UT")}
    return TrainData(type(made)(**{**vars(made), **as_type}), device=device)


def measure(dtype, group=None, device="cpu"):
    """By case: the metrics of every row, and all tensors of the last state."""
    torch.set_default_dtype(dtype)
    found = {}
    try:
        data = data_of(dtype, device)
        for case in CASES:
            rows = list(train(config_of(case), data, test=True, group=group))
            state = rows[-1].state()
            found[case] = {
                "metrics": [row.metrics for row in rows],
                "steps": [row.step for row in rows],
                "tensors": [t.cpu() for t in tensors({k: state[k] for k in ("model", "learned", "memory")})],
            }
    finally:
        torch.set_default_dtype(torch.float32)
    return found


def tensors(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [t for value in tree.values() for t in tensors(value)] if isinstance(tree, dict) else []


def together(rank, workers, device):
    found = {"cases": measure(DTYPE[workers], dist.group.WORLD, device)}
    found["resumed"] = resumed(dist.group.WORLD, device)
    found["astray"] = astray(rank, dist.group.WORLD, device)
    return found


def resumed(group, device):
    """Rows of a straight run, and of one cut after its first row and continued from the state it had."""
    found = []
    for case in ("isogclr", "learnable temperature", "everything"):
        data, config = data_of(torch.float32, device), config_of(case)
        straight = [row.metrics for row in train(config, data, group=group)]
        cut = train(config, data, group=group)
        state = next(cut).state()
        cut.close()
        found.append((straight[1:], [row.metrics for row in train(config, data, state, group=group)]))
    return found


def astray(rank, group, device):
    """The message when the workers have come to hold different parameters."""
    data, config = data_of(torch.float32, device), config_of("fixed temperature")
    state = next(train(config, data, group=group)).state()
    if rank == 1:
        state["epoch"], state["step"] = 1, state["step"]
        state["model"]["image_weight"] += 1.0
    try:
        list(train(config, data, state, group=group))
    except RuntimeError as problem:
        return str(problem)
    return ""
