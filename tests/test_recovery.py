"""Whole studies whose trials are killed twice, stopped for good, out of memory, on a full disk or on lost nodes."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import commands
import own_ray
import pytest
import toy
import yaml
from commands import start

from mmts_ray import results

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1500)]
PATIENCE = 600  # seconds for one step of a test: other programs may share the cores
wait_for = partial(commands.wait_for, seconds=PATIENCE)

SPACE = {
    "study": "toy",
    "strategy": "random",
    "trials": 3,
    "fixed": {
        "data.name": "features",
        "data.path": "toy.npz",
        "model.dim": 8,
        "eval.k": 3,
        "groups.k": 3,
        "train": {"epochs": 400, "batch_size": 32, "eval_every": 20},
    },
    "search": {"train.lr": {"loguniform": [1e-3, 1e-1]}},
    "resources": {"concurrent": 1},
    "checkpoint_seconds": 0,
}


@pytest.fixture
def folder(tmp_path) -> Path:
    toy.npz(tmp_path)
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(SPACE))
    return tmp_path


def finish(process, status):
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == status, (out, err)
    assert "Traceback" not in err
    return out, err


def epochs_by_process(study, trial):
    """The last epoch that each living process but the driver has written of a trial."""
    found = {}
    for path in (study / "ledger").glob("*.jsonl") if study.is_dir() else ():
        pid = int(path.name.split("-")[-2])
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        epochs = [row["epoch"] for row in lines if row["trial"] == trial and row.get("status") == "running"]
        if epochs and Path(f"/proc/{pid}").exists():
            found[pid] = max(epochs)
    return found


def beyond(study, trial, epoch):
    """The process that has trained a trial beyond this epoch, with where it is."""
    return next(((pid, at) for pid, at in epochs_by_process(study, trial).items() if at > epoch), None)


def test_one_trial_is_killed_twice_one_goes_silent_and_the_study_goes_on(folder):
    study = folder / "study"
    process = start("search", "space.yaml", "stall_minutes=0.4", "--out", "study", "--allow-failures", 1, cwd=folder)
    reached = 0
    for _ in range(2):
        pid, reached = wait_for(partial(beyond, study, "t0000", reached), "t0000 never got further", process)
        os.kill(pid, signal.SIGKILL)
    pid, _ = wait_for(lambda: beyond(study, "t0001", -1), "t0001 never ran", process)
    os.kill(pid, signal.SIGSTOP)
    since = time.monotonic()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "a silent process was not ended", process)
    assert time.monotonic() - since > 15, "it was given less than its time"
    _, err = finish(process, 0)
    trials = results.trials_of(study)
    assert {t: row["status"] for t, row in trials.items()} == {"t0000": "done", "t0001": "failed", "t0002": "done"}
    assert {t: row["starts"] for t, row in trials.items()} == {"t0000": 3, "t0001": 1, "t0002": 1}
    assert "no optimiser step for 0.4 minutes" in trials["t0001"]["error"]
    assert trials["t0000"]["epoch"] == trials["t0002"]["epoch"] == 400
    assert err.count("t0000: its process died; it goes on from its own checkpoint") == 2
    _, steps, repeated = results.fold(results.records(study))
    assert repeated <= 2 * 3, "a kill repeats what came after the checkpoint, no more"
    mine = [step["epoch"] for step in steps if step["trial"] == "t0000"]
    assert len(mine) == len(set(mine))
    finish(start("resume", "study", "--allow-failures", 1, cwd=folder), 0)
    assert results.trials_of(study) == trials, "an ended trial ran again"


def test_each_worker_of_a_group_is_killed_and_trials_end_as_the_scheduler_wants(folder):
    study = folder / "study"
    words = ("strategy=random_asha", "resources.workers=2", "train.batch_size=16", "checkpoint_seconds=0.5")
    process = start("search", "space.yaml", *words, "--out", "study", cwd=folder)
    writer, reached = wait_for(lambda: beyond(study, "t0000", 0), "t0000 never trained", process)
    os.kill(writer, signal.SIGKILL)  # the first worker, which writes
    writer, reached = wait_for(lambda: beyond(study, "t0000", reached), "it never got further", process)
    (other,) = set(train_workers(process.pid)) - {writer}
    os.kill(other, signal.SIGKILL)
    finish(process, 0)
    trials = results.trials_of(study)
    assert {t: row["starts"] for t, row in trials.items()} == {"t0000": 3, "t0001": 1, "t0002": 1}
    assert trials["t0000"]["status"] == "done", "the first at a rung goes on"
    assert {row["status"] for row in trials.values()} == {"done", "stopped"}
    assert all((row["epoch"] == 400) == (row["status"] == "done") for row in trials.values())
    _, steps, _ = results.fold(results.records(study))
    mine = [step["epoch"] for step in steps if step["trial"] == "t0000"]
    assert len(mine) == len(set(mine))


def train_workers(driver):
    """The processes below a driver that Ray Train has started to train."""
    return [pid for pid in own_ray.descendants(driver) if b"RayTrainWorker" in own_ray.command(pid)]


def test_a_trial_that_ray_kills_for_memory_is_infeasible_and_not_tried_for_ever(folder):
    study = folder / "study"
    tight = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "100"}
    process = start("search", "space.yaml", "trials=1", "--out", "study", cwd=folder, **tight)
    finish(process, 1)
    (trial,) = results.trials_of(study).values()
    assert trial["status"] == "infeasible"
    assert trial["error"].startswith("out of memory: Ray ended its process")
    assert trial["starts"] <= 4


def test_a_full_disk_and_torn_files_lose_nothing_that_had_ended(folder):
    if os.geteuid() != 0:
        pytest.skip("needs root: a small file system is mounted")
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    try:
        study, ballast = disk / "study", disk / "ballast"
        process = start("search", "space.yaml", "--out", study, cwd=folder)
        wait_for(lambda: beyond(study, "t0001", -1), "the second trial never ran", process)
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        _, err = finish(process, 3)
        assert "cannot be written (No space left on device)" in err
        assert f"continue with `mmts-ray resume {study}`" in err
        ballast.unlink()
        for path in [*(study / "ledger").glob("*.jsonl"), study / "optuna.journal"]:
            raw = path.read_bytes()
            last = raw.rstrip(b"\n").rfind(b"\n") + 1
            path.write_bytes(raw[: last + (len(raw) - last) // 2])  # as a crash of the machine leaves it
        before = results.trials_of(study)
        ended = {t: row for t, row in before.items() if row["status"] in results.FINISHED}
        assert "failed" not in {row["status"] for row in before.values()}, "the disk's fault, not the trials'"
        finish(start("resume", study, cwd=folder), 0)
        trials = results.trials_of(study)
        assert {row["status"] for row in trials.values()} == {"done"}
        assert len({(row["config_hash"], row["seed"]) for row in trials.values()}) == len(trials) == 3
        for name, row in ended.items():
            assert (trials[name]["starts"], trials[name]["end_time"]) == (row["starts"], row["end_time"])
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_folder_that_cannot_be_made_is_refused_in_one_line(folder):
    _, err = finish(start("search", "space.yaml", "--out", "toy.npz/study", "--quiet", cwd=folder), 2)
    assert "toy.npz/study" in err
    assert len(err.strip().splitlines()) == 1


NODE = """
import json, sys, ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
print(json.dumps({k: n["NodeID"] for n in ray.nodes() if n["Alive"] for k in n["Resources"] if k.startswith("n")}))
"""


def test_a_trial_outlives_its_nodes_twice_without_notice_and_twice_with(tmp_path_factory):
    """Always one spare node: what has no second node with room waits until one comes."""
    folder = tmp_path_factory.mktemp("n", numbered=False)
    toy.npz(folder)
    long = {**SPACE, "trials": 1, "checkpoint_seconds": 0.5}
    long["fixed"] = {**SPACE["fixed"], "train": {"epochs": 10_000, "batch_size": 4, "eval_every": 20}}
    (folder / "space.yaml").write_text(yaml.safe_dump(long))
    env = own_ray.environment(folder, secrets.token_hex(32))
    ports = own_ray.free_ports(9)
    quick = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}
    head = own_ray.Head(
        folder, env, ports, "--num-cpus=0", '--resources={"trial_slot": 4}', f"--system-config={json.dumps(quick)}"
    )
    address, study = f"127.0.0.1:{head.port}", folder / "study"
    workers = []
    with contextlib.ExitStack() as ends:
        ends.enter_context(own_ray.running(head))

        def one_more():
            number = len(workers)
            resource = f'--resources={{"n{number}": 1}}'
            workers.append(own_ray.Worker(folder, env, head, ports[4 + number], number, resource))
            ends.enter_context(own_ray.running(workers[-1]))

        one_more()
        command = [sys.executable, "-m", "mmts_ray", "search", "space.yaml", "--out", "study", "--address", address]
        log = ends.enter_context((folder / "search.log").open("w"))
        driver = ends.enter_context(subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log))
        ends.callback(driver.kill)
        reached = []

        def further():
            """Once it runs on the next node, how far it has got there."""
            on_a_new_node = results.trials_of(study).get("t0000", {}).get("starts", 0) > len(reached)
            return on_a_new_node and beyond(study, "t0000", max(reached, default=0))

        for number, notice in enumerate((False, False, True, True)):
            _, at = wait_for(further, "it never got further", driver)
            one_more()
            time.sleep(1)  # past a checkpoint
            reached.append(at)
            if notice:
                asked = subprocess.run([sys.executable, "-c", NODE, address], env=env, capture_output=True, text=True)
                node = json.loads(asked.stdout.splitlines()[-1])[f"n{number}"]
                words = ("--now", "8", "--address", address, "--node-id", node)
                drained = subprocess.run([sys.executable, "-m", "mmts_ray.spot", *words], env=env, capture_output=True)
                assert drained.returncode == 0, drained.stderr
                time.sleep(2)
            workers[number].kill()
        wait_for(further, "it never got further", driver)
        assert driver.poll() is None, (folder / "search.log").read_text()
    (trial,) = results.trials_of(study).values()
    assert (trial["status"], trial["starts"]) == ("running", 5)
    assert reached == sorted(reached), "it never began again from the start"
    token = env["RAY_AUTH_TOKEN"].encode()
    written = [folder / "search.log", *(path for path in study.rglob("*") if path.is_file())]
    assert len(written) > 10
    assert not [path for path in written if token in path.read_bytes()], "the cluster's token is in a file"
