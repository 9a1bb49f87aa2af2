"""Equal budget: what the same number of random trials buys in each study."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from .. import commands, pictures
from ..finding import Alt, Check, Finding, Refusal, check
from ..page import Column, beside, figure, table
from ..panels.budget import MOST, MOST_TRIALS, NEEDED, TOLD, curve_of, random_part
from ..tables import Metric, Study
from ..wording import count, listing, number, significant
from .studies import DATA, Several

NAME = "Equal budget"


def curves(several: Several) -> Finding:
    """One curve a study, of its random trials alone, on the shared validation metric."""
    metric = several.studies[0].objective
    parts = {}
    for label, study in several.each():
        drawn = random_part(study)
        parts[label] = drawn[drawn["state"].isin(["done", "infeasible", "failed"])].head(MOST_TRIALS)
    short = [(label, s) for label, s in several.each() if len(parts[label]) < NEEDED]
    if not several.same_data:
        needs = (
            "The studies have different data, so their scores are not on one scale. A study on the same data fills it:"
        )
        run = commands.elsewhere(several.studies[1], _data(several.studies[0]))
        return Finding(NAME, count(several.data_sets, "data set"), refusal=Refusal(needs, run))
    if short:
        names = listing([f"{label} has {len(parts[label])}" for label, _ in short])
        needs = Markup("Needs {} random trials in each study; {}:").format(NEEDED, names)
        return Finding(NAME, "too few random trials",
                       refusal=Refusal(needs, "\n".join(commands.extend(s) for _, s in short)))  # fmt: skip
    kept = dict(list(parts.items())[:MOST])
    frame = pd.concat([curve_of(label, own, metric) for label, own in kept.items()], ignore_index=True)
    known = pd.concat([frame["median"], frame["lo"], frame["hi"]]).dropna()
    parts_at = _part(frame, metric)
    return Finding(
        title=_title(frame, metric, parts_at),
        used=listing([f"{label}: {len(own)}" for label, own in kept.items()]) + " random trials",
        frames={"curves": frame, "told": frame[frame["k"].isin(TOLD)].reset_index(drop=True)},
        numbers={"low": known.min(), "high": known.max(), "parts_at": parts_at[0], "leader": parts_at[1],
                 "not_drawn": len(parts) - len(kept)},
        sentences=(
            "Median of the best of k trials drawn at random, validation split, one run each; the bands hold for all k "
            "together. A study leads where its lower limit lies above the other's median; overlap says nothing. "
            "Adaptive trials are left out.",
        ),
        alts={"curves": _alt(frame, metric, parts_at)},
        checks=tuple(_checks(several)),
    )  # fmt: skip


def draw(several: Several, finding: Finding) -> Markup:
    frame, metric = finding.frames["curves"], several.studies[0].objective
    low, high = sorted(finding.numbers[end] * metric.scale for end in ("low", "high"))
    pad = 0.05 * (high - low) or 0.01
    shown = frame.assign(
        **{key: frame[key] * metric.scale for key in ("lo", "hi")}, shown=frame["median"] * metric.scale
    )
    if metric.better < 0:
        shown = shown.rename(columns={"lo": "hi", "hi": "lo"})
    drawing = pictures.curves(
        shown.assign(x=shown["k"]),
        metric=metric.axis,
        default=math.nan,
        limits=(low - pad, high + pad),
        parts_at=finding.numbers["parts_at"],
    )

    def value(key: str) -> Any:
        def show(row: Mapping[str, Any]) -> Markup | str:
            return "open" if row[key] is None else number(row[key], significant(row[key] * metric.scale, 3))

        return show

    columns = [
        Column("name", "Study", lambda row: row["name"], False),
        Column("k", "Budget", lambda row: str(row["k"])),
        Column("median", f"Median best, {metric.axis}", value("median")),
        Column("lo", "Worse end", value("lo")),
        Column("hi", "Better end", value("hi")),
    ]
    drawn = beside(figure(drawing, "curves-0", finding.alts["curves"]), finding.sentences)
    return drawn + table("curves.told", finding.frames["told"], columns, label="Budgets")


def _data(study: Study) -> dict[str, Any]:
    """What a study's configurations say about its data."""
    config = next(iter(study.configs.values()), {})
    return {path: value for path, value in config.items() if path.startswith(DATA)}


def _part(frame: pd.DataFrame, metric: Metric) -> tuple[int | None, str | None]:
    """(budget from which on, name): the one curve whose worse limit stays beyond every other's median to the end."""
    wide = {name: own.set_index("k") for name, own in frame.groupby("name", sort=False)}
    last = min(own.index.max() for own in wide.values())
    for name, own in wide.items():
        worse = own["lo"]  # the pessimistic end, whichever way is better
        ahead = np.ones(last, dtype=bool)
        for other, rival in wide.items():
            if other != name:
                gap = metric.better * (worse.loc[:last].to_numpy() - rival["median"].loc[:last].to_numpy())
                ahead &= np.nan_to_num(gap, nan=-1.0) > 0
        if ahead[-1]:
            behind = np.flatnonzero(~ahead)
            return int(behind[-1] + 2) if len(behind) else 1, name
    return None, None


def _title(frame: pd.DataFrame, metric: Metric, parts_at: tuple[int | None, str | None]) -> Markup:
    if parts_at[0] is None:
        return Markup("At equal budget no study leads beyond its band")
    return Markup("At equal budget {} leads from {} on").format(parts_at[1], count(parts_at[0], "trial"))


def _alt(frame: pd.DataFrame, metric: Metric, parts_at: tuple[int | None, str | None]) -> Alt:
    ends = [f"{name} {significant(own['median'].iloc[-1] * metric.scale, 3)} at {own['k'].iloc[-1]}"
            for name, own in frame.groupby("name", sort=False)]  # fmt: skip
    desc = f"x: random trials, 1 to {frame['k'].max()}; y: median best {metric.axis} with simultaneous band. "
    return Alt("Median best by number of trials", f"{desc}{_title(frame, metric, parts_at)}. {', '.join(ends)}.")


def _checks(several: Several) -> list[Check]:
    recipes = {
        (study.configs.get(t, {}).get("train.epochs"), study.configs.get(t, {}).get("train.batch_size"))
        for study in several.studies
        for t in study.searched["trial"]
    }
    return [
        check(
            "a trial costs the same in every study", "limits", len(recipes) > 1,
            "Trials of the studies differ in epochs or batch.", "Equal numbers of trials are then no equal budget.",
            size=len(recipes),
        )
    ]  # fmt: skip
