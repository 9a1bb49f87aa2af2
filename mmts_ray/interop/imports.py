"""Sweeps made elsewhere, read into a study folder that `status` and `report` open."""

import csv
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmts_ray import results
from mmts_ray.interop import finite
from mmts_ray.interop.exports import _close, _journal, _refuse_existing, _sqlite, _whole_folder
from mmts_ray.interop.mapping import KEYS, STATUS, entry, load, objective_of
from mmts_ray.space import did_you_mean

TUNE_OWN = {  # what Ray Tune writes beside the metrics of a trial
    "trial_id", "date", "timestamp", "pid", "hostname", "node_ip", "done", "training_iteration", "experiment_tag",
    "should_checkpoint", "checkpoint_dir_name", "iterations_since_restore", "time_since_restore", "time_this_iter_s",
    "time_total_s", "timesteps_total", "episodes_total", "timesteps_since_restore", "config", "warmup_time",
    "experiment_id",
}  # fmt: skip


@dataclass
class Run:
    """One trial of a sweep: its parameters, its evaluations as (step, seconds, metrics), and how it ended."""

    trial: str
    params: dict[str, Any]
    status: str
    metrics: dict[str, float]
    steps: list[tuple[int, float, dict[str, float]]] = field(default_factory=list)
    kind: str = "search"
    name: str | None = None
    seed: int | None = None
    error: str | None = None
    begun: float = 0.0
    seconds: float | None = None
    config_hash: str | None = None


@dataclass
class Sweep:
    """A sweep as it was found: `space` has the entries of meta.json; `notes` say what the source does not tell."""

    study: str
    source: str
    strategy: str
    objective: dict[str, str]
    space: list[dict[str, Any]]
    runs: list[Run]
    baselines: list[str]
    notes: list[str]


def read(source: Path, *, mapping: Path | None, study: str | None) -> Sweep:
    """Any of the three; ValueError, one line, for what is none or lacks something."""
    if not source.exists():
        raise ValueError(f"{source}: no such file or folder")
    given = load(mapping)
    if source.is_dir():
        return from_ray_tune(source, given)
    if source.suffix == ".csv":
        return from_csv(source, given)
    head = source.read_bytes()[:16]
    if head.startswith(b"SQLite format 3"):
        return from_optuna(source, study, sqlite=True)
    if head.startswith(b'{"op_code"'):
        return from_optuna(source, study, sqlite=False)
    raise ValueError(
        f"{source}: legal are a Ray Tune results folder, an Optuna journal or sqlite file, and a table named .csv"
    )


