"""The predicted score over two parameters: where trials are near, blank elsewhere."""

import math

import numpy as np
import pandas as pd
from markupsafe import Markup

from .. import pictures
from ..finding import Alt
from ..model import Model
from ..page import figure
from ..tables import Parameter, Study
from ..wording import setting

CELLS = 24
NEAR = 0.09  # on the declared scales: farther from every trial, a surface is a guess
BANDS = 5
COLUMNS = ["pair", "x", "y", "score", "supported", "band"]


def surface(model: Model, pair: pd.Series) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """(cells, trials) of a pair: predicted score over both, the others at the winner's (else the best trial's) values.

    A cell is supported where a trial is near and none around it failed. Of the supported ones those within delta of
    the best are the last band, the rest falls into four of equal size; without a delta, all into five. None where a
    parameter is a choice or nothing is supported.
    """
    places = [p for p in (model.place(pair["first"]), model.place(pair["second"])) if p is not None]
    if len(places) < 2 or any(model.parameters[place].kind == "choice" for place in places):
        return None
    better = model.study.objective.better
    order = (model.points.y * -better).argsort(kind="stable")
    centre = model.points.u[order[0]] if model.winner is None else model.winner
    middles = (np.arange(CELLS) + 0.5) / CELLS
    x, y = (grid.ravel() for grid in np.meshgrid(middles, middles))
    u = np.tile(centre, (len(x), 1))
    u[:, places[0]], u[:, places[1]] = x, y
    trials = model.points.u[:, places]
    nearest = np.sqrt(((np.stack([x, y], 1)[:, None] - trials[None]) ** 2).sum(2)).min(1)
    score, supported = model.process.mean(u), (nearest <= NEAR) & model.feasible(u)
    if not supported.any():
        return None
    band = bands(better * score, supported, model.deltas[0])
    cells = pd.DataFrame({"pair": pair["pair"], "x": x, "y": y, "score": score, "supported": supported, "band": band})
    dots = pd.DataFrame({"pair": pair["pair"], "x": trials[:, 0], "y": trials[:, 1]})
    return cells[COLUMNS].round(6), dots.round(6)


def bands(height: np.ndarray, supported: np.ndarray, delta: float) -> np.ndarray:
    """0 to 4 by height (larger is better), -1 where nothing is known."""
    band = np.full(len(height), -1)
    top = np.zeros(len(height), dtype=bool)
    if math.isfinite(delta):
        top = supported & (height >= height[supported].max() - delta)
    rest, levels = np.flatnonzero(supported & ~top), BANDS - bool(top.any())
    order = np.argsort(height[rest], kind="stable")
    band[rest[order]] = np.arange(len(rest)) * levels // max(1, len(rest))
    band[top] = BANDS - 1
    return band


def picture(study: Study, pair: pd.Series, cells: pd.DataFrame, trials: pd.DataFrame, place: int, alt: Alt) -> Markup:
    """The surface of a pair as a figure."""
    by_path = {p.path: p for p in study.space}
    drawing = pictures.surface(
        cells,
        trials[["x", "y"]].to_numpy(),
        x=by_path[pair["first"]],
        y=by_path[pair["second"]],
        names=(study.named(pair["first"]), study.named(pair["second"])),
    )
    return figure(drawing, f"interactions-{place}", alt)


def alt(study: Study, model: Model, pair: pd.Series, cells: pd.DataFrame) -> Alt:
    """The surface in words."""
    metric, (a, b) = study.objective, (_of(model, pair["first"]), _of(model, pair["second"]))
    known = cells[cells["supported"]]
    best = known.loc[(known["score"] * metric.better).idxmax()]
    ends = [f"{setting(p.low, p)} to {setting(p.high, p)} ({p.scale})" for p in (a, b)]
    strongest = "within delta of the best" if math.isfinite(model.deltas[0]) else "the best fifth"
    text = (
        f"x: {study.named(a.path)}, {ends[0]}; y: {study.named(b.path)}, {ends[1]}; bands of predicted {metric.label}, "
        f"the strongest {strongest}. Best near {setting(a.at(best['x']), a)} and {setting(b.at(best['y']), b)}. "
        f"Blank, no trial near: {len(cells) - len(known)} of {len(cells)} cells."
    )
    return Alt(f"Predicted {metric.label} over two parameters", text)


def _of(model: Model, path: str) -> Parameter:
    return next(p for p in model.parameters if p.path == path)
