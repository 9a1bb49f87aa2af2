"""Intervals over seeds, and the few tests the panels use.

Student t throughout: at 3 to 10 seeds it covers at its level, a percentile bootstrap does not (.76 instead of .95 at
3). Every interval is 95 %. Randomness comes only from a generator that the caller passes.
"""

import math
import zlib
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.95
POSTERIOR_DRAWS = 4000


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % limits over `n` seeds; limits are NaN below two."""

    mean: float
    lo: float
    hi: float
    n: int

    @property
    def half(self) -> float:
        return (self.hi - self.lo) / 2


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


def generator(seed: int, purpose: str) -> np.random.Generator:
    """An independent stream for a panel, by name: adding a panel does not move the numbers of another."""
    return np.random.Generator(np.random.PCG64([seed, zlib.crc32(purpose.encode())]))


def t_interval(values: pd.Series | np.ndarray) -> Interval:
    """Mean and t limits of independent runs."""
    x = np.asarray(values, dtype=float)
    n = len(x)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    mean = float(x.mean())
    if n == 1:
        return Interval(mean, math.nan, math.nan, 1)
    half = float(stats.t.ppf(0.5 + LEVEL / 2, n - 1) * x.std(ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


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
        mean, half = float(delta.mean()), float(stats.t.ppf(tail, n - 1) * sd / math.sqrt(n))
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


def chance_of_better(d: Difference, better: int, rng: np.random.Generator) -> Interval | None:
    """Probability that a run of the first arm beats a run of the second, from posterior draws of mean and sd.

    Phi(d / sd) with sd^2 = s^2 df / chi2_df and d ~ N(mean, sd^2 / n). None when all pairs differ by the same amount.
    """
    if not d.sd > 0:
        return None
    sd = d.sd * np.sqrt(d.df / rng.chisquare(d.df, POSTERIOR_DRAWS))
    draws = stats.norm.cdf(better * rng.normal(d.mean, sd / math.sqrt(d.n)) / sd)
    lo, hi = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(stats.norm.cdf(better * d.mean / d.sd)), float(lo), float(hi), d.n)


def seeds_to_resolve(sd: float, half: float) -> int:
    """Seeds per arm at which a paired interval is expected to be no wider than +-half."""
    n = 2
    while n < 10_000 and stats.t.ppf(0.5 + LEVEL / 2, n - 1) * sd / math.sqrt(n) > half:
        n += 1 if n < 200 else n // 20
    return n


def wilson(hits: int, n: int) -> Interval:
    """A share with Wilson's limits."""
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    z = stats.norm.ppf(0.5 + LEVEL / 2)
    share, scale = hits / n, 1 + z * z / n
    centre = (share + z * z / (2 * n)) / scale
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / scale
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half), n)


def rank_correlation(x: np.ndarray, y: np.ndarray) -> Interval | None:
    """Spearman's correlation with Bonett-Wright limits; None below ten points or when one side does not vary."""
    n = len(x)
    if n < 10 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    r = float(stats.spearmanr(x, y).statistic)
    if abs(r) >= 1:
        return Interval(r, r, r, n)
    half = stats.norm.ppf(0.5 + LEVEL / 2) * math.sqrt((1 + r * r / 2) / (n - 3))
    return Interval(r, math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half), n)


def pooled_sd(groups: list[np.ndarray]) -> tuple[float, int]:
    """Standard deviation within groups and its degrees of freedom; (NaN, 0) without a group of two."""
    df = sum(len(g) - 1 for g in groups if len(g) > 1)
    if df == 0:
        return math.nan, 0
    return math.sqrt(sum(float(((g - g.mean()) ** 2).sum()) for g in groups if len(g) > 1) / df), df


def worst_shown(scores: np.ndarray, better: int) -> float:
    """Where an axis of scores may end on the worse side: 1.5 interquartile ranges beyond the quartile (Tukey)."""
    q1, q3 = np.quantile(scores, [0.25, 0.75])
    reach = 1.5 * (q3 - q1)
    return float(max(scores.min(), q1 - reach) if better > 0 else min(scores.max(), q3 + reach))


def failing_end(position: np.ndarray, failed: np.ndarray, parameters: int) -> tuple[float | None, float | None]:
    """Positions beyond which every run failed, at the low and the high end; None where there is no such end.

    An end counts when at least five runs in a row failed there and chance would fail them all, at the overall rate
    and over every end of every parameter, less than once in a hundred studies.
    """
    order = np.argsort(position, kind="stable")
    rate = float(failed.mean()) if len(failed) else 0.0

    def run(indices: np.ndarray) -> float | None:
        ok = np.flatnonzero(~failed[indices])
        count = int(ok[0]) if len(ok) else 0  # everything failed: no end to speak of
        if count < 5 or 2 * parameters * rate**count > 0.01:
            return None
        return float(position[indices[count]])

    return run(order), run(order[::-1])
