"""Does a parameter matter at all, and by how much: a distilled conditional randomisation test and total effects.

The test asks whether a parameter explains what a model of all *other* parameters leaves over. Under independent random
sampling a parameter that does nothing can be permuted freely, so the test is exact whatever the model does; under an
adaptive sampler it holds as far as the model removes the others (Liu, Katsevich, Janson, Ramdas, arXiv:2006.03980).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from .gaussian import Process, fit, laplace
from .interval import LEVEL, Interval

PERMUTATIONS = 999
STEPS = 15  # of the fit without the parameter, from the full fit's hyperparameters
DEGREE = 3
LEVEL_OF_TEST = 0.05
HYPER_DRAWS, DRAWS, PAIRS = 4, 50, 48


@dataclass(frozen=True)
class Evidence:
    """Permutation p-values of one parameter: of its main effect, and of main effect or interaction; `n` trials."""

    p_main: float
    p: float
    n: int


def randomisation_test(full: Process, column: int, active: np.ndarray, rng: np.random.Generator) -> Evidence:
    """Test of one parameter among the configurations where it is `active` (n,).

    T1 = squared norm of the leave-one-out residual's projection on cubic Legendre polynomials of u_j (levels of a
    choice); T2 = largest squared correlation of the residual with u_j u_k. The smaller of the two permutation ranks is
    calibrated on the same permutations.
    """
    points = full.points
    without = fit(points.without(column), smooth=full.smooth, start=np.delete(full.theta, column), steps=STEPS)
    residual = without.left_out()[1][active]
    n = len(residual)
    scores = stats.norm.ppf((stats.rankdata(residual) - 0.5) / n)
    scores -= scores.mean()
    order = rng.permuted(np.tile(np.arange(n), (PERMUTATIONS, 1)), axis=1)
    order = np.vstack([np.arange(n), order])  # the data as they are come first
    main, linear = basis(points.u[active, column], points.choice[column])
    first = sum((part[order] @ scores) ** 2 for part in main.T) if main.shape[1] else np.zeros(len(order))
    second = np.zeros(len(order))
    for other in range(points.u.shape[1]):
        _, partner = basis(points.u[active, other], points.choice[other])
        if other != column and partner.shape[1] and linear.shape[1]:
            second = np.maximum(second, _product_correlation(linear, partner, order, scores))
    ranks = [_upper_rank(np.asarray(statistic)) for statistic in (first, second)]
    best = np.minimum(*ranks)
    return Evidence(float(ranks[0][0]), float(np.mean(best <= best[0])), n)


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's adjusted p-values: reject where they are at most the level, and at most that share of studies errs."""
    order, adjusted = np.argsort(p, kind="stable"), np.empty(len(p))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p)))))
    return adjusted


def basis(u: np.ndarray, choice: bool, degree: int = DEGREE) -> tuple[np.ndarray, np.ndarray]:
    """(main, linear): centred orthonormal columns (n, r) of a parameter, and the part that enters products.

    Legendre polynomials up to `degree` of a number, contrasts of a choice's levels; columns that the data cannot tell
    apart are dropped.
    """
    if choice:
        levels = np.unique(u)
        columns = (u[:, None] == levels[None, 1:]).astype(float)
    else:
        x = 2 * u - 1
        columns = np.stack([np.polynomial.legendre.Legendre.basis(d)(x) for d in range(1, degree + 1)], axis=1)
    main = _orthonormal(columns)
    return main, main if choice else main[:, :1]


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    kept: list[np.ndarray] = []
    for column in columns.T:
        rest = column - column.mean()
        size = float(np.linalg.norm(rest))
        for _ in range(2):  # twice: once is not orthogonal to the last digit
            for other in kept:
                rest = rest - other * (other @ rest)
        if np.linalg.norm(rest) > 1e-6 * max(size, 1.0):
            kept.append(rest / np.linalg.norm(rest))
    return np.stack(kept, axis=1) if kept else np.zeros((len(columns), 0))


def _product_correlation(mine: np.ndarray, theirs: np.ndarray, order: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Mean squared correlation of the scores with the products of columns, for each permutation of mine."""
    n, total = len(scores), np.zeros(len(order))
    for column in mine.T:
        moved = column[order]
        covariance = moved @ (scores[:, None] * theirs)
        variance = (moved**2) @ theirs**2 - (moved @ theirs) ** 2 / n
        total += (covariance**2 / np.maximum(variance, 1e-12)).sum(1)
    return total / (mine.shape[1] * theirs.shape[1])


def _upper_rank(values: np.ndarray) -> np.ndarray:
    """Share of values at least as large as each: permutation p-values; ties within rounding count as equal."""
    rounded = np.round(values, 10)
    return (len(rounded) - np.searchsorted(np.sort(rounded), rounded, side="left")) / len(rounded)


def total_effects(
    process: Process,
    active: np.ndarray,
    feasible: Callable[[np.ndarray], np.ndarray],
    rng: np.random.Generator,
) -> list[Interval | None]:
    """Each parameter's total effect, a standard deviation of the score: sqrt(E[(f(u) - f(u with u_j redrawn))^2] / 2).

    Over pairs that are feasible, by joint posterior draws at draws of the hyperparameters; median and 95 % limits,
    `n` the number of pairs. A variance cannot be 0, so the lower limit proves nothing: the test decides that. None
    where no pair is feasible.
    """
    u = process.points.u
    n, d = u.shape
    base = u[rng.integers(n, size=PAIRS)]
    used = np.zeros((d, PAIRS), dtype=bool)
    sets = [base]
    for j in range(d):
        pool = np.flatnonzero(active[:, j])
        moved = base.copy()
        if len(pool):
            moved[:, j] = u[pool[rng.integers(len(pool), size=PAIRS)], j]
            used[j] = feasible(base) & feasible(moved)
        sets.append(moved)
    everywhere = np.vstack(sets)
    draws = []
    for drawn in laplace(process, rng.standard_normal((HYPER_DRAWS, d + 2))):
        values = drawn.draws(everywhere, rng.standard_normal((DRAWS, len(everywhere)))).reshape(DRAWS, d + 1, PAIRS)
        squares = (values[:, 1:] - values[:, :1]) ** 2
        draws.append([np.sqrt(0.5 * squares[:, j, used[j]].mean(1)) if used[j].any() else None for j in range(d)])
    found: list[Interval | None] = []
    for j in range(d):
        parts = [part for row in draws if (part := row[j]) is not None]
        if not parts:
            found.append(None)
            continue
        lo, mid, hi = np.quantile(np.concatenate(parts), [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
        found.append(Interval(float(mid), float(lo), float(hi), int(used[j].sum())))
    return found


def fit_quality(process: Process) -> float:
    """Rank correlation of each score with its prediction from all other configurations."""
    predicted, _ = process.left_out()
    if np.ptp(predicted) == 0 or np.ptp(process.points.y) == 0:
        return 0.0
    return float(stats.spearmanr(predicted, process.points.y).statistic)
