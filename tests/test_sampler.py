"""The study's memory in Optuna: no zombies, no repeats, stopped is not complete, torn journals heal."""

import os
from dataclasses import replace

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial

from mmts_ray import ranking, space_file, tpe
from mmts_ray.config import from_flat
from mmts_ray.sampler import JOURNAL, Sampler

SPACE = {
    "study": "toy",
    "trials": 40,
    "search": {
        "train.lr": {"loguniform": [1e-4, 1e-1]},
        "loss.r_mix": {"choice": [0, 0.1]},
        "loss.mix_mode": {"choice": ["replace", "weighted"], "when": {"loss.r_mix": 0.1}},
        "groups.k": {"logint": [2, 100]},
    },
}


def study_of(**more):
    return space_file.parse({**SPACE, **more})


def states(sampler):
    return [t.state for t in sampler.study.get_trials(deepcopy=False)]


def life(sampler, first, count):
    points = []
    for index in range(first, first + count):
        number, point = sampler.ask(f"t{index:04d}", index)
        points.append(point)
        sampler.tell(number, status="done", values=[point["train.lr"]] * len(sampler.study.directions))
    return points


def test_points_are_legal_conditional_and_the_same_for_the_same_seed(tmp_path):
    study = study_of()
    one = life(Sampler(study, tmp_path), 0, 15)
    for point in one:
        assert ("loss.mix_mode" in point) == (point["loss.r_mix"] == 0.1)
        study.trial_config(point)
    (tmp_path / JOURNAL).unlink()
    assert life(Sampler(study, tmp_path), 0, 15) == one
    (tmp_path / JOURNAL).unlink()
    assert life(Sampler(replace(study, seed=1), tmp_path), 0, 15) != one


@pytest.mark.parametrize("strategy", ["tpe", "random", "nsga2", "tpe_asha", "tpe of two"])
def test_reattaching_continues_the_sequence_and_repeats_nothing(tmp_path, strategy):
    goals = {"val_i2t_r1": "max", "val_modality_distance": "min"}
    goals = goals if strategy in ("nsga2", "tpe of two") else {"val_i2t_r1": "max"}
    study = study_of(strategy=strategy.partition(" ")[0], objective=goals)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    straight = life(Sampler(study, tmp_path / "a"), 0, 12)
    parts = life(Sampler(study, tmp_path / "b"), 0, 5) + life(Sampler(study, tmp_path / "b"), 5, 7)
    assert parts == straight
    if strategy != "nsga2":  # a child may equal its parent; `search` then reminds the sampler instead of training again
        assert len({str(point) for point in parts}) == len(parts)


def test_ends_are_told_as_what_they_are(tmp_path):
    sampler = Sampler(study_of(), tmp_path)
    numbers = [sampler.ask(f"t{i}", i)[0] for i in range(4)]
    sampler.tell(numbers[0], status="done", values=[0.5])
    sampler.tell(numbers[1], status="stopped", values=[0.2], epoch=3)
    sampler.tell(numbers[2], status="infeasible", values=None)
    sampler.tell(numbers[3], status="failed", values=None)
    sampler.tell(numbers[0], status="failed", values=None)  # the first word stands
    assert states(sampler) == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.PRUNED, TrialState.FAIL]
    stopped, infeasible = sampler.study.get_trials()[1:3]
    assert stopped.intermediate_values == {3: 0.2}
    assert infeasible.intermediate_values == {}
    assert infeasible.user_attrs["status"] == "infeasible"
    assert sampler.study.best_value == 0.5


def test_the_sampler_learns_to_avoid_an_infeasible_region(tmp_path):
    study = space_file.parse({"trials": 60, "search": {"loss.r_mix": {"uniform": [0, 1]}}})
    sampler = Sampler(study, tmp_path)
    bad = []
    for index in range(60):
        number, point = sampler.ask(f"t{index}", index)
        infeasible = point["loss.r_mix"] > 0.7
        bad.append(infeasible)
        values = None if infeasible else [point["loss.r_mix"]]  # better and better up to the cliff
        sampler.tell(number, status="infeasible" if infeasible else "done", values=values)
    assert sum(bad[-30:]) < 0.75 * 0.3 * 30 + 9  # below what chance gives, though the best is at the cliff's edge
    assert TrialState.RUNNING not in states(sampler)


