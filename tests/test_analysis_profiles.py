"""Performance profiles over data sets: shares that can be counted, bands against a known truth, what is refused."""

import json

import numpy as np
import pandas as pd
import pytest
from ledger_maker import SPACE, Maker, arms, meta_of, write_study
from mmts_ray.analysis import statistics as st
from mmts_ray.analysis.several import profiles, studies, transfer, write
from mmts_ray.analysis.wording import plain
from scipy import stats
from sweeps import TEST, VAL
from test_analysis_report import numbers_of

TUNED = [0.40, 0.41, 0.39, 0.40, 0.40]
SHARES = [0.90, 0.93, 0.94, 0.97, 1.02]  # of the tuned mean, one per data set


def sets(tmp_path, shares=SHARES, tuned=TUNED, **options):
    """One study a data set; the runs of its default are all a share of the tuned mean."""
    folders = []
    for place, share in enumerate(shares):
        scores = {"paper": [share * 0.4] * len(tuned), "t0001": tuned}
        folders.append(arms(tmp_path / f"s{place}", scores, data={"key": f"k{place}"}, **options))
    return studies.read(folders)


def at(found, name, threshold):
    rows = found.frames["profiles"]
    return rows[(rows["name"] == name) & np.isclose(rows["threshold"], threshold)].iloc[0]


def test_the_shares_are_those_of_the_runs_and_every_data_set_counts_the_same(tmp_path):
    found = profiles.profile(sets(tmp_path))
    assert found.refusal is None
    assert at(found, "default", 0.95)["share"] == pytest.approx(2 / 5)
    assert at(found, "default", 0.9)["share"] == pytest.approx(1.0)
    assert at(found, "default", 1.0)["share"] == pytest.approx(1 / 5)
    assert at(found, "tuned on each", 0.95)["share"] == 1.0
    assert plain(found.title).replace("\u00a0", " ").startswith("Over 5 data sets, 40 % [")
    assert found.numbers["tuned_means"]["s0"] == pytest.approx(0.4)
    told = found.frames["told"]
    assert set(told["threshold"]) <= set(profiles.TOLD)
    assert (told["lo"] <= told["share"]).all()
    assert (told["share"] <= told["hi"]).all()
    for _, own in found.frames["profiles"].groupby("name"):
        assert own["share"].is_monotonic_decreasing
        assert own["share"].iloc[0] == 1
        assert own["share"].iloc[-1] == 0


def test_of_a_loss_the_smaller_score_is_above(tmp_path):
    several = sets(tmp_path, shares=[1.1, 1.2, 1.2, 1.3, 0.9], objective={VAL: "min"})
    found = profiles.profile(several)
    assert at(found, "default", 1.0)["share"] == pytest.approx(1 / 5)  # the last default has the smaller loss
    assert at(found, "default", 0.8)["share"] == pytest.approx(4 / 5)


def test_below_five_data_sets_it_is_refused_with_the_reason_and_a_command(tmp_path):
    for count, words in ((2, "2 are at hand"), (4, "4 are at hand")):
        found = profiles.profile(sets(tmp_path / str(count), shares=SHARES[:count]))
        needs = plain(found.refusal.needs)
        assert needs.startswith("Needs 5 data sets, as below that a profile is a stair of a few steps; ")
        assert words in needs
        assert found.refusal.command.startswith("mmts-ray search ")


def test_five_studies_of_one_data_set_are_no_five_data_sets(tmp_path):
    folders = [arms(tmp_path / f"s{i}", {"paper": TUNED, "t0001": TUNED}, data={"key": "same"}) for i in range(5)]
    found = profiles.profile(studies.read(folders))
    assert "1 is at hand" in plain(found.refusal.needs)


def test_seeds_and_signs_that_are_missing_are_named(tmp_path):
    few = sets(tmp_path / "few", tuned=TUNED[:2])
    found = profiles.profile(few)
    assert "Needs 3 fresh seeds that winner and default share on each data set; s0, s1, s2 and 2 more have fewer" in (
        plain(found.refusal.needs)
    )
    assert found.refusal.command.count("mmts-ray confirm") == 5
    found = profiles.profile(sets(tmp_path / "negative", shares=[-0.1, *SHARES[1:]]))
    assert "all have to be positive" in plain(found.refusal.needs)


def test_of_two_studies_on_one_data_set_the_better_on_validation_counts(tmp_path):
    sets(tmp_path)
    worse = arms(tmp_path / "worse", {"paper": [0.1] * 5, "t0001": [0.2, 0.21, 0.2, 0.19, 0.2]}, data={"key": "k0"})
    several = studies.read([worse, *(tmp_path / f"s{i}" for i in range(5))])
    found = profiles.profile(several)
    assert found.numbers["data_sets"] == 5
    assert set(found.numbers["tuned_means"]) == {f"s{i}" for i in range(5)}
    assert any("the best on validation" in plain(s) for s in found.sentences)


def drawn(rng, means, sd, k):
    """One data set a mean: a tuned setting, and a default at the mean below it; a seed lifts both."""
    blocks = []
    for tuned, default in means:
        common = np.sqrt(0.3) * rng.standard_normal(k)
        own = [common + np.sqrt(0.7) * rng.standard_normal(k) for _ in range(2)]
        blocks.append({"tuned": tuned + sd * own[0], "default": default + sd * own[1]})
    return blocks


