"""A study folder as tidy frames.

One fidelity at a time: only runs that reached their end ("done") are compared; stopped ones are counted and left out.
Fresh runs (kind "confirm") repeat a configuration with a seed that the search never saw; they alone carry claims.
"""

import gc
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mmts_ray import results

STATES = ("done", "stopped", "infeasible", "failed", "running", "waiting")
COPY = "copy"  # the kind, in the report, of a searched trial that went on from another's checkpoint
TEXT_COLUMNS = ("study", "trial", "kind", "name", "config_hash", "status", "error", "note")
NUMBER_COLUMNS = (
    "seed", "rung", "step", "epoch", "seconds", "device_seconds", "lost_device_seconds", "global_batch", "time",
    "end_time",
)  # fmt: skip
SHARE = re.compile(r"(^|_)(r\d+|top1|recall|accuracy|map|ndcg|share)$")
RECALL = re.compile(r"(?:(?<=_)|^)r(\d+)$")
WORDS = {
    "i2t": "image-to-text",
    "t2i": "text-to-image",
    "mid": "middle",
    "map": "mAP",
    "ndcg": "nDCG",
    "zeroshot": "zero-shot",
    "top1": "top-1",
    "sts": "STS",
    **{f"sts{year}": f"STS{year}" for year in range(12, 17)},
    "stsb": "STS-B",
    "sickr": "SICK-R",
    "avg": "average",
}
SMALLER_IS_BETTER = re.compile(r"(^|_)(loss|median_rank|mean_rank|error)$")


@dataclass(frozen=True)
class Metric:
    """A measured quantity: `key` names its ledger column, `better` is 1, -1 or 0 (nobody said)."""

    key: str
    better: int
    share: bool  # lies in [0, 1] and is printed in percent

    @property
    def column(self) -> str:
        return f"metric.{self.key}"

    @property
    def name(self) -> str:
        return self.key.partition("_")[2] if self.key.startswith(("val_", "test_")) else self.key

    @property
    def split(self) -> str:
        return {"val": "validation", "test": "test"}.get(self.key.partition("_")[0], "")

    @property
    def scale(self) -> float:
        """Factor from the ledger's value to the printed one."""
        return 100.0 if self.share else 1.0

    @property
    def axis(self) -> str:
        """Label with unit."""
        return f"{self.label}, %" if self.share else self.label

    @property
    def label(self) -> str:
        words = RECALL.sub(r"R@\1", self.name).replace("_", " ").split(" ")
        return " ".join(WORDS.get(word, word) for word in words)