def write(sweep: Sweep, out: Path) -> list[str]:
    """Write the study folder, whole or not at all; returns what a reader of the report should know."""
    _refuse_existing(out)
    bare = [run for run in sweep.runs if not run.params]
    if bare:
        sweep.notes.append(f"{len(bare)} trials without a parameter are left out")
        sweep.runs = [run for run in sweep.runs if run.params]
    if not sweep.runs:
        raise ValueError(f"{sweep.source}: holds no trial with parameters")
    with _whole_folder(out) as folder:
        results.write_meta(
            folder,
            {
                "study": sweep.study,
                "objective": sweep.objective,
                "strategy": sweep.strategy,
                "seed": 0,
                "trials": sum(run.kind == "search" for run in sweep.runs),
                "baselines": sweep.baselines,
                "space": sweep.space,
                "confirm": {"top": 0, "seeds": 0},
                "command": f"mmts-ray import {sweep.source}",
                "imported": {"source": sweep.source, "notes": sweep.notes},
                "versions": {},
                "data": {},
                "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            },
        )
        ledger = results.Ledger(folder)
        for run in sweep.runs:
            _record(ledger, sweep, run)
        ledger.close()
    return sweep.notes


def _record(ledger: results.Ledger, sweep: Sweep, run: Run) -> None:
    identity = json.dumps(run.params, sort_keys=True, default=str)
    ledger.append(
        {
            "study": sweep.study,
            "trial": run.trial,
            "kind": run.kind,
            "name": run.name,
            "config_hash": run.config_hash or hashlib.sha256(identity.encode()).hexdigest()[:16],
            "seed": run.seed,
            "rung": 0,
            "step": 0,
            "epoch": 0,
            "status": "running" if run.status != "waiting" else "waiting",
            "time": run.begun,
            **{f"param.{key}": value for key, value in run.params.items()},
        }
    )
    for step, seconds, metrics in run.steps:
        row = {"trial": run.trial, "step": step, "epoch": step, "status": "running", "time": run.begun + seconds}
        ledger.append({**row, "seconds": seconds, **{f"metric.{k}": v for k, v in metrics.items()}})
    if run.status in results.FINISHED:
        last = max((step for step, _, _ in run.steps), default=0)
        seconds = run.seconds if run.seconds is not None else max((s for _, s, _ in run.steps), default=0.0)
        row = {"trial": run.trial, "step": last, "epoch": last, "status": run.status, "error": run.error}
        metrics = {f"metric.{k}": v for k, v in run.metrics.items()}
        ledger.append({**row, "seconds": seconds, "device_seconds": seconds, "time": run.begun + seconds, **metrics})


def from_optuna(source: Path, name: str | None, *, sqlite: bool) -> Sweep:
    """A study of an Optuna storage. It is read from a copy: Optuna writes into what it opens."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "storage"
        shutil.copyfile(source, copy)
        try:
            storage = _sqlite(copy) if sqlite else _journal(copy)
            names = [summary.study_name for summary in optuna.get_all_study_summaries(storage)]
        except Exception as problem:
            reason = (str(problem).splitlines() or [""])[0]
            raise ValueError(f"{source}: Optuna cannot read it: {type(problem).__name__}: {reason}") from None
        if (name is None and len(names) > 1) or (name is not None and name not in names):
            raise ValueError(f"{source}: --study {name or 'is missing'}; it holds {', '.join(names) or 'no study'}")
        if not names:
            raise ValueError(f"{source}: holds no study")
        study = optuna.load_study(study_name=name or names[0], storage=storage)
        trials = study.get_trials(deepcopy=False)
        metrics = study.metric_names or [
            "value" if len(study.directions) == 1 else f"value_{i}" for i in range(len(study.directions))
        ]
        _close(storage)
    objective = {metric: d.name[:3].lower() for metric, d in zip(metrics, study.directions, strict=True)}
    space: dict[str, dict[str, Any]] = {}
    for trial in trials:
        for path, distribution in trial.distributions.items():
            space.setdefault(path, _entry_of(path, distribution))
    names_of = {"COMPLETE": "done", "PRUNED": "stopped", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}
    runs = []
    for trial in trials:
        attributes = trial.user_attrs
        begun = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
        seen = trial.intermediate_values
        ends = dict(zip(metrics, trial.values, strict=True)) if trial.values else {}
        if not ends and seen and len(metrics) == 1:
            ends = {metrics[0]: seen[max(seen)]}
        more = {k.removeprefix("metric."): v for k, v in attributes.items() if k.startswith("metric.") and finite(v)}
        known = {k.removeprefix("param."): v for k, v in attributes.items() if k.startswith("param.")}
        took = trial.duration.total_seconds() if trial.duration else 0.0
        steps = [(int(step), took, {metrics[0]: value}) for step, value in sorted(seen.items()) if finite(value)]
        status = attributes.get("status")
        seed = attributes.get("seed")
        runs.append(
            Run(
                trial=str(attributes.get("trial", f"t{trial.number:04d}")),
                params={**known, **trial.params},
                status=status if status in STATUS else names_of[trial.state.name],
                metrics={k: float(v) for k, v in {**ends, **more}.items() if finite(v)},
                steps=steps,
                kind=attributes["kind"] if attributes.get("kind") in results.KINDS else "search",
                name=attributes.get("name"),
                seed=seed if isinstance(seed, int) else None,
                error=attributes.get("error"),
                begun=begun,
                seconds=attributes["seconds"] if finite(attributes.get("seconds")) else took,
                config_hash=attributes.get("config_hash"),
            )
        )
    baselines = list(dict.fromkeys(run.name for run in runs if run.kind == "baseline" and run.name))
    return Sweep(
        study=study.study_name, source=source.name, strategy="imported", objective=objective,
        space=list(space.values()), runs=runs, baselines=baselines, notes=_notes(runs, baselines),
    )  # fmt: skip


def from_ray_tune(source: Path, given: dict[str, Any]) -> Sweep:
    """An experiment folder of Ray Tune: params.json and result.json of each trial; its pickles are not opened.

    A trial that has fewer iterations than the longest one counts as stopped, and is never compared with whole ones.
    """
    folders = sorted(path.parent for path in source.glob("*/result.json"))
    if not folders:
        raise ValueError(f"{source}: no trial folder with a result.json; legal is the folder of one experiment")
    found: list[tuple[Path, list[dict[str, Any]], dict[str, Any]]] = []
    for folder in folders:
        rows = []
        for line in (folder / "result.json").read_text(encoding="utf8", errors="replace").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue  # torn by a kill
            if isinstance(row, dict):
                rows.append(row)
        params_file = folder / "params.json"
        params = json.loads(params_file.read_text(encoding="utf8")) if params_file.is_file() else {}
        found.append((folder, rows, _flat(params)))
    objective = objective_of(given, source)
    longest = max((int(r.get("training_iteration", 0)) for _, rows, _ in found for r in rows), default=0)
    runs = []
    for folder, rows, params in found:
        last = rows[-1] if rows else {}
        steps = [
            (int(r.get("training_iteration", i + 1)), float(r.get("time_total_s") or 0.0), _numbers(r))
            for i, r in enumerate(rows)
        ]
        steps = list({step: (step, seconds, metrics) for step, seconds, metrics in steps}.values())
        ends = _numbers(last)
        error = folder / "error.txt"
        if error.is_file():
            status = "failed"
        elif any(metric not in ends for metric in objective):
            status = "infeasible" if rows else "failed"
        else:
            status = "done" if steps[-1][0] >= longest else "stopped"
        lines = error.read_text(encoding="utf8", errors="replace").strip().splitlines() if error.is_file() else []
        begun = float(rows[0].get("timestamp", 0)) - float(rows[0].get("time_total_s") or 0.0) if rows else 0.0
        runs.append(
            Run(
                trial=str(last.get("trial_id") or folder.name),
                params=params,
                status=status,
                metrics=ends,
                steps=steps,
                seed=_seed(given, params),
                error=lines[-1] if lines else None,
                begun=begun,
            )
        )
    return _mapped(source, given, objective, runs, "imported from Ray Tune")


def from_csv(source: Path, given: dict[str, Any]) -> Sweep:
    """A table with one row a trial; the map says which columns are parameters, metric, seed, status and name."""
    if not given:
        raise ValueError(f"{source}: a table needs --map MAP.yaml with {', '.join(KEYS[:3])}; see docs/interop.md")
    objective = objective_of(given, source)
    with source.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        columns = [*(reader.fieldnames or [])]
        rows = list(reader)
    status = given.get("status") or {}
    special = [given.get("seed"), given.get("name"), status.get("column")]
    for column in [*objective, *given["search"], *(c for c in special if c)]:
        if column not in columns:
            raise ValueError(
                f"{source}:1: no column {column!r}{did_you_mean(column, columns)}; there are {', '.join(columns)}"
            )
    states = {str(v): state for state in STATUS for v in _listed(status.get(state))}
    runs = []
    for number, row in enumerate(rows, start=2):
        values = {key: _value(text) for key, text in row.items() if key is not None}
        params = {path: values[path] for path in given["search"]}
        ends = {k: float(v) for k, v in values.items() if finite(v) and k not in params and k not in special}
        state = "done" if all(m in ends for m in objective) else "infeasible"
        if status:
            text = row[status["column"]]
            if text not in states:
                raise ValueError(
                    f"{source}:{number}: {status['column']} is {text!r}; the map knows {', '.join(states)}"
                )
            state = states[text]
        name = row.get(given.get("name") or "") or None
        runs.append(
            Run(
                trial=f"t{number - 2:04d}",
                params=params,
                status=state,
                metrics=ends,
                name=name,
                kind="baseline" if name and name in _listed(given.get("baseline")) else "search",
                seed=_seed(given, values),
                begun=float(number),
            )
        )
    return _mapped(source, given, objective, runs, "imported from a table")


def _mapped(source: Path, given: dict[str, Any], objective: dict[str, str], runs: list[Run], strategy: str) -> Sweep:
    space = [entry(path, spec) for path, spec in given["search"].items()]
    notes = []
    for one in space:
        if all(one["path"] not in run.params for run in runs):
            paths = sorted({path for run in runs for path in run.params})
            hint = did_you_mean(one["path"], paths)
            raise ValueError(f"search: no trial has {one['path']!r}{hint}; there are {', '.join(paths)}")
        outside = [run.trial for run in runs if not _inside(one, run.params.get(one["path"]))]
        if outside:
            notes.append(f"{one['path']}: outside what the map declares in {len(outside)} trials, {outside[0]} first")
    baselines = [str(name) for name in _listed(given.get("baseline"))]
    return Sweep(
        study=str(given.get("study") or source.stem), source=source.name, strategy=strategy, objective=objective,
        space=space, runs=runs, baselines=baselines, notes=[*notes, *_notes(runs, baselines)],
    )  # fmt: skip


def _notes(runs: list[Run], baselines: list[str]) -> list[str]:
    notes = []
    if not baselines:
        notes.append("no baseline: the report cannot say what tuning gains over a default")
    if all(run.seed is None for run in runs):
        notes.append("no seeds: runs of one configuration cannot be paired, and noise cannot be told from effect")
    if not any(run.kind == "confirm" for run in runs):
        notes.append("no run on a fresh seed: the report gives no verdict")
    return notes


def _entry_of(path: str, distribution: Any) -> dict[str, Any]:
    import optuna

    blank: dict[str, Any] = {"path": path, "when": {}, "doc": "", "unit": "", "source": "", "default": None}
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        return {**blank, "kind": "choice", "values": list(distribution.choices)}
    kind = "int" if isinstance(distribution, optuna.distributions.IntDistribution) else "float"
    ends = {"low": distribution.low, "high": distribution.high, "log": distribution.log}
    return {**blank, "kind": kind, **ends, "declared": {"low": None, "high": None}}


def _inside(entry: Mapping[str, Any], value: Any) -> bool:
    if entry["kind"] == "choice":
        return value in entry["values"]
    return finite(value) and entry["low"] <= value <= entry["high"]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        elif value is None or isinstance(value, (str, int, float, bool)):
            flat[f"{prefix}{key}"] = value
    return flat


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {k: float(v) for k, v in row.items() if k not in TUNE_OWN and finite(v)}


def _seed(given: Mapping[str, Any], values: Mapping[str, Any]) -> int | None:
    value = values.get(given.get("seed") or "")
    return int(value) if finite(value) else None


def _listed(value: Any) -> list[str]:
    return [] if value is None else [str(v) for v in value] if isinstance(value, list) else [str(value)]


def _value(text: str | None) -> Any:
    """A cell as a number where it is one; an empty one is nothing."""
    if text is None or not text.strip():
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
