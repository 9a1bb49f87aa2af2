"""HyperBand's decisions against successive halving by hand, and after a break at any point of a study."""

import math

import numpy as np
import pytest

from mmts_ray import space_file
from mmts_ray.plan import Evaluation
from mmts_ray.search.brackets import Brackets
from mmts_ray.search.schedulers import HyperBand

EPOCHS = 10
SHAPES = [(9, [1, 3]), (5, [3]), (3, [])]
SPACE = {
    "study": "toy",
    "strategy": "hyperband",
    "fixed": {"data.name": "features", "data.path": "toy.npz", "train.epochs": EPOCHS},
    "search": {"train.lr": {"loguniform": [1e-3, 1e-1]}},
}


def halved(scores, failing=()):
    """Where each trial ends, by the rule: of each bracket in turn, one in three goes on from each rung.

    `scores[trial][epoch]` is above 0; a trial of `failing` breaks down before its first evaluation.
    """
    ends, left, shape = {}, list(scores), 0
    while left:
        size, rungs = SHAPES[shape % len(SHAPES)]
        bracket, left, shape = left[:size], left[size:], shape + 1
        places, alive = len(bracket), [t for t in bracket if t not in failing]
        for rung in rungs:
            places = math.ceil(places / 3)
            best = sorted(alive, key=lambda t: scores[t][rung], reverse=True)
            ends |= {t: rung for t in best[places:]}
            alive = best[:places]
        ends |= dict.fromkeys(alive, EPOCHS)
    return ends


class World:
    """A study of `slots` places, its ledger, and a scheduler that may be replaced by one that has read the ledger."""

    def __init__(self, scores, slots, rng, failing=()):
        self.scores, self.slots, self.rng, self.failing = scores, slots, rng, set(failing)
        self.brackets = Brackets(SHAPES, 3)
        self.rows, self.seen, self.clock = {}, [], 0.0
        self.epoch = {}

    def tick(self):
        self.clock += 1.0
        return self.clock

    def restart(self):
        """What a new process knows: the ledger alone."""
        scheduler = HyperBand(space_file.parse(SPACE))
        assert scheduler.brackets.shapes == SHAPES
        stopped = scheduler.replay(self.rows, self.seen)
        self.brackets = scheduler.brackets
        for trial in stopped:
            self.stop(trial)

    def stop(self, trial):
        assert self.rows[trial]["status"] == "running", "stopped twice"
        self.rows[trial] |= {"status": "stopped", "end_time": self.tick(), "epoch": self.epoch[trial]}

    def running(self):
        return [t for t, row in self.rows.items() if row["status"] == "running" and not self.brackets.waits(t)]

    def step(self):
        """One thing happens; False when there is nothing left to do."""
        going = self.running()
        fresh = next((t for t in self.scores if t not in self.rows), None)
        if fresh is not None and len(going) < self.slots and (not going or self.rng.random() < 0.5):
            self.brackets.enter(fresh)
            self.rows[fresh] = {"trial": fresh, "kind": "search", "status": "running", "time": self.tick()}
            self.epoch[fresh] = 0
            return True
        if not going:
            decided = self.brackets.decide(last=fresh is None)
            for trial in decided:
                self.stop(trial)
            return bool(decided or self.running())
        trial = str(self.rng.choice(going))
        if trial in self.failing:
            self.brackets.end(trial)
            self.rows[trial] |= {"status": "failed", "end_time": self.tick(), "epoch": 0}
        else:
            self.epoch[trial] += 1
            score = self.scores[trial][self.epoch[trial]]
            self.seen.append(Evaluation(trial, self.epoch[trial], {"val_i2t_r1": score}, self.tick()))
            self.brackets.reach(trial, self.epoch[trial], score)
            if self.epoch[trial] == EPOCHS:
                self.brackets.end(trial)
                self.rows[trial] |= {"status": "done", "end_time": self.tick(), "epoch": EPOCHS}
        self.killed_before_it_is_written = self.rng.random() < 0.3
        if not self.killed_before_it_is_written:
            for stopped in self.brackets.decide():
                self.stop(stopped)
        return True

    def ends(self):
        return {t: row["epoch"] for t, row in self.rows.items() if row["status"] in ("done", "stopped")}


def world(case, trials, *, slots=None, failing=0):
    rng = np.random.default_rng([7, case])
    scores = {f"t{i:04d}": [0.0, *rng.random(EPOCHS).round(1 if case % 3 == 0 else 6)] for i in range(trials)}
    failing = [f"t{i:04d}" for i in rng.choice(trials, failing, replace=False)]
    return World(scores, slots or int(rng.integers(1, 5)), rng, failing)


