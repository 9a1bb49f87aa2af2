"""cluster.yaml and deploy/gcp.yaml: valid for Ray and for the clouds, and every known mistake is noticed."""

import importlib.metadata
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import cluster_checks as checks
import pytest
import yaml
from mistakes import DROP, put

pytest.importorskip("ray")
ROOT = Path(__file__).parents[1]
FILES = {"aws": ROOT / "cluster.yaml", "gcp": ROOT / "deploy" / "gcp.yaml"}


GPU = "available_node_types.gpu_spot"
HEAD = "available_node_types.head"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.fixture(scope="session")
def laptop(tmp_path_factory):
    """Where `ray up` is run: a folder with a built wheel, and a home with a token."""
    folder = tmp_path_factory.mktemp("laptop")
    (folder / "dist").mkdir()
    (folder / "dist" / "mmts_ray-0-py3-none-any.whl").touch()
    (folder / "home" / ".mmts-ray" / "auth").mkdir(parents=True)
    (folder / "home" / ".mmts-ray" / "auth" / "token").write_text("a" * 64)
    return {"folder": folder, "home": folder / "home"}


def need(kind: str) -> None:
    pytest.importorskip("botocore" if kind == "aws" else "googleapiclient")


@pytest.mark.parametrize("kind", FILES)
def test_the_file_is_valid_for_ray_and_for_the_cloud(kind, laptop):
    need(kind)
    assert checks.vm_problems(load(FILES[kind]), **laptop) == []


@pytest.mark.parametrize("kind", FILES)
def test_a_file_with_placeholders_is_only_a_template(kind, laptop):
    need(kind)
    text = FILES[kind].read_text()
    found = checks.vm_problems(load(FILES[kind]), template=False, **laptop)
    assert found
    assert all("is not filled in" in problem for problem in found)
    filled = re.sub(r"sg-YOUR-GROUP", "sg-0123456789abcdef0", text)
    filled = re.sub(r"YOUR-[A-Z-]*[A-Z]", lambda found: found[0].lower(), filled)
    assert checks.vm_problems(yaml.safe_load(filled), template=False, **laptop) == []


