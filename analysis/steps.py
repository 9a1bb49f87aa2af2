"""Settings a step away from others: around a winner, beyond a bound, on the way from a default, at random."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from .probes import SEED
from .tables import Parameter, Study, positions

OFFSETS = (-0.25, -0.10, 0.10, 0.25)  # of the searched range on its declared scale
SHORTEST = 0.05  # a step that the end of the range cuts below this says nothing


def ring(parameter: Parameter, value: Any) -> list[tuple[str, Any]]:
    """(step, value) around a setting: a tenth and a quarter of the range to each side, or every other choice.

    Steps are on the declared scale and end where the searched range ends; functions (`loss.name`) have no neighbours.
    """
    if parameter.kind == "choice":
        others = [v for v in parameter.values if repr(v) != repr(value)]
        return [] if parameter.short == "name" else [(f"= {v}", v) for v in others]
    (here,) = parameter.position([value])
    found: dict[Any, tuple[str, Any]] = {}
    for offset in OFFSETS:
        there = min(max(here + offset, 0.0), 1.0)
        if abs(there - here) < SHORTEST or not np.isfinite(there):
            continue
        moved = legal_value(parameter, parameter.at(there))
        if moved != value:
            found.setdefault(moved, (f"{there - here:+.2f}", moved))
    return list(found.values())


def beyond(parameter: Parameter, side: str) -> list[tuple[str, Any]]:
    """(name, value) at an end of a range, and a tenth and a quarter of it beyond, inside the declared domain."""
    sign, end = (-1, parameter.low) if side == "low" else (1, parameter.high)
    limit = parameter.declared_low if side == "low" else parameter.declared_high
    found = {legal_value(parameter, end): (side, legal_value(parameter, end))}
    for step in (0.10, 0.25):
        value = parameter.at((0.0 if side == "low" else 1.0) + sign * step)
        if limit is None or sign * value > sign * limit:
            value = end if limit is None else limit
        found.setdefault(legal_value(parameter, value), (f"{side} {sign * step:+.2f}", legal_value(parameter, value)))
    return list(found.values())


def path_between(
    study: Study, default: Mapping[str, Any], winner: Mapping[str, Any]
) -> list[tuple[str, dict[str, Any]]]:
    """From the default to the winner, one change at a time: (what changes, configuration after it).

    Another function of a section changes with all its parameters (`schedule.*`). Changes that explain more of the
    scores of the search come first (r-squared of a parabola, or of the groups of a choice); ties go by name.
    """
    differing = {p for p in {*default, *winner} if repr(default.get(p, _Absent)) != repr(winner.get(p, _Absent))} - {
        SEED
    }
    named = {p.partition(".")[0] for p in differing if p.endswith(".name")}
    blocks = {f"{p.partition('.')[0]}.*" if p.partition(".")[0] in named else p for p in differing}
    explained = {p.path: _explained(study, p) for p in study.space}

    def size(block: str) -> float:
        start = block.removesuffix("*") if block.endswith(".*") else block
        return max((r for path, r in explained.items() if path.startswith(start)), default=0.0)

    now, steps = {k: v for k, v in default.items() if k != SEED}, []
    for block in sorted(blocks, key=lambda b: (-size(b), b)):
        now = taking(now, winner, block)
        steps.append((block, now))
    return steps


def taking(config: Mapping[str, Any], source: Mapping[str, Any], block: str) -> dict[str, Any]:
    """A configuration with one block from another: a parameter, or a whole section (`schedule.*`)."""

    def inside(path: str) -> bool:
        return path.startswith(block.removesuffix("*")) if block.endswith(".*") else path == block

    kept = {k: v for k, v in config.items() if not inside(k) and k != SEED}
    return kept | {k: v for k, v in source.items() if inside(k)}


class _Absent:
    """A parameter that a configuration does not have."""


def _explained(study: Study, parameter: Parameter) -> float:
    """Share of the variance of the search's scores that this parameter alone explains."""
    x, y = positions(study, parameter, study.searched), study.searched["score"].to_numpy(dtype=float)
    known = np.isfinite(x)
    x, y = x[known], y[known]
    if len(y) < 5 or y.std() == 0 or len(np.unique(x)) < 2:
        return 0.0
    if parameter.kind == "choice":
        fitted = pd.Series(y).groupby(x).transform("mean").to_numpy()
    else:
        fitted = np.polyval(np.polyfit(x, y, min(2, len(np.unique(x)) - 1)), x)
    return float(1 - ((y - fitted) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def parents_first(space: Sequence[Parameter]) -> list[Parameter]:
    ordered: list[Parameter] = []
    waiting = list(space)
    while waiting:
        ready = [p for p in waiting if not {path for path, _ in p.when} & {w.path for w in waiting}] or waiting
        ordered += ready
        waiting = [p for p in waiting if p not in ready]
    return ordered


def at_random(parameter: Parameter, draw: float) -> Any:
    if parameter.kind == "choice":
        return parameter.values[min(int(draw * len(parameter.values)), len(parameter.values) - 1)]
    if parameter.kind == "int":
        wide = parameter.high + 1 if parameter.log else parameter.high + 1 - parameter.low
        drawn = parameter.low * (wide / parameter.low) ** draw if parameter.log else parameter.low + wide * draw
        return int(min(math.floor(drawn), parameter.high))
    return legal_value(parameter, parameter.at(draw))


def legal_value(parameter: Parameter, value: Any) -> Any:
    """A legal value near this one: whole for whole numbers, four digits for others, never beyond an end."""
    if parameter.kind == "int":
        return round(value)
    if parameter.kind == "float":
        short = float(f"{value:.4g}")
        for end in (parameter.low, parameter.high, parameter.declared_low, parameter.declared_high):
            if end is not None and value == end:
                return float(end)
        return short
    return value
