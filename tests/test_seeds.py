"""Configurations on several seeds: in step, ended as one, paired, and whole after a kill at any point. No Ray here."""

import contextlib

import pytest
from toy import FIXED, frozen

from mmts_ray import plan, results, space_file
from mmts_ray.train import TrainData
from mmts_ray.trial.group import GroupRun, caught_up
from mmts_ray.trial.run import TrialRun

SPACE = {"study": "toy", "trials": 2, "seeds": [0, 1, 2], "fixed": FIXED}
SPACE["search"] = {"train.lr": {"loguniform": [1e-3, 1e-1]}}


class Bench:
    """A folder in which groups run as in an actor, and are abandoned as by a kill."""

    def __init__(self, folder, *, checkpoint_seconds=0.0, data=None, **more):
        self.study = space_file.parse({**SPACE, **more})
        self.folder, self.data = folder, data or TrainData(frozen())
        self.options = {"gpus": 0, "checkpoint_seconds": checkpoint_seconds}
        self.first = plan.Planned(
            trial="t0000",
            kind="search",
            name=None,
            config=self.study.trial_config({"train.lr": 0.01}),
            seeds=self.study.seeds,
        )

    def begin(self, planned, *, report):
        ledger = results.Ledger(self.folder)  # a process of its own
        starts = plan.start_records(self.study, planned, status="waiting", data_key="toy")
        for record in starts:
            ledger.append(record)
        task = {
            "trial": planned.trial,
            "kind": planned.kind,
            "flat": planned.config.flat(),
            "members": [list(m) for m in planned.members.items()],
            "starts": {record["trial"]: record for record in starts},
            "report": report,
            "ended": [list(e) for e in planned.ended],
            "before": [list(b) for b in planned.before],
        }

        def trial(task):
            return TrialRun(task, self.data, ledger=ledger, study_dir=self.folder, options=self.options)

        return GroupRun(caught_up(task, self.folder), trial)

    def unfinished(self):
        trials, steps, _ = results.fold(results.records(self.folder))
        return plan.unfinished(self.study, {row["trial"]: row for row in trials}, steps, "search")

    def trials(self):
        return results.trials_of(self.folder)


def live(group):
    answers = []
    while not answers or not answers[-1]["done"]:
        answers.append(group.step())
    return answers


def scores(answers):
    return [(a["epoch"], a["val_i2t_r1"]) for a in answers]


def test_seeds_report_their_mean_in_step_and_each_is_a_trial_of_the_ledger(tmp_path):
    bench = Bench(tmp_path)
    answers = live(bench.begin(bench.first, report=True))
    assert [a["epoch"] for a in answers] == [1, 2, 3]
    assert [a["status"] for a in answers] == ["running", "running", "done"]
    trials = bench.trials()
    assert [(t, row["seed"], row["status"]) for t, row in trials.items()] == [
        ("t0000", 0, "done"),
        ("t0000-1", 1, "done"),
        ("t0000-2", 2, "done"),
    ]
    assert len({row["config_hash"] for row in trials.values()}) == 1
    assert [row["param.train.seed"] for row in trials.values()] == [0, 1, 2]
    each = [row["metric.val_i2t_r1"] for row in trials.values()]
    assert len(set(each)) > 1, "seeds that change nothing prove nothing"
    assert answers[-1]["val_i2t_r1"] == pytest.approx(sum(each) / 3)
    (group,) = plan.grouped(bench.study, trials).values()
    assert group["status"] == "done"
    assert group["metric.val_i2t_r1"] == answers[-1]["val_i2t_r1"]
    assert group["device_seconds"] == pytest.approx(sum(row["device_seconds"] for row in trials.values()))


def test_a_seed_gives_the_numbers_that_it_gives_alone_and_all_at_once_those_of_one_by_one(tmp_path):
    together, apart, alone = (Bench(tmp_path / name) for name in ("together", "apart", "alone"))
    one, other = live(together.begin(together.first, report=True)), live(apart.begin(apart.first, report=False))
    assert len(other) == 1
    assert scores(one)[-1] == scores(other)[-1]
    from dataclasses import replace

    single = replace(alone.first, config=alone.first.config.with_seed(1), seeds=(1,))
    (answer,) = live(alone.begin(single, report=False))
    assert answer["val_i2t_r1"] == together.trials()["t0000-1"]["metric.val_i2t_r1"]