# every mistake of both kinds of file: path, value, what must be said
BOTH: list[tuple[str, Any, str]] = [
    # what Ray's schema or validator says
    ("max_wokers", 3, "max_wokers"),
    (f"{GPU}.setup_commands", [], "setup_commands"),
    (f"{GPU}.max_wokers", 3, "max_wokers"),
    ("setup_commands", "pip install x", "setup_commands"),
    ("max_workers", "8", "max_workers"),
    (f"{GPU}.resources.GPU", 0.5, "resources.GPU"),
    (f"{GPU}.resources", DROP, "resources"),
    ("provider.availability_zone", ["us-west-2a"], "availability_zone"),
    ("idle_timeout_minutes", -1, "idle_timeout_minutes"),
    ("head_node_type", "haed", "Ray refuses"),
    ("docker.run_option", [], "run_option"),
    ("provider.security_group", {"Name": "x"}, "security_group"),
    # limits
    (f"{GPU}.min_workers", 9, "Ray refuses"),
    (f"{GPU}.min_workers", 1, "min_workers must be 0"),
    (f"{GPU}.min_workers", -1, "0 <= min_workers"),
    (f"{GPU}.max_workers", 9, "<= max_workers <= 8"),
    ("upscaling_speed", 0, "upscaling_speed"),
    ("idle_timeout_minutes", 0, "idle_timeout_minutes"),
    # the head
    (f"{HEAD}.resources.trial_slot", DROP, "trial_slot 0"),
    (f"{HEAD}.resources.trial_slot", 4, "trial_slot 4 is below the 8"),
    (f"{GPU}.resources.trial_slot", 1, "trial_slot on a worker"),
    (f"{HEAD}.max_workers", 2, "max_workers must be 0"),
    (f"{HEAD}.max_workers", DROP, "max_workers must be 0"),
    (f"{HEAD}.resources.CPU", 8, "CPU and GPU must be 0"),
    (f"{HEAD}.resources.CPU", DROP, "CPU and GPU must be 0"),
    # resources against the machine
    (f"{GPU}.resources.GPU", DROP, "has (CPU, GPU) (8, 1), the file says (8, None)"),
    (f"{GPU}.resources.GPU", 4, "has (CPU, GPU) (8, 1)"),
    (f"{GPU}.resources.CPU", 0, "no node type holds a trial"),
    ("available_node_types.gpu_spot", DROP, "no worker type"),
    # provider
    ("provider.regoin", "us-west-2", "unknown key regoin"),
    ("provider.region", DROP, "provider.region: missing"),
    ("provider.availability_zone", "eu-north-1a", "is not in"),
    ("provider.type", "azure", "is not checked here"),
    ("provider.type", "awss", "provider"),
    # commands
    ("head_start_ray_commands", ["ray start --head --port=6379 --dashboard-host=127.0.0.1"], "nothing ever scales"),
    (
        "head_start_ray_commands",
        ["ray start --head --port=6380 --dashboard-host=127.0.0.1 --autoscaling-config=~/ray_bootstrap_config.yaml"],
        "head listens on port ['6380'], workers join ['6379']",
    ),
    (
        "head_start_ray_commands",
        ["ray start --head --port=6379 --dashboard-host=0.0.0.0 --autoscaling-config=~/ray_bootstrap_config.yaml"],
        "--dashboard-host must be 127.0.0.1",
    ),
    (
        "head_start_ray_commands",
        ["ray start --head --port=6379 --autoscaling-config=~/ray_bootstrap_config.yaml"],
        "--dashboard-host must be 127.0.0.1",
    ),
    ("worker_start_ray_commands.1", "ray start --address=$RAY_HEAD_IP:6380", "workers join ['6380']"),
    ("worker_start_ray_commands.2", DROP, "spot watcher"),
    ("worker_start_ray_commands.2", "python -m mmts_ray.spot --provider azure", "spot watcher"),
    ("head_setup_commands", [], "is not made sure of"),
    ("setup_commands.1", "pip install torch", "torch and Ray belong in the image"),
    # images
    ("docker.worker_image", "rayproject/ray:latest", "is no image"),
    ("docker.worker_image", "rayproject/ray-ml:2.60.0-py311-gpu", "is no image"),
    ("docker.worker_image", "rayproject/ray:2.59.0-py311-gpu", "Ray 2.59.0"),
    ("docker.worker_image", "rayproject/ray:2.60.0-py39-gpu", "Python 3.9"),
    ("docker.worker_image", "rayproject/ray:2.60.0-py311-cpu", "a cpu image"),
    ("docker.head_image", "rayproject/ray:2.60.0", "is no image"),
    ("docker.head_image", DROP, "container & image"),
    ("docker.container_name", DROP, "container & image"),
    # the token
    ("docker.run_options.1", DROP, "RAY_AUTH_MODE"),
    ("docker.run_options.2", DROP, "RAY_AUTH_TOKEN_PATH"),
    ("docker.run_options.2", "--env RAY_AUTH_TOKEN=secret", "a token is written"),
    ("setup_commands.1", "echo " + "0f" * 32 + " > ~/.ray/auth_token", "a token is written"),
    # mounts
    ("file_mounts./home/ray/study", "no-such-folder", "does not exist"),
    ("rsync_filter", [".gitignore"], "would hide the wheel"),
    ("file_mounts./opt/mmts", "dist", "outside /home/ray"),
    *((key, DROP, f"{key}: left out") for key in checks.EXPLICIT if key not in ("available_node_types",)),
]
EC2 = f"{GPU}.node_config"
AWS: list[tuple[str, Any, str]] = [
    ("provider.availability_zone", "us-west-2a,us-east-1b", "us-east-1b is not in us-west-2"),
    ("provider.cache_stopped_nodes", DROP, "cache_stopped_nodes"),
    ("provider.security_group", {"GroupName": "x"}, "SSH from everywhere"),
    (f"{EC2}.SecurityGroupIds", DROP, "no SecurityGroupIds"),
    (f"{EC2}.SecurityGroupIds", "sg-1", "EC2 refuses it"),
    (f"{EC2}.InstanceTyp", "g6.2xlarge", "EC2 refuses it"),
    (f"{EC2}.InstanceMarketOptions.MarketTyp", "spot", "EC2 refuses it"),
    (f"{EC2}.BlockDeviceMappings.0.Ebs.VolumeTyp", "gp3", "EC2 refuses it"),
    (f"{EC2}.BlockDeviceMappings.0.Ebs.VolumeSize", "150", "EC2 refuses it"),
    (f"{EC2}.InstanceMarketOptions.SpotOptions.MaxPrice", 0.9, "EC2 refuses it"),
    (f"{EC2}.IamInstanceProfile", "worker", "EC2 refuses it"),
    (f"{EC2}.InstanceType", DROP, "None is not in the table"),
    (f"{EC2}.InstanceType", "g6.2xlargee", "g6.2xlargee does not exist"),
    (f"{EC2}.InstanceType", "g6.12xlarge", "has (CPU, GPU) (48, 4)"),
    (f"{EC2}.InstanceMarketOptions.MarketType", "Spot", "MarketType Spot"),
    (f"{EC2}.InstanceMarketOptions", DROP, "on-demand price"),
    (f"{HEAD}.node_config.InstanceMarketOptions", {"MarketType": "spot"}, "a spot head"),
    (f"{EC2}.ImageId", "latest_dlami", "ImageId"),
    (f"{EC2}.ImageId", "", "ImageId"),
    (f"{EC2}.ImageId", DROP, "ImageId"),
    (f"{EC2}.ImageId", "ami-xxxxxxxx", "ImageId"),
    (f"{EC2}.IamInstanceProfile", DROP, "no IamInstanceProfile"),
    (f"{EC2}.IamInstanceProfile", {"Name": "YOUR-HEAD-PROFILE"}, "the head's profile"),
    (f"{EC2}.MetadataOptions", DROP, "IMDSv2"),
    (f"{EC2}.BlockDeviceMappings", DROP, "disks must be given"),
    (f"{EC2}.BlockDeviceMappings.0.Ebs.Encrypted", False, "disks must be given, encrypted"),
    (f"{EC2}.BlockDeviceMappings.0.Ebs.VolumeSize", 8, "do not fit in 8 GB"),
]
GCE = f"{GPU}.node_config"
GCP: list[tuple[str, Any, str]] = [
    ("provider.project_id", None, "project_id"),
    ("provider.project_id", DROP, "project_id"),
    ("provider.availability_zone", "us-central1-a,us-central1-b", "one zone"),
    ("cluster_name", "Mmts_Ray", "no instance name"),
    ("available_node_types.ray~worker~gpu", {"resources": {"CPU": 8, "GPU": 1}, "node_config": {}}, "becomes a label"),
    (f"{GCE}.guestAccelerator", [], "unknown key guestAccelerator"),
    (f"{GCE}.guestAccelerators.0.acceleratorCount", "1", "is not of type integer"),
    (f"{GCE}.scheduling", [{"provisioningModel": "SPOT"}], "is not of type object"),
    (f"{GCE}.scheduling.provisioningModel", "spot", "is none of"),
    (f"{GCE}.scheduling.onHostMaintenance", "terminate", "is none of"),
    (f"{GCE}.scheduling.preemptible", "true", "is not of type boolean"),
    (f"{GCE}.scheduling.onHostMaintenance", DROP, "onHostMaintenance TERMINATE"),
    (f"{GCE}.scheduling.instanceTerminationAction", "STOP", "must be DELETE"),
    (f"{GCE}.scheduling", DROP, "on-demand price"),
    (f"{HEAD}.node_config.scheduling", {"provisioningModel": "SPOT"}, "a spot head"),
    (f"{GCE}.disks.0.initializeParams.diskSizeGB", "150", "unknown key diskSizeGB"),
    (f"{GCE}.disks", DROP, "a boot disk"),
    (f"{GCE}.metadata", {"install-nvidia-driver": "True"}, "unknown key install-nvidia-driver"),
    (f"{GCE}.metadata.items.0.value", True, "is not of type string"),
    (f"{GCE}.serviceAccounts", DROP, "no serviceAccounts"),
    (f"{GCE}.serviceAccounts.0.email", "ray-autoscaler-sa-v1@p.iam.gserviceaccount.com", "the head's service account"),
    (f"{GCE}.networkInterfaces", DROP, "no networkInterfaces"),
    (f"{GCE}.machineType", "n2-standard-8", "n2-standard-8 is not in the table"),
]
VM_MISTAKES = [("aws", *m) for m in BOTH + AWS] + [("gcp", *m) for m in BOTH + GCP]


