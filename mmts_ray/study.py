"""A checked study: what is fixed, what is searched, what is compared with, and how it is judged.

`space_file` reads one from YAML and holds the format.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmts_ray.config import ENCODING, NAMED, SEED, TrialConfig, from_flat
from mmts_ray.space import Choice, Searched, declared, grid_values


@dataclass(frozen=True)
class Strategy:
    """The sampler that proposes points, and the scheduler ("" for none) that may end trials early."""

    sampler: str
    scheduler: str
    meaning: str


STRATEGIES = {
    "random": Strategy("random", "", "independent random points"),
    "random_asha": Strategy("random", "asha", "independent random points"),
    "grid": Strategy("grid", "", "every combination: all choices, and `grid_points` values of each range"),
    "tpe": Strategy("tpe", "", "tree-structured Parzen estimator (multivariate), no early stopping"),
    "tpe_asha": Strategy("tpe", "asha", "tree-structured Parzen estimator (multivariate)"),
    "hyperband": Strategy("random", "hyperband", "independent random points"),
    "bohb": Strategy("tpe", "hyperband", "kernel density estimates of good and bad points (multivariate TPE)"),
    "pbt": Strategy("random", "pbt", "independent random points to start from"),
    "nsga2": Strategy("nsga2", "", "genetic search for the trade-off of two or more metrics"),
    "nsga2_asha": Strategy("nsga2", "asha", "genetic search for the trade-off of two or more metrics"),
}
SEVERAL = ("random", "grid", "tpe", "nsga2")  # samplers that take several metrics
MAX_GRID = 100_000
REDUCTION = 3  # of the trials at a rung, one in so many goes on
ROUNDS = 10  # of a population in a run
WORST = 0.25  # of a population is replaced by moved copies of as many of the best, in each round


@dataclass(frozen=True)
class Resources:
    """What one trial takes, and how many run at once (None: as many as fit)."""

    workers: int = 1
    cpus_per_worker: float = 1
    gpus_per_worker: float = 0
    concurrent: int | None = None

    @property
    def cpus(self) -> float:
        """CPUs of a trial."""
        return self.workers * self.cpus_per_worker

    @property
    def gpus(self) -> float:
        """GPUs of a trial."""
        return self.workers * self.gpus_per_worker


@dataclass(frozen=True)
class StudyConfig:
    """A checked study. `fixed` and `baselines` hold what was written; `trial_config` completes and checks a point."""

    study: str
    objective: tuple[tuple[str, str], ...]
    constraints: tuple[tuple[str, str, float], ...]
    strategy: str
    warm_start: tuple[str, ...]
    trials: int
    budget_hours: float | None
    budget_device_hours: float | None
    controls: int
    seed: int
    seeds: tuple[int, ...]
    fixed: tuple[tuple[str, Any], ...]
    searched: tuple[Searched, ...]
    baselines: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
    confirm_top: int
    confirm_seeds: int
    resources: Resources
    checkpoint_seconds: float
    stall_minutes: float
    grid_points: int
    loggers: tuple[str, ...] = ()

    @property
    def epochs(self) -> int:
        """Epochs of a trial; with a scheduler they are the same for all."""
        return self.trial_config(self.example()).kwargs("train")["epochs"]

    @property
    def inherited(self) -> list[Searched]:
        """Parameters that every trial has, with more than one value: a genetic search hands on no others."""
        names = {entry.path for entry in self.searched}
        always = [e for e in self.searched if not names & {path for path, _ in e.when} and self.active({}, e)]
        return [e for e in always if len({*grid_values(e.domain, 2)}) > 1]

    @property
    def rungs(self) -> list[int]:
        """Epochs at which ASHA decides, each on the first evaluation at or after it: 1, 3, 9, ..."""
        return [REDUCTION**k for k in range(64) if REDUCTION**k < self.epochs]

    @property
    def brackets(self) -> list[tuple[int, list[int]]]:
        """(trials, epochs of the cuts) of HyperBand's brackets, the largest first; then they begin again."""
        every = self.eval_every
        evaluations = max(1, self.epochs // every)
        most = round(math.log(evaluations, REDUCTION))
        return [
            (
                math.ceil((most + 1) / (s + 1) * REDUCTION**s),
                [every * (evaluations // REDUCTION**k) for k in range(s, 0, -1)],
            )
            for s in range(most, -1, -1)
            if evaluations >= REDUCTION**s
        ]

    @property
    def eval_every(self) -> int:
        """Epochs between two evaluations of a trial."""
        return self.trial_config(self.example()).kwargs("train")["eval_every"]

    @property
    def round_epochs(self) -> int:
        """Epochs between two decisions on a population: a tenth of the run, in whole evaluations."""
        every = self.eval_every
        return every * max(1, round(self.epochs / ROUNDS / every))

    def trial_config(self, point: Mapping[str, Any]) -> TrialConfig:
        """The complete configuration of a sampled point; an explicit train.seed in `fixed` or the point wins."""
        return from_flat({SEED: self.seeds[0], **_merged(dict(self.fixed), point)})

    @property
    def watched(self) -> tuple[str, ...]:
        """The metrics that decide something: which configuration is better."""
        names = [*(name for name, _ in self.objective), *(name for name, _, _ in self.constraints)]
        return tuple(dict.fromkeys(names))

    def seeds_of(self, config: TrialConfig) -> tuple[int, ...]:
        """The seeds that a baseline, control or searched configuration runs on; each is a trial."""
        return self.seeds if len(self.seeds) > 1 else (config.seed,)

    def baseline_config(self, name: str) -> TrialConfig:
        return self.trial_config(dict(dict(self.baselines)[name]))

    @property
    def encoding(self) -> dict[str, Any]:
        """The paths that decide the features; they are the same in every trial."""
        flat = self.trial_config(self.example()).flat()
        return {k: v for k, v in flat.items() if k.startswith(ENCODING)}

    def example(self, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One point: the first value or lower end of every active parameter that is not given."""
        point: dict[str, Any] = {}
        for entry in self.searched:
            if entry.active({**dict(self.fixed), **point}):
                domain = entry.domain
                if given and entry.path in given:
                    point[entry.path] = given[entry.path]
                    continue
                point[entry.path] = domain.values[0] if isinstance(domain, Choice) else domain.low  # type: ignore[union-attr]
        return point

    def name_points(self) -> list[dict[str, Any]]:
        """One legal point for each combination of searched `section.name` choices."""
        chosen = [e for e in self.searched if e.path.endswith(".name") and isinstance(e.domain, Choice)]
        combinations = itertools.product(*(e.domain.values for e in chosen))  # type: ignore[union-attr]
        return [self.example(dict(zip((e.path for e in chosen), values, strict=True))) for values in combinations]

    def active(self, point: Mapping[str, Any], entry: Searched) -> bool:
        return entry.active({**dict(self.fixed), **point})


def to_dict(study: StudyConfig) -> dict[str, Any]:
    """The inverse of `parse`: what study.yaml holds."""
    search: dict[str, Any] = {}
    for entry in study.searched:
        domain = entry.domain
        if isinstance(domain, Choice):
            spec: dict[str, Any] = {"choice": list(domain.values)}
        else:
            kind = ("logint" if domain.log else "int") if isinstance(domain.low, int) else ""  # type: ignore[union-attr]
            kind = kind or ("loguniform" if domain.log else "uniform")  # type: ignore[union-attr]
            spec = {kind: [domain.low, domain.high]}  # type: ignore[union-attr]
        if entry.when:
            spec["when"] = {path: list(values) for path, values in entry.when}
        search[entry.path] = spec
    return {
        "study": study.study,
        "objective": dict(study.objective),
        "constraints": constraints(study),
        "strategy": study.strategy,
        "warm_start": list(study.warm_start),
        "trials": study.trials,
        "budget": {"hours": study.budget_hours, "device_hours": study.budget_device_hours},
        "controls": study.controls,
        "seed": study.seed,
        "seeds": list(study.seeds),
        "fixed": dict(study.fixed),
        "search": search,
        "baseline": [{"name": name, **dict(items)} for name, items in study.baselines],
        "confirm": {"top": study.confirm_top, "seeds": study.confirm_seeds},
        "resources": dataclasses.asdict(study.resources),
        "checkpoint_seconds": study.checkpoint_seconds,
        "stall_minutes": study.stall_minutes,
        "grid_points": study.grid_points,
        "loggers": list(study.loggers),
    }


def constraints(study: StudyConfig) -> dict[str, dict[str, float]]:
    """What each constrained metric may be: {metric: {max: bound}}."""
    found: dict[str, dict[str, float]] = {}
    for name, side, bound in study.constraints:
        found.setdefault(name, {})[side] = bound
    return found


def grid(study: StudyConfig) -> list[dict[str, Any]]:
    """Every point of a grid study, inactive parameters left out and equal points folded."""
    axes = [[(e, v) for v in grid_values(e.domain, study.grid_points)] for e in study.searched]
    size = 1
    for axis in axes:
        size *= len(axis)
    if size > MAX_GRID:
        raise ValueError(
            f"grid_points: the grid has {size} points; legal are at most {MAX_GRID}, so narrow it or sample"
        )
    points: dict[str, dict[str, Any]] = {}
    for combination in itertools.product(*axes):
        point: dict[str, Any] = {}
        for entry, value in combination:
            if study.active(point, entry):
                point[entry.path] = value
        points.setdefault(repr(sorted(point.items())), point)
    return list(points.values())


def _merged(fixed: dict[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """A point over the fixed values; choosing another function drops what only the fixed one knew."""
    merged = {**fixed, **point}
    for section, (table, default) in NAMED.items():
        path = f"{section}.name"
        if path in point and point[path] != fixed.get(path, default) and point[path] in table:
            known = declared(table[point[path]])
            for key in fixed:
                inner = key.removeprefix(section + ".")
                if key.startswith(section + ".") and key not in point and key != path and inner not in known:
                    del merged[key]
    return merged
