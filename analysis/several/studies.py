"""Several studies, read together: what they must share to be compared, and who stands for each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from ..arms import values, winner_config
from ..choice import Candidate, choose
from ..probes import identity
from ..tables import Metric, Study, load

DATA = "data."
ENCODERS = ("model.image_encoder", "model.text_encoder")
NO_VALUES = pd.Series(dtype=float)


@dataclass(frozen=True, eq=False)
class Several:
    """At least two studies of one objective; `labels` tell them apart."""

    studies: tuple[Study, ...]
    labels: tuple[str, ...]

    @property
    def metric(self) -> Metric:
        """The metric of every verdict, or the objective where the studies report on different splits."""
        reported = [study.reported for study in self.studies]
        same = all(metric.key == reported[0].key for metric in reported)
        found = reported if same else [study.objective for study in self.studies]
        return Metric(found[0].key, found[0].better, all(metric.share for metric in found))

    @property
    def same_data(self) -> bool:
        """Whether all were trained and scored on the same data with the same encoders."""
        keys = {(study.meta.get("data") or {}).get("key") for study in self.studies}
        return len(keys) == 1 and None not in keys

    @property
    def data_sets(self) -> int:
        """Different data keys; a study without one counts as its own."""
        keys = [(study.meta.get("data") or {}).get("key") or study.path for study in self.studies]
        return len(set(keys))

    def each(self) -> list[tuple[str, Study]]:
        return list(zip(self.labels, self.studies))


def read(folders: Sequence[str | Path]) -> Several:
    """Read study folders; ValueError, one line, when they have no objective in common or one is given twice."""
    studies = tuple(load(folder) for folder in folders)
    paths = [str(Path(study.path).resolve()) for study in studies]
    for path in paths:
        if paths.count(path) > 1:
            raise ValueError(f"{path}: given {paths.count(path)} times; legal is each study once")
    first = studies[0].objective
    for study in studies[1:]:
        if (study.objective.key, study.objective.better) != (first.key, first.better):
            ways = [f"{o.key} {'min' if o.better < 0 else 'max'}" for o in (study.objective, first)]
            raise ValueError(
                f"{study.path}: its objective is {ways[0]}, that of {studies[0].path} is {ways[1]}; "
                "legal are studies of one objective"
            )
    names = [study.name for study in studies]
    labels = [n if names.count(n) == 1 else f"{n} ({study.folder})" for n, study in zip(names, studies)]
    if len(set(labels)) < len(labels):
        labels = [str(study.path) for study in studies]
    return Several(studies, tuple(labels))


def winner_of(study: Study) -> Candidate | None:
    return choose(study).winner


def ranked_winners(several: Several) -> list[tuple[str, Candidate]]:
    """(study, its winner) of the studies that have one, the better mean validation score first."""
    ranked = []
    for label, study in several.each():
        winner = winner_of(study)
        if winner is not None and len(values := winner.values(study.objective.column)):
            ranked.append((-several.metric.better * float(values.mean()), label, winner))
    return [(label, winner) for _, label, winner in sorted(ranked, key=lambda item: item[:2])]


def scores(candidate: Candidate | None, metric: Metric) -> pd.Series:
    return candidate.values(metric.column) if candidate is not None else NO_VALUES


def setting_of(config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """A configuration without its data and encoders: what can be run on other data."""
    return identity({k: v for k, v in config.items() if not k.startswith(DATA) and k not in ENCODERS})


@lru_cache(maxsize=16)
def _settings(study: Study) -> dict[Any, Mapping[str, Any]]:
    """Configurations with fresh runs by `setting_of`."""
    fresh = study.trials[study.trials["kind"].isin(["confirm", "probe"]) & (study.trials["state"] == "done")]
    return {setting_of(config): config for trial in fresh["trial"] if (config := study.configs.get(trial, {}))}


def carried(source: Study, target: Study, column: str) -> pd.Series:
    """Scores, by seed, of the winner of one study where it was run in another; empty when it was not."""
    wanted = winner_config(source)
    config = _settings(target).get(setting_of(wanted)) if wanted else None
    return values(target, config, column) if config is not None else NO_VALUES
