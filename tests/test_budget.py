"""What a study may spend: counted from its ledger, over kills and resumes; and what other studies know."""

import pytest
from test_search import FIXED, SPACE, check_ledger, run
from toy import frozen

from mmts_ray import folder, plan, results, space_file
from mmts_ray.sampler import Sampler
from mmts_ray.search.budget import Budget
from mmts_ray.search.warm import warm_start


def test_hours_and_device_hours_are_those_of_the_ledger_kills_included(tmp_path):
    ledger = results.Ledger(tmp_path)

    def write(trial, time, spent=None, **more):
        ledger.append({"trial": trial, "time": time, "device_seconds": spent, "status": "running", **more})

    study = space_file.parse({"budget": {"device_hours": 0.05}})
    budget = Budget(study, tmp_path)
    assert budget.spent() == (0, 0)
    assert budget.exhausted() == ""
    write("t0000", 1000.0, 0.0)
    write("t0001", 1030.0, 0.0)
    write("t0000", 1050.0, 100.0)  # two devices
    assert budget.spent() == pytest.approx((50 / 3600, 100 / 3600))
    write("t0000", 5000.0, 40.0)  # killed for an hour, taken up from its checkpoint: 60 are lost
    write("t0000", 5010.0, 60.0)
    write("c0000", 5020.0, 1e6)  # asked for by name
    assert budget.spent() == pytest.approx((60 / 3600, 120 / 3600))
    assert Budget(study, tmp_path).spent() == budget.spent(), "read at once or as it grows"
    assert budget.exhausted() == ""
    write("t0001", 5040.0, 61.0, epoch=1)
    why = budget.exhausted()
    assert why.startswith("budget.device_hours: 0.0503 of 0.05 are spent")
    assert why.endswith("--device-hours N`")
    hours = Budget(space_file.parse({"budget": {"hours": 0.02}}), tmp_path)
    assert hours.exhausted().startswith("budget.hours: 0.025 of 0.02 are spent")


@pytest.mark.ray
@pytest.mark.parametrize(("kind", "other"), [("device_hours", "hours"), ("hours", "device_hours")])
def test_a_spent_budget_ends_the_search_over_resumes_until_it_is_raised(kind, other, local_ray, tmp_path):
    space = {**SPACE, "trials": 5, "resources": {"concurrent": 1}, "budget": {kind: 1e-6}}
    study = space_file.parse(space)
    heard = run(study, tmp_path / "s")
    assert len(heard.ended) == 1, "the first begins with nothing spent, and is finished"
    assert any(line.startswith(f"budget.{kind}: ") for line in heard.said)
    again = run(study, tmp_path / "s")
    assert again.ended == []
    assert any(line.startswith(f"budget.{kind}: ") for line in again.said)
    more = folder.extended(study, **{kind: 1.0})
    assert getattr(more, f"budget_{kind}") == pytest.approx(1.0 + 1e-6)
    assert len(run(more, tmp_path / "s").ended) == 5 + 2 - 1
    check_ledger(tmp_path / "s")
    with pytest.raises(ValueError, match=rf"budget\.{other}: the study has no such budget"):
        folder.extended(study, **{other: 1.0})


@pytest.mark.ray
def test_warm_actors_are_given_back_while_the_last_trial_runs(local_ray, tmp_path):
    """Three fixed configurations on two CPUs, the first long: once the short ones have ended, one CPU is free."""
    baselines = [{"name": name, "train.epochs": epochs} for name, epochs in (("long", 2000), ("a", 1), ("b", 1))]
    study = space_file.parse({**SPACE, "search": {}, "baseline": baselines})
    heard = run(study, tmp_path / "s")
    assert [trial for trial, *_ in heard.ended][-1] == "t0000"
    assert len(heard.ended) == 3
    used = [use["CPU"] for use, _ in heard.used]
    assert 2 in used
    assert used[-1] == 1, used


def other_study(at, *, seeds=(0,), **more):
    """A finished study of six points, one of them infeasible, and two baselines, of which "inside" is in the space."""
    study = space_file.parse({**SPACE, "seeds": list(seeds), **more})
    at.mkdir()
    results.write_meta(at, {"objective": dict(study.objective), "seeds": list(seeds)})
    ledger = results.Ledger(at)
    points = [{"train.lr": 0.002 * (1 + place), "groups.k": 5} for place in range(6)]
    configs = [("baseline", name, study.baseline_config(name)) for name, _ in study.baselines]
    configs += [("search", None, study.trial_config(point)) for point in points]
    for place, (kind, name, config) in enumerate(configs):
        one = plan.Planned(trial=f"t{place:04d}", kind=kind, name=name, config=config, seeds=study.seeds_of(config))
        for record in plan.start_records(study, one, status="running", data_key="toy"):
            ledger.append(record)
            bad = place == 7
            end = {"trial": record["trial"], "step": 9, "epoch": 3, "status": "infeasible" if bad else "done"}
            ledger.append(end if bad else {**end, "metric.val_i2t_r1": place / 10})
    return points


