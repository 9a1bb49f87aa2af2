"""A Gaussian process over configurations: product Matern kernel, maximum a posteriori, Laplace draws.

y standardised; k(u, u') = 1 + s_f prod_j m(|u_j - u'_j| / l_j), noise s2 / k_i for a mean of k_i seeds. Priors
log l ~ N(log .7, 1), log s_f ~ N(0, 1.5), log s2 ~ N(log .1, 1.5). Coordinates lie in [0, 1]; those of a choice are
whole numbers, two different ones being 1 apart. What was chosen by simulation is in docs/statistics.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import linalg, optimize
from threadpoolctl import threadpool_limits

LOG_L, LOG_F, LOG_N = math.log(0.7), 0.0, math.log(0.1)
SD_L, SD_F, SD_N = 1.0, 1.5, 1.5
BOUNDS_L, BOUNDS_F, BOUNDS_N = (math.log(0.03), math.log(60)), (-6.0, 6.0), (math.log(1e-4), math.log(10))
JITTER = 1e-9
HESSIAN_STEP, FLOOR = 1e-3, 0.3


@dataclass(frozen=True)
class Points:
    """Configurations: `u` (n, d) coordinates, `y` (n,) mean scores, `k` (n,) seeds behind each, `choice` (d,) flags."""

    u: np.ndarray
    y: np.ndarray
    k: np.ndarray
    choice: tuple[bool, ...]

    def without(self, column: int) -> "Points":
        """The same configurations, ignorant of one parameter."""
        kept = [j for j in range(self.u.shape[1]) if j != column]
        return Points(self.u[:, kept], self.y, self.k, tuple(self.choice[j] for j in kept))


@dataclass(frozen=True, eq=False)
class Process:
    """A fitted process: `theta` = (log l_1..d, log s_f, log s2) and what follows from it."""

    points: Points
    smooth: bool  # Matern-5/2, else 3/2
    theta: np.ndarray
    chol: np.ndarray = field(repr=False)
    alpha: np.ndarray = field(repr=False)

    @property
    def centre(self) -> float:
        return float(self.points.y.mean())

    @property
    def scale(self) -> float:
        return float(self.points.y.std()) or 1.0

    def mean(self, u: np.ndarray) -> np.ndarray:
        """Posterior mean of the score at `u` (m, d)."""
        return self.centre + self.scale * (_cross(self, u) @ self.alpha)

    def joint(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Posterior mean (m,) and covariance (m, m) of the noise-free score."""
        cross = _cross(self, u)
        half = linalg.solve_triangular(self.chol, cross.T, lower=True, check_finite=False)
        gaps = _gaps(u, u, self.points.choice)
        d = len(self.points.choice)
        prior = 1 + math.exp(self.theta[d]) * _product(gaps, self.theta[:d], self.smooth)
        return self.centre + self.scale * (cross @ self.alpha), self.scale**2 * (prior - half.T @ half)

    def draws(self, u: np.ndarray, normal: np.ndarray) -> np.ndarray:
        """Joint posterior draws (s, m) of the noise-free score from standard normals (s, m)."""
        mean, covariance = self.joint(u)
        values, vectors = np.linalg.eigh(covariance)
        return mean + (normal * np.sqrt(np.maximum(values, 0))) @ vectors.T

    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean, standardised residual) of each point from all others, in closed form."""
        inverse = linalg.cho_solve((self.chol, True), np.eye(len(self.alpha)), check_finite=False)
        diagonal = np.diag(inverse)
        return self.points.y - self.scale * self.alpha / diagonal, self.alpha / np.sqrt(diagonal)


def fit(points: Points, *, smooth: bool = True, start: np.ndarray | None = None, steps: int = 40) -> Process:
    """The process at the mode of its hyperparameters: L-BFGS with the analytic gradient, at most `steps` steps."""
    d = points.u.shape[1]
    gaps = _gaps(points.u, points.u, points.choice)
    first = np.r_[np.full(d, LOG_L), LOG_F, LOG_N] if start is None else start
    limits = [BOUNDS_L] * d + [BOUNDS_F, BOUNDS_N]
    with threadpool_limits(1):  # threaded sums differ in their last bits
        found = optimize.minimize(
            objective, first, args=(gaps, _standard(points.y), points.k, smooth), jac=True, method="L-BFGS-B",
            bounds=limits, options={"maxiter": steps},
        )  # fmt: skip
        return _at(points, smooth, found.x, gaps)


def laplace(process: Process, normal: np.ndarray) -> list[Process]:
    """The process at draws of its hyperparameters around the mode, one per row of `normal` (s, d + 2).

    Hessian by central differences of the gradient, eigenvalues floored at .3.
    """
    points, mode = process.points, process.theta
    d = points.u.shape[1]
    gaps, y = _gaps(points.u, points.u, points.choice), _standard(points.y)
    with threadpool_limits(1):
        rows = []
        for place in range(len(mode)):
            step = np.zeros(len(mode))
            step[place] = HESSIAN_STEP
            up, down = (objective(mode + sign * step, gaps, y, points.k, process.smooth)[1] for sign in (1, -1))
            rows.append((up - down) / (2 * HESSIAN_STEP))
        hessian = np.array(rows)
        values, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
        moved = mode + (normal / np.sqrt(np.maximum(values, FLOOR))) @ vectors.T
        low, high = np.array([BOUNDS_L] * d + [BOUNDS_F, BOUNDS_N]).T
        return [_at(points, process.smooth, theta, gaps) for theta in np.clip(moved, low, high)]


def objective(
    theta: np.ndarray, gaps: np.ndarray, y: np.ndarray, k: np.ndarray, smooth: bool
) -> tuple[float, np.ndarray]:
    """Negative log posterior of the hyperparameters (up to a constant) and its gradient."""
    d = len(theta) - 2
    lengths, amplitude, noise = theta[:d], math.exp(theta[d]), math.exp(theta[d + 1])
    product, slopes = _product_and_slopes(gaps, lengths, smooth)
    covariance = amplitude * product
    full = covariance + 1.0
    full[np.diag_indices_from(full)] += noise / k + JITTER
    try:
        chol = linalg.cholesky(full, lower=True, check_finite=False)
    except linalg.LinAlgError:
        return 1e10, np.zeros_like(theta)
    alpha = linalg.cho_solve((chol, True), y, check_finite=False)
    inverse, _ = linalg.lapack.dpotri(chol, lower=1)
    inverse = inverse + inverse.T
    inverse[np.diag_indices_from(inverse)] /= 2
    away = (theta - np.r_[np.full(d, LOG_L), LOG_F, LOG_N]) / np.r_[np.full(d, SD_L), SD_F, SD_N]
    value = 0.5 * float(y @ alpha) + float(np.log(np.diag(chol)).sum()) + 0.5 * float(away @ away)
    weight = 0.5 * (inverse - np.outer(alpha, alpha))
    weighted = weight * covariance
    gradient = np.array(
        [float(np.vdot(weighted, slope)) for slope in slopes]
        + [float(weighted.sum()), float((np.diag(weight) * noise / k).sum())]
    )
    return value, gradient + away / np.r_[np.full(d, SD_L), SD_F, SD_N]


def _at(points: Points, smooth: bool, theta: np.ndarray, gaps: np.ndarray) -> Process:
    d = points.u.shape[1]
    full = 1.0 + math.exp(theta[d]) * _product(gaps, theta[:d], smooth)
    full[np.diag_indices_from(full)] += math.exp(theta[d + 1]) / points.k + JITTER
    chol = linalg.cholesky(full, lower=True, check_finite=False)
    return Process(points, smooth, theta, chol, linalg.cho_solve((chol, True), _standard(points.y), check_finite=False))


def _standard(y: np.ndarray) -> np.ndarray:
    return (y - y.mean()) / (float(y.std()) or 1.0)


def _cross(process: Process, u: np.ndarray) -> np.ndarray:
    d = len(process.points.choice)
    gaps = _gaps(u, process.points.u, process.points.choice)
    return 1.0 + math.exp(process.theta[d]) * _product(gaps, process.theta[:d], process.smooth)


def _gaps(a: np.ndarray, b: np.ndarray, choice: Sequence[bool]) -> np.ndarray:
    """Distances (d, n, m) per parameter: |u - u'|, or 1 between two different choices."""
    gaps = np.abs(a.T[:, :, None] - b.T[:, None, :])
    for j, flag in enumerate(choice):
        if flag:
            gaps[j] = gaps[j] > 0.5
    return gaps


def _product(gaps: np.ndarray, lengths: np.ndarray, smooth: bool) -> np.ndarray:
    root = math.sqrt(5 if smooth else 3)
    total, product = np.zeros(gaps.shape[1:]), np.ones(gaps.shape[1:])
    for gap, length in zip(gaps, lengths):
        a = gap * (root * math.exp(-length))
        total += a
        product *= 1 + a + a * a / 3 if smooth else 1 + a
    return product * np.exp(-total)


def _product_and_slopes(gaps: np.ndarray, lengths: np.ndarray, smooth: bool) -> tuple[np.ndarray, list[np.ndarray]]:
    """prod_j m_j, and d log m_j / d log l_j."""
    root = math.sqrt(5 if smooth else 3)
    total, product, slopes = np.zeros(gaps.shape[1:]), np.ones(gaps.shape[1:]), []
    for gap, length in zip(gaps, lengths):
        a = gap * (root * math.exp(-length))
        total += a
        square = a * a
        factor = 1 + a + square / 3 if smooth else 1 + a
        slopes.append((square * (1 + a) / 3 if smooth else square) / factor)
        product *= factor
    return product * np.exp(-total), slopes