@pytest.mark.parametrize(
    ("kind", "path", "value", "said"),
    VM_MISTAKES,
    ids=[f"{k}-{p}-{str(v)[:40]}" for k, p, v, _ in VM_MISTAKES],
)
def test_a_planted_mistake_is_noticed(kind, path, value, said, laptop):
    need(kind)
    if (kind, path) == ("gcp", "provider.availability_zone") and value == ["us-west-2a"]:
        said = "availability_zone"
    found = checks.vm_problems(put(load(FILES[kind]), path, value), **laptop)
    assert any(said in problem for problem in found), found


@pytest.mark.parametrize("kind", FILES)
def test_a_mounted_file_and_a_mounted_secret_are_noticed(kind, laptop, tmp_path):
    need(kind)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "id.pem").touch()
    (tmp_path / "one.txt").touch()
    cfg = put(load(FILES[kind]), "file_mounts./home/ray/one", "one.txt")
    found = checks.vm_problems(cfg, folder=tmp_path, home=laptop["home"])
    assert any("one.txt is a file" in problem for problem in found)
    assert any("dist holds id.pem" in problem for problem in found)


def test_without_a_bucket_a_worker_needs_no_profile(laptop):
    need("aws")
    cfg = put(load(FILES["aws"]), f"{EC2}.IamInstanceProfile", DROP)
    assert checks.vm_problems(cfg, shared_storage=False, **laptop) == []


