"""What does it cost? Head, mid and tail, the modality gap, and every other test metric."""

import math
import re
from typing import Any

import pandas as pd
from markupsafe import Markup

from .. import plots
from ..finding import Alt, Check, Finding, Panel, Refusal
from ..page import Axis, Column, bar, beside, figure, notes, table
from ..statistics import Interval, difference, rank_correlation, t_interval
from ..tables import FRESH_NEEDED, Candidate, Metric, Study, candidates, choose, column
from ..wording import change, count, fixed, limits, listing, number, points, scaled, score, significant
from .verdict import confirm_command, extend_command

GROUPS = ("head", "mid", "tail")
NAMES = {"head": "head", "mid": "middle", "tail": "tail"}
FEW_QUERIES = 30
GAP = "modality_distance"


def groups(study: Study) -> Finding:
    """Score of frequent, middling and rare groups: winner against default on fresh seeds."""
    chosen, split = choose(study), study.reported.key.partition("_")[0]
    name = _group_metric(study, split)
    winner, default = chosen.winner, chosen.default
    arms = [c for c in (winner, default) if c is not None]
    used = "0 fresh runs"
    if name is None or winner is None:
        needs = "Needs fresh runs that report head, mid and tail scores; none does:"
        return Finding("Head, mid, tail", used, refusal=Refusal(needs, confirm_command(study)))
    few = min(len(c.values(f"metric.{split}_{g}_{name}")) for c in arms for g in GROUPS)
    if few < 2:
        needs = f"Needs 2 fresh seeds of winner and default with head, mid and tail scores; one of them has {few}:"
        return Finding("Head, mid, tail", used, refusal=Refusal(needs, confirm_command(study)))
    frame = pd.DataFrame([_group_row(study, split, name, group, winner, default) for group in GROUPS])
    metric = study.metric(f"{split}_{name}")
    title = _group_title(frame, metric, default is not None)
    small = [row.group for row in frame.itertuples() if row.queries < FEW_QUERIES]
    sentences = [
        "Groups: thirds of the clusters by number of training samples; head is frequent, tail is rare. "
        "Intervals are over seeds, for these queries only, and widened for three looks (Bonferroni)."
    ]
    noise = frame["query_error"].max()
    if math.isfinite(noise):
        sentences.append(
            Markup("Other queries would move a group's score with a standard error of up to {}{}.").format(
                number(noise, significant(noise * scaled(metric))), points(metric)
            )
        )
    checks = []
    for row in frame.itertuples():
        down = default is not None and row.significant and metric.better * row.diff < 0
        problem = None
        if down:
            problem = Markup("The {} loses {}{}").format(
                row.group, number(row.diff, fixed(abs(row.diff) * scaled(metric), 1)), points(metric)
            ) + Markup(" {}.").format(limits(Interval(row.diff, row.diff_lo, row.diff_hi, row.n), metric, 1, flip=True))
        overall = "while the verdict is about the average over all queries."
        checks.append(Check(f"the {row.group} is not down beyond noise", "changes", problem, overall, size=row.diff))
    checks.append(Check("every group has 30 queries or more", "limits",
                        Markup("Few queries in {}.").format(listing(small)) if small else None,
                        f"Fewer than {FEW_QUERIES}: its row is not a finding."))  # fmt: skip
    n = int(frame["n"].min())
    return Finding(
        title=title,
        used=f"{count(n, 'fresh seed')}{' each' if default is not None else ''}, {study.reported.split or 'reported'} split",
        frames={"groups": frame},
        numbers={"metric": metric.key, "share": metric.share, "n": n, "query_error": noise},
        sentences=tuple(sentences),
        alts={"groups": Alt("Score by group frequency", _group_alt(frame, metric, default is not None))},
        checks=tuple(checks),
    )


