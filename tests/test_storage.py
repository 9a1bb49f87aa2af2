"""Studies on object storage: addresses, outages, torn lines, leases; and nothing of a credential in any message."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import object_store
import pytest

from mmts_ray import results, status, storage
from mmts_ray.storage import address, lease, outbox, remote

pytest.importorskip("flask", reason="moto[server] is not installed")
SECRET = "wJalrXUtnFEMIK7MDENG"
URI = f"s3://{object_store.BUCKET}/studies/demo"


@pytest.fixture(scope="module")
def server():
    with object_store.serving() as door:
        yield door


@pytest.fixture
def door(server, monkeypatch, tmp_path):
    """A fresh address on the server, and a cache of this test's own."""
    for name, value in object_store.environment(server).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MMTS_RAY_CACHE", str(tmp_path / "cache"))
    storage._places.clear()
    remote.Remote(address.parse(URI)).delete("")
    yield server
    for place in storage._places.values():
        if place.outbox is not None:
            place.outbox.close(0.0)
    if server.listener is None:
        server.open()


@pytest.fixture
def study(door):
    """The folder that stands for a study which is on the storage."""
    local = storage.folder(URI)
    local.mkdir(parents=True)
    for name in storage.TRUTH:
        (local / name).write_text(f"{name}\n")
    storage.publish(local, *storage.TRUTH)
    return local


def elsewhere(tmp_path, monkeypatch, name="other"):
    """The same study as a machine sees it that has never had it."""
    monkeypatch.setenv("MMTS_RAY_CACHE", str(tmp_path / name))
    storage._places.clear()
    local = storage.folder(URI)
    storage.refresh(local)
    return local


def start(trial, **more):
    return {"trial": trial, "kind": "search", "step": 0, "status": "running", "param.train.lr": 0.1, **more}


def key(record):
    return sorted(map(str, record.items()))


@pytest.mark.parametrize(
    ("text", "is_"),
    [
        ("studies/demo", Path("studies/demo")),
        ("/nfs/studies/demo", Path("/nfs/studies/demo")),
        ("file:///nfs/a%20b", Path("/nfs/a b")),
        ("file:/nfs/demo", Path("/nfs/demo")),
        ("s3://b/x/demo", "s3://b/x/demo"),
        ("s3:/b/x/demo", "s3://b/x/demo"),
        ("S3://b/x/demo/", "s3://b/x/demo"),
        ("gs://b-1.c/demo", "gs://b-1.c/demo"),
        ("s3://b/demo?endpoint_override=host:9000&scheme=http&region=eu-x", "s3://b/demo"),
    ],
)
def test_an_address_is_a_folder_or_a_place_on_object_storage(text, is_):
    found = address.parse(text)
    assert (found if isinstance(is_, Path) else found.text) == is_
    if not isinstance(is_, Path):
        assert address.parse(found.uri) == found, "another machine finds the same"


@pytest.mark.parametrize(
    "text",
    [
        f"s3://AKIA123:{SECRET}@bucket/demo",
        f"s3://AKIA123:{SECRET.replace('w', '%2F')}@bucket/demo",
        f"gs://{SECRET}@bucket/demo",
        f"s3://bucket/demo?secret_key={SECRET}",
        f"s3://bucket/demo?X-Amz-Signature={SECRET}",
        f"s3://bucket/demo?endpoint_override=user:{SECRET}@host:9000",
        f"https://user:{SECRET}@host/demo",
        "s3://bucket",
        "s3://bucket/",
        "s3://bucket/a//b",
        "s3://bucket/../x",
        "s3:///x",
        "s3://bucket/a b",
        "s3://bucket/a#b",
        "hdfs://host/x",
        "abfs://x/y",
    ],
)
def test_what_is_no_address_or_holds_a_credential_is_refused_in_one_line_that_does_not_repeat_it(text, capsys):
    with pytest.raises(ValueError, match="legal") as refused:
        address.parse(text)
    assert SECRET not in str(refused.value)
    assert "\n" not in str(refused.value)
    from mmts_ray.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["status", text])
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert SECRET not in told.err + told.out
    assert told.err.count("\n") == 1


