"""docs/claims.md says what docs/claims.csv holds, and the studies have the arms that the claims are measured on."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from ledger_maker import Maker, meta_of, write_study

from mmts_ray import results, space_file

ROOT = Path(__file__).parents[1]
MEASURED = ("i2t_r1", "i2t_r5", "i2t_r10", "tail_r1", "head_r1", "modality_distance", "modality_accuracy")
MEASURED += ("i2t_map", "t2i_map", "i2t_ndcg", "ndcg", "rare_map", "medium_map", "common_map", "tail_map")
STUDIES = sorted((ROOT / "search_spaces" / "studies").glob("*.yaml"))


@pytest.fixture(scope="module")
def claims():
    spec = importlib.util.spec_from_file_location("claims", ROOT / "benchmarks" / "claims.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["claims"] = module
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        spec.loader.exec_module(module)
    return module


def test_every_number_of_the_page_comes_from_the_table(claims):
    rows = claims.read_table(ROOT / "docs" / "claims.csv")
    assert (ROOT / "docs" / "claims.md").read_text(encoding="utf8") == claims.page(rows)
    assert {row.claim for row in rows} <= {c.key for c in claims.CLAIMS if c.study}
    changed = [claims.Row(**{**vars(rows[0]), "value": rows[0].value + 1}), *rows[1:]]
    assert claims.page(changed) != claims.page(rows)


def row(claims, value, half, expected):
    return claims.Row("k", "a minus b", value, value - half, value + half, 5, "points", expected)


def test_a_verdict_follows_from_the_intervals(claims):
    gain, noise, loss = row(claims, 2, 1, "+"), row(claims, 1, 2, "+"), row(claims, -2, 1, "-")
    assert claims.verdict([gain, loss]) == "reproduced"
    assert claims.verdict([gain, noise]) == "partly reproduced"
    assert claims.verdict([noise]) == "not reproduced"
    assert claims.verdict([row(claims, 0.1, 1, "0")]) == "reproduced"
    assert claims.verdict([row(claims, 0.1, 3, "0")]) == "not reproduced (too few seeds to tell)"
    assert claims.verdict([row(claims, 3, 0.5, "0")]) == "not reproduced"
    assert claims.verdict([row(claims, 99.9, 0.5, ">=99")]) == "reproduced"
    assert claims.verdict([row(claims, 3, 1, ">=")]) == "reproduced", "better is no loss"
    assert claims.verdict([row(claims, -1, 1.5, ">=")]) == "not reproduced"
    assert claims.verdict([row(claims, 3, 1, "")]) == "described"


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_a_study_of_a_paper_is_headed_by_what_it_gave_and_pairs_its_arms(path):
    text = path.read_text()
    assert f"mmts-ray search $S --out studies/{path.stem}" in text
    assert "TIME" not in text
    assert "RESULT" not in text
    study = space_file.load(path)
    assert study.study == path.stem
    assert not study.searched
    assert study.confirm_seeds >= 3
    hashes = [study.baseline_config(name).hash for name, _ in study.baselines]
    assert len(set(hashes)) == len(hashes), "two arms are the same configuration"


def test_the_claims_are_measured_on_arms_that_the_studies_have(claims, tmp_path):
    rng = np.random.default_rng(1)
    for path in STUDIES:
        names = [arm["name"] for arm in yaml.safe_load(path.read_text())["baseline"]]
        maker = Maker(path.stem)
        for number, name in enumerate(names):
            params = {"schedule.value": number}
            maker.run(f"t{number:04d}", "baseline", params, {"val_i2t_r1": 0.3}, name=name)
            for seed in range(1000, 1004):
                draw = {k: float(0.3 + 0.01 * rng.standard_normal()) for k in MEASURED}
                metrics = {f"{split}_{k}": v for split in ("val", "test") for k, v in draw.items()}
                trial = f"c{number:04d}{seed}"
                maker.run(trial, "confirm", params, metrics, seed=seed, name=name)
                ranks = np.array([0, 7, 300], dtype=np.int32)
                results.write_ranks(tmp_path / path.stem, trial, {"image": np.arange(3, dtype=np.int32), "i2t": ranks})
        shares = [0.0] * 20 + [0.05] * 20
        similarities = {"images_compared": 9, "captions": shares, "images": shares}
        meta = meta_of(path.stem, baselines=names, space=[], objective={"val_i2t_r1": "max"})
        meta["data"] = {**meta["data"], "health": {"similarities": similarities}}
        write_study(tmp_path / path.stem, maker.rows, meta)
    rows = claims.measured(tmp_path)
    kept = claims.read_table(ROOT / "docs" / "claims.csv")
    assert {r.claim for r in rows} == {c.key for c in claims.CLAIMS if c.study}
    run = {r.claim for r in kept}
    assert [(r.claim, r.expected) for r in rows if r.claim in run] == [(r.claim, r.expected) for r in kept]
    assert all(r.lo <= r.value <= r.hi for r in rows)
    above = next(r for r in rows if r.quantity.endswith("above 0.8"))
    assert above.value == pytest.approx(100 * 4 * 0.05)
