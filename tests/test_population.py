"""Population based training: copies go on from their parents' checkpoints, as trials of their own."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from test_search import FIXED, check_ledger, optuna_trials, run
from toy import frozen

from mmts_ray import plan, results, space_file
from mmts_ray.search.population import Population
from mmts_ray.train import TrainData, train

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
SPACE = {
    "study": "toy",
    "strategy": "pbt",
    "trials": 4,
    "fixed": {**FIXED, "train.epochs": 8},
    "search": {"train.lr": {"loguniform": [1e-4, 1.0]}, "train.weight_decay": {"uniform": [0, 1]}},
    "baseline": [{"name": "plain", "schedule.name": "constant"}],
    # only what the scheduler asks for: a place given up, a checkpoint for others
    "checkpoint_seconds": 1000,
}


def state_at(trial, epoch, trials, data):
    """The state of a trial after an epoch, trained here, its ancestors first."""
    row = trials[trial]
    state = None
    if "derived.parent" in row:
        state = state_at(row["derived.parent"], row["derived.parent_epoch"], trials, data)
        state["config_hash"] = row["config_hash"]
    for one in train(plan.config_of(row), data, state):
        if one.epoch == epoch:
            return one.state()
    raise AssertionError(f"{trial} has no epoch {epoch}")


def test_copies_of_the_best_take_the_place_of_the_worst_and_go_on_from_their_checkpoint(local_ray, tmp_path):
    study = space_file.parse(SPACE)
    folder = tmp_path / "s"
    run(study, folder)
    trials = {t["trial"]: t for t in check_ledger(folder)}
    _, steps, _ = results.fold(results.records(folder))
    epochs = {trial: sorted(s["epoch"] for s in steps if s["trial"] == trial) for trial in trials}
    copies = {name: t for name, t in trials.items() if "derived.parent" in t}
    assert copies, "four trials over four decades of learning rates, eight rounds: some must fall behind"
    assert sum(t["kind"] == "search" for t in trials.values()) == 4 + len(copies)
    assert trials["t0000"]["status"] == "done", "baselines take no part"
    for name, copy in copies.items():
        parent, replaced = trials[copy["derived.parent"]], trials[copy["derived.replaces"]]
        assert copy["config_hash"] != parent["config_hash"] == copy["derived.parent_config_hash"]
        assert replaced["status"] == "stopped"
        at = copy["derived.parent_epoch"]
        assert {s["step"] for s in steps if s["trial"] == parent["trial"] and s["epoch"] == at} == {
            copy["derived.parent_step"]
        }
        assert epochs[name] == list(range(at + 1, copy["epoch"] + 1)), "it begins where its parent was"
    ended = [t for t in trials.values() if t["kind"] == "search" and t["status"] == "done"]
    assert len(ended) == 4, "the population keeps its size"
    assert all(t["epoch"] == 8 for t in ended)
    data = TrainData(frozen())
    deepest = max((t for t in ended if "derived.parent" in t), key=lambda t: t["trial"])
    state = state_at(deepest["derived.parent"], deepest["derived.parent_epoch"], trials, data)
    last = list(train(plan.config_of(deepest), data, {**state, "config_hash": deepest["config_hash"]}))[-1]
    assert last.metrics["train_loss"] == pytest.approx(deepest["metric.train_loss"], rel=1e-6)
    assert last.metrics["val_i2t_r1"] == deepest["metric.val_i2t_r1"]
    told = {t.user_attrs["trial"] for t in optuna_trials(folder)}
    assert not told & set(copies), "what began with another's weights says nothing of its own parameters"
    assert not list((folder / "checkpoints").rglob("*.pt"))

    # killed between planning a copy and ending the one that it replaces
    replaced = next(iter(copies.values()))["derived.replaces"]
    for path in (folder / "ledger").glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        kept = [r for r in lines if (r["trial"], r["status"]) != (replaced, "stopped")]
        path.write_text("".join(json.dumps(record) + "\n" for record in kept))
    assert results.trials_of(folder)[replaced]["status"] == "running"
    assert [(trial, status) for trial, status, *_ in run(study, folder).ended] == [(replaced, "stopped")]
    again = results.trials_of(folder)
    assert again[replaced]["status"] == "stopped"
    assert {name: t["starts"] for name, t in again.items()} == {name: t["starts"] for name, t in trials.items()}


class Turn(SimpleNamespace):
    """What the scheduler looks at in one of Tune's trials."""

    __hash__, __eq__ = object.__hash__, object.__eq__

    def is_finished(self):
        return self.status == Trial.TERMINATED


