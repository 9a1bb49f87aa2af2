"""cluster.yaml scaled down: its node types come from nothing, are lost in mid-trial, and go when nothing runs."""

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import commands
import own_ray
import pytest
import toy
import yaml
from cluster_checks import ROOT

from mmts_ray import results

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1500)]
PATIENCE = 600  # seconds for one step of the test: other programs may share the cores
wait_for = partial(commands.wait_for, seconds=PATIENCE)
GPUS = 4
LARGEST = 8  # the most machines that cluster.yaml allows

SPACE = """
study: grown
objective: {val_i2t_r1: max}
strategy: random
trials: 4
checkpoint_seconds: 1
resources: {cpus_per_worker: 1, gpus_per_worker: 1, concurrent: 4}
fixed:
  data: {name: features, path: toy.npz}
  train: {epochs: 2000, batch_size: 32, eval_every: 20}
search:
  train.lr: {loguniform: [1.0e-3, 1.0e-2]}
"""
# a driver that asks for nothing, and writes down which nodes live
NODES = """
import json, sys, time, ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
while True:
    print(json.dumps([n["NodeID"] for n in ray.nodes() if n["Alive"]]), flush=True)
    time.sleep(0.5)
"""


def scaled_down(gcs: str) -> dict:
    """The cluster file for Ray's fake provider: nodes are processes here, their CPUs as few as a trial needs."""
    config = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    types = config["available_node_types"]
    types["ray.head.default"] = types.pop(config["head_node_type"])  # the name that the provider gives its head
    config["head_node_type"] = "ray.head.default"
    for kind in types.values():
        kind["node_config"] = {}
        if kind["resources"]["CPU"]:
            kind["resources"] |= {"CPU": 1, "object_store_memory": 100_000_000}
    config["provider"] = {
        "type": "fake_multinode",
        "gcs_address": gcs,  # without it, the provider expects the head at port 6379
        "launch_multiple": True,
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    }
    config |= {"auth": {}, "docker": {}, "file_mounts": {}, "idle_timeout_minutes": 0.5}
    return config | {key: [] for key in config if key.endswith("_commands")}


