"""Sweeps with a known truth: six parameters, of which one does nothing, noise over seeds, divergence, rungs.

Unit coordinates (lr, tau, wd, margin, mix, dead): a peak, a flat top with soft shoulders, a medium and a weak parabola,
a ramp whose optimum may lie on the bound, and a product of lr and wd; additive, or multiplied, where everything
interacts. `Truth` is the response, `random_sweep` and `tpe_sweep` sample it.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import optimize

NAMES = ("lr", "tau", "wd", "margin", "mix", "dead")
CANDIDATES = 347


@lru_cache
def top_of(c: float) -> float:
    """F0 with which the best score is .41: only lr and wd pull at each other."""

    def loss(x: np.ndarray) -> float:
        lr, wd = x
        return float(
            0.10 * (1 - np.exp(-(((lr - 0.60) / 0.30) ** 2))) + 0.03 * (wd - 0.45) ** 2 / 0.3025
            + c * (lr - 0.5) * (wd - 0.5)
        )  # fmt: skip

    return 0.41 + min(optimize.minimize(loss, [0.6, s], bounds=[(0, 1)] * 2).fun for s in (0.2, 0.45, 0.8))


@dataclass(frozen=True)
class Truth:
    """`c` interaction, `m` slope and `mopt` optimum of the margin, `form` additive or multiplicative, `sd` a factor."""

    c: float = 0.12
    m: float = 0.03
    mopt: float = 0.0
    form: str = "additive"
    sd: float = 1.0

    def score(self, u: np.ndarray) -> np.ndarray:
        """(n, 6) -> (n,)."""
        lr, tau, wd, margin, mix, _ = np.atleast_2d(u).T
        q = np.maximum(0.0, np.abs(tau - 0.55) - 0.15)
        terms = np.array(
            [
                0.10 * (1 - np.exp(-(((lr - 0.60) / 0.30) ** 2))),
                0.09 * (1 - np.exp(-((q / 0.22) ** 2))),
                0.03 * (wd - 0.45) ** 2 / 0.3025,
                self.m * np.abs(margin - self.mopt) / max(self.mopt, 1 - self.mopt),
                0.02 * (mix - 0.35) ** 2 / 0.4225,
                self.c * (lr - 0.5) * (wd - 0.5),
            ]
        )
        if self.form == "multiplicative":
            return 0.4083643 * np.prod(1 - terms / 0.25, axis=0)
        return top_of(self.c) - terms.sum(0)

    def seed_sd(self, u: np.ndarray) -> np.ndarray:
        lr = np.atleast_2d(u)[:, 0]
        return self.sd * (0.010 + 0.008 * np.maximum(0, lr - 0.6) / 0.4 + 0.004 * (0.41 - self.score(u)) / 0.2)

    def diverges(self, u: np.ndarray) -> np.ndarray:
        """Probability that a run ends in NaN."""
        u = np.atleast_2d(u)
        return 1 / (1 + np.exp(-(u[:, 0] - 0.25 * u[:, 1] - 0.75) / 0.02))

    def run(self, u: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """One rounded score per row, NaN where it diverged."""
        u = np.atleast_2d(u)
        noisy = self.score(u) + self.seed_sd(u) * rng.standard_normal(len(u))
        lost = rng.random(len(u)) < self.diverges(u)
        return np.where(lost, np.nan, np.round(CANDIDATES * noisy) / CANDIDATES)

    def rungs(self, u: np.ndarray, rng: np.random.Generator, shares: tuple[float, ...] = (1 / 9, 1 / 3, 1.0)):
        """(n, rungs) scores of the same runs at shares of their length: slow learners look worse, noise is shared."""
        u = np.atleast_2d(u)
        common, columns = rng.standard_normal(len(u)), []
        for share in shares:
            z = np.sqrt(0.6) * common + np.sqrt(0.4) * rng.standard_normal(len(u))
            columns.append(self.score_at(u, share) + self.seed_sd(u) * (1 + 0.5 * (1 - share)) * z)
        return np.stack(columns, axis=1)

    def score_at(self, u: np.ndarray, share: float) -> np.ndarray:
        """True score at a share of the full length."""
        lr = np.atleast_2d(u)[:, 0]
        return self.score(u) - 0.12 * (1 - share) ** 2 * (0.5 + np.exp(-((lr / 0.35) ** 2)))

    def width(self, u: np.ndarray, column: int, delta: float) -> float:
        """True width of the slice through `u`: the connected part where the score stays within delta of that at u."""
        grid = np.unique(np.r_[np.linspace(0, 1, 2001), u[column]])
        line = np.tile(u, (len(grid), 1))
        line[:, column] = grid
        out = np.flatnonzero(self.score(line) - self.score(u) < -delta)
        at = int(np.argmin(np.abs(grid - u[column])))
        left, right = out[out < at], out[out > at]
        return float((grid[right[0]] if len(right) else 1.0) - (grid[left[-1]] if len(left) else 0.0))


def random_sweep(truth: Truth, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(coordinates, scores) of n independent uniform trials; NaN = diverged."""
    u = rng.random((n, len(NAMES)))
    return u, truth.run(u, rng)


def tpe_sweep(truth: Truth, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(coordinates, scores) of n trials of Optuna's TPE with its defaults, diverged ones told as failed."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rng = np.random.default_rng([seed, 77])
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    space = {name: optuna.distributions.FloatDistribution(0.0, 1.0) for name in NAMES}
    points, scores = [], []
    for _ in range(n):
        trial = study.ask(space)
        u = np.array([trial.params[name] for name in NAMES])
        score = float(truth.run(u, rng)[0])
        if np.isnan(score):
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, score)
        points.append(u)
        scores.append(score)
    return np.array(points), np.array(scores)