def test_zombies_end_and_unfinished_trials_can_still_be_told(tmp_path):
    study = study_of()
    first = Sampler(study, tmp_path)
    number, _ = first.ask("t0000", 0)
    first.study.ask()  # killed before the trial had a name
    again = Sampler(study, tmp_path)
    assert states(again) == [TrialState.RUNNING, TrialState.FAIL]
    again.tell(again.number_of["t0000"], status="done", values=[0.4])
    assert again.number_of["t0000"] == number
    assert states(Sampler(study, tmp_path)) == [TrialState.COMPLETE, TrialState.FAIL]


def test_another_direction_is_refused(tmp_path):
    Sampler(study_of(), tmp_path)
    with pytest.raises(ValueError, match=r"wants \['maximize'\], study.yaml \['minimize'\]"):
        Sampler(study_of(objective={"val_i2t_r1": "min"}), tmp_path)


def test_a_torn_journal_is_repaired_and_a_dead_writers_lock_is_no_obstacle(tmp_path):
    study = study_of()
    life(Sampler(study, tmp_path), 0, 3)
    journal = tmp_path / JOURNAL
    whole = journal.read_bytes()
    lock = journal.with_name(JOURNAL + ".lock")
    for cut in range(len(whole) - 400, len(whole), 37):
        journal.write_bytes(whole[:cut])
        lock.unlink(missing_ok=True)
        lock.symlink_to(journal)
        sampler = Sampler(study, tmp_path)
        life(sampler, 3, 2)
        assert len(Sampler(study, tmp_path).study.get_trials()) >= 4


def test_an_interrupt_in_the_middle_of_a_write_stays_an_interrupt(tmp_path, monkeypatch):
    sampler = Sampler(study_of(), tmp_path)
    tried = []

    def interrupted(name):
        def call(*args, **kwargs):
            tried.append(name)
            raise KeyboardInterrupt

        return call

    for name in ("symlink", "rename", "unlink", "fsync"):  # every call of the system that a write may be stopped in
        monkeypatch.setattr(os, name, interrupted(name))
    with pytest.raises(KeyboardInterrupt):
        life(sampler, 0, 1)
    assert set(tried) == {"fsync"}
    monkeypatch.undo()
    life(Sampler(study_of(), tmp_path), 1, 2)


def test_finished_trials_are_adopted_once_when_they_are_points_of_the_space(tmp_path):
    sampler = Sampler(study_of(), tmp_path)
    inside = {"train.lr": 0.01, "loss.r_mix": 0.0, "groups.k": 10}
    assert sampler.adopt("t0000", from_flat(inside), status="done", values=[0.3])
    assert not sampler.adopt("t0000", from_flat(inside), status="done", values=[0.3])
    assert not sampler.adopt("t0001", from_flat({**inside, "train.lr": 0.9}), status="done", values=[0.3])
    assert not sampler.adopt("t0002", from_flat({**inside, "train.epochs": 3}), status="done", values=[0.3])
    assert not sampler.adopt("t0003", from_flat({**inside, "schedule.name": "cosine"}), status="done", values=[0.3])
    assert not sampler.adopt("t0004", from_flat(inside), status="failed", values=None)
    assert [t.values for t in sampler.study.get_trials()] == [[0.3]]
    other = from_flat({**inside, "train.lr": 0.02})
    assert sampler.adopt("t0005", other, status="stopped", values=[0.4], epoch=3)
    assert sampler.adopt("t0006", other, status="infeasible", values=None)
    assert states(sampler) == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.PRUNED]
    assert [t.intermediate_values for t in sampler.study.get_trials()] == [{}, {3: 0.4}, {}]
    assert sampler.study.best_trial.params == {"train.lr": 0.01, "loss.r_mix": 0.0, "groups.k": 10}


