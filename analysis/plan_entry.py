"""One entry of a plan: a configuration, the seeds of it that no run has, and what a run of it will cost."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from .choice import FRESH_NEEDED
from .probes import identity
from .tables import Study
from .wording import count

EPOCHS = "train.epochs"
LIKE = ("train.batch_size", "loss.name", "model.name")  # with the epochs, what the cost of a run hangs on


@dataclass(frozen=True)
class Entry:
    """Runs that are missing: one configuration on some seeds."""

    name: str
    kind: str  # confirm, probe or control
    start: str | None  # the trial or baseline whose configuration is changed; None: the study's fixed values
    changes: Mapping[str, Any]
    config: Mapping[str, Any]  # with the changes, as far as the ledger knows it
    seeds: tuple[int, ...]
    reason: str
    seconds: float  # of device time for one run; NaN when nothing has run yet
    basis: str  # where `seconds` comes from

    @property
    def hours(self) -> float:
        """Device-hours of all its runs."""
        return self.seconds * len(self.seeds) / 3600


def missing(
    study: Study,
    name: str,
    kind: str,
    start: str,
    config: Mapping[str, Any],
    changes: Mapping[str, Any],
    seeds: Sequence[int],
    reason: str,
) -> Iterator[Entry]:
    """The entry with the seeds that no fresh run of the same configuration has; nothing when none is left."""
    have = _ran(study).get(identity(config), set())
    wanted = tuple(seed for seed in seeds if seed not in have)
    if wanted:
        yield Entry(name, kind, start, dict(changes), config, wanted, reason, *cost(study, config))


@lru_cache(maxsize=1)
def _ran(study: Study) -> dict[Any, set[int]]:
    """Seeds of each configuration's fresh runs, ended, waiting or under way; a failed one may run again."""
    fresh = study.trials[study.trials["kind"].isin(["confirm", "probe"]) & (study.trials["state"] != "failed")]
    found: dict[Any, set[int]] = {}
    for row in fresh[fresh["seed"].notna()].itertuples():
        found.setdefault(identity(study.configs.get(row.trial, {})), set()).add(int(row.seed))
    return found


@lru_cache(maxsize=1)
def _paid(study: Study) -> pd.DataFrame:
    """Finished runs with what they cost and what the cost hangs on."""
    done = study.trials[(study.trials["state"] == "done") & (study.trials["device_seconds"] > 0)]
    columns = {path: [study.configs.get(t, {}).get(path) for t in done["trial"]] for path in (EPOCHS, *LIKE)}
    same = [hash(identity(study.configs.get(t, {}))) for t in done["trial"]]
    return pd.DataFrame({"seconds": done["device_seconds"].to_numpy(), "same": same, **columns})


def cost(study: Study, config: Mapping[str, Any]) -> tuple[float, str]:
    """(device-seconds of one run, where that comes from): the median of like runs, or of others, scaled by epochs."""
    paid = _paid(study)
    same = paid[paid["same"] == hash(identity(config))]
    if len(same) >= FRESH_NEEDED:
        return float(same["seconds"].median()), f"median of {count(len(same), 'run')} of this configuration"
    alike = np.ones(len(paid), dtype=bool)
    for path in LIKE:
        if path in config:
            alike &= (paid[path] == config[path]).to_numpy()
    epochs = config.get(EPOCHS)
    full = paid[alike & (paid[EPOCHS] == epochs).to_numpy()] if epochs is not None else paid[alike]
    if len(full):
        return float(full["seconds"].median()), f"median of {count(len(full), 'like run')}"
    if paid.empty:
        return math.nan, "unknown: nothing has finished"
    pool = paid[alike] if alike.any() else paid
    scale = pd.Series(1.0, index=pool.index) if epochs is None else epochs / pd.to_numeric(pool[EPOCHS])
    other = "of another length" if alike.any() else "that differ in batch, loss or model"
    return float((pool["seconds"] * scale).median()), f"extrapolated from {count(len(pool), 'run')} {other}"
