"""Where runs end with a score: a process extrapolates smoothly over a cliff, so slices and effects must stop there."""

from collections.abc import Callable

import numpy as np

NEIGHBOURS = 5


def feasibility(u: np.ndarray, failed: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """A function of points (m, d): False where most of the five nearest trials failed."""
    if not failed.any():
        return lambda points: np.ones(len(points), dtype=bool)
    count = min(NEIGHBOURS, len(u))

    def feasible(points: np.ndarray) -> np.ndarray:
        square = (points**2).sum(1)[:, None] + (u**2).sum(1)[None] - 2 * points @ u.T
        nearest = np.argsort(np.round(square, 12), axis=1, kind="stable")[:, :count]
        return failed[nearest].mean(1) <= 0.5

    return feasible
