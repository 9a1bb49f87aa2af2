"""The schedulers of STRATEGIES: what stops, pauses or perturbs a trial before its end."""

from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler

from mmts_ray.study import STRATEGIES, StudyConfig


def scheduler_of(study: StudyConfig) -> TrialScheduler | None:
    """The scheduler of the study's strategy; None when every trial runs to its end."""
    return {"": lambda study: None, "asha": _asha}[STRATEGIES[study.strategy].scheduler](study)


def _asha(study: StudyConfig) -> AsyncHyperBandScheduler:
    (metric, mode), *_ = study.objective
    epochs = study.trial_config(study.example()).kwargs("train")["epochs"]
    return AsyncHyperBandScheduler(
        time_attr="epoch", metric=metric, mode=mode, max_t=epochs, grace_period=1, reduction_factor=3
    )
