"""A study's life inside Ray: strategies, baselines, confirm, infeasible and failing trials, repeats, weights."""

import json
import math
import shutil

import optuna
import pytest
from optuna.trial import TrialState
from toy import FIXED, frozen

from mmts_ray import plan, results, search, space_file
from mmts_ray.sampler import JOURNAL
from mmts_ray.search.proposals import Proposals
from mmts_ray.trial.run import WEIGHTS

pytestmark = pytest.mark.ray

SPACE = {
    "study": "toy",
    "trials": 6,
    "fixed": FIXED,
    "search": {"train.lr": {"loguniform": [1e-3, 1e-1]}, "groups.k": {"choice": [2, 3, 5]}},
    "baseline": [
        {"name": "plain", "schedule.name": "constant", "groups.k": 3},
        {"name": "inside", "train.lr": 0.01, "groups.k": 3},
    ],
    "checkpoint_seconds": 0,
}


LONGER = {**FIXED, "groups.k": 3, "train.epochs": 9}


class Heard:
    """Progress that remembers."""

    def __init__(self):
        self.begun, self.ended, self.waited, self.used, self.said = [], [], [], [], []

    def begin(self, *, planned, finished):
        self.begun.append((planned, finished))

    def waiting(self, reason):
        self.waited.append(reason)

    def resources(self, used, total):
        self.used.append((used, total))

    def event(self, text):
        self.said.append(text)

    def more(self, count):
        self.begun.append((count, None))

    def trial_ended(self, planned, *, status, metrics, seconds):
        self.ended.append((planned.trial, status, metrics, seconds))


def run(study, folder, **more):
    heard = Heard()
    folder.mkdir(exist_ok=True)
    search.search(
        study, folder, more.pop("data", frozen()), cache_dir=folder / "cache", progress=heard, address="local"
    )
    return heard


def confirm(study, folder, **more):
    heard = Heard()
    search.confirm(study, folder, frozen(), cache_dir=folder / "cache", progress=heard, address="local", **more)
    return heard


def optuna_trials(folder):
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL)))
    return [
        t
        for s in optuna.get_all_study_summaries(storage)
        for t in optuna.load_study(study_name=s.study_name, storage=storage).trials
    ]


def check_ledger(folder):
    """Unique on (config_hash, seed), every trial started once, none left open."""
    trials = list(results.trials_of(folder).values())
    keys = [(t["config_hash"], t["seed"], t["kind"]) for t in trials]
    assert len(set(keys)) == len(keys)
    assert {t["starts"] for t in trials} == {1}
    assert {t["status"] for t in trials} <= set(results.FINISHED)
    return trials


@pytest.mark.parametrize(
    "strategy",
    ["tpe", "random", "grid", "tpe_asha", "random_asha", "hyperband", "bohb", "nsga2", "tpe_asha of two"],
)
def test_every_strategy_lives_its_life(strategy, local_ray, tmp_path):
    goals = {"val_i2t_r1": "max", "val_modality_distance": "min"}
    strategy, _, two = strategy.partition(" of ")
    goals = goals if two or strategy == "nsga2" else {"val_i2t_r1": "max"}
    study = space_file.parse({**SPACE, "strategy": strategy, "objective": goals, "grid_points": 2})
    heard = run(study, tmp_path / "s")
    trials = check_ledger(tmp_path / "s")
    count = 2 * 3 if strategy == "grid" else 6
    assert sum(t["kind"] == "search" for t in trials) == count
    assert [t["name"] for t in trials if t["kind"] == "baseline"] == ["plain", "inside"]
    assert [t["trial"] for t in trials][:2] == ["t0000", "t0001"]  # baselines first
    assert {t["status"] for t in trials if t["kind"] == "baseline"} == {"done"}, "baselines are never stopped"
    assert heard.begun == [(count + 2, 0)]
    assert len(heard.ended) == count + 2
    done = [t for t in trials if t["status"] == "done"]
    for trial in done:
        assert trial["epoch"] == 3
        assert math.isfinite(trial["metric.val_i2t_r1"])
        assert not [k for k in trial if k.startswith("metric.test_")]
        assert trial["param.train.epochs"] == 3
    known = optuna_trials(tmp_path / "s")
    assert {t.state for t in known} <= {TrialState.COMPLETE, TrialState.PRUNED}
    told = {t.user_attrs["trial"]: t for t in known}
    assert len(told) == len(known) == count + 1  # the searched ones and the baseline inside the space
    for trial in trials:
        if trial["trial"] in told and trial["status"] == "done":
            assert told[trial["trial"]].values[0] == trial["metric.val_i2t_r1"]
    if strategy in ("tpe_asha", "random_asha", "hyperband", "bohb"):
        stopped = [t for t in trials if t["status"] == "stopped"]
        assert stopped, "six random toys in three rungs: some must fall behind"
        assert all(told[t["trial"]].state == TrialState.PRUNED for t in stopped)
        assert all(t["epoch"] < 3 for t in stopped)
    kept = {p.parent.name for p in (tmp_path / "s" / "checkpoints").rglob(WEIGHTS)}
    best = [t["trial"] for t in sorted(done, key=lambda t: -t["metric.val_i2t_r1"]) if t["kind"] == "search"]
    assert len(kept - {"t0000", "t0001"}) == min(5, len(best))
    again = run(study, tmp_path / "s")
    assert again.ended == []
    check_ledger(tmp_path / "s")


