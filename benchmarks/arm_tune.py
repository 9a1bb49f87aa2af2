"""Competitor (b): a Ray Tune function trainable; each trial loads, clusters and trains in a process of its own.

python benchmarks/arm_tune.py TASK.json OUT.json
"""

import json
import os
import sys
from typing import Any

import ray
from plain import read_task
from ray import tune


def trainable(config: dict[str, Any]) -> None:
    import torch
    from plain import cluster_sizes, load, train

    torch.set_num_threads(1)
    inputs = load(config["inputs"])
    configuration = {**config["fixed"], **config["point"]}
    size_M = cluster_sizes(inputs.train_text_MT, configuration["groups.k"])
    for metrics in train(configuration, inputs, size_M):
        tune.report(metrics)


def main(task_path: str, out_path: str) -> None:
    task = read_task(task_path)
    ray.init(address="local", num_cpus=2, include_dashboard=False)
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space={
            "inputs": task["inputs"],
            "fixed": task["fixed"],
            "point": tune.grid_search(task["points"]),
        },
        tune_config=tune.TuneConfig(metric="i2t_r1", mode="max", max_concurrent_trials=2),
        run_config=tune.RunConfig(storage_path=os.path.dirname(os.path.abspath(out_path)), name="tune"),
    )
    results = tuner.fit()
    assert [result.config["point"] for result in results] == task["points"]
    finals = [{k: v for k, v in r.metrics.items() if k.startswith(("i2t", "t2i"))} for r in results]
    with open(out_path, "w", encoding="utf8") as file:
        json.dump(finals, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
