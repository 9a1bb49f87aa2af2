"""Optuna's TPE at a cost that does not grow with the study.

Each proposal of TPE fits a density to all earlier trials, and so costs more with each of them. Here it sees the best
and the newest: `BEST` is the most that it takes for good (a tenth, 25 at most), and of the others the old ones carry
little weight in Optuna as well (its `default_weights` falls linearly with age). Up to `MEMORY` trials nothing is left
out, and the proposals are those of Optuna's own sampler.
"""

import heapq
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

MEMORY = 250
BEST = 25


class BoundedTPE(optuna.samplers.TPESampler):
    """TPESampler on `remembered` trials; use one for each proposal, since it reads the study once."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._view: _Remembered | None = None

    def _seen(self, study: optuna.Study) -> optuna.Study:
        if self._view is None:
            self._view = _Remembered(study)
        return self._view

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return super().infer_relative_search_space(self._seen(study), trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return super().sample_relative(self._seen(study), trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return super().sample_independent(self._seen(study), trial, param_name, param_distribution)


class _Remembered(optuna.Study):
    """A study of which only the remembered trials are there; it shares everything else with the one it is made from."""

    def __init__(self, study: optuna.Study) -> None:
        self.__dict__ = dict(study.__dict__)
        self._trials = remembered(study.get_trials(deepcopy=False), [d.name == "MAXIMIZE" for d in study.directions])

    def _get_trials(self, deepcopy: bool = True, states: Any = None, use_cache: bool = False) -> list[FrozenTrial]:
        return [t for t in self._trials if states is None or t.state in states]


def remembered(trials: list[FrozenTrial], maximised: list[bool]) -> list[FrozenTrial]:
    """Those that run, the `BEST` complete ones by each objective, and the newest, `MEMORY` in all, by number.

    Among the best are only those that keep the constraints, if any does.
    """
    ended = [t for t in trials if t.state.is_finished()]
    if len(ended) <= MEMORY:
        return trials
    complete = [t for t in ended if t.state == TrialState.COMPLETE]
    complete = [t for t in complete if not any(v > 0 for v in t.constraints.values())] or complete
    kept: dict[int, FrozenTrial] = {}
    for place, largest in enumerate(maximised):
        sign = 1 if largest else -1
        kept |= {t.number: t for t in heapq.nlargest(BEST, complete, key=lambda t: sign * t.values[place])}
    for trial in reversed(ended):
        if len(kept) >= MEMORY:
            break
        kept[trial.number] = trial
    kept |= {t.number: t for t in trials if not t.state.is_finished()}
    return [kept[number] for number in sorted(kept)]
