"""Which parameters matter: a permutation test per parameter, and sizes for those that pass."""

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from .. import commands
from ..finding import Finding, Refusal, Setting, check
from ..model import NEEDED, WEAK, Model, model_of
from ..page import Axis, Column, bar, notes, table
from ..statistics import LEVEL, PERMUTATIONS, Interval
from ..tables import Metric, Study
from ..wording import change, count, fixed, listing, number, points, significant
from . import flat

LEVEL_OF_TEST = round(1 - LEVEL, 10)
STRONG, SOME, NONE = "evidence", "weak evidence", "no evidence"
MEDIUM_NEEDS = 50  # trials below which a parameter worth one seed sd is missed more often than found


def importance(study: Study) -> Finding:
    """One row per searched parameter: evidence after Holm, p, size in units of the score; adds a column."""
    model = model_of(study)
    refused = lacking(study, model)
    if refused is not None:
        return Finding("Importance", count(len(model.frame), "configuration"), refusal=refused)
    metric, sized = study.objective, model.quality >= WEAK
    any_setting = bool(flat.flat(study).numbers.get("any"))
    rows = [_row(model, place, sized) for place in range(len(model.parameters))]
    frame = pd.DataFrame(rows)
    proven = [study.named(row["path"]) for row in rows if row["grade"] == STRONG]
    return Finding(
        title=_title(proven, len(rows), sized),
        used=f"{count(len(model.tested), 'configuration')}{', adaptive: approximate' if model.adaptive else ''}",
        frames={"parameters": frame},
        numbers={
            "configurations": len(model.tested),
            "adaptive": model.adaptive,
            "fit": model.quality,
            "level": LEVEL_OF_TEST,
        },
        sentences=tuple(_sentences(model, metric, sized)),
        checks=(
            check(
                "the model predicts left-out configurations", "record" if any_setting else "limits", not sized,
                "The model predicts left-out configurations poorly: rank correlation {fit}.",
                "Where any setting will do there is nothing to predict." if any_setting
                else "Below {weak}: no sizes are given, and model-based widths and bounds are not drawn.",
                fit=fixed(model.quality, 2), weak=WEAK, size=1 - model.quality,
            ),
        ),
        settings=(_setting(study, rows),),
    )  # fmt: skip


def draw(study: Study, finding: Finding) -> Markup:
    frame, metric = finding.frames["parameters"], study.objective
    shown = [v for key in ("hi", "at_most") for v in frame[key].dropna()] if len(frame) else []
    axis = Axis(0, max(shown, default=1.0) * metric.scale)

    def size(row: Mapping[str, Any]) -> Markup:
        place = {key: None if row[key] is None else axis(row[key] * metric.scale) for key in ("size", "lo", "hi")}
        limit = None if row["at_most"] is None else axis(row["at_most"] * metric.scale)
        return bar("importance", **place, at_most=limit, low="0", high=significant(axis.high))

    columns = [
        Column("path", "Parameter", lambda row: study.named(row["path"]), False),
        Column("grade", "Evidence", lambda row: _grade(row["grade"]), False),
        Column("holm", "P, all parameters", lambda row: p_text(row["holm"])),
        Column("p", "P, this one", lambda row: p_text(row["p"])),
        Column("lo", f"Total effect, sd of {metric.axis}", size, False, "wide"),
        Column("size", f"Size{',' if metric.share else ''}{points(metric)}", lambda row: _size(row, metric)),
    ]
    return table("importance.parameters", frame, columns, label="Importance", wide=True) + notes(finding.sentences)


def lacking(study: Study, model: Model) -> Refusal | None:
    """Why a model of the configurations cannot be had, with the command that fills it."""
    n = len(model.frame)
    if not model.parameters:
        return Refusal("Needs a searched parameter; trials of a space with a search section fill it:",
                       commands.widen(study))  # fmt: skip
    if n < NEEDED:
        needs = f"Needs {NEEDED} configurations that ran to their end in the searched space; {n} did. More fill it:"
        return Refusal(needs, commands.extend(study))
    if model.points.y.std() == 0:
        return Refusal(
            "All configurations have the same score, so there is nothing to explain:", commands.extend(study)
        )
    if model.adaptive and model.quality < WEAK:
        needs = (
            f"The sampler chose the trials and the model predicts left-out ones poorly (rank correlation "
            f"{fixed(model.quality, 2)}, {WEAK} needed), so no test holds. More trials, best random ones, fill it:"
        )
        return Refusal(needs, commands.extend(study))
    return None


