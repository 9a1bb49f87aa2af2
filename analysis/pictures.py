"""Figures of the model-based panels: a surface over two parameters, curves of a budget, rungs against the end.

As in `plots`: frames in, a matplotlib Figure out, positions on the declared scales.
"""

import math

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from .plots import (
    FULL,
    MOST_DOTS,
    _at_end,
    _axes,
    _cloud,
    _dots,
    _plain_y,
    _tick_digits,
    _y_title,
    parameter_ticks,
)
from .svg import INK, RC
from .tables import Parameter
from .wording import setting


@mpl.rc_context(RC)
def surface(cells: pd.DataFrame, trials: np.ndarray, *, x: Parameter, y: Parameter, names: tuple[str, str]) -> Figure:
    """Predicted score over two parameters in five bands, blank where no trial is near; trials as dots.

    cells: x, y (middles of equal cells), supported, band (0 to 4, the last one the best). trials: (n, 2) positions.
    """
    figure, ax = _axes(FULL, top=18, left=46, right=12)
    ax.grid(visible=False)
    known = cells[cells["supported"]]
    half = 0.5 / len(cells["x"].unique())
    corners = half * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1)])
    for level, alpha in enumerate((0.08, 0.20, 0.36, 0.56, 0.80)):
        own = known.loc[known["band"] == level, ["x", "y"]].to_numpy()
        if not len(own):
            continue
        codes = np.tile([Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY], len(own))
        path = Path((own[:, None] + corners).reshape(-1, 2), codes)
        path.should_simplify = False
        ax.add_patch(PathPatch(path, facecolor=INK["win"], edgecolor="none", alpha=alpha))
    _dots(ax, trials[:, 0], trials[:, 1], "ink", 2.2)
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(-0.02, 1.02)
    places, labels = parameter_ticks(x)
    ax.set_xticks(places, labels)
    places, labels = parameter_ticks(y)
    ax.set_yticks(places, labels)
    ax.set_xlabel(f"{names[0]} ({x.scale})", labelpad=3)
    _y_title(ax, f"{names[1]} ({y.scale})")
    if len(known) < len(cells):
        ax.annotate("blank: no trials here", (1, 1), xycoords="axes fraction", xytext=(0, 7),
                    textcoords="offset points", ha="right", color=INK["muted"])  # fmt: skip
    return figure


@mpl.rc_context(RC)
def curves(
    frame: pd.DataFrame,
    *,
    metric: str,
    default: float,
    limits: tuple[float, float],
    x_label: str = "random trials",
    parts_at: float | None = None,
) -> Figure:
    """Median best against a budget with its band, one line per name; dotted where one of them leads for good.

    frame: name, x (the budget), shown, lo, hi (NaN where there is no such limit). `default` is NaN without one.
    """
    figure, ax = _axes(FULL, top=18, left=33, right=52)
    low, high = limits
    first, last = float(frame["x"].min()), float(frame["x"].max())
    ax.set_xlim(first, last)
    ax.set_ylim(low, high)
    labels: list[tuple[float, str, str]] = []
    for (name, own), role, dash in zip(
        frame.groupby("name", sort=False),
        ("win", "second", "third", "fourth"),
        ("-", (0, (5, 1.6)), (0, (2, 1.2)), "-."),
    ):
        band = own[own["lo"].notna()]
        top = band["hi"].fillna(high).clip(low, high)
        ax.fill_between(band["x"], band["lo"].clip(low, high), top, color=INK[role], alpha=0.16, linewidth=0)
        ax.plot(own["x"], own["shown"], color=INK[role], linewidth=1.3, linestyle=dash)
        labels.append((float(own["shown"].iloc[-1]), str(name), role))
    if math.isfinite(default) and low <= default <= high:
        ax.axhline(default, color=INK["ink"], linewidth=0.9, linestyle=(0, (2.2, 1.6)))
        labels.append((default, "default", "ink"))
    gap, taken = (high - low) * 0.09, -math.inf
    for y, name, role in sorted(labels):
        taken = max(y, taken + gap)
        _at_end(ax, taken, name, role)
    log = last > 100 * first
    if log:
        ax.set_xscale("log")
        decades = range(math.floor(math.log10(first)), math.ceil(math.log10(last)) + 1)
        ticks = [d * 10.0**k for k in decades for d in (1, 3) if first <= d * 10.0**k <= last]
        ticks = ticks[:: math.ceil(len(ticks) / 5)] if len(ticks) > 5 else ticks
        ax.set_xticks(ticks, [setting(t) for t in ticks])
        ax.set_xticks([], minor=True)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=first >= 1, min_n_ticks=1))
    if parts_at is not None:
        ax.axvline(parts_at, color=INK["muted"], linewidth=0.9, linestyle=(0, (1, 1.5)))
        place, _ = ax.transAxes.inverted().transform(ax.transData.transform((parts_at, low)))
        side, step = ("left", 4) if place < 0.7 else ("right", -4)  # at the foot: names and the title are above
        ax.annotate(f"ahead from {setting(parts_at)}", (place, 0), xycoords="axes fraction", xytext=(step, 4),
                    textcoords="offset points", ha=side, color=INK["muted"])  # fmt: skip
    _plain_y(ax)
    ax.set_xlabel(f"{x_label}{' (log)' if log else ''}", labelpad=3)
    _y_title(ax, metric)
    return figure