@pytest.mark.parametrize("checkpoint_seconds", [0, 1000])
@pytest.mark.parametrize("report", [True, False])
def test_a_group_killed_at_any_point_is_finished_without_repeating_a_finished_seed(
    report, checkpoint_seconds, tmp_path, monkeypatch
):
    straight = Bench(tmp_path / "straight")
    expected = live(straight.begin(straight.first, report=report))
    total = len(list(results.records(tmp_path / "straight")))
    append = results.Ledger.append

    for cut in range(4, total):  # records that are on disk when the process dies; the first three are the starts
        bench = Bench(tmp_path / f"cut-{cut}", checkpoint_seconds=checkpoint_seconds, data=straight.data)
        written = 0

        def dying(self, record, cut=cut):
            nonlocal written
            if written == cut:
                raise KeyboardInterrupt
            written += 1
            append(self, record)

        monkeypatch.setattr(results.Ledger, "append", dying)
        seen = []
        group = bench.begin(bench.first, report=report)
        with contextlib.suppress(KeyboardInterrupt):
            while not seen or not seen[-1]["done"]:
                seen.append(group.step())
        assert written == cut, "the process did not die where it should"
        monkeypatch.setattr(results.Ledger, "append", append)
        before = bench.trials()
        finished = {trial for trial, row in before.items() if row["status"] == "done"}
        (planned,) = bench.unfinished()
        assert [seed for seed, _ in planned.ended] == [before[trial]["seed"] for trial in sorted(finished)]
        again = live(bench.begin(planned, report=report))
        after = bench.trials()
        assert {row["status"] for row in after.values()} == {"done"}
        for trial in finished:
            assert after[trial]["starts"] == 1
            assert after[trial]["end_time"] == before[trial]["end_time"]
        assert again[-1]["val_i2t_r1"] == expected[-1]["val_i2t_r1"]
        # what the scheduler saw, or could have seen in the ledger, and what it sees now make up the whole
        told = dict(scores(seen)) | dict(scores(again))
        known = {a["epoch"]: a["val_i2t_r1"] for a in expected}
        assert all(known[epoch] == value for epoch, value in told.items())
        remembered = {e.epoch for e in plan.evaluations(bench.study, before, steps_of(bench))}
        assert {*told, *remembered} == {*known, *remembered}
        assert bench.unfinished() == []


def steps_of(bench):
    return results.fold(results.records(bench.folder))[1]


def test_a_trial_process_that_is_restarted_with_its_old_task_repeats_no_finished_seed(tmp_path):
    bench = Bench(tmp_path)
    group = bench.begin(bench.first, report=False)
    for run in list(group.runs.values())[:2]:  # two seeds end, then the process dies; Tune sends the same task again
        while not run.step()["done"]:
            pass
    (answer,) = live(bench.begin(bench.first, report=False))
    assert answer["status"] == "done"
    ends = [r["trial"] for r in results.records(tmp_path) if r["status"] == "done"]
    assert sorted(ends) == ["t0000", "t0000-1", "t0000-2"]


@pytest.mark.parametrize("report", [True, False])
def test_an_infeasible_seed_makes_the_configuration_infeasible_and_ends_the_others(report, tmp_path, monkeypatch):
    bench = Bench(tmp_path)
    group = bench.begin(bench.first, report=report)
    start = TrialRun._start

    def diverging(self):
        for row in start(self):
            if self.trial == "t0000-1" and row.epoch == 2:
                from dataclasses import replace

                row = replace(row, infeasible="step 5: loss is non-finite")
            yield row

    monkeypatch.setattr(TrialRun, "_start", diverging)
    last = live(group)[-1]
    assert last["status"] == "infeasible"
    assert "non-finite" in last["error"]
    assert "val_i2t_r1" not in last
    trials = bench.trials()
    assert trials["t0000-1"]["status"] == "infeasible"
    assert trials["t0000-2"]["status"] == "stopped"
    assert trials["t0000-2"]["error"] == "seed 1 of this configuration is infeasible"
    assert trials["t0000"]["status"] == ("stopped" if report else "done")
    (whole,) = plan.grouped(bench.study, trials).values()
    assert whole["status"] == "infeasible"
    assert bench.unfinished() == []


def test_more_seeds_are_run_for_what_is_done_and_only_for_that(tmp_path):
    bench = Bench(tmp_path, seeds=[0])
    live(bench.begin(bench.first, report=True))
    from dataclasses import replace

    stopped = replace(bench.first, trial="t0001", config=bench.study.trial_config({"train.lr": 0.02}))
    bench.begin(stopped, report=True)
    results.Ledger(tmp_path).append({"trial": "t0001", "step": 4, "epoch": 1, "status": "stopped"})
    bench.study = replace(bench.study, seeds=(0, 1, 2))
    (planned,) = bench.unfinished()
    assert (planned.trial, planned.seeds, planned.ended) == ("t0000", (0, 1, 2), ((0, "done"),))
    (answer,) = live(bench.begin(planned, report=False))
    assert answer["status"] == "done"
    trials = bench.trials()
    assert [trials[t]["starts"] for t in ("t0000", "t0000-1", "t0000-2")] == [1, 1, 1]
    each = [trials[t]["metric.val_i2t_r1"] for t in ("t0000", "t0000-1", "t0000-2")]
    assert answer["val_i2t_r1"] == pytest.approx(sum(each) / 3)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("seeds", 3, "seeds: needs a list of whole numbers"),
        ("seeds", [], "seeds: needs a list of whole numbers"),
        ("seeds", [0, 0], r"seeds: \[0, 0\] names one twice"),
        ("seeds", [0, 1000], "seeds: 1000 is out of range; legal is a whole number in .0, 999."),
        ("fixed", {**FIXED, "train.seed": 4}, r"train.seed: the study has seeds \[0, 1, 2\]; remove this one"),
        ("baseline", [{"name": "a", "train.seed": 4}], r"train.seed: \(baseline 'a'\) the study has seeds"),
    ],
)
def test_seeds_that_cannot_be_are_refused(key, value, message):
    with pytest.raises(ValueError, match=message):
        space_file.parse({**SPACE, key: value})
