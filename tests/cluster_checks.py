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

import yaml

ROOT = Path(__file__).parents[1]
KUBERAY_SCHEMA = Path(__file__).parents[2] / "shared" / "data" / "kuberay" / "rayjob-v1-strict.json.gz"
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


@cache
def run_instances() -> Any:
    """What EC2's RunInstances takes, from botocore's own copy."""
    import botocore.session

    return botocore.session.get_session().get_service_model("ec2").operation_model("RunInstances").input_shape


@cache
def compute_schemas() -> dict[str, Any]:
    """The schemas of Google's compute API, from the copy inside its client."""
    import googleapiclient

    path = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents" / "compute.v1.json"
    return json.loads(path.read_text())["schemas"]


def aws_problems(cfg: dict[str, Any], *, shared_storage: bool) -> list[str]:
    import botocore.validate

    shape = run_instances()
    instance_types = shape.members["InstanceType"].enum
    markets = shape.members["InstanceMarketOptions"].members["MarketType"].enum
    out = []
    if cfg["provider"].get("cache_stopped_nodes") is not False:
        out.append("provider.cache_stopped_nodes: must be false, or `ray down` leaves disks that are paid for")
    if "security_group" in cfg["provider"]:
        out.append(
            "provider.security_group: Ray adds SSH from everywhere to a group that it fills; name one of your own"
        )
    for name, node in cfg["available_node_types"].items():
        config = node["node_config"]
        sent = {k: v for k, v in config.items() if k != "SubnetIds"}  # Ray's own key
        report = botocore.validate.ParamValidator().validate(sent | {"MinCount": 1, "MaxCount": 1}, shape)
        if report.has_errors():
            out.append(f"{name}: EC2 refuses it: {report.generate_report()}")
            continue
        if config.get("InstanceType") not in instance_types:
            out.append(f"{name}: InstanceType {config.get('InstanceType')} does not exist")
        if not re.fullmatch(r"ami-[0-9a-f]{8,17}|resolve:ssm:/\S+", config.get("ImageId", "")):
            out.append(f"{name}: ImageId {config.get('ImageId')!r} is neither an AMI id nor resolve:ssm:/...")
        if not config.get("SecurityGroupIds"):
            out.append(f"{name}: no SecurityGroupIds, so Ray makes a group with SSH open to everywhere")
        if config.get("MetadataOptions", {}).get("HttpTokens") != "required":
            out.append(f"{name}: MetadataOptions.HttpTokens must be required (IMDSv2)")
        disks = config.get("BlockDeviceMappings", [])
        if not disks or not all(d["Ebs"].get("Encrypted") and d["Ebs"].get("DeleteOnTermination") for d in disks):
            out.append(f"{name}: disks must be given, encrypted and deleted with the machine")
        elif disks[0]["Ebs"].get("VolumeSize", 0) < 100:
            out.append(f"{name}: a GPU image and features do not fit in {disks[0]['Ebs'].get('VolumeSize')} GB")
        if shared_storage and not config.get("IamInstanceProfile"):
            out.append(f"{name}: no IamInstanceProfile, so nothing can be written to the bucket")
        market = config.get("InstanceMarketOptions")
        if name == cfg["head_node_type"]:
            if market:
                out.append("head: a spot head loses the study's driver")
        elif not market:
            out.append(f"{name}: no InstanceMarketOptions, this is an on-demand price")
        elif market.get("MarketType") != "spot" or "spot" not in markets:
            out.append(f"{name}: MarketType {market.get('MarketType')} is not spot")
    head = cfg["available_node_types"][cfg["head_node_type"]]["node_config"].get("IamInstanceProfile")
    for name, node in cfg["available_node_types"].items():
        if name != cfg["head_node_type"] and head and node["node_config"].get("IamInstanceProfile") == head:
            out.append(f"{name}: has the head's profile, which may start machines")
    return out