def test_the_two_clouds_differ_only_in_the_cloud():
    aws, gcp = load(FILES["aws"]), load(FILES["gcp"])
    for key in sorted(set(aws) - {"provider", "initialization_commands", "head_setup_commands"}):
        if key == "available_node_types":
            for name in aws[key]:
                plain = [{k: v for k, v in cfg[key][name].items() if k != "node_config"} for cfg in (aws, gcp)]
                assert plain[0] == plain[1]
        else:
            assert json.loads(json.dumps(aws[key]).replace("--provider aws", "--provider gcp")) == gcp[key], key


def test_images_have_the_ray_that_is_tested():
    """The lower bound in pyproject.toml is the images' Ray; the Ray that runs the tests is that one or newer."""
    installed = tuple(int(x) for x in importlib.metadata.version("ray").split(".")[:3])
    assert installed >= tuple(int(x) for x in checks.ray_version().split("."))
    text = "".join(
        p.read_text() for p in [*FILES.values(), ROOT / "deploy" / "rayjob.yaml", ROOT / "deploy" / "Dockerfile"]
    )
    assert set(re.findall(r":(\d+\.\d+\.\d+)-py", text)) == {checks.ray_version()}
    assert re.search(r"FROM rayproject/ray:[\d.]+-py311-\$\{KIND\}", text)


@pytest.mark.parametrize("kind", FILES)
def test_start_commands_are_shell_that_parses_and_name_modules_that_exist(kind, tmp_path):
    cfg = load(FILES[kind])
    for key in checks.COMMANDS:
        for command in cfg[key]:
            # Ray wraps each command like this
            done = subprocess.run(["bash", "-n", "-c", f"true && ({command})"], capture_output=True, text=True)
            assert done.returncode == 0, (command, done.stderr)
            for module in re.findall(r"-m (mmts_ray[\w.]*)", command):
                assert (ROOT / (module.replace(".", "/") + ".py")).is_file()


@pytest.mark.skipif(shutil.which("flock") is None, reason="needs flock of util-linux")
def test_the_watcher_runs_in_the_background_and_only_once(tmp_path):
    """The start command returns at once, survives its shell, and a second one finds the first."""
    command = load(FILES["aws"])["worker_start_ray_commands"][-1]
    count = tmp_path / "count"
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "$@" >> {count}\nsleep 3\n')
    (tmp_path / "python").chmod(0o755)
    command = command.replace("/tmp/", f"{tmp_path}/")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "RAY_HEAD_IP": "10.0.0.1"}
    for _ in range(2):
        subprocess.run(["bash", "-c", f"true && ({command})"], env=env, timeout=2, check=True)
        for _ in range(50):
            if count.exists():
                break
            subprocess.run(["sleep", "0.1"], check=True)
    assert count.read_text().splitlines() == ["-m mmts_ray.spot --provider aws --address=10.0.0.1:6379"]