def draw_groups(study: Study, finding: Finding) -> Markup:
    frame, metric = finding.frames["groups"], study.metric(finding.numbers["metric"])
    scale = scaled(metric)
    ends = pd.concat([frame[c] for c in ("default", "tuned", "default_lo", "default_hi", "tuned_lo", "tuned_hi")])
    ends = ends.dropna() * scale
    pad = 0.05 * (ends.max() - ends.min()) or 1.0
    axis = Axis(math.floor(ends.min() - pad), math.ceil(ends.max() + pad)) if metric.share else Axis(
        ends.min() - pad, ends.max() + pad
    )  # fmt: skip
    low, high = (significant(v, 3) for v in (axis.low, axis.high))

    def dumbbell(row: dict[str, Any]) -> Markup:
        place = {
            key: None if row[key] is None else axis(row[key] * scale)
            for key in ("default", "default_lo", "default_hi", "tuned", "tuned_lo", "tuned_hi")
        }
        return bar("dumbbell", **place, low=low, high=high)

    def values(row: dict[str, Any]) -> Markup:
        tuned = number(row["tuned"], fixed(row["tuned"] * scale, 1 if metric.share else 3))
        if row["default"] is None:
            return tuned
        return Markup("{} → {}").format(number(row["default"], fixed(row["default"] * scale, 1 if metric.share else 3)), tuned)

    def moved(row: dict[str, Any]) -> Markup:
        if row["queries"] is not None and row["queries"] < FEW_QUERIES:
            return Markup('<span class="few">few</span>')
        if row["diff"] is None:
            return Markup("no default")
        text = change(Interval(row["diff"], row["diff_lo"], row["diff_hi"], row["n"]), metric)
        worse = row["significant"] and metric.better * row["diff"] < 0
        return Markup('<b class="changes">■ {}</b>').format(text) if worse else text

    suffix = ", %" if metric.share else ""
    columns = [
        Column("group", "Group", lambda row: NAMES[row["group"]].capitalize(), False),
        Column("queries", "Queries", lambda row: "unknown" if row["queries"] is None else str(int(row["queries"]))),
        Column("tuned_lo", f"{metric.label}{suffix}: ○ default, ● tuned", dumbbell, False, "wide"),
        Column("tuned", "Default → tuned", values),
        Column("diff", f"Change{',' + points(metric) if metric.share else ''}", moved),
    ]  # fmt: skip
    drawn = table("groups.groups", frame, columns, label=finding.alts["groups"].desc, sort=False, wide=True)
    return drawn + notes(finding.sentences)


def gap(study: Study) -> Finding:
    """Modality distance against the objective: finished trials, and configurations with fresh seeds."""
    metric, distance = study.objective, study.metric(f"val_{GAP}")
    trials = study.searched.assign(x=pd.to_numeric(column(study.searched, distance.column), errors="coerce"))
    trials = trials[trials["x"].notna()]
    if len(trials) < 10:
        needs = f"Needs 10 finished trials that report {distance.key}; {len(trials)} do."
        return Finding("Modality gap", count(len(trials), "finished trial"), refusal=Refusal(needs, extend_command(study)))
    rows = [_gap_row(study, candidate, distance) for candidate in candidates(study)]
    confirmed = pd.DataFrame(rows, columns=["label", "role", "n", "x", "x_lo", "x_hi", "score", "lo", "hi"])
    confirmed = confirmed[confirmed["n"] > 0].reset_index(drop=True)
    r = rank_correlation(trials["x"].to_numpy(), trials["score"].to_numpy())
    shown = f"rank correlation {fixed(r.mean, 2)} [{fixed(r.lo, 2)}, {fixed(r.hi, 2)}]" if r else "no variation"
    if r is None or r.lo <= 0 <= r.hi:
        title = f"No established link between modality distance and {metric.label}"
    else:
        word = "larger" if r.mean > 0 else "smaller"
        title = f"A {word} modality distance goes with higher {metric.label} among the trials"
    desc = (
        f"x: modality distance on validation, linear; y: {metric.label}{' in percent' if metric.share else ''}. "
        f"{count(len(trials), 'finished trial')}, {shown}. " + " ".join(_gap_words(confirmed, metric))
    )
    sentences: list[Markup | str] = [
        f"Over {count(len(trials), 'finished trial')}: {shown}. The trials were not drawn to test this, so it is a description.",
    ]
    chosen = choose(study)
    if chosen.winner and chosen.default:
        d = difference(chosen.winner.values(distance.column), chosen.default.values(distance.column))
        if d is not None:
            sentences.append(Markup("Winner minus default: {} in modality distance.").format(change(d, distance)))
    if len(confirmed):
        sentences.append("Crosses: 95 % intervals over fresh seeds, validation split.")
    return Finding(
        title=title,
        used=count(len(trials), "finished trial"),
        frames={"trials": trials[["trial", "x", "score"]], "confirmed": confirmed},
        numbers={"rank_correlation": {"mean": r.mean, "lo": r.lo, "hi": r.hi, "n": r.n} if r else None},
        sentences=tuple(sentences),
        alts={"gap": Alt("Modality distance against score", desc)},
    )


