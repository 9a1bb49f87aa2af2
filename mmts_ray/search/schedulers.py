"""The schedulers of STRATEGIES: what stops, pauses or perturbs a trial before its end."""

from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler

from mmts_ray.plan import Metrics
from mmts_ray.study import STRATEGIES, StudyConfig


def scheduler_of(study: StudyConfig) -> TrialScheduler | None:
    """The scheduler of the study's strategy; None when every trial runs to its end."""
    return {"": lambda study: None, "asha": Asha}[STRATEGIES[study.strategy].scheduler](study)


class Asha(AsyncHyperBandScheduler):
    """Tune's ASHA, which knows a trial by its id in the ledger, so that it can be told what earlier processes saw.

    Only what reports its evaluations takes part: baselines and controls neither stop nor decide who does.
    """

    def __init__(self, study: StudyConfig) -> None:
        (self.judged, mode), *_ = study.objective
        self.sign = 1.0 if mode == "max" else -1.0
        epochs = study.trial_config(study.example()).kwargs("train")["epochs"]
        super().__init__(
            time_attr="epoch", metric=self.judged, mode=mode, max_t=epochs, grace_period=1, reduction_factor=3
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
