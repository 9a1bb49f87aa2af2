"""Where a study stands, from its ledger; what its driver is doing, from the note that a running driver keeps.

STUDY/driver.json is that note: how many trials it will run, which resources are in use, what is waited for. It is
rewritten every few seconds and removed at the end; nothing but the view reads it. Of a study in a bucket it travels in
the lease. Ray's address is not in it: from outside a cluster it leads nowhere.
"""

import contextlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmts_ray import ranking, results, storage

if TYPE_CHECKING:
    from rich.console import RenderableType

FRONT = 20  # configurations of a trade-off that are listed as text
NOTE = storage.lease.NOTE
SILENT_SECONDS = 30.0  # a driver that has not written its note for so long may be gone
STATES = ("done", "stopped", "infeasible", "failed", "running", "waiting")


def read(study_dir: Path) -> dict[str, Any]:
    """Trials by status and kind, the best so far with what it changed, device-hours; ValueError when it is no study."""
    return Watch(study_dir).now()


class Watch:
    """Reads a study again and again; each `now` parses only what the ledger has gained."""

    def __init__(self, study_dir: Path) -> None:
        self.study_dir = Path(study_dir)
        results.read_meta(self.study_dir)  # refuse here what is no study
        self.follow = results.Follow(self.study_dir, steps=False)
        self.rows: list[dict[str, Any]] = []
        self.trials: list[dict[str, Any]] = []
        self.stale = True
        self.next_fold = 0.0

    def now(self) -> dict[str, Any]:
        """The study at this moment; keys as in `read`."""
        new = self.follow.new()
        self.rows += new
        self.stale = self.stale or bool(new)
        begun = time.monotonic()
        if self.stale and begun >= self.next_fold:
            self.trials, _, _ = results.fold(self.rows)
            self.stale = False
            self.next_fold = begun + 20 * (time.monotonic() - begun)  # a long study: at most a twentieth of the time
        return _summary(self.study_dir, self.trials)


def _summary(study_dir: Path, trials: list[dict[str, Any]]) -> dict[str, Any]:
    meta = results.read_meta(study_dir)
    known = {trial["trial"]: trial for trial in trials}
    (metric, mode), *others = meta["objective"].items()
    objective = tuple(meta["objective"].items())
    bounds = [(name, side, b) for name, sides in meta.get("constraints", {}).items() for side, b in sides.items()]
    groups = ranking.grouped(known, tuple(meta.get("seeds", ())))
    judged = [row for row in groups.values() if row["kind"] in ("baseline", "control", "search")]
    order = ranking.ranked(objective, bounds, judged)
    kept = [row for row in order if not ranking.broken(bounds, ranking.metrics_of(row))]
    best = kept[0] if kept else None

    def shown(row: dict[str, Any]) -> dict[str, Any]:
        return {
            "trial": row["trial"],
            "name": row.get("name"),
            **{name: row[f"metric.{name}"] for name, _ in objective},
            "parameters": {p["path"]: row.get(f"param.{p['path']}") for p in meta["space"]},
        }

    counts: dict[str, int] = {}
    for trial in trials:
        counts[trial["status"]] = counts.get(trial["status"], 0) + 1
    driver = storage.lease.note(study_dir)
    return {
        "study": meta["study"],
        "folder": storage.name(study_dir),
        "metric": metric,
        "mode": mode,
        "counts": counts,
        "kinds": {kind: sum(t["kind"] == kind for t in trials) for kind in results.KINDS},
        "wanted": meta["trials"],
        "device_hours": sum(t.get("device_seconds") or 0 for t in trials) / 3600,
        "lost_device_hours": sum(t.get("lost_device_seconds") or 0 for t in trials) / 3600,
        "first_error": next((f"{t['trial']}: {t.get('error')}" for t in trials if t["status"] == "failed"), None),
        "seeds": len(meta.get("seeds", ())) or 1,
        "constraints": [f"{name} {'at most' if side == 'max' else 'at least'} {b:g}" for name, side, b in bounds],
        "keep_constraints": f"{len(kept)} of {len(order)}" if bounds else None,
        "best": best and shown(best),
        "front": [shown(row) for row in ranking.front(objective, bounds, judged)] if others else [],
        "driver": driver,
        "seconds_left": driver and seconds_left(driver, time.time()),
    }


def seconds_left(driver: Mapping[str, Any], now: float) -> float | None:
    """From the pace since the first trial ended: before it lies the start of Ray, which no later trial pays again."""
    ended, planned, first = driver.get("ended", 0), driver.get("planned", 0), driver.get("first_end")
    if not first or ended < 2:
        return None
    return max(0.0, (now - first) / (ended - 1) * (planned - ended) - max(0.0, now - driver.get("last_end", now)))


def clock(seconds: float) -> str:
    """1:02:03 or 2:03."""
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def parameters(best: Mapping[str, Any]) -> list[str]:
    """The searched parameters of the best trial, as path=value."""
    return [
        f"{path}={value:.4g}" if isinstance(value, float) else f"{path}={value}"
        for path, value in best["parameters"].items()
        if value is not None
    ]


