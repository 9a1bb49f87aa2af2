"""Panels that model the configurations: what they say of known truths, what they leave out, when they refuse."""

import math

import numpy as np
import pandas as pd
import pytest
from ledger_maker import OBJECTIVE, SPACE, Maker, meta_of, native, synthetic, write_study
from mmts_ray.analysis import report, tables
from mmts_ray.analysis import statistics as st
from mmts_ray.analysis.model import model_of
from mmts_ray.analysis.panels import (
    bounds,
    budget,
    fidelity,
    importance,
    interactions,
    plateau,
    rings,
    variance,
    verdict,
)
from mmts_ray.analysis.wording import plain
from scipy import stats
from simulator import Truth

VAL, TEST = f"val_{OBJECTIVE}", f"test_{OBJECTIVE}"


def problems(finding):
    return [plain(check.problem) for check in finding.checks if check.problem is not None]


def ramp(folder, *, n=40, cliff=None, best_at=1.0, fresh=5, probes=(), noise=0.003, **changes):
    """One logarithmic parameter; the score falls with the distance from `best_at` on the scale; runs beyond fail.

    The trial nearest to the best, and a probe at each position of `probes`, run on `fresh` shared seeds.
    """
    maker, rng, grid = Maker(folder.name), np.random.default_rng(0), np.linspace(0, 1, n)

    def metrics(u):
        score = 0.4 - 0.2 * abs(u - best_at) + noise * rng.standard_normal()
        return {VAL: score, TEST: score}

    for number, u in enumerate(grid):
        lost = cliff is not None and u > cliff
        status = {"status": "infeasible", "error": "nan"} if lost else {}
        params = {"train.lr": float(1e-4 * 1000**u)}
        maker.run(f"t{number:04d}", "search", params, {} if lost else metrics(u), seed=number, **status)
    best = int(np.argmin(np.abs(grid - best_at)))
    for place, u in enumerate([grid[best], *probes]):
        for seed in range(fresh):
            kind, name = ("confirm", f"t{best:04d}") if place == 0 else ("probe", f"ring train.lr {place}")
            params = {"train.lr": float(1e-4 * 1000**u)}
            maker.run(f"c{place}{seed}", kind, params, metrics(u), seed=1000 + seed, name=name)
    return write_study(folder, maker.rows, meta_of(folder.name, **{"space": SPACE[:1], "baselines": [], **changes}))


# bounds


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


# importance


@pytest.fixture(scope="module")
def random_study(tmp_path_factory):
    return tables.load(synthetic(tmp_path_factory.mktemp("sweep") / "s", trials=120, confirm=5, top=9, seed=4))


def test_strong_parameters_have_evidence_and_the_dead_one_has_none(random_study):
    found = importance.importance(random_study)
    rows = found.frames["parameters"].set_index("path")
    assert rows.loc[["train.lr", "schedule.tau"], "grade"].tolist() == ["evidence"] * 2
    dead = rows.loc["loss.dead"]
    assert dead["grade"] == "no evidence"
    assert math.isnan(dead["size"])
    assert dead["at_most"] > 0
    lr = rows.loc["train.lr"]
    assert lr["lo"] <= 0.033 <= lr["hi"]  # total effect over the feasible region, by a million draws of the truth
    assert not found.numbers["adaptive"]
    assert "at most" in plain(found.settings[0].cells["loss.dead"])


def test_importance_says_when_the_sampler_chose_and_prefers_the_random_part(tmp_path):
    folder = synthetic(tmp_path / "s", trials=120, confirm=3, seed=4, strategy="tpe")
    found = importance.importance(tables.load(folder))
    assert found.used.endswith("adaptive: approximate")
    assert any("approximate" in plain(s) for s in found.sentences)
    text = (folder / "ledger" / "writer-1.jsonl").read_text()
    for number in range(1, 71):
        text = text.replace(
            f'"trial": "t{number:04d}", "kind": "search"', f'"trial": "t{number:04d}", "kind": "control"'
        )
    (folder / "ledger" / "writer-1.jsonl").write_text(text)
    study = tables.load(folder)
    found = importance.importance(study)
    assert not found.numbers["adaptive"]
    assert found.numbers["configurations"] == model_of(study).frame["drawn"].sum() <= 70


