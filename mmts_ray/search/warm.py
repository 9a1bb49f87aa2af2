"""What other studies know: results of the same trials, and where to look first."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmts_ray import ranking, results
from mmts_ray.config import TrialConfig
from mmts_ray.plan import config_of
from mmts_ray.sampler import Sampler
from mmts_ray.study import StudyConfig

TOP = 10  # configurations of another study that are run first; at most a quarter of the trials


def warm_start(study: StudyConfig, sampler: Sampler, groups: ranking.Rows, *, data_key: str) -> list[str]:
    """Tell the sampler what the studies of `warm_start` know; returns a line for each.

    A finished trial that this study would run with the same numbers (same data, seeds, and every value that is not
    searched) is told as a result. The best configurations of a study that are points of this space, whatever else
    differs (epochs, encoders, data), are proposed first and run here: rank carries over, a score does not.
    """
    ran = {row["config_hash"] for row in groups.values() if row["kind"] not in results.FRESH}
    said = []
    for place in study.warm_start:
        path = Path(place)
        try:
            meta = results.read_meta(path)
        except ValueError:
            if not groups:
                raise
            said.append(f"warm_start: {path} is gone; what it gave at the start is kept")
            continue
        rows, told = _finished(path, meta), 0
        for row, config in rows:
            metrics = ranking.metrics_of(row)
            same = row.get("derived.data.key") == data_key
            if same and ranking.seeds_of(row, tuple(meta.get("seeds", ()))) == study.seeds_of(config):
                told += sampler.adopt(
                    f"{path.name}/{row['trial']}",
                    config,
                    status=row["status"],
                    values=ranking.values(study.objective, metrics),
                    epoch=row["epoch"],
                    excess=ranking.excess(study.constraints, metrics) if metrics else None,
                )
        first = 0
        for point, config in _best(study, sampler, meta, rows):
            if config.hash not in ran:
                first += sampler.enqueue(point)
        said.append(f"warm_start: {path}: {told} results told, {first} configurations proposed first")
    return said


def _finished(path: Path, meta: Mapping[str, Any]) -> list[tuple[dict[str, Any], TrialConfig]]:
    """The ended configurations of a study; one that this version cannot read is passed over."""
    found = []
    for row in ranking.grouped(results.trials_of(path), tuple(meta.get("seeds", ()))).values():
        if row["kind"] in results.FRESH or row["status"] not in results.FINISHED:
            continue
        try:
            found.append((row, config_of(row)))
        except ValueError:
            continue
    return found


def _best(
    study: StudyConfig, sampler: Sampler, meta: Mapping[str, Any], rows: list[tuple[dict[str, Any], TrialConfig]]
) -> list[tuple[dict[str, Any], TrialConfig]]:
    """(point, its configuration here) of the best that are points of this space, by this objective or by its own."""
    plain = [row for row, _ in rows]
    order = ranking.ranked(study.objective, study.constraints, plain) or ranking.ranked(
        meta["objective"].items(), (), plain
    )
    configs = {row["trial"]: config for row, config in rows}
    found: dict[str, tuple[dict[str, Any], TrialConfig]] = {}
    for row in order:
        point = sampler.point_of(configs[row["trial"]])
        if point is None:
            continue
        try:
            here = study.trial_config(point)
        except ValueError:
            continue
        found.setdefault(here.hash, (point, here))
    return list(found.values())[: min(TOP, max(1, study.trials // 4))]
