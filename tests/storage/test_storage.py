"""Studies on object storage: addresses, objects, rights; and nothing of a credential in any message."""

import os
import time
from pathlib import Path

import object_store
import pytest
from object_store import URI, elsewhere

from mmts_ray import storage
from mmts_ray.storage import address, lease, remote

pytest.importorskip("flask", reason="moto[server] is not installed")
SECRET = "wJalrXUtnFEMIK7MDENG"


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
    space = Path(__file__).parents[2] / "search_spaces" / "demo.yaml"
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
