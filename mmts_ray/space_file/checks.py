"""What does not go together in a study, though each part of it is legal."""

import inspect

from mmts_ray import explore
from mmts_ray.config import ENCODING, SEED
from mmts_ray.losses import LOSSES
from mmts_ray.space import Choice
from mmts_ray.study import REDUCTION, SEVERAL, STRATEGIES, StudyConfig, grid


def check(study: StudyConfig) -> None:
    """ValueError, one line that begins with the key to change, for the first thing that does not go together."""
    _check_points(study)
    if study.searched and not study.trials and study.strategy != "grid":
        raise ValueError("trials: 0, but parameters are searched; legal is a whole number above 0")
    _check_sampler(study)
    _check_scheduler(study)
    if study.controls and study.strategy == "grid":
        raise ValueError("controls: a grid is not sampled; legal is 0")
    if study.warm_start and study.strategy == "grid":
        raise ValueError("warm_start: a grid is not proposed; legal is []")
    if study.controls > study.trials:
        raise ValueError(f"controls: {study.controls} of {study.trials} trials; legal is at most their number")
    if len(study.seeds) > 1:
        for where, items in [("", study.fixed), *((f"(baseline {n!r}) ", p) for n, p in study.baselines)]:
            if SEED in dict(items):
                raise ValueError(f"{SEED}: {where}the study has seeds {list(study.seeds)}; remove this one")
    _check_baselines(study)
    if study.strategy == "grid":
        grid(study)


def _check_points(study: StudyConfig) -> None:
    """Fixed values that are illegal, and functions that do not go together."""
    for point in study.name_points():
        try:
            config = study.trial_config(point)
            if study.resources.workers > 1 and config.name("model") == "sentence_student":
                raise ValueError(
                    f"resources.workers: {study.resources.workers}, but a sentence_student trains on one; legal is 1"
                )
            shared = [name for name, loss in LOSSES.items() if "group" in inspect.signature(loss).parameters]
            if study.resources.workers > 1 and config.name("loss") not in shared:
                raise ValueError(
                    f"loss.name: {config.name('loss')} cannot share a batch, and resources.workers is "
                    f"{study.resources.workers}; legal are {', '.join(shared)}, or 1 worker"
                )
        except ValueError as problem:
            where, _, rest = str(problem).partition(": ")
            chosen = ", ".join(f"{k}={v}" for k, v in point.items() if k.endswith(".name"))
            raise ValueError(f"{where}: {f'(with {chosen}; exclude it with when) ' if chosen else ''}{rest}") from None


def _check_sampler(study: StudyConfig) -> None:
    """Samplers take one metric or several, and some need more than one parameter."""
    several = len(study.objective) > 1
    sampler = STRATEGIES[study.strategy].sampler
    if several and sampler not in SEVERAL:
        fitting = ", ".join(name for name, strategy in STRATEGIES.items() if strategy.sampler in SEVERAL)
        count = len(study.objective)
        raise ValueError(f"objective: {study.strategy} takes one metric; for {count} legal are {fitting}")
    if not several and sampler == "nsga2":
        raise ValueError(
            f"objective: strategy {study.strategy} needs two or more metrics, as in "
            "{val_i2t_r1: max, val_modality_distance: min}"
        )
    bred = study.inherited
    if sampler == "nsga2" and len(bred) == 1 and isinstance(bred[0].domain, Choice):
        fitting = ", ".join(n for n, s in STRATEGIES.items() if s.sampler in SEVERAL and s.sampler != "nsga2")
        raise ValueError(
            f"{bred[0].path}: {study.strategy} hands on what every trial has, here this choice alone, so it would only "
            f"draw at random; legal are {fitting}, or a second parameter without `when`"
        )


def _check_baselines(study: StudyConfig) -> None:
    names = [name for name, _ in study.baselines]
    if len(set(names)) < len(names):
        raise ValueError(f"baseline: a name is used twice among {', '.join(names)}")
    for name in names:
        try:
            config = study.baseline_config(name)
        except ValueError as problem:
            raise ValueError(
                f"{str(problem).partition(': ')[0]}: (baseline {name!r}) {str(problem).partition(': ')[2]}"
            ) from None
        changed = [k for k, v in config.items if k.startswith(ENCODING) and study.encoding.get(k) != v]
        if changed:
            raise ValueError(
                f"{changed[0]}: (baseline {name!r}) one study has one set of features; make a second study"
            )


def _check_scheduler(study: StudyConfig) -> None:
    """A scheduler that could decide nothing, or not what it is meant to, is refused: it would be random search."""
    scheduler = STRATEGIES[study.strategy].scheduler
    if not scheduler or not study.searched:
        return
    train = study.trial_config(study.example()).kwargs("train")
    for path in ("train.epochs", "train.eval_every"):
        if path in {entry.path for entry in study.searched}:
            raise ValueError(f"{path}: strategy {study.strategy} compares trials epoch by epoch; fix it")
    if train["eval_every"] >= train["epochs"]:
        raise ValueError(
            f"train.eval_every: {train['eval_every']} of {train['epochs']} epochs leaves {study.strategy} nothing to "
            f"decide on before the end; legal is below {train['epochs']}"
        )
    if scheduler == "hyperband" and not any(rungs for _, rungs in study.brackets):
        raise ValueError(
            f"train.epochs: {train['epochs']}, evaluated every {train['eval_every']}, leaves {study.strategy} nothing "
            f"to decide on before the end; legal are {REDUCTION} evaluations or more"
        )
    if scheduler == "pbt":
        for entry in study.searched:
            if not explore.movable(entry.path):
                raise ValueError(
                    f"{entry.path}: pbt changes parameters in the middle of a run, and this one is set at its start; "
                    f"legal are {explore.movable_words()}"
                )
        if study.trials - study.controls < 4:
            raise ValueError(f"trials: {study.trials} is no population; pbt needs at least 4")
