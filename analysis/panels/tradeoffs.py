"""What is paid for what: retrieval, the tail and the modality distance of settings with fresh seeds, and dominance."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from .. import commands, plots
from ..choice import Candidate, candidates, choose
from ..finding import Alt, Check, Finding, Refusal, check
from ..page import Column, beside, figure, table
from ..statistics import Interval, difference, t_interval
from ..tables import Metric, Study
from ..wording import change, count, listing, score, setting, significant
from .groups import metric_name

NAME = "Trade-offs"
ALONG = "loss.r_mix"
MOST_DRAWN, MOST_METRICS = 8, 4
ROLES = {"win": "winner", "second": "runner-up", "default": "default"}


def tradeoffs(study: Study) -> Finding:
    """Every setting with fresh seeds by every metric that is traded; who is at least as good in all of them?"""
    metrics = _metrics(study)
    found = [c for c in candidates(study) if all(len(c.values(m.column)) >= 2 for m in metrics)]
    if len(found) < 2 or len(metrics) < 2:
        needs = "Needs 2 settings with 2 fresh seeds each that report a second score; "
        needs += f"{count(len(found), 'setting')} and {count(len(metrics), 'score')} are there:"
        return Finding(NAME, count(len(found), "setting"), refusal=Refusal(needs, commands.confirm(study)))
    chosen = choose(study)
    roles = {c.key: r for r, c in zip(ROLES, (chosen.winner, chosen.runner_up, chosen.default)) if c is not None}
    looks = len(metrics)
    scores = {c.key: [c.values(m.column) for m in metrics] for c in found}
    behind = _behind(found, scores, metrics)
    above = {key: [o for o in others if _dominates(scores[o.key], scores[key], metrics)]
             for key, others in behind.items()}  # fmt: skip
    rows = [_row(study, c, roles.get(c.key, "dots"), metrics, above[c.key], behind[c.key]) for c in found]
    order = {role: place for place, role in enumerate((*ROLES, "dots"))}
    frame = pd.DataFrame(rows).sort_values("role", key=lambda s: s.map(order), kind="stable", ignore_index=True)
    joined = frame["along"].nunique() >= 3
    free = int(frame["dominated_by"].isna().sum())
    said: list[Markup | str] = [
        f"A setting is dominated when another is at least as good on average in {listing([m.label for m in metrics])} "
        f"and better in one of them beyond noise, paired by seed, for {count(looks, 'look')} (Bonferroni)."
    ]
    if joined:
        said.append(_along(frame, found, metrics))
    return Finding(
        title=_title(frame, metrics, free),
        used=f"{count(len(found), 'setting')} with fresh seeds, {metrics[0].split or 'reported'} split",
        frames={"settings": frame},
        numbers={"metrics": [m.key for m in metrics], "free": free, "along": ALONG if joined else None},
        sentences=tuple(said),
        alts={"plane": _alt(frame, metrics, joined)},
        checks=tuple(_checks(frame)),
    )


def draw(study: Study, finding: Finding) -> Markup:
    metrics = _metrics(study)
    frame, (y, *rest) = finding.frames["settings"], metrics
    x = next((m for m in rest if m.name == "modality_distance"), rest[0])
    joined = finding.numbers["along"] is not None
    own = _drawn(frame, joined)
    shown = pd.DataFrame(
        {
            "label": _labels(own, joined),
            "role": own["role"],
            "x": own[x.key] * x.scale,
            "x_lo": own[f"{x.key}_lo"] * x.scale,
            "x_hi": own[f"{x.key}_hi"] * x.scale,
            "shown": own[y.key] * y.scale,
            "lo": own[f"{y.key}_lo"] * y.scale,
            "hi": own[f"{y.key}_hi"] * y.scale,
        }
    )
    up, left = ("up" if y.better >= 0 else "down"), ("left" if x.better < 0 else "right")
    drawing = plots.trade_off(
        pd.DataFrame({"x": [], "shown": []}),
        shown,
        x_label=x.axis,
        metric=y.axis,
        note=f"better: {up} and {left}",
        joined=joined,
    )

    def level(metric: Metric) -> Any:
        def show(row: Mapping[str, Any]) -> Markup:
            interval = Interval(row[metric.key], row[f"{metric.key}_lo"], row[f"{metric.key}_hi"], row["n"])
            return score(interval, metric, with_unit=False)

        return show

    def front(row: Mapping[str, Any]) -> str:
        if row["dominated_by"] is not None:
            return f"dominated by {row['dominated_by']}"
        return f"behind {row['behind']}, not established" if row["behind"] is not None else "on the front"

    columns = [
        Column("label", "Setting", lambda row: row["label"], False),
        *(Column(metric.key, metric.axis, level(metric)) for metric in metrics),
        Column("dominated_by", "Front", front, False),
        Column("n", "Seeds", lambda row: str(row["n"])),
    ]
    drawn = beside(figure(drawing, "tradeoffs-0", finding.alts["plane"]), finding.sentences)
    return drawn + table("tradeoffs.settings", frame, columns, label=NAME)


def _metrics(study: Study) -> list[Metric]:
    """The objective, further objectives, the tail and the modality distance, on the split of the verdict."""
    split = study.reported.key.partition("_")[0]
    keys = [study.reported.key, *(f"{split}_{o.name}" for o in study.objectives[1:])]
    name = metric_name(study, split)
    keys += [f"{split}_tail_{name}"] if name is not None else []
    keys.append(f"{split}_modality_distance")
    known = [k for k in dict.fromkeys(keys) if f"metric.{k}" in study.trials]
    found = [study.metric(key) for key in known][:MOST_METRICS]
    # closing the gap is what the papers ask for; the ledger does not say so
    return [Metric(m.key, -1, m.share) if m.name == "modality_distance" else m for m in found]


def _behind(
    found: list[Candidate], scores: Mapping[str, list[pd.Series]], metrics: list[Metric]
) -> dict[str, list[Candidate]]:
    """Of each setting: those that are on average at least as good in everything, and better in something."""
    better = np.array([metric.better for metric in metrics])
    means_CM = better * np.array([[float(own.mean()) for own in scores[c.key]] for c in found])
    gains_CCM = means_CM[:, None] - means_CM[None]
    ahead_CC = (gains_CCM.min(2) >= 0) & (gains_CCM.max(2) > 0)
    return {c.key: [found[i] for i in np.flatnonzero(ahead_CC[:, place])] for place, c in enumerate(found)}


def _dominates(a: list[pd.Series], b: list[pd.Series], metrics: list[Metric]) -> bool:
    """Whether one of the metrics is better in a beyond noise; a is on average at least as good in all."""
    for metric, ours, theirs in zip(metrics, a, b):
        d = difference(ours, theirs, comparisons=len(metrics))
        if d is not None and d.established and metric.better * d.mean > 0:
            return True
    return False


def _row(
    study: Study,
    candidate: Candidate,
    role: str,
    metrics: list[Metric],
    above: list[Candidate],
    behind: list[Candidate],
) -> dict[str, Any]:
    config = study.configs.get(str(candidate.runs["trial"].iloc[0]), {})
    along = config.get(ALONG)
    row: dict[str, Any] = {"label": candidate.label, "role": role, "key": candidate.key}
    for metric in metrics:
        level = t_interval(candidate.values(metric.column))
        row |= {metric.key: level.mean, f"{metric.key}_lo": level.lo, f"{metric.key}_hi": level.hi}
    fewest = min(len(candidate.values(m.column)) for m in metrics)
    ends = {"dominated_by": above[0].label if above else None, "behind": behind[0].label if behind else None}
    return {**row, "n": fewest, "along": math.nan if along is None else float(along), **ends}


def _drawn(frame: pd.DataFrame, joined: bool) -> pd.DataFrame:
    return frame.sort_values("along", kind="stable") if joined else frame.head(MOST_DRAWN)


def _labels(own: pd.DataFrame, joined: bool) -> list[str]:
    if not joined:
        return [ROLES.get(role, label) for role, label in zip(own["role"], own["label"])]
    named = [significant(along, 3) if math.isfinite(along) else "none" for along in own["along"]]
    return [f"r_mix {named[0]}", *named[1:]]


def _along(frame: pd.DataFrame, found: list[Candidate], metrics: list[Metric]) -> Markup:
    """What raising r_mix from its lowest to its highest value does to each metric."""
    ordered = frame.dropna(subset="along").sort_values("along", kind="stable")
    low, high = ordered.iloc[0], ordered.iloc[-1]
    by_key = {c.key: c for c in found}
    moves = []
    for metric in metrics:
        top, foot = (by_key[end["key"]].values(metric.column) for end in (high, low))
        d = difference(top, foot, comparisons=len(metrics))
        if d is not None:
            moves.append(Markup("{} {}").format(metric.label, change(d, metric, with_unit=True)))
    text = "From r_mix {} to {}: {}. The settings may differ in other parameters too."
    return Markup(text).format(setting(low["along"]), setting(high["along"]), listing(moves))


def _title(frame: pd.DataFrame, metrics: list[Metric], free: int) -> Markup:
    winner = frame[frame["role"] == "win"]
    by = winner["dominated_by"].iloc[0] if len(winner) else None
    if isinstance(by, str):
        return Markup("The winner is dominated by {}").format(by)
    others = len(frame) - free
    if not others:
        return Markup("No setting is dominated: {} trade {} against each other").format(
            count(free, "setting"), listing([m.label for m in metrics])
        )
    verb = "is" if others == 1 else "are"
    return Markup("{} of {} {} dominated, the winner is not").format(others, count(len(frame), "setting"), verb)


def _alt(frame: pd.DataFrame, metrics: list[Metric], joined: bool) -> Alt:
    y, *rest = metrics
    x = next((m for m in rest if m.name == "modality_distance"), rest[0])
    parts = [f"x: {x.axis}; y: {y.axis}; means and 95 % intervals over fresh seeds."]
    parts += ["A line joins the settings in order of r_mix."] if joined else []
    for row in frame[frame["role"] != "dots"].itertuples():
        values = dict(zip(frame.columns, row[1:]))
        at = f"{significant(values[x.key] * x.scale, 3)}, {significant(values[y.key] * y.scale, 3)}"
        parts.append(f"{ROLES[row.role].capitalize()} at {at}.")
    hidden = 0 if joined else max(0, len(frame) - MOST_DRAWN)
    parts += [f"{count(hidden, 'setting')} not drawn."] if hidden else []
    return Alt("Settings by what they trade", " ".join(parts))


def _checks(frame: pd.DataFrame) -> list[Check]:
    winner = frame[frame["role"] == "win"]
    by = winner["dominated_by"].iloc[0] if len(winner) else None
    return [
        check(
            "the winner is not dominated", "limits", isinstance(by, str), "The winner is dominated by {by}.",
            "It was chosen by validation alone; on the reported split the other is at least as good in everything.",
            by=by, size=1,
        )
    ]  # fmt: skip
