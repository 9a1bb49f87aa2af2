"""What a study sends: outages, lost answers, killed processes and deleted studies neither lose nor repeat a record."""

import os
import signal
import subprocess
import sys
import time

import pytest
from object_store import URI, elsewhere

from mmts_ray import results, storage
from mmts_ray.storage import address, outbox, remote

pytest.importorskip("flask", reason="moto[server] is not installed")


def start(trial, **more):
    return {"trial": trial, "kind": "search", "step": 0, "status": "running", "param.train.lr": 0.1, **more}


def key(record):
    return sorted(map(str, record.items()))


def test_an_outage_delays_and_neither_loses_nor_repeats_a_record(study, door, tmp_path, monkeypatch):
    ledger = results.Ledger(study)
    written = []

    def write(number):
        ledger.append(start(f"t{number:04d}"))
        written.append(f"t{number:04d}")

    for number in range(10):
        write(number)
    assert storage.settle(study)
    (study / "checkpoints").mkdir()
    (study / "checkpoints" / "last.pt").write_bytes(b"0" * 1000)
    storage.keep(study, study / "checkpoints")
    door.shut()
    for number in range(10, 20):
        write(number)
    began = time.monotonic()
    assert not storage.settle(study, 1.5)
    assert time.monotonic() - began < 10, "a trial does not hang on a storage that is away"
    for number in range(20, 30):
        write(number)
    door.open()
    assert storage.settle(study, 60)
    other = elsewhere(tmp_path, monkeypatch)
    assert sorted(r["trial"] for r in results.records(other)) == written
    assert list(map(key, results.records(other))) == list(map(key, results.records(study)))
    names = sorted(path.name for path in (other / "ledger").iterdir())
    assert 2 <= len(names) <= 4, "what was written during the outage came in few pieces"
    storage.fetch(other, other / "checkpoints" / "last.pt")
    assert (other / "checkpoints" / "last.pt").read_bytes() == b"0" * 1000


def test_requests_that_arrive_although_they_seem_to_fail_repeat_nothing(study, tmp_path, monkeypatch):
    """The answer is lost on its way, twice for each object: the same bytes are sent again, though more was written."""
    monkeypatch.setattr(outbox, "LONGEST_PAUSE", 0.2)
    put, seen = remote.Remote.put, {}
    ledger = results.Ledger(study)

    def lossy(self, name, content):
        put(self, name, content)
        seen.setdefault(name, []).append(content)
        if len(seen[name]) < 3 and len(seen) < 4:
            ledger.append(start(f"during-{len(seen)}-{len(seen[name])}"))
            raise OSError("AWS Error NETWORK_CONNECTION: the answer was lost")

    monkeypatch.setattr(remote.Remote, "put", lossy)
    ledger.append(start("t0000"))
    assert storage.settle(study, 60)
    first = next(contents for name, contents in seen.items() if name.startswith("ledger/"))
    assert len(set(first)) == 1
    monkeypatch.setattr(remote.Remote, "put", put)
    assert storage.settle(study, 60)
    mine = sorted(r["trial"] for r in results.records(study))
    other = elsewhere(tmp_path, monkeypatch)
    assert sorted(r["trial"] for r in results.records(other)) == mine
    assert len(mine) > 2


WRITER = """
import sys, time
from mmts_ray import results, storage
local = storage.folder(sys.argv[1])
ledger = results.Ledger(local)
for number in range(50):
    ledger.append({"trial": f"t{number:04d}", "status": "running", "param.x": number})
    if number == 19:
        assert storage.settle(local)
print("sent 20 of 50", flush=True)
ledger._fd and __import__("os").write(ledger._fd, b'{"trial": "torn')
time.sleep(600)
"""


