"""What this process has written goes to the storage in the background; an outage delays it and loses nothing.

An object cannot be appended to. A file of the ledger therefore becomes several, `ledger/<writer>.<first byte>.jsonl`:
each holds whole lines, is written once and never changed, and is sent with the same bytes until the storage has it.
Every other file becomes one object, as a whole.
"""

import sys
import threading
import time
from pathlib import Path

from mmts_ray import results
from mmts_ray.storage.remote import Remote

EVERY_SECONDS = 5.0  # the most that is lost with a machine, besides what a trial has trained since its checkpoint
SLOWEST_SECONDS = 60.0  # a process of many hours sends less often: readers open every object
STEP_SECONDS = 30.0  # between two copies of a file that grows all the time
LONGEST_PAUSE = 15.0


class Outbox:
    """Sends this process's ledger files, and the files that it is given; one thread, which ends with the process."""

    def __init__(self, study_dir: Path, remote: Remote) -> None:
        self.study_dir, self.remote = study_dir, remote
        self._sent: dict[str, int] = {}  # bytes of a ledger file that are in the storage
        self._sending: dict[str, tuple[int, bytes]] = {}  # tried and not known to have arrived: sent again as it is
        self._files: dict[str, None] = {}  # to send, in order
        self._gone: dict[str, None] = {}  # to delete
        self._growing: dict[str, tuple[float, tuple[int, int]]] = {}  # when it was sent last, and what it was then
        self._begun = self._done = self._wanted = 0  # rounds
        self._stopping = False
        self._state = threading.Condition()
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def keep(self, name: str) -> None:
        """Send a file soon; what it holds then is what is sent."""
        with self._state:
            self._gone.pop(name, None)
            self._files[name] = None

    def grow(self, name: str) -> None:
        """Send a file whenever it has changed, at most every `STEP_SECONDS`, and at the end."""
        with self._state:
            self._growing.setdefault(name, (0.0, (-1, -1)))

    def drop(self, name: str) -> None:
        """Delete an object, or all below a name."""
        with self._state:
            for waiting in [n for n in self._files if n == name or n.startswith(f"{name}/")]:
                del self._files[waiting]
            self._gone[name] = None

    def settle(self, seconds: float) -> bool:
        """Whether everything written before this call is in the storage, within this time."""
        with self._state:
            wanted = self._wanted = self._begun + 1  # one that has begun already may have read the files too early
            self._state.notify_all()
            return self._state.wait_for(lambda: self._done >= wanted or not self._thread.is_alive(), seconds)

    def close(self, seconds: float) -> bool:
        """`settle`, growing files included, and no more rounds."""
        with self._state:
            self._growing = {name: (0.0, what) for name, (_, what) in self._growing.items()}
        arrived = self.settle(seconds)
        with self._state:
            self._stopping = True
            self._state.notify_all()
        return arrived

    def _run(self) -> None:
        failures = 0
        told = 0.0
        while True:
            with self._state:
                if self._stopping:
                    return
                self._begun += 1
                mine = self._begun
            try:
                self._round()
            except Exception as problem:  # whatever it is, a thread that has ended would send nothing any more
                failures += 1
                pause = min(0.5 * 2**failures, LONGEST_PAUSE)
                if failures == 3:
                    told = time.monotonic()
                    _tell(f"{self.remote.explain(problem)}; what is written waits in {self.study_dir}")
                with self._state:
                    self._state.wait_for(lambda: self._stopping, pause)
                continue
            if failures >= 3:
                _tell(f"{self.remote.address.text}: it answers again after {time.monotonic() - told:.0f} s")
            failures = 0
            age = time.monotonic() - self._started
            with self._state:
                self._done = mine
                self._state.notify_all()
                pause = min(max(EVERY_SECONDS, age / 50), SLOWEST_SECONDS)
                self._state.wait_for(lambda: self._stopping or self._wanted > self._begun, pause)

    def _round(self) -> None:
        """The ledger first: whoever sees a trial's weights, or misses its checkpoint, sees its end too."""
        for path in results.own_files(self.study_dir):
            self._send_ledger(path)
        for name, (last, what) in list(self._growing.items()):
            now = _what(self.study_dir / name)
            if now != what and time.monotonic() - last >= (STEP_SECONDS if last else 0.0):
                self._put(name)
                self._growing[name] = (time.monotonic(), now)
        for name in list(self._files):
            with self._state:
                if self._files.pop(name, self) is self:
                    continue  # dropped meanwhile
            try:
                self._put(name)
            except Exception:
                with self._state:
                    self._files.setdefault(name, None)
                raise
        for name in list(self._gone):
            self.remote.delete(name)
            with self._state:
                self._gone.pop(name, None)

    def _put(self, name: str) -> None:
        path = self.study_dir / name
        if path.is_file():
            self.remote.put(name, path)

    def _send_ledger(self, path: Path) -> None:
        name = path.name
        while True:
            if name not in self._sending:
                first = self._sent.get(name, 0)
                lines = whole_lines(path, first)
                if not lines:
                    return
                self._sending[name] = (first, lines)
            first, lines = self._sending[name]
            self.remote.put(segment(name, first), lines)
            del self._sending[name]
            self._sent[name] = first + len(lines)


def segment(name: str, first: int) -> str:
    """The object that holds a ledger file from this byte on."""
    return f"ledger/{name.removesuffix('.jsonl')}.{first:012d}.jsonl"


def whole_lines(path: Path, first: int) -> bytes:
    """What follows a byte of a file, up to the end of the last whole line."""
    with path.open("rb") as source:
        source.seek(first)
        rest = source.read()
    return rest[: rest.rfind(b"\n") + 1]


def _what(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return (-1, -1)
    return (stat.st_size, stat.st_mtime_ns)


def _tell(line: str) -> None:
    print(f"mmts-ray: {line}", file=sys.stderr, flush=True)