def draw_gap(study: Study, finding: Finding) -> Markup:
    metric = study.objective
    scale = scaled(metric)
    points_of = finding.frames["trials"].assign(shown=lambda f: f["score"] * scale)
    confirmed = finding.frames["confirmed"].assign(
        shown=lambda f: f["score"] * scale, lo=lambda f: f["lo"] * scale, hi=lambda f: f["hi"] * scale
    )
    names = {"win": "winner", "second": "runner-up", "default": "default"}
    confirmed = confirmed.assign(label=[names.get(role, label) for role, label in zip(confirmed["role"], confirmed["label"])])
    drawing = plots.trade_off(
        points_of,
        confirmed,
        x_label="modality distance",
        metric=plots.axis_name(metric.label, metric.share),
        note=f"better: {'up' if metric.better > 0 else 'down'} and left",
    )
    return beside(figure(drawing, "gap-0", finding.alts["gap"]), finding.sentences)


def metrics(study: Study) -> Finding:
    """Every metric that fresh runs report on the reported split: winner against default."""
    chosen, reported = choose(study), study.reported
    winner, default = chosen.winner, chosen.default
    if winner is None or default is None or min(len(c.values(reported.column)) for c in (winner, default)) < FRESH_NEEDED:
        needs = f"Needs {FRESH_NEEDED} fresh seeds of winner and default:"
        return Finding("All metrics", "0 metrics", refusal=Refusal(needs, confirm_command(study)))
    split = reported.key.partition("_")[0]
    rows = []
    for name in sorted(c for c in winner.runs if re.match(rf"metric\.{split}_(?!n_)", str(c))):
        metric = study.metric(name.removeprefix("metric."))
        tuned, base = winner.values(name), default.values(name)
        d = difference(tuned, base)
        if d is None:
            continue
        rows.append(
            {"metric": metric.key, "share": metric.share, "default": float(base.mean()), "tuned": float(tuned.mean()),
             "n": d.n, "diff": d.mean, "diff_lo": d.lo, "diff_hi": d.hi, "moved": d.established}
        )  # fmt: skip
    frame = pd.DataFrame(rows)
    moved = int(frame["moved"].sum())
    return Finding(
        title=f"{moved} of {count(len(frame), 'metric')} move by more than seed noise",
        used=f"fresh seeds, {reported.split or 'reported'} split",
        frames={"metrics": frame},
        numbers={"moved": moved, "n": len(frame)},
        sentences=("Intervals are per metric: about 1 in 20 excludes 0 by chance.",),
    )


def draw_metrics(study: Study, finding: Finding) -> Markup:
    def of(row: dict[str, Any]) -> Metric:
        return study.metric(row["metric"])

    def level(key: str) -> Any:
        return lambda row: number(row[key], significant(row[key] * scaled(of(row)), 3) + (" %" if row["share"] else ""))

    def moved(row: dict[str, Any]) -> Markup:
        text = change(Interval(row["diff"], row["diff_lo"], row["diff_hi"], row["n"]), of(row))
        return Markup("<b>{}</b>{}").format(text, points(of(row))) if row["moved"] else text + points(of(row))

    columns = [
        Column("metric", "Metric", lambda row: Markup('<span title="{}">{}</span>').format(row["metric"], of(row).label), False),
        Column("default", "Default", level("default")),
        Column("tuned", "Winner", level("tuned")),
        Column("diff", "Change", moved),
        Column("n", "Seeds", lambda row: str(row["n"])),
    ]
    return table("metrics.metrics", finding.frames["metrics"], columns, label="All metrics") + notes(finding.sentences)


