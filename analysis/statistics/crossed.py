"""A difference of two configurations on a sample of queries, over a sample of seeds: both count.

Resampling the queries alone covers .83 to .92, the seeds alone .60 to .88, both together is a quarter too wide; the
analytic crossed variance covers at its level from two seeds on.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from .interval import LEVEL, Interval


@dataclass(frozen=True)
class Crossed(Interval):
    """A mean difference over `n` seeds and `queries`; `se_queries` and `se_seeds` are the two parts of its error."""

    queries: int
    se_queries: float
    se_seeds: float
    df: float


def crossed_difference(a_SQ: np.ndarray, b_SQ: np.ndarray, *, paired: bool, comparisons: int = 1) -> Crossed | None:
    """Mean of a minus mean of b, rows seeds and columns queries, with limits for other queries *and* other seeds.

    se^2 = V_q + V_s: V_q = var_q(mean_s D) / Q; V_s = max(0, var_s(mean_q) / S - mean_q(var_s) / (Q S)), taken over the
    differences when row i of both arms is the same seed (`paired`), else summed over the arms; t with Satterthwaite's
    degrees of freedom. `comparisons` widens the limits for that many looks (Bonferroni). None below two seeds or two
    queries, where an interval would be a guess. Raises ValueError when the arms have other queries or, paired, seeds.
    """
    a_SQ, b_SQ = np.asarray(a_SQ, dtype=float), np.asarray(b_SQ, dtype=float)
    queries, seeds = a_SQ.shape[1], min(len(a_SQ), len(b_SQ))
    if b_SQ.shape[1] != queries or (paired and len(a_SQ) != len(b_SQ)):
        raise ValueError(f"arms of shapes {a_SQ.shape} and {b_SQ.shape} cannot be compared query by query")
    if seeds < 2 or queries < 2:
        return None
    difference_Q = a_SQ.mean(0) - b_SQ.mean(0)
    v_queries = float(difference_Q.var(ddof=1)) / queries
    parts = [_seed_variance(arm) for arm in ([a_SQ - b_SQ] if paired else [a_SQ, b_SQ])]
    v_seeds = max(0.0, sum(parts))
    df_seeds = seeds - 1 if paired else len(a_SQ) + len(b_SQ) - 2
    mean, variance = float(difference_Q.mean()), v_queries + v_seeds
    if variance == 0:
        return Crossed(mean, mean, mean, seeds, queries, 0.0, 0.0, math.inf)
    df = variance**2 / (v_queries**2 / (queries - 1) + v_seeds**2 / df_seeds)
    half = float(stats.t.ppf(1 - (1 - LEVEL) / (2 * comparisons), df)) * math.sqrt(variance)
    return Crossed(mean, mean - half, mean + half, seeds, queries, math.sqrt(v_queries), math.sqrt(v_seeds), df)


def _seed_variance(arm_SQ: np.ndarray) -> float:
    """Variance of an arm's mean that comes from its seeds beyond query-seed noise; may be negative."""
    seeds, queries = arm_SQ.shape
    return float(arm_SQ.mean(1).var(ddof=1) / seeds - arm_SQ.var(0, ddof=1).mean() / (queries * seeds))
