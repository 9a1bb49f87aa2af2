"""Does a cheap study order settings as a dear one does: frozen features and whole encoders, short and long runs."""

import json
import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pandas as pd
from markupsafe import Markup

from ..finding import Finding, Refusal
from ..page import Column, notes, table
from ..statistics import Interval, rank_correlation
from ..tables import Study
from ..wording import count, fixed, number, significant
from .studies import Several

NAME = "Fidelity between studies"
NEEDED = 10  # common settings, for limits
KINDS = ("schedule.name", "loss.name", "groups.name")  # told apart whether or not they are searched
APART = ("data.", "model.")  # what makes a study cheaper: not part of the setting


def agreement(several: Several) -> Finding:
    """Rank correlation of the scores of settings that ran in both of two studies, and what choosing by one costs."""
    frame = pd.DataFrame(
        [row for a, b in combinations(several.each(), 2) if (row := _row(several, a, b)) is not None],
        columns=["first", "second", "correlation", "lo", "hi", "n", "regret"],
    )
    if frame.empty:
        first, second = (study.folder for study in several.studies[:2])
        needs = (
            f"Needs {NEEDED} settings that ran in both of two studies; points drawn at random with one seed and space "
            "are the same in both:"
        )
        run = "\n".join(
            f"mmts-ray search {folder}/study.yaml --out {folder}-random strategy=random" for folder in (first, second)
        )
        return Finding(NAME, "no study pair with enough common settings", refusal=Refusal(needs, run))
    top = frame.loc[frame["n"].idxmax()]
    title = Markup("{} and {} order their {} common settings with rank correlation {} [{}, {}]").format(
        top["first"],
        top["second"],
        int(top["n"]),
        number(top["correlation"], fixed(top["correlation"], 2)),
        fixed(top["lo"], 2),
        fixed(top["hi"], 2),
    )
    said = (
        "A setting is the values that are searched in either study, and the names of schedule, loss and groups; seeds "
        "are averaged. Settings that were carried over for being good vary less than random ones: among them the "
        "correlation reads lower."
    )
    return Finding(
        title=title,
        used=f"{count(len(frame), 'pair')} of studies",
        frames={"pairs": frame},
        sentences=(said,),
    )


def draw(several: Several, finding: Finding) -> Markup:
    metric = several.studies[0].objective
    columns = [
        Column("first", "Study", lambda row: row["first"], False),
        Column("second", "And", lambda row: row["second"], False),
        Column("correlation", "Rank correlation", _correlation),
        Column(
            "regret",
            "Lost in the second by choosing in the first",
            lambda row: number(row["regret"], significant(row["regret"] * metric.scale)),
        ),
        Column("n", "Settings", lambda row: str(int(row["n"]))),
    ]
    return table("agreement.pairs", finding.frames["pairs"], columns, label=NAME) + notes(finding.sentences)


def _correlation(row: Mapping[str, Any]) -> Markup:
    value = number(row["correlation"], fixed(row["correlation"], 2))
    return Markup('{} <span class="ci">[{}, {}]</span>').format(value, fixed(row["lo"], 2), fixed(row["hi"], 2))


def _row(several: Several, a: tuple[str, Study], b: tuple[str, Study]) -> tuple[Any, ...] | None:
    (first, one), (second, other) = a, b
    paths = sorted({p.path for study in (one, other) for p in study.space if not p.path.startswith(APART)} | {*KINDS})
    scores = [_scores(study, paths) for study in (one, other)]
    both = pd.concat(scores, axis=1, join="inner").dropna()
    both.columns = pd.Index(["one", "other"])
    if len(both) < NEEDED:
        return None
    better = one.objective.better
    r = rank_correlation(both["one"].to_numpy(), both["other"].to_numpy())
    found = r or Interval(math.nan, math.nan, math.nan, len(both))
    chosen = (better * both["one"]).idxmax()
    regret = float((better * both["other"]).max() - better * both["other"][chosen])
    return first, second, found.mean, found.lo, found.hi, len(both), regret


def _scores(study: Study, paths: list[str]) -> pd.Series:
    """Mean score by setting, over the finished runs that were not reruns."""
    done = study.finished
    keys = [
        json.dumps([study.configs.get(trial, {}).get(path) for path in paths], default=str) for trial in done["trial"]
    ]
    return pd.Series(done["score"].to_numpy(dtype=float), index=keys).groupby(level=0).mean()
