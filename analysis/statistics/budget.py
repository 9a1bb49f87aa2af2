"""What a budget buys: the median best of k random trials, with a simultaneous band for all k.

F(x_(i)) ~ Beta(i, n + 1 - i); limits at one common level, calibrated so that all ranks from n/2 up hold jointly with
.95. A bootstrap of the expected maximum covers half as often as it says.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats

from .interval import LEVEL

SAMPLES, EVALUATIONS = 20_000, 1_000_000
RANKS = 400  # ranks that the calibration looks at: beyond, evenly spaced ones, whose neighbours differ by little
OPEN_BEYOND = 10  # the upper limit is not drawn beyond k = n / 10: it is the best possible score there


@dataclass(frozen=True)
class Curve:
    """Per k = 1..n: the median best of k trials and its limits; -inf where most such budgets find nothing at all."""

    k: np.ndarray
    median: np.ndarray
    lo: np.ndarray
    hi: np.ndarray  # inf where the data put no upper limit


def tuning_curve(scores: np.ndarray, lost: int = 0) -> Curve:
    """Curve of independent random trials, larger is better; `lost` trials count as worse than any score."""
    x = np.sort(np.r_[np.full(lost, -np.inf), np.asarray(scores, dtype=float)])
    n = len(x)
    k = np.arange(1, n + 1)
    level = 0.5 ** (1 / k)
    low, high = rank_limits(n)
    places = np.minimum(np.ceil(level * n - 1e-9).astype(int), n)
    below = np.searchsorted(high, level, side="left")  # ranks whose upper limit lies below the level
    above = np.searchsorted(low, level, side="left")  # first rank whose lower limit reaches it
    return Curve(
        k,
        x[places - 1],
        np.where(below > 0, x[np.maximum(below, 1) - 1], -np.inf),
        np.where(above < n, x[np.minimum(above, n - 1)], np.inf),
    )


@lru_cache(maxsize=16)
def rank_limits(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Limits of F(x_(i)), i = 1..n, holding together for all i >= n/2 in 95 % of samples."""
    ranks = np.arange(1, n + 1)
    upper = np.unique(np.linspace(int(np.ceil(n / 2)), n, min(RANKS, n - int(np.ceil(n / 2)) + 1)).astype(int))
    samples = int(min(SAMPLES, max(2_000, EVALUATIONS // len(upper))))
    rng = np.random.Generator(np.random.PCG64([n, samples]))
    # order statistics of n uniform numbers are running sums of exponential spacings over their total
    sums = np.cumsum(rng.standard_gamma(np.diff(upper, prepend=0), (samples, len(upper))), axis=1)
    total = sums[:, -1] + rng.standard_gamma(n + 1 - upper[-1], samples)
    share = stats.beta.cdf(sums / total[:, None], upper, n + 1 - upper)
    level = float(np.quantile(2 * np.minimum(share, 1 - share).min(1), 1 - LEVEL))
    return stats.beta.ppf(level / 2, ranks, n + 1 - ranks), stats.beta.ppf(1 - level / 2, ranks, n + 1 - ranks)
