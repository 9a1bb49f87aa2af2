"""The ledger: append, torn lines, folding, whole-file writes."""

import json
import os
import signal
import subprocess
import sys

import pytest

from mmts_ray import results


def start(trial, **more):
    return {"trial": trial, "kind": "search", "step": 0, "status": "running", "param.train.lr": 0.1, **more}


def test_a_trial_is_its_start_under_its_end(tmp_path):
    ledger = results.Ledger(tmp_path)
    ledger.append(start("t0000", seed=3))
    ledger.append({"trial": "t0000", "step": 5, "epoch": 1, "status": "running", "metric.val_r1": 0.2})
    ledger.append({"trial": "t0000", "step": 9, "epoch": 2, "status": "done", "metric.val_r1": 0.4})
    ledger.append(start("t0001"))
    ledger.close()
    trials, steps = results.read(tmp_path)
    assert list(trials["status"]) == ["done", "running"]
    assert trials.loc[0, "param.train.lr"] == 0.1
    assert trials.loc[0, "metric.val_r1"] == 0.4
    assert trials.loc[0, "seed"] == 3
    assert list(steps["step"]) == [5]
    assert trials.attrs["duplicates"] == 0


def test_repeated_steps_and_ends_are_folded_and_counted_and_starts_are_counted(tmp_path):
    first, second = results.Ledger(tmp_path), results.Ledger(tmp_path)
    first.append(start("t0000", time=1.0, status="waiting"))
    first.append(start("t0000", time=2.0))
    first.append({"trial": "t0000", "step": 5, "status": "running", "metric.val_r1": 0.2, "time": 3.0})
    second.append(start("t0000", time=4.0))
    second.append({"trial": "t0000", "step": 5, "status": "running", "metric.val_r1": 0.3, "time": 5.0})
    second.append({"trial": "t0000", "step": 9, "status": "done", "metric.val_r1": 0.4, "time": 6.0})
    first.append({"trial": "t0000", "step": 9, "status": "done", "metric.val_r1": 0.4, "time": 7.0})
    (trial,), (step,), duplicates = results.fold(results.records(tmp_path))
    assert duplicates == 2
    assert step["metric.val_r1"] == 0.3
    assert trial["starts"] == 2
    assert (trial["time"], trial["end_time"]) == (1.0, 7.0)


def test_device_seconds_count_what_was_trained_twice_and_say_how_much_that_was(tmp_path):
    """A trial of 2 devices killed twice: at 50 with a checkpoint at 30, and at once at 31; and one never killed."""
    ledger = results.Ledger(tmp_path)
    lines = [
        start("t0000", time=1.0),
        {"trial": "t0000", "status": "running", "seconds": 0.0, "device_seconds": 0.0, "time": 2.0},
        {"trial": "t0000", "step": 5, "status": "running", "device_seconds": 80.0, "metric.a": 1, "time": 42.0},
        {"trial": "t0000", "step": 5, "status": "running", "device_seconds": 100.0, "time": 52.0},  # a sign of life
        {"trial": "t0000", "step": 3, "status": "running", "device_seconds": 60.0, "time": 90.0},  # taken up again
        {"trial": "t0000", "step": 4, "status": "running", "device_seconds": 62.0, "time": 91.0},
        {"trial": "t0000", "step": 3, "status": "running", "device_seconds": 60.0, "time": 95.0},
        {"trial": "t0000", "step": 5, "status": "running", "device_seconds": 80.0, "metric.a": 1, "time": 105.0},
    ]
    for line in lines:
        ledger.append(line)
    (trial,), steps, duplicates = results.fold(results.records(tmp_path))
    assert (trial["device_seconds"], trial["lost_device_seconds"]) == (80 + 40 + 2, 42), "a running trial counts too"
    ledger.append({"trial": "t0000", "step": 9, "status": "done", "device_seconds": 120.0, "time": 125.0})
    ledger.append({"trial": "t0000", "step": 9, "status": "done", "device_seconds": 110.0, "time": 126.0})  # an orphan
    ledger.append(start("t0001", time=3.0))
    ledger.append({"trial": "t0001", "step": 9, "status": "done", "device_seconds": 7.0, "time": 9.0})
    ledger.append(start("t0002", time=4.0))
    trials, steps, duplicates = results.fold(results.records(tmp_path))
    assert [(t.get("device_seconds"), t.get("lost_device_seconds")) for t in trials] == [
        (162, 42),
        (7, 0),
        (None, None),
    ]
    assert [s["time"] for s in steps] == [105.0], "a sign of life is no evaluation"
    assert duplicates == 2


