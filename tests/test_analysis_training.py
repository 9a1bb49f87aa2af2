"""Panels about changes, training, trade-offs and data, against known truth."""

import math

import numpy as np
import pytest
from ledger_maker import OBJECTIVE, SPACE, Maker, hash_of, meta_of, write_study
from mmts_ray.analysis import arms, plan, report, tables
from mmts_ray.analysis.panels import ablation, collected, data, inert, ledger, reproduce, traces, tradeoffs, tunability
from mmts_ray.analysis.statistics import difference
from mmts_ray.analysis.steps import path_between, taking
from mmts_ray.analysis.wording import plain

VAL, TEST = f"val_{OBJECTIVE}", f"test_{OBJECTIVE}"
DEFAULT = {"train.lr": 1e-3, "schedule.tau": 0.05, "loss.dead": 0.5}
TUNED = {"train.lr": 1e-2, "schedule.tau": 0.1, "loss.dead": 0.9}
EFFECT = {"train.lr": 0.06, "schedule.tau": 0.001, "loss.dead": 0.0}
SPACE_3 = [entry for entry in SPACE if entry["path"] in DEFAULT]


def score(params, seed):
    """The default scores .30, each tuned value adds its effect; seeds move all settings alike and each a little."""
    gain = sum(effect for path, effect in EFFECT.items() if params[path] == TUNED[path])
    own = np.random.default_rng([seed, int(hash_of({**params, "loss.dead": 0}), 16) % 2**32]).normal()
    return 0.30 + gain + 0.01 * math.sin(seed) + 0.001 * own


class Study:
    """A study with a default, one tuned setting, and whatever reruns a test adds."""

    def __init__(self, seeds=5):
        self.maker, self.number, self.seeds = Maker("s"), 0, range(1000, 1000 + seeds)
        self.maker.run("t0000", "baseline", DEFAULT, {VAL: 0.30}, name="paper")
        rng = np.random.default_rng(0)
        for place in range(1, 12):
            params = {"train.lr": float(10 ** rng.uniform(-4, -1)), "schedule.tau": float(rng.uniform(0.01, 0.4)),
                      "loss.dead": float(rng.random())}  # fmt: skip
            self.maker.run(
                f"t{place:04d}", "search", params, {VAL: 0.25 + 0.02 * math.log10(params["train.lr"] / 1e-4)}
            )
        self.maker.run("t0050", "search", TUNED, {VAL: 0.40})
        self.fresh("confirm", "paper", DEFAULT)
        self.fresh("confirm", "t0050", TUNED)

    def fresh(self, kind, name, params, **more):
        for seed in self.seeds:
            value = score(params, seed)
            metrics = {VAL: value, TEST: value, **{k: v[seed - 1000] for k, v in more.items()}}
            self.maker.run(f"c{self.number:04d}", kind, params, metrics, seed=seed, name=name)
            self.number += 1

    def read(self, folder, **changes):
        meta = meta_of("s", space=SPACE_3, **changes)
        return tables.load(write_study(folder / "s", self.maker.rows, meta))


def test_the_way_from_default_to_winner_is_refused_until_its_steps_have_run_and_the_plan_names_them(tmp_path):
    made = Study()
    study = made.read(tmp_path)
    refused = ablation.ablation(study)
    assert "2 lack them" in refused.refusal.needs
    assert refused.refusal.command.startswith("mmts-ray report s --plan && mmts-ray extend s --plan")
    assert tunability.tunability(study).refusal.command == refused.refusal.command
    planned = [entry.name for entry in plan.plan(study).entries]
    first, second, third = (path for path, _ in path_between(study, DEFAULT, TUNED))
    assert [name for name in planned if "ablation" in name] == [f"ablation 1 {first}", f"ablation 2 {second}"]
    # the first step is the first change alone and the last but one is the winner without the last: planned once
    wanted = {f"alone {second}", f"alone {third}", f"reset {first}", f"reset {second}"}
    assert {name for name in planned if name.startswith(("alone", "reset"))} == wanted


def test_steps_are_paired_differences_and_lead_from_the_default_to_the_winner(tmp_path):
    made = Study()
    steps = path_between(made.read(tmp_path / "before"), DEFAULT, TUNED)
    (first, between), (second, last), (third, _) = steps
    made.fresh("probe", "ablation 1", between)
    made.fresh("probe", "whatever it is called", last)  # found by its configuration
    study = made.read(tmp_path)
    found = ablation.ablation(study)
    frame = found.frames["steps"]
    assert list(frame["role"]) == ["default", "step", "step", "winner"]
    assert list(frame["path"]) == ["", first, second, third]
    assert frame.set_index("path").loc["train.lr", "from_to"] == "0.001 → 0.01"
    values = [arms.values(study, config, f"metric.{TEST}") for config in (DEFAULT, between, last, TUNED)]
    assert list(frame["mean"]) == pytest.approx([v.mean() for v in values])
    wanted = difference(values[1], values[0], comparisons=3)
    assert frame["step"].tolist()[1] == pytest.approx(wanted.mean)
    assert frame["step_hi"].tolist()[1] == pytest.approx(wanted.hi)
    assert frame["total"].tolist()[3] == pytest.approx(values[3].mean() - values[0].mean())
    assert plain(found.title).startswith("The step to lr gains 6.")


