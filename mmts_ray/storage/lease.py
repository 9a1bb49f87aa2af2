"""One driver at a time on object storage: an object that says who drives, renewed while it lives.

Object stores have no locks, and pyarrow has no conditional write. A driver writes its own name, waits, and reads: the
last writer wins, every other one sees a name that is not its own and refuses. What is left is a driver that stalls for
longer than that wait between looking and writing: then two drive until the next renewal, which stops the one whose name
is gone (`RENEW_SECONDS` at most). A driver that has died renews no more: whoever comes next watches the object for
`LIFE_SECONDS`, by its own clock, and takes over. No clock of another machine is believed.

What the driver says of itself goes along with every renewal, for `status` on other machines: no request of its own.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmts_ray.storage.remote import Remote

NAME = "lease.json"
NOTE = "driver.json"  # what the driver of a folder says of itself, rewritten every few seconds (see `progress`)
LIFE_SECONDS = 60.0
RENEW_SECONDS = 10.0
SETTLE_SECONDS = 2.0
LONG_DEAD_SECONDS = 600.0  # so old that no clock can be wrong by as much


@contextlib.contextmanager
def hold(
    remote: Remote,
    *,
    folder: Path | None = None,
    life: float = LIFE_SECONDS,
    renew: float = RENEW_SECONDS,
    settle: float = SETTLE_SECONDS,
) -> Iterator[None]:
    """Drive the study while inside; ValueError when somebody else does, or has taken it over meanwhile.

    `folder` is where this driver keeps its note.
    """
    _wait_for_its_end(remote, life)
    mine = {"token": secrets.token_hex(8), "host": socket.gethostname(), "pid": os.getpid()}
    _write(remote, mine, life)
    time.sleep(settle)
    other = _read(remote)
    if other is None or other.get("token") != mine["token"]:
        raise ValueError(_refusal(remote, other or {}))
    ending, lost = threading.Event(), threading.Event()

    def keep_alive() -> None:
        while not ending.wait(renew):
            try:
                other = _read(remote)
                if other is not None and other.get("token") != mine["token"]:
                    lost.set()
                    _stop_main()
                    return
                _write(remote, {**mine, "note": _parsed(folder / NOTE) if folder else None}, life)
            except Exception:  # an outage: nobody else can write either
                continue

    thread = threading.Thread(target=keep_alive, name="lease", daemon=True)
    thread.start()
    try:
        yield
    except KeyboardInterrupt:
        if lost.is_set():
            raise ValueError(
                f"{remote.address.text}: another driver has taken the study over; this one has stopped"
            ) from None
        raise
    finally:
        ending.set()
        thread.join()
        with contextlib.suppress(OSError):
            if (_read(remote) or {}).get("token") == mine["token"]:
                remote.delete(NAME)


def fetch(remote: Remote, folder: Path) -> None:
    """Keep a copy of who drives, for `note`."""
    content = remote.read(NAME)
    if content is not None:  # it has ended in this moment
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{NAME}.{os.getpid()}"
        temporary.write_bytes(content)
        os.replace(temporary, folder / NAME)


def note(folder: Path) -> dict[str, Any] | None:
    """What the driver of a study said of itself last, here or in the copy of another machine's lease."""
    found = [_parsed(folder / NOTE), (_parsed(folder / NAME) or {}).get("note")]
    return max((n for n in found if isinstance(n, dict)), key=lambda n: n.get("time", 0.0), default=None)


def _parsed(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None when there is none, or half of one."""
    try:
        found = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _stop_main() -> None:
    """KeyboardInterrupt in the main thread, whatever it waits for; the end where Ctrl-C is ignored."""
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM if ignored else signal.SIGINT)


def _wait_for_its_end(remote: Remote, life: float) -> None:
    """Return once nobody drives; ValueError as soon as somebody is seen to renew."""
    first = _read(remote)
    if first is None or _dead(first):
        return
    print(
        f"mmts-ray: {remote.address.text}: driven by {_who(first)} until it is silent for {life:.0f} s; watching",
        file=sys.stderr,
        flush=True,
    )
    until = time.monotonic() + life
    while time.monotonic() < until:
        time.sleep(min(2.0, life / 10))
        now = _read(remote)
        if now is None:
            return
        if now != first:
            raise ValueError(_refusal(remote, now))


def _dead(kept: dict[str, Any]) -> bool:
    """Whether its driver certainly lives no more: it was this machine's, or it is silent for very long."""
    if kept.get("host") == socket.gethostname() and kept.get("boot") == _boot():
        return not os.path.exists(f"/proc/{kept.get('pid')}")
    return float(kept.get("expires", 0.0)) + LONG_DEAD_SECONDS < time.time()


def _boot() -> str:
    """This machine since it started; two containers with the same name differ in what they see of processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _refusal(remote: Remote, kept: dict[str, Any]) -> str:
    return f"{remote.address.text}: {_who(kept)} is driving this study; wait for it, or end it"


def _who(kept: dict[str, Any]) -> str:
    return f"process {kept.get('pid', '?')} on {kept.get('host', 'another machine')}"


def _read(remote: Remote) -> dict[str, Any] | None:
    content = remote.read(NAME)
    if content is None:
        return None
    try:
        kept = json.loads(content)
    except ValueError:
        return {}
    return kept if isinstance(kept, dict) else {}


def _write(remote: Remote, mine: dict[str, Any], life: float) -> None:
    kept = {**mine, "boot": _boot(), "expires": round(time.time() + life, 3), "beat": time.monotonic_ns()}
    remote.put(NAME, json.dumps(kept).encode())
