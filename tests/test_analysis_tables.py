"""From records to frames: what is folded, what is left out, who is compared."""

import json
import math

import numpy as np
import pytest
from ledger_maker import OBJECTIVE, SPACE, Maker, arms, meta_of, native, synthetic, write_study
from mmts_ray.analysis import choice, tables
from mmts_ray.analysis.panels import verdict

VAL = f"val_{OBJECTIVE}"


def study_of(folder, maker, **changes):
    return tables.load(write_study(folder, maker.rows, meta_of(folder.name, **changes)))


def test_torn_lines_are_skipped_and_counted_when_they_cost_a_start(tmp_path):
    folder = synthetic(tmp_path / "s", trials=6, confirm=0)
    path = folder / "ledger" / "writer-1.jsonl"
    whole = path.read_text().splitlines()
    start = next(i for i, line in enumerate(whole) if '"t0003"' in line)
    whole[start] = whole[start][:40]
    path.write_text("\n".join(whole) + '\n{"trial": "t00')
    found = tables.load(folder)
    assert "t0003" not in set(found.trials["trial"])
    assert found.orphans == 1
    assert len(found.trials) == 6


def test_the_same_point_run_twice_is_one_observation(tmp_path):
    maker = Maker("s")
    point = native(np.full(6, 0.4))
    maker.run("t0000", "search", point, {VAL: 0.30}, seed=0)
    maker.run("t0001", "search", point, {VAL: 0.31}, seed=0)
    maker.run("t0002", "search", point, {VAL: 0.32}, seed=1)
    maker.rows.append(dict(maker.rows[2]))  # an end record written twice
    found = study_of(tmp_path / "s", maker)
    assert list(found.trials["trial"]) == ["t0001", "t0002"]
    assert found.duplicates == 2


def test_of_a_repeated_point_the_finished_run_counts(tmp_path):
    maker = Maker("s")
    point = native(np.full(6, 0.4))
    maker.run("t0000", "search", point, {VAL: 0.30})
    maker.run("t0001", "search", point, {}, status="failed", error="lost node")
    assert list(study_of(tmp_path / "s", maker).trials["trial"]) == ["t0000"]


def test_stopped_runs_and_runs_without_a_score_are_not_finished(tmp_path):
    maker = Maker("s")
    rng = np.random.default_rng(0)
    for number, (status, score) in enumerate(
        [("done", 0.3), ("stopped", 0.9), ("done", None), ("failed", 0.8), ("running", 0.7), ("infeasible", None)]
    ):
        maker.run(f"t{number:04d}", "search", native(rng.random(6)), {VAL: score}, status=status)
    found = study_of(tmp_path / "s", maker)
    assert list(found.finished["trial"]) == ["t0000"]
    assert found.behind == "one run"
    assert dict(zip(found.trials["trial"], found.trials["state"]))["t0002"] == "infeasible"
    assert found.trials.set_index("trial").loc["t0002", "error"] == "ended without a finite score"


def test_what_went_on_from_anothers_weights_is_no_observation_of_its_parameters(tmp_path):
    maker = Maker("s")
    rng = np.random.default_rng(0)
    for number, parent in enumerate([None, None, "t0001"]):
        derived = {"derived.parent": parent, "derived.parent_epoch": 1} if parent else {}
        params = native(rng.random(6))
        maker.run(f"t{number:04d}", "search", params, {VAL: 0.3 + number / 10}, **derived)
    for seed in (11, 12):  # the copy is the best of the search: its own worth is what it reaches from the start
        maker.run(f"c{seed:04d}", "confirm", params, {VAL: 0.31}, seed=seed, name="t0002")
    found = study_of(tmp_path / "s", maker)
    assert list(found.searched["trial"]) == ["t0000", "t0001"]
    assert list(found.trials.loc[found.trials["kind"] == "copy", "trial"]) == ["t0002"]
    (candidate,) = choice.candidates(found)
    assert (candidate.label, candidate.source, candidate.trial) == ("t0002", "search", "t0002")
    assert choice.best_of_search(found)["trial"] == "t0001"


