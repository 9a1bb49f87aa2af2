"""Where the winner lies in each range, and ends at which every run failed."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from .. import commands
from ..choice import best_config
from ..finding import Check, Finding, Refusal, Setting, check
from ..page import Column, notes, table
from ..statistics import failing_end
from ..tables import Parameter, Study, lost_trials, positions
from ..wording import count, listing, percent, setting, significant

EDGE = 0.05  # "at an end" = the outer twentieth of the declared scale
MOST_CHANCE = 0.2  # a short range of whole numbers has nothing but ends
AT_END, FAILS = "no value of the winner lies at an end of its range", "no end of a range always fails"


def bounds(study: Study) -> Finding:
    """One row per searched range; warns of ends; also adds a column to the settings."""
    trial, config = best_config(study)
    ranges = [p for p in study.space if p.kind != "choice" and p.high > p.low]
    if trial is None or not ranges:
        needs = "Needs a finished trial; none finished:" if ranges else "Needs a searched range; this study has none:"
        return Finding("Bounds", "0 configurations", refusal=Refusal(needs, commands.extend(study)))
    rows = [_row(study, parameter, config) for parameter in ranges]
    raised = [c for parameter, row in zip(ranges, rows) for c in _checks(study, parameter, row)]
    passed = [Check(name) for name in (AT_END, FAILS) if name not in {c.name for c in raised}]
    touching = [study.named(row["path"]) for row in rows if row["end"]]
    title = Markup("The winner lies inside every searched range")
    if touching:
        title = Markup("The winner sits at an end of the range of {}").format(listing(touching))
    cells = {p.path: _cell(p, row) for p, row in zip(ranges, rows)}
    return Finding(
        title=title,
        used=f"{trial}, {count(len(study.searched) + len(lost_trials(study)), 'trial')}",
        frames={"ranges": pd.DataFrame(rows)},
        numbers={"trial": trial, "edge": EDGE},
        sentences=(
            f"At an end: in the outer {percent(EDGE)} of the searched range on its declared scale. A parameter without "
            "any effect lands there by chance, more often under an adaptive sampler: a reason to look, not a finding. "
            "Fails: at least five runs in a row failed at that end, which chance does in fewer than 1 of 100 studies.",
        ),
        checks=tuple(raised + passed),
        settings=(
            Setting(
                "position",
                "At a bound?",
                {**{p.path: "has no ends" for p in study.space}, **cells},
                {row["path"]: row["position"] for row in rows},
            ),
        ),
    )


def draw(study: Study, finding: Finding) -> Markup:
    by_path = {parameter.path: parameter for parameter in study.space}

    def place(row: Mapping[str, Any]) -> str:
        return "not used" if row["position"] is None else significant(100 * row["position"], 3)

    columns = [
        Column("path", "Parameter", lambda row: study.named(row["path"]), False),
        Column("low", "Lower end", lambda row: setting(row["low"], by_path[row["path"]])),
        Column("value", "Winner", lambda row: setting(row["value"], by_path[row["path"]])),
        Column("high", "Upper end", lambda row: setting(row["high"], by_path[row["path"]])),
        Column("position", "Place in the range, %", place),
        Column("chance", "At an end by chance", lambda row: percent(row["chance"])),
        Column("end", "At a bound?", lambda row: _cell(by_path[row["path"]], row), False),
    ]
    return table("bounds.ranges", finding.frames["ranges"], columns, label="Ranges") + notes(finding.sentences)


def failing_ends(study: Study, parameter: Parameter) -> tuple[float | None, float | None]:
    """Positions beyond which every search trial failed, below and above; None where there is no such end."""
    position, failed = _outcomes(study, parameter)
    return failing_end(position, failed, sum(p.kind != "choice" for p in study.space))


def _outcomes(study: Study, parameter: Parameter) -> tuple[np.ndarray, np.ndarray]:
    both = pd.concat([study.searched.assign(failed=False), lost_trials(study).assign(failed=True)], ignore_index=True)
    position, failed = positions(study, parameter, both), both["failed"].to_numpy(dtype=bool)
    known = np.isfinite(position)
    return position[known], failed[known]


def _chance_at_an_end(parameter: Parameter) -> float:
    """How often a value drawn from the whole range lands in its outer twentieths."""
    if parameter.kind != "int":
        return 2 * EDGE
    whole = np.arange(parameter.low, parameter.high + 1)
    weight = np.log1p(1 / whole) if parameter.log else np.ones(len(whole))
    place = parameter.position(whole)
    return float(weight[(place <= EDGE) | (place >= 1 - EDGE)].sum() / weight.sum())


def _row(study: Study, parameter: Parameter, config: Mapping[str, Any]) -> dict[str, Any]:
    value = config.get(parameter.path) if parameter.active(config) else None
    position = float(parameter.position([value])[0])
    end = "lower" if position <= EDGE else "upper" if position >= 1 - EDGE else None
    limit = {"lower": parameter.declared_low, "upper": parameter.declared_high, None: None}[end]
    room = limit is not None and (limit < parameter.low if end == "lower" else limit > parameter.high)
    below, above = failing_ends(study, parameter)
    return {
        "path": parameter.path,
        "low": parameter.low,
        "high": parameter.high,
        "value": value,
        "position": position,
        "end": end,
        "room": room,
        "limit": limit,
        "chance": _chance_at_an_end(parameter),
        "fails_below": None if below is None else parameter.at(below),
        "fails_above": None if above is None else parameter.at(above),
    }


def _checks(study: Study, parameter: Parameter, row: Mapping[str, Any]) -> list[Check]:
    name, raised = study.named(parameter.path), []
    if row["end"]:
        advice = "The declared range ends there, so it cannot be widened."
        if row["room"]:
            advice = "To find out whether it matters, widen the range (declared limit {limit})."
        raised.append(
            check(
                AT_END, "limits" if row["room"] and row["chance"] <= MOST_CHANCE else "record", True,
                "The winner's <code>{name}</code> sits at the {end} end of its range ({value}, end {bound}).",
                "Without any effect it would be at an end in {chance} of random searches. " + advice,
                name=name, end=row["end"], value=setting(row["value"], parameter), chance=percent(row["chance"]),
                bound=setting(row["low" if row["end"] == "lower" else "high"], parameter),
                limit=setting(row["limit"], parameter), size=1 - row["chance"],
            )
        )  # fmt: skip
    position, _ = _outcomes(study, parameter)
    for side, key in (("below", "fails_below"), ("above", "fails_above")):
        if row[key] is None:
            continue
        cut = float(parameter.position([row[key]])[0])
        n = int((position < cut - 1e-9).sum() if side == "below" else (position > cut + 1e-9).sum())
        raised.append(
            check(
                FAILS, "limits", n, "All {n} runs with <code>{name}</code> {side} {cut} failed.",
                "Stay clear of it: the cliff may move with the seed, the data and the batch.",
                n=n, name=name, side=side, cut=setting(row[key], parameter),
            )
        )  # fmt: skip
    return raised


def _cell(parameter: Parameter, row: Mapping[str, Any]) -> Markup:
    if row["value"] is None or (isinstance(row["value"], float) and math.isnan(row["value"])):
        return Markup("not used")
    parts = []
    if row["end"]:
        parts.append(f"▲ {row['end']} end: {'widen' if row['room'] else 'declared limit'}")
    for side in ("below", "above"):
        if row[f"fails_{side}"] is not None:
            parts.append(f"▲ fails {side} {setting(row[f'fails_{side}'], parameter)}")
    return Markup('<b class="limits">{}</b>').format(Markup("<br>").join(parts)) if parts else Markup("no")