class Cloud:
    """A head whose autoscaler starts nodes as processes below it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.env = own_ray.environment(folder, secrets.token_hex(32)) | {
            "RAY_FAKE_CLUSTER": "1",
            "AUTOSCALER_UPDATE_INTERVAL_S": "2",
            # a node silent for so long is given up and replaced: longer than one takes to boot on a busy machine
            "AUTOSCALER_HEARTBEAT_TIMEOUT_S": "60",
        }
        ports = own_ray.free_ports(4)
        self.address = f"127.0.0.1:{ports[0]}"
        config = scaled_down(self.address)
        (folder / "cluster.yaml").write_text(yaml.safe_dump(config))
        slots = {k: v for k, v in config["available_node_types"]["ray.head.default"]["resources"].items() if v}
        # a lost node is noticed after seconds: 15 s by default, which are right for real machines
        quick = {f"health_check_{k}": v for k, v in (("period_ms", 1000), ("failure_threshold", 5))}
        self.head = own_ray.Head(
            folder, self.env, ports, "--num-cpus=0", "--num-gpus=0", f"--resources={json.dumps(slots)}",
            f"--autoscaling-config={folder / 'cluster.yaml'}", f"--system-config={json.dumps(quick)}",
        )  # fmt: skip

    def lose(self, node: str) -> None:
        """SIGKILL to all processes of a node, as when its machine is gone."""
        mark = f"RAY_OVERRIDE_NODE_ID_FOR_TESTING={node}".encode()
        found = []
        for pid in own_ray.descendants(self.head.process.pid):
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(pid)
        assert found, node
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def command(self, *words: str, **more):
        words = (sys.executable, "-m", "mmts_ray", "search", "space.yaml", "--address", self.address, *words)
        return subprocess.Popen(words, env=self.env, cwd=self.folder, **more)


def rows_by_process(study):
    for path in (study / "ledger").glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        yield int(path.name.split("-")[-2]), lines


def trainers(study, trials):
    """The process that trains each of these trials, and its node."""
    for pid, rows in rows_by_process(study):
        if rows and rows[-1]["trial"] in trials and rows[-1]["status"] == "running":
            held = dict(pair.partition(b"=")[::2] for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
            yield pid, held[b"RAY_OVERRIDE_NODE_ID_FOR_TESTING"].decode()


def checkpoint_of(study, pid):
    (rows,) = [rows for process, rows in rows_by_process(study) if process == pid]
    return (study / "checkpoints" / rows[-1]["trial"] / "last.pt").exists()


def test_a_study_grows_its_cluster_from_nothing_loses_a_node_and_leaves_nothing_behind(tmp_path_factory):
    folder = tmp_path_factory.mktemp("g", numbered=False)
    toy.npz(folder)
    (folder / "space.yaml").write_text(SPACE)
    cloud = Cloud(folder)
    study, nodes_log, search_log = folder / "study", folder / "nodes.log", folder / "search.log"

    def history():
        lines = nodes_log.read_text().splitlines() if nodes_log.exists() else []
        return [set(json.loads(line)) for line in lines if line.startswith('["')]  # Ray prints there, too

    def alive():
        seen = history()
        return seen[-1] - {head} if seen else set()

    with own_ray.running(cloud.head), contextlib.ExitStack() as ends:
        log = ends.enter_context(nodes_log.open("w"))
        watcher = ends.enter_context(
            subprocess.Popen([sys.executable, "-c", NODES, cloud.address], env=cloud.env, stdout=log)
        )
        ends.callback(watcher.kill)
        (head,) = wait_for(lambda: (history() or [None])[-1], "no watcher")

        # what no machine of the file can hold is refused, in one line, while nothing has been started
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        refused = cloud.command("--out", "refused", "resources.gpus_per_worker=2", **pipe)
        _, told = refused.communicate(timeout=PATIENCE)
        assert refused.returncode == 2, told
        assert "a worker needs 2 GPU on one machine, the largest has 1" in told
        assert "8 gpu_spot with 1 CPU and 1 GPU" in told
        assert not (folder / "refused").exists()
        assert all(nodes == {head} for nodes in history()), "a driver that asks for nothing launched a node"

        out = ends.enter_context(search_log.open("w"))
        driver = ends.enter_context(cloud.command("--out", "study", stdout=out, stderr=out))
        ends.callback(driver.kill)

        def running():
            assert driver.poll() is None, search_log.read_text()
            trials = results.trials_of(study) if (study / "ledger").is_dir() else {}
            statuses.update((name, row["status"]) for name, row in trials.items())
            waits = [row for row in trials.values() if row["status"] == "waiting"]
            return len(trials) == GPUS and not waits and [n for n, row in trials.items() if row["status"] == "running"]

        statuses: set[tuple[str, str]] = set()
        names = wait_for(running, "the four trials never ran")
        assert {name for name, status in statuses if status == "waiting"} == {f"t{i:04d}" for i in range(GPUS)}
        at_work = list(trainers(study, names))
        # Ray may count a trial that it has just placed as still waiting, and start a node too many: it goes when idle
        assert len({node for _, node in at_work}) == len(at_work) == GPUS, "a node for each GPU that is needed"
        pid, node = max(at_work)  # the youngest: it has most before it
        wait_for(lambda: checkpoint_of(study, pid), "no checkpoint")
        cloud.lose(node)
        assert driver.wait(PATIENCE) == 0, search_log.read_text()
        wait_for(lambda: not alive(), "nodes are left when nothing runs")

    trials = results.trials_of(study)
    assert {name: row["status"] for name, row in trials.items()} == {f"t{i:04d}": "done" for i in range(GPUS)}
    assert {row["epoch"] for row in trials.values()} == {2000}
    assert sorted(row["starts"] for row in trials.values()) == [1, 1, 1, 2], "only the lost node's trial began again"
    (again,) = [row for row in trials.values() if row["starts"] == 2]
    assert again["lost_device_seconds"] < again["device_seconds"] / 2, "it went on from its checkpoint"
    assert len({(row["config_hash"], row["seed"]) for row in trials.values()}) == GPUS
    assert 1 + GPUS <= max(len(nodes) for nodes in history()) <= 1 + LARGEST
    told = search_log.read_text()
    assert re.search(r"4 trials waiting for 1 GPU each; 0 of \d GPU free; starting \d gpu_spot", told), told
    assert "its process died; it goes on from its own checkpoint" in told
