"""Can these trials ever start, and how many at once: what they ask for against what the cluster has or can get.

Ray itself never says no: what fits nowhere waits for ever. The arithmetic is pure (`trials_at_once`); `check` reads
the nodes that are there and, with an autoscaler, the machine types and numbers of its cluster file.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import yaml
from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
from ray._private.state import state
from ray.autoscaler.v2.utils import is_autoscaler_v2
from ray.experimental.internal_kv import _internal_kv_get

from mmts_ray.study import Resources

SLOT = "trial_slot"  # the custom resource that the driver of a trial of several workers holds instead of CPUs
FIRST_REPORT_SECONDS = 20.0  # how long a new autoscaler may take to say that it is there
UNLIMITED = 1_000_000
HEAD = "node:__internal_head__"


@dataclass(frozen=True)
class Machine:
    """Nodes of one kind: what each `has` by resource name, and how many there are or may be."""

    name: str
    has: Mapping[str, float]
    count: int = 1


@dataclass(frozen=True)
class Cluster:
    """The nodes that are there, and what an autoscaler may make of them.

    `types` is None without an autoscaler, and empty when there is one whose cluster file cannot be read from here.
    `most` bounds the machines of all types together.
    """

    nodes: tuple[Machine, ...]
    types: tuple[Machine, ...] | None = None
    most: int = UNLIMITED

    def total(self, key: str) -> float:
        """How much of a resource the nodes have that are there."""
        return sum(node.has.get(key, 0) * node.count for node in self.nodes)


def trials_at_once(resources: Resources, cluster: Cluster) -> int:
    """How many trials can run at the same time; ValueError with the numbers when not even one ever can."""
    need = {"CPU": resources.cpus_per_worker, "GPU": resources.gpus_per_worker}
    need = {key: amount for key, amount in need.items() if amount}
    unknown = cluster.types == ()
    kinds = [*cluster.nodes, *(cluster.types or ())]
    if not unknown and not any(workers_on(kind.has, need) for kind in kinds):
        _refuse_bundle(need, cluster, kinds)
    workers = max(_workers(cluster.nodes, need), _workers(_at_most(cluster, need), need))
    if not unknown and workers < resources.workers:
        where = "can have" if cluster.types else "has"
        change = "raise max_workers in the cluster file" if cluster.types else "add machines"
        raise ValueError(
            f"resources: a trial needs its {resources.workers} workers of {_amounts(need)} at once, the cluster "
            f"{where} room for {workers} ({_kinds(_at_most(cluster, need))}); lower resources.workers, or {change}"
        )
    fitting = workers // resources.workers
    slots = int(cluster.total(SLOT))
    if unknown:  # nothing is known of what may come: the slots of the head say how many trials are meant
        fitting = max(fitting, slots, resources.concurrent or 1)
    if resources.workers > 1:
        if not slots:
            raise ValueError(
                f"resources.workers: {resources.workers} workers are led by a driver that holds a {SLOT}, and the "
                f"cluster has none; start its head with --resources='{{\"{SLOT}\": 64}}'"
            )
        fitting = min(fitting, slots)
    return min(fitting, resources.concurrent or fitting)


def workers_on(has: Mapping[str, float], need: Mapping[str, float]) -> int:
    """How many workers one machine holds; a share of a GPU lies on one GPU, so two of 0.6 need two."""
    room = []
    for key, amount in need.items():
        have = has.get(key, 0)
        if key == "GPU" and amount < 1:
            room.append(int(have) * int(1 / amount + 1e-9))
        else:
            room.append(int(have / amount + 1e-9))
    return min(room)


def _workers(kinds: Sequence[Machine], need: Mapping[str, float]) -> int:
    return sum(kind.count * workers_on(kind.has, need) for kind in kinds)


def _at_most(cluster: Cluster, need: Mapping[str, float]) -> list[Machine]:
    """The head, and of the machine types the best ones up to `most` together."""
    if cluster.types is None:
        return list(cluster.nodes)
    left, chosen = cluster.most, [node for node in cluster.nodes if node.name == "head"]
    for kind in sorted(cluster.types, key=lambda kind: -workers_on(kind.has, need)):
        chosen.append(replace(kind, count=min(kind.count, left)))
        left -= chosen[-1].count
    return chosen


def _refuse_bundle(need: Mapping[str, float], cluster: Cluster, kinds: Sequence[Machine]) -> None:
    for key, amount in need.items():
        best = max((kind.has.get(key, 0) for kind in kinds), default=0)
        if best < amount:
            if cluster.types:
                change = "take a larger machine type in the cluster file"
            else:
                change = f"add a machine that has {amount:g}"
            raise ValueError(
                f"resources: a worker needs {amount:g} {key} on one machine, the largest has {best:g} "
                f"({_kinds(kinds)}); lower resources.{key.lower()}s_per_worker, or {change}"
            )
    raise ValueError(
        f"resources: a worker needs {_amounts(need)} on one machine, and no machine has both ({_kinds(kinds)}); lower "
        "resources.cpus_per_worker or resources.gpus_per_worker"
    )


def _amounts(amounts: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {key}" for key, amount in amounts.items()) or "nothing"


def _kinds(kinds: Sequence[Machine]) -> str:
    counted: dict[str, int] = {}
    for kind in kinds:
        if kind.count:
            text = f"{kind.name} with {kind.has.get('CPU', 0):g} CPU and {kind.has.get('GPU', 0):g} GPU"
            counted[text] = counted.get(text, 0) + kind.count
    return ", ".join(f"{count} {text}" for text, count in counted.items()) or "no machine"


def check(resources: Resources, *, local: bool) -> int:
    """`trials_at_once` on the cluster that Ray is connected to; a `local` one, of this process, never grows."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    found = Cluster(tuple(Machine("head" if HEAD in has else "node", has) for has in alive))
    try:
        return trials_at_once(resources, found if local else _scaled(found))
    except ValueError:
        if local or report() is not None:
            raise
    return trials_at_once(resources, _scaled(found, patience=FIRST_REPORT_SECONDS))


