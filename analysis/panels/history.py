"""Whether the search had settled: best score so far. Not a headline; the best of many runs is partly lucky."""

import math

import numpy as np
import pandas as pd
from markupsafe import Markup

from .. import commands, plots
from ..finding import Alt, Finding, Refusal
from ..page import beside, figure
from ..statistics import worst_shown
from ..tables import Study
from ..wording import count, number, points, significant, unit


def history(study: Study) -> Finding:
    """Best score so far over finished runs, in order of completion."""
    metric, done = study.objective, study.finished
    if len(done) < 2:
        needs = f"Needs 2 finished runs; {len(done)} finished. More trials fill it:"
        return Finding(
            "Search history", count(len(done), "finished run"), refusal=Refusal(needs, commands.extend(study))
        )
    ordered = done.sort_values(["end_time", "trial"], kind="stable", ignore_index=True)
    values = ordered["score"].to_numpy()
    best = (np.maximum if metric.better > 0 else np.minimum).accumulate(values)
    at = int(np.argmax(values * metric.better)) + 1
    gained = float(best[-1] - best[math.ceil(0.75 * len(best)) - 1])
    baseline = ordered[(ordered["kind"] == "baseline") & (ordered["name"] == study.default)]
    shown = number(best[-1], f"{significant(best[-1] * metric.scale, 3)}{unit(metric)}")
    when = f"run {at} of {len(done)}"
    title = Markup("The best score of the search, {}, came with {}").format(shown, when)
    tail = Markup("The last quarter of the runs did not improve it.")
    if gained:
        by = significant(abs(gained) * metric.scale)
        size = number(gained, f"{by}{points(metric, by)}")
        tail = Markup("The last quarter of the runs improved it by {}.").format(size)
    desc = (
        f"x: finished runs in order of completion, 1 to {len(done)}; y: {metric.axis}, {study.behind} each. "
        f"{title.striptags()}. {tail.striptags()} "
        f"{count(int((ordered['kind'] == 'baseline').sum()), 'baseline')} hollow."
    )
    frame = pd.DataFrame({"order": np.arange(1, len(ordered) + 1), "score": values, "best": best})
    frame = pd.concat([frame, ordered[["trial", "kind", "name"]]], axis=1)
    end = worst_shown(values, metric.better)
    outside = int((values * metric.better < end * metric.better).sum())
    rest = f" {count(outside, 'run')} beyond the axis." if outside else ""
    return Finding(
        title=title,
        used=count(len(done), "finished run"),
        frames={"runs": frame},
        numbers={
            "best": best[-1],
            "at": at,
            "n": len(done),
            "last_quarter": gained,
            "worst_shown": end,
            "outside": outside,
            "default": float(baseline["score"].iloc[0]) if len(baseline) else math.nan,
        },
        sentences=(
            tail,
            "These are search scores of single runs: the best is a maximum of noise. "
            f"Stopped and failed runs are left out.{rest}",
        ),
        alts={"history": Alt("Best score so far", desc)},
    )


def draw(study: Study, finding: Finding) -> Markup:
    metric = study.objective
    frame = finding.frames["runs"]
    shown = frame["score"].where(frame["score"] * metric.better >= finding.numbers["worst_shown"] * metric.better)
    drawing = plots.history(
        frame.assign(shown=shown * metric.scale, best=frame["best"] * metric.scale),
        metric=metric.axis,
        default=finding.numbers["default"] * metric.scale,
        better=metric.better,
    )
    return beside(figure(drawing, "history-0", finding.alts["history"]), finding.sentences)
