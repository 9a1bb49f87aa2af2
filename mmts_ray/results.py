"""The ledger: what every trial did, append-only, readable at any moment.

A study's `ledger/` holds JSONL files, one per writing process. A line is one record: a trial's start (it alone carries
`param.*` and `derived.*`), one of its evaluations, its end, or a sign of life (none of these: where a process took the
trial up, and how far it was some seconds later). Keys of a record:

    study trial kind name config_hash seed rung step epoch seconds device_seconds global_batch status error time
    param.<path>  derived.<path>  metric.<name>  note

`kind`: baseline (a named point), control (drawn at random, never stopped early), search (proposed by the strategy),
confirm (a known configuration on a fresh seed), probe (a planned step away from one, its role in its name). A
configuration on several seeds is a group: one trial per seed, `t0007` for the first and `t0007-2` for seed 2.
`status`: waiting | running | done | stopped (by the scheduler, or with its group) | infeasible (non-finite, out of
memory) | failed.
`seconds` is the training in the trial's present state: a process that takes it up goes on from its checkpoint's count.
`device_seconds` is seconds x devices; `time` is Unix time.
A record is unique on (trial, step, status); the fold keeps the last one written.
"""

import contextlib
import glob
import json
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

SCHEMA = 1
KINDS = ("baseline", "control", "search", "confirm", "probe")
FRESH = ("confirm", "probe")  # on seeds that no search has seen: scored on the test split, and never told to a sampler
FRESH_SEEDS = 1000  # fresh seeds start here, so that they never meet a seed of the search
FINISHED = ("done", "stopped", "infeasible", "failed")
KEYS = (
    "study", "trial", "kind", "name", "config_hash", "seed", "rung", "step", "epoch", "seconds",
    "device_seconds", "global_batch", "status", "error", "time", "note",
)  # fmt: skip


class Unwritable(OSError):
    """The study's storage takes nothing more; what it holds is whole, and the study can be resumed."""


class Ledger:
    """Appends records to this process's own file; one `write` per record, so that a kill tears at most the last."""

    def __init__(self, study_dir: str | Path) -> None:
        folder = Path(study_dir) / "ledger"
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{_writer()}{time.time_ns()}.jsonl"
        self._fd: int | None = None

    def append(self, record: dict[str, Any]) -> None:
        """Write one record; None values are left out, non-finite numbers are written as null."""
        unknown = [k for k in record if k not in KEYS and not k.startswith(("param.", "derived.", "metric."))]
        if unknown:
            raise ValueError(
                f"not a ledger key: {unknown[0]}; legal are {', '.join(KEYS)}, param.*, derived.*, metric.*"
            )
        kept = {k: v for k, v in record.items() if v is not None or k.startswith("param.")}
        kept.setdefault("time", round(time.time(), 3))
        line = (json.dumps(_plain(kept), allow_nan=False) + "\n").encode()
        with writing(self.path):
            if self._fd is None:  # opened late, so that a process that writes nothing leaves no file
                self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            written = os.write(self._fd, line)
            try:
                while written < len(line):
                    written += os.write(self._fd, line[written:])
            except OSError:  # a full disk takes a part: take it back, so that the file still ends with a whole line
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
                raise

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _writer() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-"


def own_files(study_dir: str | Path) -> list[Path]:
    """The ledger files that this process writes."""
    return sorted((Path(study_dir) / "ledger").glob(f"{glob.escape(_writer())}*.jsonl"))


@contextlib.contextmanager
def writing(path: object) -> Iterator[None]:
    """Whatever the system says while `path` is written becomes `Unwritable`."""
    try:
        yield
    except Unwritable:
        raise
    except OSError as problem:
        raise Unwritable(f"{path}: cannot be written ({problem.strerror or problem})") from None


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    out = {}
    for key, value in record.items():
        if hasattr(value, "item"):
            value = value.item()
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            value = None
        out[key] = value
    return out


