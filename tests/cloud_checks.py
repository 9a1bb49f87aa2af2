"""What a cloud refuses in a node type, by its own model of its interface, and what it takes and then costs too much."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any


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