def test_a_planned_run_is_waiting(tmp_path):
    maker = Maker("s")
    maker.run("c0000", "confirm", native(np.full(6, 0.4)), {}, status="running", epochs=0)
    maker.rows[0]["status"] = "waiting"
    assert list(study_of(tmp_path / "s", maker).trials["state"]) == ["waiting"]


def test_the_winner_is_chosen_by_validation_on_fresh_seeds(tmp_path):
    folder = arms(
        tmp_path / "s",
        {"paper": [0.30, 0.31, 0.32], "t0001": [0.40, 0.41, 0.42], "t0002": [0.35, 0.36, 0.37], "t0003": [0.9]},
        extra={"t0002": {f"test_{OBJECTIVE}": [0.99, 0.99, 0.99]}},
    )
    chosen = choice.choose(tables.load(folder))
    assert chosen.winner.label == "t0001"  # not t0002, better on test; not t0003, one lucky run
    assert chosen.runner_up.label == "t0002"
    assert chosen.default.label == "paper"
    assert chosen.winner.source == "search"
    assert chosen.winner.trial == "t0001"


def test_a_smaller_objective_wins_when_it_is_minimised(tmp_path):
    folder = arms(tmp_path / "s", {"paper": [0.3] * 3, "t0001": [0.4] * 3, "t0002": [0.2] * 3}, objective={VAL: "min"})
    assert choice.choose(tables.load(folder)).winner.label == "t0002"


def test_fresh_values_are_indexed_by_seed_and_finite(tmp_path):
    folder = arms(tmp_path / "s", {"paper": [0.3, 0.31], "t0001": [0.4, None, 0.42]})
    winner = choice.choose(tables.load(folder)).winner
    assert dict(winner.values(f"metric.{VAL}")) == {1000: 0.4, 1002: 0.42}
    assert len(winner.values("metric.nobody_knows")) == 0


def test_the_default_value_is_the_baselines_or_the_declared_one(tmp_path):
    found = tables.load(arms(tmp_path / "s", {"paper": [0.3], "t0001": [0.4]}))
    lr = found.space[0]
    assert tables.default_value(found, lr) == (1e-3, True)
    without = tables.load(arms(tmp_path / "t", {"t0001": [0.4]}))
    assert tables.default_value(without, lr) == (SPACE[0]["default"], False)


def parameter(**changes):
    entry = {"path": "a.b", "kind": "float", "low": 0.01, "high": 1.0, "log": True, **changes}
    return tables._parameter(entry)


def test_positions_are_on_the_declared_scale():
    assert parameter().position([0.01, 0.1, 1.0, None, "x"]) == pytest.approx(
        [0, 0.5, 1, math.nan, math.nan], nan_ok=True
    )
    assert parameter(log=False).position([0.505]) == pytest.approx([0.5])
    assert parameter().at(0.5) == pytest.approx(0.1)
    assert parameter(low=3, high=3, log=False).position([3]) == pytest.approx([0.5])


def test_choices_tell_true_from_one_and_null_from_text():
    mixed = parameter(kind="choice", values=[True, 1, None, "null"])
    assert mixed.position([1, True, None, "null", math.nan, "other"]) == pytest.approx(
        [1, 0, 2, 3, 2, math.nan], nan_ok=True
    )


@pytest.mark.parametrize("when", [{"s.name": ["cosine", "linear"]}, {"s.name": "cosine"}, [["s.name", ["cosine"]]]])
def test_conditions(when):
    conditional = parameter(when=when)
    assert conditional.active({"s.name": "cosine"})
    assert not conditional.active({"s.name": "constant"})
    assert not conditional.active({})


