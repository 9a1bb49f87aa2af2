"""Head, middle and tail: does the average gain cost the rare groups?"""

import math
import re
from collections.abc import Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from .. import commands
from ..choice import Candidate, choose
from ..finding import Alt, Check, Finding, Refusal, check
from ..page import Axis, Column, bar, notes, table
from ..queries import Pair, pair
from ..statistics import Crossed, Difference, Interval, difference, t_interval
from ..tables import Metric, Study
from ..wording import (
    amount,
    change,
    count,
    digits_of,
    fixed,
    limits,
    listing,
    number,
    points,
    score,
    significant,
    whole,
)

RECALL = re.compile(r"r(\d+)")
GROUPS = {"head": "head", "mid": "middle", "tail": "tail"}  # metric prefix -> word
FEW_QUERIES = 30
NAME = "Head, middle, tail"


def groups(study: Study) -> Finding:
    """Score of frequent, middling and rare groups: winner against default on fresh seeds."""
    chosen, split = choose(study), study.reported.key.partition("_")[0]
    name, winner, default = metric_name(study, split), chosen.winner, chosen.default
    if name is None or winner is None:
        needs = "Needs fresh runs of a tuned setting that report head, middle and tail scores; there are none:"
        return Finding(NAME, "0 fresh runs", refusal=Refusal(needs, commands.confirm(study)))
    arms = [c for c in (winner, default) if c is not None]
    fewest = min(len(c.values(f"metric.{split}_{g}_{name}")) for c in arms for g in GROUPS)
    if fewest < 2:
        needs = f"Needs 2 fresh seeds of each with head, middle and tail scores; one has {fewest}:"
        return Finding(NAME, "too few fresh runs", refusal=Refusal(needs, commands.confirm(study)))
    metric = study.metric(f"{split}_{name}")
    kept = pair(study, winner, default) if default is not None and split == "test" and RECALL.fullmatch(name) else None
    sizes = ((study.meta.get("data") or {}).get("health") or {}).get("groups") or {}
    frame = pd.DataFrame([_row(split, name, group, winner, default, metric, kept, sizes) for group in GROUPS])
    return Finding(
        title=_title(frame, metric, default is not None),
        used=f"{count(int(frame['n'].min()), 'fresh seed')}, {study.reported.split or 'reported'} split",
        frames={"groups": frame},
        numbers={
            "metric": metric.key,
            "share": metric.share,
            "query_error": frame["query_error"].max(),
            "visible": _visible(frame),
            "over": "queries and seeds" if kept is not None else "seeds",
        },
        sentences=tuple(_sentences(frame, metric, kept)),
        alts={"groups": Alt("Score by group frequency", _alt(frame, metric))},
        checks=tuple(_checks(frame, metric)),
    )


def draw(study: Study, finding: Finding) -> Markup:
    frame, metric = finding.frames["groups"], study.metric(finding.numbers["metric"])
    ends = pd.concat([frame[f"{arm}{end}"] for arm in ("default", "tuned") for end in ("", "_lo", "_hi")]).dropna()
    low, high = ends.min() * metric.scale, ends.max() * metric.scale
    pad = 0.05 * (high - low) or 0.1
    axis = Axis(math.floor(low - pad), math.ceil(high + pad)) if metric.share else Axis(low - pad, high + pad)
    digits = 1 if metric.share else 3

    def dumbbell(row: Mapping[str, Any]) -> Markup:
        keys = [f"{arm}{end}" for arm in ("default", "tuned") for end in ("", "_lo", "_hi")]
        place = {key: None if row[key] is None else axis(row[key] * metric.scale) for key in keys}
        return bar("dumbbell", **place, low=significant(axis.low, 3), high=significant(axis.high, 3))

    def values(row: Mapping[str, Any]) -> Markup:
        shown = [
            number(row[key], fixed(row[key] * metric.scale, digits))
            for key in ("default", "tuned")
            if row[key] is not None
        ]
        return Markup(" → ").join(shown)

    def moved(row: Mapping[str, Any]) -> Markup:
        if row["queries"] is not None and row["queries"] < FEW_QUERIES:
            return Markup('<span class="few">few</span>')
        if row["diff"] is None:
            return Markup("no default")
        text = change(_change(row), metric)
        return Markup('<b class="changes">■ {}</b>').format(text) if row["worse"] else text

    columns = [
        Column("group", "Group, training samples in a cluster", _group, False),
        Column("queries", "Queries", lambda row: "unknown" if row["queries"] is None else str(int(row["queries"]))),
        Column("tuned_lo", f"{metric.axis}: ○ default, ● tuned", dumbbell, False, "wide"),
        Column("tuned", "Default → tuned", values),
        Column("diff", f"Change{',' if metric.share else ''}{points(metric)}", moved),
    ]
    label = finding.alts["groups"].desc
    return table("groups.groups", frame, columns, label=label, sort=False, wide=True) + notes(finding.sentences)


def metric_name(study: Study, split: str) -> str | None:
    """The metric that exists for all three groups: the objective's own cut-off if there is one, else the first."""
    found = [m[1] for c in study.trials if (m := re.match(rf"metric\.{split}_head_(.+)$", str(c)))]
    whole = [name for name in found if all(f"metric.{split}_{group}_{name}" in study.trials for group in GROUPS)]
    wanted = study.objective.name.rpartition("_")[2]
    return wanted if wanted in whole else min(whole, default=None)