@pytest.mark.parametrize(("strategy", "adaptive"), [("random", False), ("grid", False), ("tpe", True)])
def test_a_small_study_is_adaptive_only_where_a_sampler_saw_scores(tmp_path, strategy, adaptive):
    found = importance.importance(tables.load(synthetic(tmp_path / "s", trials=44, confirm=3, strategy=strategy)))
    assert found.numbers["adaptive"] == adaptive
    assert any("approximate" in plain(s) for s in found.sentences) == adaptive


def test_a_study_that_searches_nothing_is_told_to_search(tmp_path):
    study = tables.load(synthetic(tmp_path / "s", trials=30, confirm=3, space=[]))
    for found in (importance.importance(study), bounds.bounds(study), plateau.plateau_of(study)):
        assert found.refusal.command == "mmts-ray extend s --space WIDER.yaml --trials 20"


@pytest.mark.filterwarnings("error")
def test_many_columns_are_no_reason_to_warn(tmp_path):
    maker, rng = Maker("s"), np.random.default_rng(0)
    for number in range(30):
        metrics = {VAL: float(rng.random())} | {f"val_other_{k}": 0.5 for k in range(150)}
        maker.run(f"t{number:04d}", "search", native(rng.random(6)), metrics, seed=number)
    assert len(model_of(tables.load(write_study(tmp_path / "s", maker.rows, meta_of("s", baselines=[])))).frame) == 30


@pytest.mark.parametrize("trials", [10, 24])
def test_importance_is_refused_below_24_configurations(tmp_path, trials):
    found = importance.importance(tables.load(synthetic(tmp_path / "s", trials=trials, confirm=0)))
    done = len(model_of(tables.load(tmp_path / "s")).frame)
    assert (found.refusal is not None) == (done < 24)
    if found.refusal:
        assert f"Needs 24 configurations that ran to their end in the searched space; {done} did" in found.refusal.needs
        assert found.refusal.command.startswith("mmts-ray extend s ")


def test_noise_gives_no_sizes_under_random_search_and_nothing_under_an_adaptive_one(tmp_path):
    noise = importance.importance(tables.load(ramp(tmp_path / "s", noise=5.0)))
    assert "weak fit" in plain(noise.title)
    assert noise.frames["parameters"]["size"].isna().all()
    chosen = importance.importance(tables.load(ramp(tmp_path / "t", noise=5.0, strategy="tpe")))
    assert "so no test holds" in plain(chosen.refusal.needs)


# what is modelled


def mixed_space(folder, n=80):
    """A choice of three, a range that only one of them uses, and a number."""
    space = [
        SPACE[0],
        {"path": "loss.mode", "kind": "choice", "values": ["a", "b", "c"], "default": "a"},
        {"path": "loss.mix", "kind": "float", "low": 0.0, "high": 1.0, "log": False, "default": 0.5,
         "when": {"loss.mode": ["b"]}},
    ]  # fmt: skip
    maker, rng = Maker(folder.name), np.random.default_rng(1)

    def score(p, u):
        used = 0.2 * (1 - abs(p["loss.mix"] - 0.5)) if p["loss.mode"] == "b" else 0.0
        return 0.2 + 0.1 * u + {"a": 0.0, "b": 0.0, "c": 0.05}[p["loss.mode"]] + used + 0.005 * rng.standard_normal()

    best = (-1.0, None, None, None)
    for number in range(n):
        u = rng.random()
        p = {"train.lr": float(1e-4 * 1000**u), "loss.mode": ["a", "b", "c"][number % 3]}
        if p["loss.mode"] == "b":
            p["loss.mix"] = float(rng.random())
        value = score(p, u)
        maker.run(f"t{number:04d}", "search", p, {VAL: value, TEST: value}, seed=number)
        best = max(best, (value, f"t{number:04d}", p, u), key=lambda b: b[0])
    for seed in range(5):
        value = score(best[2], best[3])
        maker.run(f"c{seed}", "confirm", best[2], {VAL: value, TEST: value}, seed=1000 + seed, name=best[1])
    return write_study(folder, maker.rows, meta_of(folder.name, space=space, baselines=[]))


