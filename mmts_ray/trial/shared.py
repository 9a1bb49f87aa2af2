"""Whether every machine sees the study's folder: one that does not would write a ledger that nobody reads.

A token is put into the folder, and every other node is asked for it before anything is trained. A node that joins later
is not known yet: there the trial's own process asks, and refuses.
"""

import secrets
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ASK_SECONDS = 60.0  # a node that does not answer is asked again by its first trial
APPEAR_SECONDS = 10.0  # a network file system may show a new file late
SEES_NOT = "does not see this folder"
LEGAL = "legal are a folder that all nodes share, s3://bucket/path and gs://bucket/path"


def put_token(study_dir: Path) -> dict[str, str]:
    """{"path", "text"} of a token that is now in the folder."""
    path, text = study_dir.absolute() / f".shared-{secrets.token_hex(6)}", secrets.token_hex(16)
    path.write_text(text, encoding="utf8")
    return {"path": str(path), "text": text}


def sees(token: Mapping[str, str], *, seconds: float = APPEAR_SECONDS) -> bool:
    """Whether this machine finds the token, within this time."""
    until = time.monotonic() + seconds
    while True:
        try:
            if Path(token["path"]).read_text(encoding="utf8") == token["text"]:
                return True
        except OSError:
            pass
        if time.monotonic() > until:
            return False
        time.sleep(0.5)


def refusal(study_dir: str | Path, node: str) -> str:
    """The line for a node that does not find it."""
    return f"{study_dir}: node {node} {SEES_NOT}, so what its trials write would be lost; {LEGAL}"


def refused_here(study_dir: str | Path, token: Mapping[str, str] | None) -> str:
    """The line for this node when it does not find the token; "" when it does, or when nothing need be shared."""
    if token is None or sees(token):
        return ""
    return refusal(study_dir, f"{ray.util.get_node_ip_address()} ({socket.gethostname()})")


def refuse_unshared(study_dir: Path, token: Mapping[str, str]) -> None:
    """ValueError, one line, when a node of the cluster does not see the study's folder."""
    mine = ray.get_runtime_context().get_node_id()
    others = {node["NodeID"]: node for node in ray.nodes() if node["Alive"] and node["NodeID"] != mine}
    # tasks of no CPU: they launch no machine, and find room on a busy one
    asked = {
        _sees.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(dict(token)): node
        for node in others
    }
    if not asked:
        return
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ASK_SECONDS)
    for reference in answered:
        node = others[asked[reference]]
        try:
            found = ray.get(reference)
        except ray.exceptions.RayError:  # it has gone in the meantime
            continue
        if not found:
            raise ValueError(refusal(study_dir, f"{node['NodeManagerAddress']} ({node['NodeManagerHostname']})"))


@ray.remote(num_cpus=0, max_retries=0)
def _sees(token: dict[str, str]) -> bool:
    return sees(token)