def _row(
    split: str,
    name: str,
    group: str,
    winner: Candidate,
    default: Candidate | None,
    metric: Metric,
    kept: Pair | None,
    sizes: Mapping[str, Any],
) -> dict[str, Any]:
    key = f"metric.{split}_{group}_{name}"
    tuned, base = winner.values(key), default.values(key) if default else pd.Series(dtype=float)
    d: Difference | Crossed | None = difference(tuned, base, comparisons=len(GROUPS))
    crossed = kept and kept.recall(int(name[1:]), group, len(GROUPS))
    d = crossed or d
    a, b = t_interval(tuned), t_interval(base)
    asked = winner.values(f"metric.{split}_n_{group}")
    queries = float(asked.iloc[0]) if len(asked) else math.nan
    established = bool(d and (d.lo > 0 or d.hi < 0) and not queries < FEW_QUERIES)
    own = sizes.get(group) or {}
    return {
        "group": group,
        "smallest": own.get("smallest", math.nan),
        "largest": own.get("largest", math.nan),
        "queries": queries,
        "default": b.mean,
        "default_lo": b.lo,
        "default_hi": b.hi,
        "tuned": a.mean,
        "tuned_lo": a.lo,
        "tuned_hi": a.hi,
        "diff": d.mean if d else math.nan,
        "diff_lo": d.lo if d else math.nan,
        "diff_hi": d.hi if d else math.nan,
        "n": d.n if d else a.n,
        "established": established,
        "worse": established and d is not None and metric.better * d.mean < 0,
        "se_queries": crossed.se_queries if crossed else math.nan,
        "se_seeds": crossed.se_seeds if crossed else math.nan,
        "query_error": math.sqrt(a.mean * (1 - a.mean) / queries) if metric.share and queries > 0 else math.nan,
    }


def _visible(frame: pd.DataFrame) -> float:
    """The smallest change that the widest of the three intervals would show."""
    return float(((frame["diff_hi"] - frame["diff_lo"]) / 2).max())


def _sentences(frame: pd.DataFrame, metric: Metric, kept: Pair | None) -> list[Markup]:
    head = "Groups: thirds of the clusters by number of training samples; head is frequent, tail is rare. "
    over = "Intervals are over seeds, for these queries only; those of the changes are widened for three looks."
    if kept is not None:
        over = (
            "Intervals of the scores are over seeds; those of the changes are over queries and seeds together, for "
            "other queries like these too, and widened for three looks (Bonferroni)."
        )
    found = [Markup("{}{}").format(head, over)]
    visible, noise = _visible(frame), frame["query_error"].max()
    if math.isfinite(visible):
        text = "A change below {} would not show in the group with the widest interval."
        found.append(Markup(text).format(amount(visible, metric)))
    if kept is None and math.isfinite(noise):
        text = "Other queries would move a group's score with a standard error of up to {}."
        found.append(Markup(text).format(amount(noise, metric)))
    return found


def _group(row: Mapping[str, Any]) -> Markup:
    name = GROUPS[row["group"]].capitalize()
    if row["smallest"] is None:
        return Markup("{}").format(name)
    ends = f"{whole(int(row['smallest']))} to {whole(int(row['largest']))}"
    return Markup('{} <span class="ci">{}</span>').format(name, ends)


def _size(row: Mapping[str, Any], metric: Metric) -> Markup:
    shown = fixed(abs(row["diff"]) * metric.scale, digits_of(_change(row), metric))
    return number(row["diff"], f"{shown}{points(metric, shown)}")


def _change(row: Mapping[str, Any]) -> Interval:
    return Interval(row["diff"], row["diff_lo"], row["diff_hi"], row["n"])


def _title(frame: pd.DataFrame, metric: Metric, compared: bool) -> Markup:
    rows = frame.set_index("group").to_dict(orient="index")
    if not compared:
        shown = [number(rows[g]["tuned"], significant(rows[g]["tuned"] * metric.scale, 3)) for g in ("tail", "head")]
        return Markup("The tail scores {} and the head {}; there is no default to compare with").format(*shown)
    moves = []
    for group in ("tail", "head", "mid"):
        row = rows[group]
        if row["established"]:
            verb = "loses" if row["worse"] else "gains"
            moves.append(Markup("the {} {} {}").format(GROUPS[group], verb, _size(row, metric)))
    if not moves:
        return Markup("No change of head, middle or tail is established")
    text = listing(moves)
    return Markup(text[0].upper()) + text[1:]


def _alt(frame: pd.DataFrame, metric: Metric) -> str:
    parts = [f"{metric.axis} by group; hollow is default, filled is tuned."]
    for row in frame.itertuples():
        text = score(Interval(row.tuned, row.tuned_lo, row.tuned_hi, row.n), metric, with_unit=False).striptags()
        before = "" if math.isnan(row.default) else f"{fixed(row.default * metric.scale, 1 if metric.share else 3)} to "
        parts.append(f"{GROUPS[row.group].capitalize()}: {before}{text}.")
    return " ".join(parts)


def _checks(frame: pd.DataFrame, metric: Metric) -> list[Check]:
    checks = []
    for row in frame.to_dict(orient="records"):
        digits = digits_of(_change(row), metric)
        checks.append(
            check(
                f"the {GROUPS[row['group']]} is not down beyond noise", "changes", row["worse"],
                "The {group} loses {amount} {limits}.", "The verdict is about the average over all queries.",
                group=GROUPS[row["group"]], size=row["diff"], amount=_size(row, metric),
                limits=limits(_change(row), metric, digits, flip=row["diff"] < 0),
            )
        )  # fmt: skip
    small = [GROUPS[row.group] for row in frame.itertuples() if row.queries < FEW_QUERIES]
    checks.append(
        check(
            f"every group has {FEW_QUERIES} queries or more", "limits", small, "Few queries in {groups}.",
            "Fewer than {few}: no change is claimed there.", groups=listing(small), few=FEW_QUERIES, size=len(small),
        )
    )  # fmt: skip
    return checks
