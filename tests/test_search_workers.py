"""Trials of several workers inside Ray: the numbers of one process, one writer, errors, the next trial after one."""

import dataclasses

import pytest
from test_search import FIXED, SPACE, check_ledger, run
from toy import frozen

from mmts_ray import plan, results, space_file
from mmts_ray.train import TrainData, train
from mmts_ray.trial.group import group_run
from mmts_ray.trial.run import WEIGHTS

# a group of workers is half a dozen processes, each of which imports Ray and torch
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


def test_trials_of_two_workers_have_the_numbers_of_one_process_and_outlive_a_failing_one(local_ray, tmp_path):
    data = dataclasses.replace(frozen(), class_N=None, key="no-classes")
    study = space_file.parse(
        {
            **SPACE,
            "strategy": "grid",
            "search": {"groups.name": {"choice": ["classes", "none"]}},
            "fixed": {**{k: v for k, v in FIXED.items() if k != "groups.k"}, "loss.r_mix": 0.3},
            "baseline": [{"name": "plain", "groups.name": "none", "schedule.name": "constant"}],
            "resources": {"workers": 2},
        }
    )
    run(study, tmp_path / "s", data=data)
    trials = check_ledger(tmp_path / "s")
    # the one after the failing one has a new group of workers
    assert [t["status"] for t in trials] == ["done", "failed", "done"]
    assert "groups.name: classes needs classes" in trials[1]["error"]
    alone = TrainData(data)
    _, steps, duplicates = results.fold(results.records(tmp_path / "s"))
    assert duplicates == 0, "the first worker alone writes"
    for row in [t for t in trials if t["status"] == "done"]:
        straight = list(train(plan.config_of(row), alone))
        mine = {s["epoch"]: s for s in steps if s["trial"] == row["trial"] and "metric.train_loss" in s}
        assert sorted(mine) == [r.epoch for r in straight] == [1, 2, 3]
        for expected in straight:
            actual = {k.removeprefix("metric."): v for k, v in mine[expected.epoch].items() if k.startswith("metric.")}
            assert actual == pytest.approx(expected.metrics, rel=1e-6, abs=1e-6)
        assert (tmp_path / "s" / "checkpoints" / row["trial"] / WEIGHTS).is_file()
    assert not local_ray.util.placement_group_table() or {
        g["state"] for g in local_ray.util.placement_group_table().values()
    } == {"REMOVED"}


def test_one_worker_gives_the_same_numbers_through_train_and_through_the_warm_actor(local_ray, tmp_path):
    from ray import tune

    from mmts_ray.trial.workers import WorkersActor

    study = space_file.parse({**SPACE, "fixed": {**FIXED, "schedule.name": "cosine", "loss.r_mix": 0.3}, "search": {}})
    config = study.trial_config({})
    task = {"trial": "t0000", "kind": "search", "flat": config.flat(), "report": True}
    start = {"trial": "t0000", "kind": "search", **{f"param.{k}": v for k, v in config.flat().items()}}
    task |= {"members": [[config.seed, "t0000"]], "ended": [], "before": [], "starts": {"t0000": start}}
    options = {"workers": 1, "cpus": 1, "gpus": 0, "cache_dir": str(tmp_path / "cache"), "checkpoint_seconds": 1e9}
    options |= {"storage": None, "run": "one", "pulse_seconds": 5, "token": None}
    (tmp_path / "train").mkdir()
    actor_class = tune.with_parameters(
        WorkersActor, frozen=[local_ray.put(frozen())], study_dir=str(tmp_path / "train"), options=options
    )
    actor = local_ray.remote(num_cpus=0)(actor_class).remote(config=dict(task))
    through_train = [local_ray.get(actor.step.remote(), timeout=600)]
    while not through_train[-1].get("done"):
        through_train.append(local_ray.get(actor.step.remote(), timeout=600))
    local_ray.get(actor.stop.remote(), timeout=120)
    ledger = results.Ledger(tmp_path / "warm")
    warm = group_run(task, TrainData(frozen()), ledger=ledger, study_dir=tmp_path / "warm", options=options)
    for mine in through_train:
        theirs = warm.step()
        assert (mine["status"], mine["done"], mine["epoch"]) == (theirs["status"], theirs["done"], theirs["epoch"])
        scores = [{k: v for k, v in answer.items() if k.startswith(("val_", "train_"))} for answer in (mine, theirs)]
        assert len(scores[0]) > 20
        assert scores[0] == pytest.approx(scores[1], rel=1e-6, abs=1e-6)
    assert theirs["status"] == "done"
    ledger.close()


@pytest.mark.parametrize("strategy", ["hyperband", "pbt"])
def test_trials_of_two_workers_are_paused_and_go_on_and_the_best_are_copied(strategy, local_ray, tmp_path):
    spread = {"train.lr": {"loguniform": [1e-4, 1.0]}, "train.weight_decay": {"uniform": [0, 1]}}
    space = {**SPACE, "strategy": strategy, "search": spread, "baseline": [], "resources": {"workers": 2}}
    # saved by nobody but the scheduler, when it makes a trial pause or copies one
    study = space_file.parse({**space, "fixed": {**FIXED, "train.epochs": 4}, "checkpoint_seconds": 1000})
    run(study, tmp_path / "s")
    trials = {t["trial"]: t for t in check_ledger(tmp_path / "s")}
    _, steps, duplicates = results.fold(results.records(tmp_path / "s"))
    assert duplicates == 0, "after a pause nothing is trained again"
    assert {t["status"] for t in trials.values()} == {"done", "stopped"}
    copies = [t for t in trials.values() if "derived.parent" in t]
    assert bool(copies) == (strategy == "pbt")
    begins = {t["trial"]: t["derived.parent_epoch"] for t in copies}
    for name, trial in trials.items():
        epochs = sorted(s["epoch"] for s in steps if s["trial"] == name)
        assert epochs == list(range(begins.get(name, 0) + 1, trial["epoch"] + 1))
        assert (trial["epoch"] == 4) == (trial["status"] == "done")
