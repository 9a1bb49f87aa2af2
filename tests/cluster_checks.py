"""What is wrong with a cluster file: one line per mistake, found without network, credentials or a cluster.

Ray's validator sees almost nothing inside `node_config`, so the clouds' own models look there; what neither sees (and
what then fails on a machine that is being paid for, or silently never scales) is asserted here.
"""

import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from cloud_checks import aws_problems, gcp_problems

ROOT = Path(__file__).parents[1]


PLACEHOLDER = "YOUR-"
COMMANDS = (
    "initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands",
    "head_start_ray_commands", "worker_start_ray_commands",
)  # fmt: skip


# a key that is left out is filled from Ray's packaged defaults
EXPLICIT = (
    *COMMANDS, "max_workers", "upscaling_speed", "idle_timeout_minutes", "docker", "auth", "available_node_types",
    "head_node_type", "file_mounts", "cluster_synced_files", "file_mounts_sync_continuously", "rsync_exclude",
    "rsync_filter",
)  # fmt: skip
PROVIDER_KEYS = {
    "aws": {"type", "region", "availability_zone", "cache_stopped_nodes", "use_internal_ips", "security_group"},
    "gcp": {"type", "region", "availability_zone", "project_id", "use_internal_ips"},
}


# (CPU, GPU) as Ray detects or the vendor states them
MACHINES = {
    "g5.xlarge": (4, 1), "g5.2xlarge": (8, 1), "g5.12xlarge": (48, 4), "g6.xlarge": (4, 1), "g6.2xlarge": (8, 1),
    "g6.12xlarge": (48, 4), "g6e.2xlarge": (8, 1), "p4d.24xlarge": (96, 8), "p5.4xlarge": (16, 1),
    "p5.48xlarge": (192, 8), "g2-standard-4": (4, 1), "g2-standard-8": (8, 1), "g2-standard-48": (48, 4),
    "a2-highgpu-1g": (12, 1), "a3-highgpu-8g": (208, 8),
}  # fmt: skip


