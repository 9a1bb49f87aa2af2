"""Findings against known truth: the verdict's cases, warnings, settings, isolation, groups, gap."""

import math

import numpy as np
import pytest
from ledger_maker import OBJECTIVE, SPACE, Maker, arms, meta_of, native, synthetic, write_study
from mmts_ray.analysis import report, tables
from mmts_ray.analysis.panels import collected, fresh, gap, groups, history, isolation, ledger, verdict
from mmts_ray.analysis.statistics import crossed_difference
from mmts_ray.analysis.wording import plain

from mmts_ray import results

VAL, TEST = f"val_{OBJECTIVE}", f"test_{OBJECTIVE}"
BASE = [0.300, 0.310, 0.305, 0.300, 0.310]


def shifted(by, values=BASE):
    return [v + by + 0.002 * (-1) ** i for i, v in enumerate(values)]


def verdict_of(folder):
    return verdict.verdict(tables.load(folder))


def problems(finding):
    return [plain(check.problem) for check in finding.checks if check.problem is not None]


def all_warnings(folder):
    raised, passed = collected.warnings(report.find(tables.load(folder)))
    return {plain(w["problem"]): w for w in raised}, passed


# verdict


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


# warnings


def test_warnings_are_sorted_by_severity_and_checks_that_passed_are_listed(tmp_path):
    raised, passed = collected.warnings(report.find(tables.load(synthetic(tmp_path / "s", trials=40, confirm=2))))
    order = [list(collected.SEVERITIES).index(w["severity"]) for w in raised]
    assert order == sorted(order)
    assert raised[0]["severity"] == "changes"
    assert raised[0]["panel"] == "verdict"
    assert "all finished runs have the same global batch" in passed


def test_no_warnings_says_how_many_checks_passed():
    assert collected.warnings_title([], ["a", "b"]) == "No warnings: 2 checks passed"
    note = {"severity": "record"}
    limit = {"severity": "limits"}
    assert collected.warnings_title([note], ["a"]) == "No warnings: 1 check passed; 1 note"
    assert collected.warnings_title([limit, limit, note], []) == "Two warnings and 1 note, worst first"


def mixed(folder, key, values, kind="search", **changes):
    maker = Maker(folder.name)
    for number, value in enumerate(values):
        extra = {"global_batch": value} if key == "global_batch" else {}
        params = {"train.lr": 1e-3 * (1 + number), **({} if extra else {key: value})}
        maker.run(f"t{number:04d}", kind, params, {VAL: 0.3}, **extra)
    return write_study(folder, maker.rows, meta_of(folder.name, space=SPACE[:1], **changes))


@pytest.mark.parametrize(
    ("key", "values", "problem"),
    [
        ("global_batch", [128, 256], "Finished runs differ in global batch: 128 and 256."),
        ("data.path", ["a.csv", "b.csv"], "Runs differ in data.path."),
        ("eval.k", [10, 50], "Runs differ in eval.k."),
        ("train.epochs", [5, 10], "Search trials differ in train.epochs, which was not searched."),
    ],
)
def test_what_must_be_equal_changes_the_answer(tmp_path, key, values, problem):
    found, _ = all_warnings(mixed(tmp_path / "s", key, values))
    assert found[problem]["severity"] == "changes"
    same, passed = all_warnings(mixed(tmp_path / "t", key, values[:1] * 2))
    assert problem not in same
    assert {"all runs used the same data and the same scoring", "all finished runs have the same global batch"} <= set(
        passed
    )


def test_mixed_data_keys_change_the_answer(tmp_path):
    folder = mixed(tmp_path / "s", "train.x", [1, 1])
    text = (folder / "ledger" / "writer-1.jsonl").read_text()
    text = text.replace('"param.train.x": 1', '"param.train.x": 1, "derived.data.key": "aaaa"', 1)
    text = text.replace('"param.train.x": 1, "param', '"param.train.x": 1, "derived.data.key": "bbbb", "param', 1)
    (folder / "ledger" / "writer-1.jsonl").write_text(text)
    assert all_warnings(folder)[0]["Runs differ in data key."]["severity"] == "changes"


def test_a_searched_batch_is_only_noted(tmp_path):
    space = [{"path": "train.batch_size", "kind": "int", "low": 64, "high": 512, "log": True, "default": 256}]
    maker = Maker("s")
    for number, batch in enumerate([128, 256]):
        maker.run(f"t{number:04d}", "search", {"train.batch_size": batch}, {VAL: 0.3}, global_batch=batch)
    found, _ = all_warnings(write_study(tmp_path / "s", maker.rows, meta_of("s", space=space)))
    assert found["Finished runs differ in global batch: 128 and 256."]["severity"] == "record"