@pytest.mark.parametrize(("strategy", "written"), [("hyperband", 4), ("pbt", 3)])
def test_a_search_whose_ledger_cannot_be_written_ends_at_once_and_goes_on_later(
    strategy, written, local_ray, tmp_path, monkeypatch
):
    point = {"train.lr": {"loguniform": [1e-3, 1e-1]}}  # what pbt can move
    study = space_file.parse({**SPACE, "strategy": strategy, "search": point, "baseline": [], "fixed": LONGER})
    waits = Proposals.waits

    def until_full(self, planned):
        nonlocal written
        written -= 1
        if written < 0:
            raise results.Unwritable(f"{self.study_dir}: cannot be written (No space left on device)")
        return waits(self, planned)

    monkeypatch.setattr(Proposals, "waits", until_full)
    with pytest.raises(results.Unwritable, match="No space left"):
        run(study, tmp_path / "s")
    monkeypatch.undo()
    before = {t: row for t, row in results.trials_of(tmp_path / "s").items() if row["status"] in results.FINISHED}
    run(study, tmp_path / "s")
    after = results.trials_of(tmp_path / "s")
    assert {t["status"] for t in after.values()} <= {"done", "stopped"}
    assert len({t["config_hash"] for t in after.values()}) == len(after)
    assert sum("derived.parent" not in t for t in after.values()) == 6
    assert {t: after[t]["end_time"] for t in before} == {t: row["end_time"] for t, row in before.items()}


def test_the_numbers_are_those_of_a_run_without_ray(local_ray, tmp_path):
    from mmts_ray.train import TrainData, train

    study = space_file.parse(SPACE)
    run(study, tmp_path / "s")
    data = TrainData(frozen())
    for row in results.trials_of(tmp_path / "s").values():
        last = list(train(plan.config_of(row), data))[-1]
        assert last.metrics["val_i2t_r1"] == row["metric.val_i2t_r1"]
        assert last.metrics["train_loss"] == pytest.approx(row["metric.train_loss"], rel=1e-6)


def test_confirm_reruns_baselines_and_winners_on_shared_fresh_seeds_once(local_ray, tmp_path):
    study = space_file.parse(SPACE)
    run(study, tmp_path / "s")
    heard = confirm(study, tmp_path / "s", top=2, seeds=2)
    assert len(heard.ended) == (2 + 2) * 2
    trials = check_ledger(tmp_path / "s")
    rerun = [t for t in trials if t["kind"] == "confirm"]
    ranked = plan.ranked(study, [t for t in trials if t["kind"] == "search"])
    assert {t["name"] for t in rerun} == {"plain", "inside", ranked[0]["trial"], ranked[1]["trial"]}
    assert {t["seed"] for t in rerun} == {1000, 1001}
    by_name = {t["name"]: t["config_hash"] for t in rerun}
    assert by_name[ranked[0]["trial"]] == ranked[0]["config_hash"]
    assert all("metric.test_i2t_r1" in t for t in rerun)
    ranks = [results.read_ranks(tmp_path / "s", trial["trial"]) for trial in rerun]
    recall = [trial["metric.test_i2t_r1"] for trial in rerun]
    assert [(found["i2t"] < 1).mean() for found in ranks] == pytest.approx(recall)
    assert len(list((tmp_path / "s" / "ranks").iterdir())) == len(rerun)
    assert confirm(study, tmp_path / "s", top=2, seeds=2).ended == []
    assert len(confirm(study, tmp_path / "s", top=2, seeds=3).ended) == 4


