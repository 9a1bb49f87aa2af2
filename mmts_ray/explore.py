"""How a population moves: which parameters may change while a trial trains, and to what.

Reference: population based training, arXiv:1711.09846. The factors and chances are those of its authors' examples.
"""

from collections.abc import Container
from dataclasses import replace
from typing import Any

import numpy as np

from mmts_ray.config import SEED, TrialConfig
from mmts_ray.space import Choice, Domain, Float, Int, sample
from mmts_ray.study import StudyConfig

RESAMPLE = 0.25  # chance of a parameter to be drawn anew instead of moved
FACTORS = (0.8, 1.2)
TRIES = 50  # moves in a row that lead to no new configuration

# everything else is built into the model, the data order or the groups when a trial starts
MOVABLE = {
    "train": ("lr", "weight_decay", "lr_schedule", "warmup"),
    "model": ("image_dropout", "text_dropout"),
}
# names choose another function, whose state differs; `init` and `bias` act on the first step only
NOT_MOVABLE = ("loss.name", "loss.bias", "schedule.name", "schedule.init")


def movable(path: str) -> bool:
    """Whether a parameter may change in the middle of a run."""
    section, _, key = path.partition(".")
    return path not in NOT_MOVABLE and (section in ("loss", "schedule") or key in MOVABLE.get(section, ()))


def movable_words() -> str:
    """What may change, for a refusal."""
    listed = [f"{section}.{key}" for section, keys in MOVABLE.items() for key in keys]
    return ", ".join([*listed, f"loss.* and schedule.* but {', '.join(NOT_MOVABLE)}"])


def moved(
    study: StudyConfig, config: TrialConfig, rng: np.random.Generator, *, taken: Container[str] = ()
) -> TrialConfig | None:
    """A configuration beside another: each searched value times 0.8 or 1.2, one place along a choice, or drawn anew.

    Values stay inside the space; what becomes active is drawn. None when no configuration is found whose hash is not
    in `taken`.
    """
    for _ in range(TRIES):
        fresh = sample(study.searched, rng, dict(study.fixed))
        flat, point = config.flat(), dict[str, Any]()
        for entry in study.searched:
            if not study.active(point, entry):
                continue
            drawn = fresh[entry.path] if entry.path in fresh else sample([replace(entry, when=())], rng)[entry.path]
            old = flat.get(entry.path)
            point[entry.path] = (
                drawn if old is None or rng.random() < RESAMPLE else _beside(entry.domain, old, rng, drawn)
            )
        try:
            found = study.trial_config({**point, SEED: config.seed})
        except ValueError:  # parameters that are legal alone and not together
            continue
        if found.hash != config.hash and found.hash not in taken:
            return found
    return None


def _beside(domain: Domain, old: Any, rng: np.random.Generator, drawn: Any) -> Any:
    if isinstance(domain, Choice):
        place = domain.values.index(old) if old in domain.values else None
        if place is None:
            return drawn
        return domain.values[int(np.clip(place + rng.integers(-1, 2), 0, len(domain.values) - 1))]
    assert isinstance(domain, Float | Int)
    if not old:  # a multiple of 0 is 0
        return drawn
    value = float(np.clip(old * FACTORS[int(rng.integers(2))], domain.low, domain.high))
    return domain.parse(round(value) if isinstance(domain, Int) else value)