def test_leftovers_of_a_study_are_noted(tmp_path):
    maker = Maker("s")
    rng = np.random.default_rng(0)
    for number, status in enumerate(["done"] * 6 + ["stopped"] * 2 + ["failed"] + ["running"]):
        maker.run(f"t{number:04d}", "search", native(rng.random(6)), {VAL: 0.3}, status=status, note=["only 6 groups"],
                  **({"error": "RuntimeError: boom"} if status == "failed" else {}))  # fmt: skip
    maker.rows.append(dict(maker.rows[1]))
    meta = meta_of("s", git={"commit": "abc", "dirty": True})
    meta["data"] |= {"dropped": {"empty caption": 3}, "notes": ["class 7 is empty"]}
    folder = write_study(tmp_path / "s", maker.rows, meta)
    (folder / "ledger" / "x.jsonl").write_text('{"trial": "t0099", "step": 1, "status": "done"}\n')
    found, _ = all_warnings(folder)
    expected = {
        "2 runs stopped early left out.": "record", "1 run had not ended when this report was made.": "limits",
        "1 of 9 search trials failed (11 % [2, 43]).": "record", "1 duplicate folded.": "limits",
        "1 run without a start record left out.": "limits", "only 6 groups": "record", "class 7 is empty": "record",
        "3 rows of the data dropped.": "record", "The code had uncommitted changes.": "record",
    }  # fmt: skip
    assert {problem: found[problem]["severity"] for problem in expected} == expected
    assert "RuntimeError: boom (1)" in plain(
        found[next(p for p in found if "search trials failed" in p)]["consequence"]
    )


# sensitivity


def ramp(folder, *, n=40, cliff=None, best_at=1.0, **changes):
    """One logarithmic parameter; the score falls with the distance from `best_at` on the scale; runs beyond fail."""
    maker = Maker(folder.name)
    for number, u in enumerate(np.linspace(0, 1, n)):
        lost = cliff is not None and u > cliff
        lr = float(1e-4 * 1000**u)
        status = {"status": "infeasible", "error": "nan"} if lost else {}
        metrics = {} if lost else {VAL: float(0.4 - 0.2 * abs(u - best_at))}
        maker.run(f"t{number:04d}", "search", {"train.lr": lr}, metrics, **status)
    return write_study(folder, maker.rows, meta_of(folder.name, **{"space": SPACE[:1], "baselines": [], **changes}))


def test_isolation_buckets_hold_the_best_of_each(tmp_path):
    study = tables.load(ramp(tmp_path / "s", n=40, best_at=0.5))
    found = isolation.isolation(study)
    buckets = found.frames["buckets"]
    assert len(buckets) == 8
    assert buckets["n"].sum() == 40
    points = found.frames["points"]
    place = np.minimum((points["position"] * 8).astype(int), 7)
    assert list(buckets["score"]) == pytest.approx(list(points.groupby(place)["score"].max()))
    assert list(buckets["from"]) == pytest.approx([1e-4 * 1000 ** (k / 8) for k in range(8)])
    assert plain(found.title) == "The best trial lies inside the range of the parameter"
    assert plain(isolation.isolation(tables.load(ramp(tmp_path / "t"))).title).startswith(
        "The best trial lies in the outermost bucket of lr"
    )


def test_fresh_seeds_give_the_envelope_its_interval(tmp_path):
    study = tables.load(synthetic(tmp_path / "s", trials=60, confirm=5))
    buckets = isolation.isolation(study).frames["buckets"]
    chosen = verdict.gather(study).chosen
    own = buckets[buckets["trial"] == chosen.winner.trial].iloc[0]
    values = chosen.winner.values(f"metric.{VAL}")
    assert own["fresh"] == pytest.approx(values.mean())
    assert own["lo"] < values.mean() < own["hi"]


def test_trials_of_another_fidelity_never_reach_the_picture(tmp_path):
    folder = ramp(tmp_path / "s")
    text = (folder / "ledger" / "writer-1.jsonl").read_text()
    lines = text.splitlines()
    ends = [i for i, line in enumerate(lines) if '"t0020"' in line and '"done"' in line]
    lines[ends[0]] = lines[ends[0]].replace('"done"', '"stopped"')
    (folder / "ledger" / "writer-1.jsonl").write_text("\n".join(lines) + "\n")
    points = isolation.isolation(tables.load(folder)).frames["points"]
    assert "t0020" not in set(points["trial"])
    assert len(points) == 39


