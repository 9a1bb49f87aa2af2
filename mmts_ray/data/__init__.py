"""Paired data sets: pictures, captions, and which belongs to which. `DATASETS` names them all."""

from collections.abc import Callable

from mmts_ray.data.coco import coco
from mmts_ray.data.dataset import SPLITS, TEST, TRAIN, VALIDATION, Dataset
from mmts_ray.data.digits import digits
from mmts_ray.data.drops import Drops
from mmts_ray.data.emoji_styles import emoji_styles
from mmts_ray.data.epic100 import epic100
from mmts_ray.data.features_file import features
from mmts_ray.data.flickr30k import flickr30k
from mmts_ray.data.hf import hf
from mmts_ray.data.mnist import mnist
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
    "mnist": mnist,
    "digits": digits,
    "emoji_styles": emoji_styles,
}
READY = ("features", "mnist", "digits", "emoji_styles")  # they bring the features of both sides: no encoder runs

__all__ = ["READY", "SPLITS", "TEST", "TRAIN", "VALIDATION", "Dataset", "Drops", *DATASETS]
