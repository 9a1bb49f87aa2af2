"""Paired data sets: pictures, captions, and which belongs to which. `DATASETS` names them all."""

from collections.abc import Callable

from mmts_ray.data.coco import coco
from mmts_ray.data.dataset import SPLITS, TEST, TRAIN, VALIDATION, Dataset
from mmts_ray.data.drops import Drops
from mmts_ray.data.epic100 import epic100
from mmts_ray.data.features_file import features
from mmts_ray.data.flickr30k import flickr30k
from mmts_ray.data.hf import hf
from mmts_ray.data.openmoji import openmoji
from mmts_ray.data.table import table
from mmts_ray.data.webdataset import webdataset
from mmts_ray.data.youcook2 import youcook2

DATASETS: dict[str, Callable[..., Dataset]] = {
    "openmoji": openmoji,
    "table": table,
    "features": features,
    "coco": coco,
    "flickr30k": flickr30k,
    "webdataset": webdataset,
    "hf": hf,
    "epic100": epic100,
    "youcook2": youcook2,
}

__all__ = ["SPLITS", "TEST", "TRAIN", "VALIDATION", "Dataset", "Drops", *DATASETS]
