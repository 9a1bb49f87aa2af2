"""Which trials a study still has to run: pure functions of the study and its ledger."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mmts_ray import results
from mmts_ray.config import TrialConfig, from_flat
from mmts_ray.study import StudyConfig

Rows = dict[str, dict[str, Any]]  # the ledger's trials by id


@dataclass(frozen=True)
class Planned:
    """A trial that will run: its id, what it is for, and its complete configuration."""

    trial: str
    kind: str
    name: str | None
    config: TrialConfig


def unfinished(known: Rows, *kinds: str) -> list[Planned]:
    """The trials of these kinds that have begun, or wait, and have not ended."""
    return [
        Planned(trial=row["trial"], kind=row["kind"], name=row.get("name"), config=config_of(row))
        for row in known.values()
        if row["kind"] in kinds and row["status"] not in results.FINISHED
    ]


def missing_baselines(study: StudyConfig, known: Rows, first_id: int) -> list[Planned]:
    """The baselines that have never begun."""
    begun = {row.get("name") for row in known.values() if row["kind"] == "baseline"}
    names = [name for name, _ in study.baselines if name not in begun]
    return [
        Planned(trial=f"t{first_id + i:04d}", kind="baseline", name=name, config=study.baseline_config(name))
        for i, name in enumerate(names)
    ]


def confirmations(study: StudyConfig, known: Rows, *, top: int, seeds: int) -> list[Planned]:
    """The reruns that are missing in the ledger: baselines and the best `top` configurations, on shared fresh seeds."""
    done = {(row["config_hash"], int(row["seed"])) for row in known.values() if row["kind"] == "confirm"}
    wanted = [
        (name, config.with_seed(seed))
        for seed in range(results.FRESH_SEEDS, results.FRESH_SEEDS + seeds)
        for name, config in candidates(study, known, top)
        if (config.hash, seed) not in done
    ]
    first_id = next_number(known, "c")
    return [
        Planned(trial=f"c{first_id + i:04d}", kind="confirm", name=name, config=config)
        for i, (name, config) in enumerate(wanted)
    ]


def start_record(study: StudyConfig, planned: Planned, *, status: str, data_key: str) -> dict[str, Any]:
    """The record that opens a trial; it alone carries the parameters."""
    config = planned.config
    ones = np.ones(1, dtype=np.int64)
    schedule = config.function("schedule")(1, ones, ones, **config.kwargs("schedule"))
    return {
        "study": study.study,
        "trial": planned.trial,
        "kind": planned.kind,
        "name": planned.name,
        "config_hash": config.hash,
        "seed": config.seed,
        "rung": 0,
        "step": 0,
        "epoch": 0,
        "global_batch": config.kwargs("train")["batch_size"],
        "status": status,
        **{f"param.{k}": v for k, v in config.items},
        "derived.data.key": data_key,
        **{f"derived.schedule.{k}": v for k, v in schedule.derived.items()},
    }


def objective_values(study: StudyConfig, metrics: dict[str, float]) -> list[float] | None:
    """The objective's metrics in order, or None when one is missing."""
    values = [metrics.get(name) for name, _ in study.objective]
    return None if any(v is None for v in values) else [float(v) for v in values if v is not None]


def values_of(study: StudyConfig, row: dict[str, Any]) -> list[float] | None:
    """The objective's values in a ledger record."""
    return objective_values(study, {k.removeprefix("metric."): v for k, v in row.items() if k.startswith("metric.")})


def ranked(study: StudyConfig, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Finished trials, best first: by the objective, or for several metrics by Pareto layer and then the first."""
    signs = [1.0 if mode == "max" else -1.0 for _, mode in study.objective]
    scored = [
        ([s * v for s, v in zip(signs, values, strict=True)], row)
        for row in rows
        if row["status"] == "done" and (values := values_of(study, row))
    ]

    def dominated_by(mine: list[float]) -> int:
        return sum(all(o >= m for o, m in zip(other, mine, strict=True)) and other != mine for other, _ in scored)

    key = (lambda s: (-dominated_by(s[0]), s[0][0])) if len(signs) > 1 else (lambda s: s[0])
    return [row for _, row in sorted(scored, key=key, reverse=True)]


def config_of(row: dict[str, Any]) -> TrialConfig:
    """The configuration that a ledger record describes."""
    return from_flat({k.removeprefix("param."): v for k, v in row.items() if k.startswith("param.")})


def candidates(study: StudyConfig, known: Rows, top: int) -> list[tuple[str, TrialConfig]]:
    """Baselines under their names, then the best distinct searched configurations under their trial ids."""
    found: dict[str, tuple[str, TrialConfig]] = {}
    for name, _ in study.baselines:
        config = study.baseline_config(name)
        found.setdefault(config.hash, (name, config))
    limit = len(found) + top
    for row in ranked(study, [r for r in known.values() if r["kind"] == "search"]):
        if len(found) >= limit:
            break
        found.setdefault(row["config_hash"], (row["trial"], config_of(row)))
    return list(found.values())


def next_number(known: Rows, letter: str) -> int:
    return 1 + max((int(t[1:]) for t in known if t.startswith(letter)), default=-1)