@pytest.mark.parametrize("trials", [1, 2, 8, 9, 13, 17, 40])
@pytest.mark.parametrize("failing", [0, 1])
def test_each_bracket_is_halved_by_hand_whatever_the_order_of_events(trials, failing):
    for case in range(20):
        study = world(case, trials, failing=failing)
        while study.step():
            pass
        expected = halved(study.scores, study.failing)
        if case % 3:  # without ties
            assert study.ends() == expected
        assert sorted(study.ends().values()) == sorted(expected.values())
        assert all(row["status"] != "running" for row in study.rows.values())


@pytest.mark.parametrize("trials", [5, 9, 14, 26])
@pytest.mark.parametrize("failing", [0, 2])
def test_a_study_that_is_killed_anywhere_stops_what_it_would_have_stopped(trials, failing):
    for case in range(60):
        study = world(case, trials, failing=failing)
        kills = np.random.default_rng(case)
        while study.step():
            if kills.random() < 0.1:
                study.restart()
        study.restart()
        whole = world(case, trials, failing=failing)
        while whole.step():
            pass
        assert study.ends() == whole.ends(), case


def test_a_bracket_that_was_closed_before_it_was_full_takes_in_nobody_later():
    study = world(1, 4)
    while study.step():
        pass
    first = study.ends()
    assert sorted(first.values()) == [1, 1, 3, EPOCHS]
    study.scores |= {f"t{i:04d}": [0.0] + [0.5 + i / 100] * EPOCHS for i in range(4, 9)}
    study.restart()
    while study.step():
        pass
    assert {t: e for t, e in study.ends().items() if t in first} == first
    later = {t: e for t, e in study.ends().items() if t not in first}
    assert later == {"t0004": 3, "t0005": 3, "t0006": 3, "t0007": EPOCHS, "t0008": EPOCHS}


@pytest.mark.parametrize("evidence", ["went on", "stopped", "none"])
def test_that_a_bracket_was_closed_is_seen_by_what_its_trials_did_next(evidence):
    def evaluated(trial, epoch, score, time):
        return Evaluation(trial, epoch, {"val_i2t_r1": score}, time)

    names = ["t0000", "t0001", "t0002"]
    rows = {t: {"trial": t, "kind": "search", "status": "running", "time": float(i)} for i, t in enumerate(names)}
    seen = [evaluated(t, 1, score, 10.0 + i) for i, (t, score) in enumerate(zip(names, [0.1, 0.3, 0.2], strict=True))]
    if evidence == "went on":
        seen.append(evaluated("t0001", 2, 0.4, 20.0))
    elif evidence == "stopped":
        rows["t0000"] |= {"status": "stopped", "end_time": 20.0}
    rows["t0003"] = {"trial": "t0003", "kind": "search", "status": "running", "time": 30.0}
    scheduler = HyperBand(space_file.parse(SPACE))
    stopped = scheduler.replay(rows, seen)
    together = scheduler.brackets.of["t0003"] is scheduler.brackets.of["t0000"]
    assert together == (evidence == "none")
    assert stopped == {"went on": {"t0000", "t0002"}, "stopped": {"t0002"}, "none": set()}[evidence]


def test_one_evaluation_may_serve_several_rungs():
    brackets = Brackets([(9, [1, 3])], 3)
    for i in range(9):
        brackets.enter(f"t{i}")
    stopped = []
    for i in range(9):
        brackets.reach(f"t{i}", 5, i / 10)
        assert brackets.waits(f"t{i}") or i == 8
        stopped += brackets.decide()
    assert sorted(stopped) == [f"t{i}" for i in range(8)]
    assert not brackets.waits("t8")


@pytest.mark.parametrize(
    ("epochs", "every", "expected"),
    [
        (10, 1, SHAPES),
        (81, 1, [(81, [1, 3, 9, 27]), (34, [3, 9, 27]), (15, [9, 27]), (8, [27]), (5, [])]),
        (81, 3, [(27, [3, 9, 27]), (12, [9, 27]), (6, [27]), (4, [])]),
        (3, 1, [(3, [1]), (2, [])]),
    ],
)
def test_brackets_are_those_of_the_paper_in_evaluations(epochs, every, expected):
    study = space_file.parse({**SPACE, "fixed": {**SPACE["fixed"], "train.epochs": epochs, "train.eval_every": every}})
    assert study.brackets == expected
