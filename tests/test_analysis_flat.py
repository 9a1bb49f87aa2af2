"""Any setting will do: said where it is shown, and nowhere else; what it rests on."""

import json

import numpy as np
import pytest
from ledger_maker import SPACE, Maker, meta_of, write_study
from mmts_ray.analysis import report, tables
from mmts_ray.analysis import statistics as st
from mmts_ray.analysis.choice import candidates
from mmts_ray.analysis.panels import collected, flat, verdict
from mmts_ray.analysis.wording import plain
from sweeps import TEST, VAL
from test_analysis_report import numbers_of

PATHS = ("train.lr", "loss.mix", "loss.dead")
SD = 0.012


def level(
    folder, effect=lambda u: 0.0, *, n=160, seeds=8, gain=0.0, common=0.0, failed=0, seed=2, kind="search", **meta
):
    """A random search over three ranges, every setting on search seed 0; the default lies outside, `gain` below.

    A seed lifts all settings by `common` times its luck; the default and the best three run on `seeds` fresh ones.
    """
    rng, maker = np.random.default_rng(seed), Maker(folder.name)
    space = [{**SPACE[3], "path": path, "low": 0.0, "high": 1.0} for path in PATHS]
    luck = {0: rng.standard_normal()} | {1000 + s: rng.standard_normal() for s in range(seeds)}

    def measured(u, on, base=0.36):
        score = base + effect(u) + common * luck[on] + SD * rng.standard_normal()
        return float(np.round(347 * score) / 347)

    default = {**dict.fromkeys(PATHS, 0.5), "schedule.name": "constant"}
    middle = np.full(3, 0.5)
    maker.run("b0000", "baseline", default, {VAL: measured(middle, 0, 0.36 - gain)}, name="paper")
    found = []
    for number in range(n):
        u = rng.random(3)
        params = {**dict(zip(PATHS, map(float, u))), "schedule.name": "cosine"}
        lost = {"status": "infeasible", "error": "nan"} if number < failed else {}
        value = measured(u, 0)
        maker.run(f"t{number:04d}", kind, params, {} if lost else {VAL: value}, **lost)
        if not lost:
            found.append((value, f"t{number:04d}", u, params))
    best = sorted(found, key=lambda f: -f[0])[:3]
    arms = [("paper", middle, default, 0.36 - gain), *((name, u, params, 0.36) for _, name, u, params in best)]
    for name, u, params, base in arms:
        for s in range(1000, 1000 + seeds):
            values = {VAL: measured(u, s, base), TEST: measured(u, s, base)}
            maker.run(f"c{name}{s}", "confirm", params, values, seed=s, name=name)
    return write_study(folder, maker.rows, meta_of(folder.name, space=space, trials=n, **meta))


@pytest.fixture(scope="module")
def nothing(tmp_path_factory):
    """160 settings that differ by the seed alone."""
    return level(tmp_path_factory.mktemp("level") / "s")


def test_a_study_in_which_nothing_matters_says_that_any_setting_will_do(nothing):
    study = tables.load(nothing)
    found, finding = flat.flat(study), verdict.verdict(study)
    numbers, rows = found.numbers, found.frames["measures"].set_index("what")
    assert numbers["any"]
    assert finding.numbers["case"] == "any setting"
    most = plain(f"{100 * numbers['most']:.2g}")
    said = f"19 of 20 settings drawn at random lose at most {most} points against the best of 160"
    assert plain(finding.title) == f"Any setting will do: {said}."
    assert len(plain(finding.title).split()) <= 30
    support = " ".join(plain(s).replace("\u00a0", " ") for s in finding.sentences)
    assert "None of the 3 searched parameters shows evidence of an effect." in support
    assert "the scores of 160 settings drawn at random spread by 1." in support
    assert "the seed alone by 1." in support
    assert "1.25 seed standard deviations or more, is not worth a choice" in support
    assert "differs from the default by" in support
    assert "beat the default in" not in support  # no winner is praised
    assert "runner-up" not in support
    assert rows.loc["noise", "lo"] <= SD <= rows.loc["noise", "hi"]
    assert rows.loc["spread", "lo"] <= SD <= rows.loc["spread", "hi"]
    assert 0 <= rows.loc["effect", "lo"] < 0.3 * SD
    assert numbers["most"] == rows.loc["most", "hi"] <= numbers["delta"]


def test_the_settings_table_and_the_terminal_name_no_winner_as_if_it_mattered(nothing):
    study = tables.load(nothing)
    findings = report.find(study)
    settings = collected.settings(study, findings)
    lead = plain(settings.sentences[0])
    assert lead.startswith("Any of the searched values will do: 19 of 20 settings drawn at random lose at most ")
    assert "one of many" in lead
    drawn = plain(collected.draw_settings(study, settings))
    assert drawn.count("any ran at") == 3
    summary = report.summary(nothing)
    assert summary["any_setting"]
    assert summary["case"] == "any setting"
    assert report.text(summary).splitlines()[1].startswith("best, by chance: t")


def test_the_page_and_its_twin_hold_what_the_claim_rests_on(nothing):
    path = report.write(nothing)
    twin = json.loads(path.with_name("report.json").read_text())
    assert twin["panels"]["flat"]["numbers"]["any"]
    assert twin["panels"]["verdict"]["numbers"]["any_setting"]
    assert twin["panels"]["flat"]["numbers"]["most"] in numbers_of(twin["panels"]["flat"]["frames"])
    text = path.read_text(encoding="utf8")
    assert "reaches" not in text.split('id="warnings"')[0]


