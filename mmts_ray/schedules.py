"""What drives a loss over training: the temperature of a softmax or sigmoid loss, or the margin of a hinge loss.

A schedule is built once per run. The value that caption row m gets at optimiser step t (counted from 0) is
base(t) + shift_M[m]; the base is shared by all rows, the shift says how common the row's group is.

Shapes: M caption rows of the data, G groups seen in training, B rows of a batch. All values are dimensionless:
temperatures divide cosines, margins are differences of cosines.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from mmts_ray.space import Choice, Float


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The value of every row at every step.

    `low` and `high` are the smallest and largest value that any row takes during the run; for a learnable value they
    are the ends it is clamped to. `derived` holds the paper's own names for what the parameters imply.
    """

    base: Callable[[int], float]
    shift_M: "np.ndarray | float" = 0.0
    learnable: bool = False
    low: float
    high: float
    derived: Mapping[str, float] = field(default_factory=dict)

    def at(self, step: int, rows_B: np.ndarray) -> "np.ndarray | float":
        """The values (B,) of the given rows at `step`, or one number when all rows share it."""
        if isinstance(self.shift_M, np.ndarray):
            return self.base(step) + self.shift_M[rows_B]
        return self.base(step) + self.shift_M


def cosine_base(step: int, period_steps: int, alpha: float) -> float:
    """The oscillating part, alpha/2 * cos(2 pi step / period_steps): +alpha/2 at step 0, -alpha/2 half a period later.

    It is negative half of the time on purpose: the offset lives in the group shift.
    Matched against SergShel/MM-TS, avion/mmts_utils/temperature.py.
    Reference: arXiv:2603.08202.
    """
    return 0.5 * alpha * math.cos(2.0 * math.pi * step / period_steps)


def group_shift(
    size_M: "np.ndarray | float",
    group_sizes_G: np.ndarray,
    *,
    shift_min: float,
    shift_max: float,
    shift_map: str = "linear",
) -> np.ndarray:
    """The shift of each row, shift_min + (shift_max - shift_min) * share(size), from its group's training size.

    share is 0 for the smallest and 1 for the largest group, and in between
        linear  (size - smallest) / (largest - smallest)           the published form
        log     the same on log(size)                              ours: counts are heavy-tailed
        rank    groups strictly smaller / groups smaller than the largest    ours: spreads groups evenly
    When all groups have one size every share is 0 (the published code divides by zero). A row whose group has no
    training sample (size 0) counts as the smallest group, so no shift is ever below shift_min (the published code
    counts it as 1 sample and may fall below). Matched against SergShel/MM-TS, avion/mmts_utils/shift.py.

    Raises ValueError on an unknown map or when no group has a sample. Reference: arXiv:2603.08202.
    """
    sizes_G = np.sort(np.asarray(group_sizes_G, dtype=np.float64))
    sizes_G = sizes_G[sizes_G > 0]
    if not len(sizes_G):
        raise ValueError("group sizes: no group has a training sample, so there is nothing to shift by")
    size_M = np.clip(np.asarray(size_M, dtype=np.float64), sizes_G[0], sizes_G[-1])
    if shift_map == "linear":
        position_M, first, last = size_M, sizes_G[0], sizes_G[-1]
    elif shift_map == "log":
        position_M, first, last = np.log(size_M), np.log(sizes_G[0]), np.log(sizes_G[-1])
    elif shift_map == "rank":
        position_M = np.searchsorted(sizes_G, size_M, side="left").astype(np.float64)
        first, last = 0.0, float(np.searchsorted(sizes_G, sizes_G[-1], side="left"))
    else:
        raise ValueError(f"shift_map: {shift_map!r} is not legal; legal is one of linear, log, rank")
    share_M = (position_M - first) / (last - first) if last > first else np.zeros_like(position_M)
    return shift_min + (shift_max - shift_min) * share_M


def from_shifts(shift_min: float, shift_max: float, alpha: float) -> dict[str, float]:
    """The searched parameters {tau_min, spread} that give the paper's (shift_min, shift_max, alpha).

    tau_min = shift_min - alpha/2, spread = shift_max - shift_min. Raises ValueError when the lowest value would not be
    positive (the published code runs on with a negative temperature, which ranks pairs upside down) or when the
    shifts are out of order.
    """
    given = f"shift_min {shift_min:g}, shift_max {shift_max:g}, alpha {alpha:g}"
    if shift_min - alpha / 2 <= 0:
        raise ValueError(
            f"{given}: the lowest value, shift_min - alpha/2 = {shift_min - alpha / 2:g}, must be above 0; "
            f"legal is alpha < {2 * shift_min:g} or shift_min > {alpha / 2:g}"
        )
    if shift_max < shift_min:
        raise ValueError(f"{given}: shift_max must be at least shift_min")
    return {"tau_min": shift_min - alpha / 2, "spread": shift_max - shift_min}