@dataclass(frozen=True)
class Parameter:
    """A searched parameter; `position` places values on its declared scale, 0 = low, 1 = high."""

    path: str
    kind: str  # float, int or choice
    low: float
    high: float
    log: bool
    values: tuple[Any, ...]
    when: tuple[tuple[str, tuple[Any, ...]], ...]
    default: Any
    declared_low: float | None
    declared_high: float | None
    doc: str = ""
    unit: str = ""

    @property
    def short(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def scale(self) -> str:
        return "choice" if self.kind == "choice" else "log" if self.log else "linear"

    def position(self, values: Any) -> np.ndarray:
        """Coordinates on the declared scale: [0, 1] for ranges, 0, 1, 2, ... for choices, NaN where not a number."""
        if self.kind == "choice":
            return np.array([_index(value, self.values) for value in np.atleast_1d(np.asarray(values, dtype=object))])
        number = pd.to_numeric(pd.Series(np.atleast_1d(values)), errors="coerce").to_numpy(dtype=float)
        if self.high <= self.low:
            return np.where(np.isfinite(number), 0.5, np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.log:
                return np.log(number / self.low) / math.log(self.high / self.low)
            return (number - self.low) / (self.high - self.low)

    def at(self, position: float) -> float:
        """The value at a position of a range."""
        if self.log:
            return float(self.low * (self.high / self.low) ** position)
        return float(self.low + (self.high - self.low) * position)

    def active(self, config: Mapping[str, Any]) -> bool:
        return all(_index(config.get(path), legal) >= 0 for path, legal in self.when)


@dataclass(frozen=True, eq=False)
class Study:
    """Everything the panels read. `trials` is sorted by id and has `state` and `score` (the first objective)."""

    folder: str
    name: str
    meta: Mapping[str, Any]
    trials: pd.DataFrame
    steps: pd.DataFrame
    configs: Mapping[str, Mapping[str, Any]]  # trial -> dotted path -> value, typed as written
    space: tuple[Parameter, ...]
    objectives: tuple[Metric, ...]
    default: str | None  # name of the default baseline
    duplicates: int
    orphans: int  # trials whose start record was lost
    ledger_hash: str
    path: str  # of the folder, as it was given

    @property
    def objective(self) -> Metric:
        return self.objectives[0]

    def metric(self, key: str) -> Metric:
        """The metric of a ledger column, whether or not anyone has heard of it."""
        for objective in self.objectives:
            if objective.key == key or objective.name == key.partition("_")[2]:
                return Metric(key, objective.better, objective.share)
        return _metric(key, 0, self.trials)

    @property
    def reported(self) -> Metric:
        """The metric of the verdict: the objective on the test split, or on validation when no test score exists."""
        key = f"test_{self.objective.name}"
        column = f"metric.{key}"
        has_test = column in self.trials and self.trials.loc[self.trials["kind"] == "confirm", column].notna().any()
        return self.metric(key) if has_test else self.objective

    @property
    def finished(self) -> pd.DataFrame:
        """Baselines, controls and search trials that ended with a finite score; the seeds of one are averaged."""
        compared = self.trials[self.trials["kind"].isin(["baseline", "control", "search"])]
        done = compared["state"] == "done"
        if not compared["trial"].astype(str).str.contains("-").any():
            return compared[done]
        return _averaged(compared, done)

    @property
    def searched(self) -> pd.DataFrame:
        """The search trials among the finished, controls included: they were drawn from the same space."""
        return self.finished[self.finished["kind"].isin(["control", "search"])]

    @property
    def behind(self) -> str:
        """What stands behind the score of a trial of the search: one run, or the mean of its seeds."""
        searched = self.trials.loc[self.trials["kind"].isin(["control", "search"]), "trial"].astype(str)
        each = int(searched.map(results.group_of).value_counts().max()) if len(searched) else 1
        return "one run" if each == 1 else f"the mean of {each} seeds"

    def named(self, path: str) -> str:
        """Shortest name that tells a parameter from the others; a single letter tells nobody anything."""
        shorts = [p.short for p in self.space]
        short = path.rpartition(".")[2]
        return path if shorts.count(short) > 1 or short == "name" or len(short) == 1 else short


def load(study_dir: str | Path) -> Study:
    """Read a study folder; ValueError, one line, when it is none."""
    folder = Path(study_dir)
    try:
        meta = results.read_meta(folder)
    except json.JSONDecodeError as problem:
        raise ValueError(f"{folder / 'meta.json'}: not JSON ({problem})") from None
    objective = meta.get("objective")
    if not isinstance(objective, Mapping) or not objective:
        raise ValueError(f"{folder / 'meta.json'}: objective is {objective!r}; legal is {{metric: max or min}}")
    collecting = gc.isenabled()
    gc.disable()  # nothing here is garbage, and looking for it among millions of rows takes long
    try:
        rows = list(results.records(folder))
        ended, evaluations, duplicates = results.fold(rows)
    finally:
        if collecting:
            gc.enable()
    seen = {str(row["trial"]) for row in rows}
    trials = _tidy(pd.DataFrame(ended), f"metric.{next(iter(objective))}")
    orphans = len(seen) - len(trials)
    trials, repeated = _fold_repeats(trials)
    configs: dict[str, dict[str, Any]] = {}
    for row in ended:
        params = {key.removeprefix("param."): value for key, value in row.items() if key.startswith("param.")}
        configs[str(row["trial"])] = params
    baselines = [str(name) for name in meta.get("baselines") or []]
    return Study(
        folder=str(meta.get("address") or _from_here(folder)),
        name=str(meta.get("study") or folder.resolve().name),
        meta=meta,
        trials=trials,
        steps=pd.DataFrame(evaluations),
        configs=configs,
        space=tuple(_parameter(entry) for entry in meta.get("space") or []),
        objectives=tuple(_metric(k, -1 if d == "min" else 1, trials) for k, d in objective.items()),
        default=baselines[0] if baselines else None,
        duplicates=duplicates + repeated,
        orphans=orphans,
        ledger_hash=_fingerprint(folder),
        path=str(folder),
    )


def _averaged(trials: pd.DataFrame, done: pd.Series) -> pd.DataFrame:
    """One row per configuration of which every seed is done: its first trial's, with the means and the whole cost."""
    group = trials["trial"].astype(str).map(results.group_of)
    whole = trials[done.groupby(group).transform("all")]
    group = group[whole.index]
    first = whole[~group.duplicated()].copy()
    names = group[first.index]
    for name in [c for c in whole if str(c).startswith("metric.") or c == "score"]:
        first[name] = pd.to_numeric(whole[name], errors="coerce").groupby(group).mean().loc[names].to_numpy()
    first["device_seconds"] = whole["device_seconds"].groupby(group).sum().loc[names].to_numpy()
    return first


def _from_here(folder: Path) -> str:
    """What commands call a folder: its path from here when it lies below, else its name; a page is passed on."""
    whole = folder.resolve()
    return str(whole.relative_to(Path.cwd())) if whole.is_relative_to(Path.cwd()) else whole.name


def _fingerprint(folder: Path) -> str:
    """A hash of the ledger's lines, whatever their order and however they are spread over files."""
    total = 0
    for path in sorted((folder / "ledger").glob("*.jsonl")):
        with path.open("rb", buffering=1 << 20) as lines:
            for line in lines:
                total += int.from_bytes(hashlib.blake2b(line.strip(), digest_size=32).digest(), "little")
    return f"{total % 2**256:064x}"


def lost_trials(study: Study) -> pd.DataFrame:
    """Search trials that ended without a score: infeasible or failed."""
    trials = study.trials
    return trials[(trials["kind"] == "search") & trials["state"].isin(["infeasible", "failed"])]


def default_value(study: Study, parameter: Parameter) -> tuple[Any, bool]:
    """(value, whether the default baseline sets it): the baseline's value, or else the declared default."""
    runs = study.trials[(study.trials["name"] == study.default) & study.trials["kind"].isin(["baseline", "confirm"])]
    for trial in runs["trial"]:
        if parameter.path in study.configs.get(trial, {}):
            return study.configs[trial][parameter.path], True
    return parameter.default, False


def positions(study: Study, parameter: Parameter, trials: pd.DataFrame) -> np.ndarray:
    """Where each trial lies on a parameter's scale; NaN where its `when` condition does not hold or it is null."""
    configs = [study.configs.get(trial, {}) for trial in trials["trial"]]
    if not configs:
        return np.array([])
    active = np.array([parameter.active(config) for config in configs])
    return np.where(active, parameter.position([config.get(parameter.path) for config in configs]), np.nan)


def why_failed(study: Study) -> str:
    """The most common error of the runs that failed, or nothing."""
    lost = study.trials[study.trials["state"].isin(["infeasible", "failed"])]
    if lost.empty:
        return ""
    tally = lost["error"].fillna("no message").map(first_line).value_counts()
    message, n = min(tally.items(), key=lambda item: (-item[1], item[0]))
    return f"Most common reason: {message} ({n})."


def first_line(message: Any) -> str:
    """An error message cut to one line."""
    lines = str(message).strip().splitlines() or ["no message"]
    return lines[0] if len(lines[0]) <= 160 else f"{lines[0][:159]}…"


def column(frame: pd.DataFrame, name: str) -> pd.Series:
    """A column, or all-missing where the ledger never had it."""
    return frame[name] if name in frame else pd.Series(np.nan, index=frame.index, dtype=object)


def _tidy(trials: pd.DataFrame, objective: str) -> pd.DataFrame:
    missing = [c for c in (*TEXT_COLUMNS, *NUMBER_COLUMNS, objective) if c not in trials]
    tidy = trials.assign(**{c: None if c in TEXT_COLUMNS else np.nan for c in missing})
    columns: dict[Any, pd.Series] = {name: tidy[name] for name in tidy}
    for name in columns:  # one frame at the end: a column at a time would break it into pieces
        if name in NUMBER_COLUMNS or str(name).startswith("metric."):
            columns[name] = pd.to_numeric(tidy[name], errors="coerce").astype(float)
        elif name in TEXT_COLUMNS:
            columns[name] = tidy[name].astype(object).where(tidy[name].notna(), None)
    columns["score"] = columns[objective].where(np.isfinite(columns[objective]))
    tidy = pd.DataFrame(columns)
    # what began with another trial's weights (pbt) is no observation of its own parameters
    copied = (tidy["kind"] == "search") & column(tidy, "derived.parent").notna()
    tidy["kind"] = tidy["kind"].where(~copied, COPY)
    # a run can end "done" with a score that is no number: it is not comparable, hence infeasible
    bad = (tidy["status"] == "done") & tidy["score"].isna()
    tidy["state"] = tidy["status"].where(~bad, "infeasible")
    tidy["error"] = tidy["error"].where(~bad | tidy["error"].notna(), "ended without a finite score")
    return tidy.sort_values("trial", kind="stable").reset_index(drop=True)


def _fold_repeats(trials: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """One row per (kind, configuration, seed): the same point run twice is one observation, the last finished."""
    known = trials["config_hash"].notna() & trials["seed"].notna()
    ended = trials.assign(done=trials["state"] == "done").sort_values(
        ["done", "end_time", "trial"], na_position="first"
    )
    repeated = ended[known.reindex(ended.index)].duplicated(["kind", "config_hash", "seed"], keep="last")
    dropped = repeated[repeated].index
    return trials.drop(index=dropped).reset_index(drop=True), len(dropped)


def _metric(key: str, better: int, trials: pd.DataFrame) -> Metric:
    values = column(trials, f"metric.{key}").dropna()
    inside = bool(((values >= 0) & (values <= 1)).all()) if len(values) else True
    share = bool(SHARE.search(key)) and inside
    return Metric(key, better or (1 if share else -1 if SMALLER_IS_BETTER.search(key) else 0), share)


def _parameter(entry: Mapping[str, Any]) -> Parameter:
    declared = entry.get("declared") or {}
    when = entry.get("when") or ()
    pairs = when.items() if isinstance(when, Mapping) else when
    return Parameter(
        path=str(entry["path"]),
        kind=str(entry["kind"]),
        low=_float(entry.get("low")),
        high=_float(entry.get("high")),
        log=bool(entry.get("log")),
        values=tuple(entry.get("values") or ()),
        when=tuple((str(p), tuple(v) if isinstance(v, (list, tuple)) else (v,)) for p, v in pairs),
        default=entry.get("default"),
        declared_low=declared.get("low"),
        declared_high=declared.get("high"),
        doc=str(entry.get("doc") or ""),
        unit=str(entry.get("unit") or ""),
    )


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def _index(value: Any, legal: tuple[Any, ...]) -> float:
    """Place of a value among the legal ones; NaN if absent. True is not 1, and a missing number is None."""
    if isinstance(value, (float, np.floating)) and math.isnan(value):
        value = None
    for place, other in enumerate(legal):
        alike = (value is None) == (other is None) and isinstance(value, (bool, np.bool_)) == isinstance(other, bool)
        if alike and value == other:
            return float(place)
    return math.nan