def test_a_model_that_has_nothing_to_predict_is_no_limit_to_the_claim(nothing):
    raised, _ = collected.warnings(report.find(tables.load(nothing)))
    (found,) = [w for w in raised if "left-out configurations poorly" in plain(w["problem"])]
    assert found["severity"] == "record"


@pytest.mark.parametrize(
    ("options", "title"),
    [
        ({"effect": lambda u: 0.06 * u[0]}, "The setting matters: lr shows evidence of an effect"),
        ({"failed": 2}, "Not every setting will do: 2 of 160 drawn at random failed"),
        ({"n": 60, "seeds": 5}, "Not shown that any setting will do: 19 of 20 settings may lose up to "),
        (
            {"effect": lambda u: 0.03 * np.sign(np.sin(60 * u.sum()))},  # too fast for any smooth model
            "Scores of settings spread by more than the seed explains, though no parameter shows evidence",
        ),
    ],
    ids=["a parameter matters", "some fail", "too few to tell", "what no model sees"],
)
def test_it_is_not_said_where_something_speaks_against_it(tmp_path, options, title):
    study = tables.load(level(tmp_path / "s", **options))
    found = flat.flat(study)
    assert not found.numbers["any"]
    assert plain(found.title).startswith(title)
    assert verdict.verdict(study).numbers["case"] != "any setting"
    assert not plain(verdict.verdict(study).title).startswith("Any setting")


@pytest.mark.parametrize(
    ("options", "needs", "command"),
    [
        ({"n": 40}, "Needs 50 settings drawn at random that ran to their end; 40 did.", "extend s --trials 40"),
        ({"strategy": "tpe"}, "Needs 50 settings drawn at random that ran to their end; 0 did. A random study of the "
         "same space, beside this one, has them:", "search s/study.yaml --out s-random strategy=random trials=50"),
        ({"strategy": "random_asha"}, "Needs 50 settings drawn at random that ran to their end; 0 did.",
         "search s/study.yaml --out s-random strategy=random trials=50"),
        ({"seeds": 2}, "Needs 3 fresh seeds of the winner: the noise of the seed is measured there; it has 2:",
         "confirm s --top 3 --seeds 5"),
    ],
)  # fmt: skip
def test_it_is_refused_with_what_is_missing(tmp_path, options, needs, command):
    study = tables.load(level(tmp_path / "s", **options))
    found = flat.flat(study)
    assert needs in plain(found.refusal.needs)
    assert found.refusal.command.startswith(f"mmts-ray {command}")
    assert not verdict.verdict(study).numbers["any_setting"]


def test_controls_of_an_adaptive_study_carry_the_claim(tmp_path):
    found = flat.flat(tables.load(level(tmp_path / "s", kind="control", strategy="tpe")))
    assert found.refusal is None
    assert found.numbers["settings"] == 160


def test_a_gain_over_a_default_outside_the_space_stays_the_verdict(tmp_path):
    study = tables.load(level(tmp_path / "s", gain=0.05))
    finding = verdict.verdict(study)
    assert finding.numbers["case"] == "established"
    assert "above the default" in plain(finding.title)
    assert plain(finding.sentences[0]).startswith("Of the searched settings any will do: 19 of 20 settings ")
    lead = plain(collected.settings(study, report.find(study)).sentences[0])
    assert lead.startswith("The searched settings beat the default, and any of them will do: ")


def test_the_luck_that_all_settings_share_is_no_noise_between_them(tmp_path):
    study = tables.load(level(tmp_path / "s", common=2 * SD))
    rows = flat.flat(study).frames["measures"].set_index("what")
    y = np.array([c.values(f"metric.{VAL}").to_numpy() for c in candidates(study)])
    rest = y - y.mean(1, keepdims=True) - y.mean(0) + y.mean()
    assert rows.loc["noise", "mean"] == pytest.approx(np.sqrt((rest**2).sum() / 21))
    assert rows.loc["noise", "hi"] < 2 * SD < flat.flat(study).numbers["delta"]
    assert flat.flat(study).numbers["shared_seed"]
    assert any("common luck" in plain(s) for s in flat.flat(study).sentences)


def test_the_bound_on_the_loss_covers_a_known_truth_and_is_worth_having():
    """Three ramps: the settings' own losses are known exactly."""
    covered, narrow = 0, []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        u = rng.random((100, 3))
        truth = 0.5 * u.sum(1)
        found = st.flatness(u, truth + rng.standard_normal(100), (False,) * 3, np.ones((100, 3), bool), (1.0, 30), rng)
        covered += truth.max() - np.quantile(truth, 0.05) <= found.most.hi
        narrow.append(found.most.hi)
    assert covered >= 55
    assert np.median(narrow) < 2.5  # the truth is 1.0 to 1.1


def test_choices_and_parameters_that_are_not_always_used_are_modelled():
    rng = np.random.default_rng(0)
    level_of = rng.integers(0, 3, 120)
    u = np.column_stack([level_of, np.where(level_of == 1, rng.random(120), 0.5)])
    active = np.column_stack([np.ones(120, bool), level_of == 1])
    y = 3.0 * (level_of == 2) + rng.standard_normal(120)
    found = st.flatness(u, y, (True, False), active, (1.0, 30), rng)
    assert found.most.lo <= 3.0 <= found.most.hi
    assert found.effect.lo <= np.std(3.0 * (level_of == 2)) <= found.effect.hi
    assert found.p < 0.05
