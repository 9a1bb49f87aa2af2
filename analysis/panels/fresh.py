"""What fresh seeds leave of the search scores."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from .. import commands
from ..choice import Candidate, candidates, choose
from ..finding import Finding, Refusal
from ..page import Column, notes, table
from ..statistics import Interval, difference, pooled_sd, t_interval
from ..tables import Metric, Study
from ..wording import amount, change, count, fixed, number, score, single, unit


def fresh(study: Study) -> Finding:
    """Search score, fresh validation mean and test mean of every configuration with fresh runs."""
    metric, chosen = study.objective, choose(study)
    found = [c for c in candidates(study) if len(c.values(metric.column))]
    if not found:
        needs = "Needs runs of the baselines and of the best settings with seeds that the search never saw:"
        return Finding("Fresh seeds", "0 fresh runs", refusal=Refusal(needs, commands.confirm(study)))
    rows = [_row(study, candidate, chosen.default) for candidate in found]
    frame = pd.DataFrame(rows).sort_values("validation", ascending=metric.better < 0, kind="stable", ignore_index=True)
    sd, df = pooled_sd([c.values(metric.column).to_numpy() for c in found])
    text = (
        "Luck: score in the search minus the mean on fresh seeds, {}. The best of many single runs is partly lucky, so "
        "its search score must not be reported. The winner is the best fresh {} mean of {}."
    )
    split = metric.split or metric.label
    sentences = [Markup(text).format(f"on the {split} split" if metric.split else split, split, len(found))]
    if df:
        text = "Seeds alone move a score with a standard deviation of {} (pooled, {} of freedom)."
        sentences.append(Markup(text).format(amount(sd, metric), count(df, "degree")))
    return Finding(
        title=_title(frame, metric, chosen.winner),
        used=f"{count(len(found), 'configuration')}, {count(int(frame['n'].sum()), 'fresh run')}",
        frames={"configurations": frame},
        numbers={"seed_sd": sd, "seed_sd_df": df, "metric": metric.key, "reported": study.reported.key},
        sentences=tuple(sentences),
    )


def draw(study: Study, finding: Finding) -> Markup:
    metric, reported = study.objective, study.reported
    columns = [
        Column("label", "Configuration", lambda row: row["label"], False),
        Column("n", "Fresh seeds", lambda row: str(row["n"])),
        Column("searched", _head("In the search", metric), lambda row: _searched(row, metric)),
        Column("validation", _head(f"Fresh, {metric.split or 'objective'}", metric),
               lambda row: _level(row, metric, "")),
        Column("luck", _head("Luck", metric, change=True), lambda row: _luck(row, metric)),
        Column("reported", _head(f"Fresh, {reported.split or 'reported'}", reported),
               lambda row: _level(row, reported, "_reported")),
        Column("diff", _head("Against default", reported, change=True), lambda row: _against(row, reported)),
    ]  # fmt: skip
    drawn = table("fresh.configurations", finding.frames["configurations"], columns, label="Fresh seeds")
    return drawn + notes(finding.sentences)


def _row(study: Study, candidate: Candidate, default: Candidate | None) -> dict[str, Any]:
    metric, reported = study.objective, study.reported
    test = candidate.values(reported.column)
    inner, outer = t_interval(candidate.values(metric.column)), t_interval(test)
    origin = study.trials.loc[study.trials["trial"] == candidate.trial, "score"].dropna()
    searched = float(origin.iloc[0]) if len(origin) else math.nan
    is_default = default is not None and candidate.key == default.key
    gap = difference(test, default.values(reported.column)) if default is not None and not is_default else None
    return {
        "label": candidate.label,
        "source": candidate.source,
        "is_default": is_default,
        "n": inner.n,
        "searched": searched,
        "validation": inner.mean,
        "validation_lo": inner.lo,
        "validation_hi": inner.hi,
        "luck": searched - inner.mean,
        "luck_lo": searched - inner.hi,
        "luck_hi": searched - inner.lo,
        "n_reported": outer.n,
        "reported": outer.mean,
        "reported_lo": outer.lo,
        "reported_hi": outer.hi,
        "diff": gap.mean if gap else math.nan,
        "diff_lo": gap.lo if gap else math.nan,
        "diff_hi": gap.hi if gap else math.nan,
    }


def _title(frame: pd.DataFrame, metric: Metric, winner: Candidate | None) -> Markup:
    own = frame[(frame["label"] == winner.label) & frame["searched"].notna()] if winner is not None else frame.iloc[:0]
    if own.empty:
        return Markup("No tuned setting has fresh runs")
    values = (
        number(own.iloc[0][key], f"{fixed(own.iloc[0][key] * metric.scale, 1 if metric.share else 3)}{unit(metric)}")
        for key in ("searched", "validation")
    )
    return Markup("The winner scored {} in the search and {} on fresh seeds").format(*values)


def _head(text: str, metric: Metric, change: bool = False) -> str:
    return f"{text}, {'points' if change else '%'}" if metric.share else text


def _searched(row: Mapping[str, Any], metric: Metric) -> Markup | str:
    return "no run" if row["searched"] is None else single(row["searched"], metric)


def _level(row: Mapping[str, Any], metric: Metric, which: str) -> Markup:
    name, n = "reported" if which else "validation", row[f"n{which}"]
    if not n:
        return Markup("no score")
    lo, hi = (math.nan if row[f"{name}_{end}"] is None else row[f"{name}_{end}"] for end in ("lo", "hi"))
    return score(Interval(row[name], lo, hi, n), metric, with_unit=False)


def _luck(row: Mapping[str, Any], metric: Metric) -> Markup | str:
    if row["luck"] is None:
        return "no run"
    if row["luck_lo"] is None:
        return "one run"
    return change(Interval(row["luck"], row["luck_lo"], row["luck_hi"], row["n"]), metric)


def _against(row: Mapping[str, Any], metric: Metric) -> Markup | str:
    if row["is_default"]:
        return "the default"
    if row["diff"] is None:
        return "not measured"
    return change(Interval(row["diff"], row["diff_lo"], row["diff_hi"], row["n_reported"]), metric)