class Turns:
    """Tune's part, without processes: so many places, rounds that end in any order, copies worse than their parents."""

    def __init__(self, members, slots, rng):
        self.population = Population(space_file.parse({**SPACE, "trials": members}))
        self.population.lead(self)
        self.population.concurrent = slots
        self.live, self.plan, self.wanted, self.trials, self.rng = {}, [], members, [], rng
        self.score, self.epoch, self.rounds = {}, {}, 0
        for i in range(members):
            self.add(f"t{i}", score=float(rng.random()), parent=None)
        self.wanted = 0

    def add(self, name, *, score, parent):
        trial = Turn(trial_id=name, config={"report": True}, status=Trial.PENDING)
        self.live[name] = SimpleNamespace(parent=parent)
        self.trials.append(trial)
        self.score[name], self.epoch[name] = score, parent.epoch if parent else 0
        self.population.on_trial_add(self, trial)

    def replace(self, old, parent, *, epoch, step):
        name = f"t{len(self.trials)}"
        self.plan.append((name, self.score[parent] - 1.0, plan.Parent(parent, "", epoch, step, old)))
        return True

    def get_trials(self):
        return self.trials

    def on_pause(self, trial_id): ...

    on_unpause = on_pause

    def run(self):
        while any(not trial.is_finished() for trial in self.trials):
            while (chosen := self.population.choose_trial_to_run(self)) is not None:
                chosen.status = Trial.RUNNING
            running = [trial for trial in self.trials if trial.status == Trial.RUNNING]
            trial = running[self.rng.integers(len(running))]
            self.rounds += 1
            self.epoch[trial.trial_id] += 1
            if self.epoch[trial.trial_id] >= 8:
                trial.status = Trial.TERMINATED
                self.population.on_trial_complete(self, trial, {})
                continue
            result = {"epoch": self.epoch[trial.trial_id], "val_i2t_r1": self.score[trial.trial_id], "members": []}
            action = self.population.on_trial_result(self, trial, result)
            if action == TrialScheduler.STOP:
                trial.status = Trial.TERMINATED
                self.population.on_trial_complete(self, trial, {})
                for name, score, parent in self.plan:
                    self.add(name, score=score, parent=parent)
                self.plan = []
            elif action == TrialScheduler.PAUSE:
                trial.status = Trial.PAUSED


@pytest.mark.parametrize("members", [4, 20])
@pytest.mark.parametrize("slots", [1, 3])
def test_copies_that_are_worse_than_their_parents_do_not_take_turns_for_ever(members, slots):
    copies = 0
    for case in range(8):
        turns = Turns(members, slots, np.random.default_rng(case))
        turns.run()
        assert turns.rounds <= 8 * members * 1.5
        copies += len(turns.trials) - members
    assert copies > 0


def test_a_parent_whose_checkpoint_is_gone_is_not_copied(tmp_path):
    from mmts_ray.trial.run import START, checkpoint_dir, hand_over, kept_at

    assert not hand_over(tmp_path, "t0001", "t0002", 3)
    source = checkpoint_dir(tmp_path, "t0001") / kept_at(3)
    source.parent.mkdir(parents=True)
    source.write_bytes(b"state")
    assert hand_over(tmp_path, "t0001", "t0002", 3)
    assert (checkpoint_dir(tmp_path, "t0002") / START).read_bytes() == b"state"