def gcp_problems(cfg: dict[str, Any], *, shared_storage: bool) -> list[str]:
    schemas = compute_schemas()
    out = []
    if not isinstance(cfg["provider"].get("project_id"), str):
        out.append("provider.project_id: missing")
    if "," in cfg["provider"].get("availability_zone", ","):
        out.append("provider.availability_zone: Google Cloud takes one zone")
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,30}", cfg["cluster_name"]):
        out.append(f"cluster_name: {cfg['cluster_name']} is no instance name")
    for name, node in cfg["available_node_types"].items():
        config = node["node_config"]
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", name):
            out.append(f"{name}: a node type's name becomes a label: lower case, digits, _ and -")
        refused = discovery_problems(config, {"$ref": "Instance"}, schemas, name)
        if refused:
            out += refused
            continue
        if not config.get("networkInterfaces"):
            out.append(f"{name}: no networkInterfaces, so the project's first network is used")
        if not config.get("disks") or int(config["disks"][0]["initializeParams"].get("diskSizeGb", 0)) < 100:
            out.append(f"{name}: a boot disk of at least 100 GB must be given")
        scheduling = config.get("scheduling", {})
        if name == cfg["head_node_type"]:
            if scheduling.get("provisioningModel") == "SPOT":
                out.append("head: a spot head loses the study's driver")
            continue
        if scheduling.get("provisioningModel") != "SPOT":
            out.append(f"{name}: scheduling.provisioningModel is not SPOT, this is an on-demand price")
        if scheduling.get("instanceTerminationAction") != "DELETE":
            out.append(f"{name}: scheduling.instanceTerminationAction must be DELETE")
        if node["resources"].get("GPU") and scheduling.get("onHostMaintenance") != "TERMINATE":
            out.append(f"{name}: a GPU machine needs scheduling.onHostMaintenance TERMINATE")
        accounts = config.get("serviceAccounts", [])
        if shared_storage and not any(a.get("email") and a.get("scopes") for a in accounts):
            out.append(f"{name}: no serviceAccounts, so nothing can be written to the bucket")
        if any("ray-autoscaler" in a.get("email", "") for a in accounts):
            out.append(f"{name}: has the head's service account, which may start machines")
    return out


def discovery_problems(value: Any, schema: dict[str, Any], schemas: dict[str, Any], where: str) -> list[str]:
    """`value` against a schema of Google's discovery format: unknown keys, types, enums."""
    if "$ref" in schema:
        return discovery_problems(value, schemas[schema["$ref"]], schemas, where)
    kind = schema.get("type", "any")
    python = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
    if kind in python and (not isinstance(value, python[kind]) or (kind != "boolean" and isinstance(value, bool))):
        return [f"{where}: {value!r} is not of type {kind}"]
    if kind == "array":
        return [
            p for i, v in enumerate(value) for p in discovery_problems(v, schema["items"], schemas, f"{where}[{i}]")
        ]
    if kind == "object":
        known, free = schema.get("properties", {}), schema.get("additionalProperties")
        out = []
        for key, inner in value.items():
            if key in known or free:
                out += discovery_problems(inner, known.get(key, free), schemas, f"{where}.{key}")
            else:
                out.append(f"{where}: unknown key {key}")
        return out
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where}: {value!r} is none of {', '.join(schema['enum'][:8])}"]
    return []


