"""Spot watcher: reads the cloud's termination notice on a worker node and has Ray drain the node.

    python -m mmts_ray.spot --provider aws        on every spot node, beside Ray
    python -m mmts_ray.spot --now 25              from a pod's preStop hook: drain at once, 25 s are left

Nothing in Ray listens to the notice. A node that is reclaimed without a drain is a crash: it is charged to a trial's
retries. A drained one is a preemption: nothing new is placed on it, its trials go on elsewhere from their checkpoints.
"""

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

MARGIN_SECONDS = 5.0  # kept between the end of the drain and the end of the machine
HTTP_SECONDS = 2.0
TOKEN_SECONDS = 21_600  # the longest life IMDSv2 grants

# the metadata server is on the machine itself: a proxy of the environment must never see these requests
_OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@dataclass(frozen=True)
class Notice:
    """The machine ends in `seconds` from now."""

    reason: str
    seconds: float


class Source(Protocol):
    """A cloud's notice: None while there is none; OSError or ValueError when the server does not answer properly."""

    def notice(self) -> Notice | None: ...


def _get(url: str, headers: dict[str, str], *, method: str = "GET") -> str:
    with _OPEN(urllib.request.Request(url, headers=headers, method=method), timeout=HTTP_SECONDS) as answer:
        return answer.read().decode()


