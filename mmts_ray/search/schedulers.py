"""The schedulers of STRATEGIES: what stops, pauses or replaces a trial before its end."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, HyperBandForBOHB, TrialScheduler

from mmts_ray.plan import Metrics
from mmts_ray.search.population import Population
from mmts_ray.study import REDUCTION, STRATEGIES, StudyConfig


def scheduler_of(study: StudyConfig) -> TrialScheduler | None:
    """The scheduler of the study's strategy; None when every trial runs to its end."""
    return SCHEDULERS[STRATEGIES[study.strategy].scheduler](study)


class Asha(AsyncHyperBandScheduler):
    """Tune's ASHA, which knows a trial by its id in the ledger, so that it can be told what earlier processes saw.

    Only what reports its evaluations takes part: baselines and controls neither stop nor decide who does.
    """

    def __init__(self, study: StudyConfig) -> None:
        (self.judged, mode), *_ = study.objective
        self.sign = 1.0 if mode == "max" else -1.0
        super().__init__(
            time_attr="epoch",
            metric=self.judged,
            mode=mode,
            max_t=study.epochs,
            grace_period=1,
            reduction_factor=REDUCTION,
        )

    def replay(self, evaluations: list[tuple[str, int, Metrics]]) -> set[str]:
        """Take in what was seen before, in its order; returns the trials that are stopped by it."""
        stopped: set[str] = set()
        for trial, epoch, metrics in evaluations:
            if self.judged not in metrics:
                continue
            action = self._brackets[0].on_result(_named(trial), epoch, self.sign * metrics[self.judged])
            if action == TrialScheduler.STOP and epoch < self._max_t:
                stopped.add(trial)
        return stopped

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_add(tune_controller, _named(trial.config["trial"]))

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        return super().on_trial_result(tune_controller, _named(trial.config["trial"]), result)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        if trial.config["report"]:
            super().on_trial_complete(tune_controller, _named(trial.config["trial"]), result)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_remove(tune_controller, _named(trial.config["trial"]))


def _named(trial: str) -> Any:
    """What ASHA looks at in one of Tune's trials: its id."""
    return SimpleNamespace(trial_id=trial)


class HyperBand(HyperBandForBOHB):
    """Tune's HyperBand with the largest bracket first: a trial waits at a rung until its bracket has got there.

    Only what reports its evaluations takes part. A resumed study fills new brackets, with the interrupted trials first.
    """

    pauses = True

    def __init__(self, study: StudyConfig) -> None:
        (metric, mode), *_ = study.objective
        super().__init__(time_attr="epoch", metric=metric, mode=mode, max_t=study.epochs, reduction_factor=REDUCTION)
        self.concurrent = 1

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        if trial.config["report"]:
            super().on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        if trial not in self._trial_info or self._metric not in result:
            return TrialScheduler.CONTINUE
        return super().on_trial_result(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        if trial in self._trial_info:
            super().on_trial_remove(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: Any, allow_recurse: bool = True) -> Trial | None:
        trials = tune_controller.get_trials()
        if sum(t.status == Trial.RUNNING for t in trials) >= self.concurrent:
            return None
        alone = (t for t in trials if t.status == Trial.PENDING and t not in self._trial_info)
        return next(alone, None) or super().choose_trial_to_run(tune_controller, allow_recurse)


SCHEDULERS: dict[str, Callable[[StudyConfig], TrialScheduler | None]] = {
    "": lambda study: None,
    "asha": Asha,
    "hyperband": HyperBand,
    "pbt": Population,
}
