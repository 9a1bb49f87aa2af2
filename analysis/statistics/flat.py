"""Will any setting do? How far scores of random settings spread, and what all but a few of them lose against the best.

A linear model of cubic main effects and products, every column with the same prior variance; the standard deviation of
what the settings do, over that of the noise, is uniform between 0 and 2 beforehand, and averaged over.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import stats

from .importance import basis
from .interval import LEVEL, Interval

GRID = np.linspace(0, 2, 81)[1:]
DRAWS = 2000
WORST = 0.05  # the share of the settings that a claim about nearly all of them leaves out
LEVEL_OF_TEST = 0.05


@dataclass(frozen=True)
class Flatness:
    """Settings against seeds, in the unit of the score.

    `spread`: standard deviation of the settings' scores; `noise`: that of the seed between settings; `p`: how often
    noise alone spreads as far. By the model: `effect`, the standard deviation of what the settings do; `loss`, what one
    drawn at random loses against the one predicted best; `most`, what all but the worst twentieth lose at most.
    """

    spread: Interval
    noise: Interval
    p: float
    effect: Interval
    loss: Interval
    most: Interval

    def within(self, delta: float) -> bool:
        """Whether the scores spread by no more than noise does and nearly all settings lose at most `delta`."""
        return self.p > LEVEL_OF_TEST and self.most.hi <= delta


def flatness(
    u: np.ndarray,
    y: np.ndarray,
    choice: Sequence[bool],
    active: np.ndarray,
    noise: tuple[float, float],
    rng: np.random.Generator,
) -> Flatness:
    """Of settings `u` (n, d) drawn at random, `active` (n, d), and their scores `y` (n,), larger being better.

    `noise` is the standard deviation of one of these scores when its setting is kept, and its degrees of freedom.
    """
    n, (sd, df) = len(y), noise
    spread = float(y.std(ddof=1))
    p = float(stats.f.sf((spread / sd) ** 2, n - 1, df)) if sd > 0 else float(spread == 0)
    mean, draws = _posterior(_columns(u, choice, active), y, rng)
    best = int(np.argmax(mean))
    lost = draws[:, [best]] - draws
    return Flatness(
        spread=_of_sd(spread, n - 1, n),
        noise=_of_sd(sd, df, int(df)),
        p=p,
        effect=_of_draws(draws.std(1), n),
        loss=_of_draws(lost.mean(1), n),
        most=_of_draws(np.quantile(lost, 1 - WORST, axis=1), n),
    )


def _columns(u: np.ndarray, choice: Sequence[bool], active: np.ndarray) -> np.ndarray:
    """Main effects and products, centred, each with the variance 1 over the settings; 0 where one is not used."""
    (n, d), linear, columns = u.shape, [], []
    for j in range(d):
        on = active[:, j]
        parts: list[np.ndarray] = [np.zeros((n, 0))] * 2
        if on.sum() >= 2:
            for place, found in enumerate(basis(u[on, j], choice[j])):
                parts[place] = np.zeros((n, found.shape[1]))
                parts[place][on] = found
        columns.append(parts[0])
        linear.append(parts[1])
    products = [a[:, None] * b[:, None] for i, j in combinations(range(d), 2) for a in linear[i].T for b in linear[j].T]
    x = np.hstack([*columns, *products])
    x = x - x.mean(0)
    scale = np.sqrt((x**2).mean(0))
    return x[:, scale > 1e-9] / scale[scale > 1e-9]


def _posterior(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Mean (n,) and draws (s, n) of what the settings do, beyond their average."""
    n, columns = x.shape
    left, singular, _ = np.linalg.svd(x, full_matrices=False)
    squared, centred = singular**2, y - y.mean()
    along = left.T @ centred
    rest = max(0.0, float(centred @ centred - along @ along))
    weights, members = [], []
    for ratio in GRID:
        grown = 1 + squared * ratio**2 / max(1, columns)
        size = rest + float((along**2 / grown).sum())
        weights.append(-0.5 * float(np.log(grown).sum()) - 0.5 * (n - 1) * math.log(max(size, 1e-300)))
        members.append((1 - 1 / grown, size))
    chance = np.exp(np.array(weights) - max(weights))
    chance /= chance.sum()
    picked = rng.choice(len(GRID), size=DRAWS, p=chance)
    noise = np.array([members[place][1] for place in picked]) / rng.chisquare(n - 1, DRAWS)
    kept = np.array([members[place][0] for place in picked])  # of each direction, the share that is not noise
    along_draws = kept * along + np.sqrt(noise[:, None] * kept) * rng.standard_normal(kept.shape)
    mean = left @ (sum(c * share for c, (share, _) in zip(chance, members)) * along)
    return mean, along_draws @ left.T


def _of_sd(sd: float, df: float, n: int) -> Interval:
    """A standard deviation with its chi-square limits."""
    tail = (1 - LEVEL) / 2
    lo, hi = (sd * math.sqrt(df / float(stats.chi2.ppf(q, df))) for q in (1 - tail, tail))
    return Interval(sd, lo, hi, n)


def _of_draws(values: np.ndarray, n: int) -> Interval:
    lo, mid, hi = np.quantile(values, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
    return Interval(float(mid), float(lo), float(hi), n)
