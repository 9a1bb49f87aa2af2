"""Which configuration is better: the mean over its seeds, whether it keeps the constraints, its Pareto layer.

Pure functions of ledger records, of an objective ((metric, max or min), ...) and of bounds ((metric, max or min,
bound), ...), which say what a metric may be at most or at least.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mmts_ray import results

Rows = dict[str, dict[str, Any]]  # the ledger's trials by id, or its groups by the id of their first trial
Metrics = dict[str, float]
Objective = Iterable[tuple[str, str]]
Bounds = Iterable[tuple[str, str, float]]


def seeds_of(row: Mapping[str, Any], seeds: tuple[int, ...]) -> tuple[int, ...]:
    """The seeds that a record's configuration runs on, in a study with these; reruns (c, p, r) are alone."""
    return seeds if len(seeds) > 1 and row["trial"].startswith("t") else (int(row.get("seed", 0)),)


def grouped(known: Rows, seeds: tuple[int, ...]) -> Rows:
    """One record per configuration that ran as one: its first trial's, with the group's status and mean metrics.

    A group ends as its worst seed: infeasible, failed, stopped; it is done when all seeds are. `device_seconds` is the
    sum.
    """
    by_group: dict[str, list[dict[str, Any]]] = {}
    for row in known.values():
        by_group.setdefault(results.group_of(row["trial"]), []).append(row)
    return {group: _group(rows, seeds) for group, rows in by_group.items()}


def _group(rows: list[dict[str, Any]], seeds: tuple[int, ...]) -> dict[str, Any]:
    first = min(rows, key=lambda row: len(row["trial"]))  # t0007 before t0007-1
    wanted = seeds_of(first, seeds)
    statuses = {row["status"] for row in rows}
    if len(rows) == 1 and (len(wanted) == 1 or statuses != {"done"}):
        return first
    if statuses & {"running", "waiting"}:
        status = "running" if "running" in statuses or statuses & {*results.FINISHED} else "waiting"
    else:
        status = next((s for s in ("infeasible", "failed", "stopped") if s in statuses), "done")
    if status == "done" and set(wanted) > {row["seed"] for row in rows}:
        status = "running"
    measured = [{k: v for k, v in row.items() if k.startswith("metric.") and v is not None} for row in rows]
    ends = [float(row["end_time"]) for row in rows if row.get("end_time") is not None]
    return {
        **{k: v for k, v in first.items() if not k.startswith("metric.")},
        **results.mean(measured),
        "status": status,
        "error": next((row["error"] for row in rows if row.get("error")), None),
        "epoch": min(row.get("epoch") or 0 for row in rows),
        "device_seconds": sum(row.get("device_seconds") or 0 for row in rows),
        "end_time": max(ends) if len(ends) == len(rows) else None,
    }


def metrics_of(row: Mapping[str, Any]) -> Metrics:
    """The finite metrics of a record by their names."""
    return {k.removeprefix("metric."): v for k, v in row.items() if k.startswith("metric.") and v is not None}


def values(objective: Objective, metrics: Metrics) -> list[float] | None:
    """The objective's metrics in order, or None when one is missing."""
    found = [metrics.get(name) for name, _ in objective]
    return None if any(v is None for v in found) else [float(v) for v in found if v is not None]


def excess(bounds: Bounds, metrics: Metrics) -> dict[str, float]:
    """By how much each constraint is broken, as a share of its bound: above 0 it is; a missing metric breaks it."""
    found = {}
    for name, side, bound in bounds:
        sign = 1.0 if side == "max" else -1.0
        beyond = sign * (metrics[name] - bound) if name in metrics else float("inf")
        found[f"{name} {side} {bound:g}"] = beyond / (abs(bound) or 1.0)
    return found


def broken(bounds: Bounds, metrics: Metrics) -> float:
    """The sum of what constraints are broken by; 0 when all are kept."""
    return sum(max(beyond, 0.0) for beyond in excess(bounds, metrics).values())


def ranked(objective: Objective, bounds: Bounds, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Finished configurations, best first.

    Those that keep the constraints come before those that break them, the least broken first. Then the objective
    decides, or for several metrics the number of others that are better in all, then the first metric.
    """
    objective, bounds = list(objective), list(bounds)
    signs = [1.0 if mode == "max" else -1.0 for _, mode in objective]
    scored = []
    for row in rows:
        found = values(objective, metrics_of(row)) if row["status"] == "done" else None
        if found is not None:
            scored.append(([s * v for s, v in zip(signs, found, strict=True)], broken(bounds, metrics_of(row)), row))

    def dominated_by(mine: list[float], beyond: float) -> int:
        return sum(
            all(o >= m for o, m in zip(other, mine, strict=True)) and other != mine
            for other, theirs, _ in scored
            if theirs <= beyond
        )

    def key(entry: tuple[list[float], float, dict[str, Any]]) -> tuple[float, ...]:
        mine, beyond, _ = entry
        layer = -dominated_by(mine, beyond) if len(signs) > 1 else 0
        return (-beyond, layer, mine[0])

    return [row for _, _, row in sorted(scored, key=key, reverse=True)]


def front(objective: Objective, bounds: Bounds, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The finished configurations that keep the constraints and that none beats in all metrics, by the first metric."""
    objective, bounds = list(objective), list(bounds)
    kept = [r for r in ranked(objective, bounds, rows) if not broken(bounds, metrics_of(r))]
    signs = [1.0 if mode == "max" else -1.0 for _, mode in objective]
    points = [[s * v for s, v in zip(signs, values(objective, metrics_of(r)) or [], strict=True)] for r in kept]
    found = [
        (mine[0], row)
        for mine, row in zip(points, kept, strict=True)
        if not any(all(o >= m for o, m in zip(other, mine, strict=True)) and other != mine for other in points)
    ]
    return [row for _, row in sorted(found, key=lambda entry: -entry[0])]