def test_choices_and_conditional_parameters_are_modelled_as_what_they_are(tmp_path):
    study = tables.load(mixed_space(tmp_path / "s"))
    rows = importance.importance(study).frames["parameters"].set_index("path")
    assert rows["grade"].tolist() == ["evidence"] * 3
    assert rows.loc["loss.mix", "n"] == 27  # tested where it is used
    wide = plateau.plateau_of(study).frames["widths"].set_index("path")
    assert wide.loc["loss.mode", "gate"] == "choice"
    assert wide.loc["loss.mode", "levels"] == "a: 0 of 100, c: 0 of 100"
    pairs = interactions.interactions(study)
    assert all("mode" not in pair for pair in pairs.frames["pairs"]["pair"])
    assert any("choices of more than two values" in plain(s) for s in pairs.sentences)


def test_a_configuration_outside_the_searched_space_is_not_modelled(tmp_path):
    folder = synthetic(tmp_path / "s", trials=40, confirm=0)
    before = model_of(tables.load(folder))
    maker = Maker("s")
    maker.run("t0900", "baseline", {**native(np.full(6, 0.5)), "schedule.name": "constant"}, {VAL: 0.9}, name="other")
    maker.run("t0901", "search", {**native(np.full(6, 0.5)), "train.lr": 9.0}, {VAL: 0.9})
    write_more(folder, maker.rows)
    after = model_of(tables.load(folder))
    assert (len(after.frame), before.elsewhere, after.elsewhere) == (len(before.frame), 0, 2)


def test_runs_that_were_stopped_are_never_modelled(tmp_path):
    folder = synthetic(tmp_path / "s", trials=40, confirm=0)
    path = folder / "ledger" / "writer-1.jsonl"
    before = len(model_of(tables.load(folder)).frame)
    path.write_text(path.read_text().replace('"status": "done"', '"status": "stopped"', 5))
    assert len(model_of(tables.load(folder)).frame) == before - 5


def test_beyond_400_configurations_those_with_several_runs_stay_and_no_score_decides(tmp_path):
    folder = synthetic(tmp_path / "s", trials=520, confirm=3, top=5)
    study = tables.load(folder)
    model = model_of(study)
    assert len(model.frame) == 400
    assert (model.frame["seeds"] > 1).sum() == 6
    every = study.searched["score"]
    assert stats.ks_2samp(model.frame.loc[model.frame["seeds"] == 1, "score"], every).pvalue > 0.05


def write_more(folder, rows):
    import json

    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "ledger" / "writer-2.jsonl").write_text(text)


# plateau and rings


def with_rings(folder, steps=(-0.25, -0.10, 0.10, 0.25), two=False, **options):
    """A synthetic sweep with rings of five seeds around its winner; `two` moves a second parameter along."""
    synthetic(folder, **options)
    study = tables.load(folder)
    model, winner = model_of(study), importance_winner(study)
    maker, truth, rng = Maker(folder.name), Truth(), np.random.default_rng(9)
    for j in range(6):
        for step in steps:
            u = model.winner.copy()
            u[j] += step
            if two:
                u[(j + 1) % 6] += 0.05
            if not ((u >= 0) & (u <= 1)).all():
                continue
            own = dict(study.configs[winner])
            moved = native(u)
            changed = [p for i, p in enumerate(moved) if abs(u[i] - model.winner[i]) > 1e-9]
            params = {k: moved[k] if k in changed else own[k] for k in moved}
            for seed in range(5):
                score = float(truth.score(u)[0] + truth.seed_sd(u)[0] * rng.standard_normal())
                maker.run(
                    f"p{j}{step}{seed}", "probe", params, {VAL: score}, seed=1000 + seed, name=f"ring {changed[0]}"
                )
    write_more(folder, maker.rows)
    return tables.load(folder)


def importance_winner(study):
    from mmts_ray.analysis.choice import choose

    return str(choose(study).winner.runs["trial"].iloc[0])


