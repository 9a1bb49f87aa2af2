"""Whom ASHA stops, counted by hand: by the first of several metrics, and by searched trials alone."""

import numpy as np
import pytest
from test_search import FIXED, SPACE, check_ledger, run

from mmts_ray import results, space_file

GOALS = {"val_i2t_r1": "max", "val_modality_distance": "min"}


@pytest.mark.ray
@pytest.mark.parametrize("first", GOALS)
def test_a_trial_stops_at_a_rung_where_two_thirds_of_those_before_it_did_better_by_the_first_metric(
    first, local_ray, tmp_path
):
    goals = {first: GOALS[first], **GOALS}
    space = {**SPACE, "strategy": "random_asha", "objective": goals, "trials": 12, "resources": {"concurrent": 1}}
    study = space_file.parse({**space, "fixed": {**FIXED, "train.epochs": 9}})
    run(study, tmp_path / "s")
    trials = [t for t in check_ledger(tmp_path / "s") if t["kind"] == "search"]
    _, steps, _ = results.fold(results.records(tmp_path / "s"))
    sign = 1 if GOALS[first] == "max" else -1
    score = {(s["trial"], s["epoch"]): sign * s[f"metric.{first}"] for s in steps}
    before = {1: [], 3: []}
    expected = {}
    for trial in sorted(t["trial"] for t in trials):  # one at a time: in the order of their names
        for rung, seen in before.items():
            value = score[trial, rung]
            behind = bool(seen) and value < np.percentile(seen, 200 / 3)
            seen.append(value)
            if behind:
                expected[trial] = rung
                break
    assert {t["trial"]: t["epoch"] for t in trials if t["status"] == "stopped"} == expected
    assert expected
    assert len(expected) < len(trials)
    assert all(t["epoch"] == 9 for t in trials if t["trial"] not in expected)
