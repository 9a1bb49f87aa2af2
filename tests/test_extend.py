"""More trials, and fresh seeds, for a finished study: what had ended is left as it is."""

import pytest
from test_search import SPACE, check_ledger, confirm, run

from mmts_ray import folder, results, space_file

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
MOVABLE = {"train.lr": {"loguniform": [1e-3, 1e-1]}, "train.weight_decay": {"uniform": [0, 0.1]}}  # under pbt, too


@pytest.mark.parametrize("strategy", ["hyperband", "pbt"])  # what pauses and copies
def test_a_study_is_extended_and_confirmed(strategy, local_ray, tmp_path):
    goals = {"val_i2t_r1": "max", "val_modality_distance": "min"} if "nsga2" in strategy else {"val_i2t_r1": "max"}
    study = space_file.parse({**SPACE, "strategy": strategy, "search": MOVABLE, "objective": goals})
    run(study, tmp_path / "s")
    before = results.trials_of(tmp_path / "s")
    run(folder.extended(study, trials=4), tmp_path / "s")
    trials = check_ledger(tmp_path / "s")
    sampled = [t for t in trials if t["kind"] == "search" and "derived.parent" not in t]
    assert len(sampled) == study.trials + 4
    after = {t["trial"]: t for t in trials}
    assert {t: after[t] for t in before} == before, "what had ended ran again, or is gone"
    confirm(study, tmp_path / "s", top=1, seeds=2)
    fresh = [t for t in check_ledger(tmp_path / "s") if t["kind"] == "confirm"]
    assert {t["status"] for t in fresh} == {"done"}
    assert len(fresh) == (2 + 1) * 2, "both baselines and the best, each on both seeds"
    assert {t["seed"] for t in fresh} == {results.FRESH_SEEDS, results.FRESH_SEEDS + 1}
