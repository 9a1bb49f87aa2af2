"""Where the time of one of our trials goes, in one process with one thread, and the floor that arithmetic sets.

    python benchmarks/anatomy.py trial STUDY.yaml       parts of a trial, as JSON
    python benchmarks/anatomy.py floor STUDY.yaml       seconds of a trial's matrix products alone, by library

Parts are timed by wrapping the functions that `mmts_ray.train` calls, so what runs is the real loop.
"""

import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from mmts_ray import losses, metrics, space_file, train
from mmts_ray.cache import default_cache_dir
from mmts_ray.config import TrialConfig
from mmts_ray.features import Frozen
from mmts_ray.prepare import features
from mmts_ray.towers import heads
from mmts_ray.train import pairs

REPEATS = 5
CLOSED = {"evaluation"}  # parts whose inside is not split further, except by what is listed here:
INSIDE = {"modality accuracy"}


class Clock:
    """Exclusive seconds per part: a part's time does not count for the part around it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.stack = ["rest"]
        self.since = time.perf_counter()

    def _charge(self) -> None:
        now = time.perf_counter()
        part = self.stack[-1]
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self.since
        self.since = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._charge()
        self.stack.append(self.stack[-1] if self.stack[-1] in CLOSED and name not in INSIDE else name)
        try:
            yield
        finally:
            self._charge()
            self.stack.pop()

    def wrap(self, name: str, function: Callable[..., Any], only_under: str | None = None) -> Callable[..., Any]:
        @functools.wraps(function)  # keeps the signature, which the trainer reads
        def timed(*args: Any, **kwargs: Any) -> Any:
            if only_under is not None and self.stack[-1] != only_under:
                return function(*args, **kwargs)
            with self.part(name):
                return function(*args, **kwargs)

        return timed


def instrument(clock: Clock) -> None:
    """Time, from now on, the parts of every trial of this process."""
    batches = pairs.Pairs.batches
    pairs.Pairs.batches = clock.wrap("batch order", lambda *args: list(batches(*args)))
    pairs.Pairs.evaluate = clock.wrap("evaluation", pairs.Pairs.evaluate)
    metrics.paired.modality_accuracy = clock.wrap("modality accuracy", metrics.modality_accuracy)
    heads.drop = clock.wrap("dropout", heads.drop)
    heads.Heads.image = clock.wrap("heads forward", heads.Heads.image)
    heads.Heads.text = clock.wrap("heads forward", heads.Heads.text)
    losses.LOSSES["info_nce"] = clock.wrap("loss", losses.LOSSES["info_nce"])
    torch.Tensor.backward = clock.wrap("backward", torch.Tensor.backward)
    torch.Tensor.__getitem__ = clock.wrap("gather", torch.Tensor.__getitem__, only_under="rest")
    torch.optim.AdamW.step = clock.wrap("optimiser", torch.optim.AdamW.step)


def trial(config: TrialConfig, frozen: Frozen) -> dict[str, Any]:
    """Median seconds of a warm trial, its parts, and the floor measured beside it."""
    data = train.TrainData(frozen, cache_dir=default_cache_dir())

    def run() -> float:
        started = time.perf_counter()
        for _ in train.train(config, data):
            pass
        return time.perf_counter() - started

    first = run()
    seconds = statistics.median(run() for _ in range(REPEATS))
    floors = floor(config, frozen)
    clock = Clock()
    instrument(clock)
    clock.since = time.perf_counter()
    for _ in range(REPEATS):
        run()
    clock._charge()
    parts = {name: total / REPEATS for name, total in clock.seconds.items()}
    return {"first_seconds": first, "seconds": seconds, "parts": parts, "floor_seconds": floors}


def floor(config: TrialConfig, frozen: Frozen) -> dict[str, float]:
    """Seconds of the matrix products of a trial: heads, similarities, their gradients, evaluation; nothing else.

    By the library: on some processors one of the two that torch carries is twice as fast as the other.
    Shapes: B batch, I and T feature dimensions, D embedding.
    """
    recipe = config.function("train")(**config.kwargs("train"))
    dim = config.kwargs("model")["dim"]
    dims = (frozen.image_NI.shape[1], frozen.text_UT.shape[1])
    pairs, validation = (int((frozen.split_N == split).sum()) for split in (train.TRAIN, train.VALIDATION))
    full, rest = divmod(pairs, recipe.batch_size)
    weights = [torch.randn(dim, inner) for inner in dims]

    def products(rows: int, *, backward: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
        features = [torch.randn(rows, inner) for inner in dims]
        image_BD, text_BD = (torch.randn(rows, dim) for _ in dims)
        forward = [*zip(features, weights), (image_BD, text_BD)]
        if not backward:
            return forward
        grad_BB = torch.randn(rows, rows)
        similarities = [(grad_BB, text_BD.T), (grad_BB.T, image_BD.T)]
        return forward + similarities + [(grad_BD.T, x_BI.T) for grad_BD, x_BI in zip((image_BD, text_BD), features)]

    steps = [products(size, backward=True) for size in [recipe.batch_size] * full + [rest] * (rest > 1)]
    epoch = [pair for step in [*steps, products(validation, backward=False)] for pair in step]

    def seconds(multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> float:
        taken = []
        for _ in range(3 * REPEATS):
            started = time.perf_counter()
            for left, right in epoch:
                multiply(left, right)
            taken.append(time.perf_counter() - started)
        return statistics.median(taken) * recipe.epochs

    return {name: seconds(multiply) for name, multiply in multiplications().items()}


def multiplications() -> dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    """left @ right.T in float32, by each library that this build of torch has."""
    found: dict[str, Any] = {"torch.matmul": lambda left, right: left @ right.T}
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        onednn = torch.ops.mkldnn._linear_pointwise
        found["oneDNN"] = lambda left, right: onednn(left, right, None, "none", [], "")
    return found


def main(what: str, space: str) -> None:
    torch.set_num_threads(1)
    study = space_file.load(Path(space))
    config = study.trial_config(study.example() | {"schedule.alpha": 0.1, "schedule.spread": 0.1})
    frozen = features(study.encoding, cache_dir=default_cache_dir(), quiet=True)
    if what == "trial":
        print(json.dumps(trial(config, frozen)))
    else:
        print(json.dumps(floor(config, frozen)))


if __name__ == "__main__":
    main(*sys.argv[1:])
