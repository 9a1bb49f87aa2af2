"""Is it real: equal budgets, the split of the variance, what an early result is worth."""

import numpy as np
import pandas as pd
import pytest
from ledger_maker import SPACE, Maker, meta_of, native, synthetic, write_study
from mmts_ray.analysis import report, tables
from mmts_ray.analysis import statistics as st
from mmts_ray.analysis.model import model_of
from mmts_ray.analysis.panels import budget, fidelity, variance
from mmts_ray.analysis.wording import plain
from scipy import stats
from simulator import Truth
from sweeps import VAL, halving, problems, write_more


def test_the_budget_curve_is_that_of_the_random_part_and_counts_failures(tmp_path):
    study = tables.load(synthetic(tmp_path / "s", trials=60, confirm=3))
    found = budget.budget(study)
    scores, lost = study.searched["score"].to_numpy(), 60 - len(study.searched)
    curve = st.tuning_curve(scores, lost)
    frame = found.frames["curves"]
    assert (found.numbers["lost"], found.numbers["trials"]) == (lost, {"random": 60})
    shown = np.where(np.isfinite(curve.median), curve.median, np.nan)
    assert frame["median"].to_numpy() == pytest.approx(shown, nan_ok=True)
    assert frame["hi"].notna().sum() <= 6


def test_trials_that_a_sampler_chose_never_enter_the_budget_curve(tmp_path):
    folder = synthetic(tmp_path / "s", trials=60, confirm=3, strategy="tpe")
    found = budget.budget(tables.load(folder))
    assert "Needs 20 trials that were drawn at random and ran to their end; 0 were." in plain(found.refusal.needs)
    assert found.refusal.command == "mmts-ray search s/study.yaml --out s-random strategy=random trials=20"
    maker, rng = Maker("s"), np.random.default_rng(3)
    for number in range(25):
        u = rng.random(6) * 0.9
        maker.run(f"r{number}", "control", native(u), {VAL: float(Truth().score(u)[0])}, seed=0)
    write_more(folder, maker.rows)
    found = budget.budget(tables.load(folder))
    assert found.numbers["trials"] == {"random": 25}
    assert any("chosen by earlier scores are left out" in plain(s) for s in found.sentences)


def two_losses(folder, *, ahead):
    """A random search over two losses; the second is better by `ahead` and costs four times as much."""
    space = [SPACE[0], {"path": "loss.name", "kind": "choice", "values": ["first", "second"], "default": "first"}]
    maker, rng = Maker(folder.name), np.random.default_rng(1)
    for number in range(120):
        second = number % 2 == 1
        params = {"train.lr": float(10 ** rng.uniform(-4, -1)), "loss.name": "second" if second else "first"}
        score = float(0.2 + 0.1 * rng.random() + ahead * second)
        maker.run(f"t{number:04d}", "search", params, {VAL: score}, epochs=4 if second else 1, seed=number)
    return tables.load(write_study(folder, maker.rows, meta_of(folder.name, space=space, baselines=[])))


def test_each_searched_loss_has_its_curve_over_trials_and_over_device_time(tmp_path):
    study = two_losses(tmp_path / "s", ahead=0.08)
    found = budget.budget(study)
    frame = found.frames["curves"].set_index(["name", "k"])
    assert found.numbers["leader"] == "second"
    at = found.numbers["parts_at"]
    assert frame.loc[("second", at), "lo"] > frame.loc[("first", at), "median"]
    assert plain(found.title) == f"second is ahead from {at} random trial{'s' if at > 1 else ''} on"
    assert frame.loc[("second", 10), "seconds"] == pytest.approx(10 * 9)
    assert frame.loc[("first", 10), "seconds"] == pytest.approx(10 * 3)
    drawn = str(budget.draw(study, found))
    assert drawn.count('<svg class="fig"') == 2
    assert f"ahead from {at}" in drawn
    assert "device-hours" in drawn
    assert "after" in found.alts["hours"].desc
    level = budget.budget(two_losses(tmp_path / "t", ahead=0.0))
    assert level.numbers["leader"] is None
    assert plain(level.title).startswith("No loss is ahead of the others at an equal budget: ")