def test_torn_and_foreign_lines_are_skipped(tmp_path):
    ledger = results.Ledger(tmp_path)
    ledger.append(start("t0000"))
    ledger.append({"trial": "t0000", "step": 9, "status": "done"})
    raw = ledger.path.read_text()
    for cut in range(len(raw)):
        ledger.path.write_text(raw[:cut])
        trials = results.trials_of(tmp_path)
        whole = raw[:cut].count("\n") + (raw[:cut].endswith("}"))
        assert len(trials) == min(1, whole)
        assert [t["status"] for t in trials.values()] == ["done" if whole == 2 else "running"] * min(1, whole)
    ledger.path.write_bytes(b"\xff\xfe\n[1]\n3\n" + raw.encode())
    assert results.trials_of(tmp_path)["t0000"]["status"] == "done"


def test_unknown_keys_are_refused_and_non_finite_numbers_become_null(tmp_path):
    ledger = results.Ledger(tmp_path)
    with pytest.raises(ValueError, match=r"not a ledger key: accuracy; legal are .*metric\.\*"):
        ledger.append({"trial": "t0000", "accuracy": 1})
    assert not ledger.path.exists()
    ledger.append({"trial": "t0000", "metric.val_r1": float("nan"), "status": "running", "param.x": None})
    (record,) = results.records(tmp_path)
    assert record["metric.val_r1"] is None
    assert record["param.x"] is None


WRITER = """
import sys
from mmts_ray.results import Ledger
ledger = Ledger(sys.argv[1])
n = 0
while True:
    ledger.append({"trial": f"t{n}", "status": "running", "param.x": n})
    n += 1
    if n == 50: print("going", flush=True)
"""


def test_a_killed_writer_loses_at_most_its_last_record(tmp_path):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdout.readline() == "going\n"
    for writer in writers:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    for path in (tmp_path / "ledger").glob("*.jsonl"):
        *whole, last = path.read_text().split("\n")
        assert [json.loads(line)["param.x"] for line in whole] == list(range(len(whole)))
        assert len(whole) >= 50
        assert last == "" or not last.endswith("}")


def test_meta_is_written_whole_and_a_wrong_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"not a study folder \(meta.json is missing\)"):
        results.read_meta(tmp_path)
    results.write_meta(tmp_path, {"study": "s"})
    assert results.read_meta(tmp_path)["study"] == "s"
    assert [p.name for p in tmp_path.iterdir()] == ["meta.json"]
    (tmp_path / "meta.json").write_text(json.dumps({"schema": 99}))
    with pytest.raises(ValueError, match="schema 99; this version reads 1"):
        results.read_meta(tmp_path)


def test_collect_gives_a_row_per_trial_and_keeps_types(tmp_path):
    import pandas as pd

    ledger = results.Ledger(tmp_path)
    ledger.append(start("t0000", **{"param.loss.name": "siglip", "note": ["a", "b"]}))
    ledger.append(start("t0001", **{"param.loss.filter_threshold": None}))
    ledger.append({"trial": "t0001", "step": 9, "status": "done", "metric.val_r1": 0.5})
    frame = pd.read_parquet(results.collect(tmp_path))
    assert list(frame["trial"]) == ["t0000", "t0001"]
    assert frame["metric.val_r1"].tolist()[1] == 0.5
    assert frame.loc[0, "param.loss.name"] == "siglip"
    assert json.loads(frame.loc[0, "note"]) == ["a", "b"]


