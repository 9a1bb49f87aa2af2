"""What makes runs differ: the configuration or the seed, and how often each would win if the seeds were drawn again."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from .. import commands
from ..choice import Candidate, candidates
from ..finding import Finding, Refusal, check
from ..model import model_of
from ..page import Column, bar, notes, table
from ..statistics import Split, chance_of_first, split
from ..tables import Metric, Study
from ..wording import amount, count, fixed, number, percent, points

NAME = "Variance split"
ROWS, SEEDS = 5, 3
ROWS_FOR_SHARE, SURE_SHARE = 10, 0.9  # fewer configurations: the share's interval spans most of 0 to 1


def variance(study: Study) -> Finding:
    """Shares of configuration and seed in a balanced block of fresh runs, and chances to be first."""
    found, seeds, shared = block(study)
    if len(found) < ROWS or len(seeds) < SEEDS:
        needs = (
            f"Needs {ROWS} configurations with the same {SEEDS} fresh seeds; {len(found) or 'none'} "
            f"{'has' if len(found) == 1 else 'have'} them. More reruns fill it:"
        )
        top = max(ROWS, ROWS_FOR_SHARE) - len(study.meta.get("baselines") or [])
        return Finding(NAME, count(len(found), "configuration"),
                       refusal=Refusal(needs, commands.confirm(study, max(1, top))))  # fmt: skip
    metric = study.objective
    values = [c.values(metric.column) for c in found]
    y = np.array([v[seeds].to_numpy() if shared else v.to_numpy()[: len(seeds)] for v in values])
    parts = split(y, shared)
    told = len(found) >= ROWS_FOR_SHARE or parts.share.lo > SURE_SHARE
    first = chance_of_first(y, parts.seed_sd.mean, parts.df, metric.better, model_of(study).stream("variance"))
    ranking = pd.DataFrame(
        {"label": [c.label for c in found], "mean": y.mean(1), "first": first, "n": y.shape[1]}
    ).sort_values(["first", "label"], ascending=[False, True], ignore_index=True)
    configuration, seed = parts.share.mean, parts.seed_share
    shares = pd.DataFrame(
        {
            "source": ["configuration", "seed, alike for all", "seed, by configuration"],
            "share": [configuration, min(seed, 1 - configuration), max(0.0, 1 - configuration - seed)],
            "lo": [parts.share.lo, np.nan, np.nan],
            "hi": [parts.share.hi, np.nan, np.nan],
        }
    )
    frames = {"first": ranking} | ({"shares": shares} if told else {})
    top = ranking.iloc[0]
    return Finding(
        title=_title(parts, told, metric),
        used=f"{count(len(found), 'configuration')} × {count(len(seeds), 'fresh seed')}{', shared' if shared else ''}",
        frames=frames,
        numbers={
            "configurations": len(found),
            "seeds": len(seeds),
            "shared": shared,
            "share": {"mean": parts.share.mean, "lo": parts.share.lo, "hi": parts.share.hi},
            "seed_sd": {"mean": parts.seed_sd.mean, "lo": parts.seed_sd.lo, "hi": parts.seed_sd.hi},
            "df": parts.df,
            "configuration_sd": parts.configuration_sd,
        },
        sentences=tuple(_sentences(parts, metric, told, len(found))),
        checks=(
            check(
                "one setting would mostly come first again", "limits", top["first"] < 0.5,
                "On other seeds the order of the best would change: {label} would come first in {share} of 100.",
                "The winner is one of several that these seeds cannot tell apart.",
                label=top["label"], share=round(100 * top["first"]), size=1 - top["first"],
            ),
        ),
    )  # fmt: skip


def draw(study: Study, finding: Finding) -> Markup:
    metric = study.objective

    def mean(row: Mapping[str, Any]) -> Markup:
        return number(row["mean"], fixed(row["mean"] * metric.scale, 1 if metric.share else 3))

    columns = [
        Column("label", "Configuration", lambda row: row["label"], False),
        Column("mean", f"Fresh mean, {metric.axis}", mean),
        Column("n", "Seeds", lambda row: str(row["n"])),
        Column("first", "First again, of 100", lambda row: number(row["first"], round(100 * row["first"]))),
    ]  # fmt: skip
    drawn = table("variance.first", finding.frames["first"], columns, label="Chances to come first")
    if "shares" in finding.frames:
        rows, start = [], 0.0
        for row in finding.frames["shares"].to_dict(orient="records"):
            rows.append({"source": row["source"], "start": round(100 * start, 2), "width": round(100 * row["share"], 2),
                         "text": _share(row)})  # fmt: skip
            start += row["share"]
        drawn = bar("stack", rows=rows) + drawn
    return drawn + notes(finding.sentences)


@lru_cache(maxsize=4)  # the panel of flat responses asks too
def block(study: Study) -> tuple[list[Candidate], list[float], bool]:
    """(configurations, seeds, whether they share them): the largest balanced block of fresh runs with a score."""
    column = study.objective.column
    known = [(c, set(c.values(column).index)) for c in candidates(study)]
    known = [(c, seeds) for c, seeds in known if len(seeds) >= SEEDS]
    best: tuple[int, list[Candidate], list[float]] = (0, [], [])
    for seeds in {tuple(sorted(seeds)): seeds for _, seeds in known}.values():
        for k in range(len(seeds), SEEDS - 1, -1):
            own = sorted(seeds)[:k]
            rows = [c for c, theirs in known if theirs.issuperset(own)]
            if len(rows) * k > best[0]:
                best = (len(rows) * k, rows, own)
    _, rows, seeds_ = best
    if len(rows) >= ROWS or len(known) < ROWS:
        return rows, seeds_, True
    return [c for c, _ in known], [float(place) for place in range(min(len(seeds) for _, seeds in known))], False


def _title(parts: Split, told: bool, metric: Metric) -> Markup:
    sd = amount(parts.seed_sd.mean, metric)
    if not told:
        return Markup("The seed alone moves a score by {} (standard deviation)").format(sd)
    share = number(parts.share.mean, percent(parts.share.mean))
    return Markup(
        "{} of what differs between these runs is the configuration; the seed alone moves a score by {}"
    ).format(share, sd)


def _sentences(parts: Split, metric: Metric, told: bool, rows: int) -> list[Markup]:
    sd = parts.seed_sd
    ends = [fixed(v * metric.scale, 2 if metric.share else 4) for v in (sd.mean, sd.lo, sd.hi)]
    found = [
        Markup("Seed standard deviation: {}{} [{}, {}], {} degrees of freedom.").format(
            number(sd.mean, ends[0]), points(metric), ends[1], ends[2], fixed(parts.df, 0)
        )
    ]
    text = "These configurations were chosen for their scores: over all trials the configuration matters more."
    found.append(Markup(text))
    if not told:
        text = (
            "The share of the configuration is not told: {} configurations leave its interval [{}, {}]; {} are needed."
        )
        lo, hi = (percent(v) for v in (parts.share.lo, parts.share.hi))
        found.append(Markup(text).format(rows, lo, hi, ROWS_FOR_SHARE))
    found.append(Markup("The split of the data was the same in all runs; what it adds is not measured."))
    return found


def _share(row: Mapping[str, Any]) -> Markup:
    text = number(row["share"], percent(row["share"]))
    if row["lo"] is None or row["lo"] != row["lo"]:
        return text
    return Markup('{} <span class="ci">[{}, {}]</span>').format(text, percent(row["lo"]), percent(row["hi"]))
