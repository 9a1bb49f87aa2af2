"""Reruns around the winner: settings that differ from it in one searched parameter and share its seeds."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from ..choice import choose
from ..statistics import difference
from ..tables import Study
from ..wording import setting


def ring_runs(study: Study) -> pd.DataFrame:
    """Settings that differ from the winner in one searched parameter and share seeds with it: paired differences.

    Limits are widened for the number of settings (Bonferroni): the worst of many is a winner's curse in reverse.
    """
    columns = ["path", "value", "setting", "step", "n", "drop", "lo", "hi"]
    winner = choose(study).winner
    if winner is None:
        return pd.DataFrame(columns=columns)
    own = study.configs.get(str(winner.runs["trial"].iloc[0]), {})
    values = winner.values(study.objective.column)
    fresh = study.trials[study.trials["kind"].isin(["probe", "confirm"]) & (study.trials["state"] == "done")]
    found = []
    for _, runs in fresh.groupby("config_hash", sort=True):
        path = only_change(study, own, study.configs.get(str(runs["trial"].iloc[0]), {}))
        scores = runs.drop_duplicates("seed", keep="last").set_index("seed")["score"].dropna()
        if path is not None and len(scores.index.intersection(values.index)) >= 2:
            found.append((path, study.configs[str(runs["trial"].iloc[0])][path], scores))
    rows = []
    for path, value, scores in found:
        parameter = next(p for p in study.space if p.path == path)
        d = difference(scores, values, comparisons=len(found))
        assert d is not None
        better = study.objective.better
        ends = sorted((better * d.lo, better * d.hi))
        here, there = (float(parameter.position([v])[0]) for v in (own[path], value))
        step = math.nan if parameter.kind == "choice" else there - here
        rows.append((path, value, setting(value, parameter), step, d.n, better * d.mean, *ends))
    frame = pd.DataFrame(rows, columns=columns)
    return frame.sort_values(["path", "step", "setting"], kind="stable", ignore_index=True)


def only_change(study: Study, own: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The searched parameter in which two configurations differ, when it is the only difference besides the seed."""
    keys = {k for k in own.keys() | other.keys() if k != "train.seed" and repr(own.get(k)) != repr(other.get(k))}
    (path,) = keys if len(keys) == 1 else (None,)
    return path if path in {p.path for p in study.space} and path in own and path in other else None
