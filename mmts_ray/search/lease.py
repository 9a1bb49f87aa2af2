"""One driver at a time, and only after the trials of a killed one have ended."""

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mmts_ray import storage

ORPHAN_SECONDS = 60


@contextlib.contextmanager
def lease(study_dir: Path) -> Iterator[None]:
    """The right to drive a study: one driver at a time, and only after the trials of a killed one have ended."""
    with (study_dir / "driver.lock").open("a") as mine, (study_dir / "actors.lock").open("a") as actors:
        try:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{study_dir}: another mmts-ray process is driving this study; wait for it, or end it"
            ) from None
        _wait_for_trials(actors, study_dir)
        with storage.driving(study_dir):
            yield
            if storage.uri(study_dir):  # what trials of this machine could not send before they were ended
                with contextlib.suppress(ValueError):
                    _wait_for_trials(actors, study_dir)
                storage.send_left_behind(study_dir)


def _wait_for_trials(actors: IO[str], study_dir: Path) -> None:
    deadline = time.monotonic() + ORPHAN_SECONDS
    while True:
        try:
            fcntl.flock(actors, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(actors, fcntl.LOCK_UN)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ValueError(
                    f"{study_dir}: trials of an earlier driver are still running after {ORPHAN_SECONDS} s"
                ) from None
            time.sleep(0.2)
