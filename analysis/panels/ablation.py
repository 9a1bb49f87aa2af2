"""What made the difference: from the default to the winner, one change at a time, each step measured."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from .. import arms, commands
from ..choice import choose
from ..finding import Finding, Refusal
from ..page import Axis, Column, bar, notes, table
from ..statistics import Difference, Interval, difference, t_interval
from ..steps import path_between
from ..tables import Metric, Study
from ..wording import agree, change, count, fixed, number, points, score, setting

NAME = "Ablation path"
NEEDED = 2  # shared seeds for a paired interval


def ablation(study: Study) -> Finding:
    """Rows: the default, each change, the winner last; mean, change against the step before and against the default."""
    metric, default, winner = study.reported, arms.default_config(study), arms.winner_config(study)
    chosen = choose(study)
    if not default or not winner or chosen.default is None or chosen.winner is None:
        needs = "Needs fresh runs of a default and of a tuned setting:"
        return Finding(NAME, "0 steps", refusal=Refusal(needs, commands.confirm(study)))
    steps = path_between(study, default, winner)
    levels = [arms.values(study, config, metric.column) for config in (default, *(config for _, config in steps))]
    missing = [path for (path, _), own in zip(steps, levels[1:]) if len(own) < NEEDED]
    if not steps:
        needs = "The winner is the default, so there is no way between them. More trials may find another:"
        return Finding(NAME, "0 steps", refusal=Refusal(needs, commands.extend(study)))
    if missing or len(levels[0]) < NEEDED:
        needs = (
            f"Needs {NEEDED} fresh seeds at each of {count(len(steps), 'step')} from the default to the winner; "
            f"{agree(len(missing), 'lacks', 'lack')} them. This plans the missing runs:"
        )
        return Finding(NAME, f"{len(steps) - len(missing)} of {count(len(steps), 'step')}",
                       refusal=Refusal(needs, commands.plan(study)))  # fmt: skip
    frame = pd.DataFrame(_rows(study, steps, default, levels))
    return Finding(
        title=_title(frame, metric),
        used=f"{count(len(steps), 'change')}, {count(int(frame['n'].min()), 'fresh seed')} each",
        frames={"steps": frame},
        numbers={"metric": metric.key, "axis": _ends(frame)},
        sentences=(
            f"Changes that explain more of the search's scores come first; another order may share the credit "
            f"differently. Changes are paired by seed; those of one step are widened for "
            f"{count(len(steps), 'look')} (Bonferroni).",
        ),
    )


def draw(study: Study, finding: Finding) -> Markup:
    metric, frame = study.reported, finding.frames["steps"]
    axis = Axis(*(end * metric.scale for end in finding.numbers["axis"]))
    start = axis(frame["mean"].iloc[0] * metric.scale)
    digits = 1 if metric.share else 3

    def place(row: Mapping[str, Any]) -> Markup:
        shown = {key: None if row[key] is None else axis(row[key] * metric.scale) for key in ("mean", "lo", "hi")}
        role = {"default": "default", "winner": "winner"}.get(row["role"], "baseline")
        return bar("interval", **shown, role=role, dashed=start,
                   low=fixed(axis.low, digits), high=fixed(axis.high, digits))  # fmt: skip

    def moved(key: str) -> Any:
        def show(row: Mapping[str, Any]) -> Markup:
            if row[key] is None:
                return Markup("start")
            text = change(Interval(row[key], row[f"{key}_lo"], row[f"{key}_hi"], row["n"]), metric)
            excludes = row[f"{key}_lo"] > 0 or row[f"{key}_hi"] < 0
            return Markup("<b>{}</b>").format(text) if excludes else text

        return show

    head = f"{metric.axis}; dashed: default"
    columns = [
        Column("what", "Change", lambda row: row["what"], False),
        Column("from_to", "From → to", lambda row: row["from_to"], False),
        Column("lo", head, place, False, "wide"),
        Column("mean", metric.axis, lambda row: _level(row, metric)),
        Column("step", f"This step{',' if metric.share else ''}{points(metric)}", moved("step")),
        Column("total", f"Since the default{',' if metric.share else ''}{points(metric)}", moved("total")),
    ]
    drawn = table("ablation.steps", frame, columns, label=NAME, sort=False, wide=True)
    return drawn + notes(finding.sentences)


def _rows(
    study: Study, steps: list[tuple[str, dict[str, Any]]], default: Mapping[str, Any], levels: list[pd.Series]
) -> list[dict[str, Any]]:
    rows, before = [], default
    for place, own in enumerate(levels):
        level = t_interval(own)
        step = difference(own, levels[place - 1], comparisons=len(steps)) if place else None
        total = difference(own, levels[0]) if place else None
        path, after = steps[place - 1] if place else ("", default)
        rows.append(
            {
                "role": "default" if not place else "winner" if place == len(steps) else "step",
                "what": "default" if not place else _named(study, path),
                "path": path,
                "from_to": _from_to(before, after, path) if place else "",
                "n": level.n,
                "mean": level.mean,
                "lo": level.lo,
                "hi": level.hi,
                **_three("step", step),
                **_three("total", total),
            }
        )
        before = after
    return rows


def _three(key: str, d: Difference | None) -> dict[str, float]:
    mean, lo, hi = (d.mean, d.lo, d.hi) if d is not None else (math.nan,) * 3
    return {key: mean, f"{key}_lo": lo, f"{key}_hi": hi}


def _named(study: Study, path: str) -> str:
    return path.removesuffix(".*") if path.endswith(".*") else study.named(path)


def _from_to(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> str:
    key = f"{path.removesuffix('.*')}.name" if path.endswith(".*") else path
    ends = [setting(config[key]) if key in config else "absent" for config in (before, after)]
    return " → ".join(ends)


def _ends(frame: pd.DataFrame) -> tuple[float, float]:
    """Of the axis: every mean and limit."""
    known = pd.concat([frame["mean"], frame["lo"], frame["hi"]]).dropna()
    return float(known.min()), float(known.max())


def _level(row: Mapping[str, Any], metric: Metric) -> Markup:
    lo, hi = (math.nan if row[key] is None else row[key] for key in ("lo", "hi"))
    return score(Interval(row["mean"], lo, hi, row["n"]), metric, with_unit=False)


def _title(frame: pd.DataFrame, metric: Metric) -> Markup:
    moved = frame.iloc[1:]
    clear = moved[(moved["step_lo"] > 0) | (moved["step_hi"] < 0)]
    if clear.empty:
        return Markup("No single step from the default to the winner is established")
    best = clear.loc[clear["step"].abs().idxmax()]
    verb = "gains" if metric.better * best["step"] > 0 else "loses"
    shown = fixed(abs(best["step"]) * metric.scale, 1 if metric.share else 3)
    size = number(best["step"], f"{shown}{points(metric, shown)}")
    steps = f"{len(clear)} of {count(len(moved), 'step')} {'is' if len(clear) == 1 else 'are'} established"
    return Markup("The step to {} {} {}; {}").format(best["what"], verb, size, steps)
