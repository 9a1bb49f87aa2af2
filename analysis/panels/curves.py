"""A studied quantity and what it does: the figure of a paper, from arms that share their seeds.

A baseline named "CURVE at LABEL X", as in "xNCE at r_mix 0.01", is a point at X of the curve CURVE.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from .. import commands, sweep_plots
from ..choice import FRESH_NEEDED, Candidate, candidates, choose
from ..finding import Alt, Finding, Refusal
from ..page import Column, figure, more, notes, table
from ..statistics import Interval, difference, generator, pooled_sd, t_interval
from ..tables import Metric, Study
from ..wording import change, count, listing, percent, points, score, significant

NAME = "Studied quantity"
POINT = re.compile(r"(.+) at (.+?) ([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)", re.IGNORECASE)
BESIDE = ("modality_distance", "modality_accuracy", "tail_r1", "rare_map", "common_map")  # shown too, where they vary
FEWEST = 3  # points of a curve
WIDE = 8  # a sweep over this ratio or more is drawn and measured on a logarithmic axis
IN_SD = 1.25  # delta in seed standard deviations: below it no difference is worth a choice
DRAWS = 2000


@dataclass(frozen=True, eq=False)
class Point:
    """A setting of the studied quantity on a curve."""

    curve: str
    x: float
    arm: Candidate


def curves(study: Study) -> Finding:
    """Each curve's mean and interval, its difference to the default, and how wide it stays near the best."""
    label, points = points_of(study)
    drawn = {p.curve for p in points}
    if not drawn:
        needs = (
            f"Needs three settings of one quantity with {FRESH_NEEDED} fresh seeds each, as baselines named "
            "“CURVE at LABEL X”; fresh seeds come from:"
        )
        return Finding(NAME, "0 curves", refusal=Refusal(needs, commands.confirm(study)))
    metrics = _metrics(study, points)
    frame = pd.concat([_measured(study, points, metric) for metric in metrics], ignore_index=True)
    spans = widths(study, points)
    rest = [c.label for c in candidates(study) if c.source == "baseline" and c.label not in set(frame["arm"])]
    level = {c.label: t_interval(c.values(study.reported.column)) for c in candidates(study)}
    others = [Markup("{}: {}").format(name, score(level[name], study.reported)) for name in rest if level[name].n]
    sentences: list[Markup | str] = [_near(row, study.reported) for row in spans.itertuples()]
    sentences.append(
        f"Delta is {IN_SD} seed standard deviations. Shares are of the swept range"
        f"{' on its logarithmic axis' if _log(points) else ''}, "
        "joined by straight lines between the settings that were run, around the best setting of the curve."
    )
    if others:
        sentences.append(Markup("Not on a curve: {}.").format(listing(others, most=6)))
    sharpest = spans.sort_values("share", kind="stable")
    return Finding(
        title=_title(label, sharpest),
        used=f"{count(len(points), 'setting')}, {count(min(len(p.arm.done) for p in points), 'fresh seed')} or more, "
        f"{study.reported.split} split, paired by seed",
        frames={"points": frame, "widths": spans},
        numbers={"label": label, "log": _log(points), "curves": sorted(drawn)},
        sentences=tuple(sentences),
        alts={m.key: _alt(label, frame[frame["metric"] == m.key], m, _log(points)) for m in metrics},
    )


def draw(study: Study, finding: Finding) -> Markup:
    frame, numbers = finding.frames["points"], finding.numbers
    pictures = []
    for place, key in enumerate(dict.fromkeys(frame["metric"])):
        metric = study.metric(key)
        own = frame[frame["metric"] == key]
        shown = own.assign(**{c: own[c] * metric.scale for c in ("mean", "lo", "hi")})
        base = _base(study, metric)
        drawing = sweep_plots.curves(
            shown,
            x_label=numbers["label"] + (" (log)" if numbers["log"] else ""),
            metric=metric.axis,
            log=numbers["log"],
            default=base * metric.scale,
        )
        pictures.append(figure(drawing, f"curves-{place}", finding.alts[key]))
    reported = frame[frame["metric"] == study.reported.key]
    columns = [
        Column("arm", "Setting", lambda row: row["arm"], False),
        Column("mean", f"{study.reported.axis}", lambda row: score(_interval(row), study.reported, with_unit=False)),
        Column("diff", "Minus the default", lambda row: _changed(row, study.reported)),
        Column("n", "Fresh seeds", lambda row: str(row["n"])),
    ]
    listed = table("curves.points", reported, columns, label="Settings")
    return (
        Markup('<div class="grid">{}</div>').format(Markup("").join(pictures))
        + notes(finding.sentences)
        + more("Every setting", listed)
    )


