"""Every metric that the fresh runs report: winner against default, known or not."""

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from .. import commands
from ..choice import choose
from ..finding import Finding, Refusal
from ..page import Column, notes, table
from ..statistics import Interval, difference
from ..tables import Study
from ..wording import change, count, number, significant, unit


def metrics(study: Study) -> Finding:
    """One row per metric of the reported split that both have on two shared seeds or more."""
    chosen, reported = choose(study), study.reported
    winner, default = chosen.winner, chosen.default
    split = reported.key.partition("_")[0]
    rows = []
    for name in sorted((str(c) for c in study.trials if re.match(rf"metric\.{split}_(?!n_)", str(c))), key=_natural):
        if winner is None or default is None:
            break
        metric, tuned, base = study.metric(name.removeprefix("metric.")), winner.values(name), default.values(name)
        d = difference(tuned, base)
        if d is not None:
            ends = {"diff": d.mean, "diff_lo": d.lo, "diff_hi": d.hi, "moved": d.established}
            means = {"default": float(base.mean()), "tuned": float(tuned.mean()), "n": d.n}
            rows.append({"metric": metric.key, "share": metric.share, **means, **ends})
    if not rows:
        needs = "Needs 2 fresh seeds of the winner and of the default:"
        return Finding("All metrics", "0 metrics", refusal=Refusal(needs, commands.confirm(study)))
    frame = pd.DataFrame(rows)
    moved = int(frame["moved"].sum())
    return Finding(
        title=f"{moved} of {count(len(frame), 'metric')} {'moves' if moved == 1 else 'move'} by more than seed noise",
        used=f"fresh seeds, {reported.split or 'reported'} split",
        frames={"metrics": frame},
        numbers={"moved": moved, "n": len(frame)},
        sentences=("Bold: the interval excludes 0. Intervals are per metric: about 1 in 20 excludes 0 by chance.",),
    )


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sort key under which r5 comes before r10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


def draw(study: Study, finding: Finding) -> Markup:
    def level(key: str) -> Any:
        def show(row: Mapping[str, Any]) -> Markup:
            metric = study.metric(row["metric"])
            return number(row[key], f"{significant(row[key] * metric.scale, 3)}{unit(metric)}")

        return show

    def name(row: Mapping[str, Any]) -> Markup:
        return Markup('<span title="{}">{}</span>').format(row["metric"], study.metric(row["metric"]).label)

    def moved(row: Mapping[str, Any]) -> Markup:
        metric = study.metric(row["metric"])
        text = change(Interval(row["diff"], row["diff_lo"], row["diff_hi"], row["n"]), metric, with_unit=True)
        return Markup("<b>{}</b>").format(text) if row["moved"] else text

    columns = [
        Column("metric", "Metric", name, False),
        Column("default", "Default", level("default")),
        Column("tuned", "Winner", level("tuned")),
        Column("diff", "Change", moved),
        Column("n", "Seeds", lambda row: str(row["n"])),
    ]
    return table("metrics.metrics", finding.frames["metrics"], columns, label="All metrics") + notes(finding.sentences)