@pytest.mark.parametrize(("sets_", "seeds"), [(5, 5), (8, 3)])
def test_bands_cover_the_truth_of_normal_scores(sets_, seeds):
    """In closed form: the share above t is the mean over data sets of 1 - Phi((t tuned - mean) / sd)."""
    sd, thresholds = 0.012, np.linspace(0.88, 1.06, 19)
    means = [(w, w - d) for w, d in zip(np.linspace(0.3, 0.6, sets_), np.linspace(0, 0.04, sets_))]
    place = {"tuned": 0, "default": 1}
    truth = {
        arm: np.mean([stats.norm.sf((thresholds * pair[0] - pair[i]) / sd) for pair in means], axis=0)
        for arm, i in place.items()
    }
    hits = {arm: np.zeros(len(thresholds)) for arm in place}
    for seed in range(60):
        blocks = drawn(np.random.default_rng(seed), means, sd, seeds)
        found = st.profiles(blocks, "tuned", thresholds, np.random.default_rng(seed))
        for arm in place:
            hits[arm] += (found[arm].lo <= truth[arm]) & (truth[arm] <= found[arm].hi)
    for arm in place:
        covered = hits[arm] / 60
        assert covered.mean() >= 0.92
        assert covered.min() >= 0.75


def test_the_band_comes_from_the_generator_that_is_passed_and_from_no_other():
    blocks = drawn(np.random.default_rng(0), [(0.4, 0.38)] * 5, 0.01, 5)
    grid, state = np.linspace(0.9, 1.1, 9), np.random.get_state()[1].copy()  # noqa: NPY002 (it must stay as it is)
    first, again, other = (st.profiles(blocks, "tuned", grid, np.random.default_rng(s))["default"] for s in (1, 1, 2))
    assert (first.lo == again.lo).all()
    assert (first.hi == again.hi).all()
    assert (first.lo != other.lo).any() or (first.hi != other.hi).any()
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002


def test_where_every_run_is_above_the_limit_is_that_of_so_many_successes():
    blocks = [{"tuned": np.array([1.0, 1.01, 0.99])} for _ in range(5)]
    found = st.profiles(blocks, "tuned", np.array([0.5]), np.random.default_rng(0))["tuned"]
    assert found.share[0] == found.hi[0] == 1
    assert found.lo[0] == pytest.approx(stats.beta.ppf(0.025, 15, 1))


def carried(tmp_path, n=5):
    """Every winner ran on every data set: that of the first loses .01 elsewhere, those of the others .04."""
    folders = []
    for here in range(n):
        maker, number = Maker(f"s{here}"), 0
        runs = [("confirm", "paper", 0.5, 0.30)]
        for source in range(n):
            lost = 0.0 if source == here else 0.01 if source == 0 else 0.04
            kind = "confirm" if source == here else "probe"
            runs.append((kind, f"t{source:04d}", 1e-3 * (1 + source), 0.40 - lost))
        maker.run("b0", "baseline", {"train.lr": 0.5, "data.path": str(here)}, {VAL: 0.3}, name="paper")
        own = {"train.lr": 1e-3 * (1 + here), "data.path": str(here)}
        maker.run(f"t{here:04d}", "search", own, {VAL: 0.4})
        for kind, label, lr, level in runs:
            for seed, noise in enumerate((0.0, 0.003, -0.003, 0.001)):
                value = level + noise + 0.0005 * (seed == len(label) % 4)
                params = {"train.lr": lr, "data.path": str(here)}
                maker.run(f"c{number}", kind, params, {VAL: value, TEST: value}, seed=1000 + seed, name=label)
                number += 1
        meta = meta_of(f"s{here}", space=SPACE[:1], data={"key": f"k{here}"})
        folders.append(write_study(tmp_path / f"s{here}", maker.rows, meta))
    return folders


def test_the_single_setting_that_loses_least_is_a_third_line(tmp_path):
    several = studies.read(carried(tmp_path))
    found = profiles.profile(several)
    assert set(found.frames["profiles"]["name"]) == {"tuned on each", "default", "s0 on all"}
    assert at(found, "s0 on all", 0.95)["share"] == 1.0  # it loses 2.5 %
    assert at(found, "default", 0.95)["share"] == 0.0
    assert any("“s0 on all”" in plain(s) for s in found.sentences)
    one, series = transfer.single(several, list(several.labels))
    assert one == "s0"
    assert series["s3"].mean() == pytest.approx(0.39, abs=0.001)
    without = transfer.transfer(several).numbers["sensitivity"]
    assert without["mean"] == pytest.approx(0.01 * 4 / 5, abs=0.001)


def test_page_and_twin_hold_the_profile(tmp_path):
    folders = carried(tmp_path)
    path = write.write(write.make(folders))
    text, twin = path.read_text(encoding="utf8"), json.loads(path.with_suffix(".json").read_text(encoding="utf8"))
    panel = twin["panels"]["profiles"]
    assert panel["drawn"]
    frame = pd.DataFrame(panel["frames"]["profiles"]["rows"], columns=panel["frames"]["profiles"]["columns"])
    assert len(frame) > 100
    assert 'data-frame="profiles.told"' in text
    assert "runs, %" in text
    assert {0.95} <= numbers_of(panel)
    again = write.write(write.make(folders), tmp_path / "again")
    assert again.read_text(encoding="utf8") == text