def test_choices_and_conditions(tmp_path):
    space = [
        {"path": "schedule.name", "kind": "choice", "values": ["constant", "cosine"], "default": "constant"},
        {"path": "schedule.alpha", "kind": "float", "low": 0.0, "high": 0.2, "log": False, "default": 0.08,
         "when": {"schedule.name": ["cosine"]}},
    ]  # fmt: skip
    maker = Maker("s")
    for number in range(20):
        cosine = number % 2 == 1
        params = {
            "schedule.name": "cosine" if cosine else "constant",
            **({"schedule.alpha": 0.01 * number} if cosine else {}),
        }
        maker.run(f"t{number:04d}", "search", params, {VAL: 0.30 + 0.001 * number + 0.1 * cosine}, seed=number)
    study = tables.load(write_study(tmp_path / "s", maker.rows, meta_of("s", space=space, baselines=[])))
    found = isolation.isolation(study)
    points = found.frames["points"]
    assert (points["path"] == "schedule.alpha").sum() == 10
    assert (points["path"] == "schedule.name").sum() == 20
    cells = found.settings[0].cells
    assert plain(cells["schedule.name"]) == "cosine: 5 of 5"
    assert "0.11 to 0.19" in plain(cells["schedule.alpha"])
    settings = collected.settings(study, report.find(study)).frames["parameters"].set_index("path")
    assert settings.loc["schedule.name", "set_to"] == "cosine"
    assert settings.loc["schedule.alpha", "set_to"] == pytest.approx(0.19)


def test_a_parameter_that_the_winner_does_not_use(tmp_path):
    space = [{**SPACE[0], "when": {"schedule.name": ["cosine"]}}]
    maker = Maker("s")
    for number in range(6):
        maker.run(f"t{number:04d}", "search", {"schedule.name": "constant", "train.lr": 1e-3}, {VAL: 0.3}, seed=number)
    study = tables.load(write_study(tmp_path / "s", maker.rows, meta_of("s", space=space, baselines=[])))
    settings = collected.settings(study, report.find(study)).frames["parameters"].iloc[0]
    assert settings["set_to_text"] == "not used"
    assert settings["set_to"] is None


def test_the_range_of_the_best_trials_needs_ten(tmp_path):
    few = isolation.isolation(tables.load(ramp(tmp_path / "s", n=9)))
    assert few.settings[0].cells["train.lr"] == "not measured: 9 finished trials, 10 needed"
    many = isolation.isolation(tables.load(ramp(tmp_path / "t", n=40, best_at=0.5)))
    assert many.settings[0].values["train.lr"] == pytest.approx(4 / 39)


# cost and the rest


def three(head, mid, tail, n=116.0):
    return {f"test_{g}_r1": v for g, v in (("head", head), ("mid", mid), ("tail", tail))} | {
        f"test_n_{g}": [n] * 5 for g in ("head", "mid", "tail")
    }


def test_a_tail_that_pays_is_a_warning_that_changes_the_answer(tmp_path):
    folder = arms(
        tmp_path / "s", {"paper": BASE, "t0001": shifted(0.05)},
        extra={"paper": three(BASE, BASE, BASE), "t0001": three(shifted(0.06), shifted(0.05), shifted(-0.04))},
    )  # fmt: skip
    found = groups.groups(tables.load(folder))
    tail = found.frames["groups"].set_index("group").loc["tail"]
    delta = np.array(shifted(-0.04)) - np.array(BASE)
    assert tail["diff"] == pytest.approx(delta.mean())
    assert tail["worse"]
    (check,) = [c for c in found.checks if c.problem is not None]
    assert check.severity == "changes"
    assert plain(check.problem).startswith("The tail loses 3.96 points [3.57, 4.35].")
    assert plain(found.title).startswith("The tail loses 3.96 points, the head gains 6.04 points")


def with_ranks(folder, *, drop=None, other_queries=False, queries=120, seeds=5):
    """Two arms whose fresh runs kept ranks: the tuned one ranks the tail worse and the head better."""
    rng = np.random.default_rng(7)
    group = np.arange(queries) % 3
    hard = rng.normal(size=queries)
    frames = {}
    for name, shift in (("paper", (0.0, 0.0, 0.0)), ("t0001", (-0.9, 0.0, 0.9))):
        frames[name] = []
        for _ in range(seeds):
            logit = hard + np.array(shift)[group] + 0.15 * rng.normal() + 0.8 * rng.normal(size=queries)
            ranks = np.where(logit > 0, 0, 1 + rng.integers(0, 9, queries)).astype(np.int32)
            members = {g: group == place for place, g in enumerate(("tail", "mid", "head"))}
            frames[name].append({"image": np.arange(queries, dtype=np.int32), "i2t": ranks, **members})
    extra = {}
    for name, runs in frames.items():
        extra[name] = {f"test_{g}_r1": [float((r["i2t"][r[g]] < 1).mean()) for r in runs] for g in groups.GROUPS}
        extra[name] |= {f"test_n_{g}": [queries / 3] * seeds for g in groups.GROUPS}
    scores = {name: [float((r["i2t"] < 1).mean()) for r in runs] for name, runs in frames.items()}
    arms(folder, scores, extra=extra)
    number = 0
    for name in scores:
        for run in frames[name]:
            trial = f"c{number:04d}"
            if trial != drop:
                moved = {"image": run["image"] + 1} if other_queries and name == "paper" else {}
                results.write_ranks(folder, trial, {**run, **moved})
            number += 1
    return folder, frames