def _row(model: Model, place: int, sized: bool) -> dict[str, Any]:
    test, adjusted = model.evidence[place]
    grade = STRONG if adjusted <= LEVEL_OF_TEST else SOME if test.p <= LEVEL_OF_TEST else NONE
    effect = model.effects[place] if sized else None
    told = effect if grade != NONE else None
    return {
        "path": model.parameters[place].path,
        "grade": grade,
        "holm": adjusted,
        "p": test.p,
        "p_main": test.p_main,
        "size": None if told is None else told.mean,
        "lo": None if told is None else told.lo,
        "hi": None if told is None else told.hi,
        "at_most": effect.hi if effect is not None and grade == NONE else None,
        "n": test.n,
    }


def _title(proven: list[str], total: int, sized: bool) -> Markup:
    if not proven:
        text = Markup("No parameter shows evidence of an effect")
    else:
        verb = "shows" if len(proven) == 1 else "show"
        text = Markup("{} of {}: {} {} evidence of an effect").format(len(proven), total, listing(proven), verb)
    return text if sized else Markup("{}, weak fit").format(text)


def _sentences(model: Model, metric: Metric, sized: bool) -> list[Markup]:
    n = len(model.tested)
    found = [
        Markup(
            "Evidence: of what a model of all other parameters leaves over, this one explains more than random "
            "reorderings of its values do; at most 1 study in 20 says so of any parameter that does nothing (Holm's "
            "bound over {}). Weak evidence: without that bound, so 1 such parameter in 20 gets it."
        ).format(count(len(model.parameters), "parameter"))
    ]
    if model.adaptive:
        found.append(
            Markup(
                "Some of these settings were chosen, by a sampler that saw scores or by a plan, so the test is "
                "approximate; among trials drawn at random it is exact."
            )
        )
    if n <= MEDIUM_NEEDS:
        found.append(
            Markup(
                "With {} configurations, no evidence says little about a parameter of medium effect: about as large as "
                "what the seed does, it would be missed more often than found."
            ).format(n)
        )
    if sized:
        found.append(
            Markup(
                "Size: how much the score moves when only this parameter is redrawn, as a standard deviation, by the "
                "model; a parameter without evidence gets an upper limit only. Rank correlation of left-out "
                "predictions: {}."
            ).format(number(model.quality, fixed(model.quality, 2)))
        )
    conditional = [model.study.named(p.path) for p in model.parameters if p.when]
    if conditional:
        found.append(Markup("Tested among the configurations that use it: {}.").format(listing(conditional)))
    return found


def _setting(study: Study, rows: list[dict[str, Any]]) -> Setting:
    metric = study.objective
    cells: dict[str, Markup | str] = {p.path: "cannot vary" for p in study.space}
    for row in rows:
        cells[row["path"]] = Markup("{}<br>{}").format(_grade(row["grade"]), _bare(_size(row, metric)))
    legend = f"Effect: standard deviation of the score{' in points' if metric.share else ''} when it alone is redrawn."
    return Setting("evidence", "Does it matter?", cells, {row["path"]: row["holm"] for row in rows}, note=legend)


def _grade(grade: str) -> Markup | str:
    return Markup("<b>{}</b>").format(grade) if grade == STRONG else grade


def _size(row: Mapping[str, Any], metric: Metric) -> Markup | str:
    if row["size"] is not None and row["size"] == row["size"]:
        interval = Interval(row["size"], row["lo"], row["hi"], 2)
        return _unsigned(interval, metric)
    if row["at_most"] is not None and row["at_most"] == row["at_most"]:
        return Markup("at most {}").format(number(row["at_most"], significant(row["at_most"] * metric.scale)))
    return "not sized"


def _bare(text: Markup | str) -> Markup:
    """The text without its exact value: the column's own value is the p."""
    return Markup(re.sub(r" data-v=\"[^\"]*\"", "", str(text)))


def _unsigned(interval: Interval, metric: Metric) -> Markup:
    return Markup(str(change(interval, metric)).replace("+", ""))


def p_text(value: float, floor: float = 1 / (PERMUTATIONS + 1)) -> Markup:
    """A p-value; at the floor of the permutations it is only known to be no larger."""
    if value <= max(floor, 0.0005):
        return number(value, f"≤ {max(floor, 0.0005):g}")
    return number(value, fixed(value, 3 if value < 0.1 else 2))
