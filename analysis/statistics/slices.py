"""Slices of a fitted process through the winner, one per parameter: width of the plateau, best at a bound or not."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .gaussian import Process, laplace
from .interval import LEVEL

GRID = 61
HYPER_DRAWS, DRAWS = 4, 50
VOLUME = 256
EDGE = 0.05  # "at the bound": the outer twentieth of the declared scale
GATES = ((0.30, "width"), (0.45, "width and interval"), (0.90, "interval"))
UNRESOLVED = "not resolved"


@dataclass(frozen=True)
class Slice:
    """Joint posterior draws of score minus the winner's along one parameter (larger is better)."""

    grid: np.ndarray  # (m,) positions; levels of a choice
    centre: int  # index of the winner in `grid`
    gain: np.ndarray  # (draws, m)
    feasible: np.ndarray  # (m,)


@dataclass(frozen=True)
class Width:
    """A plateau along one parameter, on its declared scale: ends, width with 95 % limits, and what may be printed.

    `gate` is "width" (within 15 % of the truth nine times in ten), "width and interval", "interval" or "not resolved".
    """

    left: float
    right: float
    width: float
    lo: float
    hi: float
    gate: str


def slices(
    process: Process,
    winner: np.ndarray,
    better: int,
    feasible: Callable[[np.ndarray], np.ndarray],
    rng: np.random.Generator,
) -> list[Slice]:
    """A slice per parameter, with draws of the hyperparameters (4) and of the function (50 each)."""
    d, found = len(winner), []
    members = laplace(process, rng.standard_normal((HYPER_DRAWS, d + 2)))
    for j, choice in enumerate(process.points.choice):
        levels = np.unique(np.r_[process.points.u[:, j], winner[j]]) if choice else np.linspace(0, 1, GRID)
        grid = levels if choice else np.unique(np.r_[levels, winner[j]])
        centre = int(np.argmin(np.abs(grid - winner[j])))
        u = np.tile(winner, (len(grid), 1))
        u[:, j] = grid
        parts = [member.draws(u, rng.standard_normal((DRAWS, len(grid)))) for member in members]
        values = better * np.concatenate(parts)
        possible = feasible(u)
        possible[centre] = True
        found.append(Slice(grid, centre, values - values[:, [centre]], possible))
    return found


def plateau(cut: Slice, delta: float) -> Width:
    """Where the score stays within `delta` of the winner's.

    Per draw the run connected with the winner, and the outermost crossings; the ends are interpolated. The width is the
    mean of both medians, its limits go from the lower of the connected run to the upper of the outermost crossing.
    """
    inside = (cut.gain >= -delta) & cut.feasible
    ends = np.array([_ends(cut, inside[row], cut.gain[row] + delta) for row in range(len(inside))])
    near, far = ends[:, 1] - ends[:, 0], ends[:, 3] - ends[:, 2]
    width = float(np.median(near) + np.median(far)) / 2
    lo, hi = float(np.quantile(near, (1 - LEVEL) / 2)), float(np.quantile(far, (1 + LEVEL) / 2))
    relative = (hi - lo) / width if width > 0 else np.inf
    gate = next((name for limit, name in GATES if relative <= limit), UNRESOLVED)
    left, right = (float(np.median(ends[:, [side, side + 2]])) for side in (0, 1))
    return Width(left, right, width, lo, hi, gate)


def share_near(
    process: Process,
    winner: np.ndarray,
    better: int,
    feasible: Callable[[np.ndarray], np.ndarray],
    delta: float,
    rng: np.random.Generator,
) -> tuple[float, float, float]:
    """(median, lower, upper limit) of the share of the searched volume that scores within `delta` of the winner."""
    u = rng.random((VOLUME, len(winner)))
    for j, choice in enumerate(process.points.choice):
        if choice:
            u[:, j] = rng.choice(np.unique(process.points.u[:, j]), VOLUME)
    possible, everywhere = feasible(u), np.vstack([winner, u])
    shares = []
    for member in laplace(process, rng.standard_normal((HYPER_DRAWS, len(winner) + 2))):
        values = better * member.draws(everywhere, rng.standard_normal((DRAWS, len(everywhere))))
        shares.append(((values[:, 1:] - values[:, :1] >= -delta) & possible).mean(1))
    lo, mid, hi = np.quantile(np.concatenate(shares), [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
    return float(mid), float(lo), float(hi)


def near_levels(cut: Slice, delta: float) -> np.ndarray:
    """For a choice: probability of each level that its score stays within `delta` of the winner's."""
    return np.where(cut.feasible, (cut.gain >= -delta).mean(0), 0.0)


def chance_at_ends(cut: Slice) -> tuple[float, float]:
    """Share of draws whose best position lies in the outer twentieth, at the lower and at the upper end."""
    best = cut.grid[np.argmax(np.where(cut.feasible, cut.gain, -np.inf), axis=1)]
    return float(np.mean(best <= EDGE)), float(np.mean(best >= 1 - EDGE))


def _ends(cut: Slice, inside: np.ndarray, height: np.ndarray) -> tuple[float, float, float, float]:
    """(left, right) of the run around the winner and of the outermost crossings; `height` is 0 at a crossing."""
    grid, centre = cut.grid, cut.centre
    out = np.flatnonzero(~inside)
    left, right = out[out < centre], out[out > centre]
    first, last = int(left[-1]) + 1 if len(left) else 0, int(right[0]) - 1 if len(right) else len(grid) - 1
    within = np.flatnonzero(inside)
    outer_first, outer_last = int(within[0]), int(within[-1])
    ends = ((first, -1), (last, 1), (outer_first, -1), (outer_last, 1))
    a, b, c, e = (_crossing(cut, height, at, step) for at, step in ends)
    return a, b, c, e


def _crossing(cut: Slice, height: np.ndarray, at: int, step: int) -> float:
    """Where the line between the last point inside and the first outside meets 0."""
    beyond = at + step
    if not 0 <= beyond < len(cut.grid) or not cut.feasible[beyond]:
        return float(cut.grid[at])
    share = height[at] / (height[at] - height[beyond]) if height[at] > height[beyond] else 0.0
    return float(cut.grid[at] + (cut.grid[beyond] - cut.grid[at]) * min(1.0, max(0.0, share)))