def test_a_changed_space_gets_a_study_of_its_own_in_the_same_journal(tmp_path):
    life(Sampler(study_of(), tmp_path), 0, 3)
    wider = study_of(search={**SPACE["search"], "loss.r_mix": {"choice": [0, 0.1, 0.5]}})
    sampler = Sampler(wider, tmp_path)
    assert sampler.study.get_trials() == []
    point = {"train.lr": 0.01, "loss.r_mix": 0.0, "groups.k": 10}
    assert sampler.adopt("t0000", from_flat(point), status="done", values=[0.3])
    life(sampler, 3, 2)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / JOURNAL)))
    assert sorted(s.n_trials for s in optuna.get_all_study_summaries(storage)) == [3, 3]


def test_a_grid_is_walked_once_also_over_a_kill(tmp_path):
    search = {"loss.r_mix": {"choice": [0, 0.1]}, "train.lr": {"choice": [0.1, 0.01, 0.001]}}
    study = study_of(strategy="grid", search=search)
    sampler = Sampler(study, tmp_path)
    points = life(sampler, 0, 2)
    sampler.study.enqueue_trial(sampler.grid[2])  # killed between enqueueing and asking
    points += life(Sampler(study, tmp_path), 2, 4)
    assert sorted(map(str, points)) == sorted(map(str, sampler.grid))