def test_the_seeds_of_a_configuration_are_one_trial_of_a_budget_and_one_point_of_a_rung(tmp_path):
    maker, rng = Maker("s"), np.random.default_rng(3)
    for number in range(24):
        params = native(rng.random(6) * 0.8)
        for seed in range(3):
            lost = number == 5 and seed == 2
            end = {"status": "infeasible", "error": "nan"} if lost else {}
            score = float(0.3 + 0.01 * number + 0.003 * seed)
            early = {1: {VAL: score - 0.1}}
            name = f"t{number:04d}" + (f"-{seed}" if seed else "")
            maker.run(name, "search", params, {} if lost else {VAL: score}, seed=seed, epochs=9, early=early, **end)
    study = tables.load(write_study(tmp_path / "s", maker.rows, meta_of("s", baselines=[])))
    found = budget.budget(study)
    assert (found.numbers["trials"], found.numbers["lost"]) == ({"random": 24}, 1)
    assert found.frames["curves"]["median"].max() == pytest.approx(0.3 + 0.01 * 23 + 0.003)
    assert fidelity.fidelity(study).numbers["controls"] == 24
    assert len(model_of(study).frame) == 24


# variance


def test_the_variance_split_is_that_of_the_fresh_block(random_study):
    found = variance.variance(random_study)
    rows, seeds, shared = variance.block(random_study)
    assert (len(rows), len(seeds), shared) == (10, 5, True)
    y = np.array([c.values(f"metric.{VAL}").to_numpy() for c in rows])
    expected = st.split(y, True)
    assert found.numbers["share"]["mean"] == pytest.approx(expected.share.mean)
    assert found.numbers["seed_sd"]["hi"] == pytest.approx(expected.seed_sd.hi)
    assert found.frames["first"]["first"].sum() == pytest.approx(1)
    assert found.frames["shares"]["share"].sum() == pytest.approx(1)


def test_few_configurations_give_no_share_and_fewer_give_nothing(tmp_path):
    some = variance.variance(tables.load(synthetic(tmp_path / "s", trials=60, confirm=5, top=5)))
    assert some.refusal is None
    told = some.numbers["share"]["lo"] > 0.9
    assert ("shares" in some.frames) == told
    few = variance.variance(tables.load(synthetic(tmp_path / "t", trials=60, confirm=5, top=3)))
    assert "Needs 5 configurations with the same 3 fresh seeds; 4 have them." in plain(few.refusal.needs)
    assert few.refusal.command == "mmts-ray confirm t --top 9 --seeds 5"


# fidelity


def test_the_rank_correlation_of_a_rung_comes_from_controls_alone(tmp_path):
    folder, rungs = halving(tmp_path / "s", 24)
    found = fidelity.fidelity(tables.load(folder))
    row = found.frames["rungs"].iloc[0]
    assert list(found.frames["rungs"]["epoch"]) == [1]
    assert row["n"] == 24
    assert row["correlation"] == pytest.approx(stats.spearmanr(rungs[:, 0], rungs[:, 2]).statistic)
    kept = np.argsort(-rungs[:, 0])[:8]
    assert row["overlap"] == len(set(kept) & set(np.argsort(-rungs[:, 2])[:8]))
    assert row["regret"] == pytest.approx(rungs[:, 2].max() - rungs[np.argmax(rungs[:, 0]), 2])
    assert any("cut at the rung" in plain(s) for s in found.sentences)


def test_survivors_alone_are_refused_with_what_they_bound(tmp_path):
    folder, _ = halving(tmp_path / "s", 4)
    found = fidelity.fidelity(tables.load(folder))
    needs = plain(found.refusal.needs)
    assert "Needs 10 random trials that were never stopped (20 for a useful interval); 4 were." in needs
    assert "Among the 30 survivors the rank correlation of epoch 1 with the end is" in needs
    assert found.refusal.command.startswith("mmts-ray report s --plan")


def test_few_controls_are_drawn_with_a_warning(tmp_path):
    folder, _ = halving(tmp_path / "s", 14)
    found = fidelity.fidelity(tables.load(folder))
    assert "Only 14 random trials were never stopped." in problems(found)
    assert plain(found.title).endswith("few trials")


def test_runs_that_report_once_have_no_fidelity(tmp_path):
    found = fidelity.fidelity(tables.load(synthetic(tmp_path / "s", trials=40, confirm=0)))
    assert "Needs runs of two evaluations or more" in plain(found.refusal.needs)


# together


def test_every_model_panel_survives_an_empty_and_a_tiny_study(tmp_path):
    empty = write_study(tmp_path / "s", [], meta_of("s"))
    tiny = synthetic(tmp_path / "t", trials=3, confirm=1)
    found = [report.find(tables.load(folder)) for folder in (empty, tiny)]
    names = ("budget", "variance", "fidelity", "importance", "interactions", "plateau")
    for findings in found:
        assert all(findings[name].refusal is not None for name in names)
        assert all(findings[name].refusal.command.startswith("mmts-ray ") for name in names)
    assert isinstance(found[0]["budget"].frames, dict)
    assert pd.DataFrame(found[1]["bounds"].frames.get("ranges")).shape[0] in (0, 6)
