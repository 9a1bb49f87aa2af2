"""Does TPE search as well when it sees only the best and the newest trials? See mmts_ray/tpe.py.

python benchmarks/bounded_tpe.py            # 900 proposals on a noisy parabola of four parameters, six seeds

Printed for each seed: how far below the peak the last quarter of the proposals lies on average, and the best of all.
"""

import argparse
import warnings
from collections.abc import Callable

import numpy as np
import optuna

from mmts_ray.tpe import BoundedTPE

OPTIONS = {"multivariate": True, "constant_liar": True}
WEIGHTS = (1.0, 0.5, 0.2, 0.05)


def below_the_peak(sampler_of: Callable[[int], optuna.samplers.BaseSampler], proposals: int, seed: int) -> np.ndarray:
    """True distance of each proposal's score from the peak, in order; what the sampler is told carries noise."""
    rng, study, found = np.random.default_rng(seed), optuna.create_study(direction="maximize"), []
    for number in range(proposals):
        study.sampler = sampler_of(10_000 * seed + number)
        trial = study.ask()
        miss = sum(w * (trial.suggest_float(f"x{i}", 0, 1) - 0.3) ** 2 for i, w in enumerate(WEIGHTS))
        found.append(miss)
        study.tell(trial, -miss + 0.02 * rng.normal())
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--proposals", type=int, default=900)
    parser.add_argument("--seeds", type=int, default=6)
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    print("seed   bounded: last quarter, best   all trials: last quarter, best")
    for seed in range(args.seeds):
        arms = (lambda n: BoundedTPE(seed=n, **OPTIONS), lambda n: optuna.samplers.TPESampler(seed=n, **OPTIONS))
        found = [below_the_peak(arm, args.proposals, seed) for arm in arms]
        quarters = [(float(f[-args.proposals // 4 :].mean()), float(f.min())) for f in found]
        print(f"{seed:4d}   {quarters[0][0]:.4f}, {quarters[0][1]:.4f}   {quarters[1][0]:.4f}, {quarters[1][1]:.4f}")


if __name__ == "__main__":
    main()