def ray_version() -> str:
    """Ray's lower bound in pyproject.toml, which is the version of the images."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (bound,) = [r.partition(">=")[2] for r in project["dependencies"] if r.startswith("ray[")]
    return bound


def python_version() -> tuple[int, ...]:
    bound = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    return tuple(int(part) for part in bound.removeprefix(">=").split("."))


@cache
def bundles() -> list[tuple[int, dict[str, float]]]:
    """The workers of a trial of each search space in the repository, and what each takes from one machine."""
    from mmts_ray import space_file

    studies = [space_file.load(path) for path in sorted((ROOT / "search_spaces").glob("*.yaml"))]
    needs = [s.resources for s in studies]
    return [(n.workers, {"CPU": n.cpus_per_worker, "GPU": n.gpus_per_worker}) for n in needs]


def trial_problems(nodes: list[tuple[int, dict[str, float]]], what: str, slots: float) -> list[str]:
    """Search spaces whose trials can never start on so many nodes of each kind."""
    out = []
    for workers, bundle in bundles():
        need = {key: amount for key, amount in bundle.items() if amount}
        room = sum(count * min(int(has.get(k, 0) / v + 1e-9) for k, v in need.items()) for count, has in nodes)
        if room < workers:
            out.append(f"no {what} holds a trial of {workers} x {bundle}")
        if workers > 1 and slots < 1:
            out.append(f"head: a trial of {workers} workers needs a trial_slot")
    return out


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [s for k, v in value.items() for s in (str(k), *strings(v))]
    if isinstance(value, list):
        return [s for v in value for s in strings(v)]
    return [value] if isinstance(value, str) else []


def image_problems(image: Any, where: str, *, kind: str) -> list[str]:
    """`rayproject/ray` and what is built on it are tagged VERSION-pyXYZ-KIND."""
    found = re.fullmatch(r"(.+):(\d+\.\d+\.\d+)-py(\d)(\d+)-(cpu|gpu|cu\d+)", str(image))
    if not found or "ray-ml" in str(image):
        return [f"{where}: {image} is no image with tag VERSION-pyXYZ-{kind}"]
    out = []
    if found[2] != ray_version():
        out.append(f"{where}: Ray {found[2]}, pyproject.toml asks for {ray_version()}")
    if (int(found[3]), int(found[4])) < python_version():
        out.append(f"{where}: Python {found[3]}.{found[4]} is older than pyproject.toml allows")
    if (found[5] == "cpu") != (kind == "cpu"):
        out.append(f"{where}: a {found[5]} image where {kind} is needed")
    return out


def secret_problems(tree: Any, where: str = "file") -> list[str]:
    out = []
    for text in strings(tree):
        if re.search(r"\b[0-9a-fA-F]{64}\b", text) or re.search(r"RAY_AUTH_TOKEN\s*[=:]", text):
            out.append(f"{where}: a token is written in the file")
        if re.search(r"AKIA[0-9A-Z]{16}|BEGIN [A-Z ]*PRIVATE KEY", text):
            out.append(f"{where}: a key is written in the file")
    return out


def vm_problems(
    cfg: dict[str, Any], *, folder: Path, home: Path, template: bool = True, shared_storage: bool = True
) -> list[str]:
    """Mistakes in a file for `ray up` that would be run from `folder` by the owner of `home`."""
    out = [f"{key}: left out, so Ray's default is used" for key in EXPLICIT if key not in cfg]
    out = out or schema_problems(cfg)
    if out:  # the rest may rely on the shape
        return out
    kind = cfg["provider"]["type"]
    if kind not in PROVIDER_KEYS:
        return [f"provider.type: {kind} is not checked here"]
    out += [f"provider: unknown key {k}" for k in cfg["provider"] if k not in PROVIDER_KEYS[kind]]
    out += secret_problems(cfg)
    if not template:
        out += [f"{text} is not filled in" for text in strings(cfg) if PLACEHOLDER in text]
    out += provider_problems(cfg)
    out += docker_problems(cfg["docker"])
    out += node_type_problems(cfg)
    out += command_problems(cfg)
    if cfg["rsync_filter"]:
        out.append("rsync_filter: a .gitignore inside dist, which some tools write, would hide the wheel")
    out += mount_problems(cfg["file_mounts"], folder=folder, home=home)
    out += (aws_problems if kind == "aws" else gcp_problems)(cfg, shared_storage=shared_storage)
    return out


def schema_problems(cfg: dict[str, Any]) -> list[str]:
    import jsonschema
    import ray.autoscaler
    from ray.autoscaler._private.util import prepare_config, validate_config

    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    found = [
        f"{'.'.join(map(str, e.absolute_path))}: {e.message}"
        for e in jsonschema.Draft7Validator(schema).iter_errors(cfg)
    ]
    if found:
        return found
    try:
        validate_config(prepare_config(json.loads(json.dumps(cfg))))
    except Exception as problem:
        return [f"Ray refuses it: {type(problem).__name__} {problem}"]
    return []


def provider_problems(cfg: dict[str, Any]) -> list[str]:
    out = []
    provider = cfg["provider"]
    region, zones = provider.get("region"), provider.get("availability_zone", "")
    if not region:
        out.append("provider.region: missing")
    out += [f"zone {z.strip()} is not in {region}" for z in zones.split(",") if not z.strip().startswith(f"{region}")]
    if cfg["upscaling_speed"] <= 0:
        out.append("upscaling_speed: must be above 0")
    if cfg["idle_timeout_minutes"] < 1:
        out.append("idle_timeout_minutes: below 1, nodes go back between two trials")
    return out


def docker_problems(docker: dict[str, Any]) -> list[str]:
    out = [f"docker.{k}: missing" for k in ("head_image", "worker_image", "container_name") if not docker.get(k)]
    if "head_image" in docker:
        out += image_problems(docker["head_image"], "head_image", kind="cpu")
    if "worker_image" in docker:
        out += image_problems(docker["worker_image"], "worker_image", kind="gpu")
    options = docker.get("run_options", [])
    if "--env RAY_AUTH_MODE=token" not in options:
        out.append("docker.run_options: RAY_AUTH_MODE=token is missing, so anyone who reaches a port runs code")
    if not any(o.startswith("--env RAY_AUTH_TOKEN_PATH=/") for o in options):
        out.append("docker.run_options: RAY_AUTH_TOKEN_PATH is missing")
    return out


def node_type_problems(cfg: dict[str, Any]) -> list[str]:
    out = []
    types, head = cfg["available_node_types"], cfg["head_node_type"]
    workers = {k: v for k, v in types.items() if k != head}
    if not workers:
        out.append("available_node_types: no worker type")
    for name, node in types.items():
        low, high = node.get("min_workers", 0), node.get("max_workers", cfg["max_workers"])
        if not 0 <= low <= high <= cfg["max_workers"]:
            out.append(f"{name}: 0 <= min_workers <= max_workers <= {cfg['max_workers']} does not hold: {low}, {high}")
    if types[head].get("max_workers") != 0:
        out.append("head: max_workers must be 0, or more heads' worth of machines start as workers")
    if types[head]["resources"].get("CPU") != 0 or types[head]["resources"].get("GPU") != 0:
        out.append("head: CPU and GPU must be 0, trials belong on workers")
    slots = types[head]["resources"].get("trial_slot", 0)
    most = sum(node["resources"].get("GPU", 0) * node.get("max_workers", 0) for node in workers.values())
    if slots < max(most, 1):
        out.append(f"head: trial_slot {slots} is below the {most} trials that fit")
    for name, node in workers.items():
        if "trial_slot" in node["resources"]:
            out.append(f"{name}: trial_slot on a worker puts drivers on spot machines")
        if node.get("min_workers", 0) != 0:
            out.append(f"{name}: min_workers must be 0, or an idle cluster is paid for")
        machine = node["node_config"].get("InstanceType") or node["node_config"].get("machineType")
        stated = (node["resources"].get("CPU"), node["resources"].get("GPU"))
        if machine in MACHINES and stated != MACHINES[machine]:
            out.append(f"{name}: {machine} has (CPU, GPU) {MACHINES[machine]}, the file says {stated}")
        elif machine not in MACHINES:
            out.append(f"{name}: {machine} is not in the table of machines")
    kinds = [(node.get("max_workers", cfg["max_workers"]), node["resources"]) for node in workers.values()]
    return out + trial_problems(kinds, "node type", slots)


def command_problems(cfg: dict[str, Any]) -> list[str]:
    out = []
    head, worker = " ; ".join(cfg["head_start_ray_commands"]), " ; ".join(cfg["worker_start_ray_commands"])
    if "--autoscaling-config=~/ray_bootstrap_config.yaml" not in head:
        out.append("head_start_ray_commands: no --autoscaling-config, nothing ever scales")
    hosts = re.findall(r"--dashboard-host[= ](\S+)", head)
    if hosts != ["127.0.0.1"]:
        out.append(f"head_start_ray_commands: --dashboard-host must be 127.0.0.1, is {hosts}")
    ports = re.findall(r"--port[= ](\d+)", head)
    joined = re.findall(r"ray start --address[= ]\$RAY_HEAD_IP:(\d+)", worker)
    if not ports or not joined or ports != joined:
        out.append(f"head listens on port {ports}, workers join {joined}")
    watch = re.search(r"-m mmts_ray\.spot --provider (\w+)", worker)
    if not watch or watch[1] != cfg["provider"]["type"]:
        out.append("worker_start_ray_commands: the spot watcher of this provider is not started")
    client = {"aws": "boto3", "gcp": "googleapiclient"}[cfg["provider"]["type"]]
    if not any(f"import {client}" in command for command in cfg["head_setup_commands"]):
        out.append(f"head_setup_commands: {client} is not made sure of, without it nothing ever scales")
    setup = " ; ".join(cfg["setup_commands"] + cfg["worker_setup_commands"] + cfg["head_setup_commands"])
    if re.search(r"\btorch\b|ray-wheels|ray-3\.0\.0", setup):
        out.append("setup_commands: torch and Ray belong in the image, each new node would install them again")
    return out


def mount_problems(mounts: dict[str, str], *, folder: Path, home: Path) -> list[str]:
    out = []
    for remote, local in mounts.items():
        source = home / local.removeprefix("~/") if local.startswith("~/") else folder / local
        if not remote.startswith("/home/ray/"):
            out.append(f"file_mounts: {remote} is outside /home/ray, where the container cannot write")
        if not source.exists():
            out.append(f"file_mounts: {local} does not exist")
        elif not source.is_dir():
            out.append(f"file_mounts: {local} is a file, which goes stale in a container")
        elif remote != "/home/ray/mmts-auth":
            hidden = [p.name for p in source.rglob("*") if p.name == ".env" or p.suffix in (".pem", ".key")]
            out += [f"file_mounts: {local} holds {name}" for name in hidden]
    return out
