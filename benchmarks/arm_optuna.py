"""Competitor (a): one careful process with Optuna; features and clusters are kept, both cores serve each operation.

python benchmarks/arm_optuna.py TASK.json OUT.json
"""

import json
import sys
from typing import Any

import optuna
import torch
from plain import cluster_sizes, load, read_task, train


def suggest(trial: optuna.Trial, path: str, spec: dict[str, Any]) -> Any:
    (kind, values), *_ = spec.items()
    if kind == "choice":
        return trial.suggest_categorical(path, values)
    return trial.suggest_float(path, *values, log=kind == "loguniform")


def main(task_path: str, out_path: str) -> None:
    torch.set_num_threads(2)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    task = read_task(task_path)
    fixed, points = task["fixed"], task["points"]
    inputs = load(task["inputs"])
    sizes_of: dict[int, Any] = {}
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0, multivariate=True))
    for point in points:
        study.enqueue_trial(point)
    finals = []
    for _ in points:
        trial = study.ask()
        _ = trial.relative_params  # TPE proposes as in a real search, although the queue knows the point
        config = {**fixed, **{path: suggest(trial, path, spec) for path, spec in task["space"].items()}}
        k = config["groups.k"]
        if k not in sizes_of:
            sizes_of[k] = cluster_sizes(inputs.train_text_MT, k)
        for metrics in train(config, inputs, sizes_of[k]):  # noqa: B007
            pass
        study.tell(trial, metrics["i2t_r1"])
        finals.append(metrics)
    with open(out_path, "w", encoding="utf8") as file:
        json.dump(finals, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
