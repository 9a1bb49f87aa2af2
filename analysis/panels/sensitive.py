"""How sensitive is it? Score against each parameter, and where the winner sits in each range."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from .. import plots
from ..finding import Alt, Check, Finding, Panel, Refusal, Setting
from ..page import Axis, Column, bar, figure, more, notes, table
from ..statistics import failing_end, t_interval
from ..tables import Metric, Parameter, Study, best_of_search, best_tenth, candidates, choose, default_value, positions
from ..wording import count, listing, percent, scaled, setting, significant, single
from .verdict import extend_command

MOST_FIGURES = 12
MOST_BUCKETS = 10
PER_BUCKET = 3  # fewer trials and a bucket has no best worth drawing
EDGE = 0.05  # "at the end" = the outer twentieth of the declared scale
NEEDED = 10  # finished search trials below which the best tenth is a handful


def isolation(study: Study) -> Finding:
    """All finished search trials against each parameter, with the best of each bucket."""
    metric, trials, failed = study.objective, study.searched, _failed(study)
    if len(trials) < PER_BUCKET or not study.space:
        needs = f"Needs {PER_BUCKET} finished search trials; {len(trials)} finished. More trials would fill it:"
        if not study.space:
            needs = "Needs a searched parameter; this study searched none. A space file with a search section fills it:"
        return Finding("Isolation", count(len(trials), "finished trial"), refusal=Refusal(needs, extend_command(study)))
    limits = _shared_range(trials["score"].to_numpy(), metric)
    points, buckets, alts = [], [], {}
    for parameter in study.space:
        part = _points(study, parameter, trials, failed)
        best = _buckets(study, parameter, part)
        points.append(part)
        buckets.append(best)
        alts[parameter.path] = _alt(study, parameter, part, best, limits)
    envelope = pd.concat(buckets, ignore_index=True)
    outside = int((~trials["score"].between(*limits)).sum())
    title, outer = _title(study, envelope)
    return Finding(
        title=title,
        used=count(len(trials), "finished trial"),
        frames={"points": pd.concat(points, ignore_index=True), "buckets": envelope},
        numbers={"low": limits[0], "high": limits[1], "outside": outside, "failed": len(failed), "outer": outer},
        sentences=(_caption(study, len(trials), outside, len(failed), bool(envelope["lo"].notna().any())),),
        alts=alts,
        settings=(_best_tenth_column(study, failed),),
    )


def draw_isolation(study: Study, finding: Finding) -> Markup:
    metric = study.objective
    scale = scaled(metric)
    points, buckets = finding.frames["points"], finding.frames["buckets"]
    pictures = []
    for place, parameter in enumerate(study.space):
        own = points[points["path"] == parameter.path].assign(shown=lambda f: f["score"] * scale)
        best = buckets[(buckets["path"] == parameter.path) & (buckets["n"] >= PER_BUCKET)]
        best = best.assign(shown=best["score"] * scale, **{c: best[c] * scale for c in ("fresh", "lo", "hi")})
        drawing = plots.isolation(
            own,
            best,
            parameter=parameter,
            name=study.named(parameter.path),
            default=_default_position(study, parameter),
            metric=plots.axis_name(metric.label, metric.share),
            ylim=(finding.numbers["low"] * scale, finding.numbers["high"] * scale),
            lane=finding.numbers["failed"] > 0,
        )
        pictures.append(figure(drawing, f"isolation-{place}", finding.alts[parameter.path]))
    grid = _grid(pictures[:MOST_FIGURES])
    if len(pictures) > MOST_FIGURES:
        grid += more(f"{len(pictures) - MOST_FIGURES} more parameters", _grid(pictures[MOST_FIGURES:]))
    by_path = {parameter.path: parameter for parameter in study.space}
    columns = [
        Column("path", "Parameter", lambda row: study.named(row["path"]), False),
        Column("from", "From", lambda row: setting(row["from"], by_path[row["path"]])),
        Column("to", "To", lambda row: setting(row["to"], by_path[row["path"]])),
        Column("n", "Trials", lambda row: str(row["n"])),
        Column("trial", "Best trial", lambda row: row["trial"], False),
        Column("score", f"Its {metric.label}{', %' if metric.share else ''}", lambda row: single(row["score"], metric)),
    ]
    numbers = table("isolation.buckets", buckets, columns, label="Best trial of each bucket")
    return grid + notes(finding.sentences) + more("Best trial of each bucket", numbers)


def bounds(study: Study) -> Finding:
    """Where the winner lies in each range, and ends at which every run failed."""
    trial, config = _winner_config(study)
    ranges = [p for p in study.space if p.kind != "choice" and p.high > p.low]
    if trial is None or not ranges:
        needs = "Needs a finished trial; none did." if ranges else "Needs a searched range; this study has none."
        return Finding("Bounds", "0 configurations", refusal=Refusal(needs, extend_command(study)))
    rows, checks, cells, values = [], [], {}, {}
    for parameter in ranges:
        row = _bound_row(study, parameter, config, len(ranges))
        rows.append(row)
        checks += _bound_checks(study, parameter, row)
        cells[parameter.path], values[parameter.path] = _bound_cell(parameter, row), row["position"]
    frame = pd.DataFrame(rows)
    touching = [study.named(r["path"]) for r in rows if r["end"]]
    title = Markup("The winner lies inside every searched range")
    if touching:
        title = Markup("The winner sits at an end of its range for {}").format(listing(touching))
    if not any(check.problem for check in checks):
        checks = [Check("no value of the winner lies at an end of its range"), Check("no end of a range always fails")]
    return Finding(
        title=title,
        used=f"{trial}, {count(len(study.searched) + len(_failed(study)), 'trial')}",
        frames={"ranges": frame},
        numbers={"trial": trial, "edge": EDGE, "chance": 2 * EDGE},
        sentences=(
            f"At an end: in the outer {percent(EDGE)} of the searched range on its declared scale. "
            f"A parameter without any effect ends up there in {percent(2 * EDGE)} of random searches, more often under an "
            "adaptive sampler, so this is a reason to look and not a finding. "
            "Fails: at least five runs in a row failed at that end, and chance would do that less than once in 100 studies.",
        ),
        checks=tuple(checks),
        settings=(
            Setting("position", "At a bound?", {p.path: "has no ends" for p in study.space} | cells, values),
        ),
    )


def draw_bounds(study: Study, finding: Finding) -> Markup:
    by_path = {parameter.path: parameter for parameter in study.space}
    columns = [
        Column("path", "Parameter", lambda row: study.named(row["path"]), False),
        Column("low", "Lower end", lambda row: setting(row["low"], by_path[row["path"]])),
        Column("value", "Winner", lambda row: setting(row["value"], by_path[row["path"]])),
        Column("high", "Upper end", lambda row: setting(row["high"], by_path[row["path"]])),
        Column("position", "Place in the range, %", lambda row: significant(100 * row["position"], 3)
               if row["position"] is not None and math.isfinite(row["position"]) else "not used"),
        Column("end", "At a bound?", lambda row: _bound_cell(by_path[row["path"]], row), False),
    ]  # fmt: skip
    return table("bounds.ranges", finding.frames["ranges"], columns, label="Ranges") + notes(finding.sentences)


def _failed(study: Study) -> pd.DataFrame:
    trials = study.trials
    return trials[(trials["kind"] == "search") & trials["state"].isin(["infeasible", "failed"])]


def _winner_config(study: Study) -> tuple[str | None, Mapping[str, Any]]:
    winner, best = choose(study).winner, best_of_search(study)
    trial = winner.trial if winner else best["trial"] if best is not None else None
    return trial, study.configs.get(str(trial), {})


def _shared_range(scores: np.ndarray, metric: Metric) -> tuple[float, float]:
    """From the worst of the best three quarters to the best, padded."""
    worst, best = np.quantile(scores, 0.25 if metric.better > 0 else 0.75), (scores.max(), scores.min())[metric.better < 0]
    low, high = min(worst, best), max(worst, best)
    pad = 0.08 * (high - low) or 0.05 * abs(high) or 0.01
    return float(low - pad), float(high + pad)


def _points(study: Study, parameter: Parameter, trials: pd.DataFrame, failed: pd.DataFrame) -> pd.DataFrame:
    both = pd.concat([trials.assign(failed=False), failed.assign(failed=True, score=np.nan)], ignore_index=True)
    placed = both.assign(path=parameter.path, position=positions(study, parameter, both))
    return placed.loc[placed["position"].notna(), ["path", "trial", "position", "score", "failed"]]


def _buckets(study: Study, parameter: Parameter, points: pd.DataFrame) -> pd.DataFrame:
    """Best trial of each bucket; `lo`, `hi` from fresh seeds of the same configuration where there are any."""
    good = points[~points["failed"]]
    if parameter.kind == "choice":
        edges = np.arange(len(parameter.values) + 1) - 0.5
    elif parameter.kind == "int" and parameter.high - parameter.low < MOST_BUCKETS:
        whole = np.arange(parameter.low, parameter.high + 1)
        middles = parameter.position(whole)
        edges = np.concatenate([[-0.01], (middles[1:] + middles[:-1]) / 2, [1.01]])
    else:
        edges = np.linspace(0, 1, 1 + min(MOST_BUCKETS, max(1, len(good) // 5)))
        edges[[0, -1]] = -0.01, 1.01  # a value may pass an end by one ulp
    fresh = {c.trial: t_interval(c.values(study.objective.column)) for c in candidates(study)}
    rows = []
    place = np.clip(np.searchsorted(edges, good["position"], side="right") - 1, 0, len(edges) - 2)
    for bucket in range(len(edges) - 1):
        inside = good[place == bucket]
        if inside.empty:
            continue
        best = inside.loc[(inside["score"] * study.objective.better).idxmax()]
        interval = fresh.get(best["trial"], t_interval(np.array([])))
        rows.append(
            {
                "path": parameter.path,
                "bucket": bucket,
                "from": _edge(parameter, edges[bucket]),
                "to": _edge(parameter, edges[bucket + 1], upper=True),
                "n": len(inside),
                "trial": best["trial"],
                "position": float(best["position"]) if parameter.kind != "choice" else float(bucket),
                "score": float(best["score"]),
                "fresh": interval.mean,
                "lo": interval.lo,
                "hi": interval.hi,
            }
        )
    columns = ["path", "bucket", "from", "to", "n", "trial", "position", "score", "fresh", "lo", "hi"]
    return pd.DataFrame(rows, columns=columns)


def _edge(parameter: Parameter, edge: float, upper: bool = False) -> Any:
    if parameter.kind == "choice":
        return parameter.values[int(edge - 0.5 if upper else edge + 0.5)]
    value = parameter.at(min(1.0, max(0.0, edge)))
    if parameter.kind == "int":
        return math.floor(value) if upper else math.ceil(value)
    return value


def _title(study: Study, envelope: pd.DataFrame) -> tuple[Markup, list[str]]:
    """Which parameters have their best trial in the outermost bucket."""
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
        return Markup("The best trial lies inside the range of {}").format(
            "every parameter" if inner > 1 else "the parameter"
        ), outer
    rest = f", inside for {inner} other{'s' if inner > 1 else ''}" if inner else ""
    return Markup("The best trial lies in the outermost bucket of {}{}").format(listing(outer), rest), outer


def _caption(study: Study, n: int, outside: int, failed: int, intervals: bool) -> Markup:
    parts = [f"Dots: {count(n, 'finished trial')}, one run each; larger dots and line: best trial of each bucket with {PER_BUCKET} or more, a maximum of noise."]
    if intervals:
        parts.append("Bars: mean and 95 % interval over fresh seeds of that setting.")
    parts.append("Dashed: default.")
    if outside:
        parts.append(f"{count(outside, 'trial')} outside the axis.")
    if failed:
        parts.append(f"Ticks at the foot: {count(failed, 'failed trial')}.")
    strategy = str(study.meta.get("strategy") or "")
    if strategy and not strategy.startswith(("random", "grid")):
        parts.append(f"The sampler ({strategy}) chose where to look: crowding is not evidence.")
    return Markup(" ").join(Markup("{}").format(part) for part in parts)


def _alt(study: Study, parameter: Parameter, points: pd.DataFrame, best: pd.DataFrame, limits: tuple[float, float]) -> Alt:
    metric, name = study.objective, study.named(parameter.path)
    scale, good = scaled(metric), points[~points["failed"]]
    outside = int((~good["score"].between(*limits)).sum())
    ends = (
        f"choices {', '.join(setting(v) for v in parameter.values)}"
        if parameter.kind == "choice"
        else f"{parameter.scale} from {setting(parameter.low, parameter)} to {setting(parameter.high, parameter)}"
    )
    parts = [f"x: {name}, {ends}; y: {metric.label}{' in percent' if metric.share else ''}, {count(len(good), 'finished trial')}."]
    if len(best):
        top = best.loc[(best["score"] * metric.better).idxmax()]
        at = setting(top["from"], parameter)
        if parameter.kind != "choice":
            at = setting(round(parameter.at(top["position"])) if parameter.kind == "int" else parameter.at(top["position"]), parameter)
        parts.append(f"Best: {significant(top['score'] * scale, 3)} at {at}, trial {top['trial']}.")
    parts.append(f"{outside} outside the axis, {int(points['failed'].sum())} failed.")
    return Alt(f"{metric.label} against {name}", " ".join(parts))


def _default_position(study: Study, parameter: Parameter) -> float:
    value, _ = default_value(study, parameter)
    position = float(parameter.position([value])[0])
    inside = -0.02 <= position <= 1.02 if parameter.kind != "choice" else math.isfinite(position)
    return position if inside else math.nan


def _grid(pictures: list[Markup]) -> Markup:
    return Markup('<div class="grid">{}</div>').format(Markup("").join(pictures))


def _best_tenth_column(study: Study, failed: pd.DataFrame) -> Setting:
    tenth = best_tenth(study)
    enough = len(study.searched) >= NEEDED
    cells: dict[str, Markup | str] = {}
    values: dict[str, float] = {}
    config = _winner_config(study)[1]
    drawn = False
    for parameter in study.space:
        placed = positions(study, parameter, tenth)
        placed = placed[np.isfinite(placed)]
        if not enough:
            cells[parameter.path] = f"not measured: {len(study.searched)} finished trials, {NEEDED} needed"
        elif len(placed) < PER_BUCKET:
            cells[parameter.path] = "few: seldom used by the best trials"
        elif parameter.kind == "choice":
            tally = [int((placed == place).sum()) for place in range(len(parameter.values))]
            ranked = sorted(((-n, setting(v)) for n, v in zip(tally, parameter.values) if n))
            cells[parameter.path] = listing([f"{name}: {-n} of {len(placed)}" for n, name in ranked], most=5)
            values[parameter.path] = sum(1 for n in tally if n) / len(parameter.values)
        else:
            low, high = float(placed.min()), float(placed.max())
            values[parameter.path] = high - low
            cells[parameter.path] = _range_cell(study, parameter, low, high, config, len(study.space))
            drawn = True
    legend = bar("range_legend") if drawn else Markup("")
    note = (
        f"Range of the best tenth: smallest to largest value among the best {len(tenth)} of {len(study.searched)} finished "
        "trials, one run each. It describes the trials; it is not a measured safe range, which takes reruns around the winner."
    )
    return Setting("best_tenth", "Range of the best tenth", cells, values, note=note if enough else "", legend=legend)


def _range_cell(
    study: Study, parameter: Parameter, low: float, high: float, config: Mapping[str, Any], ends: int
) -> Markup:
    axis, first, last = Axis(0, 1), parameter.at(low), parameter.at(high)
    if parameter.kind == "int":
        first, last = round(first), round(last)
    size = f"×{significant(last / first)}" if parameter.log and first > 0 else f"{percent(high - low)} of range"
    value = float(parameter.position([config.get(parameter.path)])[0]) if parameter.active(config) else math.nan
    default = _default_position(study, parameter)
    fails = _failing(study, parameter, ends)
    return bar(
        "range",
        low=axis(low),
        high=axis(high),
        best=axis(value) if math.isfinite(value) else None,
        default=axis(default) if math.isfinite(default) else None,
        fail_low=axis(fails[0]) if fails[0] is not None else None,
        fail_high=axis(fails[1]) if fails[1] is not None else None,
        first=setting(parameter.low, parameter),
        last=setting(parameter.high, parameter),
        scale=parameter.scale,
        text=f"{setting(first, parameter)} to {setting(last, parameter)}",
        size=size,
    )


def _failing(study: Study, parameter: Parameter, ends: int) -> tuple[float | None, float | None]:
    points = _points(study, parameter, study.searched, _failed(study))
    return failing_end(points["position"].to_numpy(), points["failed"].to_numpy(dtype=bool), ends)


def _bound_row(study: Study, parameter: Parameter, config: Mapping[str, Any], ends: int) -> dict[str, Any]:
    value = config.get(parameter.path) if parameter.active(config) else None
    position = float(parameter.position([value])[0])
    end = "lower" if position <= EDGE else "upper" if position >= 1 - EDGE else None
    fails = _failing(study, parameter, ends)
    limit = {"lower": parameter.declared_low, "upper": parameter.declared_high, None: None}[end]
    searched = {"lower": parameter.low, "upper": parameter.high, None: None}[end]
    room = end is not None and limit is not None and (limit < searched if end == "lower" else limit > searched)
    return {
        "path": parameter.path,
        "low": parameter.low,
        "high": parameter.high,
        "value": value,
        "position": position,
        "end": end,
        "room": room,
        "limit": limit,
        "fails_below": None if fails[0] is None else parameter.at(fails[0]),
        "fails_above": None if fails[1] is None else parameter.at(fails[1]),
    }


def _bound_checks(study: Study, parameter: Parameter, row: dict[str, Any]) -> list[Check]:
    checks, name = [], study.named(parameter.path)
    if row["end"]:
        searched = row["low"] if row["end"] == "lower" else row["high"]
        problem = Markup("The winner's <code>{}</code> sits at the {} end of its range ({}, end {}).").format(
            name, row["end"], setting(row["value"], parameter), setting(searched, parameter)
        )
        if row["room"]:
            advice = f"Chance does this in 1 of 10 random searches; to find out, widen it (declared limit {setting(row['limit'], parameter)})."
        else:
            advice = "The declared range ends there, so it cannot be widened."
        checks.append(Check("no value of the winner lies at an end of its range", "limits" if row["room"] else "record",
                            problem, advice, size=1.0))  # fmt: skip
    for side, key in (("below", "fails_below"), ("above", "fails_above")):
        if row[key] is None:
            continue
        points = _points(study, parameter, study.searched, _failed(study))
        cut = float(parameter.position([row[key]])[0])
        beyond = points["position"] < cut - 1e-12 if side == "below" else points["position"] > cut + 1e-12
        problem = Markup("All {} runs with <code>{}</code> {} {} failed.").format(
            int(beyond.sum()), name, side, setting(row[key], parameter)
        )
        checks.append(Check("no end of a range always fails", "limits", problem,
                            "Stay clear of it: the cliff may move with the seed, the data and the batch.", size=float(beyond.sum())))  # fmt: skip
    return checks


def _bound_cell(parameter: Parameter, row: Mapping[str, Any]) -> Markup:
    if row["value"] is None:
        return Markup("not used")
    parts = []
    if row["end"]:
        parts.append(f"▲ {row['end']} end: {'widen' if row['room'] else 'declared limit'}")
    if row["fails_below"] is not None:
        parts.append(f"▲ fails below {setting(row['fails_below'], parameter)}")
    if row["fails_above"] is not None:
        parts.append(f"▲ fails above {setting(row['fails_above'], parameter)}")
    if not parts:
        return Markup("no")
    return Markup('<b class="limits">{}</b>').format(Markup("<br>").join(parts))


PANELS = {
    "isolation": Panel("Isolation", isolation, draw_isolation, open=True),
    "bounds": Panel("Bounds", bounds, draw_bounds),
}
