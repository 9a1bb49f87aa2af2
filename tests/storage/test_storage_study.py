"""A whole study on an S3 server: an outage, the machine lost, and the rest from a machine that has nothing."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial

import commands
import object_store
import own_ray
import pytest
import toy
import yaml

from mmts_ray import results, storage

pytest.importorskip("flask", reason="moto[server] is not installed")
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1500)]
URI = f"s3://{object_store.BUCKET}/studies/toy"
TRIALS = 5
PATIENCE = 600
wait_for = partial(commands.wait_for, seconds=PATIENCE)


@pytest.fixture
def space(tmp_path):
    content = {
        "study": "toy",
        "trials": TRIALS,
        "fixed": {
            "data.name": "features",
            "data.path": str(toy.npz(tmp_path, images=240)),
            "model.dim": 8,
            "eval.k": 3,
            "train": {"epochs": 150, "batch_size": 16, "eval_every": 10},
        },
        "search": {"train.lr": {"loguniform": [1e-3, 1e-1]}},
        "baseline": [{"name": "plain", "train.lr": 0.01}],
        "resources": {"concurrent": 1},
        "checkpoint_seconds": 0.2,
    }
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def start(*words, door, cache, cwd):
    held = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    environment = {
        **held, **object_store.environment(door), "MMTS_RAY_CACHE": str(cwd / cache), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "mmts_ray", *map(str, words)]
    return subprocess.Popen(
        command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


def status(door, cwd, cache):
    process = start("status", URI, "--json", door=door, cache=cache, cwd=cwd)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return json.loads(out)


def training_starts(folder):
    """How often a process began to train each trial: its first sign of life is written before its first step."""
    starts = Counter()
    for record in results.records(folder):
        if record.get("status") == "running" and "device_seconds" in record and record["step"] == 0:
            starts[record["trial"]] += 1
    return starts


def test_an_outage_and_a_lost_machine_cost_no_finished_trial_and_nothing_runs_twice(space, tmp_path):
    with object_store.serving() as door:
        first = start("search", space, "--out", URI, door=door, cache="one", cwd=tmp_path)
        (tmp_path / "one" / "studies").mkdir(parents=True, exist_ok=True)

        def local():
            return next(iter((tmp_path / "one" / "studies").glob("toy-*[0-9a-f]")), tmp_path)

        def ended(folder):
            return {t["trial"] for t in results.trials_of(folder).values() if t["status"] in results.FINISHED}

        wait_for(lambda: len(ended(local())) >= 1, "too late", first)
        door.shut()  # an outage while a trial runs
        time.sleep(6.0)
        assert first.poll() is None
        door.open()
        wait_for(lambda: len(ended(local())) >= 3, "too late", first)
        # the machine is lost: the driver, its trials and its Ray at once, and its disk
        assert first.poll() is None
        for pid in [*own_ray.descendants(first.pid), first.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        first.communicate()
        lost = local()
        door_ended = ended(lost)
        os.rename(tmp_path / "one", tmp_path / "lost")
        # a machine that has never seen the study reads what is there: whatever the lost one had said is done, is done
        now = status(door, tmp_path, "reader")
        assert now["folder"] == URI
        assert now["counts"].get("failed", 0) == 0
        assert now["counts"]["done"] >= 2
        assert now["driver"]["pid"] == first.pid, "who drove, and what it did, is told elsewhere too"
        assert now["driver"]["planned"] == TRIALS + 1
        # another machine, which cannot know that the first is dead: it watches the lease, then takes over
        second = start("resume", URI, "--quiet", door=door, cache="two", cwd=tmp_path)
        out, err = second.communicate(timeout=PATIENCE)
        assert second.returncode == 0, (out, err)
        assert URI in out
        third = start("resume", URI, "--quiet", door=door, cache="three", cwd=tmp_path)
        out, err = third.communicate(timeout=PATIENCE)
        assert third.returncode == 0, (out, err)
        (mirror,) = (tmp_path / "three" / "studies").glob("toy-*[0-9a-f]")
        trials = results.trials_of(mirror)
        assert {t["status"] for t in trials.values()} == {"done"}
        assert Counter(t["kind"] for t in trials.values()) == {"search": TRIALS, "baseline": 1}
        assert len({(t["config_hash"], t["seed"]) for t in trials.values()}) == len(trials)
        assert door_ended <= set(trials), "a trial that had ended on the lost machine is known"
        starts = training_starts(mirror)
        # whatever had ended is not trained again; what was under way goes on from its own checkpoint
        assert {starts[trial] for trial in door_ended} == {1}
        assert max(starts.values()) <= 2
        assert sum(starts.values()) <= len(trials) + 1
        # whole records: a trial's start and its first sign of life can fall in one millisecond
        records = [json.dumps(record, sort_keys=True) for record in results.records(mirror)]
        assert len(records) == len(set(records)), "no record is there twice"

        report = start("report", URI, door=door, cache="four", cwd=tmp_path)
        out, err = report.communicate(timeout=PATIENCE)
        assert report.returncode == 0, (out, err)
        place = storage.remote.Remote(
            storage.address.parse(f"{URI}?endpoint_override=127.0.0.1:{door.port}&scheme=http&region=us-east-1")
        )
        with pytest.MonkeyPatch.context() as patch:
            for name, value in object_store.KEYS.items():
                patch.setenv(name, value)
            there = place.listing()
            page = place.read("report/report.html")
        assert {"report/report.html", "report/report.json", "study.yaml", "meta.json", "results.parquet"} <= set(there)
        assert f"mmts-ray confirm {URI}".encode() in page, "commands in the report name the study, not a local folder"
        assert storage.lease.NAME not in there
        local = [path for path in tmp_path.rglob("*") if path.is_file()]
        with pytest.MonkeyPatch.context() as patch:
            for name, value in object_store.KEYS.items():
                patch.setenv(name, value)
            contents = [place.read(name) for name in there] + [path.read_bytes() for path in local]
        assert len(contents) > 40
        assert not [content for content in contents if object_store.SECRET.encode() in content], (
            "a credential is in a file"
        )
        weights = [name for name in there if name.endswith("weights.safetensors")]
        assert len(weights) == len(trials)
        assert not [name for name in there if name.endswith("last.pt")]
