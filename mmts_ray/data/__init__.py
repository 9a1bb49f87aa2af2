"""Paired data sets: pictures, captions, and which belongs to which. `DATASETS` names them all."""

from collections.abc import Callable

from mmts_ray.data.dataset import SPLITS, TEST, TRAIN, VALIDATION, Dataset
from mmts_ray.data.drops import Drops
from mmts_ray.data.epic100 import epic100
from mmts_ray.data.features_file import features
from mmts_ray.data.openmoji import openmoji
from mmts_ray.data.table import table

__all__ = [
    "DATASETS",
    "SPLITS",
    "TEST",
    "TRAIN",
    "VALIDATION",
    "Dataset",
    "Drops",
    "epic100",
    "features",
    "openmoji",
    "table",
]

DATASETS: dict[str, Callable[..., Dataset]] = {
    "openmoji": openmoji,
    "table": table,
    "features": features,
    "epic100": epic100,
}
