"""Differences between configurations over seeds, and between data sets.

Student t throughout: at 3 to 10 seeds it covers at its level, a percentile bootstrap does not (.76 instead of .95 at
3). Every interval is 95 %. Randomness comes only from a generator that the caller passes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
from scipy import stats

from .interval import LEVEL, Interval, t_interval

POSTERIOR_DRAWS = 4000


@dataclass(frozen=True)
class Difference(Interval):
    """A mean difference with its 95 % limits; `sd` of the difference of one pair of runs, `df` of its estimate."""

    sd: float
    df: float
    paired: bool
    correlation: float  # of the two arms over shared seeds; NaN where it is not defined

    @property
    def established(self) -> bool:
        """Whether the interval excludes 0."""
        return self.lo > 0 or self.hi < 0


def difference(a: pd.Series, b: pd.Series, comparisons: int = 1) -> Difference | None:
    """Mean of a minus mean of b, both indexed by seed; None when it cannot be formed.

    Paired when at least two seeds are shared (then only those are used), else Welch with Satterthwaite degrees of
    freedom. `comparisons` widens the limits for that many looks (Bonferroni).
    """
    tail = 1 - (1 - LEVEL) / (2 * comparisons)
    shared = a.index.intersection(b.index).sort_values()
    if len(shared) >= 2:
        x, y = a[shared].to_numpy(dtype=float), b[shared].to_numpy(dtype=float)
        delta = x - y
        n, sd = len(delta), float(delta.std(ddof=1))
        mean, half = float(delta.mean()), _t_quantile(tail, n - 1) * sd / math.sqrt(n)
        moving = n > 2 and x.std() > 0 and y.std() > 0
        correlation = float(np.corrcoef(x, y)[0, 1]) if moving else math.nan
        return Difference(mean, mean - half, mean + half, n, sd, n - 1, True, correlation)
    n_a, n_b = len(a), len(b)
    if n_a < 2 or n_b < 2:
        return None
    v_a, v_b = float(a.var(ddof=1)) / n_a, float(b.var(ddof=1)) / n_b
    mean = float(a.mean() - b.mean())
    df = (v_a + v_b) ** 2 / (v_a**2 / (n_a - 1) + v_b**2 / (n_b - 1)) if v_a + v_b > 0 else n_a + n_b - 2
    half = float(stats.t.ppf(tail, df) * math.sqrt(v_a + v_b))
    sd = math.sqrt(v_a * n_a + v_b * n_b)
    return Difference(mean, mean - half, mean + half, min(n_a, n_b), sd, df, False, math.nan)


@lru_cache(maxsize=1024)  # thousands of pairs of settings have the same few numbers of seeds
def _t_quantile(tail: float, df: int) -> float:
    return float(stats.t.ppf(tail, df))


def chance_of_better(d: Difference, better: int, rng: np.random.Generator) -> Interval | None:
    """Probability that a run of the first arm beats a run of the second, from posterior draws of mean and sd.

    Phi(d / sd) with sd^2 = s^2 df / chi2_df and d ~ N(mean, sd^2 / n). None when all pairs differ by the same amount.
    """
    return chance_on_average([d], better, rng)


def chance_on_average(differences: Sequence[Difference], better: int, rng: np.random.Generator) -> Interval | None:
    """`chance_of_better` averaged over given data sets, one difference each; its limits from joint draws.

    None without a difference, or when all pairs of one data set differ by the same amount. `n` is the fewest seeds.
    """
    if not differences or not all(d.sd > 0 for d in differences):
        return None
    draws = np.zeros(POSTERIOR_DRAWS)
    for d in differences:
        sd = d.sd * np.sqrt(d.df / rng.chisquare(d.df, POSTERIOR_DRAWS))
        draws += stats.norm.cdf(better * rng.normal(d.mean, sd / math.sqrt(d.n)) / sd) / len(differences)
    mean = float(np.mean([stats.norm.cdf(better * d.mean / d.sd) for d in differences]))
    lo, hi = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(mean, float(lo), float(hi), min(d.n for d in differences))


def mean_over_given(differences: Sequence[Difference]) -> Interval | None:
    """Mean difference over the data sets at hand: se^2 = sum sd_m^2 / n_m / M^2, t with Satterthwaite's df.

    It says nothing about a new data set. None without a difference; `n` is the number of data sets.
    """
    if not differences:
        return None
    variance = np.array([d.sd**2 / d.n for d in differences])
    mean, total, count = float(np.mean([d.mean for d in differences])), float(variance.sum()), len(differences)
    if total == 0:
        return Interval(mean, mean, mean, count)
    df = total**2 / float(np.sum(variance**2 / [d.df for d in differences]))
    half = float(stats.t.ppf(0.5 + LEVEL / 2, df)) * math.sqrt(total) / count
    return Interval(mean, mean - half, mean + half, count)


def mean_over_new(differences: Sequence[Difference]) -> Interval | None:
    """Mean difference on a data set like these: t over their means. None below three data sets."""
    return t_interval(np.array([d.mean for d in differences])) if len(differences) >= 3 else None


def seeds_to_resolve(sd: float, half: float) -> int:
    """Seeds per arm at which a paired interval is expected to be no wider than +-half."""
    n = 2
    while n < 10_000 and stats.t.ppf(0.5 + LEVEL / 2, n - 1) * sd / math.sqrt(n) > half:
        n += 1 if n < 200 else n // 20
    return n


def pooled_sd(groups: list[np.ndarray]) -> tuple[float, int]:
    """Standard deviation within groups and its degrees of freedom; (NaN, 0) without a group of two."""
    df = sum(len(g) - 1 for g in groups if len(g) > 1)
    if df == 0:
        return math.nan, 0
    return math.sqrt(sum(float(((g - g.mean()) ** 2).sum()) for g in groups if len(g) > 1) / df), df
