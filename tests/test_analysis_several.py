"""Several studies on one page: what is compared, what is refused, and what is said about other data."""

import json
import re

import numpy as np
import pytest
import yaml
from ledger_maker import SPACE, Maker, arms, meta_of, synthetic, write_study
from mmts_ray.analysis import __main__ as command
from mmts_ray.analysis import tables
from mmts_ray.analysis.panels import budget
from mmts_ray.analysis.several import agreement, better, curves, studies, transfer, verdict, write
from mmts_ray.analysis.statistics import difference, mean_over_given, mean_over_new
from mmts_ray.analysis.wording import plain
from sweeps import BASE, TEST, VAL, shifted
from test_analysis_report import Tree, numbers_of


def study(folder, by, *, key="k", **more):
    meta = {"data": {"key": key}, **more}
    return arms(folder, {"paper": BASE, "t0001": shifted(by)}, **meta)


def series(values):
    import pandas as pd

    return pd.Series(values, index=[1000.0 + i for i in range(len(values))])


def test_on_one_data_set_the_winners_meet_paired_by_seed(tmp_path):
    folders = [study(tmp_path / "a", 0.02), study(tmp_path / "b", 0.05)]
    several = studies.read(folders)
    assert several.same_data
    found = verdict.verdict(several)
    wanted = difference(series(shifted(0.05)), series(shifted(0.02)))
    assert found.numbers["difference"]["mean"] == pytest.approx(wanted.mean)
    assert found.numbers["difference"]["paired"]
    assert plain(found.title).startswith("b reaches 35.5 % image-to-text R@1, +3.0")
    assert found.numbers["case"] == "established"
    # a constant difference has no spread to draw from
    assert (
        better.better(several).refusal.command
        == "mmts-ray confirm a --top 3 --seeds 5\nmmts-ray confirm b --top 3 --seeds 5"
    )


def test_a_lead_within_noise_is_not_established(tmp_path):
    a = arms(tmp_path / "a", {"paper": BASE, "t0001": [0.33, 0.35, 0.34, 0.32, 0.36]}, data={"key": "k"})
    b = arms(tmp_path / "b", {"paper": BASE, "t0001": [0.35, 0.33, 0.34, 0.36, 0.325]}, data={"key": "k"})
    several = studies.read([a, b])
    found = verdict.verdict(several)
    assert found.numbers["case"] == "not established"
    assert plain(found.title).startswith("No study leads by more than noise: ")
    row = better.better(several).frames["chances"].iloc[0]
    assert row["lo"] < 0.5 < row["hi"]


@pytest.mark.parametrize("sets", [2, 4])
def test_on_several_data_sets_the_mean_gain_speaks_of_new_ones_only_from_three_on(tmp_path, sets):
    gains = [0.02, 0.05, 0.03, 0.04][:sets]
    folders = [study(tmp_path / f"s{i}", gain, key=f"k{i}") for i, gain in enumerate(gains)]
    several = studies.read(folders)
    assert several.data_sets == sets
    found = verdict.verdict(several)
    differences = [difference(series(shifted(g)), series(BASE)) for g in gains]
    assert found.numbers["given"]["mean"] == pytest.approx(mean_over_given(differences).mean)
    assert found.numbers["given"]["lo"] == pytest.approx(mean_over_given(differences).lo)
    said = " ".join(plain(s) for s in found.sentences)
    if sets < 3:
        assert found.numbers["new"] is None
        assert "It says nothing about other data: 2 data sets at hand, 3 are needed" in said
    else:
        assert found.numbers["new"]["lo"] == pytest.approx(mean_over_new(differences).lo)
        assert "On another data set like these" in said
    chances = better.better(several)
    assert list(chances.frames["chances"]["first"])[-1] == "on average"
    assert ("says nothing about others" in chances.sentences[0]) == (sets < 3)


