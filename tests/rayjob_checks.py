"""What is wrong with a RayJob: the strict schema of KubeRay, and what it does not see."""

import re
from pathlib import Path
from typing import Any

import yaml
from cluster_checks import image_problems, ray_version, secret_problems, trial_problems

KUBERAY_SCHEMA = Path(__file__).parents[2] / "shared" / "data" / "kuberay" / "rayjob-v1-strict.json.gz"


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
