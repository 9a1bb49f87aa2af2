"""Nodes that do not share the study's folder: refused before anything is trained, and when one joins later."""

import json
import os
import subprocess
import sys
from collections import Counter
from functools import partial

import commands
import object_store
import own_ray
import pytest
import toy

from mmts_ray import results, storage

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not own_ray.can_hide(), reason="this user may not mount: no node can be hidden a folder"),
]
PATIENCE = 400
wait_for = partial(commands.wait_for, seconds=PATIENCE)


def search(space, study, *words, verb="search", head, env):
    target = [str(space), "--out", str(study)] if verb == "search" else [str(study)]
    command = [sys.executable, "-m", "mmts_ray", verb, *target, "--address", f"127.0.0.1:{head.port}", *words]
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def end(process, status):
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == status, (out, err)
    return out, err


def ended(study):
    return [t["trial"] for t in results.trials_of(study).values() if t["status"] in results.FINISHED]


def test_nodes_without_the_study_folder_are_refused_and_a_bucket_needs_none(tmp_path):
    studies, cache = tmp_path / "studies", tmp_path / "cache"
    studies.mkdir()
    cache.mkdir()
    space = tmp_path / "space.json"
    fixed = {
        "data.name": "features", "data.path": str(toy.npz(tmp_path, images=240)), "model.dim": 8, "eval.k": 3,
        "train": {"epochs": 3000, "batch_size": 16, "eval_every": 100},
    }  # fmt: skip
    content = {"study": "toy", "trials": 3, "fixed": fixed, "search": {"train.lr": {"loguniform": [1e-3, 1e-1]}}}
    space.write_text(json.dumps({**content, "checkpoint_seconds": 0.5}))
    apart = own_ray.apart(studies, cache)
    with object_store.serving() as door:
        env = own_ray.environment(tmp_path, "token-of-this-test") | object_store.environment(door)
        ports = own_ray.free_ports(7)
        # a lost node is noticed while the other one is still busy, so that its trial goes to the late one
        quick = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}
        head = own_ray.Head(tmp_path, env, ports, "--num-cpus=1", f"--system-config={json.dumps(quick)}")
        with own_ray.running(head):
            lonely = apart(tmp_path, env, head, ports[4], 0)
            with own_ray.running(lonely):
                _, err = end(search(space, studies / "one", head=head, env=env), 2)
                assert err.splitlines()[-1].startswith(f"mmts-ray: {studies / 'one'}: node ")
                assert "does not see this folder" in err
                assert "s3://bucket/path" in err
                assert not (studies / "one").exists(), "nothing was begun"

                # the same two machines with a bucket between them: each writes its own part, all of it is there
                uri = f"s3://{object_store.BUCKET}/studies/two"
                end(search(space, uri, "train.epochs=40", "trials=2", head=head, env=env), 0)
                reader = {**env, "MMTS_RAY_CACHE": str(tmp_path / "reader")}
                command = [sys.executable, "-m", "mmts_ray", "collect", uri]
                subprocess.run(command, env=reader, check=True, capture_output=True, timeout=PATIENCE)
                (mirror,) = (tmp_path / "reader" / "studies").glob("two-*[0-9a-f]")
                whole = results.trials_of(mirror)
                assert Counter(t["status"] for t in whole.values()) == {"done": 2}
                (driver_side,) = (cache / "studies").glob("two-*[0-9a-f]")
                pids = {path.name.split("-")[-2] for path in (mirror / "ledger").glob("*.jsonl")}
                here = {
                    p.name.split("-")[-2]
                    for p in (driver_side / "ledger").glob("*.jsonl")
                    if not storage.place.SEGMENT.fullmatch(p.name)
                }
                assert pids - here, "the other machine has written too"

            # a machine that joins while the study runs, and does not share the folder either
            shared = own_ray.Worker(tmp_path, env, head, ports[5], 1)
            with own_ray.running(shared):
                process = search(space, studies / "one", head=head, env=env)
                wait_for(lambda: len(list((studies / "one").glob("ledger/*"))) >= 3, "too late", process)
                late = apart(tmp_path, env, head, ports[6], 2)
            with own_ray.running(late):
                _, err = end(process, 3)
            assert "does not see this folder" in err, err
            before = {t: results.trials_of(studies / "one")[t]["end_time"] for t in ended(studies / "one")}
            end(search(space, studies / "one", verb="resume", head=head, env=env), 0)
            after = results.trials_of(studies / "one")
            assert Counter(t["status"] for t in after.values()) == {"done": 3}
            assert {t: after[t]["end_time"] for t in before} == before, "what had ended was not run again"
            assert not list((studies / "one").glob(".shared-*"))
            assert os.listdir(studies) == ["one"]