def alone(made):
    for path in DEFAULT:
        made.fresh("probe", f"alone {path}", taking(DEFAULT, TUNED, path))
        made.fresh("probe", f"reset {path}", taking(TUNED, DEFAULT, path))


def test_what_is_worth_tuning_is_told_by_what_the_winner_loses_without_it(tmp_path):
    made = Study()
    alone(made)
    study = made.read(tmp_path)
    found = tunability.tunability(study)
    rows = found.frames["changes"].set_index("block")
    assert rows.loc["train.lr", "verdict"] == tunability.YES
    assert rows.loc["train.lr", "loss"] == pytest.approx(0.06, abs=0.003)
    assert rows.loc["train.lr", "gain"] == pytest.approx(0.06, abs=0.003)
    # the seed moves scores by about .007, so a loss of .001 costs less than anyone could see
    assert rows.loc["schedule.tau", "verdict"] == tunability.NO
    assert rows.loc["schedule.tau", "loss_hi"] < found.numbers["delta"]
    assert found.numbers["delta"] == pytest.approx(arms.indifference(study, f"metric.{TEST}"))
    assert plain(found.title).startswith("Worth tuning: lr")
    gain, worth = found.settings
    assert worth.cells["train.lr"] == tunability.YES
    assert gain.values["train.lr"] == rows.loc["train.lr", "loss"]
    settings = report.find(study)["tunability"]
    assert settings.refusal is None


def test_the_settings_table_begins_with_what_is_worth_tuning(tmp_path):
    made = Study()
    alone(made)
    backwards = SPACE_3[::-1]
    study = tables.load(write_study(tmp_path / "s", made.maker.rows, meta_of("s", space=backwards)))
    rows = collected.settings(study, report.find(study)).frames["parameters"]
    worth = tunability.tunability(study).settings[1].cells
    places = [collected.NEEDS.index(worth[path]) for path in rows["path"]]
    assert places == sorted(places)
    assert rows["path"].iloc[0] == "train.lr"
    assert backwards[0]["path"] != "train.lr"


def test_reproduce_names_the_fresh_seeds(tmp_path):
    facts = reproduce.reproduce(Study().read(tmp_path)).sentences
    assert "Fresh seeds: 1000 to 1004." in facts
    two = reproduce.reproduce(Study(seeds=2).read(tmp_path / "two")).sentences
    assert "Fresh seeds: 1000 and 1001." in two


def test_a_parameter_that_the_code_does_not_read_is_inert_and_one_that_moves_a_digit_is_not(tmp_path):
    made = Study()
    for number, (path, low, high) in enumerate((("loss.dead", 0.0, 1.0), ("schedule.tau", 0.005, 0.5))):
        for end, value in (("low", low), ("high", high)):
            params = {**TUNED, path: value, "train.epochs": 1}
            norm = 2.5 if path == "loss.dead" else 2.5 + 1e-12 * value
            metrics = {VAL: 0.2, "train_loss": 1.25, "train_gradient_norm": norm}
            made.maker.run(f"p{number}{end}", "probe", params, metrics, seed=1000, name=f"inert {path} {end}")
    found = inert.inert(made.read(tmp_path))
    rows = found.frames["parameters"].set_index("path")
    assert rows.loc["loss.dead", "answer"] == inert.ANSWERS[False]
    assert rows.loc["schedule.tau", "answer"] == inert.ANSWERS[True]
    assert rows.loc["train.lr", "answer"] == inert.ANSWERS[None]
    assert plain(found.title) == "dead is inert at the winner, t0050"
    assert [c.severity for c in found.checks if c.problem is not None] == ["record"]


def test_an_inert_parameter_is_not_worth_tuning(tmp_path):
    made = Study()
    alone(made)
    assert score(TUNED, 1000) == score({**TUNED, "loss.dead": 0.5}, 1000)
    for end, value in (("low", 0.0), ("high", 1.0)):
        params = {**TUNED, "loss.dead": value, "train.epochs": 1}
        made.maker.run(
            f"p{end}", "probe", params, {VAL: 0.2, "train_loss": 1.0}, seed=1000, name=f"inert loss.dead {end}"
        )
    rows = tunability.tunability(made.read(tmp_path)).frames["changes"].set_index("block")
    assert rows.loc["loss.dead", "verdict"] == tunability.INERT


