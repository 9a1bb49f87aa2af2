"""A study's configurations as points of the searched space, and the process fitted to them: once per study.

Full-length runs only, on validation; runs of one configuration are folded to their mean. A configuration that differs
outside the searched space (a baseline with another schedule) is left out. A parameter that a configuration does not use
is put at the middle of its range, or is a level of its own: the parameter that switches it is in the model and carries
the difference.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd

from . import statistics as st
from .choice import choose
from .tables import Parameter, Study, positions

NEEDED = 24  # configurations below which no test could say anything
WEAK = 0.5  # rank correlation of left-out predictions below which sizes and widths are not told
MOST = 400  # configurations in a fit: beyond, a fixed random subset of those with one run
RANDOM_ALONE = 50  # random trials that carry the tests by themselves
MODELLED = ("search", "control", "baseline", "confirm", "probe")
COLUMNS = ["trial", "kind", "state", "config_hash", "score"]
UNSEEING = ("random", "grid")  # strategies that propose without looking at scores
DELTA_IN_SD, DELTA_IN_BEST = 1.25, 0.01


class Model:
    """What the model-based panels share; everything is computed when first asked for."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.parameters = tuple(p for p in study.space if (len(p.values) > 1 if p.kind == "choice" else p.high > p.low))
        rows = study.trials.loc[study.trials["kind"].isin(MODELLED), COLUMNS]
        runs = rows[rows["state"] == "done"]
        lost = rows[rows["state"].isin(["infeasible", "failed"]) & rows["kind"].isin(["search", "control"])]
        kept, self.lost_u, self.elsewhere = self._fold(runs, lost)
        self.frame = kept  # one row per configuration: key, trial, score, seeds, kinds, drawn, u, active

    @property
    def adaptive(self) -> bool:
        """Whether the tests rest on settings that were chosen: by a sampler that saw scores, or around the winner."""
        return not self.tested["drawn"].all()

    @property
    def steered(self) -> bool:
        """Whether any configuration was proposed by a sampler that saw scores."""
        return bool((self.frame["kinds"].map(lambda kinds: "search" in kinds) & ~self.frame["drawn"]).any())

    @property
    def tested(self) -> pd.DataFrame:
        """The configurations that the tests use: those drawn at random (or a grid) when there are enough, else all."""
        drawn = self.frame[self.frame["drawn"]]
        return drawn if len(drawn) >= (RANDOM_ALONE if self.steered else NEEDED) else self.frame

    @property
    def paired(self) -> pd.DataFrame:
        """The configurations that interactions are looked for in: where a sampler saw scores, only those drawn.

        A sampler follows the ridges, so that what one parameter does is told as a product with another.
        """
        return self.frame[self.frame["drawn"]] if self.steered else self.frame

    @cached_property
    def points(self) -> st.Points:
        return self._points(self.frame)

    @cached_property
    def active(self) -> np.ndarray:
        return _stack(self.frame["active"], len(self.parameters)).astype(bool)

    @cached_property
    def process(self) -> st.Process:
        """The smooth fit (Matern-5/2) to all configurations."""
        return st.fit(self.points)

    @cached_property
    def rough(self) -> st.Process:
        """The Matern-3/2 fit, for widths: its draws do not smooth a flat top's shoulders away."""
        return st.fit(self.points, smooth=False)

    @cached_property
    def quality(self) -> float:
        return st.fit_quality(self.process)

    @cached_property
    def feasible(self) -> Callable[[np.ndarray], np.ndarray]:
        u = np.vstack([self.points.u, self.lost_u])
        return st.feasibility(u, np.r_[np.zeros(len(self.points.u), bool), np.ones(len(self.lost_u), bool)])

    @cached_property
    def evidence(self) -> list[tuple[st.Evidence, float]]:
        """(test, Holm's p) per parameter."""
        frame, rng = self.tested, self.stream("importance")
        process = self.process if len(frame) == len(self.frame) else st.fit(self._points(frame))
        active = _stack(frame["active"], len(self.parameters)).astype(bool)
        found = [st.randomisation_test(process, j, active[:, j], rng) for j in range(len(self.parameters))]
        return list(zip(found, st.holm(np.array([e.p for e in found])).tolist()))

    @cached_property
    def effects(self) -> list[st.Interval | None]:
        return st.total_effects(self.process, self.active, self.feasible, self.stream("effects"))

    @cached_property
    def winner(self) -> np.ndarray | None:
        """Where the winner lies; None when it is not a point of the searched space."""
        winner = choose(self.study).winner
        rows = self.frame[self.frame["key"] == winner.key] if winner is not None else self.frame.iloc[:0]
        return None if rows.empty else np.asarray(rows["u"].iloc[0])

    @cached_property
    def widths(self) -> list[st.Slice]:
        """Slices of the rough fit through the winner."""
        assert self.winner is not None
        better = self.study.objective.better
        return st.slices(self.rough, self.winner, better, self.feasible, self.stream("plateau"))

    def volume(self, delta: float) -> tuple[float, float, float]:
        """Share of the searched volume within `delta` of the winner, and its limits."""
        assert self.winner is not None
        rng = self.stream("volume")
        return st.share_near(self.rough, self.winner, self.study.objective.better, self.feasible, delta, rng)

    @cached_property
    def ends(self) -> list[tuple[float, float]]:
        """Per parameter the chance that the best of the slice lies at the lower, and at the upper end."""
        assert self.winner is not None
        better, rng = self.study.objective.better, self.stream("bounds")
        cuts = st.slices(self.process, self.winner, better, self.feasible, rng)
        return [(0.0, 0.0) if p.kind == "choice" else st.chance_at_ends(c) for p, c in zip(self.parameters, cuts)]

    @cached_property
    def pairs(self) -> list[st.Pair] | None:
        frame = self.paired
        p = self._points(frame)
        return st.pairs(p.u, p.y, p.choice, _stack(frame["active"], len(self.parameters)).astype(bool))

    @cached_property
    def seed_sd(self) -> tuple[float, int]:
        """Standard deviation over fresh seeds within configurations, and its degrees of freedom."""
        fresh = self.study.trials[self.study.trials["kind"].isin(["confirm", "probe"])]
        done = fresh[fresh["state"] == "done"]
        return st.pooled_sd([group["score"].to_numpy(float) for _, group in done.groupby("config_hash", sort=True)])

    @cached_property
    def deltas(self) -> tuple[float, float]:
        """(delta, strict): how far below the winner still counts as good.

        strict = max(1 % of the winner's mean, one standard error of it); delta = max(strict, 1.25 seed sd), because
        smaller differences cannot be measured with the seeds that people run.
        """
        winner = choose(self.study).winner
        level = st.t_interval(winner.values(self.study.objective.column)) if winner is not None else None
        sd, _ = self.seed_sd
        if level is None or level.n == 0 or not np.isfinite(sd):
            return float("nan"), float("nan")
        strict = max(DELTA_IN_BEST * abs(level.mean), sd / level.n**0.5)
        return max(strict, DELTA_IN_SD * sd), strict

    def stream(self, purpose: str) -> np.random.Generator:
        seed = self.study.meta.get("seed")
        return st.generator(seed if isinstance(seed, int) and seed >= 0 else 0, purpose)

    def place(self, path: str) -> int | None:
        """Column of a parameter; None for one that cannot vary."""
        return next((j for j, p in enumerate(self.parameters) if p.path == path), None)

    def _points(self, frame: pd.DataFrame) -> st.Points:
        return st.Points(
            _stack(frame["u"], len(self.parameters)),
            frame["score"].to_numpy(dtype=float),
            frame["seeds"].to_numpy(dtype=float),
            tuple(p.kind == "choice" for p in self.parameters),
        )

    def _fold(self, runs: pd.DataFrame, lost: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray, int]:
        """(one row per configuration, coordinates of lost runs, configurations left out as being elsewhere)."""
        both = pd.concat([runs, lost], ignore_index=True)
        u, active = _coordinates(self.study, self.parameters, both)
        context = [_context(self.study, trial) for trial in both["trial"]]
        usual = Counter(c for c, kind in zip(context, both["kind"]) if kind in ("search", "control"))
        home = min(usual, key=lambda c: (-usual[c], c)) if usual else None
        inside = np.isfinite(u).all(1) & np.array([c == home for c in context], dtype=bool)
        strategy = str(self.study.meta.get("strategy") or "")
        drawn = (both["kind"] == "control") | ((both["kind"] == "search") & strategy.startswith(UNSEEING))
        key = both["config_hash"].fillna(both["trial"])
        table = both.assign(key=key, drawn=drawn, u=list(u), active=list(active), inside=inside)
        folded = []
        for name, group in table[: len(runs)].groupby("key", sort=True):
            if group["inside"].all():
                first = group.iloc[0]
                kinds = frozenset(group["kind"])
                folded.append((name, first["trial"], group["score"].mean(), len(group), kinds, group["drawn"].any(),
                               first["u"], first["active"]))  # fmt: skip
        columns = ["key", "trial", "score", "seeds", "kinds", "drawn", "u", "active"]
        frame = pd.DataFrame(folded, columns=columns).astype({"drawn": bool})  # an empty one would pick columns by it
        away = table.loc[: len(runs) - 1].loc[~inside[: len(runs)], "key"].nunique() if len(runs) else 0
        return _subset(frame), u[len(runs) :][inside[len(runs) :]], int(away)