def records(study_dir: str | Path, *, steps: bool = True) -> Iterator[dict[str, Any]]:
    """Every whole record of a study, in order of writing within each file; a torn line is skipped.

    Without `steps` the evaluations of running trials are passed over unparsed, where a line shows by its bytes alone
    that it is one: `fold` then gives the same trials, and its steps and duplicates mean nothing.
    """
    for path in sorted((Path(study_dir) / "ledger").glob("*.jsonl")):
        with path.open("rb", buffering=1 << 20) as lines:
            yield from _parsed(lines, steps)


def _parsed(lines: Iterable[bytes], steps: bool) -> Iterator[dict[str, Any]]:
    for line in lines:
        if not steps and _is_step(line):
            continue
        try:
            record = json.loads(line.decode("utf8", errors="replace"))
        except json.JSONDecodeError:
            continue  # torn by a kill; the trial that wrote it repeats the step
        if isinstance(record, dict) and "trial" in record:
            yield record


# words by which a record is more than an evaluation; one search for all of them is twice as fast as one for each
TELLING = re.compile(rb'"(?:status"|param\.|device_seconds")')


def _is_step(line: bytes) -> bool:
    """Whether no reading of this line can change a trial: it is no start, no end, and counts no device-seconds.

    A backslash could hide any of these words, so such a line is not judged by its bytes.
    """
    status = line.find(b'"status": "running"')
    return (
        status > 0
        and b"\\" not in line
        and not TELLING.search(line, 0, status)
        and not TELLING.search(line, status + 1)
    )


class Follow:
    """Reads a ledger that grows: each `new` gives the whole records written since the one before."""

    def __init__(self, study_dir: str | Path, *, steps: bool = True) -> None:
        self.folder, self.steps = Path(study_dir) / "ledger", steps
        self._read: dict[Path, int] = {}  # bytes consumed, by file

    def new(self) -> list[dict[str, Any]]:
        """The records since the last call, in order of writing within each file; a line still being written waits."""
        found: list[dict[str, Any]] = []
        for path in sorted(self.folder.glob("*.jsonl")):
            start = self._read.get(path, 0)
            if path.stat().st_size <= start:
                continue
            with path.open("rb", buffering=1 << 20) as file:
                file.seek(start)
                for line in file:
                    whole = line.endswith(b"\n")
                    rows = list(_parsed([line], self.steps))
                    if whole or rows:  # a last line without its newline counts once it can be read, as in `records`
                        start += len(line)
                        found += rows
            self._read[path] = start
        return found


