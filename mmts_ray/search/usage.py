"""How much of the cluster is in use, told every few seconds while Tune runs."""

import time
from typing import Any

import ray
from ray import tune

from mmts_ray.search.proposals import Progress

LOOK_SECONDS = 2.0


class Usage(tune.Callback):
    """Tells the progress what of the cluster's resources is in use, and what there is."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.next_look = progress, 0.0

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if time.monotonic() < self.next_look:
            return
        total, free = ray.cluster_resources(), ray.available_resources()
        used = {key: total[key] - free.get(key, 0.0) for key in total}
        self.progress.resources(used, total)
        self.next_look = time.monotonic() + LOOK_SECONDS
