"""One driver at a time: its lease, and who takes it over."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from object_store import URI, elsewhere

from mmts_ray import status, storage
from mmts_ray.storage import address, lease, remote

pytest.importorskip("flask", reason="moto[server] is not installed")
DRIVER = """
import sys, time
from mmts_ray import status, storage
from mmts_ray.storage import address, lease, remote
lease.socket.gethostname = lambda: sys.argv[2]
with lease.hold(remote.Remote(address.parse(sys.argv[1])), life=float(sys.argv[3]), renew=0.3, settle=0.2):
    print("driving", flush=True)
    time.sleep(600)
"""


def driver(host, life):
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, URI, host, str(life)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "driving\n", process.communicate()
    return process


def test_a_second_driver_is_refused_and_the_lease_of_a_dead_one_expires(door, capsys):
    there = remote.Remote(address.parse(URI))
    first = driver("another-machine", 3.0)
    began = time.monotonic()
    with (
        pytest.raises(ValueError, match=f"{URI}: process {first.pid} on another-machine is driving this study"),
        lease.hold(there, life=30.0, renew=0.3, settle=0.2),
    ):
        pass
    assert time.monotonic() - began < 20, "a driver that lives is noticed when it renews, not when it would be dead"
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    began = time.monotonic()
    with lease.hold(there, life=3.0, renew=0.3, settle=0.2):
        assert 3.0 <= time.monotonic() - began < 25
        assert "another-machine until it is silent for 3 s" in capsys.readouterr().err
    assert there.find(lease.NAME) is None
    second = driver(lease.socket.gethostname(), 1000.0)
    os.kill(second.pid, signal.SIGKILL)
    second.wait()
    began = time.monotonic()
    with lease.hold(there, life=1000.0, renew=0.3, settle=0.2):
        assert time.monotonic() - began < 20, "this machine knows at once that its own process is dead"


def test_who_drives_and_what_it_does_is_seen_from_another_machine_until_it_ends(study, door, tmp_path, monkeypatch):
    now = time.time()
    note = {"pid": 7, "host": "head", "since": now - 90, "time": now, "planned": 9, "ended": 3, "waiting": "for a GPU"}
    there = remote.Remote(address.parse(URI))
    with lease.hold(there, folder=study, renew=0.2, settle=0.1):
        (study / lease.NOTE).write_text(json.dumps(note))
        while b"for a GPU" not in there.read(lease.NAME):
            time.sleep(0.1)
        other = elsewhere(tmp_path, monkeypatch)
        assert lease.note(other) == note
        lines = status.driver_lines({"driver": lease.note(other), "seconds_left": None, "folder": URI})
        assert lines[:2] == ["3 of 9 trials of this run have ended", "for a GPU"]
        assert lines[2].startswith("driven by process 7 on head for 1:3")
        (other / lease.NOTE).write_text(json.dumps({**note, "time": now - 500, "host": "died here long ago"}))
        assert lease.note(other) == note, "the newest word counts"
        (study / lease.NOTE).write_text(json.dumps(note)[:40])  # half written: who drives is known, what it does is not
        while b"for a GPU" in there.read(lease.NAME):
            time.sleep(0.1)
        storage.refresh(other)
        (other / lease.NOTE).unlink()
        assert lease.note(other) is None
    (study / lease.NOTE).unlink()
    storage.refresh(other)
    assert not (other / lease.NAME).exists()


def test_a_driver_whose_lease_another_one_has_taken_stops(door):
    there = remote.Remote(address.parse(URI))

    def take_over():
        time.sleep(1.0)
        # a renewal at the same moment may have been the later writer
        while (lease._read(there) or {}).get("token") != "other":
            lease._write(there, {"token": "other", "host": "h", "pid": 1}, 60.0)
            time.sleep(0.5)

    other = threading.Thread(target=take_over, daemon=True)
    other.start()
    began, before = time.monotonic(), signal.signal(signal.SIGINT, signal.default_int_handler)
    with (
        pytest.raises(ValueError, match="another driver has taken the study over; this one has stopped"),
        lease.hold(there, renew=0.2, settle=0.1),
    ):
        time.sleep(60)
    signal.signal(signal.SIGINT, before)
    other.join()
    assert time.monotonic() - began < 20
    assert lease._read(there)["token"] == "other", "its lease is left alone"


def test_of_two_that_find_no_driver_at_the_same_moment_the_last_writer_drives(door, monkeypatch):
    there = remote.Remote(address.parse(URI))
    looked, outcome = threading.Barrier(2, timeout=60), []
    look = lease._wait_for_its_end

    def look_together(remote, life):
        look(remote, life)
        looked.wait()  # without it, one may be so late that it sees the other one's name, and drives after it

    monkeypatch.setattr(lease, "_wait_for_its_end", look_together)

    def compete():
        try:
            with lease.hold(there, life=60.0, renew=20.0, settle=5.0):
                outcome.append("drives")
                time.sleep(8.0)
        except ValueError as problem:
            outcome.append(str(problem))

    both = [threading.Thread(target=compete) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    drives, refused = sorted(outcome)
    assert drives == "drives"
    assert "is driving this study" in refused
