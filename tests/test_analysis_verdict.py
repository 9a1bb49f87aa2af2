"""The verdict against known truth: its cases, what it refuses, what it warns of."""

import numpy as np
import pytest
from ledger_maker import SPACE, Maker, arms, meta_of, write_study
from mmts_ray.analysis import tables
from mmts_ray.analysis.panels import verdict
from mmts_ray.analysis.wording import plain
from sweeps import BASE, TEST, VAL, problems, shifted


def verdict_of(folder):
    return verdict.verdict(tables.load(folder))


def test_a_gain_is_established(tmp_path):
    found = verdict_of(arms(tmp_path / "s", {"paper": BASE, "t0001": shifted(0.05)}))
    d = np.array(shifted(0.05)) - np.array(BASE)
    assert found.numbers["case"] == "established"
    assert found.numbers["difference"]["mean"] == pytest.approx(d.mean())
    assert (
        plain(found.title)
        .replace("\u00a0", " ")
        .startswith("The tuned setting t0001 reaches 35.5 % image-to-text R@1 [")
    )
    assert "5.04 points [4.77, 5.31] above the default, on 5 fresh seeds each." in plain(found.title)
    assert len(plain(found.title).split()) <= 30
    assert found.refusal is None


def test_a_gain_within_noise_is_not_established(tmp_path):
    noisy = [b + n for b, n in zip(BASE, (0.02, -0.02, 0.015, -0.01, 0.005))]
    found = verdict_of(arms(tmp_path / "s", {"paper": BASE, "t0001": noisy}))
    assert found.numbers["case"] == "not established"
    assert plain(found.title).startswith("No setting beats the default by more than noise: t0001 differs by +0.2")
    assert found.numbers["resolvable"] == pytest.approx(
        (found.numbers["difference"]["hi"] - found.numbers["difference"]["lo"]) / 2
    )
    assert "Five seeds resolve differences of" in plain(found.sentences[0])


def test_tuning_can_be_worse(tmp_path):
    found = verdict_of(arms(tmp_path / "s", {"paper": BASE, "t0001": shifted(-0.03)}))
    assert found.numbers["case"] == "worse"
    assert "tuning chose a setting 2.96 points [2.69, 3.23] below it" in plain(found.title)


def test_a_baseline_that_is_worse_was_not_tuned(tmp_path):
    folder = arms(tmp_path / "s", {"paper": BASE, "other": shifted(-0.03)}, baselines=["paper", "other"])
    title = plain(verdict_of(folder).title)
    assert title.startswith("The default is better: the best of the others, the baseline “other”, is 2.96 points [")
    assert "tuning" not in title


def test_below_means_better_for_a_loss(tmp_path):
    found = verdict_of(arms(tmp_path / "s", {"paper": BASE, "t0001": shifted(-0.03)}, objective={VAL: "min"}))
    assert found.numbers["case"] == "established"
    assert found.numbers["chance_of_better"]["mean"] > 0.99


def test_without_a_baseline_only_the_level_is_told(tmp_path):
    found = verdict_of(arms(tmp_path / "s", {"t0001": BASE}, baselines=[]))
    assert found.numbers["case"] == "alone"
    assert plain(found.title).endswith("on 5 fresh seeds; the study has no default to compare with.")


@pytest.mark.parametrize(
    ("scores", "sentence"),
    [
        ({"paper": BASE, "t0001": BASE[:2]}, "No verdict yet: the winner has 2 fresh seeds, 3 are needed."),
        ({"paper": BASE[:1], "t0001": BASE}, "No verdict yet: the default has 1 fresh seed, 3 are needed."),
        ({"paper": BASE, "t0001": []}, "No verdict yet: no tuned setting has a fresh seed, 3 are needed."),
    ],
)
def test_too_few_fresh_seeds_are_refused_with_the_command(tmp_path, scores, sentence):
    found = verdict_of(arms(tmp_path / "my study", scores))
    assert plain(found.title) == sentence
    assert found.refusal.command == "mmts-ray confirm 'my study' --top 3 --seeds 5"
    assert "20 runs" in plain(found.refusal.needs)


def test_a_baseline_may_win(tmp_path):
    folder = arms(tmp_path / "s", {"paper": BASE, "other": BASE, "t0001": shifted(-0.05)}, baselines=["paper", "other"])
    study = tables.load(folder)
    assert verdict.gather(study).chosen.winner.label == "other"
    assert verdict.gather(study).chosen.winner.source == "baseline"


def test_the_runner_up_is_compared(tmp_path):
    found = verdict_of(arms(tmp_path / "s", {"paper": BASE, "t0001": shifted(0.05), "t0002": shifted(0.0499)}))
    assert found.numbers["runner_up"] == "t0002"
    assert any("runner-up, t0002," in plain(s) for s in found.sentences)


def test_verdict_on_the_validation_split_is_flagged(tmp_path):
    folder = arms(tmp_path / "s", {"paper": BASE, "t0001": shifted(0.05)}, extra={
        name: {TEST: [None] * 5} for name in ("paper", "t0001")})  # fmt: skip
    found = verdict_of(folder)
    assert found.numbers["metric"] == VAL
    assert "The verdict uses the split that chose the winner." in problems(found)


def test_identical_seeds_and_few_seeds_are_flagged(tmp_path):
    found = verdict_of(arms(tmp_path / "s", {"paper": BASE[:3], "t0001": [0.4] * 3}))
    assert "All fresh seeds of the winner gave the same score." in problems(found)
    assert "Only 3 fresh seeds: the intervals are honest but wide." in problems(found)


def test_a_failed_fresh_run_and_an_unconfirmed_best_are_flagged(tmp_path):
    maker = Maker("s")
    lr = {name: {"train.lr": value} for name, value in (("paper", 1e-3), ("t0001", 2e-3), ("t0002", 3e-3))}
    maker.run("t0000", "baseline", lr["paper"], {VAL: 0.3}, name="paper")
    maker.run("t0001", "search", lr["t0001"], {VAL: 0.4})
    maker.run("t0002", "search", lr["t0002"], {VAL: 0.5})
    for place in range(4):
        for name in ("paper", "t0001"):
            lost = {"status": "infeasible", "error": "nan"} if (name, place) == ("t0001", 3) else {}
            metrics = {} if lost else {VAL: 0.3 + 0.01 * place, TEST: 0.3 + 0.02 * place}
            maker.run(f"c{name}{place}", "confirm", lr[name], metrics, seed=1000 + place, name=name, **lost)
    found = verdict_of(write_study(tmp_path / "s", maker.rows, meta_of("s", space=SPACE[:1])))
    assert "The winner failed on 1 of 4 fresh seeds." in problems(found)
    assert "The best trial of the search, t0002, has no fresh run." in problems(found)


def test_a_seed_of_the_search_is_not_fresh(tmp_path):
    maker = Maker("s")
    for name, kind, trial in (("paper", "baseline", "t0000"), ("t0001", "search", "t0001")):
        params = {"train.lr": 1e-3 if name == "paper" else 2e-3}
        maker.run(trial, kind, params, {VAL: 0.3}, name=name if kind == "baseline" else None, seed=7)
        for seed in (7 if name == "t0001" else 6, 8, 9):
            maker.run(f"c{name}{seed}", "confirm", params, {VAL: 0.3, TEST: 0.3}, name=name, seed=seed)
    found = verdict_of(write_study(tmp_path / "s", maker.rows, meta_of("s", space=SPACE[:1])))
    assert "Fresh runs of t0001 reuse a seed of the search." in problems(found)
