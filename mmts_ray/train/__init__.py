"""Training: data that stays loaded (`data`), the loop (`loop`), its split over several workers (`workers`)."""

from mmts_ray.train.data import TEST, TRAIN, VALIDATION, Split, TrainData
from mmts_ray.train.loop import Pulse, Row, schedule_of, train

__all__ = ["TEST", "TRAIN", "VALIDATION", "Pulse", "Row", "Split", "TrainData", "schedule_of", "train"]