def test_an_endpoint_with_a_password_in_the_environment_is_refused(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://me:{SECRET}@host:9000")
    with pytest.raises(ValueError, match="AWS_ENDPOINT_URL: legal is") as refused:
        address.parse("s3://b/x")
    assert SECRET not in str(refused.value)


def objects(kind, request):
    if kind == "s3":
        request.getfixturevalue("door")
        return remote.Remote(address.parse(URI))
    server = pytest.importorskip("gcp_storage_emulator.server", reason="no stand-in for Google's storage")
    (port,) = __import__("own_ray").free_ports(1)
    stand_in = server.create_server("127.0.0.1", port, in_memory=True, default_bucket=object_store.BUCKET)
    stand_in.start()
    request.addfinalizer(stand_in.stop)
    request.getfixturevalue("monkeypatch").setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    return remote.Remote(address.parse(URI.replace("s3://", "gs://")))


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_objects_are_put_whole_read_back_listed_and_deleted(kind, request, tmp_path):
    there = objects(kind, request)
    assert there.listing() == {}
    assert (there.read("none"), there.find("none")) == (None, None)
    big = os.urandom(6 * 2**20)
    (tmp_path / "big").write_bytes(big)
    before = time.time()
    there.put("checkpoints/t0/last.pt", tmp_path / "big")
    there.put("checkpoints/t1/last.pt", b"x")
    there.put("empty", b"")
    with pytest.raises(FileNotFoundError):
        there.put("never", tmp_path / "absent")
    assert {name: found.size for name, found in there.listing().items()} == {
        "checkpoints/t0/last.pt": len(big), "checkpoints/t1/last.pt": 1, "empty": 0,
    }  # fmt: skip
    assert before - 5 < there.find("checkpoints/t0/last.pt").time < time.time() + 5
    there.get("checkpoints/t0/last.pt", tmp_path / "back" / "last.pt", time=12345.0)
    assert (tmp_path / "back" / "last.pt").read_bytes() == big
    assert (tmp_path / "back" / "last.pt").stat().st_mtime == 12345.0
    with pytest.raises(FileNotFoundError):
        there.get("none", tmp_path / "back" / "none")
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["last.pt"], "no half of a file is left"
    there.put("checkpoints/t1/last.pt", b"longer")
    assert there.read("checkpoints/t1/last.pt") == b"longer"
    there.delete("checkpoints/t0")
    there.delete("checkpoints/t0")
    assert set(there.listing()) == {"checkpoints/t1/last.pt", "empty"}


def test_names_in_a_bucket_lead_nowhere_out_of_the_folder(study, door, tmp_path, monkeypatch):
    """Somebody else's study: what it holds is written under names of its choice, and only inside the working copy."""
    import boto3

    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{door.port}", region_name="us-east-1")
    names = [
        "ledger/../../evil.000000000000.jsonl", "ledger/a/b.000000000000.jsonl", "ledger//tmp/x.000000000000.jsonl",
        "ranks/../evil.parquet", "ranks/..parquet", "ranks/a/b.parquet", "../evil", "ranks/t0001-2.parquet",
    ]  # fmt: skip
    keys = [{"Bucket": object_store.BUCKET, "Key": f"studies/demo/{name}"} for name in names]
    for key in keys:
        client.put_object(**key, Body=b"{}")
    other = elsewhere(tmp_path, monkeypatch)
    for key in keys:  # some have names that pyarrow itself refuses to delete
        client.delete_object(**key)
    found = {str(path.relative_to(other.parent)) for path in (tmp_path / "other").rglob("*") if path.is_file()}
    inside = {f"{other.name}/{name}" for name in (".id", "meta.json", "study.yaml", "ranks/t0001-2.parquet")}
    assert found == {f"{other.name}.address"} | inside


class Strict:
    """Amazon's answers to who may list `studies/*` only: "denied" for an object that is asked for and is not there."""

    def __init__(self, fs):
        self.fs = fs

    def __getattr__(self, name):
        def checked(path, *args, **kwargs):
            from pyarrow.fs import FileSelector

            there = path.base_dir if isinstance(path, FileSelector) else path
            assert there.startswith(f"{object_store.BUCKET}/studies/demo")
            if name != "open_output_stream" and isinstance(path, str) and not self.fs.get_file_info(path).is_file:
                raise OSError("AWS Error ACCESS_DENIED during HeadObject operation: No response body.")
            return getattr(self.fs, name)(path, *args, **kwargs)

        return checked


def test_rights_to_the_studies_part_of_a_bucket_are_enough(door, tmp_path):
    there = remote.Remote(address.parse(URI))
    there._fs = Strict(there.fs)
    assert there.read("lease.json") is None
    assert there.find("checkpoints/t0/last.pt") is None
    there.delete("checkpoints/t0")
    there.delete("lease.json")
    there.put("checkpoints/t0/last.pt", b"x")
    there.put("checkpoints/t0-1/last.pt", b"x")
    there.put("lease.json", b"{}")
    with lease.hold(there, settle=0.0):
        assert there.find("lease.json").size > 10
    there.delete("checkpoints/t0")
    assert set(there.listing()) == {"checkpoints/t0-1/last.pt"}
    there.put("checkpoints/t0/last.pt", b"x")
    there.delete("checkpoints/t0*")
    there.delete("")
    assert there.listing() == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bucket": "no-such-bucket"}, "there is no bucket 'no-such-bucket'; make it first"),
        ({"endpoint": "127.0.0.1:9"}, "no answer from the storage at 127.0.0.1:9"),
    ],
)
def test_a_storage_that_cannot_be_used_is_refused_in_one_line_before_anything_runs(change, words, door, capsys):
    from mmts_ray.cli import main

    parsed = address.parse(URI)
    uri = f"s3://{change.get('bucket', parsed.bucket)}/x/demo"
    if "endpoint" in change:
        uri += f"?endpoint_override={change['endpoint']}&scheme=http"
    space = Path(__file__).parents[1] / "search_spaces" / "demo.yaml"
    assert main(["search", str(space), "--out", uri]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_without_the_right_to_write_the_line_says_where_credentials_come_from():
    there = remote.Remote(address.parse("s3://b/x"))
    for said in (
        "AWS Error ACCESS_DENIED during PutObject operation: Access Denied",
        "AWS Error UNKNOWN (HTTP status 403)",
        "AWS Error INVALID_ACCESS_KEY_ID during HeadObject",
    ):
        assert there.explain(OSError(said)).startswith("s3://b/x: access is denied; credentials come from AWS_ACCESS")


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
from mmts_ray import results, status, storage
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


DRIVER = """
import sys, time
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


def test_plain_folders_know_nothing_of_all_this(tmp_path, monkeypatch):
    monkeypatch.setenv("MMTS_RAY_CACHE", str(tmp_path / "cache"))
    local = storage.folder(str(tmp_path / "plain"))
    assert local == tmp_path / "plain"
    assert storage.uri(local) is None
    assert storage.name(local) == str(local)
    assert storage.settle(local)
    storage.refresh(local)
    with storage.driving(local):
        pass
    assert not (tmp_path / "cache").exists()
    # a folder of somebody else that comes with a mark of its own names no server to connect to
    (tmp_path / "plain.address").write_text(URI)
    assert storage.uri(local) is None