def _group_metric(study: Study, split: str) -> str | None:
    """The metric that exists for head, mid and tail: the objective's own K if there is one, else the first."""
    pattern = re.compile(rf"^metric\.{split}_head_(.+)$")
    names = [m[1] for c in study.trials if (m := pattern.match(str(c)))]
    whole = [n for n in names if all(f"metric.{split}_{g}_{n}" in study.trials for g in GROUPS)]
    wanted = study.objective.name.rpartition("_")[2]
    return next((n for n in whole if n == wanted), min(whole, default=None))


def _group_row(
    study: Study, split: str, name: str, group: str, winner: Candidate, default: Candidate | None
) -> dict[str, Any]:
    key = f"metric.{split}_{group}_{name}"
    tuned, base = winner.values(key), default.values(key) if default else pd.Series(dtype=float)
    d = difference(tuned, base, comparisons=len(GROUPS))
    a, b = t_interval(tuned), t_interval(base)
    sizes = winner.values(f"metric.{split}_n_{group}")
    queries = float(sizes.iloc[0]) if len(sizes) else math.nan
    share = study.metric(key.removeprefix("metric.")).share
    error = math.sqrt(a.mean * (1 - a.mean) / queries) if share and queries > 0 else math.nan
    return {
        "group": group,
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
        "significant": bool(d and d.established and not queries < FEW_QUERIES),
        "query_error": error,
    }


def _group_title(frame: pd.DataFrame, metric: Metric, compared: bool) -> Markup:
    by_group = frame.set_index("group")
    if not compared:
        tail, head = (float(by_group.loc[g, "tuned"]) * scaled(metric) for g in ("tail", "head"))
        return Markup("The tail scores {} and the head {}; there is no default to compare with").format(
            significant(tail, 3), significant(head, 3)
        )
    moves = []
    for group in ("tail", "head", "mid"):
        row = by_group.loc[group]
        if row["significant"]:
            verb = "gains" if metric.better * row["diff"] > 0 else "loses"
            amount = number(row["diff"], fixed(abs(row["diff"]) * scaled(metric), 1 if metric.share else 3))
            moves.append(Markup("the {} {} {}{}").format(NAMES[group], verb, amount, points(metric)))
    if not moves:
        return Markup("No change of head, middle or tail is established")
    text = listing(moves)
    return Markup(str(text)[0].upper() + str(text)[1:])


def _group_alt(frame: pd.DataFrame, metric: Metric, compared: bool) -> str:
    parts = [f"{metric.label} by group{', percent' if metric.share else ''}, hollow is default and filled is tuned."]
    for row in frame.itertuples():
        text = score(Interval(row.tuned, row.tuned_lo, row.tuned_hi, row.n), metric, with_unit=False).striptags()
        before = f"{fixed(row.default * scaled(metric), 1 if metric.share else 3)} to " if compared else ""
        parts.append(f"{row.group.capitalize()}: {before}{text}.")
    return " ".join(parts)


def _gap_row(study: Study, candidate: Candidate, distance: Metric) -> tuple[Any, ...]:
    chosen = choose(study)
    roles = {"win": chosen.winner, "second": chosen.runner_up, "default": chosen.default}
    role = next((name for name, c in roles.items() if c is not None and c.key == candidate.key), "dots")
    x, y = t_interval(candidate.values(distance.column)), t_interval(candidate.values(study.objective.column))
    return (candidate.label, role, min(x.n, y.n), x.mean, x.lo, x.hi, y.mean, y.lo, y.hi)


def _gap_words(confirmed: pd.DataFrame, metric: Metric) -> list[str]:
    names = {"win": "Winner", "second": "Runner-up", "default": "Default"}
    return [
        f"{names[row.role]}: distance {significant(row.x, 3)}, {significant(row.score * scaled(metric), 3)}."
        for row in confirmed.itertuples()
        if row.role in names
    ]


PANELS = {
    "groups": Panel("Head, mid, tail", groups, draw_groups, open=True),
    "gap": Panel("Modality gap", gap, draw_gap),
    "metrics": Panel("All metrics", metrics, draw_metrics),
}