def test_without_a_pair_of_runs_the_inert_check_asks_for_the_plan(tmp_path):
    found = inert.inert(Study().read(tmp_path))
    assert "--plan" in found.refusal.command


# training


def traced(tmp_path, *, epochs=4, **quantities):
    """A default and a winner with two seeds, whose quantities are (start, end) lines over the epochs."""
    maker = Maker("s")
    for name, params, kind in (("paper", DEFAULT, "baseline"), ("t0001", TUNED, "search")):
        maker.run(
            "t0000" if kind == "baseline" else name, kind, params, {VAL: 0.3}, name=name if kind == "baseline" else None
        )
    number = 0
    for name, params, factor in (("paper", DEFAULT, 1.0), ("t0001", TUNED, 2.0)):
        for seed in (1000, 1001):
            maker.run(
                f"c{number}",
                "confirm",
                params,
                {VAL: 0.3 + 0.1 * factor, TEST: 0.3},
                seed=seed,
                name=name,
                epochs=epochs,
            )
            rows = [r for r in maker.rows if r["trial"] == f"c{number}" and r["status"] == "running" and "epoch" in r]
            for row in rows:
                share = (row["epoch"] - 1) / (epochs - 1)
                for key, (start, end) in quantities.items():
                    row[f"metric.{key}"] = factor * (start + (end - start) * share) + 0.01 * (seed - 1000)
            number += 1
    return tables.load(write_study(tmp_path / "s", maker.rows, meta_of("s", space=SPACE_3)))


def test_traces_are_means_over_the_runs_of_winner_and_default(tmp_path):
    study = traced(tmp_path, train_loss=(3.0, 1.0), train_temperature_mean=(0.1, 0.05),
                   train_temperature_min=(0.08, 0.02), train_temperature_max=(0.12, 0.2))  # fmt: skip
    found = traces.traces(study)
    rows = found.frames["quantities"].set_index("quantity")
    assert rows.loc["train_loss", "start"] == pytest.approx(6.005)
    assert rows.loc["train_loss", "end"] == pytest.approx(2.005)
    assert rows.loc["train_loss", "default"] == pytest.approx(1.005)
    assert plain(found.title) == "The winner's temperature runs between 0.045 and 0.405"
    assert found.alts["scheduled"].desc.startswith("x: epoch, 1 to 4; y: temperature")


def test_a_filter_that_removes_most_negatives_and_a_margin_that_is_satisfied_are_said(tmp_path):
    study = traced(tmp_path, train_filtered_share=(0.3, 0.4), train_margin_mean=(0.2, 0.2),
                   train_gradient_norm=(1.0, 1.2))  # fmt: skip
    problems = [plain(c.problem) for c in traces.traces(study).checks if c.problem is not None]
    assert problems == ["The filter removes 80 % of the winner's negatives."]
    hinge = traced(tmp_path / "t", train_active_hinge_share=(0.4, -0.0025))
    problems = [plain(c.problem) for c in traces.traces(hinge).checks if c.problem is not None]
    assert problems == ["0 % of the winner's hinge terms are active at the end."]


def test_one_evaluation_is_no_trace(tmp_path):
    maker = Maker("s")
    maker.run("t0001", "search", TUNED, {VAL: 0.3, "train_loss": 1.0})
    study = tables.load(write_study(tmp_path / "s", maker.rows, meta_of("s", space=SPACE_3)))
    assert "evaluated twice" in traces.traces(study).refusal.needs


# trade-offs


def traded(tmp_path, scores):
    """{name: (retrieval, distance, r_mix)}, five seeds, all moved alike by the seed."""
    maker, number = Maker("s"), 0
    params = {
        name: {"train.lr": 1e-3 * (1 + place), "loss.r_mix": mix}
        for place, (name, (_, _, mix)) in enumerate(scores.items())
    }
    for name, (retrieval, _, _) in scores.items():
        kind = "baseline" if name == "paper" else "search"
        maker.run(f"t_{name}", kind, params[name], {VAL: retrieval}, name=name if kind == "baseline" else None)
    for name, (retrieval, distance, _) in scores.items():
        for place in range(5):
            value = retrieval + 0.005 * math.sin(place) + 0.001 * (-1) ** place
            metrics = {
                VAL: value,
                TEST: value,
                "test_modality_distance": distance + 0.001 * place + 0.0005 * (-1) ** place,
            }
            maker.run(f"c{number:03d}", "confirm", params[name], metrics, seed=1000 + place,
                      name=name if name == "paper" else f"t_{name}")  # fmt: skip
            number += 1
    return tables.load(write_study(tmp_path / "s", maker.rows, meta_of("s", space=SPACE[:1])))


