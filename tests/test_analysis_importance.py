"""Which configurations are modelled, what the importance panel says of known truths, when it refuses."""

import math

import numpy as np
import pytest
from ledger_maker import Maker, meta_of, native, synthetic, write_study
from mmts_ray.analysis import tables
from mmts_ray.analysis.model import model_of
from mmts_ray.analysis.panels import bounds, importance, interactions, plateau
from mmts_ray.analysis.wording import plain
from scipy import stats
from sweeps import VAL, mixed_space, ramp, write_more


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