def text(now: dict[str, Any]) -> str:
    """`read` in a few lines."""
    counts = ", ".join(f"{n} {status}" for status, n in sorted(now["counts"].items())) or "none yet"
    kinds = ", ".join(f"{n} {kind}" for kind, n in now["kinds"].items() if n)
    lost = now["lost_device_hours"]
    lines = [
        f"{now['study']} ({now['folder']}): {counts}" + (f" ({kinds})" if kinds else ""),
        f"device-hours {now['device_hours']:.3g}"
        + (f", {lost:.2g} of them trained again after a kill" if lost else ""),
        *driver_lines(now),
    ]
    if now["constraints"]:
        lines.append(f"{now['keep_constraints']} finished configurations keep {', '.join(now['constraints'])}")
    if now["front"]:
        lines.append(f"{len(now['front'])} configurations that no other beats in every metric:")
        lines += [f"  {_line(row)}" for row in now["front"][:FRONT]]
    elif now["best"]:
        mean = f", mean of {now['seeds']} seeds" if now["seeds"] > 1 else ""
        lines.append(f"best so far{mean}: {_line(now['best'])}")
    return "\n".join(lines)


def driver_lines(now: Mapping[str, Any]) -> list[str]:
    """What the driver does: trials of this run, time left, resources, what is waited for; or that it is silent."""
    driver = now["driver"]
    if driver is None:
        return []
    silent = time.time() - driver.get("time", 0.0)
    where = f"process {driver.get('pid')} on {driver.get('host')}"
    if silent > SILENT_SECONDS:
        resume = f"`mmts-ray resume {now['folder']}`"
        return [f"its driver ({where}) has been silent for {clock(silent)}; if it is gone, {resume}"]
    left = now["seconds_left"]
    lines = [
        f"{driver.get('ended', 0)} of {driver.get('planned', 0)} trials of this run have ended"
        + (f", about {clock(left)} left" if left is not None else "")
    ]
    total, used = driver.get("total") or {}, driver.get("used") or {}
    shown = [f"{used.get(key, 0):g} of {total[key]:g} {key}" for key in ("CPU", "GPU") if total.get(key)]
    if shown:
        lines.append(f"in use: {', '.join(shown)}")
    if driver.get("waiting"):
        lines.append(str(driver["waiting"]))
    if driver.get("since"):
        lines.append(f"driven by {where} for {clock(time.time() - driver['since'])}")
    return lines


def view(now: Mapping[str, Any]) -> "RenderableType":
    """The same for a terminal: what a running search and `status --watch` show."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    driver = now["driver"]
    states = dict(now["counts"])
    if driver:  # what will run and is in no ledger yet
        begun = sum(states.values()) - driver.get("finished", 0)
        states["waiting"] = states.get("waiting", 0) + max(0, driver.get("planned", 0) - begun)
    bold = "bold"
    head = Text.assemble((now["study"], bold), f"  {now['folder']}", overflow="ellipsis", no_wrap=True)
    parts: list[Any] = [head]
    if driver and driver.get("planned"):
        bar = Table.grid(padding=(0, 1))
        ended, planned, left = driver.get("ended", 0), driver["planned"], now["seconds_left"]
        remaining = f"{clock(left)} left" if left is not None else ""
        bar.add_row(ProgressBar(total=planned, completed=ended, width=30), f"{ended}/{planned} trials", remaining)
        parts.append(bar)
    line = Text()
    for state in STATES:
        number = states.pop(state, 0)
        line.append(f"{state} ").append(str(number), style=bold if number else "dim").append("   ")
    parts.append(line)
    best = now["best"]
    if best:
        name = f" ({best['name']})" if best["name"] else ""
        parts.append(
            Text.assemble("best ", (f"{now['metric']} {best[now['metric']]:.4f}", bold), f"  {best['trial']}{name}")
        )
        parts.append(Text("  " + "  ".join(parameters(best))))
    else:
        parts.append(Text("no result yet"))
    if driver:
        parts += [Text(shown) for shown in driver_lines(now)[1:] or driver_lines(now)]
        parts += [Text(said, style="dim") for said in driver.get("said", [])]
    parts.append(Text(f"device-hours {now['device_hours']:.3g}", style="dim"))
    return Group(*parts)


def watch(study_dir: Path, *, as_json: bool) -> None:
    """Print the view of a study until Ctrl-C: live on a terminal, else a text or a line of JSON every 2 seconds."""
    storage.refresh(study_dir)
    watched = Watch(study_dir)

    def look() -> dict[str, Any]:
        storage.refresh(study_dir)
        return watched.now()

    with contextlib.suppress(KeyboardInterrupt):
        if sys.stdout.isatty() and not as_json:
            from rich.live import Live

            with Live(get_renderable=lambda: view(look()), refresh_per_second=1):
                while True:
                    time.sleep(3600)
        while True:
            print(json.dumps(look()) if as_json else text(look()) + "\n", flush=True)
            time.sleep(2)


def _line(row: Mapping[str, Any]) -> str:
    """A configuration: its trial, its metrics, its searched parameters."""
    name = f" ({row['name']})" if row["name"] else ""
    metrics = ", ".join(f"{k} {v:.4f}" for k, v in row.items() if k not in ("trial", "name", "parameters"))
    return f"{row['trial']}{name} {metrics}  {', '.join(parameters(row))}"
