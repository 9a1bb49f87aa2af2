"""What a running study tells its user on stderr: a live view on a terminal, a line per event otherwise."""

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmts_ray import results, status

if TYPE_CHECKING:
    from mmts_ray.plan import Planned
    from mmts_ray.study import StudyConfig

NOTE_SECONDS = 2.0
SAID = 3  # events that the view keeps on the screen


class Trials:
    """Counts ended trials and keeps the driver's note (see `status`), from which the view is drawn here and there."""

    def __init__(self, study: "StudyConfig", study_dir: Path, *, quiet: bool = False) -> None:
        self.metric, self.mode = study.objective[0]
        self.study_dir, self.quiet = Path(study_dir), quiet
        self.best: tuple[float, str] | None = None
        self.note: dict[str, Any] = {
            "pid": os.getpid(), "host": socket.gethostname(), "since": time.time(),
            "planned": 0, "ended": 0, "finished": 0, "first_end": None, "last_end": None,
            "used": {}, "total": {}, "waiting": "", "said": [],
        }  # fmt: skip
        self.live: Any = None
        self._stop = threading.Event()
        self._keeper = threading.Thread(target=self._keep_note, daemon=True)

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune pickles what hears of its trials, threads cannot be, and nobody reads that file."""
        return {}

    def __enter__(self) -> "Trials":
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        if self._keeper.is_alive():
            self._keeper.join()
        if self.live is not None:
            self.live.stop()
        (self.study_dir / status.NOTE).unlink(missing_ok=True)

    def begin(self, *, planned: int, finished: int) -> None:
        """How many trials this driver will run, and how many an earlier one has finished."""
        self.note |= {"planned": planned, "finished": finished}
        if not planned:
            return
        self._keeper.start()
        if self.quiet:
            return
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self.watch = status.Watch(self.study_dir)
            self.live = Live(get_renderable=self._view, console=Console(stderr=True), refresh_per_second=1)
            self.live.start()
        elif finished:
            print(f"{finished} trials are finished, {planned} to run", file=sys.stderr)

    def waiting(self, reason: str) -> None:
        """What trials wait for, told once for each reason; "" when none waits any more."""
        if reason == self.note["waiting"]:
            return
        self.note["waiting"] = reason
        if reason and self.live is None and not self.quiet:
            print(reason, file=sys.stderr, flush=True)

    def resources(self, used: dict[str, float], total: dict[str, float]) -> None:
        """What of the cluster is in use, and what there is."""
        self.note |= {"used": used, "total": total}

    def event(self, text: str) -> None:
        """One line that the user should know and that ends nothing."""
        self.note["said"] = [*self.note["said"], text][-SAID:]
        if self.live is None and not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def more(self, count: int) -> None:
        """So many trials have come to those that were planned."""
        self.note["planned"] += count

    def trial_ended(self, planned: "Planned", *, status: str, metrics: dict[str, float], seconds: float) -> None:
        """One trial of this driver has ended."""
        now = time.time()
        self.note["ended"] += 1
        self.note |= {"first_end": self.note["first_end"] or now, "last_end": now}
        value = metrics.get(self.metric)
        if value is not None and status == "done":
            sign = 1 if self.mode == "max" else -1
            if self.best is None or sign * value > sign * self.best[0]:
                self.best = (value, planned.name or planned.trial)
        if self.quiet or self.live is not None:
            return
        print(self._line(planned, status, value, now), file=sys.stderr, flush=True)

    def _line(self, planned: "Planned", ended: str, value: float | None, now: float) -> str:
        best = f"best {self.metric} {self.best[0]:.4f} ({self.best[1]})" if self.best else "no result yet"
        label = planned.trial + (f" {planned.name}" if planned.name else "")
        shown = f"{self.metric} {value:.4f}" if value is not None else ""
        left = status.seconds_left(self.note, now)
        eta = f"{status.clock(left)} left" if left is not None else ""
        return f"[{self.note['ended']}/{self.note['planned']}] {label}: {ended} {shown}  {best}  {eta}"

    def _keep_note(self) -> None:
        while not self._stop.is_set():
            try:
                text = json.dumps({**self.note, "time": time.time()})
                results.write_whole(self.study_dir / status.NOTE, text)
            except OSError:
                pass  # the storage's trouble shows where it matters: in the ledger
            self._stop.wait(NOTE_SECONDS)

    def _view(self) -> Any:
        now = self.watch.now() | {"driver": {**self.note, "time": time.time()}}
        return status.view(now | {"seconds_left": status.seconds_left(self.note, time.time())})
