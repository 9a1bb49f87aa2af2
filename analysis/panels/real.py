"""Is it real? What fresh seeds leave of the search scores, and whether the search had settled."""

import math
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from .. import plots
from ..finding import Alt, Finding, Panel, Refusal
from ..page import Column, beside, figure, notes, table
from ..statistics import Interval, difference, pooled_sd, t_interval
from ..tables import Candidate, Study, candidates, choose
from ..wording import change, count, fixed, number, points, scaled, score, significant, single, unit
from .verdict import confirm_command, extend_command


def fresh(study: Study) -> Finding:
    """Search score, fresh validation mean and test mean of every configuration with fresh runs."""
    metric, reported, chosen = study.objective, study.reported, choose(study)
    found = [c for c in candidates(study) if len(c.values(metric.column))]
    if not found:
        needs = "Needs runs of the default and of the best settings with seeds that the search never saw; there are none:"
        return Finding("Fresh seeds", "0 fresh runs", refusal=Refusal(needs, confirm_command(study)))
    base = chosen.default.values(reported.column) if chosen.default else pd.Series(dtype=float)
    rows = [_row(study, candidate, base, chosen.default) for candidate in found]
    frame = pd.DataFrame(rows).sort_values("validation", ascending=metric.better < 0, kind="stable", ignore_index=True)
    sd, df = pooled_sd([c.values(metric.column).to_numpy() for c in found])
    searched = frame[(frame["source"] == "search") & frame["luck"].notna()]
    sentences = [
        Markup("Luck: score in the search minus the mean on fresh seeds, on the {} split. "
               "The best of many single runs is partly lucky, so its search score must not be reported.").format(
            metric.split or "objective's"
        )
    ]  # fmt: skip
    if df:
        sentences.append(
            Markup("Seeds alone move a score with a standard deviation of {}{} (pooled, {} degrees of freedom).").format(
                number(sd, significant(sd * scaled(metric))), points(metric), df
            )
        )
    return Finding(
        title=_title(study, searched, chosen.winner),
        used=f"{count(len(found), 'configuration')}, {count(int(frame['n'].sum()), 'fresh run')}",
        frames={"configurations": frame},
        numbers={"seed_sd": sd, "seed_sd_df": df, "metric": metric.key, "reported": reported.key},
        sentences=tuple(sentences),
    )


def draw_fresh(study: Study, finding: Finding) -> Markup:
    metric, reported = study.objective, study.reported

    def level(row: dict[str, Any], name: str) -> Markup:
        lo, hi = row[f"{name}_lo"], row[f"{name}_hi"]
        n = row["n"] if name == "validation" else row["n_reported"]
        if row[name] is None:
            return Markup("no score")
        return score(Interval(row[name], math.nan if lo is None else lo, math.nan if hi is None else hi, n),
                     metric if name == "validation" else reported, with_unit=False)  # fmt: skip

    def against(row: dict[str, Any]) -> Markup:
        if row["diff"] is None:
            return Markup("the default" if row["is_default"] else "not measured")
        return change(Interval(row["diff"], row["diff_lo"], row["diff_hi"], row["n_reported"]), reported)

    suffix, other = (", %" if metric.share else ""), (", %" if reported.share else "")
    columns = [
        Column("label", "Configuration", lambda row: row["label"], False),
        Column("n", "Fresh seeds", lambda row: str(row["n"])),
        Column("searched", f"In the search{suffix}", lambda row: single(row["searched"], metric)
               if row["searched"] is not None else "no run"),
        Column("validation", f"Fresh, {metric.split or 'objective'}{suffix}", lambda row: level(row, "validation")),
        Column("luck", f"Luck{',' + points(metric) if metric.share else ''}", lambda row: change(
            Interval(row["luck"], row["searched"] - row["validation_hi"], row["searched"] - row["validation_lo"], row["n"]),
            metric) if row["luck"] is not None and row["n"] > 1 else "one run"),
        Column("reported", f"Fresh, {reported.split or 'reported'}{other}", lambda row: level(row, "reported")),
        Column("diff", f"Against the default{',' + points(reported) if reported.share else ''}", against),
    ]  # fmt: skip
    drawn = table("fresh.configurations", finding.frames["configurations"], columns, label="Configurations on fresh seeds")
    return drawn + notes(finding.sentences)


