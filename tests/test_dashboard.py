"""optuna-dashboard itself reads the journal of a study that runs."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from mmts_ray import space_file
from mmts_ray.sampler import JOURNAL, Sampler


def free_port():
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def asked(url, process):
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def test_optuna_dashboard_shows_the_trials_of_a_study_while_it_runs(tmp_path):
    pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed")
    study = space_file.parse({"study": "toy", "search": {"train.lr": {"loguniform": [1e-4, 1e-1]}}, "seed": 0})
    sampler = Sampler(study, tmp_path)
    numbers = [sampler.ask(f"t{i:04d}", i)[0] for i in range(4)]
    sampler.tell(numbers[0], status="done", values=[0.25])
    sampler.tell(numbers[1], status="stopped", values=[0.1], epoch=2)
    sampler.tell(numbers[2], status="infeasible", values=None)
    before = (tmp_path / JOURNAL).read_bytes()
    port = free_port()
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("python")), "-c", "from optuna_dashboard._cli import main; main()",
         str(tmp_path / JOURNAL), "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        (summary,) = asked(f"http://127.0.0.1:{port}/api/studies", process)["study_summaries"]
        assert summary["study_name"].startswith("toy-")
        shown = asked(f"http://127.0.0.1:{port}/api/studies/{summary['study_id']}", process)["trials"]
    finally:
        process.terminate()
        process.wait(timeout=30)
    assert [t["state"] for t in shown] == ["Complete", "Pruned", "Pruned", "Running"]
    assert shown[0]["values"] == [0.25]
    assert [p["name"] for p in shown[0]["params"]] == ["train.lr"]
    assert [(a["key"], "t0000" in a["value"]) for a in shown[0]["user_attrs"]] == [("trial", True)]
    assert (tmp_path / JOURNAL).read_bytes() == before, "a reader leaves the journal as it was"
