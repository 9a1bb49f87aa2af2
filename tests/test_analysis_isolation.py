"""The isolation panel and the table of settings: buckets, choices, conditions."""

import numpy as np
import pytest
from ledger_maker import SPACE, Maker, meta_of, synthetic, write_study
from mmts_ray.analysis import report, tables
from mmts_ray.analysis.panels import collected, isolation, verdict
from mmts_ray.analysis.wording import plain
from sweeps import VAL


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
