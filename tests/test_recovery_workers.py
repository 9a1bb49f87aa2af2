"""Whole studies of groups of workers: a group's leader is killed, a worker goes silent, the driver is killed."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import own_ray
import pytest
import toy
import yaml
from commands import start
from test_recovery import SPACE, beyond, finish, train_workers, wait_for

from mmts_ray import results

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1500)]
WORDS = ("resources.workers=2", "train.batch_size=16", "checkpoint_seconds=0.5")


@pytest.fixture
def folder(tmp_path) -> Path:
    toy.npz(tmp_path)
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(SPACE))
    return tmp_path


def test_a_group_outlives_its_leader_and_one_with_a_silent_worker_makes_room_for_the_next(folder):
    study = folder / "study"
    words = (*WORDS, "stall_minutes=0.4", "--allow-failures", 1)
    process = start("search", "space.yaml", *words, "--out", "study", cwd=folder)
    first, reached = wait_for(lambda: beyond(study, "t0000", 0), "t0000 never trained", process)
    (leader,) = own_ray.trial_processes(process.pid)
    os.kill(leader, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{first}").exists(), "the workers of a dead leader train on", process)
    wait_for(lambda: beyond(study, "t0000", reached), "t0000 never got further", process)
    writer, _ = wait_for(lambda: beyond(study, "t0001", -1), "t0001 never ran", process)
    (other,) = set(train_workers(process.pid)) - {writer}
    os.kill(other, signal.SIGSTOP)
    since = time.monotonic()
    wait_for(lambda: not Path(f"/proc/{other}").exists(), "a silent worker was not ended", process)
    assert time.monotonic() - since > 15, "it was given less than its time"
    finish(process, 0)
    trials = results.trials_of(study)
    assert {t: row["status"] for t, row in trials.items()} == {"t0000": "done", "t0001": "failed", "t0002": "done"}
    assert {t: row["starts"] for t, row in trials.items()} == {"t0000": 2, "t0001": 1, "t0002": 1}
    assert "no optimiser step for 0.4 minutes" in trials["t0001"]["error"]
    _, steps, _ = results.fold(results.records(study))
    mine = [step["epoch"] for step in steps if step["trial"] == "t0000"]
    assert len(mine) == len(set(mine)) == 400 / 20


def test_a_killed_driver_of_groups_resumes_and_no_finished_trial_runs_again(folder):
    study = folder / "study"
    process = start("search", "space.yaml", *WORDS, "--out", "study", cwd=folder)
    wait_for(partial(beyond, study, "t0001", 0), "t0001 never trained", process)
    before = results.trials_of(study)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    finish(start("resume", "study", cwd=folder), 0)
    trials = results.trials_of(study)
    assert {row["status"] for row in trials.values()} == {"done"}
    assert {t: row["starts"] for t, row in trials.items()} == {"t0000": 1, "t0001": 2, "t0002": 1}
    assert trials["t0000"]["end_time"] == before["t0000"]["end_time"]
    assert len({(row["config_hash"], row["seed"]) for row in trials.values()}) == len(trials) == 3