def test_a_quantity_that_does_not_move_stays(tmp_path):
    maker = Maker("s")
    for number in range(3):
        maker.run(f"t{number}", "search", {"train.lr": 1e-3 * (1 + number)}, {VAL: 0.3, "val_alignment": 0.5}, epochs=3)
    study = tables.load(write_study(tmp_path / "s", maker.rows, meta_of("s", space=SPACE[:1], baselines=[])))
    found = traces.traces(study)
    assert plain(found.title) == "The winner's alignment (lower: closer pairs) stays at 0.5"
    assert "beside" not in str(traces.draw(study, found))


def test_who_is_worse_in_everything_is_dominated_and_who_trades_is_not(tmp_path):
    study = traded(tmp_path, {"paper": (0.30, 0.5, 0.0), "a": (0.40, 0.4, 0.1), "b": (0.35, 0.2, 0.3)})
    found = tradeoffs.tradeoffs(study)
    rows = found.frames["settings"].set_index("label")
    assert rows["dominated_by"].notna().to_dict() == {"paper": True, "t_a": False, "t_b": False}
    assert plain(found.title) == "1 of 3 settings is dominated, the winner is not"
    assert found.numbers["along"] == "loss.r_mix"
    assert plain(found.sentences[1]).startswith("From r_mix 0 to 0.3: image-to-text R@1 +5.0 points")
    assert "modality distance −0.3" in plain(found.sentences[1])


def test_a_difference_within_noise_dominates_nobody(tmp_path):
    study = traded(tmp_path, {"paper": (0.30, 0.5, 0.0), "a": (0.30, 0.5, 0.0)})
    rows = tradeoffs.tradeoffs(study).frames["settings"]
    assert rows["dominated_by"].isna().all()


def test_a_winner_by_validation_may_be_dominated_on_the_test_split(tmp_path):
    study = traded(tmp_path, {"paper": (0.30, 0.5, 0.0), "a": (0.40, 0.4, 0.1)})
    moved = study.trials.copy()
    lost = (moved["name"] == "t_a") & (moved["kind"] == "confirm")
    moved.loc[lost, f"metric.{TEST}"] -= 0.2
    moved.loc[lost, "metric.test_modality_distance"] += 0.3
    object.__setattr__(study, "trials", moved)
    found = tradeoffs.tradeoffs(study)
    assert plain(found.title) == "The winner is dominated by paper"
    assert [c.severity for c in found.checks if c.problem is not None] == ["limits"]


# data and ledger


def test_data_health_says_how_many_false_negatives_an_anchor_meets(tmp_path):
    meta = meta_of("s", space=SPACE_3)
    third = {"groups": 5, "pairs": 100, "smallest": 2, "largest": 9}
    meta["data"]["health"] = {"repeated_images": 3, "repeated_captions": 7, "false_negatives": 0.02, "same_id": 0.0,
                              "groups": {"source": "captions", "k": 15, "head": third, "mid": third, "tail": third,
                                         "sizes": [2, 9]}}  # fmt: skip
    study = tables.load(write_study(tmp_path / "s", Study().maker.rows, meta))
    found = data.data(study)
    assert found.numbers["false_negatives_per_anchor"] == pytest.approx(255 * 0.02)
    assert plain(found.sentences[0]).startswith("An anchor meets 5.1 false negatives in a batch of 256")
    assert list(found.frames["groups"]["part"]) == ["head", "middle", "tail"]
    problems = [c for c in found.checks if c.problem is not None]
    assert [(c.severity, plain(c.problem)) for c in problems] == [
        ("limits", "2.0 % of the pairs in a batch are false negatives.")
    ]


def test_the_ledger_names_what_all_runs_share(tmp_path):
    rows = ledger.ledger(Study().read(tmp_path)).frames["same"].set_index("what")["value"]
    assert rows["effective global batch"] == "256"
    assert rows["fresh seeds of a configuration"] == "5"
    assert rows["data"] == "abcd…89"


def test_runs_of_every_kind_are_counted(tmp_path):
    made = Study()
    alone(made)
    frame = ledger.ledger(made.read(tmp_path)).frames["states"]
    assert frame["n"].sum() == len(made.read(tmp_path).trials)
    assert set(frame["kind"]) == {"baseline", "search", "confirm", "probe"}


def test_a_temperature_that_is_the_same_for_all_samples_is_one_line(tmp_path):
    line = {"train_temperature_mean": (0.1, 0.05), "train_temperature_min": (0.1, 0.05),
            "train_temperature_max": (0.1, 0.05)}  # fmt: skip
    found = traces.traces(traced(tmp_path, train_loss=(3.0, 1.0), **line))
    assert set(found.frames["quantities"]["quantity"]) == {"train_loss", "train_temperature_mean"}
    assert plain(found.title) == "The winner's temperature runs between 0.105 and 0.205"