@lru_cache(maxsize=4)  # several panels ask; a study is compared by identity
def model_of(study: Study) -> Model:
    """The study's model."""
    return Model(study)


def _stack(column: pd.Series, width: int) -> np.ndarray:
    return np.array(column.tolist()).reshape(len(column), width)


def _subset(frame: pd.DataFrame) -> pd.DataFrame:
    """At most 400: every configuration with several runs, the rest drawn by the hash of its key, never by score."""
    if len(frame) <= MOST:
        return frame
    digest = frame["key"].map(lambda key: hashlib.sha256(str(key).encode()).hexdigest())
    order = frame.assign(one=frame["seeds"] == 1, digest=digest).sort_values(["one", "digest"], kind="stable")
    return frame.loc[order.index[:MOST].sort_values()].reset_index(drop=True)


def _coordinates(
    study: Study, parameters: tuple[Parameter, ...], trials: pd.DataFrame
) -> tuple[np.ndarray, np.ndarray]:
    """(n, d) coordinates, NaN where a used parameter is missing or out of range, and which are used."""
    u, active = np.full((len(trials), len(parameters)), np.nan), np.zeros((len(trials), len(parameters)), dtype=bool)
    if trials.empty:
        return u, active
    configs = [study.configs.get(trial, {}) for trial in trials["trial"]]
    for j, parameter in enumerate(parameters):
        on = np.array([parameter.active(config) for config in configs])
        placed = positions(study, parameter, trials)
        idle = -1.0 if parameter.kind == "choice" else 0.5
        if parameter.kind != "choice":  # a value may pass an end by one ulp
            placed = np.where((placed > -1e-6) & (placed < 1 + 1e-6), np.clip(placed, 0, 1), np.nan)
        u[:, j], active[:, j] = np.where(on, placed, idle), on
    return u, active


def _context(study: Study, trial: str) -> str:
    """Everything about a configuration that the search did not move."""
    searched = {p.path for p in study.space} | {"train.seed"}
    config: dict[str, Any] = dict(study.configs.get(trial, {}))
    return json.dumps({k: v for k, v in sorted(config.items()) if k not in searched}, default=str)