def history(study: Study) -> Finding:
    """Best score so far over finished runs, in order of completion."""
    metric, done = study.objective, study.finished
    if len(done) < 2:
        return Finding("Search history", count(len(done), "finished run"),
                       refusal=Refusal(f"Needs 2 finished runs; {len(done)} finished.", extend_command(study)))  # fmt: skip
    ordered = done.sort_values(["end_time", "trial"], kind="stable", ignore_index=True)
    values = ordered["score"].to_numpy()
    best = np.maximum.accumulate(values) if metric.better > 0 else np.minimum.accumulate(values)
    frame = pd.DataFrame(
        {"order": np.arange(1, len(ordered) + 1), "trial": ordered["trial"], "kind": ordered["kind"],
         "name": ordered["name"], "score": values, "best": best}
    )  # fmt: skip
    first = int(np.argmax(values * metric.better))
    quarter = best[-1] - best[max(0, math.ceil(0.75 * len(best)) - 1)]
    shown = number(best[-1], f"{significant(best[-1] * scaled(metric), 3)}{unit(metric)}")
    when = "the last" if first == len(done) - 1 else f"run {first + 1} of {len(done)}"
    title = Markup("The best score of the search, {}, came with {}").format(shown, when)
    gained = number(quarter, f"{significant(abs(quarter) * scaled(metric))}{points(metric)}")
    tail = Markup("The last quarter of the runs improved it by {}.").format(gained) if quarter else Markup(
        "The last quarter of the runs did not improve it."
    )  # fmt: skip
    baseline = ordered[(ordered["kind"] == "baseline") & (ordered["name"] == study.default)]
    default = float(baseline["score"].iloc[0]) if len(baseline) else math.nan
    desc = (
        f"x: finished runs in order of completion, 1 to {len(done)}; y: {metric.label}"
        f"{' in percent' if metric.share else ''}, one run each. {Markup(title).striptags()}. {tail.striptags()} "
        f"{int((ordered['kind'] == 'baseline').sum())} baselines are hollow."
    )
    return Finding(
        title=title,
        used=count(len(done), "finished run"),
        frames={"runs": frame},
        numbers={"best": best[-1], "at": first + 1, "last_quarter": quarter, "default": default, "n": len(done)},
        sentences=(tail, "Search scores of single runs: the best is a maximum of noise. Stopped and failed runs are left out."),
        alts={"history": Alt("Best score so far", desc)},
    )


def draw_history(study: Study, finding: Finding) -> Markup:
    metric = study.objective
    scale = scaled(metric)
    frame = finding.frames["runs"].assign(shown=lambda f: f["score"] * scale, best=lambda f: f["best"] * scale)
    drawing = plots.history(
        frame,
        metric=plots.axis_name(metric.label, metric.share),
        default=finding.numbers["default"] * scale,
        better=metric.better,
    )
    return beside(figure(drawing, "history-0", finding.alts["history"]), finding.sentences)


def _row(study: Study, candidate: Candidate, base: pd.Series, default: Candidate | None) -> dict[str, Any]:
    metric, reported = study.objective, study.reported
    values, test = candidate.values(metric.column), candidate.values(reported.column)
    inner, outer = t_interval(values), t_interval(test)
    origin = study.trials[study.trials["trial"] == candidate.trial]["score"].dropna()
    searched = float(origin.iloc[0]) if len(origin) else math.nan
    is_default = default is not None and candidate.key == default.key
    gap = difference(test, base) if not is_default and len(test) > 1 and len(base) > 1 else None
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
        "n_reported": outer.n,
        "reported": outer.mean,
        "reported_lo": outer.lo,
        "reported_hi": outer.hi,
        "diff": gap.mean if gap else math.nan,
        "diff_lo": gap.lo if gap else math.nan,
        "diff_hi": gap.hi if gap else math.nan,
    }


def _title(study: Study, searched: pd.DataFrame, winner: Candidate | None) -> Markup:
    metric = study.objective
    own = searched[searched["label"] == winner.label] if winner is not None else searched.iloc[:0]
    if own.empty:
        return Markup("No setting of the search has fresh runs")
    row = own.iloc[0]
    digits = 1 if metric.share else 3
    return Markup("The winner scored {} in the search and {} on fresh seeds").format(
        number(row["searched"], f"{fixed(row['searched'] * scaled(metric), digits)}{unit(metric)}"),
        number(row["validation"], f"{fixed(row['validation'] * scaled(metric), digits)}{unit(metric)}"),
    )


PANELS = {
    "fresh": Panel("Fresh seeds", fresh, draw_fresh, open=True),
    "history": Panel("Search history", history, draw_history),
}