@mpl.rc_context(RC)
def profile(frame: pd.DataFrame, *, x_label: str, y_label: str, mark: float) -> Figure:
    """Shares of runs by threshold as steps with bands, one a name; the mark dashed.

    frame: name, threshold, share, lo, hi.
    """
    names = list(dict.fromkeys(frame["name"]))
    figure, ax = _axes((FULL[0], FULL[1] + 0.15 * len(names)), top=18 + 11 * len(names), left=33, right=12)
    ax.set_xlim(frame["threshold"].min(), frame["threshold"].max())
    ax.set_ylim(-2, 102)
    for place, (name, role, dash) in enumerate(
        zip(names, ("win", "second", "third"), ("-", (0, (5, 1.6)), (0, (2, 1.2))))
    ):
        own = frame[frame["name"] == name]
        ax.fill_between(own["threshold"], 100 * own["lo"], 100 * own["hi"], step="mid", color=INK[role], alpha=0.16,
                        linewidth=0)  # fmt: skip
        ax.plot(
            own["threshold"], 100 * own["share"], color=INK[role], linewidth=1.3, linestyle=dash, drawstyle="steps-mid"
        )
        up = 7 + 11 * (len(names) - place)
        ax.annotate(name, (0, 1), xycoords="axes fraction", xytext=(0, up), textcoords="offset points", color=INK[role])
    ax.axvline(mark, color=INK["ink"], linewidth=0.9, linestyle=(0, (2.2, 1.6)))
    ax.set_yticks([0, 25, 50, 75, 100])
    ax.xaxis.set_major_locator(MaxNLocator(5))
    digits = _tick_digits(list(ax.get_xticks()))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:.{digits}f}")
    ax.set_xlabel(x_label, labelpad=3)
    _y_title(ax, y_label)
    return figure


@mpl.rc_context(RC)
def rungs(frame: pd.DataFrame, *, metric: str, epoch: int) -> Figure:
    """Score at a rung against the final one, filled where the rung would keep the run. frame: rung, final, kept."""
    figure, ax = _axes(FULL, top=18, left=33, right=12)
    dropped, kept = frame[~frame["kept"]], frame[frame["kept"]]
    if len(frame) > MOST_DOTS:
        _cloud(ax, frame["rung"].to_numpy(), frame["final"].to_numpy())
    else:
        _dots(ax, frame["rung"], frame["final"], "win", 4.6)
        _dots(ax, dropped["rung"], dropped["final"], "card", 2.6)
    if len(frame) > MOST_DOTS and len(kept):
        ax.axvline(kept["rung"].min() if kept["rung"].mean() > frame["rung"].mean() else kept["rung"].max(),
                   color=INK["win"], linewidth=0.9)  # fmt: skip
    ax.margins(0.06, 0.1)
    ax.autoscale_view()
    _plain_y(ax)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    digits = _tick_digits(list(ax.get_xticks()))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:.{digits}f}")
    ax.set_xlabel(f"{metric}, at epoch {epoch}", labelpad=3)
    _y_title(ax, f"{metric}, at the end")
    return figure
