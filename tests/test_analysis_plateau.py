"""Widths around the winner and rings of reruns, against the truth of the simulator."""

import math
import re

import numpy as np
import pytest
from ledger_maker import synthetic
from mmts_ray.analysis import report, tables
from mmts_ray.analysis.choice import choose
from mmts_ray.analysis.model import model_of
from mmts_ray.analysis.panels import importance, isolation, plateau, rings, verdict
from mmts_ray.analysis.wording import plain
from scipy import stats
from simulator import Truth
from sweeps import with_rings


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


def test_the_safe_range_is_tinted_in_the_isolation_curves(tmp_path):
    study = with_rings(tmp_path / "s", trials=120, confirm=5, seed=4)
    found = isolation.isolation(study)
    drawn = str(isolation.draw(study, found))
    figures = re.findall(r'<svg class="fig".*?</svg>', drawn, re.DOTALL)
    gates = plateau.plateau_of(study).frames["widths"].set_index("path")["gate"]
    for parameter, figure in zip(study.space, figures, strict=True):
        assert ("var(--tint)" in figure) == (gates[parameter.path] in plateau.TOLD)
    assert gates.isin(plateau.TOLD).any()
    assert "Tinted: the safe range" in plain(found.sentences[0])


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
    label = choose(study).winner.label
    own = study.trials[study.trials["name"] == label].query("kind == 'confirm'").set_index("seed")["score"]
    row = frame.iloc[0]
    runs = study.trials[study.trials["kind"] == "probe"]
    value = [study.configs[t][row["path"]] == row["value"] for t in runs["trial"]]
    moved = runs[value].set_index("seed")["score"]
    d = (moved - own).dropna()
    half = stats.t.ppf(1 - 0.025 / len(frame), 4) * d.std(ddof=1) / math.sqrt(5)
    assert (row["drop"], row["lo"], row["hi"]) == pytest.approx((d.mean(), d.mean() - half, d.mean() + half))
    worst = plateau.plateau_of(study).numbers["worst_drop"]
    assert worst == pytest.approx(frame["drop"].min())


def test_a_run_that_moves_two_parameters_is_no_ring(tmp_path):
    study = with_rings(tmp_path / "s", trials=40, confirm=5, seed=4, two=True)
    assert rings.ring_runs(study).empty


def test_widths_are_refused_without_fresh_seeds(tmp_path):
    found = plateau.plateau_of(tables.load(synthetic(tmp_path / "s", trials=60, confirm=2)))
    assert "Needs 3 fresh seeds of the winner" in plain(found.refusal.needs)
    assert found.refusal.command == "mmts-ray confirm s --top 3 --seeds 5"


def test_the_same_ledger_gives_the_same_bytes_with_the_models_in(tmp_path):
    study = with_rings(tmp_path / "s", trials=80, confirm=5, top=6, epochs=3, seed=2)
    assert plateau.plateau_of(study).refusal is None
    pages = []
    for name in ("a", "b"):
        path = report.write(tmp_path / "s", tmp_path / name)
        pages.append((path.read_bytes(), path.with_suffix(".json").read_bytes()))
    assert pages[0] == pages[1]