def test_changes_of_groups_are_over_queries_and_seeds_when_the_runs_kept_their_ranks(tmp_path):
    folder, frames = with_ranks(tmp_path / "s")
    found = groups.groups(tables.load(folder))
    rows = found.frames["groups"].set_index("group")
    for group in groups.GROUPS:
        hits = [np.array([r["i2t"][r[group]] < 1 for r in frames[name]]) for name in ("t0001", "paper")]
        wanted = crossed_difference(*hits, paired=True, comparisons=3)
        got = tuple(rows.loc[group, ["diff", "diff_lo", "diff_hi"]])
        assert got == pytest.approx((wanted.mean, wanted.lo, wanted.hi))
        assert rows.loc[group, "diff"] == pytest.approx(rows.loc[group, "tuned"] - rows.loc[group, "default"])
    assert rows.loc["tail", "worse"]
    assert rows.loc["head", "established"]
    assert not rows.loc["mid", "established"]
    assert found.numbers["over"] == "queries and seeds"
    assert "over queries and seeds together" in plain(found.sentences[0])
    assert plain(found.sentences[1]).startswith("A change below ")


@pytest.mark.parametrize("what", [{"drop": "c0003"}, {"other_queries": True}])
def test_without_the_same_queries_in_every_run_the_intervals_are_over_seeds(tmp_path, what):
    folder, _ = with_ranks(tmp_path / "s", **what)
    found = groups.groups(tables.load(folder))
    assert found.numbers["over"] == "seeds"
    assert "for these queries only" in plain(found.sentences[0])
    assert found.frames["groups"]["se_queries"].isna().all()


def test_few_queries_claim_nothing(tmp_path):
    folder = arms(
        tmp_path / "s", {"paper": BASE, "t0001": shifted(0.05)},
        extra={"paper": three(BASE, BASE, BASE, 12.0), "t0001": three(shifted(0.1), BASE, shifted(-0.1), 12.0)},
    )  # fmt: skip
    found = groups.groups(tables.load(folder))
    assert not found.frames["groups"]["established"].any()
    assert problems(found) == ["Few queries in head, middle and tail."]


def test_groups_without_scores_are_refused(tmp_path):
    found = groups.groups(tables.load(arms(tmp_path / "s", {"paper": BASE, "t0001": shifted(0.05)})))
    assert found.refusal.command.startswith("mmts-ray confirm")


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
    few = tables.load(arms(tmp_path / "t", {"paper": BASE}))
    assert "report val_modality_distance; 0 do" in gap.gap(few).refusal.needs


def test_luck_is_the_search_score_minus_the_fresh_mean(tmp_path):
    study = tables.load(synthetic(tmp_path / "s", trials=60, confirm=5))
    frame = fresh.fresh(study).frames["configurations"].set_index("label")
    winner = verdict.gather(study).chosen.winner
    values = winner.values(f"metric.{VAL}")
    searched = study.trials.set_index("trial").loc[winner.trial, "score"]
    assert frame.loc[winner.label, "luck"] == pytest.approx(searched - values.mean())
    assert frame.index[0] == winner.label
    assert frame.loc["paper", "is_default"]


def test_history_accumulates_the_best(tmp_path):
    study = tables.load(synthetic(tmp_path / "s", trials=30, confirm=0))
    found = history.history(study)
    runs = found.frames["runs"]
    assert (runs["best"] == runs["score"].cummax()).all()
    assert found.numbers["best"] == study.finished["score"].max()
    assert runs["kind"].iloc[0] == "baseline"


def test_the_ledger_counts_every_run(tmp_path):
    study = tables.load(synthetic(tmp_path / "s", trials=50, confirm=3))
    found = ledger.ledger(study)
    assert found.frames["states"]["n"].sum() == len(study.trials) == 1 + 50 + 12
    assert found.frames["states"]["share"].sum() == pytest.approx(1)
    assert found.numbers["device_seconds"] == pytest.approx(study.trials["device_seconds"].sum())
