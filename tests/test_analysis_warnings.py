"""Warnings: their order, what must be equal across runs, what a study left behind."""

import numpy as np
import pytest
from ledger_maker import SPACE, Maker, meta_of, native, synthetic, write_study
from mmts_ray.analysis import report, tables
from mmts_ray.analysis.panels import collected
from mmts_ray.analysis.wording import plain
from sweeps import VAL


def all_warnings(folder):
    raised, passed = collected.warnings(report.find(tables.load(folder)))
    return {plain(w["problem"]): w for w in raised}, passed


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