def carried_over(tmp_path, *, both_ways=True):
    """Two data sets whose best settings differ: each winner loses .03 where it was not tuned."""
    best = {"a": {"train.lr": 1e-3}, "b": {"train.lr": 1e-2}}
    folders = []
    for name, own in best.items():
        maker, number = Maker(name), 0
        foreign = best["b" if name == "a" else "a"]
        for kind, trial, params, base in (
            ("baseline", "t0000", {"train.lr": 0.5}, 0.30),
            ("search", "t0001", own, 0.40),
        ):
            maker.run(
                trial, kind, {**params, "data.path": name}, {VAL: base}, name="paper" if kind == "baseline" else None
            )
        runs = [("confirm", "paper", {"train.lr": 0.5}, 0.30), ("confirm", "t0001", own, 0.40)]
        if both_ways or name == "b":
            runs.append(("probe", "transfer", foreign, 0.37))
        for kind, label, params, level in runs:
            for place, noise in enumerate((0.0, 0.01, -0.01)):
                value = level + noise + 0.001 * (place == len(label) % 3)
                maker.run(
                    f"c{number}",
                    kind,
                    {**params, "data.path": name},
                    {VAL: value, TEST: value},
                    seed=1000 + place,
                    name=label,
                )
                number += 1
        meta = meta_of(name, space=SPACE[:1], data={"key": f"data-{name}"})
        folders.append(write_study(tmp_path / name, maker.rows, meta))
    return folders


def test_a_setting_is_carried_only_where_it_was_run_on_both(tmp_path):
    several = studies.read(carried_over(tmp_path))
    found = transfer.transfer(several)
    cells = found.frames["cells"].set_index(["tuned_on", "scored_on"])
    assert cells.loc[("a", "b"), "loss"] == pytest.approx(-0.03, abs=0.002)
    assert cells.loc[("b", "a"), "loss"] == pytest.approx(-0.03, abs=0.002)
    assert found.numbers["missing"] == []
    assert plain(found.title).startswith("2 of 2 carried settings lose; the most, ")
    assert found.numbers["sensitivity"]["mean"] == pytest.approx(0.015, abs=0.001)
    assert "It says nothing about other data" in plain(found.sentences[1])


def test_the_matrix_has_a_gap_where_nothing_ran_and_the_plan_that_fills_it_is_written(tmp_path):
    folders = carried_over(tmp_path, both_ways=False)
    made = write.make(folders)
    found = made.findings["transfer"]
    assert found.numbers["missing"] == ["b on a"]
    path = write.write(made)
    plan = yaml.safe_load((folders[0] / "report" / "transfer-0.yaml").read_text())
    assert plan["study"] == "a"
    (run,) = plan["runs"]
    assert run["set"] == {"train.lr": 1e-2}  # without its data
    assert run["seeds"] == [1000, 1001, 1002]
    assert "not run" in path.read_text()


def test_the_diagonal_of_the_matrix_is_the_settings_own_data(tmp_path):
    several = studies.read(carried_over(tmp_path))
    drawn = str(transfer.draw(several, transfer.transfer(several)))
    rows = re.findall(r"<tr>\s*<th scope=\"row\">(\w+)</th>(.*?)</tr>", drawn, re.DOTALL)
    cells = {name: re.findall(r"<td[^>]*><span>(.*?)</span></td>", body) for name, body in rows}
    for place, name in enumerate(several.labels):
        own = ["its own" in cell for cell in cells[name]]
        assert own == [k == place for k in range(len(own))]
    assert "not run" not in drawn


def test_nothing_carried_is_refused_with_commands_that_run_it(tmp_path):
    folders = [study(tmp_path / "a", 0.02, key="k1"), study(tmp_path / "b", 0.05, key="k2")]
    text = folders[1] / "ledger" / "writer-1.jsonl"
    text.write_text(text.read_text().replace('"param.train.lr": 0.002', '"param.train.lr": 0.004'))
    made = write.make(folders)
    refused = made.findings["transfer"].refusal
    assert (
        refused.command
        == "mmts-ray extend a --plan a/report/transfer-0.yaml\nmmts-ray extend b --plan a/report/transfer-1.yaml"
    )
    write.write(made)
    assert (folders[0] / "report" / "transfer-1.yaml").is_file()


def test_studies_of_other_objectives_and_one_study_twice_are_refused_in_a_line(tmp_path, capsys):
    a = study(tmp_path / "a", 0.02)
    b = study(tmp_path / "b", 0.02, objective={"val_r1": "max"})
    for folders, words in (([a, b], "legal are studies of one objective"), ([a, a], "given 2 times")):
        assert command.main([str(f) for f in folders]) == 2
        out, err = capsys.readouterr()
        assert not out
        assert err.count("\n") == 1
        assert words in err