def proposals(sampler_of, count):
    """Of a study in memory with two parameters and its peak at x = 0.3, y = 0.01."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study, points = optuna.create_study(direction="maximize"), []
    for number in range(count):
        study.sampler = sampler_of(number)
        trial = study.ask()
        x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 1e-4, 1, log=True)
        points.append((x, y))
        study.tell(trial, -((x - 0.3) ** 2) - (y - 0.01) ** 2)
    return points


def test_a_short_study_gets_exactly_the_proposals_of_stock_tpe():
    options = {"multivariate": True, "constant_liar": True}
    ours = proposals(lambda n: tpe.BoundedTPE(seed=n, **options), 60)
    stock = proposals(lambda n: optuna.samplers.TPESampler(seed=n, group=True, **options), 60)
    assert ours == stock


def test_what_tpe_sees_of_a_long_study_is_bounded_and_holds_the_best_the_newest_and_what_runs():
    def made(number, state, values=None):
        trial = create_trial(
            state=state, params={"x": 0.5}, distributions={"x": FloatDistribution(0, 1)}, values=values
        )
        trial.number = number
        return trial

    rng = np.random.default_rng(0)
    trials = [made(n, TrialState.COMPLETE, [float(v)]) for n, v in enumerate(rng.permutation(2 * tpe.MEMORY))]
    trials += [made(len(trials) + i, TrialState.PRUNED) for i in range(5)]
    running = [made(len(trials) + i, TrialState.RUNNING) for i in range(7)]
    for largest in (True, False):
        seen = tpe.remembered([*trials, *running], [largest])
        assert len(seen) == tpe.MEMORY + len(running)
        assert [t.number for t in seen] == sorted(t.number for t in seen)
        values = sorted((t.values[0] for t in trials if t.values), reverse=largest)
        assert set(values[: tpe.BEST]) <= {t.values[0] for t in seen if t.values}
        assert {t.number for t in [*trials[-100:], *running]} <= {t.number for t in seen}
    short = trials[: tpe.MEMORY - 1]
    assert tpe.remembered(short, [True]) == short
    both = [made(n, TrialState.COMPLETE, [float(n), -float(n)]) for n in range(2 * tpe.MEMORY)]
    assert {0, 2 * tpe.MEMORY - 1} <= {t.number for t in tpe.remembered(both, [True, True])}, (
        "the ends of the trade-off"
    )


TWO = {"val_i2t_r1": "max", "val_modality_distance": "min"}
WIDE = {"search": {"loss.r_mix": {"uniform": [0, 1]}, "train.warmup": {"uniform": [0, 0.5]}}}
WIDE["search"]["model.text_dropout"] = {"uniform": [0, 0.5]}


@pytest.mark.parametrize(
    ("search", "towards"),
    [({"train.lr": {"loguniform": [1e-4, 1e-1]}}, 1e-3), ({"groups.k": {"int": [2, 1000]}}, 300)],
)
def test_of_a_single_parameter_a_child_lies_between_its_parents_and_is_none_of_them(search, towards, tmp_path):
    """Stock NSGA-II draws the only parameter of each child anew, which is random search."""
    ((path, spec),) = search.items()
    (kind, (low, high)) = next(iter(spec.items()))

    def place(value):
        """Of a value in its range, from 0 to 1."""
        return np.log(value / low) / np.log(high / low) if kind == "loguniform" else (value - low) / (high - low)

    near = []
    for seed in range(4):
        (tmp_path / str(seed)).mkdir()
        study = space_file.parse({"search": search, "trials": 60, "seed": seed, "strategy": "nsga2", "objective": TWO})
        sampler, points = Sampler(study, tmp_path / str(seed)), []
        for index in range(60):
            number, point = sampler.ask(f"t{index}", index)
            points.append(point[path])
            far = place(points[-1]) - place(towards)
            sampler.tell(number, status="done", values=[-((far - 0.05) ** 2), (far + 0.05) ** 2])
        assert len(set(points)) >= 50, "it proposes again what it knows"
        near += [abs(place(value) - place(towards)) < 0.1 for value in points[30:]]
    assert sum(near) > 0.5 * len(near), "a fifth at random"


@pytest.mark.parametrize("strategy", ["tpe_asha", "nsga2_asha"])
def test_under_several_metrics_a_stopped_trial_is_pruned_and_ranks_below_every_complete_one(strategy, tmp_path):
    sampler = Sampler(space_file.parse({**WIDE, "trials": 60, "strategy": strategy, "objective": TWO}), tmp_path)
    high = []
    for index in range(60):
        number, point = sampler.ask(f"t{index}", index)
        stopped = point["loss.r_mix"] > 0.5
        high.append(stopped)
        sampler.tell(number, status="stopped" if stopped else "done", values=[0.5, 0.5 + point["loss.r_mix"]], epoch=1)
    known = sampler.study.get_trials()
    assert {t.state for t in known} == {TrialState.COMPLETE, TrialState.PRUNED}
    assert all(t.values is None for t in known if t.state == TrialState.PRUNED)
    assert all(t.state == TrialState.COMPLETE for t in sampler.study.best_trials)
    assert sum(high[-30:]) < 15, "the sampler goes on where trials are stopped"


@pytest.mark.parametrize("strategy", ["tpe", "nsga2"])
def test_constraints_are_told_and_the_sampler_learns_to_keep_them(strategy, tmp_path):
    """The objective pulls to 1, the constraint allows 0.3 of the range; an infeasible trial breaks it more than any."""
    bounds = {"val_modality_distance": {"max": 0.3}}
    goals = {"val_i2t_r1": "max"} if strategy == "tpe" else TWO
    space = {**WIDE, "trials": 80, "strategy": strategy, "objective": goals}
    kept = {}
    for name, constraints in (("free", {}), ("bound", bounds)):
        study = space_file.parse({**space, "constraints": constraints})
        (tmp_path / name).mkdir()
        sampler = Sampler(study, tmp_path / name)
        inside = []
        for index in range(80):
            number, point = sampler.ask(f"t{index}", index)
            x = point["loss.r_mix"]
            inside.append(x <= 0.3)
            values = [x, 1 - x][: len(goals)]
            excess = ranking.excess(study.constraints, {"val_modality_distance": x})
            sampler.tell(number, status="infeasible" if x > 0.95 else "done", values=values, excess=excess)
        kept[name] = sum(inside[-40:])
        told = sampler.study.get_trials()
        assert all(bool(t.constraints) == bool(constraints) for t in told)
    assert kept["bound"] > 2 * max(kept["free"], 5)
    broken = [max(t.constraints.values()) for t in told if t.user_attrs.get("status") == "infeasible"]
    assert all(value == 1e9 for value in broken)


def test_adopted_trials_bring_their_constraints(tmp_path):
    sampler = Sampler(study_of(constraints={"val_modality_distance": {"max": 0.5}}), tmp_path)
    inside = from_flat({"train.lr": 0.01, "loss.r_mix": 0.0, "groups.k": 10})
    excess = ranking.excess(sampler.config.constraints, {"val_modality_distance": 0.75})
    assert sampler.adopt("t0000", inside, status="done", values=[0.3], excess=excess)
    assert sampler.study.get_trials()[0].constraints == {"val_modality_distance max 0.5": 0.5}
