"""Ray nodes that a test starts, and ends by process id: never `ray stop`, which ends every Ray on the host."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
START_SECONDS = 120


def free_ports(number: int) -> list[int]:
    """Ports nobody listens on, below the kernel's and Ray's own ranges of random ones."""
    found: list[int] = []
    start = 20000 + (os.getpid() * 37) % 9000
    for port in range(start, start + 3000):
        with contextlib.closing(socket.socket()) as one:
            if len(found) < number and one.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
    return found


def environment(folder: Path, token: str) -> dict[str, str]:
    """For everything that talks to the cluster: its own token, no address of another one, no study of this user."""
    held = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "TUNE_"))}
    python = str(Path(sys.executable).parent)
    return held | {
        "PATH": f"{python}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "MMTS_RAY_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_raylet_start_wait_time_s": "120",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SCHEDULER_EVENTS": "0",
    }


class Node:
    """One `ray start --block` with everything below it."""

    hidden: tuple[Path, ...] = ()  # folders of which this node sees an empty one of its own, as another machine does

    def __init__(self, folder: Path, env: dict[str, str], *words: str) -> None:
        self.temporary = ""
        self.log = folder / f"start-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words]
        if self.hidden:
            mounts = "; ".join(f"mount -t tmpfs none '{path}'" for path in self.hidden)
            command = ["unshare", "--mount", "sh", "-ec", f'{mounts}; exec "$@"', "sh", *command]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=env, start_new_session=True, cwd=folder
            )

    def kill(self) -> None:
        """SIGKILL to it and all its descendants, as when the machine is gone."""
        for pid in [*descendants(self.process.pid), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        if self.temporary:
            shutil.rmtree(self.temporary, ignore_errors=True)


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def command(pid: int) -> bytes:
    """The words of a process, nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def trial_processes(driver: int) -> list[int]:
    """Below a driver, the processes that lead trials; what they are called depends on what they do at this moment."""
    names = (b"ray::ResourceTrainable", b"ray::TrialActor", b"ray::WaitingActor", b"ray::WorkersActor")
    return [pid for pid in descendants(driver) if command(pid).startswith(names)]


class Head(Node):
    """A head with a dashboard; `port` is the cluster's, `url` the dashboard's."""

    def __init__(self, folder: Path, env: dict[str, str], ports: list[int], *words: str) -> None:
        self.port, dashboard, agent, client = ports[:4]
        self.url = f"http://127.0.0.1:{dashboard}"
        self.token = env["RAY_AUTH_TOKEN"]
        # short: Ray's Unix sockets lie deep in it, and their paths are limited
        temporary = tempfile.mkdtemp(prefix="r")
        super().__init__(
            folder, env, "--head", f"--port={self.port}", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}",
            f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}", "--min-worker-port=30000",
            "--max-worker-port=30499", f"--temp-dir={temporary}", "--object-store-memory=100000000",
            "--disable-usage-stats", *words,
        )  # fmt: skip
        self.temporary = temporary
        self._wait()

    def _wait(self) -> None:
        """Until its job agent answers: the dashboard alone is up some seconds before jobs are taken."""
        deadline = time.monotonic() + START_SECONDS
        request = urllib.request.Request(f"{self.url}/api/jobs/", headers={"Authorization": f"Bearer {self.token}"})
        while True:
            try:
                with urllib.request.urlopen(request, timeout=5):
                    # on a busy machine the head itself may join after its dashboard answers
                    if "will now block forever" in self.log.read_text():
                        return
                    raise OSError("its dashboard answers, its node has not joined")
            except OSError as problem:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    self.kill()
                    raise TimeoutError(f"no head: {problem}\n{self.log.read_text()}") from None
                time.sleep(0.3)


class Worker(Node):
    """A node of one CPU that has joined when this returns: two that join at once take each other's socket names."""

    def __init__(
        self, folder: Path, env: dict[str, str], head: Head, agent_port: int, number: int, *words: str
    ) -> None:
        first = 30500 + 500 * number
        super().__init__(
            folder, env, f"--address=127.0.0.1:{head.port}", "--num-cpus=1", f"--min-worker-port={first}",
            f"--max-worker-port={first + 499}", f"--dashboard-agent-listen-port={agent_port}",
            "--object-store-memory=100000000", "--disable-usage-stats", *words,
        )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while "will now block forever" not in self.log.read_text():
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.kill()
                raise TimeoutError(f"no worker node\n{self.log.read_text()}")
            time.sleep(0.2)


def apart(*folders: Path) -> type[Worker]:
    """Workers that do not share these folders with anybody."""
    return type("Apart", (Worker,), {"hidden": folders})


def can_hide() -> bool:
    """Whether this user may give a process a view of the file system of its own."""
    try:
        return subprocess.run(["unshare", "--mount", "true"], capture_output=True, timeout=20).returncode == 0
    except OSError:
        return False


@contextlib.contextmanager
def running(*nodes: Node) -> Iterator[None]:
    try:
        yield
    finally:
        for node in nodes:
            node.kill()
