"""Fresh runs of any configuration, whatever they were planned for: matched by what was run, never by a name."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pandas as pd

from .choice import choose
from .probes import identity
from .statistics import pooled_sd
from .tables import Study

FRESH = ("confirm", "probe")
IN_SD, IN_BEST = 1.25, 0.01  # differences below the larger of these are not worth a run


@lru_cache(maxsize=4)
def _fresh(study: Study) -> dict[Any, pd.DataFrame]:
    trials = study.trials
    done = trials[trials["kind"].isin(FRESH) & (trials["state"] == "done") & trials["seed"].notna()]
    rows: dict[Any, list[int]] = {}
    for place, trial in zip(done.index, done["trial"]):
        rows.setdefault(identity(study.configs.get(trial, {})), []).append(place)
    return {
        key: done.loc[places].drop_duplicates("seed", keep="last").set_index("seed").sort_index()
        for key, places in rows.items()
    }


def values(study: Study, config: Mapping[str, Any], column: str) -> pd.Series:
    """Finite values of a configuration's fresh runs by seed; empty when it has none."""
    runs = _fresh(study).get(identity(config))
    if runs is None or column not in runs:
        return pd.Series(dtype=float)
    return runs[column].astype(float).dropna()


def default_config(study: Study) -> Mapping[str, Any]:
    """The configuration of the default baseline; empty when it never began."""
    trials = study.trials
    runs = trials[(trials["name"] == study.default) & trials["kind"].isin(["baseline", "confirm"])]
    return study.configs.get(str(runs["trial"].iloc[0]), {}) if study.default is not None and len(runs) else {}


def winner_config(study: Study) -> Mapping[str, Any]:
    """The configuration of the winner on fresh seeds; empty while there is none."""
    winner = choose(study).winner
    return study.configs.get(str(winner.runs["trial"].iloc[0]), {}) if winner is not None else {}


def indifference(study: Study, column: str) -> float:
    """The loss that is too small to care about: 1.25 seed standard deviations, or 1 % of the winner if that is more."""
    sd, df = pooled_sd([runs[column].dropna().to_numpy(dtype=float) for runs in _fresh(study).values()
                        if column in runs])  # fmt: skip
    level = values(study, winner_config(study), column)
    best = IN_BEST * abs(float(level.mean())) if len(level) else 0.0
    return max(best, IN_SD * sd) if df else best