def test_widths_of_a_random_sweep_lie_within_their_limits(random_study):
    found = plateau.plateau_of(random_study)
    model, delta = model_of(random_study), found.numbers["delta"]
    assert delta >= 1.25 * found.numbers["seed_sd"] - 1e-12
    rows = found.frames["widths"].to_dict(orient="records")
    covered = [
        row["lo"] - 1e-6 <= Truth().width(model.winner, j, delta) <= row["hi"] + 1e-6 for j, row in enumerate(rows)
    ]
    assert sum(covered) >= 5
    assert any(row["gate"] in plateau.TOLD for row in rows)
    assert plain(found.title).startswith("Within ")


def test_a_width_without_a_ring_is_never_told_without_its_interval(random_study):
    gates = plateau.plateau_of(random_study).frames["widths"]["gate"]
    assert "width and interval" in set(gates)
    assert "width" not in set(gates)


def test_the_verdict_names_how_many_matter_and_a_safe_range_of_one_that_does(tmp_path):
    study = with_rings(tmp_path / "s", trials=120, confirm=5, seed=4)
    said = " ".join(plain(s) for s in verdict.verdict(study).sentences)
    grades = importance.importance(study).frames["parameters"].set_index("path")["grade"]
    assert f"Of 6 searched parameters, {(grades == 'evidence').sum()} show evidence of an effect." in said
    widths = plateau.plateau_of(study).frames["widths"].set_index("path")
    told = widths[widths["gate"].isin(plateau.TOLD) & (grades == "evidence")]["width"]
    assert f"Widest safe range among them: {study.named(told.idxmax())} " in said


def test_the_share_of_the_volume_covers_the_truth(random_study):
    found = plateau.plateau_of(random_study).numbers
    model, truth, u = model_of(random_study), Truth(), np.random.default_rng(0).random((100_000, 6))
    near = truth.score(u) >= truth.score(model.winner) - found["delta"]
    share = (near * (1 - truth.diverges(u))).mean()
    assert found["volume"]["lo"] <= share <= found["volume"]["hi"]


def test_an_adaptive_sweep_gets_widths_only_where_a_ring_was_run(tmp_path):
    options = {"trials": 120, "confirm": 5, "seed": 4, "strategy": "tpe"}
    bare = tables.load(synthetic(tmp_path / "s", **options))
    assert not set(plateau.plateau_of(bare).frames["widths"]["gate"]) & set(plateau.TOLD)
    ringed = plateau.plateau_of(with_rings(tmp_path / "t", **options))
    told = set(ringed.frames["widths"]["gate"]) & set(plateau.TOLD)
    assert told == {"width and interval"}


def test_rings_are_paired_differences_with_a_bound_for_the_looks(tmp_path):
    study = with_rings(tmp_path / "s", trials=60, confirm=5, seed=4)
    frame = rings.ring_runs(study)
    assert 12 <= len(frame) <= 24
    own = (
        study.trials[study.trials["name"] == choose_label(study)].query("kind == 'confirm'").set_index("seed")["score"]
    )
    row = frame.iloc[0]
    runs = study.trials[study.trials["kind"] == "probe"]
    value = [study.configs[t][row["path"]] == row["value"] for t in runs["trial"]]
    moved = runs[value].set_index("seed")["score"]
    d = (moved - own).dropna()
    half = stats.t.ppf(1 - 0.025 / len(frame), 4) * d.std(ddof=1) / math.sqrt(5)
    assert (row["drop"], row["lo"], row["hi"]) == pytest.approx((d.mean(), d.mean() - half, d.mean() + half))
    worst = plateau.plateau_of(study).numbers["worst_drop"]
    assert worst == pytest.approx(frame["drop"].min())


def choose_label(study):
    from mmts_ray.analysis.choice import choose

    return choose(study).winner.label


def test_a_run_that_moves_two_parameters_is_no_ring(tmp_path):
    study = with_rings(tmp_path / "s", trials=40, confirm=5, seed=4, two=True)
    assert rings.ring_runs(study).empty


def test_widths_are_refused_without_fresh_seeds(tmp_path):
    found = plateau.plateau_of(tables.load(synthetic(tmp_path / "s", trials=60, confirm=2)))
    assert "Needs 3 fresh seeds of the winner" in plain(found.refusal.needs)
    assert found.refusal.command == "mmts-ray confirm s --top 3 --seeds 5"


