"""What a budget of random trials buys: the median best of k, with a band that holds for all k together."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from .. import commands, pictures
from ..choice import choose
from ..finding import Alt, Finding, Refusal
from ..page import Column, beside, figure, table
from ..statistics import OPEN_BEYOND, tuning_curve
from ..tables import Metric, Study
from ..wording import agree, count, duration, fixed, listing, number, significant, unit

NAME = "Equal budget"
NEEDED = 20
BY = "loss.name"
MOST = 4
MORE = 60  # budgets beyond 100 trials that the curve is drawn at
MOST_TRIALS = 2_000  # the first drawn: calibrating the band for more takes long and narrows it little
TOLD = (1, 3, 10, 30, 100, 300)


def budget(study: Study) -> Finding:
    """Curves of the trials drawn at random, one per searched loss; adaptive trials are left out."""
    metric, drawn = study.objective, random_part(study)
    ended = drawn[drawn["state"].isin(["done", "infeasible", "failed"])]
    if len(ended) < NEEDED:
        left = len(study.searched) - len(drawn[drawn["state"] == "done"])
        needs = (
            f"Needs {NEEDED} trials that were drawn at random and ran to their end; {agree(len(ended), 'was', 'were')}."
        )
        if left > 0:
            needs += f" The other {count(left, 'trial')}, chosen by earlier scores, would flatter the curve."
        words, command = commands.controls(study, NEEDED)
        return Finding(NAME, count(len(ended), "random trial"), refusal=Refusal(f"{needs} {words}", command))
    parts = {name: own.head(MOST_TRIALS) for name, own in _parts(study, ended).items()}
    frame = pd.concat([curve_of(name, own, metric) for name, own in parts.items()], ignore_index=True)
    default = choose(study).default
    level = default.values(metric.column) if default is not None else pd.Series(dtype=float)
    base = float(level.mean()) if len(level) else math.nan
    seconds = {name: float(own["device_seconds"].mean()) for name, own in parts.items()}
    frame["seconds"] = frame["name"].map(seconds) * frame["k"]
    leader = _leader(frame, metric)
    known = frame["median"].dropna()
    ends = [known.min(), known.max(), *frame["lo"].dropna(), *frame["hi"].dropna()]
    return Finding(
        title=_title(frame, metric, leader),
        used=count(len(ended), "random trial"),
        frames={"curves": frame, "told": frame[frame["k"].isin(TOLD)].reset_index(drop=True)},
        numbers={
            "default": base,
            "seconds": seconds,
            "trials": {name: len(own) for name, own in parts.items()},
            "lost": int((ended["state"] != "done").sum()),
            "leader": leader[0] if leader else None,
            "parts_at": leader[1] if leader else None,
            "low": min(ends, default=0.0),
            "high": max(ends, default=1.0),
        },
        sentences=tuple(_sentences(study, ended, parts, seconds, base)),
        alts={"curves": _alt(frame, metric, base)} | ({"hours": _alt_hours(frame, metric)} if len(parts) > 1 else {}),
    )


def draw(study: Study, finding: Finding) -> Markup:
    frame, metric = finding.frames["curves"], study.objective
    low, high = sorted(finding.numbers[end] * metric.scale for end in ("low", "high"))
    pad = 0.05 * (high - low) or 0.01
    shown = frame.assign(shown=frame["median"] * metric.scale, lo=frame["lo"] * metric.scale,
                         hi=frame["hi"] * metric.scale)  # fmt: skip
    if metric.better < 0:
        shown = shown.rename(columns={"lo": "hi", "hi": "lo"})
    limits = (low - pad, high + pad)
    default = finding.numbers["default"] * metric.scale
    drawing = pictures.curves(
        shown.assign(x=shown["k"]),
        metric=metric.axis,
        default=default,
        limits=limits,
        parts_at=finding.numbers["parts_at"],
    )
    drawn = figure(drawing, "budget-0", finding.alts["curves"])
    if "hours" in finding.alts:  # trials of different losses may cost differently
        timed = shown.assign(x=shown["seconds"] / 3600)
        drawing = pictures.curves(timed, metric=metric.axis, default=default, limits=limits, x_label="device-hours")
        drawn += figure(drawing, "budget-1", finding.alts["hours"])
    columns = [
        Column("name", "Trials", lambda row: row["name"], False),
        Column("k", "Budget", lambda row: str(row["k"])),
        Column("seconds", "Device time", lambda row: duration(row["seconds"])),
        Column("median", f"Median best, {metric.axis}", lambda row: _value(row["median"], metric)),
        Column("lo", "At least", lambda row: _value(row["lo"], metric)),
        Column("hi", "At most", lambda row: "open" if row["hi"] is None else _value(row["hi"], metric)),
    ]
    return beside(drawn, finding.sentences) + table("budget.told", finding.frames["told"], columns, label="Budgets")


def random_part(study: Study) -> pd.DataFrame:
    """Trials whose settings were drawn at random: controls, and the search trials of a random strategy."""
    drawn = study.trials["kind"] == "control"
    if str(study.meta.get("strategy") or "").startswith("random"):
        drawn |= study.trials["kind"] == "search"
    return _by_configuration(study.trials[drawn])


def _by_configuration(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per configuration: the seeds of a group are one trial, lost when one of them is, scored by their mean."""
    rows, key = [], trials["config_hash"].fillna(trials["trial"])
    if not key.duplicated().any():
        return trials
    for _, group in trials.groupby(key, sort=False):
        states = set(group["state"])
        state = next((s for s in ("running", "waiting", "stopped", "failed", "infeasible") if s in states), "done")
        score = group["score"].mean() if state == "done" else math.nan
        rows.append({**group.iloc[0], "state": state, "score": score, "device_seconds": group["device_seconds"].sum()})
    return pd.DataFrame(rows, columns=trials.columns)


