"""deploy/rayjob.yaml: valid for KubeRay, and every known mistake is noticed."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import rayjob_checks as checks
import yaml
from mistakes import DROP, put

pytest.importorskip("ray")
ROOT = Path(__file__).parents[1]
CONTAINER = "rayClusterSpec.workerGroupSpecs.0.template.spec.containers.0"


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "deploy" / "rayjob.yaml").read_text()))


@pytest.fixture(scope="session")
def rayjob_schema():
    if not checks.KUBERAY_SCHEMA.is_file():
        pytest.skip(f"{checks.KUBERAY_SCHEMA} is not here: the RayJob schema is not part of the repository")
    with gzip.open(checks.KUBERAY_SCHEMA) as file:
        return json.load(file)


# RayJob: what the strict schema says, and what it does not see
SCHEMA_MISTAKES: list[tuple[str, Any]] = [
    ("rayClusterSpec.enableInTreeAutoscalling", True),
    ("rayClusterSpec.workerGroupSpecs.0.minReplica", 0),
    ("rayClusterSpec.workerGroupSpecs.0.replicas", "0"),
    ("rayClusterSpec.headGroupSpec.rayStartParams.num-cpus", 0),
    ("rayClusterSpec.autoscalerOptions.upscalingMode", "Fast"),
    ("rayClusterSpec.autoscalerOptions.version", "2"),
    ("rayClusterSpec.autoscalerOptions.idleTimeoutSeconds", "300"),
    ("rayClusterSpec.authOptions.mode", "Token"),
    (f"{CONTAINER}.imag", "x"),
    (f"{CONTAINER}.name", DROP),
    ("rayClusterSpec.workerGroupSpecs.0.template", DROP),
    (f"{CONTAINER}.volumeMounts.0.mountpath", "/x"),
    ("rayClusterSpec.workerGroupSpecs.0.template.spec.tolerations.0.ky", "x"),
    (f"{CONTAINER}.resources.limits.memory", "28Gii"),
    ("rayClusterSpec.headGroupSpec.rayStartParams.resources", {"trial_slot": 16}),
]
SIDECAR = {"name": "log", "image": "busybox:1.36"}
LABEL = "rayClusterSpec.workerGroupSpecs.0"
OWN_MISTAKES: list[tuple[str, Any, str]] = [
    ("submissionMode", "SideCarMode", "does not exist"),
    ("submissionMode", "InteractiveMode", "backoffLimit"),
    ("submitterConfig", {"backoffLimit": 1}, "no submitter pod"),
    ("backoffLimit", 0, "backoffLimit"),
    ("backoffLimit", DROP, "backoffLimit"),
    ("activeDeadlineSeconds", DROP, "nothing ends the bill"),
    ("shutdownAfterJobFinishes", False, "ttlSecondsAfterFinished"),
    ("shutdownAfterJobFinishes", DROP, "the cluster outlives the job"),
    ("deletionStrategy", {"deletionRules": []}, "exclusive"),
    ("entrypoint", "", "--resume-if-exists"),
    ("entrypoint", "mmts-ray search s.yaml --out /mnt/studies/x --address auto", "--resume-if-exists"),
    ("entrypointNumCpus", 1, "spot worker"),
    ("runtimeEnvYAML", "env_vars: {a: [", "is no YAML"),
    ("rayClusterSpec", DROP, "rayClusterSpec: missing"),
    ("rayClusterSpec.authOptions", DROP, "mode token is missing"),
    ("rayClusterSpec.rayVersion", DROP, "rayVersion"),
    ("rayClusterSpec.rayVersion", "2.59.0", "rayVersion"),
    ("rayClusterSpec.enableInTreeAutoscaling", DROP, "nothing ever scales"),
    (f"{LABEL}.minReplicas", 9, "minReplicas 9 > maxReplicas 8"),
    (f"{LABEL}.minReplicas", 1, "an idle cluster is paid for"),
    (f"{LABEL}.replicas", 2, "an idle cluster is paid for"),
    (f"{CONTAINER}.resources.limits.nvidia~com/gpu", DROP, "no limit of nvidia.com/gpu"),
    (f"{CONTAINER}.resources", {"limits": {"memory": "28Gi", "nvidia.com/gpu": "1"}}, "cpu and memory limits"),
    (f"{CONTAINER}.resources.limits.cpu", "7500m", "rounded up"),
    (f"{LABEL}.template.spec.restartPolicy", "Always", "restartPolicy Never"),
    (f"{LABEL}.template.spec.containers.0", SIDECAR, "first container must be Ray's"),
    (f"{CONTAINER}.image", "rayproject/ray:latest-gpu", "is no image"),
    (f"{CONTAINER}.image", "rayproject/ray:2.59.0-py311-gpu", "Ray 2.59.0"),
    (f"{CONTAINER}.volumeMounts.0", DROP, "would die with the pod"),
    (f"{CONTAINER}.lifecycle", DROP, "no preStop hook"),
    (f"{LABEL}.template.spec.volumes.1", DROP, "/dev/shm"),
    (f"{LABEL}.template.spec.tolerations", DROP, "no toleration"),
    (f"{LABEL}.template.spec.containers", [], "no container"),
    ("rayClusterSpec.headGroupSpec.rayStartParams.resources", '{"trial_slot": 16}', "autoscaler cannot read it"),
    ("rayClusterSpec.headGroupSpec.rayStartParams.resources", DROP, "no trial_slot"),
    ("rayClusterSpec.headGroupSpec.rayStartParams.resources", '"{\\"trial_slot\\": 2}"', "trial_slot 2 is below the 8"),
    ("rayClusterSpec.headGroupSpec.rayStartParams.num-cpus", DROP, "CPU must be 0"),
    ("rayClusterSpec.headGroupSpec.resources", {"CPU": "0"}, "both in the group and in rayStartParams"),
    ("metadata", {"a": "0f" * 32}, "a token is written"),
]


def test_the_rayjob_is_what_kuberay_takes(rayjob_schema):
    assert checks.rayjob_schema_problems(documents()[0], rayjob_schema) == []


def test_the_rayjob_does_what_it_should():
    assert checks.rayjob_problems(documents()[0]) == []


@pytest.mark.parametrize(("path", "value"), SCHEMA_MISTAKES, ids=[p for p, _ in SCHEMA_MISTAKES])
def test_the_schema_notices_a_planted_mistake(path, value, rayjob_schema):
    job = documents()[0]
    assert checks.rayjob_schema_problems({**job, "spec": put(job["spec"], path, value)}, rayjob_schema)


@pytest.mark.parametrize(
    ("path", "value", "said"), OWN_MISTAKES, ids=[f"{p}-{str(v)[:30]}" for p, v, _ in OWN_MISTAKES]
)
def test_what_the_schema_misses_is_noticed(path, value, said):
    job = documents()[0]
    found = checks.rayjob_problems({**job, "spec": put(job["spec"], path, value)})
    assert any(said in problem for problem in found), found


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"apiVersion": "ray.io/v1alpha1"}, "is not ray.io/v1 RayJob"),
        ({"kind": "RayCluster"}, "is not ray.io/v1 RayJob"),
        ({"metadata": {"name": "a" * 48}}, "no DNS label"),
        ({"metadata": {"name": "MMTS"}}, "no DNS label"),
    ],
)
def test_a_wrong_kind_or_name_is_noticed(changes, said):
    assert any(said in problem for problem in checks.rayjob_problems({**documents()[0], **changes}))


def test_only_the_study_and_the_operator_reach_rays_ports():
    _, policy = documents()
    assert (policy["kind"], policy["spec"]["policyTypes"]) == ("NetworkPolicy", ["Ingress"])
    node = {"matchLabels": {"ray.io/is-ray-node": "yes"}}
    assert policy["spec"]["podSelector"] == node
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"] == [
        {"podSelector": node},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kuberay-operator"}}},
    ]
