"""Our arm: `mmts-ray resume STUDY` on a study whose queue holds the points (see `replay.queue`).

python benchmarks/arm_mmts_ray.py STUDY
"""

import sys

import optuna

from mmts_ray.cli import main

ask = optuna.Study.ask


def ask_and_propose(study: optuna.Study) -> optuna.Trial:
    trial = ask(study)
    _ = trial.relative_params  # TPE proposes as in a real search, although the queue knows the point
    return trial


if __name__ == "__main__":
    optuna.Study.ask = ask_and_propose
    sys.exit(main(["resume", sys.argv[1], "--quiet"]))
