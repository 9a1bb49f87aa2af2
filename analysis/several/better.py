"""How likely is one study's winner to beat another's, or each study's own default, in a rerun."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from .. import commands
from ..choice import FRESH_NEEDED, choose
from ..finding import Finding, Refusal
from ..page import Column, notes, table
from ..statistics import Difference, chance_of_better, chance_on_average, difference, generator
from ..wording import count, number
from .studies import Several, ranked_winners, scores, winner_of
from .verdict import gains

NAME = "Probability of improvement"


def better(several: Several) -> Finding:
    """On one data set the winners against each other; on several, each winner against its default, and on average."""
    metric = several.metric
    found = _between(several) if several.same_data else _against_defaults(several)
    rng = generator(0, "several.better")
    rows = []
    for first, second, d in found:
        chance = chance_of_better(d, metric.better, rng)
        if chance is not None:
            rows.append((first, second, chance.mean, chance.lo, chance.hi, d.n))
    if not several.same_data and len(found) > 1:
        average = chance_on_average([d for _, _, d in found], metric.better, rng)
        if average is not None:
            rows.append(("on average", "its default", average.mean, average.lo, average.hi, average.n))
    frame = pd.DataFrame(rows, columns=["first", "second", "chance", "lo", "hi", "n"])
    if frame.empty:
        short = [s for s in several.studies if len(scores(winner_of(s), metric)) < FRESH_NEEDED] or several.studies
        needs = f"Needs {FRESH_NEEDED} fresh seeds of what is compared, with scores that differ:"
        return Finding(NAME, "0 comparisons",
                       refusal=Refusal(needs, "\n".join(commands.confirm(s) for s in short)))  # fmt: skip
    top = frame.iloc[-1] if frame["first"].iloc[-1] == "on average" else frame.iloc[0]
    shown = _chance(top.to_dict())
    title = Markup("{} would beat {} in {}").format(
        "A winner" if top["first"] == "on average" else top["first"], top["second"], shown
    )
    scope = "over these data sets; it says nothing about others" if several.data_sets < 3 else "over these data sets"
    said = "Two fresh runs, one of each: how often the first scores better. Limits by posterior draws of mean and "
    said += "spread." + ("" if several.same_data else f" The average is {scope}.")
    return Finding(
        title=title,
        used=f"{count(len(frame), 'comparison')}, fresh seeds",
        frames={"chances": frame},
        numbers={"same_data": several.same_data},
        sentences=(said,),
    )


def draw(several: Several, finding: Finding) -> Markup:
    columns = [
        Column("first", "This", lambda row: row["first"], False),
        Column("second", "Beats", lambda row: row["second"], False),
        Column("chance", "In a rerun", _chance),
        Column("n", "Seeds", lambda row: str(row["n"])),
    ]
    return table("better.chances", finding.frames["chances"], columns, label=NAME) + notes(finding.sentences)


def _chance(row: Mapping[str, Any]) -> Markup:
    text = number(row["chance"], f"{100 * row['chance']:.0f} of 100")
    return Markup('{} <span class="ci">[{}, {}]</span>').format(text, *(f"{100 * row[k]:.0f}" for k in ("lo", "hi")))


def _between(several: Several) -> list[tuple[str, str, Difference]]:
    """Every pair of winners, the better validation score first."""
    metric, ranked = several.metric, ranked_winners(several)
    found = []
    for place, (first, a) in enumerate(ranked):
        for second, b in ranked[place + 1 :]:
            d = difference(scores(a, metric), scores(b, metric))
            if d is not None and d.n >= FRESH_NEEDED:
                found.append((first, second, d))
    return found


def _against_defaults(several: Several) -> list[tuple[str, str, Difference]]:
    defaults = {label: choose(study).default for label, study in several.each()}
    return [
        (label, f"its default, {base.label}", d)
        for label, d in gains(several).items()
        if d.n >= FRESH_NEEDED and (base := defaults[label]) is not None
    ]