class Aws:
    """EC2 through IMDSv2: `spot/instance-action` is 404 until about 120 s before the end.

    Reference: docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
    """

    url = "http://169.254.169.254"
    poll_seconds = 5.0  # what AWS recommends
    warning_seconds = 120.0

    def __init__(self, url: str | None = None) -> None:
        self.root = (url or self.url).rstrip("/") + "/latest"
        self.token: str | None = None

    def notice(self) -> Notice | None:
        try:
            text = self._read("/meta-data/spot/instance-action")
        except urllib.error.HTTPError as answer:
            answer.close()
            if answer.code == 404:
                return None
            raise
        action = json.loads(text)
        try:
            end = datetime.strptime(action["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
            left = (end - datetime.now(UTC)).total_seconds()
        except (KeyError, TypeError, ValueError):  # a notice without a readable time is still a notice
            left = self.warning_seconds
        kind = action.get("action", "unknown action") if isinstance(action, dict) else "unknown action"
        return Notice(f"EC2 spot notice: {kind}", max(left, 0.0))

    def _read(self, path: str) -> str:
        for attempt in (1, 2):
            if self.token is None:
                ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
                self.token = _get(f"{self.root}/api/token", ttl, method="PUT")
            try:
                return _get(self.root + path, {"X-aws-ec2-metadata-token": self.token})
            except urllib.error.HTTPError as answer:
                if answer.code != 401 or attempt == 2:
                    raise
                answer.close()
                self.token = None  # expired: ask for another one
        raise AssertionError("unreachable")


class Gcp:
    """Compute Engine: `instance/preempted` turns TRUE about 30 s before the end.

    Reference: cloud.google.com/compute/docs/instances/create-use-spot
    """

    url = "http://169.254.169.254"
    poll_seconds = 1.0
    warning_seconds = 30.0

    def __init__(self, url: str | None = None) -> None:
        self.root = (url or self.url).rstrip("/") + "/computeMetadata/v1"

    def notice(self) -> Notice | None:
        answer = _get(f"{self.root}/instance/preempted", {"Metadata-Flavor": "Google"}).strip()
        if answer not in ("TRUE", "FALSE"):
            raise ValueError(f"instance/preempted is {answer[:40]!r}, neither TRUE nor FALSE")
        return Notice("Compute Engine preemption", self.warning_seconds) if answer == "TRUE" else None


PROVIDERS: dict[str, type[Aws] | type[Gcp]] = {"aws": Aws, "gcp": Gcp}


def watch(
    source: Source,
    drain: Callable[[Notice], None],
    *,
    poll_seconds: float,
    sleep: Callable[[float], object] = time.sleep,
) -> Notice:
    """Poll until there is a notice, drain once, return it.

    A server that does not answer, or a drain that is refused, is told once and tried again at the next poll: a watcher
    that has given up protects nothing.
    """
    told = ""
    while True:
        what = "metadata server"
        try:
            notice = source.notice()
            if notice is not None:
                what = "drain"
                drain(notice)
                return notice
            problem = ""
        except (OSError, ValueError, RuntimeError) as raised:
            problem = f"{what}: {raised}"
        if problem != told:
            _tell(problem or "the metadata server answers again")
            told = problem
        sleep(poll_seconds)


def drain(notice: Notice, *, address: str | None = None, node_id: str | None = None) -> None:
    """Tell Ray that this node ends: RuntimeError when it refuses, or when it is not clear which node this is.

    `_drain` is all that is used of Ray's drain interface, which has no promise of stability.
    """
    from ray.exceptions import RayError

    until = time.time() + max(notice.seconds - MARGIN_SECONDS, 1.0)
    try:
        node, accepted, why = _drain(notice.reason, until, address=address, node_id=node_id)
    except RayError as problem:  # no head, a wrong token: Ray's errors are no RuntimeErrors
        raise RuntimeError(f"{type(problem).__name__}: {problem}".splitlines()[0]) from None
    if not accepted:
        raise RuntimeError(f"Ray refused to drain {node}: {why}")
    _tell(f"{notice.reason}; node {node} drains, {until - time.time():.0f} s are left")


def _drain(reason: str, until: float, *, address: str | None, node_id: str | None) -> tuple[str, bool, str]:
    """The node, whether Ray has taken the request, and why not."""
    from ray import NodeID
    from ray._private import services
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.core.generated import autoscaler_pb2

    address = services.canonicalize_bootstrap_address_or_die(address or "auto")
    client = GcsClient(address=address)
    if node_id is None:
        mine = services.get_node_ip_address(address)
        nodes = client.get_all_node_info(timeout=10)
        here = [key.hex() for key, info in nodes.items() if info.node_manager_address == mine and info.state == 0]
        if len(here) != 1:
            raise RuntimeError(f"{len(here)} live Ray nodes at {mine}; say which with --node-id")
        node_id = here[0]
    elif len(node_id) != 2 * NodeID.size():
        raise ValueError(f"--node-id: {node_id!r} is not the hex id of a Ray node")
    preemption = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")  # type: ignore[attr-defined]
    return node_id, *client.drain_node(node_id, preemption, reason, int(until * 1000))


def _tell(line: str) -> None:
    print(f"mmts-ray spot: {line}", file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Watch until the notice has been passed on."""
    parser = argparse.ArgumentParser(prog="python -m mmts_ray.spot", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--provider", choices=sorted(PROVIDERS), help="whose metadata server to ask")
    parser.add_argument("--now", type=float, metavar="SECONDS", help="no watching: drain now, the node ends in SECONDS")
    parser.add_argument("--address", help="HOST:PORT of Ray's head (default: the cluster this machine has joined)")
    parser.add_argument("--node-id", help="hex id of the node to drain (default: the one on this machine)")
    parser.add_argument("--metadata-url", help="another metadata server, for tests")
    parser.add_argument("--poll-seconds", type=float, help="default: 5 on AWS, 1 on GCP")
    args = parser.parse_args(argv)
    if (args.provider is None) == (args.now is None):
        parser.error("give --provider to watch, or --now SECONDS to drain at once")

    def pass_on(notice: Notice) -> None:
        drain(notice, address=args.address, node_id=args.node_id)

    try:
        if args.now is not None:
            pass_on(Notice("the pod is being ended", args.now))
            return 0
        source = PROVIDERS[args.provider](args.metadata_url)
        watch(source, pass_on, poll_seconds=args.poll_seconds or source.poll_seconds)
        return 0
    except (OSError, RuntimeError, ValueError) as problem:
        _tell(str(problem))
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
