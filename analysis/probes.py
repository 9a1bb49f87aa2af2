"""Planned runs around the winner, read back from the ledger by what they were planned for.

A probe's name says its role:
    ring train.lr +0.10      a tenth of the searched range above the winner, on the declared scale
    ring groups.k = 50       another choice
    bound train.lr low       the end of the searched range
    bound train.lr low -0.25 a quarter of the range beyond it
    ablation 2 train.lr      step 2 of the way from the default to the winner
    alone train.lr           the default with the winner's value
    reset train.lr           the winner with the default's value
    inert train.lr low       one epoch at an end of the range; the other is `high`
"""

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from .tables import Study

SEED = "train.seed"
NAME = re.compile(r"(ring|bound|ablation|alone|reset|inert) (?:(\d+) )?(\S+)(?: (.+))?")
COLUMNS = ["role", "step", "path", "where", "trial", "key", "seed", "value"]


def probes(study: Study) -> pd.DataFrame:
    """Finished probes, one row per run: role, step (of an ablation), path, where, trial, key (of the configuration),
    seed, value (of the parameter), and the ledger's metric columns.

    What had run already under another name when it was planned is not among them.
    """
    trials = study.trials[(study.trials["kind"] == "probe") & (study.trials["state"] == "done")]
    rows = []
    for row in trials.itertuples():
        found = NAME.fullmatch(str(row.name))
        if found:
            role, step, path, where = found.groups()
            value = study.configs.get(row.trial, {}).get(path)
            rows.append((role, int(step or 0), path, where or "", row.trial, row.config_hash, row.seed, value))
    frame = pd.DataFrame(rows, columns=COLUMNS)
    metrics = ["trial", *(c for c in trials if str(c).startswith("metric."))]
    return frame.merge(trials[metrics], on="trial", how="left")


def identity(config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """What makes two configurations the same: everything but the seed."""
    return tuple(sorted((path, repr(value)) for path, value in config.items() if path != SEED))


def reacts(study: Study, path: str, config: Mapping[str, Any]) -> bool | None:
    """Whether moving one parameter, and nothing else, moves any number of a run with the same seed.

    False: two runs around `config` differ in this parameter alone and agree in every metric to the last digit, so the
    code ignores it there. None: no such pair of runs is in the ledger. The training length may differ from `config`.
    """
    ours = _without(config, path)
    seen: dict[Any, list[tuple[str, tuple[Any, ...]]]] = {}
    ended = study.trials[study.trials["state"].isin(["done", "infeasible"])]
    metrics = [c for c in ended if str(c).startswith("metric.train_") or str(c).startswith("metric.val_")]
    for trial, state, *numbers in ended[["trial", "state", *metrics]].itertuples(index=False, name=None):
        other = study.configs.get(trial, {})
        if path in other and _without(other, path) == ours:
            run = (other.get("train.epochs"), other.get(SEED))
            seen.setdefault(run, []).append((repr(other[path]), (state, *map(repr, numbers))))
    pairs = [
        first[1] != second[1]
        for runs in seen.values()
        for place, first in enumerate(runs)
        for second in runs[:place]
        if first[0] != second[0] and "done" in (first[1][0], second[1][0])  # two that diverged tell nothing
    ]
    return any(pairs) if pairs else None


def _without(config: Mapping[str, Any], path: str) -> tuple[tuple[str, str], ...]:
    return identity({k: v for k, v in config.items() if k not in (path, "train.epochs")})