def points_of(study: Study) -> tuple[str, list[Point]]:
    """(label, points of the curves with enough of them): the label with the most points when names hold several."""
    found: dict[str, list[Point]] = {}
    for candidate in candidates(study):
        name = POINT.fullmatch(candidate.label)
        if candidate.source == "baseline" and name and len(candidate.values(study.reported.column)) >= FRESH_NEEDED:
            curve, label, x = name.groups()
            found.setdefault(label, []).append(Point(curve, float(x), candidate))
    best: tuple[str, list[Point]] = ("", [])
    for label in sorted(found):
        sizes = pd.Series([p.curve for p in found[label]]).value_counts()
        kept = [p for p in found[label] if sizes[p.curve] >= FEWEST]
        if len(kept) > len(best[1]):
            best = label, sorted(kept, key=lambda p: (p.curve, p.x))
    return best


def widths(study: Study, points: list[Point]) -> pd.DataFrame:
    """Per curve, the connected range around its best setting that stays within delta of the best setting of all.

    The best of all is chosen by the objective on validation, and compared on the reported split: the highest of many
    means on one split would be a maximum of noise. Columns: curve, best_x, best, low, high, share, share_lo, share_hi,
    delta.
    """
    columns = ["curve", "best_x", "best", "low", "high", "share", "share_lo", "share_hi", "delta"]
    sd, df = pooled_sd([p.arm.values(study.reported.column).to_numpy() for p in points])
    if not df or not sd > 0 or not study.reported.better:
        return pd.DataFrame(columns=columns)
    place, mean, floor = _levels(study, points)
    delta, draws, rows = IN_SD * sd, share_draws(study, points), []
    for curve, shares in draws.items():
        own = np.array([p.curve == curve for p in points])
        low, high = _range(place[own], mean[own], floor - delta)
        top = int(np.flatnonzero(own)[np.argmax(mean[own])])
        ends = (math.exp(low), math.exp(high)) if _log(points) else (low, high)
        lo, hi = np.quantile(shares, [0.025, 0.975])
        share = (high - low) / (place.max() - place.min())
        rows.append((curve, points[top].x, mean[top] * study.reported.better, *ends, share, lo, hi, delta))
    return pd.DataFrame(rows, columns=columns)


def share_draws(study: Study, points: list[Point]) -> dict[str, np.ndarray]:
    """Draws of each curve's share of the swept range, draw i of all curves from the same draw of the means.

    Means are normal around those observed with the pooled seed variance, itself scaled inverse chi-square.
    """
    metric = study.reported
    values = [p.arm.values(metric.column).to_numpy() for p in points]
    sd, df = pooled_sd(values)
    place, mean, _ = _levels(study, points)
    seed = study.meta.get("seed")
    rng = generator(seed if isinstance(seed, int) and seed >= 0 else 0, "curves")
    spread = sd * np.sqrt(df / rng.chisquare(df, DRAWS))
    error = rng.standard_normal((DRAWS, len(points))) / np.sqrt([len(v) for v in values])
    drawn = mean + error * spread[:, None]
    chosen, whole, delta = _chosen(study, points), place.max() - place.min(), IN_SD * sd
    shares = {}
    for curve in dict.fromkeys(p.curve for p in points):
        own = np.array([p.curve == curve for p in points])
        ranges = [_range(place[own], one[own], one[chosen] - delta) for one in drawn]
        shares[curve] = np.array([high - low for low, high in ranges]) / whole
    return shares


def _levels(study: Study, points: list[Point]) -> tuple[np.ndarray, np.ndarray, float]:
    """Places on the axis, means (higher is better), and the mean of the setting that validation chose."""
    x = np.array([p.x for p in points])
    mean = np.array([p.arm.values(study.reported.column).mean() for p in points]) * study.reported.better
    return (np.log(x) if _log(points) else x), mean, float(mean[_chosen(study, points)])


def _chosen(study: Study, points: list[Point]) -> int:
    objective = study.objective
    return int(np.argmax([p.arm.values(objective.column).mean() * objective.better for p in points]))


