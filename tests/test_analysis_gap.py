"""The modality gap: over searched trials, over settings with fresh seeds, refused where neither is there."""

import math

import numpy as np
import pytest
from ledger_maker import SPACE, Maker, arms, meta_of, synthetic, write_study
from mmts_ray.analysis import report, tables
from mmts_ray.analysis.panels import gap
from mmts_ray.analysis.wording import plain
from scipy import stats
from sweeps import BASE, VAL, shifted


def test_gap_reads_the_sign_of_the_link(tmp_path):
    maker = Maker("s")
    for number in range(30):
        distance = 0.2 + 0.02 * number + 0.01 * math.sin(number)
        metrics = {VAL: 0.3 + 0.001 * number, "val_modality_distance": distance}
        maker.run(f"t{number:04d}", "search", {"train.lr": 1e-3 * (1 + number)}, metrics)
    study = tables.load(write_study(tmp_path / "s", maker.rows, meta_of("s", space=SPACE[:1], baselines=[])))
    found = gap.gap(study)
    assert found.title == "A larger modality distance goes with higher image-to-text R@1 among the trials"
    assert found.numbers["rank_correlation"]["lo"] > 0.9


def baselines(folder, scores, distances):
    """A study of baselines alone: `trials: 0`, each on fresh seeds, as the studies of the papers' figures are."""
    maker = Maker(folder.name)
    for place, name in enumerate(scores):
        params = {"train.lr": 1e-3 * (1 + place)}
        first = {VAL: scores[name][0], "val_modality_distance": distances[name][0]}
        maker.run(f"b{place}", "baseline", params, first, name=name)
        for seed, (value, distance) in enumerate(zip(scores[name], distances[name])):
            metrics = {VAL: value, f"test_{VAL[4:]}": value, "val_modality_distance": distance}
            maker.run(f"c{place}{seed}", "confirm", params, metrics, seed=1000 + seed, name=name)
    meta = meta_of(folder.name, space=[], trials=0, baselines=list(scores))
    return tables.load(write_study(folder, maker.rows, meta))


NEAR = [0.40, 0.41, 0.40, 0.41, 0.40]
FAR = [0.81, 0.80, 0.81, 0.82, 0.80]
SAME = [0.80, 0.81, 0.80, 0.83, 0.80]


def test_a_study_of_baselines_alone_shows_what_its_settings_do_to_the_gap(tmp_path):
    scores = {"paper": BASE, "mixed": shifted(-0.05), "warm": shifted(0.05), "other": shifted(0.0)}
    distances = {"paper": FAR, "mixed": NEAR, "warm": NEAR, "other": SAME}
    study = baselines(tmp_path / "s", scores, distances)
    found = gap.gap(study)
    assert found.refusal is None
    assert plain(found.title) == (
        "2 of 3 settings close the modality gap of the default by 0.4; 1 of them loses image-to-text R@1 and 1 of them "
        "gains image-to-text R@1"
    )
    rows = found.frames["confirmed"].set_index("label")
    d = np.array(NEAR) - np.array(FAR)
    half = stats.t.ppf(1 - 0.025 / 3, 4) * d.std(ddof=1) / math.sqrt(5)
    got = tuple(rows.loc["mixed", ["x_diff", "x_diff_lo", "x_diff_hi"]])
    assert got == pytest.approx((d.mean(), d.mean() - half, d.mean() + half))
    assert rows.loc["mixed", "diff_hi"] < 0 < rows.loc["warm", "diff_lo"]
    assert math.isnan(rows.loc["paper", "x_diff"])
    assert list(found.frames["confirmed"]["role"])[:3] == ["win", "second", "default"]
    assert found.used == "4 settings with fresh seeds"
    said = " ".join(plain(s) for s in found.sentences)
    assert "A link over trials is not told: it takes 10 searched trials, none is there." in said
    assert "widened for 3 looks" in said
    drawn = str(gap.draw(study, found))
    assert 'class="fig"' in drawn
    assert 'data-frame="gap.listed"' in drawn


def test_the_report_of_a_study_of_baselines_alone_is_written(tmp_path):
    baselines(tmp_path / "s", {"paper": BASE, "warm": shifted(0.05)}, {"paper": FAR, "warm": NEAR})
    found = report.find(tables.load(tmp_path / "s"))
    drawn = {key for key, finding in found.items() if finding.refusal is None}
    assert {"verdict", "fresh", "gap", "metrics", "ledger"} <= drawn
    searching = {"budget", "flat", "isolation", "bounds", "importance", "interactions", "plateau", "inert"}
    assert not drawn & searching
    text = report.write(tmp_path / "s").read_text()
    assert "Nothing was searched: the settings were given, and the verdict compares them." in text
    assert "These are the winner" not in text


@pytest.mark.parametrize(
    ("distances", "scores", "title"),
    [
        ({"b": NEAR}, {"b": shifted(0.0)}, "1 of 1 setting closes the modality gap of the default by 0.4; no change of "
         "image-to-text R@1 is established"),
        ({"b": NEAR}, {"b": shifted(-0.05)}, "1 of 1 setting closes the modality gap of the default by 0.4; it loses "
         "image-to-text R@1"),
        ({"b": SAME}, {"b": BASE}, "No setting changes the modality distance of the default beyond noise"),
        ({"b": [0.95, 0.96, 0.95, 0.97, 0.95]}, {"b": BASE}, "No setting closes the modality gap of the default; 1 of "
         "1 widens it"),
    ],
)  # fmt: skip
def test_one_setting_beside_the_default_is_told_in_the_singular(tmp_path, distances, scores, title):
    found = gap.gap(baselines(tmp_path / "s", {"paper": BASE, **scores}, {"paper": FAR, **distances}))
    assert plain(found.title) == title


@pytest.mark.parametrize(
    ("seeds", "needs"),
    [(1, "2 settings with 2 fresh seeds each that report val_modality_distance, none is there;"), (0, "none is there")],
)
def test_without_seeds_and_trials_the_panel_is_refused(tmp_path, seeds, needs):
    study = baselines(tmp_path / "s", {"paper": BASE[: seeds or 1], "b": BASE[: seeds or 1]},
                      {"paper": FAR[:1], "b": NEAR[:1]})  # fmt: skip
    found = gap.gap(study)
    assert needs in plain(found.refusal.needs)
    assert "or 10 searched trials that do, none is there" in plain(found.refusal.needs)
    assert found.refusal.command == "mmts-ray confirm s --top 3 --seeds 5"


def test_settings_that_report_no_distance_are_refused(tmp_path):
    found = gap.gap(tables.load(arms(tmp_path / "t", {"paper": BASE, "t0001": BASE})))
    assert "report val_modality_distance, none is there" in plain(found.refusal.needs)


def test_trials_and_settings_are_shown_together(tmp_path):
    study = tables.load(synthetic(tmp_path / "s", trials=40, confirm=5))
    found = gap.gap(study)
    assert found.numbers["rank_correlation"] is not None
    assert len(found.frames["trials"]) > 30
    assert len(found.frames["confirmed"]) == 4
    assert "link" in plain(found.title) or "goes with" in plain(found.title)