def test_shares_are_recognised_by_name_and_range(tmp_path):
    maker = Maker("s")
    maker.run(
        "t0000", "search", native(np.full(6, 0.4)), {VAL: 0.3, "val_r5": 7.0, "val_accuracy": 0.5, "val_loss": 2.0}
    )
    found = study_of(tmp_path / "s", maker)
    assert found.metric(VAL) == tables.Metric(VAL, 1, True)
    assert found.metric("val_accuracy").share
    assert not found.metric("val_r5").share
    assert found.metric("val_loss").better == -1
    assert found.metric("val_surprise").better == 0


@pytest.mark.parametrize("text", ["not json", json.dumps({"schema": 1, "study": "s"}), json.dumps({"schema": 99})])
def test_a_broken_meta_is_one_line(tmp_path, text):
    (tmp_path / "meta.json").write_text(text)
    with pytest.raises(ValueError, match=r"meta\.json") as problem:
        tables.load(tmp_path)
    assert "\n" not in str(problem.value)


def test_the_hash_is_of_the_records_not_of_the_files(tmp_path):
    folder = synthetic(tmp_path / "s", trials=5, confirm=1)
    before = tables.load(folder).ledger_hash
    path = folder / "ledger" / "writer-1.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:7]))
    (folder / "ledger" / "another.jsonl").write_text("".join(lines[7:]))
    assert tables.load(folder).ledger_hash == before


def test_the_seeds_of_a_configuration_are_one_observation_and_count_only_together(tmp_path):
    maker = Maker("s")
    one, two = native(np.full(6, 0.4)), native(np.full(6, 0.6))
    maker.run("t0000", "search", one, {VAL: 0.30}, seed=0)
    maker.run("t0000-1", "search", one, {VAL: 0.34}, seed=1)
    maker.run("t0001", "control", two, {VAL: 0.50}, seed=0)
    maker.run("t0001-1", "control", two, {}, seed=1, status="infeasible", error="loss is non-finite")
    found = study_of(tmp_path / "s", maker, seeds=[0, 1])
    assert list(found.searched["trial"]) == ["t0000"], "half of a configuration is no result"
    assert found.searched["score"].iloc[0] == pytest.approx(0.32)
    assert found.searched[f"metric.{VAL}"].iloc[0] == pytest.approx(0.32)
    assert found.searched["device_seconds"].iloc[0] == pytest.approx(6.0)
    assert len(found.trials) == 4
    assert found.behind == "the mean of 2 seeds"


def test_the_winner_keeps_the_constraints_when_any_does(tmp_path):
    scores = {"paper": [0.30] * 3, "t0001": [0.50, 0.51, 0.52], "t0002": [0.40, 0.41, 0.42]}
    far = {name: {"val_modality_distance": [gap] * 3} for name, gap in (("t0001", 0.9), ("t0002", 0.4))}
    bounds = {"val_modality_distance": {"max": 0.5}}

    def chosen(name, **changes):
        study = tables.load(arms(tmp_path / name, scores, extra=far, **changes))
        checks = [c for c in verdict.verdict(study).checks if c.name == "the winner keeps the constraints"]
        warned = [str(c.problem) for c in checks if c.problem]
        return choice.choose(study).winner.label, warned

    assert chosen("free") == ("t0001", [])
    assert chosen("bound", constraints=bounds) == ("t0002", [])
    winner, (warning,) = chosen("none", constraints={"val_modality_distance": {"max": 0.3}})
    assert winner == "t0001"
    assert warning == "No configuration with fresh runs keeps the constraints."


def test_the_best_of_the_search_keeps_the_constraints_when_any_does(tmp_path):
    maker = Maker("s")
    for place, (score, gap) in enumerate([(0.5, 0.9), (0.4, 0.4), (0.3, 0.1)]):
        point = native(np.full(6, 0.1 + 0.2 * place))
        maker.run(f"t000{place}", "search", point, {VAL: score, "val_modality_distance": gap})
    for most, best in ((1.0, "t0000"), (0.5, "t0001"), (0.2, "t0002"), (0.05, "t0000")):
        study = study_of(tmp_path / f"s{most}", maker, constraints={"val_modality_distance": {"max": most}})
        assert choice.best_of_search(study)["trial"] == best
