"""Pairs of parameters that only work together: found, drawn, refused."""

import numpy as np
from ledger_maker import Maker, native, synthetic
from mmts_ray.analysis import tables
from mmts_ray.analysis.panels import interactions
from mmts_ray.analysis.wording import plain
from simulator import Truth
from sweeps import VAL, write_more


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
