"""Training: data that stay loaded (`data`), the loop (`loop`), what it runs (`pairs`), several workers (`workers`)."""

from mmts_ray.train.data import TEST, TRAIN, VALIDATION, Split, TrainData
from mmts_ray.train.loop import Pulse, Row, train
from mmts_ray.train.pairs import schedule_of

__all__ = ["TEST", "TRAIN", "VALIDATION", "Pulse", "Row", "Split", "TrainData", "schedule_of", "train"]
