"""How much of what differs between runs comes from the configuration, and how much from the seed."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from .interval import LEVEL, Interval

WIN_DRAWS = 4000


@dataclass(frozen=True)
class Split:
    """Share of a single run's variance that the configuration makes (intraclass correlation), and the seeds' sd.

    `configuration_sd` is 0 when the configurations differ by no more than chance; `shared` says whether the same seeds
    ran everywhere and were taken out as a factor; `seed_share` is what a seed does alike to all configurations.
    """

    share: Interval
    seed_sd: Interval
    df: float
    configuration_sd: float
    seed_share: float
    shared: bool


def split(y: np.ndarray, shared: bool) -> Split:
    """Variance components of a balanced block, rows configurations and columns seeds.

    Seeds of their own: one-way analysis of variance, exact F limits of the intraclass correlation. `shared` seeds: the
    two-way one for absolute agreement (McGraw and Wong's case A,1), because a lucky seed lifts every row. The seeds' sd
    has Satterthwaite's degrees of freedom, from the spread of the rows' variances and from the mean squares: the fewer.
    """
    m, k = y.shape
    rows, columns, grand = y.mean(1), y.mean(0), y.mean()
    ms_row = k * float(((rows - grand) ** 2).sum()) / (m - 1)
    variances = y.var(1, ddof=1)
    within = float(variances.mean())
    if within == 0:
        sure = 1.0 if ms_row > 0 else math.nan
        return Split(
            Interval(sure, sure, sure, m), Interval(0, 0, 0, m * k), math.inf, math.sqrt(ms_row / k), 0.0, shared
        )
    tail = (1 - LEVEL) / 2
    ms_column = m * float(((columns - grand) ** 2).sum()) / (k - 1)
    ms_rest = residual(y)[0] ** 2
    if shared and ms_rest > 0:
        share = _agreement(m, k, ms_row, ms_column, ms_rest, tail)
        configuration, seed = (ms_row - ms_rest) / k, max(0.0, (ms_column - ms_rest) / m)
        weights = np.array([ms_column, (m - 1) * ms_rest]) / m
        df_squares = float(weights.sum() ** 2 / (weights**2 / [k - 1, (m - 1) * (k - 1)]).sum())
    else:
        ratio = ms_row / within
        ends = [ratio / stats.f.ppf(q, m - 1, m * (k - 1)) for q in (1 - tail, tail)]
        mean, lo, hi = (float(max(0.0, (f - 1) / (f + k - 1))) for f in (ratio, *ends))
        share = Interval(mean, lo, hi, m)
        configuration, seed, df_squares = (ms_row - within) / k, 0.0, float(m * (k - 1))
    spread = float(variances.var(ddof=1)) / m
    df = min(2 * within**2 / spread if spread > 0 else math.inf, df_squares)
    df = max(1.5, df)
    sd = math.sqrt(within)
    lo, hi = (sd * math.sqrt(df / float(stats.chi2.ppf(q, df))) for q in (1 - tail, tail))
    total = max(0.0, configuration) + within
    return Split(
        share,
        Interval(sd, lo, hi, m * k),
        df,
        math.sqrt(max(0.0, configuration)),
        seed / total if total > 0 else 0.0,
        shared,
    )


def residual(y: np.ndarray) -> tuple[float, int]:
    """What a block leaves when its rows and columns are taken out: standard deviation and degrees of freedom.

    Rows are configurations and columns shared seeds: how far two configurations on one seed differ by chance.
    """
    m, k = y.shape
    rest = y - y.mean(1, keepdims=True) - y.mean(0) + y.mean()
    df = (m - 1) * (k - 1)
    return math.sqrt(float((rest**2).sum()) / df), df


def _agreement(m: int, k: int, ms_row: float, ms_column: float, ms_rest: float, tail: float) -> Interval:
    """Intraclass correlation for absolute agreement of a single run, with its limits."""
    whole = ms_row + (k - 1) * ms_rest + k * (ms_column - ms_rest) / m
    share = max(0.0, (ms_row - ms_rest) / whole)
    known = min(share, 1 - 1e-9)
    a = k * known / (m * (1 - known))
    b = 1 + k * known * (m - 1) / (m * (1 - known))
    df = (a * ms_column + b * ms_rest) ** 2 / (
        (a * ms_column) ** 2 / (k - 1) + (b * ms_rest) ** 2 / ((m - 1) * (k - 1))
    )
    upper, lower = stats.f.ppf(1 - tail, m - 1, df), stats.f.ppf(1 - tail, df, m - 1)
    mixed = k * ms_column + (k * m - k - m) * ms_rest
    lo = m * (ms_row - upper * ms_rest) / (upper * mixed + m * ms_row)
    hi = m * (lower * ms_row - ms_rest) / (mixed + m * lower * ms_row)
    return Interval(share, float(max(0.0, lo)), float(max(0.0, hi)), m)


def chance_of_first(y: np.ndarray, sd: float, df: float, better: int, rng: np.random.Generator) -> np.ndarray:
    """How often each configuration would have the best mean if the same block ran again on other seeds.

    Means are drawn from N(mean_i, s2 / k) with s2 = sd^2 df / chi2_df.
    """
    m, k = y.shape
    spread = sd * (np.sqrt(df / rng.chisquare(df, WIN_DRAWS)) if math.isfinite(df) else np.ones(WIN_DRAWS))
    means = y.mean(1) + spread[:, None] / math.sqrt(k) * rng.standard_normal((WIN_DRAWS, m))
    best = np.argmax(better * means, axis=1)
    return np.bincount(best, minlength=m) / WIN_DRAWS