def test_a_lost_journal_is_rebuilt_from_the_ledger_and_a_longer_study_goes_on_from_it(local_ray, tmp_path):
    from dataclasses import replace

    study = space_file.parse(SPACE)
    run(study, tmp_path / "s")
    (tmp_path / "s" / JOURNAL).unlink()
    heard = run(replace(study, trials=9), tmp_path / "s")
    assert len(heard.ended) == 3
    assert len(optuna_trials(tmp_path / "s")) == 9 + 1
    check_ledger(tmp_path / "s")


def test_a_wider_space_keeps_what_was_learned(local_ray, tmp_path):
    study = space_file.parse(SPACE)
    run(study, tmp_path / "s")
    wider = {**SPACE["search"], "groups.k": {"choice": [2, 3, 5, 8]}, "train.lr": {"loguniform": [1e-4, 1e-1]}}
    heard = run(space_file.parse({**SPACE, "search": wider, "trials": 8}), tmp_path / "s")
    assert len(heard.ended) == 2
    by_name = optuna.get_all_study_summaries(
        optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / "s" / JOURNAL)))
    )
    assert sorted(s.n_trials for s in by_name) == [7, 9]


def test_infeasible_trials_end_are_told_and_the_next_trial_starts_clean(local_ray, tmp_path):
    import dataclasses

    data = frozen()
    image_NI = data.image_NI.copy()
    image_NI[3, 0] = 3e38  # with `standardise` off the first step is not finite; with it on, nothing is either
    broken = dataclasses.replace(data, image_NI=image_NI, key="broken")
    search_spec = {"train.lr": {"loguniform": [1e-3, 1e-1]}}
    space = {
        **SPACE,
        "baseline": [],
        "fixed": {**FIXED, "model.standardise": False},
        "search": search_spec,
        "trials": 4,
    }
    for strategy in ("tpe", "tpe_asha"):
        folder = tmp_path / strategy
        heard = run(space_file.parse({**space, "strategy": strategy}), folder, data=broken)
        trials = check_ledger(folder)
        assert [t["status"] for t in trials] == ["infeasible"] * 4
        assert all("non-finite" in t["error"] and "step" in t["error"] for t in trials)
        assert all("metric.val_i2t_r1" not in t for t in trials)
        assert {status for _, status, _, _ in heard.ended} == {"infeasible"}
        assert all(t.user_attrs["status"] == "infeasible" for t in optuna_trials(folder))


def test_a_trial_that_raises_is_failed_with_its_reason_and_the_study_goes_on(local_ray, tmp_path):
    import dataclasses

    without = dataclasses.replace(frozen(), class_N=None, key="no-classes")
    space = {
        **SPACE,
        "search": {
            "groups.name": {"choice": ["classes", "none"]},
            "train.lr": {"loguniform": [1e-3, 1e-1]},
        },
        "baseline": [],
        "trials": 6,
        "strategy": "random",
    }
    run(space_file.parse(space), tmp_path / "s", data=without)
    trials = check_ledger(tmp_path / "s")
    by_source = {t["param.groups.name"]: t for t in trials}
    assert by_source["none"]["status"] == "done"
    assert by_source["classes"]["status"] == "failed"
    assert "class" in by_source["classes"]["error"]


def test_a_space_that_is_used_up_ends_the_search(local_ray, tmp_path):
    space = {**SPACE, "search": {"groups.k": {"choice": [2, 3, 5]}}, "baseline": [], "trials": 20, "strategy": "random"}
    run(space_file.parse(space), tmp_path / "s")
    assert len(check_ledger(tmp_path / "s")) == 3
    assert {t.state for t in optuna_trials(tmp_path / "s")} <= {TrialState.COMPLETE, TrialState.FAIL}