# interactions


def test_the_interaction_of_the_truth_is_found_and_drawn(tmp_path):
    study = tables.load(synthetic(tmp_path / "s", trials=260, confirm=0, seed=1))
    found = interactions.interactions(study)
    chosen = found.frames["pairs"].query("selected")
    assert "lr × wd" in set(chosen["pair"])
    row = chosen.set_index("pair").loc["lr × wd"]
    assert row["lo"] <= 0.010 <= row["hi"]
    assert not row["together"]
    surface = found.frames["surface"]
    assert 0 < surface["supported"].sum() <= len(surface)
    assert "lr × wd" in plain(found.title)


def test_interactions_need_ten_configurations_per_parameter(tmp_path):
    found = interactions.interactions(tables.load(synthetic(tmp_path / "s", trials=50, confirm=0)))
    assert "Needs 60 configurations, 10 per parameter" in plain(found.refusal.needs)


def test_interactions_are_not_looked_for_where_a_sampler_chose(tmp_path):
    folder = synthetic(tmp_path / "s", trials=150, confirm=3, strategy="tpe")
    found = interactions.interactions(tables.load(folder))
    assert "Needs 60 configurations drawn at random, 10 per parameter; 0 were." in plain(found.refusal.needs)
    maker, truth, rng = Maker("s"), Truth(), np.random.default_rng(3)
    for number in range(80):
        u = rng.random(6) * [0.8, 1, 1, 1, 1, 1]
        maker.run(f"r{number}", "control", native(u), {VAL: float(truth.score(u)[0])}, seed=0)
    write_more(folder, maker.rows)
    found = interactions.interactions(tables.load(folder))
    assert found.numbers["configurations"] == 80
    assert found.used == "80 configurations drawn at random"


# budget


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
    assert "--plan" in found.refusal.command
    maker, rng = Maker("s"), np.random.default_rng(3)
    for number in range(25):
        u = rng.random(6) * 0.9
        maker.run(f"r{number}", "control", native(u), {VAL: float(Truth().score(u)[0])}, seed=0)
    write_more(folder, maker.rows)
    found = budget.budget(tables.load(folder))
    assert found.numbers["trials"] == {"random": 25}
    assert any("chosen by earlier scores are left out" in plain(s) for s in found.sentences)


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


def halving(folder, controls, survivors=30):
    """An adaptive study of nine epochs with stopped trials, survivors and never-stopped random controls."""
    maker, truth, rng = Maker(folder.name), Truth(), np.random.default_rng(5)
    u = rng.random((400, 6)) * [0.8, 1, 1, 1, 1, 1]
    rungs = truth.rungs(u, rng)

    def write(trial, kind, row, **end):
        early = {epoch: {VAL: float(rungs[row, 0 if epoch < 3 else 1])} for epoch in range(1, 9)}
        epochs = end.pop("epochs", 9)
        last = rungs[row, 2] if epochs == 9 else rungs[row, 0]
        maker.run(trial, kind, native(u[row]), {VAL: float(last)}, seed=row, epochs=epochs, early=early, **end)

    order = np.argsort(-rungs[100:300, 0])
    for place, row in enumerate(order):
        kept = place < survivors
        write(f"t{row:04d}", "search", 100 + int(row), **({} if kept else {"status": "stopped", "epochs": 1}))
    for number in range(controls):
        write(f"r{number:04d}", "control", number)
    return write_study(folder, maker.rows, meta_of(folder.name, strategy="tpe_asha", baselines=[])), rungs[:controls]


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


def test_the_same_ledger_gives_the_same_bytes_with_the_models_in(tmp_path):
    study = with_rings(tmp_path / "s", trials=80, confirm=5, top=6, epochs=3, seed=2)
    assert plateau.plateau_of(study).refusal is None
    pages = []
    for name in ("a", "b"):
        path = report.write(tmp_path / "s", tmp_path / name)
        pages.append((path.read_bytes(), path.with_suffix(".json").read_bytes()))
    assert pages[0] == pages[1]


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
