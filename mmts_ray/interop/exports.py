"""A study written in the formats of other programs."""

import csv
import json
import math
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mmts_ray import results
from mmts_ray.interop import finite

DEEPCAVE_STATUS = {
    "done": "success", "stopped": "pruned", "infeasible": "failed", "failed": "crashed",
    "running": "unknown", "waiting": "not_evaluated",
}  # fmt: skip
NUMERIC = re.compile(r"[+-]?(\d|\.\d|inf|nan|true|false|none|null|na$|n/a)", re.IGNORECASE)


def to_deepcave(study_dir: Path, out: Path) -> list[str]:
    """Write configspace.csv and trials.csv, DeepCAVE's data-frame run; returns what it cannot say. OUT must be new."""
    meta, trials, _ = _study(study_dir)
    _refuse_existing(out)
    notes = []
    rows, conditional = [], []
    for entry in meta["space"]:
        path, kind = entry["path"], entry["kind"]
        row: dict[str, Any] = {"name": path, "type": {"int": "integer", "choice": "categorical"}.get(kind, kind)}
        if kind == "choice":
            items = {f"item_{i}": _label(entry, v) for i, v in enumerate(entry["values"])}
            known = entry["default"] in entry["values"]
            row |= items | {"default": _label(entry, entry["default"]) if known else items["item_0"], "ordered": False}
        else:
            inside = finite(entry["default"]) and entry["low"] <= entry["default"] <= entry["high"]
            row |= {"lower": entry["low"], "upper": entry["high"], "log": bool(entry["log"])}
            row |= {"default": entry["default"] if inside else None, "distribution": "uniform"}
        rows.append(row)
        if any(trial.get(f"param.{path}") is None for trial in trials):
            conditional.append(path)
    if conditional:
        notes.append(
            f"{', '.join(conditional)}: not active in every trial, which this format cannot say; "
            "their default (or first value) stands there"
        )
    objectives = list(meta["objective"].items())
    longest = max((int(t.get("epoch") or 0) for t in trials), default=0)
    table = []
    for number, trial in enumerate(trials):
        line: dict[str, Any] = {"config_id": number, "trial": trial["trial"], "kind": trial["kind"]}
        for entry, row in zip(meta["space"], rows, strict=True):
            value = trial.get(f"param.{entry['path']}")
            if entry["kind"] == "choice":
                line[entry["path"]] = _label(entry, value) if value in entry["values"] else row["default"]
            else:
                missing = row["default"] if row["default"] is not None else entry["low"]
                line[entry["path"]] = missing if value is None else value
        for metric, mode in objectives:
            values = [v for t in trials if finite(v := t.get(f"metric.{metric}"))]
            low, high = (min(values), max(values)) if values else (0.0, 1.0)
            head = f"metric:{metric} [{_plain(low, False)}; {_plain(high, True)}] ({mode}imize)"
            line[head] = trial.get(f"metric.{metric}")
        status = DEEPCAVE_STATUS[trial["status"]]
        if status == "success" and not all(finite(trial.get(f"metric.{m}")) for m, _ in objectives):
            status = "failed"
        end = trial.get("end_time") or trial["time"]
        line |= {"budget": trial.get("epoch") or longest, "seed": trial.get("seed", 0)}
        line |= {"start_time": trial["time"], "end_time": end, "status": status}
        table.append(line)
    with _whole_folder(out) as folder:
        _csv(folder / "configspace.csv", rows)
        _csv(folder / "trials.csv", table)
    return notes


