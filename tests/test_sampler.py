"""The study's memory in Optuna: no zombies, no repeats, stopped is not complete, torn journals heal."""

from dataclasses import replace

import optuna
import pytest
from optuna.trial import TrialState

from mmts_ray import space_file
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


@pytest.mark.parametrize("strategy", ["tpe", "random", "nsga2", "tpe_asha"])
def test_reattaching_continues_the_sequence_and_repeats_nothing(tmp_path, strategy):
    goals = {"val_i2t_r1": "max", "val_modality_distance": "min"} if strategy == "nsga2" else {"val_i2t_r1": "max"}
    study = study_of(strategy=strategy, objective=goals)
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


def test_a_torn_journal_and_a_dead_writers_lock_are_repaired(tmp_path):
    study = study_of()
    life(Sampler(study, tmp_path), 0, 3)
    journal = tmp_path / JOURNAL
    whole = journal.read_bytes()
    lock = journal.with_name(JOURNAL + ".lock")
    for cut in range(len(whole) - 400, len(whole), 37):
        journal.write_bytes(whole[:cut])
        lock.symlink_to(journal)
        sampler = Sampler(study, tmp_path)
        life(sampler, 3, 2)
        assert len(Sampler(study, tmp_path).study.get_trials()) >= 4


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