def _range(place: np.ndarray, mean: np.ndarray, floor: float) -> tuple[float, float]:
    """Ends of the connected part of a polygon, around its highest corner, that is not below `floor`."""
    top = int(np.argmax(mean))
    if mean[top] < floor:
        return float(place[top]), float(place[top])
    ends = []
    for step in (-1, 1):
        at = top
        while 0 <= at + step < len(mean) and mean[at + step] >= floor:
            at += step
        end = place[at]
        if 0 <= at + step < len(mean):
            end += (place[at + step] - place[at]) * (mean[at] - floor) / (mean[at] - mean[at + step])
        ends.append(float(end))
    return ends[0], ends[1]


def _log(points: list[Point]) -> bool:
    x = [p.x for p in points]
    return min(x) > 0 and max(x) / min(x) >= WIDE


def _metrics(study: Study, points: list[Point]) -> list[Metric]:
    """The reported metric, and those beside it that vary."""
    split = study.reported.key.partition("_")[0]
    found = [study.reported]
    for name in BESIDE:
        metric = study.metric(f"{split}_{name}")
        seen = [p.arm.values(metric.column) for p in points]
        if all(len(v) >= FRESH_NEEDED for v in seen) and len({float(v.mean()) for v in seen}) > 1:
            found.append(metric)
    return found


def _measured(study: Study, points: list[Point], metric: Metric) -> pd.DataFrame:
    default = choose(study).default
    base = default.values(metric.column) if default else pd.Series(dtype=float)
    rows = []
    for point in points:
        values = point.arm.values(metric.column)
        level, d = t_interval(values), difference(values, base) if len(base) else None
        ends = (d.mean, d.lo, d.hi) if d is not None and point.arm is not default else (math.nan,) * 3
        rows.append((point.curve, point.x, point.arm.label, metric.key, *_numbers(level), *ends))
    names = ["curve", "x", "arm", "metric", "mean", "lo", "hi", "n", "diff", "diff_lo", "diff_hi"]
    return pd.DataFrame(rows, columns=names)


def _numbers(level: Interval) -> tuple[float, float, float, int]:
    return level.mean, level.lo, level.hi, level.n


def _interval(row: Any) -> Interval:
    return Interval(row["mean"], row["lo"], row["hi"], int(row["n"]))


def _changed(row: Any, metric: Metric) -> Markup | str:
    if row["diff"] is None or math.isnan(row["diff"]):
        return "is the default"
    return change(Interval(row["diff"], row["diff_lo"], row["diff_hi"], int(row["n"])), metric)


def _base(study: Study, metric: Metric) -> float:
    default = choose(study).default
    values = default.values(metric.column) if default else pd.Series(dtype=float)
    return float(values.mean()) if len(values) else math.nan


def _near(row: Any, metric: Metric) -> Markup:
    """How much of the range a curve stays near the best, in words."""
    near, ends = _delta(row.delta, metric), f"95 % interval {percent(row.share_lo)} to {percent(row.share_hi)}"
    if row.share == 0:
        return Markup("{}: no setting within {} of the best, {} of the range.").format(row.curve, near, ends)
    span = f"{significant(row.low)} to {significant(row.high)}"
    return Markup("{}: {} of the range ({}) within {} of the best, {}.").format(
        row.curve, percent(row.share), span, near, ends
    )


def _delta(delta: float, metric: Metric) -> str:
    shown = significant(delta * metric.scale)
    return f"{shown}{points(metric, shown)}"


def _title(label: str, sharpest: pd.DataFrame) -> Markup:
    if sharpest.empty:
        return Markup("Every setting of {} scores the same on all seeds").format(label)
    first, last = sharpest.iloc[0], sharpest.iloc[-1]
    if len(sharpest) == 1:
        return Markup("{} stays near the best over {} of the range of {}").format(
            first["curve"], percent(first["share"]), label
        )
    return Markup("Along {}, {} stays near the best over {} of the range, {} over {}").format(
        label, last["curve"], percent(last["share"]), first["curve"], percent(first["share"])
    )


def _alt(label: str, points: pd.DataFrame, metric: Metric, log: bool) -> Alt:
    parts = [f"x: {label}, {'logarithmic' if log else 'linear'}; y: {metric.axis}, 95 % intervals over fresh seeds."]
    for curve, own in points.groupby("curve", sort=False):
        top = own.loc[(own["mean"] * (metric.better or 1)).idxmax()]
        ends = f"{significant(own['x'].min())} to {significant(own['x'].max())}"
        best = f"{'best' if metric.better else 'highest'} {significant(top['mean'] * metric.scale, 3)}"
        parts.append(f"{curve}: {count(len(own), 'setting')} from {ends}, {best} at {significant(top['x'])}.")
    return Alt(f"{metric.label} along {label}", " ".join(parts))
