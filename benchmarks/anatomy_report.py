"""What a trial of ours is made of: parts measured by `anatomy`, and what Ray, sampler and ledger add around it."""

import itertools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from replay import study_of

from mmts_ray import folder, results

SCRIPT = Path(__file__).parent / "anatomy.py"
SLOTS = 2


def measure(*, epochs: int, scratch: Path) -> dict[str, Any]:
    """The parts of a trial alone on the machine, and the floor with as many processes at once as there are cores."""
    folder.save(study_of(configurations=1, epochs=epochs, dropout=True), scratch)
    space = str(scratch / folder.STUDY)
    trial = _read(_start("trial", space))
    together = [_start("floor", space) for _ in range(SLOTS)]
    floors = [_read(process) for process in together]
    per_hour = {library: sum(3600 / seconds[library] for seconds in floors) for library in floors[0]}
    return {**trial, "floor_trials_per_hour": per_hour, "load": os.getloadavg()[0]}


def _start(what: str, space: str) -> "subprocess.Popen[str]":
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, str(SCRIPT), what, space], env=env, stdout=subprocess.PIPE, text=True)


def _read(process: "subprocess.Popen[str]") -> Any:
    printed, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(map(str, process.args))} ended with status {process.returncode}")
    return json.loads(printed.splitlines()[-1])


def overhead(study_dir: Path, started: float, wall: float) -> dict[str, float]:
    """Seconds around the training, from the ledger of a study that a process ran in `wall` seconds from `started`.

    start_up: until the first trial is handed out; closing: after the last one ended; and mean seconds per trial in a
    worker: training; before (from the worker's receipt of the trial to the first epoch); after (from the last epoch to
    the trial's end: weights are written); between (from a trial's end to the receipt of the next).
    """
    workers: dict[str, dict[str, list[dict[str, Any]]]] = {}
    first, last = float("inf"), 0.0
    for path in sorted((study_dir / "ledger").glob("*.jsonl")):
        for line in path.read_text(encoding="utf8").splitlines():
            row = json.loads(line)
            first, last = min(first, row["time"]), max(last, row["time"])
            if not any(key.startswith("param.") for key in row):
                workers.setdefault(path.name, {}).setdefault(row["trial"], []).append(row)
    before, training, after, between = [], [], [], []
    for trials in workers.values():
        ended = None
        for rows in trials.values():
            *epochs, end = rows
            assert end["status"] in results.FINISHED
            begin = end["time"] - end["seconds"]
            seconds = [row["seconds"] for row in epochs]
            # an epoch takes what the others take; what the first takes longer is not training
            steps = [b - a for a, b in itertools.pairwise(seconds)] or seconds
            unexplained = max(0.0, seconds[0] - statistics.median(steps))
            before.append(unexplained)
            training.append(seconds[-1] - unexplained)
            after.append(end["seconds"] - seconds[-1])
            if ended is not None:
                between.append(begin - ended)
            ended = end["time"]
    means = {"training": training, "before": before, "after": after, "between": between}
    return {
        "start_up": first - started,
        "closing": started + wall - last,
        **{name: statistics.mean(values) if values else 0.0 for name, values in means.items()},
    }


def text(measured: dict[str, Any], runs: list[dict[str, Any]]) -> list[str]:
    """The lines printed about one trial."""
    parts = measured["parts"]
    total = sum(parts.values())
    lines = [
        f"one trial of ours in one process with one thread: {measured['seconds']:.3f} s warm, "
        f"{measured['first_seconds']:.3f} s the first"
    ]
    for name, seconds in sorted(parts.items(), key=lambda item: -item[1]):
        lines.append(f"  {name:18s} {1000 * seconds:7.1f} ms  {seconds / total:6.1%}")
    for library, seconds in measured["floor_seconds"].items():
        together = measured["floor_trials_per_hour"][library]
        lines.append(
            f"matrix products alone, {library}: {1000 * seconds:.1f} ms, {seconds / measured['seconds']:.1%} of the "
            f"trial; with {SLOTS} processes at once {together:.0f} trials/hour"
        )
    if runs:
        mean = {name: statistics.median(run["overhead"][name] for run in runs) for name in runs[0]["overhead"]}
        around = mean["before"] + mean["after"] + mean["between"]
        lines.append(
            f"in a search, per trial: training {mean['training']:.3f} s; around it {around:.3f} s "
            f"(before {mean['before']:.3f}, after {mean['after']:.3f}, between trials {mean['between']:.3f})"
        )
        lines.append(f"  and once: start-up {mean['start_up']:.1f} s, closing {mean['closing']:.1f} s")
    return lines
