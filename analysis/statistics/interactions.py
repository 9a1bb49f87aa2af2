"""Products of two parameters beyond their own effects: forward selection, Bonferroni over the pairs left."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from scipy import stats

from .importance import basis
from .interval import LEVEL

MOST = 3
LEVEL_OF_TEST = 0.05


@dataclass(frozen=True)
class Pair:
    """A product of two parameters: its effect as a standard deviation of the score over the cube, |b| / 3, and limits.

    The limits are widened for the pairs that were left when it was tested (Bonferroni): they exclude 0 exactly where
    the pair passes; `null` is the effect that it needed. `p` is not adjusted; `step` is its place in the selection, 0
    when it was not selected. The sign of `slope` says whether raising both helps. `fewest` counts the configurations
    in the emptiest quarter of the two ranges.
    """

    first: int
    second: int
    slope: float
    effect: float
    lo: float
    hi: float
    null: float
    p: float
    step: int
    fewest: int


def pairs(u: np.ndarray, y: np.ndarray, choice: Sequence[bool], active: np.ndarray) -> list[Pair] | None:
    """Every pair of numbers (or choices of two levels), tested with the selected ones in the model.

    y = intercept + cubic Legendre main effects + (2 u_i - 1)(2 u_j - 1); a selected pair is tested as it was when it
    entered. Only products are looked for. A parameter that is not always `active` (n, d) gets an indicator, and is 0
    where it is not used. None when the data cannot tell so many effects apart.
    """
    n, d = u.shape
    columns, centred = [np.ones((n, 1))], np.zeros((n, d))
    for j in range(d):
        on = active[:, j]
        main = np.zeros((n, 0))
        if on.sum() >= 2:
            main = np.zeros((n, basis(u[on, j], choice[j])[0].shape[1]))
            main[on] = basis(u[on, j], choice[j])[0]
        columns.append(main if on.all() else np.column_stack([main, on.astype(float)]))
        levels = np.unique(u[on, j])
        if not choice[j]:
            centred[on, j] = 2 * u[on, j] - 1
        elif len(levels) == 2:
            centred[on, j] = np.where(u[on, j] == levels[1], 1.0, -1.0)
    model = np.column_stack(columns)
    candidates = [(i, j) for i, j in combinations(range(d), 2) if np.ptp(centred[:, i]) and np.ptp(centred[:, j])]
    if n - np.linalg.matrix_rank(model) < 10 or not candidates:
        return None
    found: dict[tuple[int, int], Pair] = {}
    left = list(candidates)
    for step in range(1, MOST + 2):
        tested = {pair: _test(model, centred[:, pair[0]], centred[:, pair[1]], y, pair, len(left)) for pair in left}
        found |= tested
        if step > MOST or not left:
            break
        best = min(left, key=lambda pair: (tested[pair].p, pair))
        if tested[best].p * len(left) >= LEVEL_OF_TEST:
            break
        found[best] = replace(tested[best], step=step)
        model = np.column_stack([model, centred[:, best[0]] * centred[:, best[1]]])
        left.remove(best)
    return [found[pair] for pair in candidates]


def _test(model: np.ndarray, a: np.ndarray, b: np.ndarray, y: np.ndarray, pair: tuple[int, int], looks: int) -> Pair:
    """t test of one product given the model, by partialling the model out of both sides; limits for so many looks."""
    product = a * b
    fewest = min(int(((a * s > 0) & (b * r > 0)).sum()) for s, r in ((1, 1), (1, -1), (-1, 1), (-1, -1)))
    coefficients, _, rank, _ = np.linalg.lstsq(model, np.column_stack([product, y]), rcond=None)
    rest = np.column_stack([product, y]) - model @ coefficients
    x, z = rest.T
    df, size = len(y) - rank - 1, float(x @ x)
    if df < 1 or size < 1e-9 * max(1.0, float(product @ product)):
        nothing = math.nan
        return Pair(*pair, nothing, nothing, nothing, nothing, nothing, 1.0, 0, fewest)
    slope = float(x @ z) / size
    error = math.sqrt(float(((z - slope * x) ** 2).sum()) / df / size)
    effect, p = abs(slope), float(slope == 0)
    half = float(stats.t.ppf(1 - (1 - LEVEL) / (2 * looks), df)) * error
    if error > 0:
        p = float(2 * stats.t.sf(effect / error, df))
    return Pair(*pair, slope, effect / 3, max(0.0, effect - half) / 3, (effect + half) / 3, half / 3, p, 0, fewest)