def constant(
    total_steps: int,
    size_M: np.ndarray,
    group_sizes_G: np.ndarray,
    *,
    value: Annotated[float, Float(1e-4, 10, log=True, doc="the value at every step, for every sample")] = 0.05,
) -> Schedule:
    """One value for all rows and steps."""
    return Schedule(base=lambda step: value, low=value, high=value)


def learnable(
    total_steps: int,
    size_M: np.ndarray,
    group_sizes_G: np.ndarray,
    *,
    init: Annotated[
        float, Float(1e-4, 10, log=True, doc="temperature at the first step", source="arXiv:2103.00020")
    ] = 0.07,
    low: Annotated[
        float,
        Float(1e-4, 10, log=True, doc="the learned temperature is clamped from below here", source="arXiv:2103.00020"),
    ] = 0.01,
    high: Annotated[float, Float(1e-4, 10, log=True, doc="the learned temperature is clamped from above here")] = 1.0,
) -> Schedule:
    """A temperature learned with the model: the caller trains its logarithm and clamps it to [low, high].

    Raises ValueError unless low <= init <= high. Reference: arXiv:2103.00020 (CLIP: init 0.07, scale at most 100).
    """
    if not low <= init <= high:
        raise ValueError(f"learnable temperature: init {init:g} is outside [low, high] = [{low:g}, {high:g}]")
    return Schedule(base=lambda step: init, learnable=True, low=low, high=high)


def cosine(
    total_steps: int,
    size_M: np.ndarray,
    group_sizes_G: np.ndarray,
    *,
    tau_min: Annotated[
        float,
        Float(
            1e-3,
            1,
            log=True,
            doc="lowest value of the smallest group: shift_min - alpha/2 in the paper's names",
            source="arXiv:2603.08202",
        ),
    ] = 0.01,
    alpha: Annotated[
        float, Float(0, 1, doc="peak-to-peak amplitude of the oscillation; 0 = none", source="arXiv:2603.08202")
    ] = 0.08,
    spread: Annotated[
        float,
        Float(
            0,
            1,
            doc="shift of the largest group over the smallest: shift_max - shift_min; 0 = all groups alike",
            source="arXiv:2603.08202",
        ),
    ] = 0.15,
    oscillations: Annotated[
        float, Float(0.5, 100, doc="cosine periods in the run", unit="periods", source="arXiv:2603.08202")
    ] = 5.0,
    shift_map: Annotated[
        str,
        Choice(
            ("linear", "log", "rank"),
            doc="how group size maps to shift: linear in counts as published, in log counts, or in rank among groups",
            source="arXiv:2603.08202",
        ),
    ] = "linear",
) -> Schedule:
    """MM-TS: a cosine over steps plus a shift by group size; head groups get the higher value.

    value(t, m) = alpha/2 * cos(2 pi t / T) + shift(size_M[m]),  T = floor(total_steps / oscillations), at least 1,
    shift in [shift_min, shift_max], shift_min = tau_min + alpha/2, shift_max = shift_min + spread.
    So every value is in [tau_min, shift_max + alpha/2] and positive by construction.

    The defaults are those of the published code, alpha 0.08 and shifts 0.05..0.20 (a temperature). Its EK-100 recipe
    (a margin) is alpha 0.2, shifts 0.17..0.30: tau_min 0.07, spread 0.13. spread = 0 is the earlier Temperature
    Schedules (arXiv:2303.13664) between tau_min and tau_min + alpha, alpha = 0 the group shift alone.

    `size_M` is the number of training samples in each row's group (0 = unseen), `group_sizes_G` of every group.
    Raises ValueError when total_steps < 1. Reference: arXiv:2603.08202, https://github.com/SergShel/MM-TS.
    """
    if total_steps < 1:
        raise ValueError(f"total_steps: {total_steps} is not a number of steps; legal is at least 1")
    shift_min = tau_min + alpha / 2
    shift_max = shift_min + spread
    period_steps = max(1, math.floor(total_steps / oscillations))
    shift_M = group_shift(size_M, group_sizes_G, shift_min=shift_min, shift_max=shift_max, shift_map=shift_map)
    base_t = 0.5 * alpha * np.cos(2.0 * np.pi * np.arange(min(total_steps, period_steps)) / period_steps)
    shifts = shift_M if shift_M.size else np.array([shift_min, shift_max])
    return Schedule(
        base=lambda step: cosine_base(step, period_steps, alpha),
        shift_M=shift_M,
        low=float(base_t.min() + shifts.min()),
        high=float(base_t.max() + shifts.max()),
        derived={
            "shift_min": shift_min,
            "shift_max": shift_max,
            "tau_max": shift_max + alpha / 2,
            "period_steps": float(period_steps),
        },
    )


SCHEDULES: dict[str, Callable[..., Any]] = {
    "constant": constant,
    "learnable": learnable,
    "cosine": cosine,
}
