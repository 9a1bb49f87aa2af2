"""What a running study tells its user on stderr: a bar on a terminal, a line per trial otherwise."""

import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmts_ray.plan import Planned
    from mmts_ray.study import StudyConfig


class Trials:
    """Counts ended trials, keeps the best, estimates the time left from the pace since the first one ended."""

    def __init__(self, study: "StudyConfig", *, quiet: bool = False) -> None:
        self.metric, self.mode = study.objective[0]
        self.quiet = quiet
        self.total = self.ended = 0
        self.best: tuple[float, str] | None = None
        self.first_end = 0.0
        self.bar: Any = None

    def __enter__(self) -> "Trials":
        return self

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def begin(self, *, planned: int, finished: int) -> None:
        self.total = planned
        if self.quiet or not planned:
            return
        if finished:
            print(f"{finished} trials are finished, {planned} to run", file=sys.stderr)
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("trials"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
            )
            self.bar = Progress(*columns, console=Console(stderr=True))
            self.task = self.bar.add_task("", total=planned)
            self.bar.start()

    def trial_ended(self, planned: "Planned", *, status: str, metrics: dict[str, float], seconds: float) -> None:
        self.ended += 1
        if self.ended == 1:  # before it lies the start of Ray, which no later trial pays again
            self.first_end = time.monotonic()
        value = metrics.get(self.metric)
        if value is not None and status == "done":
            sign = 1 if self.mode == "max" else -1
            if self.best is None or sign * value > sign * self.best[0]:
                self.best = (value, planned.name or planned.trial)
        if self.quiet:
            return
        best = f"best {self.metric} {self.best[0]:.4f} ({self.best[1]})" if self.best else "no result yet"
        if self.bar is not None:
            self.bar.update(self.task, advance=1, description=best)
            return
        label = planned.trial + (f" {planned.name}" if planned.name else "")
        shown = f"{self.metric} {value:.4f}" if value is not None else ""
        eta = ""
        if self.ended > 1:
            left = (time.monotonic() - self.first_end) / (self.ended - 1) * (self.total - self.ended)
            eta = f"{int(left // 60)}:{int(left % 60):02d} left"
        print(f"[{self.ended}/{self.total}] {label}: {status} {shown}  {best}  {eta}", file=sys.stderr, flush=True)
