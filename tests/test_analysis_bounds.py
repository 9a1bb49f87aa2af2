"""Ends of ranges: what touches, what is confirmed, what fails, and when nothing is judged."""

import numpy as np
import pytest
from ledger_maker import SPACE
from mmts_ray.analysis import tables
from mmts_ray.analysis.panels import bounds
from mmts_ray.analysis.wording import plain
from scipy import stats
from sweeps import problems, ramp


def test_a_plateau_that_touches_an_end_that_can_be_widened(tmp_path):
    found = bounds.bounds(tables.load(ramp(tmp_path / "s")))
    row = found.frames["ranges"].iloc[0]
    assert (row["end"], row["room"], row["limit"], row["confirmed"]) == ("upper", True, 1.0, False)
    assert row["chance_upper"] > 0.5
    (check,) = [c for c in found.checks if c.problem is not None]
    assert check.severity == "limits"
    assert plain(check.problem) == "The plateau of lr touches the upper end of its range (0.1)."
    assert "Widen the range (declared limit 1)" in plain(check.consequence)
    assert plain(found.settings[0].cells["train.lr"]) == "▲ touches the upper end: widen"
    assert plain(found.title) == "The plateau of lr touches an end of its range"


def test_probes_that_share_seeds_confirm_a_best_at_the_bound(tmp_path):
    study = tables.load(ramp(tmp_path / "s", probes=(0.75,)))
    found = bounds.bounds(study)
    row = found.frames["ranges"].iloc[0]
    assert row["confirmed"]
    end, inside = (
        study.trials[study.trials["trial"].str.startswith(f"c{place}")].set_index("seed")["score"] for place in (0, 1)
    )
    assert row["probe_p"] == pytest.approx(stats.ttest_rel(end, inside, alternative="greater").pvalue)
    assert "is at the upper end of its range (0.1): confirmed, " in problems(found)[0]
    flat = ramp(tmp_path / "t", probes=(0.75,), noise=0.2)
    assert not bounds.bounds(tables.load(flat)).frames["ranges"].iloc[0]["confirmed"]


def test_a_confirmed_best_at_the_declared_limit_is_only_noted(tmp_path):
    space = [{**SPACE[0], "declared": {"low": 1e-4, "high": 1e-1}}]
    found = bounds.bounds(tables.load(ramp(tmp_path / "s", space=space, probes=(0.75,))))
    (check,) = [c for c in found.checks if c.problem is not None]
    assert check.severity == "record"
    assert "cannot be widened" in plain(check.consequence)


def test_an_inside_winner_and_a_cliff(tmp_path):
    found = bounds.bounds(tables.load(ramp(tmp_path / "s", cliff=0.8, best_at=0.5)))
    row = found.frames["ranges"].iloc[0]
    assert row["end"] is None
    last = 1e-4 * 1000 ** np.linspace(0, 1, 40)[np.linspace(0, 1, 40) <= 0.8].max()
    assert row["fails_above"] == pytest.approx(last)
    assert problems(found) == ["All 8 runs with lr above 0.0242 failed."]
    assert plain(found.title) == "Every run fails at an end of the range of lr"


@pytest.mark.parametrize(("options", "reason"), [
    ({"n": 20}, "24 configurations that ran to their end are needed, 20 did"),
    ({"fresh": 0}, "no setting of the searched space has fresh seeds yet"),
    ({"noise": 5.0}, "the model predicts left-out configurations poorly"),
])  # fmt: skip
def test_ends_are_not_judged_without_a_model(tmp_path, options, reason):
    found = bounds.bounds(tables.load(ramp(tmp_path / "s", **options)))
    assert plain(found.title) == f"Bounds are not judged: {reason}"
    assert problems(found) == []
    assert plain(found.settings[0].cells["train.lr"]) == "not judged"
