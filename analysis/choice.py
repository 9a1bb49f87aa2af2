"""Who is compared: configurations with fresh runs, the winner among them, and the best of the search."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from .tables import COPY, Study

FRESH_NEEDED = 3  # below this a t interval is wider than any effect worth reporting


@dataclass(frozen=True, eq=False)
class Candidate:
    """A configuration with fresh runs: `runs` has one row per seed, `done` those with a score, indexed by seed."""

    key: str
    label: str
    source: str  # baseline or search
    trial: str | None  # the run of the search that it repeats
    runs: pd.DataFrame
    done: pd.DataFrame

    def values(self, column: str) -> pd.Series:
        """Finite values by seed."""
        if column not in self.done:
            return pd.Series(dtype=float)
        values = self.done[column].to_numpy(dtype=float)
        finite = np.isfinite(values)
        return pd.Series(values[finite], index=self.done.index[finite])


@dataclass(frozen=True)
class Chosen:
    """Who is compared: the winner and runner-up by mean validation score on fresh seeds, and the default."""

    winner: Candidate | None
    runner_up: Candidate | None
    default: Candidate | None
    others: tuple[Candidate, ...]


@lru_cache(maxsize=4)  # every panel asks; a study is compared by identity
def candidates(study: Study) -> tuple[Candidate, ...]:
    """Configurations that have fresh runs, in order of label."""
    fresh = study.trials[study.trials["kind"] == "confirm"]
    names = study.trials[study.trials["kind"] == "baseline"]
    searched = study.trials[study.trials["kind"].isin(["control", "search", COPY])]
    baselines = {*map(str, study.meta.get("baselines") or []), *names["name"].dropna()}
    found = []
    for key, runs in fresh.groupby(fresh["config_hash"].fillna(fresh["name"]).fillna(fresh["trial"]), sort=True):
        label = next((str(n) for n in runs["name"].dropna()), None)
        same = searched[(searched["config_hash"] == key) | (searched["trial"] == label)]
        baseline = names[(names["config_hash"] == key) | (names["name"] == label)]
        source = "baseline" if label in baselines or len(baseline) else "search"
        if source == "baseline" and label not in baselines:
            label = str(baseline["name"].iloc[0])
        origin = baseline if source == "baseline" else same
        trial = str(origin["trial"].iloc[0]) if len(origin) else None
        done = runs[runs["state"] == "done"].set_index("seed").sort_index()
        found.append(Candidate(str(key), label or trial or str(key)[:8], source, trial, runs, done))
    return tuple(sorted(found, key=lambda candidate: candidate.label))


@lru_cache(maxsize=4)
def choose(study: Study) -> Chosen:
    """Rank the configurations other than the default by mean validation score on fresh seeds.

    Those that keep the study's constraints come first, then those with at least three seeds: one lucky run must not
    beat five.
    """
    found = candidates(study)
    default = next((c for c in found if c.source == "baseline" and c.label == study.default), None)
    column, better = study.objective.column, study.objective.better

    def rank(candidate: Candidate) -> tuple[bool, bool, float, str]:
        values = candidate.values(column)
        return (
            bool(broken(study, candidate)),
            len(values) < FRESH_NEEDED,
            -better * float(values.mean()),
            candidate.label,
        )

    rivals = sorted((c for c in found if c is not default and len(c.values(column))), key=rank)
    winner, runner_up = [*rivals, None, None][:2]
    others = tuple(c for c in rivals[2:] if c.source == "baseline")
    return Chosen(winner, runner_up, default, others)


def best_of_search(study: Study) -> pd.Series | None:
    """The finished search trial with the best validation score (one run); a baseline when nothing else finished."""
    pool = study.searched if len(study.searched) else study.finished
    if pool.empty:
        return None
    kept = np.ones(len(pool), dtype=bool)
    for metric, side, bound in bounds(study):
        column = f"metric.{metric}"
        seen = pd.to_numeric(pool[column], errors="coerce") if column in pool else pd.Series(np.nan, index=pool.index)
        kept &= (seen <= bound if side == "max" else seen >= bound).to_numpy()
    order = (pool["score"] * study.objective.better).to_numpy()
    return pool.iloc[int(np.argmax(np.where(kept, order, -np.inf) if kept.any() else order))]


def bounds(study: Study) -> list[tuple[str, str, float]]:
    """The study's constraints: (metric, max or min, bound)."""
    given = study.meta.get("constraints")
    sides = given.items() if isinstance(given, Mapping) else []
    return [(str(metric), str(side), float(b)) for metric, ends in sides for side, b in ends.items()]


def broken(study: Study, candidate: Candidate) -> list[str]:
    """The constraints that a candidate breaks on the average of its fresh seeds, in words."""
    found = []
    for metric, side, bound in bounds(study):
        mean = float(candidate.values(f"metric.{metric}").mean())
        if not (mean <= bound if side == "max" else mean >= bound):
            found.append(f"{metric} {'at most' if side == 'max' else 'at least'} {bound:g} (mean {mean:.4g})")
    return found


def best_config(study: Study) -> tuple[str | None, Mapping[str, Any]]:
    """(trial, configuration) of the winner, or of the best search trial while nothing is confirmed."""
    winner, best = choose(study).winner, best_of_search(study)
    if winner is None:
        trial = None if best is None else str(best["trial"])
        return trial, study.configs.get(str(trial), {})
    trial = winner.trial or str(winner.runs["trial"].iloc[0])
    return trial, study.configs.get(trial, {})


def best_tenth(study: Study) -> pd.DataFrame:
    """The best tenth of the finished search trials, at least five."""
    pool = study.searched
    count = max(5, math.ceil(len(pool) / 10))
    return pool.loc[(pool["score"] * -study.objective.better).sort_values(kind="stable").index[:count]]
