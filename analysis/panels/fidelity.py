"""Does an early score tell the final one? From random trials that were never stopped; survivors would mislead."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from .. import commands, pictures
from ..finding import Alt, Finding, Refusal, check
from ..page import Column, beside, figure, table
from ..statistics import Interval, rank_correlation
from ..tables import Metric, Study
from ..wording import agree, count, fixed, number, points, significant

NAME = "Fidelity"
NEEDED, ENOUGH = 10, 20
KEPT = 3  # a rung keeps the best third
MOST_RUNGS = 4


def fidelity(study: Study) -> Finding:
    """Rank correlation of each rung with the end, overlap of the best third, regret of choosing at the rung."""
    metric, rungs = study.objective, rung_epochs(study)
    scores = controls(study, rungs)
    refused = _lacking(study, rungs, scores)
    if refused is not None:
        return Finding(NAME, count(len(scores), "never-stopped random trial"), refusal=refused)
    frame = pd.DataFrame([_row(scores, epoch, metric) for epoch in rungs])
    first = frame.iloc[0]
    few = len(scores) < ENOUGH
    points_ = scores.assign(kept=_kept(scores[int(first["epoch"])], metric))
    shown = pd.DataFrame({"trial": points_["trial"], "rung": points_[int(first["epoch"])], "final": points_["final"],
                          "kept": points_["kept"]})  # fmt: skip
    return Finding(
        title=_title(frame, few),
        used=count(len(scores), "never-stopped random trial"),
        frames={"rungs": frame, "runs": shown},
        numbers={"controls": len(scores), "last": last_epoch(study)},
        sentences=tuple(_sentences(study, len(scores))),
        alts={"runs": _alt(shown, first, metric)},
        checks=(
            check(
                f"{ENOUGH} never-stopped random trials or more", "limits", few,
                "Only {n} random trials were never stopped.", "Rank correlations have wide intervals: {need}.",
                n=len(scores), need=f"{ENOUGH} are wanted", size=ENOUGH - len(scores),
            ),
            check(
                "the first rung agrees with the end", "limits", not few and first["hi"] < 0.8,
                "Scores at epoch {epoch} order the trials badly: rank correlation {r} [{lo}, {hi}].",
                "Stopping there throws good settings away: start the rungs later.",
                epoch=int(first["epoch"]), r=fixed(first["correlation"], 2), lo=fixed(first["lo"], 2),
                hi=fixed(first["hi"], 2), size=1 - first["correlation"],
            ),
        ),
    )  # fmt: skip


def draw(study: Study, finding: Finding) -> Markup:
    metric, frame = study.objective, finding.frames["rungs"]
    runs = finding.frames["runs"]
    drawing = pictures.rungs(
        runs.assign(rung=runs["rung"] * metric.scale, final=runs["final"] * metric.scale),
        metric=metric.axis,
        epoch=int(frame["epoch"].iloc[0]),
    )
    columns = [
        Column("epoch", "Epoch", lambda row: str(int(row["epoch"]))),
        Column("correlation", "Rank correlation with the end", _correlation),
        Column("overlap", "Best third kept", lambda row: f"{int(row['overlap'])} of {int(row['best'])}"),
        Column("regret", f"Lost by choosing there{',' if metric.share else ''}{points(metric)}",
               lambda row: number(row["regret"], significant(row["regret"] * metric.scale))),
        Column("n", "Trials", lambda row: str(int(row["n"]))),
    ]  # fmt: skip
    rows = table("fidelity.rungs", frame, columns, label="Rungs")
    return beside(figure(drawing, "fidelity-0", finding.alts["runs"]), finding.sentences) + rows


def rung_epochs(study: Study) -> list[int]:
    """Epochs at which trials were stopped; without any, a ninth and a third of the full length."""
    last = last_epoch(study)
    stopped = study.trials.loc[study.trials["state"] == "stopped", "epoch"].dropna()
    epochs = sorted({int(e) for e in stopped if 1 <= e < last})
    if not epochs and last > 1:
        epochs = sorted({max(1, round(last / 9)), max(1, round(last / 3))} - {last})
    return (
        epochs
        if len(epochs) <= MOST_RUNGS
        else [epochs[i] for i in np.linspace(0, len(epochs) - 1, MOST_RUNGS).astype(int)]
    )


def last_epoch(study: Study) -> int:
    """Length of a full run: the most common last epoch of those that ended."""
    done = study.trials.loc[study.trials["state"] == "done", "epoch"].dropna()
    return int(done.mode().max()) if len(done) else 0


def controls(study: Study, epochs: list[int]) -> pd.DataFrame:
    """Random trials that ran to the full length: score at each epoch (its last evaluation) and at the end.

    Controls, and the trials of a random search in which nothing was stopped.
    """
    trials = study.trials
    drawn = trials["kind"] == "control"
    if str(study.meta.get("strategy") or "").startswith("random") and not (trials["state"] == "stopped").any():
        drawn |= trials["kind"] == "search"
    ended = trials[drawn & (trials["state"] == "done") & (trials["epoch"] == last_epoch(study))]
    table_ = pd.DataFrame({"trial": ended["trial"], "final": ended["score"]}).reset_index(drop=True)
    column = study.objective.column
    steps = study.steps
    known = not steps.empty and column in steps and "epoch" in steps
    for epoch in epochs:
        at = steps[(steps["epoch"] == epoch) & steps["trial"].isin(table_["trial"])] if known else pd.DataFrame()
        values = at.sort_values("step").groupby("trial")[column].last() if len(at) else pd.Series(dtype=float)
        table_[epoch] = pd.to_numeric(table_["trial"].map(values), errors="coerce").astype(float)
    # the seeds of one configuration are one point
    key = ended["config_hash"].fillna(ended["trial"]).to_numpy()
    how: dict[Any, str] = {"trial": "first", "final": "mean", **dict.fromkeys(epochs, "mean")}
    mean = table_.groupby(key, sort=False).agg(how)
    return mean.dropna().reset_index(drop=True)


def _lacking(study: Study, rungs: list[int], scores: pd.DataFrame) -> Refusal | None:
    if not rungs:
        return Refusal("Needs runs of two evaluations or more; these report once. Longer runs fill it:",
                       commands.extend(study))  # fmt: skip
    if len(scores) >= NEEDED:
        return None
    needs = (
        f"Needs {NEEDED} random trials that were never stopped ({ENOUGH} for a useful interval); "
        f"{agree(len(scores), 'was', 'were')}."
    )
    steps, column, epoch = study.steps, study.objective.column, rungs[0]
    done = study.searched[(study.searched["epoch"] == last_epoch(study)) & (study.searched["kind"] == "search")]
    selected = (study.trials["state"] == "stopped").any()
    if selected and not steps.empty and column in steps and "epoch" in steps and len(done) >= NEEDED:
        early = steps[(steps["epoch"] == epoch) & steps["trial"].isin(done["trial"])].groupby("trial")[column].last()
        both = pd.concat([done.set_index("trial")["score"], early], axis=1).dropna()
        r = rank_correlation(*both.to_numpy(dtype=float).T) if len(both) >= NEEDED else None
        if r is not None:
            needs += (
                f" Among the {len(both)} survivors the rank correlation of epoch {epoch} with the end is "
                f"{fixed(r.mean, 2)}: a lower bound, and no interval, because they were selected by that very score."
            )
    words, command = commands.controls(study, ENOUGH)
    return Refusal(f"{needs} {words}", command)


def _kept(values: pd.Series, metric: Metric) -> pd.Series:
    """The best third at a rung."""
    count_ = max(1, len(values) // KEPT)
    order = (values * -metric.better).sort_values(kind="stable").index[:count_]
    return pd.Series(values.index.isin(order), index=values.index)


def _row(scores: pd.DataFrame, epoch: int, metric: Metric) -> dict[str, Any]:
    early, final = scores[epoch].to_numpy(dtype=float), scores["final"].to_numpy(dtype=float)
    r = rank_correlation(early, final) or Interval(math.nan, math.nan, math.nan, len(scores))
    kept, best = _kept(scores[epoch], metric), _kept(scores["final"], metric)
    chosen = int(np.argmax(metric.better * early))
    regret = metric.better * (metric.better * (metric.better * final).max() - final[chosen])
    return {
        "epoch": epoch,
        "correlation": r.mean,
        "lo": r.lo,
        "hi": r.hi,
        "n": len(scores),
        "overlap": int((kept & best).sum()),
        "best": int(best.sum()),
        "regret": float(regret),
    }


def _title(frame: pd.DataFrame, few: bool) -> Markup:
    first = frame.iloc[0]
    if not math.isfinite(first["correlation"]):
        return Markup("Scores at epoch {} do not vary").format(int(first["epoch"]))
    value = number(first["correlation"], fixed(first["correlation"], 2))
    text = "Epoch {} orders the trials as the end does with rank correlation {} [{}, {}]{}"
    lo, hi = fixed(first["lo"], 2), fixed(first["hi"], 2)
    return Markup(text).format(int(first["epoch"]), value, lo, hi, ", few trials" if few else "")


def _sentences(study: Study, n: int) -> list[Markup]:
    found = [
        Markup(
            "Only trials that were drawn at random and ran to their end count: among trials that survived a rung, a "
            "rank correlation of .92 reads as .5 to .7."
        ),
        Markup(
            "Filled: the best third at the first rung, which successive halving would keep. Lost by choosing there: "
            "the best final score minus that of the rung's best, one run each."
        ),
    ]
    if (study.trials["state"] == "stopped").any():
        found.append(
            Markup(
                "A stopped run had its schedule cut at the rung, not squeezed into it: its rate was still high there."
            )
        )
    return found


def _alt(shown: pd.DataFrame, first: pd.Series, metric: Metric) -> Alt:
    text = (
        f"x: {metric.axis} at epoch {int(first['epoch'])}, y: the same at the end; {len(shown)} random trials, "
        f"{int(shown['kept'].sum())} filled: kept by the rung. Rank correlation {fixed(first['correlation'], 2)}."
    )
    return Alt("Early against final score", text)


def _correlation(row: Mapping[str, Any]) -> Markup | str:
    if row["correlation"] is None:
        return "does not vary"
    value = number(row["correlation"], fixed(row["correlation"], 2))
    return Markup('{} <span class="ci">[{}, {}]</span>').format(value, fixed(row["lo"], 2), fixed(row["hi"], 2))
