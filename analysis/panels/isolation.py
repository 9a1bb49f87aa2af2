"""Score against each parameter: all finished trials, the best of each bucket, failures in their own lane."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from .. import commands, plots
from ..choice import best_config, best_tenth, candidates
from ..finding import Alt, Finding, Refusal, Setting
from ..model import model_of
from ..page import Axis, Column, bar, figure, more, notes, table
from ..statistics import Interval, t_interval
from ..tables import Metric, Parameter, Study, default_value, lost_trials, positions
from ..wording import count, listing, percent, setting, significant, single
from .bounds import failing_ends
from .importance import lacking
from .plateau import TOLD, plateau_of

MOST_FIGURES = 12
MOST_BUCKETS = 10
PER_BUCKET = 3  # fewer trials and a bucket has no best worth drawing
NEEDED = 10  # finished search trials below which the best tenth is a handful


def isolation(study: Study) -> Finding:
    """All finished search trials against each parameter; also adds a column to the settings."""
    metric, trials, lost = study.objective, study.searched, lost_trials(study)
    if len(trials) < PER_BUCKET or not study.space:
        needs = f"Needs {PER_BUCKET} finished search trials; {len(trials)} finished. More trials fill it:"
        if not study.space:
            needs = "Needs a searched parameter; this study has none. Trials of a space with a search section fill it:"
        refused = Refusal(needs, commands.extend(study))
        return Finding("Isolation", count(len(trials), "finished trial"), refusal=refused)
    points = {p.path: _points(study, p, trials, lost) for p in study.space}
    buckets = {p.path: _buckets(study, p, points[p.path]) for p in study.space}
    envelope = pd.concat(buckets.values(), ignore_index=True)
    limits = _shared_range(trials["score"].to_numpy(), envelope, metric)
    outside = int((~trials["score"].between(*limits)).sum())
    title, outer = _title(study, envelope)
    return Finding(
        title=title,
        used=count(len(trials), "finished trial"),
        frames={"points": pd.concat(points.values(), ignore_index=True), "buckets": envelope},
        numbers={"low": limits[0], "high": limits[1], "outside": outside, "failed": len(lost), "outer": outer},
        sentences=(_caption(study, len(trials), outside, len(lost), bool(envelope["lo"].notna().any())),),
        alts={p.path: _alt(study, p, points[p.path], buckets[p.path], limits) for p in study.space},
        settings=() if plateau_of(study).refusal is None else (_best_trials(study),),
    )


def draw(study: Study, finding: Finding) -> Markup:
    metric, numbers = study.objective, finding.numbers
    points, buckets = finding.frames["points"], finding.frames["buckets"]
    pictures, safe = [], _safe(study)
    for place, parameter in enumerate(_by_evidence(study)):
        own = points[points["path"] == parameter.path]
        best = buckets[(buckets["path"] == parameter.path) & (buckets["n"] >= PER_BUCKET)]
        drawing = plots.isolation(
            own.assign(shown=own["score"] * metric.scale),
            best.assign(
                shown=best["score"] * metric.scale, **{c: best[c] * metric.scale for c in ("fresh", "lo", "hi")}
            ),
            parameter=parameter,
            name=study.named(parameter.path),
            default=_default_position(study, parameter),
            metric=metric.axis,
            ylim=(numbers["low"] * metric.scale, numbers["high"] * metric.scale),
            lane=numbers["failed"] > 0,
            plateau=safe.get(parameter.path),
        )
        pictures.append(figure(drawing, f"isolation-{place}", finding.alts[parameter.path]))
    drawn = _grid(pictures[:MOST_FIGURES])
    if len(pictures) > MOST_FIGURES:
        drawn += more(count(len(pictures) - MOST_FIGURES, "more parameter"), _grid(pictures[MOST_FIGURES:]))
    by_path = {parameter.path: parameter for parameter in study.space}
    columns = [
        Column("path", "Parameter", lambda row: study.named(row["path"]), False),
        Column("from", "From", lambda row: setting(row["from"], by_path[row["path"]])),
        Column("to", "To", lambda row: setting(row["to"], by_path[row["path"]])),
        Column("n", "Trials", lambda row: str(row["n"])),
        Column("trial", "Best trial", lambda row: row["trial"], False),
        Column("score", f"Its {metric.axis}", lambda row: single(row["score"], metric)),
    ]
    numbers_table = table("isolation.buckets", buckets, columns, label="Best trial of each bucket")
    return drawn + notes(finding.sentences) + more("Best trial of each bucket", numbers_table)


def _by_evidence(study: Study) -> list[Parameter]:
    """The parameters as declared; where they are more than a page holds, those with evidence of an effect first."""
    model = model_of(study)
    if len(study.space) <= MOST_FIGURES or lacking(study, model) is not None:
        return list(study.space)
    p = {parameter.path: test.p for parameter, (test, _) in zip(model.parameters, model.evidence)}
    return sorted(study.space, key=lambda parameter: p.get(parameter.path, 1.0))


def _safe(study: Study) -> dict[str, tuple[float, float]]:
    """Ends of the safe ranges that are told, as positions."""
    finding = plateau_of(study)
    rows = finding.frames["widths"].to_dict(orient="records") if finding.refusal is None else []
    return {row["path"]: (row["left"], row["right"]) for row in rows if row["gate"] in TOLD and row["kind"] != "choice"}


def _shared_range(scores: np.ndarray, envelope: pd.DataFrame, metric: Metric) -> tuple[float, float]:
    """From the worst of the best three quarters to the best, or to the end of its seed interval, padded."""
    worst = np.quantile(scores, 0.25 if metric.better > 0 else 0.75)
    best = scores.max() if metric.better > 0 else scores.min()
    low, high = min(worst, best), max(worst, best)
    room = high - low  # a very wide interval may leave the axis
    if envelope["hi"].notna().any():
        high = max(high, min(high + room, envelope["hi"].max()))
        low = min(low, max(low - room, envelope["lo"].min()))
    pad = 0.08 * (high - low) or 0.05 * abs(high) or 0.01
    return float(low - pad), float(high + pad)


def _points(study: Study, parameter: Parameter, trials: pd.DataFrame, lost: pd.DataFrame) -> pd.DataFrame:
    both = pd.concat([trials.assign(failed=False), lost.assign(failed=True, score=math.nan)], ignore_index=True)
    placed = both.copy().assign(path=parameter.path, position=positions(study, parameter, both))
    return placed.loc[placed["position"].notna(), ["path", "trial", "position", "score", "failed"]]


def _buckets(study: Study, parameter: Parameter, points: pd.DataFrame) -> pd.DataFrame:
    """Best trial of each bucket; `fresh`, `lo`, `hi` from fresh seeds of the same configuration where there are any."""
    good = points[~points["failed"]]
    edges = _edges(parameter, len(good))
    place = np.clip(np.searchsorted(edges, good["position"], side="right") - 1, 0, len(edges) - 2)
    fresh = {c.trial: t_interval(c.values(study.objective.column)) for c in candidates(study)}
    rows = []
    for bucket in range(len(edges) - 1):
        inside = good[place == bucket]
        if inside.empty:
            continue
        best = inside.loc[(inside["score"] * study.objective.better).idxmax()]
        interval = fresh.get(best["trial"], Interval(math.nan, math.nan, math.nan, 0))
        rows.append(
            {
                "path": parameter.path,
                "bucket": bucket,
                "from": _edge(parameter, edges[bucket]),
                "to": _edge(parameter, edges[bucket + 1], upper=True),
                "n": len(inside),
                "trial": best["trial"],
                "position": float(best["position"]),
                "score": float(best["score"]),
                "fresh": interval.mean,
                "lo": interval.lo,
                "hi": interval.hi,
            }
        )
    columns = ["path", "bucket", "from", "to", "n", "trial", "position", "score", "fresh", "lo", "hi"]
    return pd.DataFrame(rows, columns=columns)


def _edges(parameter: Parameter, n: int) -> np.ndarray:
    """Edges of the buckets on the parameter's scale: one per choice or small whole number, else about 5 trials each."""
    if parameter.kind == "choice":
        return np.arange(len(parameter.values) + 1) - 0.5
    if parameter.kind == "int" and 0 < parameter.high - parameter.low < MOST_BUCKETS:
        middles = parameter.position(np.arange(parameter.low, parameter.high + 1))
        return np.concatenate([[-0.01], (middles[1:] + middles[:-1]) / 2, [1.01]])
    edges = np.linspace(0, 1, 1 + min(MOST_BUCKETS, max(1, n // 5)))
    edges[[0, -1]] = -0.01, 1.01  # a value may pass an end by one ulp
    return edges


def _edge(parameter: Parameter, edge: float, upper: bool = False) -> Any:
    if parameter.kind == "choice":
        return parameter.values[int(edge - 0.5 if upper else edge + 0.5)]
    value = parameter.at(min(1.0, max(0.0, edge)))
    if parameter.kind == "int":
        return math.floor(value + 1e-9) if upper else math.ceil(value - 1e-9)
    return value


def _title(study: Study, envelope: pd.DataFrame) -> tuple[Markup, list[str]]:
    """In words, and by name: of which parameters the best trial lies in the outermost bucket."""
    outer, inner = [], 0
    for parameter in study.space:
        own = envelope[(envelope["path"] == parameter.path) & (envelope["n"] >= PER_BUCKET)]
        if parameter.kind == "choice" or len(own) < 3:
            continue
        best = own.loc[(own["score"] * study.objective.better).idxmax(), "bucket"]
        if best in (own["bucket"].min(), own["bucket"].max()):
            outer.append(study.named(parameter.path))
        else:
            inner += 1
    if not outer and not inner:
        return Markup("Too few trials per bucket to say where the best ones lie"), outer
    if not outer:
        which = "every parameter" if inner > 1 else "the parameter"
        return Markup("The best trial lies inside the range of {}").format(which), outer
    rest = f", inside for {count(inner, 'other')}" if inner else ""
    return Markup("The best trial lies in the outermost bucket of {}{}").format(listing(outer), rest), outer


def _caption(study: Study, n: int, outside: int, failed: int, intervals: bool) -> str:
    parts = [
        f"Small dots: {count(n, 'finished trial')}, {study.behind} each.",
        f"Larger dots and line: best trial of each bucket with {PER_BUCKET} or more, a maximum of noise.",
    ]
    if intervals:
        parts.append("Hollow dots with bars: mean and 95 % interval of the same setting on fresh seeds.")
    parts.append("Dashed: default.")
    if _safe(study):
        parts.append("Tinted: the safe range around the winner, others as set, by the model.")
    if outside:
        parts.append(f"{count(outside, 'trial')} outside the axis.")
    if failed:
        parts.append(f"Ticks at the foot: {count(failed, 'failed trial')}.")
    strategy = str(study.meta.get("strategy") or "")
    if strategy and not strategy.startswith(("random", "grid")):
        parts.append(f"The sampler ({strategy}) chose where to look: crowding is not evidence.")
    return " ".join(parts)


def _alt(
    study: Study, parameter: Parameter, points: pd.DataFrame, best: pd.DataFrame, limits: tuple[float, float]
) -> Alt:
    metric, name, good = study.objective, study.named(parameter.path), points[~points["failed"]]
    if parameter.kind == "choice":
        ends = f"choices {', '.join(setting(value) for value in parameter.values)}"
    else:
        low, high = setting(parameter.low, parameter), setting(parameter.high, parameter)
        ends = f"{parameter.scale} from {low} to {high}"
    parts = [f"x: {name}, {ends}; y: {metric.axis}; {count(len(good), 'finished trial')}."]
    if len(best):
        top = best.loc[(best["score"] * metric.better).idxmax()]
        at = setting(top["from"], parameter)
        if parameter.kind != "choice":
            value = parameter.at(top["position"])
            at = setting(round(value) if parameter.kind == "int" else value, parameter)
        parts.append(f"Best: {significant(top['score'] * metric.scale, 3)} at {at}, trial {top['trial']}.")
    outside = int((~good["score"].between(*limits)).sum())
    parts.append(f"{outside} outside the axis, {int(points['failed'].sum())} failed.")
    return Alt(f"{metric.label} against {name}", " ".join(parts))


def _default_position(study: Study, parameter: Parameter) -> float:
    """Where the default lies; NaN when it lies outside the searched range."""
    position = float(parameter.position([default_value(study, parameter)[0]])[0])
    inside = math.isfinite(position) if parameter.kind == "choice" else -0.02 <= position <= 1.02
    return position if inside else math.nan


def _grid(pictures: list[Markup]) -> Markup:
    return Markup('<div class="grid">{}</div>').format(Markup("").join(pictures))


def _best_trials(study: Study) -> Setting:
    """Settings column: from where to where the best trials reach. A description, not a safe range."""
    tenth, config = best_tenth(study), best_config(study)[1]
    cells: dict[str, Markup | str] = {}
    values: dict[str, float] = {}
    enough = len(study.searched) >= NEEDED
    for parameter in study.space:
        placed = positions(study, parameter, tenth)
        placed = placed[np.isfinite(placed)]
        if not enough:
            cells[parameter.path] = f"not measured: {count(len(study.searched), 'finished trial')}, {NEEDED} needed"
        elif len(placed) < PER_BUCKET:
            cells[parameter.path] = "few: seldom used by the best trials"
        elif parameter.kind == "choice":
            tally = [(int((placed == place).sum()), setting(value)) for place, value in enumerate(parameter.values)]
            ranked = sorted((-n, name) for n, name in tally if n)
            cells[parameter.path] = listing([f"{name}: {-n} of {len(placed)}" for n, name in ranked], most=5)
            values[parameter.path] = len(ranked) / len(parameter.values)
        else:
            low, high = float(placed.min()), float(placed.max())
            values[parameter.path] = high - low
            cells[parameter.path] = _range_bar(study, parameter, low, high, config)
    note = (
        f"Range of the best trials: smallest to largest value among the best {len(tenth)} of {len(study.searched)} "
        f"finished trials, {study.behind} each. It describes the trials; it is not a measured safe range, which takes "
        "reruns around the winner."
    )
    drawn = enough and any(p.kind != "choice" for p in study.space)
    return Setting(
        "best_trials", "Range of the best trials", cells, values,
        note=note if enough else "", legend=bar("range_legend") if drawn else "",
    )  # fmt: skip


def _range_bar(study: Study, parameter: Parameter, low: float, high: float, config: Mapping[str, Any]) -> Markup:
    axis, first, last = Axis(0, 1), parameter.at(low), parameter.at(high)
    if parameter.kind == "int":
        first, last = round(first), round(last)
    value = float(parameter.position([config.get(parameter.path)])[0]) if parameter.active(config) else math.nan
    below, above = failing_ends(study, parameter)

    def placed(position: float | None) -> float | None:
        return axis(position) if position is not None and math.isfinite(position) else None

    return bar(
        "range",
        low=axis(low),
        high=axis(high),
        best=placed(value),
        default=placed(_default_position(study, parameter)),
        fail_low=placed(below),
        fail_high=placed(above),
        first=setting(parameter.low, parameter),
        last=setting(parameter.high, parameter),
        scale=parameter.scale,
        text=f"{setting(first, parameter)} to {setting(last, parameter)}",
        size=f"×{significant(last / first)}" if parameter.log else f"{percent(high - low)} of range",
    )