def test_too_large_a_trial_is_refused_with_the_numbers(local_ray, tmp_path):
    study = space_file.parse({**SPACE, "resources": {"cpus_per_worker": 64}})
    with pytest.raises(ValueError, match="a worker needs 64 CPU on one machine, the largest has 2"):
        run(study, tmp_path / "s")
    study = space_file.parse({**SPACE, "resources": {"gpus_per_worker": 1}})
    with pytest.raises(ValueError, match="a worker needs 1 GPU on one machine, the largest has 0"):
        run(study, tmp_path / "s")


def test_a_second_driver_is_refused(local_ray, tmp_path):
    second = search.lease(tmp_path)
    with search.lease(tmp_path), pytest.raises(ValueError, match="another mmts-ray process is driving"):
        second.__enter__()
    with search.lease(tmp_path):
        pass


def test_ranking_several_metrics_is_by_dominance_then_the_first():
    study = space_file.parse(
        {
            "strategy": "nsga2",
            "objective": {"val_i2t_r1": "max", "val_modality_distance": "min"},
            "search": SPACE["search"],
        }
    )
    rows = [
        {"trial": name, "status": "done", "metric.val_i2t_r1": r1, "metric.val_modality_distance": gap}
        for name, r1, gap in (("a", 0.3, 0.5), ("b", 0.4, 0.9), ("c", 0.2, 0.1), ("d", 0.29, 0.6), ("e", 0.4, 0.95))
    ]
    rows.append({"trial": "f", "status": "stopped", "metric.val_i2t_r1": 0.9, "metric.val_modality_distance": 0.0})
    assert [r["trial"] for r in plan.ranked(study, rows)] == ["b", "a", "c", "e", "d"]


def test_nothing_in_a_study_folder_is_a_pickle_that_we_read(local_ray, tmp_path):
    run(space_file.parse(SPACE), tmp_path / "s")
    ours = [
        p for p in (tmp_path / "s").rglob("*") if p.is_file() and "ray" not in p.relative_to(tmp_path / "s").parts[:1]
    ]
    suffixes = {p.suffix for p in ours}
    assert suffixes <= {".jsonl", ".journal", ".lock", ".safetensors", ".npz"}, suffixes
    for path in ours:
        if path.suffix == ".jsonl":
            assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_point_whose_parts_do_not_go_together_is_not_run_and_the_search_goes_on(local_ray, tmp_path):
    fixed = {**FIXED, "schedule.name": "learnable", "schedule.high": 0.2}
    spec = {"schedule.init": {"uniform": [0.05, 0.5]}}  # above 0.2 the start lies outside the clamp
    run(space_file.parse({**SPACE, "fixed": fixed, "search": spec, "baseline": []}), tmp_path / "s")
    trials = check_ledger(tmp_path / "s")
    assert len(trials) == 6
    assert all(t["param.schedule.init"] <= 0.2 and t["status"] == "done" for t in trials)
    told = optuna_trials(tmp_path / "s")
    assert {t.user_attrs.get("status") for t in told if t.params["schedule.init"] > 0.2} == {"infeasible"}