def test_what_a_killed_process_could_not_send_is_sent_by_the_next_driver_and_a_torn_line_is_not(
    study, tmp_path, monkeypatch
):
    monkeypatch.setattr(outbox, "EVERY_SECONDS", 1000.0)
    code = "from mmts_ray.storage import outbox\noutbox.EVERY_SECONDS = 1000.0\n" + WRITER
    writer = subprocess.Popen([sys.executable, "-c", code, URI], stdout=subprocess.PIPE, text=True)
    assert writer.stdout.readline() == "sent 20 of 50\n"
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    there = remote.Remote(address.parse(URI))
    assert sum(there.read(n).count(b"\n") for n in there.listing("ledger")) == 20
    for _ in range(2):
        with storage.driving(study):
            pass
    assert sum(there.read(n).count(b"\n") for n in there.listing("ledger")) == 50
    assert not any(b"torn" in there.read(n) for n in there.listing("ledger"))
    other = elsewhere(tmp_path, monkeypatch)
    assert sorted(r["trial"] for r in results.records(other)) == [f"t{n:04d}" for n in range(50)]
    storage.refresh(study)
    assert len(list((study / "ledger").iterdir())) == 1, "what was written here is not fetched back"


def test_files_are_replaced_dropped_and_fetched_only_when_newer(study, tmp_path, monkeypatch):
    for trial in ("t0", "t1"):
        (study / "checkpoints" / trial).mkdir(parents=True)
        (study / "checkpoints" / trial / "last.pt").write_text("old")
    storage.keep(study, study / "checkpoints")
    assert storage.settle(study, 60)
    (study / "checkpoints" / "t1" / "last.pt").write_text("newer")
    storage.keep(study, study / "checkpoints" / "t1" / "last.pt")
    storage.drop(study, study / "checkpoints" / "t0")
    assert storage.settle(study, 60)
    other = elsewhere(tmp_path, monkeypatch)
    for trial in ("t0", "t1"):
        storage.fetch(other, other / "checkpoints" / trial / "last.pt")
    assert not (other / "checkpoints" / "t0").exists()
    path = other / "checkpoints" / "t1" / "last.pt"
    assert path.read_text() == "newer"
    path.write_text("newest, and not sent")
    storage.fetch(other, path)
    assert path.read_text() == "newest, and not sent"


def test_a_checkpoint_that_an_ended_trial_has_left_is_deleted_by_the_next_driver(study):
    ledger = results.Ledger(study)
    for trial in ("t0", "t1"):
        ledger.append(start(trial))
        (study / "checkpoints" / trial).mkdir(parents=True)
        for name in ("last.pt", "weights.safetensors"):
            (study / "checkpoints" / trial / name).write_text(name)
    ledger.append({"trial": "t0", "step": 9, "status": "done"})
    storage.keep(study, study / "checkpoints")
    assert storage.settle(study, 60)
    with storage.driving(study):
        pass
    there = remote.Remote(address.parse(URI)).listing("checkpoints")
    assert set(there) == {
        "checkpoints/t0/weights.safetensors",
        "checkpoints/t1/last.pt",
        "checkpoints/t1/weights.safetensors",
    }


def test_a_study_that_was_deleted_there_and_made_anew_does_not_take_the_old_records(study, tmp_path, monkeypatch):
    ledger = results.Ledger(study)
    ledger.append(start("old"))
    assert storage.settle(study, 60)
    ledger.close()
    there = remote.Remote(address.parse(URI))
    there.delete("")
    with pytest.raises(ValueError, match=f"^{URI}: not a study"):
        storage.refresh(study)
    monkeypatch.setenv("MMTS_RAY_CACHE", str(tmp_path / "other"))
    storage._places.clear()
    other = storage.folder(URI)
    other.mkdir(parents=True)
    for name in storage.TRUTH:
        (other / name).write_text("new\n")
    storage.publish(other, *storage.TRUTH)
    monkeypatch.setenv("MMTS_RAY_CACHE", str(tmp_path / "cache"))
    storage._places.clear()
    again = storage.folder(URI)
    assert again == study
    with storage.driving(again):
        assert list(results.records(again)) == []
    assert not there.listing("ledger")
    (kept,) = again.parent.glob(f"{again.name}.old-*")
    assert [r["trial"] for r in results.records(kept)] == ["old"], "it is set aside, not thrown away"
