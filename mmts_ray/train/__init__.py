"""Training: data that stay loaded (`data`), the loop (`loop`), what it drives (`run`), several workers (`workers`).

Runs: heads or whole towers on pairs (`pairs`, `towers`), a sentence student (`sentences`).
"""

from mmts_ray.train.data import TEST, TRAIN, VALIDATION, Split, TrainData
from mmts_ray.train.loop import Pulse, Row, train
from mmts_ray.train.pairs import schedule_of

__all__ = ["TEST", "TRAIN", "VALIDATION", "Pulse", "Row", "Split", "TrainData", "schedule_of", "train"]