def _scaled(found: Cluster, *, patience: float = 0.0) -> Cluster:
    """With what the autoscaler may add. Ray 2.60 tells nobody its limits, so the cluster file is read where it runs."""
    reported = state.get_cluster_config()
    if reported is not None and reported.node_group_configs:
        groups = [(g, UNLIMITED if g.max_count < 0 else g.max_count) for g in reported.node_group_configs]
        return replace(found, types=tuple(Machine(g.name, dict(g.resources), n) for g, n in groups if n))
    if is_autoscaler_v2():
        return replace(found, types=())
    told = report(patience=patience)
    # without a cluster file it only mirrors the nodes that are there, under such names
    if told is None or all(name.startswith("node_") for name in told["autoscaler_report"].get("active_nodes") or ()):
        return found
    config = _cluster_file(int(told["monitor_pid"]))
    return replace(found, types=()) if config is None else limits(found, config)


def limits(found: Cluster, config: Mapping[str, Any]) -> Cluster:
    """`found`, which may grow as a cluster file says."""
    types = [
        Machine(name, node.get("resources", {}), int(node.get("max_workers", config["max_workers"])))
        for name, node in config["available_node_types"].items()
        if name != config["head_node_type"]
    ]
    return replace(found, types=tuple(kind for kind in types if kind.count), most=int(config["max_workers"]))


def report(*, patience: float = 0.0) -> dict[str, Any] | None:
    """What the autoscaler last said of itself; None when it has said nothing within `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        raw = _internal_kv_get(DEBUG_AUTOSCALING_STATUS)
        found = json.loads(raw) if raw else {}
        if found.get("autoscaler_report"):
            return found
        if time.monotonic() > deadline:
            return None
        time.sleep(0.5)


def _cluster_file(monitor: int) -> dict[str, Any] | None:
    """The cluster file of the autoscaler process `monitor`; None when it does not run on this machine."""
    try:
        words = Path(f"/proc/{monitor}/cmdline").read_bytes().decode().split("\0")
        (path,) = [word.partition("=")[2] for word in words if word.startswith("--autoscaling-config=")]
        config = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf8"))
        return config if {"available_node_types", "head_node_type", "max_workers"} <= set(config) else None
    except (OSError, ValueError, TypeError):
        return None