def random_search(folder, scores, **changes):
    maker = Maker(folder.name)
    for number, score in enumerate(scores):
        maker.run(f"t{number:04d}", "search", {"train.lr": 1e-4 * 1.05**number}, {VAL: float(score)}, seed=number)
    return write_study(folder, maker.rows, meta_of(folder.name, space=SPACE[:1], baselines=[], **changes))


def test_a_study_leads_at_equal_budget_from_where_its_lower_limit_passes_the_others_median(tmp_path):
    rng = np.random.default_rng(0)
    low, high = rng.uniform(0.1, 0.3, 60), rng.uniform(0.1, 0.3, 60) ** 0.7
    found = curves.curves(studies.read([random_search(tmp_path / "a", low), random_search(tmp_path / "b", high)]))
    own = {name: part.set_index("k") for name, part in found.frames["curves"].groupby("name")}
    ahead = own["b"]["lo"] > own["a"]["median"]
    assert found.numbers["leader"] == "b"
    first = found.numbers["parts_at"]
    assert ahead.loc[first:].all()
    assert first == 1 or not ahead.loc[first - 1]
    assert plain(found.title) == f"At equal budget b leads from {first} trial{'s' if first > 1 else ''} on"
    same = curves.curves(studies.read([random_search(tmp_path / "c", low), random_search(tmp_path / "d", low)]))
    assert plain(same.title) == "At equal budget no study leads beyond its band"


def test_of_very_many_random_trials_the_first_drawn_make_the_curve(tmp_path):
    scores = np.random.default_rng(0).uniform(0.1, 0.3, budget.MOST_TRIALS + 50)
    study = tables.load(random_search(tmp_path / "a", scores))
    found = budget.budget(study)
    assert found.frames["curves"]["k"].max() == budget.MOST_TRIALS
    assert found.frames["curves"]["median"].max() <= scores[: budget.MOST_TRIALS].max()
    assert any("the first drawn" in plain(s) for s in found.sentences)


def test_a_lower_loss_leads_at_equal_budget(tmp_path):
    rng = np.random.default_rng(0)
    worse, better_ = rng.uniform(0.2, 0.4, 60), rng.uniform(0.1, 0.3, 60)
    folders = [random_search(tmp_path / n, s, objective={VAL: "min"}) for n, s in (("a", worse), ("b", better_))]
    assert curves.curves(studies.read(folders)).numbers["leader"] == "b"


@pytest.mark.parametrize(
    ("changes", "words", "command_"),
    [
        ({"data": {"key": "other"}}, "not on one scale", "mmts-ray search b/study.yaml --out b-elsewhere data.name="),
        ({"strategy": "tpe"}, "Needs 20 random trials in each study; b has 0", "mmts-ray extend b"),
    ],
)
def test_other_data_and_adaptive_trials_have_no_equal_budget(tmp_path, changes, words, command_):
    scores = np.random.default_rng(0).uniform(0.1, 0.3, 40)
    found = curves.curves(studies.read([random_search(tmp_path / "a", scores),
                                        random_search(tmp_path / "b", scores, **changes)]))  # fmt: skip
    assert words in plain(found.refusal.needs)
    assert found.refusal.command.startswith(command_)


def test_a_winner_without_seeds_leaves_the_verdict_open(tmp_path):
    a, b = study(tmp_path / "a", 0.02), arms(tmp_path / "b", {"paper": BASE, "t0001": BASE[:1]}, data={"key": "k"})
    found = verdict.verdict(studies.read([a, b]))
    assert found.numbers["case"] == "refused"
    assert found.refusal.command == "mmts-ray confirm b --top 3 --seeds 5"