def test_a_resumed_search_stops_what_the_uninterrupted_one_stops(local_ray, tmp_path, monkeypatch):
    """One trial at a time, the folder copied whenever the scheduler has seen something: each copy is a kill there."""
    study = space_file.parse({**SPACE, "strategy": "tpe_asha", "trials": 9, "resources": {"concurrent": 1}})
    seen = Proposals.on_trial_result
    copies = []

    def copying(self, trial_id, result):
        copies.append(tmp_path / f"killed-{len(copies)}")
        shutil.copytree(tmp_path / "s", copies[-1], ignore=shutil.ignore_patterns("ray", "cache"))
        seen(self, trial_id, result)

    monkeypatch.setattr(Proposals, "on_trial_result", copying)
    run(study, tmp_path / "s")
    monkeypatch.setattr(Proposals, "on_trial_result", seen)
    whole = {t["trial"]: t for t in check_ledger(tmp_path / "s")}
    stopped = {t: row["epoch"] for t, row in whole.items() if row["status"] == "stopped"}
    assert stopped
    known = ("running", "waiting")
    interesting = [c for c in copies if any(t["status"] in known for t in results.trials_of(c).values())]
    picked = interesting[2 :: max(1, len(interesting) // 5)]
    assert len(picked) >= 4
    for folder in picked:
        run(study, folder)
        trials = results.trials_of(folder)
        assert {t: row["epoch"] for t, row in trials.items() if row["status"] == "stopped"} == stopped, folder
        assert {t: row["config_hash"] for t, row in trials.items()} == {
            t: row["config_hash"] for t, row in whole.items()
        }
        assert sorted((t.state.name, t.user_attrs["trial"]) for t in optuna_trials(folder)) == sorted(
            (t.state.name, t.user_attrs["trial"]) for t in optuna_trials(tmp_path / "s")
        )


@pytest.mark.parametrize("strategy", ["tpe", "tpe_asha"])
def test_seed_groups_are_told_as_their_mean_stopped_as_one_and_more_seeds_can_be_added(strategy, local_ray, tmp_path):
    from dataclasses import replace

    study = space_file.parse({**SPACE, "strategy": strategy, "seeds": [0, 1]})
    heard = run(study, tmp_path / "s")
    trials = check_ledger(tmp_path / "s")
    assert len(trials) == (6 + 2) * 2
    assert heard.begun == [(8, 0)]
    assert len(heard.ended) == 8
    groups = plan.grouped(study, results.trials_of(tmp_path / "s"))
    told = {t.user_attrs["trial"]: t for t in optuna_trials(tmp_path / "s")}
    assert len(told) == 6 + 1
    for trial, row in groups.items():
        each = [t for t in trials if results.group_of(t["trial"]) == trial]
        assert [t["seed"] for t in each] == [0, 1]
        assert {t["status"] for t in each} == {row["status"]}, "a group ends as one"
        if trial in told:
            wanted = sum(t["metric.val_i2t_r1"] for t in each) / 2
            assert told[trial].value == pytest.approx(wanted)
            assert told[trial].state == (TrialState.COMPLETE if row["status"] == "done" else TrialState.PRUNED)
    if strategy in ("tpe_asha", "random_asha", "hyperband", "bohb"):
        assert "stopped" in {row["status"] for row in groups.values()}
    kept = {p.parent.name for p in (tmp_path / "s" / "checkpoints").rglob(WEIGHTS)}
    done = [t for t, row in groups.items() if row["status"] == "done"]
    best = plan.ranked(study, [groups[t] for t in done if groups[t]["kind"] == "search"])[:5]
    compared = [t for t in done if groups[t]["kind"] == "baseline"]
    assert kept == {f"{t}{end}" for t in [*compared, *(row["trial"] for row in best)] for end in ("", "-1")}
    heard = confirm(study, tmp_path / "s", top=2, seeds=2)
    assert len(heard.ended) == (2 + 2) * 2
    longer = run(replace(study, seeds=(0, 1, 2)), tmp_path / "s")
    assert {trial for trial, *_ in longer.ended} == set(done)
    trials = results.trials_of(tmp_path / "s")
    assert all(trials[f"{t}-2"]["status"] == "done" and trials[t]["starts"] == 1 for t in done)
    by_name = optuna.get_all_study_summaries(
        optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / "s" / JOURNAL)))
    )
    assert sorted(s.n_trials for s in by_name) == [7, 7]


def test_controls_are_random_never_stopped_and_known_to_the_sampler(local_ray, tmp_path):
    study = space_file.parse({**SPACE, "strategy": "tpe_asha", "trials": 8, "controls": 4})
    run(study, tmp_path / "s")
    trials = check_ledger(tmp_path / "s")
    controls = [t for t in trials if t["kind"] == "control"]
    assert [t["status"] for t in controls] == ["done"] * 4
    assert sum(t["kind"] == "search" for t in trials) == 4
    assert {t["trial"] for t in controls} <= {t.user_attrs["trial"] for t in optuna_trials(tmp_path / "s")}
    points = [(t["param.train.lr"], t["param.groups.k"]) for t in controls]
    other = space_file.parse({**SPACE, "strategy": "random", "trials": 20, "controls": 4})
    planned = plan.missing_controls(other, {}, 0)
    assert [(p.config.flat()["train.lr"], p.config.flat()["groups.k"]) for p in planned] == points
