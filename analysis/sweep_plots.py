"""Figures of a paper's study: curves along a quantity, histograms; drawn as `plots` draws."""

import math

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from .plots import FULL, _axes, _dots, _plain_y, _y_title
from .svg import INK, RC
from .wording import setting

ROLES = ("win", "second", "third", "fourth")  # at most four curves are told apart
DASHES = ((), (5, 1.6), (2, 1.2), (6, 1.5, 1.5, 1.5))


@mpl.rc_context(RC)
def curves(points: pd.DataFrame, *, x_label: str, metric: str, log: bool, default: float) -> Figure:
    """Means with 95 % intervals along a quantity, one line a curve, the default's mean dashed.

    points: curve, x, mean, lo, hi in the axis' unit.
    """
    names = list(dict.fromkeys(points["curve"]))[: len(ROLES)]
    figure, ax = _axes((FULL[0], FULL[1] + 0.15 * len(names)), top=18 + 11 * len(names), left=33, right=12)
    if log:
        ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
    for place, name in enumerate(names):
        own = points[points["curve"] == name].sort_values("x")
        role = ROLES[place]
        (line,) = ax.plot(own["x"], own["mean"], color=INK[role], linewidth=1.3)
        if DASHES[place]:
            line.set_dashes(DASHES[place])
        for row in own[own["lo"].notna()].itertuples():
            ax.plot([row.x, row.x], [row.lo, row.hi], color=INK[role], linewidth=0.8, solid_capstyle="butt")
        _dots(ax, own["x"], own["mean"], role, 4.2)
        up = 7 + 11 * (len(names) - place)
        ax.annotate(name, (0, 1), xycoords="axes fraction", xytext=(0, up), textcoords="offset points", color=INK[role])
    if math.isfinite(default):
        ax.axhline(default, color=INK["ink"], linewidth=0.9, linestyle=(0, (2.2, 1.6)))
    xs = sorted(set(points["x"]))
    ends = (xs[0], xs[-1])
    if log:
        ax.set_xlim(ends[0] / 1.12, ends[1] * 1.12)
    else:
        pad = 0.04 * (ends[1] - ends[0])
        ax.set_xlim(ends[0] - pad, ends[1] + pad)
    ticks = xs if len(xs) <= 5 else [xs[round(i)] for i in np.linspace(0, len(xs) - 1, 5)]
    ax.set_xticks(ticks)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: setting(float(value))))
    _plain_y(ax)
    ax.set_xlabel(x_label, labelpad=3)
    _y_title(ax, metric)
    return figure


@mpl.rc_context(RC)
def histogram(bars: pd.DataFrame, *, x_label: str, y_label: str, marks: list[float]) -> Figure:
    """Shares per bin on a logarithmic axis, one outline a series, with dashed marks.

    bars: series, low, high, share (0 is left out).
    """
    names = list(dict.fromkeys(bars["series"]))[: len(ROLES)]
    figure, ax = _axes((FULL[0], FULL[1] + 0.15 * len(names)), top=18 + 11 * len(names), left=40, right=12)
    ax.set_yscale("log")
    ax.yaxis.set_minor_locator(NullLocator())
    for place, name in enumerate(names):
        own = bars[(bars["series"] == name) & (bars["share"] > 0)].sort_values("low")
        role = ROLES[place]
        edges = np.append(own["low"].to_numpy(), own["high"].iloc[-1])
        (line,) = ax.plot(edges, np.append(own["share"], own["share"].iloc[-1]), color=INK[role], linewidth=1.2,
                          drawstyle="steps-post")  # fmt: skip
        if DASHES[place]:
            line.set_dashes(DASHES[place])
        up = 7 + 11 * (len(names) - place)
        ax.annotate(name, (0, 1), xycoords="axes fraction", xytext=(0, up), textcoords="offset points", color=INK[role])
    for mark in marks:
        ax.axvline(mark, color=INK["ink"], linewidth=0.9, linestyle=(0, (2.2, 1.6)))
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: setting(float(value))))
    ax.set_xlabel(x_label, labelpad=3)
    _y_title(ax, y_label)
    return figure
