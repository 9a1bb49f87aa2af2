"""Does the best lie at an end of a range? By the model, confirmed by reruns; and ends at which every run failed."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from scipy import stats

from .. import commands
from ..choice import best_config, choose
from ..finding import Check, Finding, Refusal, Setting, check
from ..model import NEEDED, WEAK, Model, model_of
from ..page import Column, notes, table
from ..statistics import failing_end
from ..tables import Metric, Parameter, Study, lost_trials, positions
from ..wording import count, listing, percent, points, setting, significant
from .rings import only_change

EDGE = 0.05  # "at an end" = the outer twentieth of the declared scale
INSIDE = (0.15, 0.35)  # from the end: where the probes that confirm it lie
LIKELY, LEVEL_OF_TEST = 0.5, 0.05
TOUCHES, AT, FAILS = "no plateau touches an end of its range", "no best is confirmed at an end", "no end always fails"


def bounds(study: Study) -> Finding:
    """One row per searched range; warns of ends; also adds a column to the settings."""
    trial, config = best_config(study)
    ranges = [p for p in study.space if p.kind != "choice" and p.high > p.low]
    if trial is None or not ranges:
        needs = "Needs a finished trial; none finished:" if ranges else "Needs a searched range; this study has none:"
        command = commands.extend(study) if ranges else commands.widen(study)
        return Finding("Bounds", "0 configurations", refusal=Refusal(needs, command))
    model = model_of(study)
    lacks = _lacks(model)
    rows = [_row(study, model, parameter, config, not lacks) for parameter in ranges]
    raised = [c for parameter, row in zip(ranges, rows) for c in _checks(study, parameter, row)]
    tests = (FAILS,) if lacks else (TOUCHES, AT, FAILS)
    passed = [Check(name) for name in tests if name not in {c.name for c in raised}]
    cells = {p.path: _cell(p, row) for p, row in zip(ranges, rows)}
    return Finding(
        title=_title(study, rows, lacks),
        used=f"{trial}, {count(len(study.searched) + len(lost_trials(study)), 'trial')}",
        frames={"ranges": pd.DataFrame(rows)},
        numbers={"trial": trial, "edge": EDGE, "model": not lacks},
        sentences=tuple(_sentences(lacks)),
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

    def chance(end: str) -> Any:
        key = f"chance_{end}"
        return lambda row: "not modelled" if row[key] is None else f"{round(100 * row[key])} of 100"

    columns = [
        Column("path", "Parameter", lambda row: study.named(row["path"]), False),
        Column("low", "Lower end", lambda row: setting(row["low"], by_path[row["path"]])),
        Column("value", "Winner", lambda row: setting(row["value"], by_path[row["path"]])),
        Column("high", "Upper end", lambda row: setting(row["high"], by_path[row["path"]])),
        Column("chance_lower", "Best at the lower end, chance", chance("lower")),
        Column("chance_upper", "At the upper end, chance", chance("upper")),
        Column("position", "Place in the range, %", place),
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


def _lacks(model: Model) -> str:
    """Why the model says nothing about ends, or nothing."""
    if len(model.frame) < NEEDED:
        return f"{NEEDED} configurations that ran to their end are needed, {len(model.frame)} did"
    if model.points.y.std() == 0 or model.quality < WEAK:
        return "the model predicts left-out configurations poorly"
    if model.winner is None:
        return "no setting of the searched space has fresh seeds yet"
    return ""


def _row(study: Study, model: Model, parameter: Parameter, config: Mapping[str, Any], modelled: bool) -> dict[str, Any]:
    value = config.get(parameter.path) if parameter.active(config) else None
    position = float(parameter.position([value])[0])
    column = model.place(parameter.path) if modelled and math.isfinite(position) else None
    lower, upper = model.ends[column] if column is not None else (math.nan, math.nan)
    p = model.evidence[column][0].p if column is not None else math.nan
    end = None
    if p <= LEVEL_OF_TEST:
        end = "lower" if lower > LIKELY else "upper" if upper > LIKELY else None
    limit = {"lower": parameter.declared_low, "upper": parameter.declared_high, None: None}[end]
    room = limit is not None and (limit < parameter.low if end == "lower" else limit > parameter.high)
    below, above = failing_ends(study, parameter)
    probed = _probed(study, parameter, end) if end else None
    return {
        "path": parameter.path,
        "low": parameter.low,
        "high": parameter.high,
        "value": value,
        "position": position,
        "chance_lower": lower,
        "chance_upper": upper,
        "p": p,
        "end": end,
        "probe_p": probed[0] if probed else math.nan,
        "probe_gain": probed[1] if probed else math.nan,
        "probe_seeds": probed[2] if probed else 0,
        "confirmed": bool(probed and probed[0] <= LEVEL_OF_TEST),
        "room": room,
        "limit": limit,
        "fails_below": None if below is None else parameter.at(below),
        "fails_above": None if above is None else parameter.at(above),
    }


def _probed(study: Study, parameter: Parameter, end: str) -> tuple[float, float, int] | None:
    """(p, gain, seeds) of the end against a quarter of the range inside, by reruns that share seeds; one-sided t."""
    winner = choose(study).winner
    if winner is None:
        return None
    own = study.configs.get(str(winner.runs["trial"].iloc[0]), {})
    fresh = study.trials[study.trials["kind"].isin(["probe", "confirm"]) & (study.trials["state"] == "done")]
    arms: dict[str, list[pd.Series]] = {"end": [], "inside": []}
    for key, runs in fresh.groupby("config_hash", sort=True):
        config = study.configs.get(str(runs["trial"].iloc[0]), {})
        if key != winner.key and only_change(study, own, config) != parameter.path:
            continue
        place = float(parameter.position([config.get(parameter.path)])[0])
        away = place if end == "lower" else 1 - place
        scores = runs.drop_duplicates("seed", keep="last").set_index("seed")["score"].dropna()
        if -0.01 <= away <= EDGE:
            arms["end"].append(scores)
        elif INSIDE[0] <= away <= INSIDE[1]:
            arms["inside"].append(scores)
    best: tuple[float, float, int] | None = None
    for outer in arms["end"]:
        for inner in arms["inside"]:
            shared = outer.index.intersection(inner.index)
            gain = study.objective.better * (outer[shared] - inner[shared]).to_numpy(dtype=float)
            if len(gain) >= 3 and gain.std() > 0 and (best is None or len(gain) > best[2]):
                p = float(stats.ttest_1samp(gain, 0, alternative="greater").pvalue)
                best = (p, float(gain.mean()), len(gain))
    return best


def _title(study: Study, rows: list[dict[str, Any]], lacks: str) -> Markup:
    touching = [study.named(row["path"]) for row in rows if row["end"]]
    failing = [study.named(r["path"]) for r in rows if r["fails_below"] is not None or r["fails_above"] is not None]
    if touching:
        sure = all(row["confirmed"] for row in rows if row["end"])
        words = (
            "The best lies at an end of the range of {}" if sure else "The plateau of {} touches an end of its range"
        )
        return Markup(words).format(listing(touching))
    if failing:
        return Markup("Every run fails at an end of the range of {}").format(listing(failing))
    if lacks:
        return Markup("Bounds are not judged: {}").format(lacks)
    return Markup("No plateau touches an end of its range")


def _sentences(lacks: str) -> list[str]:
    found = [
        "Touches: by the model, the best of the line through the winner lies in the outer "
        f"{percent(EDGE)} of the range more likely than not, and the parameter matters (P at most {LEVEL_OF_TEST}). "
        "It may also say so when the best lies up to a third of the range inside: a hundred trials tell these apart "
        "only where the slope is steep. "
        "At the bound: reruns there beat reruns a quarter of the range inside, on shared seeds. Where the winner lies "
        "says little: a parameter without any effect may end up there, under an adaptive sampler in half of studies.",
        "Fails: at least five runs in a row failed at that end, which chance does in fewer than 1 of 100 studies.",
    ]
    return [f"Not judged by the model: {lacks}.", *found[1:]] if lacks else found


def _checks(study: Study, parameter: Parameter, row: Mapping[str, Any]) -> list[Check]:
    name, raised = study.named(parameter.path), []
    if row["end"]:
        advice = "The declared range ends there, so it cannot be widened."
        if row["room"]:
            advice = "Widen the range (declared limit {limit}): a run beyond settles more than one inside."
        elif not row["confirmed"]:
            advice += " Probes at the end and a quarter inside would tell: <code>{plan}</code>."
        size = max(row["chance_lower"], row["chance_upper"])
        words = "The plateau of <code>{name}</code> touches the {end} end of its range ({bound})."
        if row["confirmed"]:
            words = "The best <code>{name}</code> is at the {end} end of its range ({bound}): confirmed, {gain}."
        raised.append(
            check(
                AT if row["confirmed"] else TOUCHES,
                "record" if row["confirmed"] and not row["room"] else "limits",
                True,
                words, advice, name=name, end=row["end"], plan=commands.plan(study), size=size,
                bound=setting(row["low" if row["end"] == "lower" else "high"], parameter),
                limit=setting(row["limit"], parameter),
                gain=_gain(row, study.objective),
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


def _gain(row: Mapping[str, Any], metric: Metric) -> str:
    if not row["confirmed"]:
        return ""
    shown = significant(row["probe_gain"] * metric.scale)
    return f"{shown}{points(metric, shown)} over {row['probe_seeds']} seeds"


def _cell(parameter: Parameter, row: Mapping[str, Any]) -> Markup:
    if row["value"] is None or (isinstance(row["value"], float) and math.isnan(row["value"])):
        return Markup("not used")
    parts = []
    if row["end"]:
        verb = "at the" if row["confirmed"] else "touches the"
        parts.append(f"▲ {verb} {row['end']} end: {'widen' if row['room'] else 'declared limit'}")
    for side in ("below", "above"):
        if row[f"fails_{side}"] is not None:
            parts.append(f"▲ fails {side} {setting(row[f'fails_{side}'], parameter)}")
    if parts:
        return Markup('<b class="limits">{}</b>').format(Markup("<br>").join(parts))
    known = row["chance_lower"] is not None and not math.isnan(row["chance_lower"])
    return Markup("no") if known else Markup("not judged")