def told(sampler):
    known = sampler.study.get_trials(deepcopy=False)
    return {t.user_attrs["trial"]: t.state.name for t in known if "trial" in t.user_attrs}


def begin(folder, **more):
    folder.mkdir()
    study = space_file.parse({**SPACE, **more})
    return study, Sampler(study, folder)


def test_the_same_trials_of_another_study_are_told_and_its_best_are_proposed_first(tmp_path):
    points = other_study(tmp_path / "first")
    study, sampler = begin(tmp_path / "same", trials=8, warm_start=str(tmp_path / "first"))
    (line,) = warm_start(study, sampler, {}, data_key="toy")
    assert "7 results told, 2 configurations proposed first" in line
    expected = {f"first/t{n:04d}": "PRUNED" if n == 7 else "COMPLETE" for n in range(1, 8)}
    assert told(sampler) == expected, "all but the baseline that is no point of the space"
    assert [sampler.ask(f"t{n}", n)[1] for n in range(2)] == [points[4], points[3]]
    assert sampler.ask("t2", 2)[1] not in points


def test_what_waits_or_ran_is_not_proposed_again(tmp_path):
    points = other_study(tmp_path / "first")
    study, sampler = begin(tmp_path / "same", trials=8, warm_start=str(tmp_path / "first"))
    warm_start(study, sampler, {}, data_key="toy")
    sampler = Sampler(study, tmp_path / "same")  # killed before anything ran
    assert "0 results told, 0 configurations" in warm_start(study, sampler, {}, data_key="toy")[0]
    assert sampler.ask("t0000", 0)[1] == points[4]
    ran = {"t0000": {"kind": "search", "config_hash": study.trial_config(points[4]).hash}}
    assert "0 results told, 0 configurations" in warm_start(study, sampler, ran, data_key="toy")[0]
    assert sampler.ask("t0001", 1)[1] == points[3]
    # a point that was asked for and lost in a kill is no trial of the ledger: it comes back
    assert "1 configurations proposed first" in warm_start(study, sampler, ran, data_key="toy")[0]


TOWERS = {**{k: v for k, v in FIXED.items() if k != "model.dim"}, "model.name": "open_clip"}  # in place of heads


@pytest.mark.parametrize("differs", ["fidelity", "model", "data", "seeds"])
def test_of_a_study_that_differs_only_the_points_carry_over(differs, tmp_path):
    points = other_study(tmp_path / "first")
    changes = {
        "fidelity": {"fixed": {**FIXED, "train.epochs": 9}},
        "model": {"fixed": TOWERS},
        "data": {},
        "seeds": {"seeds": [0, 1]},
    }[differs]
    study, sampler = begin(tmp_path / "other", trials=8, warm_start=str(tmp_path / "first"), **changes)
    (line,) = warm_start(study, sampler, {}, data_key="new" if differs == "data" else "toy")
    assert "0 results told, 2 configurations proposed first" in line
    assert told(sampler) == {}
    assert sampler.ask("t0000", 0)[1] == points[4]


def test_a_warm_start_from_nothing_is_refused_before_anything_is_written(tmp_path):
    study, sampler = begin(tmp_path / "s", warm_start=str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="nowhere: not a study folder"):
        warm_start(study, sampler, {}, data_key="toy")
    with pytest.raises(ValueError, match="nowhere: not a study folder"):
        folder.create(study, tmp_path / "new", frozen(), command="")
    assert not (tmp_path / "new").exists()
    # once the study has trials, the other one may go
    assert "is gone" in warm_start(study, sampler, {"t0000": {"kind": "search", "config_hash": "x"}}, data_key="toy")[0]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("budget", {"hour": 3}, "budget.hour: unknown .did you mean hours"),
        ("budget", {"hours": 0}, "budget.hours: 0 is out of range"),
        ("warm_start", 3, "warm_start: needs the folder of a study, or a list of them, not 3"),
    ],
)
def test_what_cannot_be_is_refused(key, value, message):
    with pytest.raises(ValueError, match=message):
        space_file.parse({**SPACE, key: value})