def _parts(study: Study, ended: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The random trials by searched loss, where each has enough; else all together."""
    if any(p.path == BY and len(p.values) > 1 for p in study.space):
        name = pd.Series([str(study.configs.get(t, {}).get(BY)) for t in ended["trial"]], index=ended.index)
        parts = {str(key): own for key, own in ended.groupby(name, sort=True) if len(own) >= NEEDED}
        if len(parts) > 1:
            return dict(list(parts.items())[:MOST])
    return {"random": ended}


def curve_of(name: str, own: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Median best of k of these random trials, with its band: name, k, median, lo, hi in the metric."""
    done = own[own["state"] == "done"]
    curve = tuning_curve(metric.better * done["score"].to_numpy(dtype=float), len(own) - len(done))
    columns = {
        "median": curve.median,
        "lo": curve.lo,
        "hi": np.where(curve.k <= max(1, len(own) // OPEN_BEYOND), curve.hi, np.inf),
    }
    seen = {key: np.where(np.isfinite(value), metric.better * value, np.nan) for key, value in columns.items()}
    told = np.isin(curve.k, np.unique(np.geomspace(100, max(100, len(own)), MORE).astype(int))) | (curve.k <= 100)
    return pd.DataFrame({"name": name, "k": curve.k, **seen})[told | np.isin(curve.k, TOLD)].reset_index(drop=True)


def _title(frame: pd.DataFrame, metric: Metric, leader: tuple[str, int] | None) -> Markup:
    if leader is not None:
        return Markup("{} is ahead from {} on").format(leader[0], count(leader[1], "random trial"))
    if frame["name"].nunique() > 1:
        names = listing(list(dict.fromkeys(frame["name"])))
        return Markup("No loss is ahead of the others at an equal budget: {}").format(names)
    few, last = frame[frame["k"] == min(10, len(frame))].iloc[0], frame.iloc[-1]
    if not math.isfinite(last["median"]):
        return Markup("Most random trials end without a score")
    text = Markup("{} random trials find {}, {} find {}: median of the best, one run each")
    return text.format(int(few["k"]), _value(few["median"], metric), int(last["k"]), _value(last["median"], metric))


def _leader(frame: pd.DataFrame, metric: Metric) -> tuple[str, int] | None:
    """(name, budget) from which on the lower limit of one loss lies beyond the median of all others for good."""
    if frame["name"].nunique() < 2:
        return None
    wide = frame.pivot(index="k", columns="name", values="median") * metric.better
    low = frame.pivot(index="k", columns="name", values="lo") * metric.better
    for name in wide:
        others = wide.drop(columns=[name]).max(axis=1)
        ahead = (low[name] > others) & others.notna()
        if ahead.any() and ahead[ahead.idxmax() :].dropna().all():
            return str(name), int(ahead.idxmax())
    return None


def _sentences(
    study: Study, ended: pd.DataFrame, parts: Mapping[str, pd.DataFrame], seconds: Mapping[str, float], base: float
) -> list[Markup]:
    lost = int((ended["state"] != "done").sum())
    text = (
        "For each budget k the median of the best score that k random trials find; the band holds for all k together "
        "in 95 of 100 studies. Scores are of single runs, so the best is partly luck. Above, the band is open beyond a "
        "tenth of the trials."
    )
    found = [Markup(text)]
    if len(ended) > MOST_TRIALS and any(len(own) == MOST_TRIALS for own in parts.values()):
        found.append(Markup("Of more than {}, the first drawn.").format(count(MOST_TRIALS, "random trial")))
    if lost:
        found.append(Markup("{} that ended without a score count as worse than any.").format(count(lost, "trial")))
    cost = listing([f"{name}: {duration(seconds[name])}" for name in parts])
    found.append(Markup("Device time of a trial, on average: {}.").format(cost))
    left = len(study.searched[~study.searched["trial"].isin(ended["trial"])])
    if left:
        found.append(Markup("{} chosen by earlier scores are left out.").format(count(left, "trial")))
    if math.isfinite(base):
        found.append(
            Markup("Dashed: the default's mean on fresh seeds, which luck does not flatter: the verdict compares.")
        )
    return found


def _alt(frame: pd.DataFrame, metric: Metric, base: float) -> Alt:
    parts = [f"x: number of random trials, y: {metric.axis}; median best with a 95 % band."]
    for name, own in frame.groupby("name", sort=False):
        last = own.iloc[-1]
        parts.append(f"{name}: {_value(last['median'], metric).striptags()} at {int(last['k'])} trials,")
        parts.append(f"at least {_value(last['lo'], metric).striptags()}.")
    if math.isfinite(base):
        parts.append(f"Default: {fixed(base * metric.scale, 1 if metric.share else 3)}.")
    return Alt("Best score against budget", " ".join(parts))


def _alt_hours(frame: pd.DataFrame, metric: Metric) -> Alt:
    parts = [f"x: device-hours, y: {metric.axis}; the same medians and bands by what the trials cost."]
    for name, own in frame.groupby("name", sort=False):
        last = own.iloc[-1]
        parts.append(f"{name}: {_value(last['median'], metric).striptags()} after {duration(last['seconds'])}.")
    return Alt("Best score against device time", " ".join(parts))


def _value(value: Any, metric: Metric) -> Markup:
    if value is None or not math.isfinite(value):
        return Markup("no score")
    return number(value, f"{significant(value * metric.scale, 3)}{unit(metric)}")