def rayjob_schema_problems(job: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    import jsonschema

    errors = jsonschema.Draft7Validator(schema).iter_errors(job)
    return [f"{'.'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in errors]


def rayjob_problems(job: dict[str, Any]) -> list[str]:
    """What Kubernetes and the schema would accept, and what then does not work."""
    if (job.get("apiVersion"), job.get("kind")) != ("ray.io/v1", "RayJob"):
        return [f"{job.get('apiVersion')} {job.get('kind')} is not ray.io/v1 RayJob"]
    spec, out = job.get("spec", {}), secret_problems(job)
    name = job.get("metadata", {}).get("name", "")
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?", name):
        out.append(f"metadata.name: {name!r} is no DNS label of at most 47 characters")
    cluster = spec.get("rayClusterSpec")
    if not cluster:
        return [*out, "spec.rayClusterSpec: missing"]
    entrypoint = spec.get("entrypoint", "")
    if "mmts-ray search" not in entrypoint or "--resume-if-exists" not in entrypoint:
        out.append("entrypoint: must search with --resume-if-exists, or a second attempt refuses the study it finds")
    out += [
        f"{k}: the driver could then land on a spot worker"
        for k in spec
        if k.startswith("entrypoint") and k != "entrypoint"
    ]
    mode = spec.get("submissionMode", "K8sJobMode")
    if mode not in ("K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"):
        out.append(f"submissionMode: {mode} does not exist")
    if mode == "SidecarMode" and ("submitterPodTemplate" in spec or "submitterConfig" in spec):
        out.append("submissionMode: SidecarMode has no submitter pod")
    if spec.get("backoffLimit", 0) < 1 or mode == "InteractiveMode":
        out.append("backoffLimit: 0, so a lost head ends the study")
    if not spec.get("activeDeadlineSeconds"):
        out.append("activeDeadlineSeconds: missing, nothing ends the bill")
    if not spec.get("shutdownAfterJobFinishes"):
        out.append("shutdownAfterJobFinishes: not set, the cluster outlives the job")
        if "ttlSecondsAfterFinished" in spec:
            out.append("ttlSecondsAfterFinished: without shutdownAfterJobFinishes it does nothing")
    elif "deletionRules" in spec.get("deletionStrategy", {}):
        out.append("deletionStrategy.deletionRules: exclusive with shutdownAfterJobFinishes")
    if "runtimeEnvYAML" in spec:
        try:
            yaml.safe_load(spec["runtimeEnvYAML"])
        except yaml.YAMLError:
            out.append("runtimeEnvYAML: is no YAML")
    if cluster.get("authOptions", {}).get("mode") != "token":
        out.append("authOptions: mode token is missing, so any pod that reaches the head runs code")
    if cluster.get("rayVersion") != ray_version():
        out.append(f"rayVersion: {cluster.get('rayVersion')}, pyproject.toml asks for {ray_version()}")
    if not cluster.get("enableInTreeAutoscaling"):
        out.append("enableInTreeAutoscaling: not set, nothing ever scales")
    return out + [p for group in _groups(cluster) for p in _group_problems(*group, cluster)] + _view_problems(job)


def _groups(cluster: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    head = [("head", cluster.get("headGroupSpec", {}))]
    return head + [(group.get("groupName", "?"), group) for group in cluster.get("workerGroupSpecs", [])]


def _group_problems(name: str, group: dict[str, Any], cluster: dict[str, Any]) -> list[str]:
    out = []
    pod = group.get("template", {}).get("spec", {})
    containers = pod.get("containers", [])
    if not containers:
        return [f"{name}: no container"]
    ray = containers[0]
    limits = ray.get("resources", {}).get("limits", {})
    if not re.match(r"ray-(head|worker)$", ray.get("name", "")):
        out.append(f"{name}: the first container must be Ray's, it is {ray.get('name')}")
    if "cpu" not in limits or "memory" not in limits:
        out.append(f"{name}: cpu and memory limits must be given")
    if cluster.get("autoscalerOptions", {}).get("version") == "v2" and pod.get("restartPolicy") != "Never":
        out.append(f"{name}: autoscaler v2 needs restartPolicy Never")
    if "resources" in group and "resources" in group.get("rayStartParams", {}):
        out.append(f"{name}: resources both in the group and in rayStartParams")
    if "trial_slot" not in str(group.get("rayStartParams", {})) + str(group.get("resources", {})) and name == "head":
        out.append("head: no trial_slot")
    claims = {v["name"] for v in pod.get("volumes", []) if "persistentVolumeClaim" in v}
    if not claims & {m["name"] for m in ray.get("volumeMounts", [])}:
        out.append(f"{name}: the study's volume is not mounted, it would die with the pod")
    out += image_problems(ray.get("image"), name, kind="cpu" if name == "head" else "gpu")
    if name == "head":
        return out
    if group.get("minReplicas", 0) != 0 or group.get("replicas", 0) != 0:
        out.append(f"{name}: minReplicas and replicas must be 0, or an idle cluster is paid for")
    if group.get("minReplicas", 0) > group.get("maxReplicas", 0) or group.get("maxReplicas", 0) < 1:
        out.append(f"{name}: minReplicas {group.get('minReplicas')} > maxReplicas {group.get('maxReplicas')}")
    if "nvidia.com/gpu" not in limits:
        out.append(f"{name}: no limit of nvidia.com/gpu, so no GPU node ever starts")
    if str(limits.get("cpu", "")).endswith("m"):
        out.append(f"{name}: a fraction of a CPU is rounded up by Ray")
    if not any(str(v.get("emptyDir", {}).get("medium")) == "Memory" for v in pod.get("volumes", [])):
        out.append(f"{name}: /dev/shm is not in memory")
    if not any("spot" in t.get("key", "") or "gpu" in t.get("key", "") for t in pod.get("tolerations", [])):
        out.append(f"{name}: no toleration of GPU and spot taints")
    if "mmts_ray.spot --now" not in str(ray.get("lifecycle", {}).get("preStop", {})):
        out.append(f"{name}: no preStop hook that drains")
    return out


def _view_problems(job: dict[str, Any]) -> list[str]:
    """The cluster as Ray's autoscaler will see it; the function is Ray's own and private."""
    try:
        from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr as derive
    except ImportError:
        return []
    cluster = job["spec"]["rayClusterSpec"]
    try:
        view = derive({"metadata": {"name": "study", "namespace": "study"}, "spec": cluster})["available_node_types"]
    except Exception as problem:
        return [f"the autoscaler cannot read it: {type(problem).__name__} {problem}"]
    head = view.pop("headgroup")["resources"]
    out = []
    if head.get("CPU") != 0 or head.get("GPU", 0) != 0:
        out.append("head: CPU must be 0 for Ray, trials belong on workers")
    most = sum(node["resources"].get("GPU", 0) * node["max_workers"] for node in view.values())
    if head.get("trial_slot", 0) < max(most, 1):
        out.append(f"head: trial_slot {head.get('trial_slot', 0)} is below the {most} trials that fit")
    kinds = [(node["max_workers"], node["resources"]) for node in view.values()]
    return out + trial_problems(kinds, "worker group", head.get("trial_slot", 0))