def fold(rows: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """(trials, steps, duplicates): one record per trial with its last status, one per evaluation.

    A trial is its start record (params) under its end record (metrics); without an end its status is that of the start.
    A resumed trial repeats the steps after its checkpoint: the last record written wins, and `duplicates` counts those
    folded. Records of one trial may come from several files. `time` is the trial's first start, `end_time` its end,
    `starts` how often it began to run; `first_time` is when a step was written first. `device_seconds` of a trial is
    all that was spent on it, `lost_device_seconds` the part that was trained again because a process died after its
    last checkpoint.
    """
    starts: dict[str, dict[str, Any]] = {}
    ends: dict[str, dict[str, Any]] = {}
    steps: dict[tuple[str, int], dict[str, Any]] = {}
    reached: dict[str, float] = {}  # device-seconds of the trial's present state
    lost: dict[str, float] = {}
    duplicates = 0
    for row in sorted(rows, key=lambda r: r.get("time", 0.0)):
        trial = row["trial"]
        if (spent := row.get("device_seconds")) is not None and trial not in ends:
            lost[trial] = lost.get(trial, 0.0) + max(reached.get(trial, 0.0) - spent, 0.0)
            reached[trial] = spent
        if row.get("status") in FINISHED:
            duplicates += trial in ends
            ends[trial] = row
        elif _has(row, "param."):
            before = starts.get(trial, {"starts": 0, "time": row.get("time")})
            begins = before["starts"] + (row.get("status") == "running")
            starts[trial] = {**row, "time": before["time"], "starts": begins}
        elif _has(row, "metric."):
            key = (trial, int(row.get("step", 0)))
            duplicates += key in steps
            first = steps[key].get("first_time", steps[key].get("time")) if key in steps else row.get("time")
            steps[key] = {**row, "first_time": first}
    trials = []
    for trial, start in starts.items():
        end = ends.get(trial, {})
        times = {"time": start["time"], "end_time": end.get("time")}
        spends = {}
        if trial in reached:
            again = lost.get(trial, 0.0)
            spends = {"device_seconds": round(reached[trial] + again, 4), "lost_device_seconds": round(again, 4)}
        trials.append({**start, **end, **times, **spends})
    return trials, list(steps.values()), duplicates


def _has(row: dict[str, Any], start: str) -> bool:
    """Whether a key begins so; joined keys are searched several times as fast as one by one."""
    return f"\n{start}" in "\n".join(("", *row))


def group_of(trial: str) -> str:
    """The group of a trial: the id of its configuration's first seed."""
    return trial.partition("-")[0]


def member_of(group: str, seed: int, first: int) -> str:
    """The trial of one seed of a group whose first seed is `first`."""
    return group if seed == first else f"{group}-{seed}"


def mean(rows: list[dict[str, float]]) -> dict[str, float]:
    """The mean of every number that all rows have."""
    shared = set.intersection(*(set(row) for row in rows)) if rows else set()
    return {key: sum(row[key] for row in rows) / len(rows) for key in rows[0] if key in shared} if rows else {}


def trials_of(study_dir: str | Path) -> dict[str, dict[str, Any]]:
    """The trials of a study folder by id, each a plain record."""
    trials, _, _ = fold(records(study_dir, steps=False))
    return {row["trial"]: row for row in trials}


def read(study_dir: str | Path) -> "tuple[pd.DataFrame, pd.DataFrame]":
    """`fold` of a study folder as frames (trials, steps); `trials.attrs["duplicates"]` counts the folded records."""
    import pandas as pd

    trials, steps, duplicates = fold(records(study_dir))
    frame = pd.DataFrame(trials)
    frame.attrs["duplicates"] = duplicates
    return frame, pd.DataFrame(steps)


def collect(study_dir: str | Path) -> Path:
    """Rebuild `results.parquet` (one row per trial) from the ledger; written whole or not at all."""
    trials, _ = read(study_dir)
    for column in trials.columns:
        if trials[column].dtype == object:  # a parameter that is text in one trial and absent in another
            trials[column] = trials[column].map(lambda v: v if v is None or isinstance(v, str) else json.dumps(v))
    path = Path(study_dir) / "results.parquet"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    trials.to_parquet(temporary)
    os.replace(temporary, path)
    return path


def write_ranks(study_dir: str | Path, trial: str, columns: "dict[str, np.ndarray]") -> None:
    """Write `ranks/TRIAL.parquet`, what each query of the test split scored, whole or not at all; nothing if empty."""
    if not columns:
        return
    import pyarrow as pa
    from pyarrow import parquet

    path = Path(study_dir) / "ranks" / f"{trial}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    parquet.write_table(pa.table(columns), temporary, compression="zstd")
    os.replace(temporary, path)


def read_ranks(study_dir: str | Path, trial: str) -> "pd.DataFrame | None":
    """The table that `write_ranks` wrote, or None when there is none or it is no parquet."""
    import pandas as pd

    try:
        return pd.read_parquet(Path(study_dir) / "ranks" / f"{trial}.parquet")
    except (OSError, ValueError):  # pyarrow's ArrowInvalid is a ValueError
        return None


def write_meta(study_dir: str | Path, meta: dict[str, Any]) -> None:
    """Write meta.json whole or not at all."""
    write_whole(Path(study_dir) / "meta.json", json.dumps({"schema": SCHEMA, **meta}, indent=2, sort_keys=True) + "\n")


def read_meta(study_dir: str | Path) -> dict[str, Any]:
    """meta.json of a study; ValueError names what is wrong with it."""
    path = Path(study_dir) / "meta.json"
    if not path.is_file():
        raise ValueError(
            f"{study_dir}: not a study folder (meta.json is missing); legal is a folder made by mmts-ray search"
        )
    meta = json.loads(path.read_text(encoding="utf8"))
    if meta.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema {meta.get('schema')}; this version reads {SCHEMA}")
    return meta


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step: readers see the old text or the new one, never half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf8")
    os.replace(temporary, path)
