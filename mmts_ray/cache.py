"""The folder that keeps what costs time to make: where it is, one writer at a time, forced to disk."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)


def default_cache_dir() -> Path:
    """$MMTS_RAY_CACHE, or ~/.cache/mmts-ray, as an absolute path (Ray's workers start in another folder)."""
    return Path(os.environ.get("MMTS_RAY_CACHE") or "~/.cache/mmts-ray").expanduser().absolute()


def sync(path: Path) -> None:
    """Force a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file; a process that finds it held waits. The system lets go of it when its holder dies."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("%s: another process is making this, waiting for it", path.stem)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