def test_different_batches_and_budgets_are_warned_of(tmp_path):
    a, b = study(tmp_path / "a", 0.02), study(tmp_path / "b", 0.05)
    text = b / "ledger" / "writer-1.jsonl"
    text.write_text(text.read_text().replace('"global_batch": 256', '"global_batch": 64'))
    raised = [c for c in verdict.verdict(studies.read([a, b])).checks if c.problem is not None]
    assert [(c.severity, plain(c.problem)) for c in raised] == [
        ("changes", "The studies differ in global batch: 64 and 256.")
    ]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Two synthetic studies of the same data, written as one page."""
    folder = tmp_path_factory.mktemp("several")
    folders = [synthetic(folder / name, trials=40, confirm=5, seed=seed) for name, seed in (("first", 1), ("other", 2))]
    assert command.main([str(f) for f in folders]) == 0
    path = folders[0] / "report" / "several.html"
    text = path.read_text(encoding="utf8")
    return folders, text, Tree(text), json.loads(path.with_suffix(".json").read_text(encoding="utf8"))


def test_one_page_and_its_twin(page):
    _, text, tree, twin = page
    assert [s["label"] for s in twin["studies"]] == ["first", "other"]
    ids = [attributes["id"] for _, attributes, _ in tree.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for key in ("verdict", "curves", "better", "agreement", "transfer"):
        assert key in ids
        panel = twin["panels"][key]
        assert panel["drawn"] != bool(panel["refusal"])
    assert "default-src 'none'" in text
    assert text.count("<script>") == 1
    frames = [a["data-frame"] for _, a, _ in tree.elements if "data-frame" in a]
    assert {"settings0.parameters", "settings1.parameters"} <= set(frames)


def test_every_shown_number_is_in_the_twin(page):
    _, _, tree, twin = page
    known, seen = numbers_of(twin), 0
    for _, attributes, _ in tree.elements:
        if "data-v" in attributes:
            assert float(attributes["data-v"]) in known, attributes
            seen += 1
    assert seen > 40


def test_the_same_studies_give_the_same_bytes_and_own_reports_are_left_alone(page, tmp_path):
    folders, text, _, _ = page
    again = write.write(write.make(folders), tmp_path)
    assert again.read_text(encoding="utf8") == text
    assert not (folders[0] / "report" / "report.html").exists()


def test_the_command_line_says_what_the_page_says(page, capsys):
    folders, text, _, twin = page
    found = write.summary(write.make(folders))
    assert found["sentence"] == twin["panels"]["verdict"]["title"]
    lines = write.text(found).splitlines()
    assert lines[0] == found["sentence"]
    assert lines[1].startswith("first: ")
    assert re.sub(r"\s+", " ", tables.load(folders[1]).name) in text


def points(folder, scores, *, key="k", **more):
    """A study with one search trial per score, the same learning rates in the same order in each."""
    maker = Maker(folder.name)
    for place, score in enumerate(scores):
        maker.run(f"t{place:04d}", "search", {"train.lr": 1e-3 * (1 + place), **more}, {VAL: score})
    return write_study(folder, maker.rows, meta_of(folder.name, space=SPACE[:1], data={"key": key}))


def test_two_studies_agree_by_the_order_of_the_settings_that_ran_in_both(tmp_path):
    cheap = [0.2 + 0.01 * place for place in range(12)]
    dear = [0.5 + 0.01 * place for place in range(12)]
    dear[10], dear[11] = dear[11], dear[10]
    heads = {"model.name": "frozen_heads", "model.dim": 256, "data.name": "openmoji"}
    towers = {"model.name": "open_clip", "data.name": "openmoji"}
    folders = [
        points(tmp_path / "frozen", cheap, **heads),
        points(tmp_path / "towers", dear, key="other", **towers),
        points(tmp_path / "few", cheap[:9], **heads),
    ]
    found = agreement.agreement(studies.read(folders))
    (row,) = found.frames["pairs"].to_dict("records")
    assert (row["first"], row["second"], row["n"]) == ("frozen", "towers", 12)
    assert row["correlation"] == pytest.approx(1 - 6 * 2 / (12 * 143))
    assert row["lo"] < row["correlation"] < row["hi"]
    assert row["regret"] == pytest.approx(0.01)  # the best by the first is the second best by the second
    assert "rank correlation 0.99" in plain(found.title)
    assert "towers" in plain(agreement.draw(studies.read(folders), found))
    # a schedule of another kind is another setting
    other = points(tmp_path / "cosine", dear, **towers, **{"schedule.name": "cosine"})
    refused = agreement.agreement(studies.read([folders[0], other])).refusal
    assert refused.needs.startswith("Needs 10 settings that ran in both")
    assert refused.command.splitlines()[0].endswith("frozen/study.yaml --out frozen-random strategy=random")