def messy_ledger(folder, seed):
    """Several writers, repeated and shuffled records, torn, foreign and oddly spelled lines."""
    import numpy as np

    rng = np.random.default_rng(seed)
    lines = []
    for n in range(30):
        odd = ('q"\\é', '"status": "running"', '"param.x"')
        name = odd[n % 3] if rng.random() < 0.3 else f"n{n}"
        head = {"trial": f"t{int(rng.integers(0, 8)):04d}", "time": float(rng.integers(0, 20))}
        record = [
            {**head, "name": name, "status": str(rng.choice(["running", "waiting"])), "param.train.lr": 0.1, "seed": n},
            {**head, "step": int(rng.integers(0, 4)), "status": "running", "metric.val_r1": n / 10},
            {**head, "step": 2, "status": "running", "device_seconds": float(rng.integers(0, 9))},
            {
                **head,
                "step": 9,
                "device_seconds": 3.0,
                "status": str(rng.choice(results.FINISHED)),
                "error": name,
                "metric.val_r1": n / 10,
            },
            {**head, "status": "running", "error": '{"status": "done"}'},
            {**head, "status": "running", "nested": {"status": "done", "param.y": 1}},
        ][int(rng.choice(6, p=[0.2, 0.3, 0.2, 0.2, 0.05, 0.05]))]
        text = json.dumps(record, separators=(",", ":") if rng.random() < 0.2 else None)
        if rng.random() < 0.1:  # the same record, spelled so that its bytes hide what it is
            text = (
                text.replace("status", "\\u0073tatus").replace("aram.", "\\u0061ram.").replace("vice_", "\\u0076ice_")
            )
        if rng.random() < 0.1:
            text = text[:-1] + ', "status": "done"}'  # a key given twice: the last one counts
        if rng.random() < 0.15:
            text = text[: int(rng.integers(0, len(text)))]
        lines += [text.encode()] * (2 if rng.random() < 0.2 else 1)
    lines += [b"[1]", b"", b"3", b'{"trial": 1', b"\xff\xfe"]
    order = rng.permutation(len(lines))
    (folder / "ledger").mkdir(parents=True)
    for part in range(3):
        raw = b"\n".join(lines[i] for i in order[part::3])
        (folder / "ledger" / f"w-{part}.jsonl").write_bytes(raw + (b"\n" if rng.random() < 0.5 else b""))
    return folder


@pytest.mark.parametrize("seed", range(40))
def test_passing_over_steps_unparsed_gives_exactly_the_trials_of_the_whole_fold(seed, tmp_path):
    folder = messy_ledger(tmp_path / "s", seed)
    trials, _, _ = results.fold(results.records(folder))
    assert results.fold(results.records(folder, steps=False))[0] == trials
    assert len(list(results.records(folder, steps=False))) <= len(list(results.records(folder)))
    assert results.trials_of(folder) == {row["trial"]: row for row in trials}


def test_steps_as_the_platform_writes_them_are_passed_over(tmp_path):
    ledger = results.Ledger(tmp_path)
    ledger.append(start("t0000"))
    for step in range(5):
        ledger.append({"trial": "t0000", "step": step, "status": "running", "metric.val_r1": 0.1})
    ledger.append({"trial": "t0000", "step": 9, "status": "done"})
    assert len(list(results.records(tmp_path, steps=False))) == 2


@pytest.mark.parametrize("seed", range(10))
def test_following_a_growing_ledger_gives_every_record_once(seed, tmp_path):
    whole = messy_ledger(tmp_path / "whole", seed)
    growing = tmp_path / "growing"
    (growing / "ledger").mkdir(parents=True)
    follow, seen, places = results.Follow(growing), [], {}
    while True:
        grew = False
        for path in sorted((whole / "ledger").iterdir()):
            raw, place = path.read_bytes(), places.get(path, 0)
            with (growing / "ledger" / path.name).open("ab") as copy:  # pieces that cut lines anywhere
                copy.write(raw[place : place + 97])
            places[path] = place + 97
            grew = grew or place < len(raw)
        seen += follow.new()
        if not grew:
            break
    key = lambda record: json.dumps(record, sort_keys=True)  # noqa: E731
    assert sorted(map(key, seen)) == sorted(map(key, results.records(whole)))
    assert follow.new() == []


def test_ranks_are_written_whole_and_what_is_no_parquet_is_not_there(tmp_path):
    import numpy as np

    columns = {"image": np.arange(4, dtype=np.int32), "tail": np.array([True, False, True, False])}
    results.write_ranks(tmp_path, "c0001", columns)
    results.write_ranks(tmp_path, "c0002", {})
    assert [path.name for path in (tmp_path / "ranks").iterdir()] == ["c0001.parquet"]
    found = results.read_ranks(tmp_path, "c0001")
    assert found["image"].tolist() == [0, 1, 2, 3]
    assert found["tail"].tolist() == [True, False, True, False]
    (tmp_path / "ranks" / "c0001.parquet").write_bytes(b"PAR1 torn")
    assert results.read_ranks(tmp_path, "c0001") is None
    assert results.read_ranks(tmp_path, "c0002") is None
