"""Which pairs of parameters only work together: products beyond their own effects, and a picture of the strongest."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from .. import commands, pictures
from ..finding import Alt, Finding, Refusal
from ..model import WEAK, Model, model_of
from ..page import Column, beside, figure, more, notes, table
from ..statistics import Interval
from ..tables import Metric, Parameter, Study
from ..wording import change, count, listing, points, setting
from .importance import lacking, p_text

NAME = "Interactions"
PER_PARAMETER = 10  # configurations per parameter below which main effects eat the data
CELLS = 24
NEAR = 0.09  # on the declared scales: farther from every trial, a surface is a guess
SHOWN = 10


def interactions(study: Study) -> Finding:
    """Every testable pair: its effect with limits, and whether forward selection took it."""
    model = model_of(study)
    n, wanted = len(model.paired), PER_PARAMETER * len(model.parameters)
    refused = lacking(study, model)
    if refused is None and len(model.parameters) < 2:
        refused = Refusal("Needs two searched parameters; this study has one. A wider space fills it:",
                          commands.widen(study))  # fmt: skip
    if refused is None and n < wanted:
        needs = f"Needs {wanted} configurations, {PER_PARAMETER} per parameter; {n} ran to their end. More fill it:"
        refused = Refusal(needs, commands.extend(study))
        if model.steered:
            needs = (
                f"Needs {wanted} configurations drawn at random, {PER_PARAMETER} per parameter; {n} were. Where a "
                "sampler followed the scores, pairs are invented three times too often. More controls fill it:"
            )
            refused = Refusal(needs, commands.controls(study))
    if refused is None and model.pairs is None:
        needs = "The configurations cannot tell products from single effects (too few distinct values). More fill it:"
        refused = Refusal(needs, commands.extend(study))
    if refused is not None or model.pairs is None:
        return Finding(NAME, count(n, "configuration"), refusal=refused)
    paths = [p.path for p in model.parameters]
    rows = [
        {
            "first": paths[pair.first],
            "second": paths[pair.second],
            "pair": f"{study.named(paths[pair.first])} × {study.named(paths[pair.second])}",
            "effect": pair.effect,
            "lo": pair.lo,
            "hi": pair.hi,
            "p": pair.p,
            "selected": pair.step > 0,
            "together": study.objective.better * pair.slope > 0,
        }
        for pair in model.pairs
    ]
    frame = pd.DataFrame(rows).sort_values(["selected", "p", "pair"], ascending=[False, True, True], ignore_index=True)
    chosen = frame[frame["selected"]]
    surface = _surface(model, chosen.iloc[0]) if len(chosen) and model.quality >= WEAK else None
    frames, alts = {"pairs": frame}, {}
    if surface is not None:
        frames["surface"] = surface
        alts["surface"] = _alt(study, model, chosen.iloc[0], surface)
    return Finding(
        title=_title(chosen),
        used=f"{count(n, 'configuration')}{' drawn at random' if model.steered else ''}",
        frames=frames,
        numbers={"configurations": n, "pairs": len(frame), "selected": len(chosen)},
        sentences=tuple(_sentences(model, frame)),
        alts=alts,
    )


def draw(study: Study, finding: Finding) -> Markup:
    frame, metric = finding.frames["pairs"], study.objective
    columns = [
        Column("pair", "Pair", lambda row: row["pair"], False),
        Column("selected", "Together?", _verdict, False),
        Column(
            "effect", f"Effect, sd{' in' if metric.share else ''}{points(metric)}", lambda row: _effect(row, metric)
        ),
        Column("p", "P, this pair", lambda row: p_text(row["p"], 0.0)),
    ]
    drawn = table("interactions.pairs", frame, columns, label="Pairs of parameters")
    if len(frame) > SHOWN:
        drawn = more(f"All {len(frame)} pairs", drawn)
    if "surface" not in finding.frames:
        return drawn + notes(finding.sentences)
    by_path = {p.path: p for p in study.space}
    top = frame.iloc[0]
    picture = pictures.surface(
        finding.frames["surface"].assign(shown=lambda f: f["score"] * metric.scale),
        finding.frames["surface"].attrs["trials"],
        x=by_path[top["first"]],
        y=by_path[top["second"]],
        names=(study.named(top["first"]), study.named(top["second"])),
        better=metric.better,
    )
    return beside(figure(picture, "interactions-0", finding.alts["surface"]), finding.sentences) + drawn


def _title(chosen: pd.DataFrame) -> Markup:
    if chosen.empty:
        return Markup("No pair of parameters is shown to work together")
    return Markup("{} interact").format(listing(list(chosen["pair"])))


def _sentences(model: Model, frame: pd.DataFrame) -> list[Markup]:
    left_out = [p for p in model.parameters if p.kind == "choice" and len(p.values) > 2]
    text = (
        "Looked for: the product of two parameters beyond what each does alone (cubic). The strongest pair is taken "
        "when chance would give such a pair in fewer than 1 of 20 studies without any, then the rest are tested again "
        "with it in the model, three times at most. Effect: standard deviation over the searched box."
    )
    found = [Markup(text)]
    if left_out:
        names = listing([model.study.named(p.path) for p in left_out])
        found.append(Markup("Not looked for: pairs with {}, choices of more than two values.").format(names))
    return found


def _verdict(row: Mapping[str, Any]) -> Markup | str:
    if not row["selected"]:
        return "not established"
    words = "rise together" if row["together"] else "trade off: one high, the other low"
    return Markup("<b>{}</b>").format(words)


def _effect(row: Mapping[str, Any], metric: Metric) -> Markup | str:
    if row["effect"] is None:
        return Markup('<span class="few">few</span>')
    text = str(change(Interval(row["effect"], row["lo"], row["hi"], 2), metric)).replace("+", "")
    return Markup(text)


def _surface(model: Model, pair: pd.Series) -> pd.DataFrame | None:
    """Predicted score over both parameters, the others at the winner's (else the best trial's) values."""
    places = [p for p in (model.place(pair["first"]), model.place(pair["second"])) if p is not None]
    if len(places) < 2 or any(model.parameters[place].kind == "choice" for place in places):
        return None
    order = (model.points.y * -model.study.objective.better).argsort(kind="stable")
    centre = model.points.u[order[0]] if model.winner is None else model.winner
    middles = (np.arange(CELLS) + 0.5) / CELLS
    x, y = (grid.ravel() for grid in np.meshgrid(middles, middles))
    u = np.tile(centre, (len(x), 1))
    u[:, places[0]], u[:, places[1]] = x, y
    trials = model.points.u[:, places]
    nearest = np.sqrt(((np.stack([x, y], 1)[:, None] - trials[None]) ** 2).sum(2)).min(1)
    frame = pd.DataFrame({"x": x, "y": y, "score": model.process.mean(u)})
    frame["supported"] = (nearest <= NEAR) & model.feasible(u)
    frame.attrs["trials"] = trials
    return frame.round(6) if frame["supported"].any() else None


def _alt(study: Study, model: Model, pair: pd.Series, surface: pd.DataFrame) -> Alt:
    metric, (a, b) = study.objective, (_of(model, pair["first"]), _of(model, pair["second"]))
    known = surface[surface["supported"]]
    best = known.loc[(known["score"] * metric.better).idxmax()]
    ends = [f"{setting(p.low, p)} to {setting(p.high, p)} ({p.scale})" for p in (a, b)]
    text = (
        f"x: {study.named(a.path)}, {ends[0]}; y: {study.named(b.path)}, {ends[1]}; five bands of predicted "
        f"{metric.label}, the strongest the best. Best near {setting(a.at(best['x']), a)} and "
        f"{setting(b.at(best['y']), b)}. Blank, no trial near: {len(surface) - len(known)} of {len(surface)} cells."
    )
    return Alt(f"Predicted {metric.label} over two parameters", text)


def _of(model: Model, path: str) -> Parameter:
    return next(p for p in model.parameters if p.path == path)
