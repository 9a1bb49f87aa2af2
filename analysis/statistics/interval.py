"""A mean with its 95 % limits, and the streams of random numbers that panels draw from."""

import math
import zlib
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.95


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
