"""cluster.yaml through Ray's own AWS code, up to a running spot machine, in an EC2 inside this process (moto)."""

from pathlib import Path
from typing import Any

import cluster_checks as checks
import pytest
import yaml

moto = pytest.importorskip("moto")
ROOT = Path(__file__).parents[1]
REGION = "us-west-2"
pytestmark = pytest.mark.slow


@pytest.fixture
def ec2(tmp_path, monkeypatch):
    """No real credentials, and a home of its own: Ray writes a key there."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    import boto3
    from ray.autoscaler._private.aws import config

    monkeypatch.setattr(config.time, "sleep", lambda seconds: None)
    with moto.mock_aws():
        yield boto3.client("ec2", region_name=REGION)


@pytest.fixture
def filled(ec2) -> dict[str, Any]:
    """The file with a group and two profiles that exist."""
    import boto3

    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    group = ec2.create_security_group(GroupName="mmts-ray", Description="closed", VpcId=vpc)["GroupId"]
    iam = boto3.client("iam", region_name=REGION)
    text = (ROOT / "cluster.yaml").read_text().replace("sg-YOUR-GROUP", group)
    for placeholder in ("YOUR-HEAD-PROFILE", "YOUR-WORKER-PROFILE"):
        iam.create_instance_profile(InstanceProfileName=placeholder)
    assert yaml.safe_load(text)["provider"]["region"] == REGION
    return yaml.safe_load(text)


def test_ray_launches_what_the_file_says_and_opens_nothing(filled, ec2):
    from ray.autoscaler._private.aws.config import bootstrap_aws
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
    from ray.autoscaler._private.util import prepare_config, validate_config

    groups = {g["GroupId"] for g in ec2.describe_security_groups()["SecurityGroups"]}
    (group,) = filled["available_node_types"]["head"]["node_config"]["SecurityGroupIds"]
    cfg = prepare_config(filled)
    validate_config(cfg)
    cfg = bootstrap_aws(cfg)
    after = {g["GroupId"]: g for g in ec2.describe_security_groups()["SecurityGroups"]}
    assert set(after) == groups  # Ray made no group
    assert after[group]["IpPermissions"] == []  # and no rule
    provider = AWSNodeProvider(cfg["provider"], cfg["cluster_name"])
    for name, lifecycle in (("head", None), ("gpu_spot", "spot")):
        node = cfg["available_node_types"][name]
        assert len(node["node_config"]["SubnetIds"]) == 3  # one for each zone
        tags = {"ray-node-kind": "worker", "ray-node-name": name, "ray-user-node-type": name}
        provider.create_node(node["node_config"], tags, 1)
        (made,) = provider.non_terminated_nodes({"ray-user-node-type": name})
        got = ec2.describe_instances(InstanceIds=[made])["Reservations"][0]["Instances"][0]
        asked = filled["available_node_types"][name]["node_config"]
        assert got.get("InstanceLifecycle") == lifecycle
        assert got["InstanceType"] == asked["InstanceType"]
        assert got["ImageId"] == asked["ImageId"]
        assert [g["GroupId"] for g in got["SecurityGroups"]] == [group]
        assert got["IamInstanceProfile"]["Arn"].endswith("/" + asked["IamInstanceProfile"]["Name"])
        assert got["MetadataOptions"]["HttpTokens"] == "required"
        assert {"Key": "project", "Value": "mmts-ray"} in got["Tags"]
        (disk,) = got["BlockDeviceMappings"]
        volume = ec2.describe_volumes(VolumeIds=[disk["Ebs"]["VolumeId"]])["Volumes"][0]
        assert (volume["Encrypted"], volume["Size"], volume["VolumeType"]) == (True, 150, "gp3")
        provider.terminate_nodes([made])
        state = ec2.describe_instances(InstanceIds=[made])["Reservations"][0]["Instances"][0]["State"]["Name"]
        assert state == "terminated"


def test_the_table_of_machines_is_what_ec2_says(ec2):
    names = [name for name in checks.MACHINES if "." in name]
    found = ec2.describe_instance_types(InstanceTypes=names)["InstanceTypes"]
    said = {
        i["InstanceType"]: (i["VCpuInfo"]["DefaultVCpus"], sum(g["Count"] for g in i["GpuInfo"]["Gpus"])) for i in found
    }
    assert said == {name: checks.MACHINES[name] for name in names}
