"""Studies of a quantity: curves from arms by name, how wide each stays near the best, similarities and ranks."""

import math

import numpy as np
import pytest
from ledger_maker import OBJECTIVE, Maker, meta_of, write_study
from mmts_ray.analysis import report, tables
from mmts_ray.analysis.panels import curves, similarities

from mmts_ray import results

XS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)


def study_of(folder, level, *, xs=XS, seeds=5, sd=0.01, extra=(), health=None, rng=None):
    """One arm per (curve, x) with scores around `level(curve, x)`, and `extra` arms off the curves."""
    rng = rng or np.random.default_rng(3)
    maker = Maker(folder.name)
    named = [(f"{c} at temperature {x:g}", level(c, x), x) for c in ("fixed", "scheduled") for x in xs]
    for number, (label, mean, x) in enumerate([*named, *((e, 0.3, 0.0) for e in extra)]):
        params = {"schedule.value": x, "loss.name": label.split(" at")[0]}
        maker.run(f"t{number:04d}", "baseline", params, {f"val_{OBJECTIVE}": mean}, name=label)
        for seed in range(seeds):
            val, test = mean + sd * rng.standard_normal(2)
            metrics = {f"val_{OBJECTIVE}": val, f"test_{OBJECTIVE}": test, "test_modality_distance": 0.1 + x}
            maker.run(f"c{number:04d}{seed}", "confirm", params, metrics, seed=1000 + seed, name=label)
    meta = meta_of(folder.name, baselines=[label for label, *_ in named] + list(extra), space=[])
    if health:
        meta["data"] = {**meta["data"], "health": health}
    return tables.load(write_study(folder, maker.rows, meta))


def peak(curve, x):
    """Fixed: a parabola in log x around 0.05; scheduled: flat."""
    return 0.36 if curve == "scheduled" else 0.36 - 0.03 * (math.log(x / 0.05) / math.log(3)) ** 2


def test_names_make_curves_and_other_arms_stay_beside_them(tmp_path):
    study = study_of(tmp_path / "s", peak, extra=("learnable", "lone at temperature 0.3"))
    label, points = curves.points_of(study)
    assert label == "temperature"
    assert {p.curve for p in points} == {"fixed", "scheduled"}
    assert [p.x for p in points if p.curve == "fixed"] == list(XS)
    found = curves.curves(study)
    assert found.refusal is None
    assert any("learnable" in str(s) for s in found.sentences)
    assert set(found.frames["points"]["metric"]) == {f"test_{OBJECTIVE}", "test_modality_distance"}


def test_the_range_near_the_best_is_that_of_the_truth_and_the_flat_curve_keeps_all_of_it(tmp_path):
    study = study_of(tmp_path / "s", peak, seeds=20, sd=0.008)
    rows = curves.curves(study).frames["widths"].set_index("curve")
    delta = rows.loc["fixed", "delta"]
    assert delta == pytest.approx(1.25 * 0.008, rel=0.2)
    for end, beside in (("low", 0.02), ("high", 0.1)):  # straight lines, in the logarithm, between the settings
        part = delta / (0.36 - peak("fixed", beside))
        assert rows.loc["fixed", end] == pytest.approx(0.05 * (beside / 0.05) ** part, rel=0.2)
    assert rows.loc["scheduled", "share"] > 0.9
    assert rows.loc["fixed", "share_hi"] < rows.loc["scheduled", "share_lo"]
    assert "scheduled stays near the best over" in str(curves.curves(study).title)


def test_the_interval_of_a_width_covers_the_truth(tmp_path):
    """A tent on a linear axis, whose width at a known delta is exact under straight lines between the settings."""
    xs = (1.0, 2.0, 3.0, 4.0, 5.0)
    rng, hits = np.random.default_rng(77), 0
    for number in range(60):
        study = study_of(
            tmp_path / f"s{number}", lambda _, x: 0.40 - 0.02 * abs(x - 3), xs=xs, seeds=6, sd=0.008, rng=rng
        )
        rows = curves.curves(study).frames["widths"]
        row = rows[rows["curve"] == "fixed"].iloc[0]
        truth = 2 * row["delta"] / 0.02 / 4
        hits += row["share_lo"] <= truth <= row["share_hi"]
    assert hits >= 51  # 60 at .95: fewer than 51 has a chance below 1 in 500


def test_a_curve_that_never_comes_near_the_best_has_no_range(tmp_path):
    study = study_of(tmp_path / "s", lambda c, x: 0.36 if c == "scheduled" else 0.30, seeds=8)
    rows = curves.curves(study).frames["widths"].set_index("curve")
    low = rows.loc["fixed"]
    assert low["share"] == 0
    assert low["low"] == pytest.approx(low["high"])


def test_too_few_settings_or_seeds_are_refused_with_the_way_to_name_arms(tmp_path):
    for place, kwargs in enumerate(({"xs": XS[:2]}, {"seeds": 2})):
        found = curves.curves(study_of(tmp_path / f"s{place}", peak, **kwargs))
        assert found.refusal is not None
        assert "CURVE at LABEL X" in str(found.refusal.needs)
        assert found.refusal.command.startswith("mmts-ray confirm")


def test_equal_scores_are_no_width(tmp_path):
    study = study_of(tmp_path / "s", lambda c, x: 0.3, sd=0.0)
    found = curves.curves(study)
    assert str(found.title) == "Every setting of temperature scores the same on all seeds"


def cosines(**shares):
    bins = {what: [0.0] * 40 for what in ("captions", "images")}
    for what, places in shares.items():
        for low, share in places.items():
            bins[what][round((float(low) + 1) / 0.05)] = share
    return {"similarities": {"images_compared": 3, **bins}}


def test_a_threshold_removes_the_share_above_it_and_ranks_come_from_the_kept_files(tmp_path):
    health = cosines(captions={"0.0": 0.7, "0.8": 0.2, "0.9": 0.1}, images={"0.5": 1.0})
    study = study_of(tmp_path / "s", peak, health=health)
    for number, trial in enumerate(study.trials.loc[study.trials["kind"] == "confirm", "trial"]):
        ranks = np.array([0, 4, 150, 500 + number], dtype=np.int32)
        results.write_ranks(study.path, trial, {"image": np.arange(4, dtype=np.int32), "i2t": ranks})
    found = similarities.similarities(study)
    removed = found.frames["removed"].set_index(["series", "threshold"])["share"]
    assert removed["captions", 0.8] == pytest.approx(0.3)
    assert removed["images", 0.8] == 0
    row = found.frames["ranks"].iloc[0]
    assert (row["within_1"], row["within_10"], row["within_100"], row["beyond_200"]) == (0.25, 0.5, 0.5, 0.25)
    assert similarities._above(found.frames["cosines"], "captions", 0.825) == pytest.approx(0.1 + 0.1)


def test_a_study_without_cosines_is_refused(tmp_path):
    assert similarities.similarities(study_of(tmp_path / "s", peak)).refusal is not None


def test_the_report_draws_both_panels(tmp_path):
    health = cosines(captions={"0.0": 0.9, "0.8": 0.1}, images={"0.5": 1.0})
    study = study_of(tmp_path / "s", peak, health=health, extra=("learnable",))
    html = report.write(study.path).read_text()
    assert 'id="curves-0' in html
    assert 'id="similarities-0' in html