def to_optuna(study_dir: Path, out: Path) -> list[str]:
    """Write a study that Optuna loads from a journal (.journal, .log) or sqlite file (.db, .sqlite); OUT must be new.

    Parameters that are searched are the trial's, everything else that the ledger says is in its user attributes:
    trial, kind, name, seed, status, error, config_hash, seconds, metrics.
    """
    import optuna
    from optuna.trial import TrialState

    meta, trials, steps = _study(study_dir)
    _refuse_existing(out)
    if not meta["space"]:
        raise ValueError(f"{study_dir}: searches no parameter, so that there is no study to write")
    storage_of = {".journal": _journal, ".log": _journal, ".db": _sqlite, ".sqlite": _sqlite}
    if out.suffix not in storage_of:
        raise ValueError(f"{out}: a name must end in {', '.join(storage_of)}")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    objectives = list(meta["objective"].items())
    states = {"done": TrialState.COMPLETE, "stopped": TrialState.PRUNED, "running": TrialState.RUNNING,
              "waiting": TrialState.WAITING}  # fmt: skip
    distributions = {entry["path"]: _distribution(entry) for entry in meta["space"]}
    outside = []
    with _whole_folder(out.with_name(f".{out.name}.new")) as folder:
        storage = storage_of[out.suffix](folder / "study")
        study = optuna.create_study(
            study_name=meta["study"], storage=storage, directions=[mode + "imize" for _, mode in objectives]
        )
        study.set_metric_names([metric for metric, _ in objectives])
        for trial in trials:
            params = {path: trial[f"param.{path}"] for path in distributions if trial.get(f"param.{path}") is not None}
            known = {
                path: value
                for path, value in params.items()
                if distributions[path]._contains(distributions[path].to_internal_repr(value))
            }
            if known != params:  # a baseline may lie outside what is searched
                outside.append(trial["trial"])
            values = [v for metric, _ in objectives if finite(v := trial.get(f"metric.{metric}"))]
            state = states.get(trial["status"], TrialState.FAIL)
            if state == TrialState.COMPLETE and len(values) < len(objectives):
                state = TrialState.FAIL
            metric = f"metric.{objectives[0][0]}"
            seen = {int(s["step"]): s[metric] for s in steps.get(trial["trial"], []) if finite(s.get(metric))}
            study.add_trial(
                optuna.trial.create_trial(
                    state=state,
                    params=known,
                    distributions={path: distributions[path] for path in known},
                    values=values if state == TrialState.COMPLETE else None,
                    intermediate_values=seen if len(objectives) == 1 else {},
                    user_attrs=_attributes(trial),
                )
            )
        _close(storage)
        os.replace(folder / "study", out)
        shutil.rmtree(folder)
    if outside:
        return [f"{', '.join(outside)}: some values lie outside the searched space and are only in the attributes"]
    return []


def _attributes(trial: dict[str, Any]) -> dict[str, Any]:
    keys = ("trial", "kind", "name", "seed", "status", "error", "config_hash", "seconds", "device_seconds", "epoch")
    attributes = {key: trial[key] for key in keys if trial.get(key) is not None}
    metrics = {k: v for k, v in trial.items() if k.startswith(("metric.", "param.")) and v is not None}
    return {**attributes, **metrics}


def _study(study_dir: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """(meta, trials, evaluations by trial) of a study with at least one trial."""
    meta = results.read_meta(study_dir)
    trials, steps, _ = results.fold(results.records(study_dir))
    if not trials:
        raise ValueError(f"{study_dir}: has no trial yet")
    by_trial: dict[str, list[dict[str, Any]]] = {}
    for step in steps:
        by_trial.setdefault(step["trial"], []).append(step)
    return meta, trials, by_trial


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise ValueError(f"{out}: is there already; nothing is overwritten, choose another name")
    if not out.parent.is_dir():
        raise ValueError(f"{out.parent}: no such folder")


class _whole_folder:
    """A folder that appears whole or not at all."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def __enter__(self) -> Path:
        self.made = Path(tempfile.mkdtemp(dir=self.out.parent, prefix=f".{self.out.name}."))
        return self.made

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is not None:
            shutil.rmtree(self.made, ignore_errors=True)
        elif self.made.exists():
            self.made.chmod(0o755)
            os.replace(self.made, self.out)


def _csv(path: Path, rows: list[dict[str, Any]]) -> None:
    columns: Iterable[str] = dict.fromkeys(key for row in rows for key in row)
    with path.open("w", encoding="utf8", newline="") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows({k: "" if v is None else v for k, v in row.items()} for row in rows)


def _label(entry: dict[str, Any], value: Any) -> str:
    """A choice as text that no reader takes for a number: DeepCAVE's choices are text, and its table has types."""
    texts = [v for v in entry["values"] if isinstance(v, str)]
    plain = len(texts) == len(entry["values"]) and not any(NUMERIC.match(t) or not t for t in texts)
    return value if plain else f"{entry['path'].rpartition('.')[2]}={json.dumps(value)}"


def _plain(value: float, up: bool) -> str:
    """Six decimals, rounded outwards, and no exponent, which the pattern of DeepCAVE's column names does not read."""
    return f"{(math.ceil if up else math.floor)(value * 1e6) / 1e6:.6f}"


def _distribution(entry: dict[str, Any]) -> Any:
    import optuna

    if entry["kind"] == "choice":
        return optuna.distributions.CategoricalDistribution(entry["values"])
    kind = optuna.distributions.IntDistribution if entry["kind"] == "int" else optuna.distributions.FloatDistribution
    return kind(entry["low"], entry["high"], log=bool(entry["log"]))


def _journal(path: Path) -> Any:
    import optuna
    import optuna.storages.journal

    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))


def _sqlite(path: Path) -> Any:
    import optuna

    return optuna.storages.RDBStorage(f"sqlite:///{path}")


def _close(storage: Any) -> None:
    if hasattr(storage, "engine"):
        storage.remove_session()
        storage.engine.dispose()
