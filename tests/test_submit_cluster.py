"""`mmts-ray submit` to a real head with a token: a study runs once, is refused, stopped, and outlives the head."""

import contextlib
import secrets
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import own_ray
import pytest
from test_submit import space

from mmts_ray import results


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A head with a dashboard and a token, in a folder of its own; `head` may be replaced by a test."""
    home = tmp_path_factory.mktemp("j", numbered=False)
    env = own_ray.environment(home, secrets.token_hex(32))
    ports = own_ray.free_ports(4)
    here = SimpleNamespace(folder=home, env=env, ports=ports, head=own_ray.Head(home, env, ports, "--num-cpus=2"))
    yield here
    here.head.kill()


def command(cluster, *words):
    return [sys.executable, "-m", "mmts_ray", "submit", "space.yaml", "--address", cluster.head.url, *words]


def submitted(cluster, *words, env=None, timeout=150):
    return subprocess.run(
        command(cluster, *words),
        env=env or cluster.env,
        cwd=cluster.folder,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def starts(study_dir: Path) -> list[str]:
    """The trials that were started, once for each start."""
    begun = (row for row in results.records(study_dir) if row["status"] == "running")
    return [row["trial"] for row in begun if any(k.startswith("param.") for k in row)]


@pytest.mark.slow
@pytest.mark.ray
def test_a_study_runs_as_a_job_and_running_it_again_repeats_nothing(cluster):
    space(cluster.folder)
    out = cluster.folder / "study"
    first = submitted(cluster, "--out", str(out))
    assert first.returncode == 0, first.stderr
    assert f"small-1: succeeded, exit status 0, study folder {out}" in first.stdout
    assert "2 done (2 search)" in first.stderr
    assert sorted(starts(out)) == ["t0000", "t0001"]
    again = submitted(cluster, "--out", str(out))
    assert again.returncode == 0, again.stderr
    assert "small-2: succeeded" in again.stdout
    assert sorted(starts(out)) == ["t0000", "t0001"]
    token = cluster.env["RAY_AUTH_TOKEN"]
    for text in (first.stdout, first.stderr, again.stdout, again.stderr):
        assert token not in text
    for path in out.rglob("*"):
        assert not path.is_file() or token.encode() not in path.read_bytes(), path


@pytest.mark.slow
@pytest.mark.ray
def test_the_drivers_refusal_and_a_wrong_token_are_status_2(cluster):
    space(cluster.folder)
    out = cluster.folder / "taken"
    out.mkdir(exist_ok=True)
    (out / "thesis.tex").touch()
    refused = submitted(cluster, "--out", str(out))
    assert refused.returncode == 2, refused.stderr
    assert "exists and is not a study" in refused.stderr
    assert "failed, exit status 2" in refused.stdout
    wrong = submitted(cluster, "--out", str(out), env=cluster.env | {"RAY_AUTH_TOKEN": "0" * 64})
    assert wrong.returncode == 2
    assert "takes no token of ours (Authentication failed" in wrong.stderr.splitlines()[-1]
    none = submitted(cluster, "--out", str(out), env=cluster.env | {"RAY_AUTH_MODE": "disabled"})
    assert none.returncode == 2
    assert "takes no token of ours (Authentication required" in none.stderr.splitlines()[-1]
    assert "0" * 64 not in wrong.stderr


@pytest.mark.slow
@pytest.mark.ray
def test_a_stopped_job_is_130_and_the_study_goes_on_after_the_head_is_lost(cluster):
    """A job is stopped, then submitted again; its head is killed with everything on it, and a new head starts."""
    space(cluster.folder, trials=6, study="long")
    out = cluster.folder / "long"
    words = ["--out", str(out), "train.epochs=400", "checkpoint_seconds=1"]
    with _running(cluster, *words) as one:
        _until(lambda: out.is_dir() and len(starts(out)) >= 2, one)
        stop = [sys.executable, "-m", "ray.scripts.scripts", "job", "stop", "--address", cluster.head.url, "long-1"]
        subprocess.run(stop, env=cluster.env, capture_output=True, timeout=60, check=True)
        assert one.wait(60) == 130
    finished = {t for t, row in results.trials_of(out).items() if row["status"] in results.FINISHED}
    with _running(cluster, *words) as two:
        _until(lambda: len(_done(out)) > len(finished), two)
        before = _done(out)
        cluster.head.kill()
        cluster.head = own_ray.Head(cluster.folder, cluster.env, cluster.ports, "--num-cpus=2")
        assert two.wait(200) == 0, Path(cluster.folder, "follow.log").read_text()
    log = (cluster.folder / "follow.log").read_text()
    assert "waiting up to 30 minutes" in log
    assert log.count("submitted long-") == 2
    trials = results.trials_of(out)
    assert {t: row["status"] for t, row in trials.items()} == {f"t{n:04d}": "done" for n in range(6)}
    for trial, row in before.items():  # what was done then has not been run again
        assert trials[trial]["time"] == row["time"]
        assert starts(out).count(trial) <= 2


def _done(out):
    return {t: row for t, row in results.trials_of(out).items() if row["status"] == "done"}


@contextlib.contextmanager
def _running(cluster, *words):
    with (cluster.folder / "follow.log").open("w") as log:
        process = subprocess.Popen(
            command(cluster, *words), env=cluster.env, cwd=cluster.folder, stdout=log, stderr=log
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _until(happened, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, "the follower has ended"
        assert time.monotonic() < deadline
        time.sleep(0.2)
