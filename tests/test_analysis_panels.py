"""Panels that show runs as they are: luck, the history, the ledger."""

import pytest
from ledger_maker import synthetic
from mmts_ray.analysis import tables
from mmts_ray.analysis.panels import fresh, history, ledger, verdict
from sweeps import VAL


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
