"""One function per figure: frames in, a matplotlib Figure out, drawn in the palette's sentinel colours.

Positions of a parameter are on its declared scale, 0 = low and 1 = high (see `tables.Parameter`); ticks carry its
values. Margins are fixed in points, so that small multiples line up. Values outside an axis are filtered and counted
by the caller, never clipped.
"""

import math
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from .svg import INK, RC
from .tables import Parameter
from .wording import setting

FULL = (3.4, 2.3)  # inches: 326 x 221 CSS pixels, text is never scaled below 10.5 px
SMALL = (2.55, 2.35)
MOST_DOTS = 1500
GRID = 40


@mpl.rc_context(RC)
def isolation(
    points: pd.DataFrame,
    buckets: pd.DataFrame,
    *,
    parameter: Parameter,
    name: str,
    default: float,
    metric: str,
    ylim: tuple[float, float],
    lane: bool,
    plateau: tuple[float, float] | None = None,
) -> Figure:
    """Score against one parameter: all finished trials, the best of each bucket, the default, failures at the foot.

    The safe range around the winner is tinted where it is known.

    points: position, shown (score in the axis' unit, NaN for a failure), failed.
    buckets: position, shown, fresh, lo, hi (the last three NaN without fresh seeds).
    """
    figure, ax = _axes(SMALL, top=30, left=33)
    low, high = ylim
    step = (high - low) * 0.14
    foot = low - step if lane else low
    ax.set_ylim(foot - (step * 0.45 if lane else 0), high)
    ends = (-0.05, 1.05) if parameter.kind != "choice" else (-0.5, len(parameter.values) - 0.5)
    ax.set_xlim(*ends)
    if plateau is not None:
        ax.axvspan(*plateau, facecolor=INK["tint"], edgecolor="none", zorder=0)
    good = points[~points["failed"] & points["shown"].between(low, high)]
    _cloud(ax, good["position"].to_numpy() + _jitter(good, parameter), good["shown"].to_numpy())
    if math.isfinite(default):
        ax.axvline(default, color=INK["ink"], linewidth=0.9, linestyle=(0, (2.2, 1.6)))
        _above(ax, default, "default")
    seen = buckets[buckets["shown"].between(low, high)]
    if len(seen) and parameter.kind != "choice":
        ax.plot(seen["position"], seen["shown"], color=INK["win"], linewidth=1.2)
    for row in seen[seen["lo"].notna()].itertuples():
        ends_of = [max(row.lo, low), min(row.hi, high)]
        ax.plot([row.position] * 2, ends_of, color=INK["win"], linewidth=1.2, solid_capstyle="butt")
    _dots(ax, seen["position"], seen["shown"], "win", 4.2)
    again = seen[seen["fresh"].between(low, high)]
    _dots(ax, again["position"], again["fresh"], "win", 4.2)
    _dots(ax, again["position"], again["fresh"], "card", 2.2)
    if lane:
        failed = points[points["failed"]]
        x = failed["position"].to_numpy() + _jitter(failed, parameter)
        _strokes(ax, x, foot - step * 0.22, foot + step * 0.22, "fail")
    ticks = [t for t in MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high) if low <= t <= high]
    digits = _tick_digits(ticks)
    ax.set_yticks([*ticks, foot] if lane else ticks, [f"{t:.{digits}f}" for t in ticks] + ["failed"] * lane)
    if lane:
        ax.get_yticklabels()[-1].set_color(INK["fail"])
        ax.get_ygridlines()[-1].set_visible(False)
    places, labels = parameter_ticks(parameter)
    ax.set_xticks(places, labels)
    ax.set_xlabel(f"{name} ({parameter.scale})" if parameter.kind != "choice" else name, labelpad=3)
    _y_title(ax, metric, lines=2)
    return figure


@mpl.rc_context(RC)
def history(points: pd.DataFrame, *, metric: str, default: float, better: int) -> Figure:
    """Best score so far over finished trials.

    points: order, shown (NaN beyond the axis), best, kind (baseline or search). `default` is the default's score, NaN
    without one.
    """
    figure, ax = _axes(FULL, top=18, left=33, right=42)
    seen = points[points["shown"].notna()]
    searched, fixed = seen[seen["kind"] == "search"], seen[seen["kind"] != "search"]
    _cloud(ax, searched["order"].to_numpy(dtype=float), searched["shown"].to_numpy())
    ax.plot(points["order"], points["best"], color=INK["win"], linewidth=1.3, drawstyle="steps-post")
    _dots(ax, fixed["order"], fixed["shown"], "ink", 5.2)
    _dots(ax, fixed["order"], fixed["shown"], "card", 3.0)
    last = float(points["best"].iloc[-1])
    low, high = ax.get_ylim()
    gap = (high - low) * 0.09
    _at_end(ax, last, "best", "win")
    if math.isfinite(default):
        ax.axhline(default, color=INK["ink"], linewidth=0.9, linestyle=(0, (2.2, 1.6)))
        apart = abs(default - last) >= gap
        _at_end(ax, default if apart else last - better * gap, "default", "ink")
    _plain_y(ax)
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    ax.set_xlabel("finished runs, in order of completion", labelpad=3)
    _y_title(ax, metric)
    return figure


@mpl.rc_context(RC)
def trade_off(
    points: pd.DataFrame, confirmed: pd.DataFrame, *, x_label: str, metric: str, note: str, joined: bool = False
) -> Figure:
    """Two scores against each other: finished trials as dots, configurations with fresh seeds as crosses.

    points: x, shown. confirmed: label, role (win, second, default, dots), x, x_lo, x_hi, shown, lo, hi. With `joined`
    a line goes through the crosses in their order, and all of them are named.
    """
    figure, ax = _axes(FULL, top=18, left=33, right=12)
    if joined:
        ax.plot(confirmed["x"], confirmed["shown"], color=INK["rule"], linewidth=1.2)
    _cloud(ax, points["x"].to_numpy(), points["shown"].to_numpy())
    for row in confirmed.itertuples():
        colour = INK["ink"] if row.role == "default" else INK[row.role]
        if math.isfinite(row.lo):
            ax.plot([row.x, row.x], [row.lo, row.hi], color=colour, linewidth=1.2)
        if math.isfinite(row.x_lo):
            ax.plot([row.x_lo, row.x_hi], [row.shown, row.shown], color=colour, linewidth=1.2)
    ax.margins(0.06, 0.1)
    ax.autoscale_view()
    for row in confirmed.itertuples():
        _dots(ax, [row.x], [row.shown], "ink" if row.role == "default" else row.role, 5.4)
        if row.role == "default":
            _dots(ax, [row.x], [row.shown], "card", 3.2)
    named = confirmed if joined else confirmed[confirmed["role"] != "dots"]
    _labels(ax, named, points)
    _plain_y(ax)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    digits = _tick_digits(list(ax.get_xticks()))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:.{digits}f}")
    ax.set_xlabel(x_label, labelpad=3)
    _y_title(ax, metric)
    ax.annotate(note, (1, 1), xycoords="axes fraction", xytext=(0, 7), textcoords="offset points", ha="right",
                color=INK["muted"])  # fmt: skip
    return figure


@mpl.rc_context(RC)
def scheduled(lines: pd.DataFrame, *, name: str) -> Figure:
    """Temperature or margin over the epochs: the winner's largest, mean and smallest, the default's mean dashed.

    lines: role (winner or default), part (min, mean, max), epoch, value.
    """
    figure, ax = _axes(FULL, top=18, left=36, right=48)
    ends: list[tuple[float, str, str]] = []
    styles = {"max": ("head", "-"), "mean": ("mid", (0, (5, 1.6))), "min": ("tail", (0, (1.5, 1.5)))}
    default = lines[(lines["role"] == "default") & (lines["part"] == "mean")].sort_values("epoch")
    if len(default):
        ax.plot(default["epoch"], default["value"], color=INK["ink"], linewidth=0.9, linestyle=(0, (2.2, 1.6)))
        ends.append((float(default["value"].iloc[-1]), "default", "ink"))
    own = lines[lines["role"] == "winner"]
    flat = own["part"].nunique() == 1
    for part, (role, style) in styles.items():
        line = own[own["part"] == part].sort_values("epoch")
        if len(line) and not (flat and part != "mean"):
            ax.plot(line["epoch"], line["value"], color=INK[role], linewidth=1.3, linestyle=style)
            words = {"max": "largest", "mean": "winner" if flat else "mean", "min": "smallest"}
            ends.append((float(line["value"].iloc[-1]), words[part], role))
    ax.set_ylim(0, 1.08 * float(lines["value"].max()) or 1.0)
    _plain_y(ax)
    gap = (ax.get_ylim()[1] - ax.get_ylim()[0]) * 0.075
    placed = -math.inf
    for value, text, role in sorted(ends):
        placed = max(value, placed + gap)
        _at_end(ax, placed, text, role)
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    ax.set_xlabel("epoch", labelpad=3)
    _y_title(ax, name)
    return figure


def parameter_ticks(parameter: Parameter) -> tuple[list[float], list[str]]:
    """Places and labels of at most five ticks; log scales get 1 and 3 of each decade, or round values when narrow."""
    if parameter.kind == "choice":
        room = max(3, 34 // max(1, len(parameter.values)))
        names = [setting(value) for value in parameter.values]
        return list(map(float, range(len(names)))), [n if len(n) <= room else f"{n[: room - 1]}…" for n in names]
    low, high = parameter.low, parameter.high
    values: list[float] = []
    if high <= low:
        values = [low]
    elif parameter.log:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in ((1, 3), (1,)):
            values = [d * 10.0**k for k in decades for d in digits if low * 0.999 <= d * 10.0**k <= high * 1.001]
            if len(values) <= 4:
                break
        values = values[:: math.ceil(len(values) / 4)] if len(values) > 4 else values
    if len(values) < 2 and high > low:
        values = [t for t in MaxNLocator(3).tick_values(low, high) if low - 1e-12 <= t <= high + 1e-12]
    return [float(p) for p in parameter.position(values)], [setting(v, parameter) for v in values]


def _axes(
    size: tuple[float, float], *, top: float, left: float, right: float = 8, bottom: float = 32
) -> tuple[Figure, Axes]:
    width, height = (72 * s for s in size)
    figure = Figure(figsize=size)
    box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height)
    ax = figure.add_axes(box)
    ax.grid(axis="y")
    ax.spines["left"].set_visible(False)
    return figure, ax


def _y_title(ax: Axes, text: str, lines: int = 1) -> None:
    """The y title stands horizontally above the axis, left-aligned with the tick labels."""
    ax.annotate(text, (0, 1), xycoords="axes fraction", xytext=(-28, 7 if lines == 1 else 18),
                textcoords="offset points")  # fmt: skip


def _above(ax: Axes, x: float, text: str) -> None:
    """A label above the frame at a data position, kept inside the figure."""
    left, right = ax.get_xlim()
    share = (x - left) / (right - left)
    side = "left" if share < 0.12 else "right" if share > 0.88 else "center"
    ax.annotate(text, (x, 1), xycoords=("data", "axes fraction"), xytext=(0, 4), textcoords="offset points", ha=side)


def _at_end(ax: Axes, y: float, text: str, role: str) -> None:
    """A line's name at its right end."""
    ax.annotate(text, (1, y), xycoords=("axes fraction", "data"), xytext=(3, 0), textcoords="offset points",
                va="center", color=INK[role])  # fmt: skip


def _plain_y(ax: Axes) -> None:
    ax.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    digits = _tick_digits(list(ax.get_yticks()))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.{digits}f}")


def _tick_digits(ticks: Sequence[float]) -> int:
    """Decimals that tell the ticks apart."""
    if len(ticks) < 2:
        return 1
    step = float(np.min(np.diff(np.sort(ticks))))
    return next((d for d in range(6) if abs(round(step, d) - step) < 1e-9 * max(1.0, abs(step))), 6)


def _cloud(ax: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Grey dots; beyond `MOST_DOTS`, a count grid of squares in three strengths."""
    if len(x) <= MOST_DOTS:
        _dots(ax, x, y, "dots", 2.2)
        return
    counts, x_edges, y_edges = np.histogram2d(x, y, bins=GRID)
    columns, rows = np.nonzero(counts)
    strength = np.ceil(3 * counts[columns, rows] / counts.max())
    middles = [(edges[1:] + edges[:-1]) / 2 for edges in (x_edges, y_edges)]
    for level in (1, 2, 3):
        pick = strength == level
        at = middles[0][columns[pick]], middles[1][rows[pick]]
        _dots(ax, *at, "dots", 3.0, alpha=level / 3, cap="projecting")


def _dots(ax: Axes, x, y, role: str, size: float, alpha: float = 1.0, cap: str = "round") -> None:
    """Points as zero-length segments with round caps: a sixth of the bytes of a scatter."""
    xy = np.column_stack([np.asarray(x, dtype=float), np.asarray(y, dtype=float)])
    if not len(xy):
        return
    path = Path(np.repeat(xy, 2, axis=0), np.tile([Path.MOVETO, Path.LINETO], len(xy)))
    path.should_simplify = False
    width = size if cap == "round" else size / 2
    ax.add_patch(
        PathPatch(path, fill=False, linewidth=width, capstyle=cap, edgecolor=INK[role], alpha=alpha, zorder=2.5)
    )
    ax.update_datalim(xy)
    ax.autoscale_view()


def _strokes(ax: Axes, x: np.ndarray, low: float, high: float, role: str) -> None:
    """Vertical ticks as one path; a line collection would write one element each."""
    if not len(x):
        return
    ends = np.column_stack([np.repeat(x, 2), np.tile([low, high], len(x))])
    path = Path(ends, np.tile([Path.MOVETO, Path.LINETO], len(x)))
    path.should_simplify = False
    ax.add_patch(PathPatch(path, fill=False, linewidth=0.9, capstyle="butt", edgecolor=INK[role]))


def _jitter(frame: pd.DataFrame, parameter: Parameter) -> np.ndarray:
    """Fixed sideways offsets that keep the dots of one choice, or of one of a few whole numbers, apart."""
    few = parameter.kind == "int" and 0 < parameter.high - parameter.low <= 10
    if parameter.kind != "choice" and not few:
        return np.zeros(len(frame))
    width = 0.5 if parameter.kind == "choice" else 0.3 / (parameter.high - parameter.low)
    return (np.arange(len(frame)) * 0.6180339887 % 1 - 0.5) * width


def _labels(ax: Axes, named: pd.DataFrame, points: pd.DataFrame) -> None:
    """Names beside crosses, each at the cheapest place: off the crosses and other names, inside the frame, few dots."""
    scale = 72 / ax.figure.dpi

    def place(x, y) -> np.ndarray:
        return ax.transData.transform(np.column_stack([x, y])) * scale

    box = ax.get_window_extent()
    frame = np.array([box.x0, box.y0, box.x1, box.y1]) * scale
    centres = place(named["x"], named["shown"])
    lows = place(named["x_lo"].fillna(named["x"]), named["lo"].fillna(named["shown"]))
    highs = place(named["x_hi"].fillna(named["x"]), named["hi"].fillna(named["shown"]))
    cloud = place(points["x"], points["shown"])
    busy = [(low[0], c[1] - 2, high[0], c[1] + 2) for low, c, high in zip(lows, centres, highs)]
    busy += [(c[0] - 2, low[1], c[0] + 2, high[1]) for low, c, high in zip(lows, centres, highs)]
    for (px, py), text, role in zip(centres, named["label"], named["role"]):
        width, height = 5.4 * len(text), 8.5
        best, cheapest = (px, py), math.inf
        for reach in (5, 14, 24, 36):
            for across, up in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1)):
                left = px + across * reach - (width if across < 0 else 0 if across else width / 2)
                foot = py + up * reach - (height if up < 0 else 0 if up else height / 2)
                area = (left, foot, left + width, foot + height)
                outside = area[0] < frame[0] or area[2] > frame[2] or area[1] < frame[1] or area[3] > frame[3]
                dots = (cloud[:, 0] > left) & (cloud[:, 0] < area[2]) & (cloud[:, 1] > foot) & (cloud[:, 1] < area[3])
                cost = 1000 * outside + 60 * sum(_meet(area, other) for other in busy) + 3 * dots.sum() + reach
                if cost < cheapest:
                    best, cheapest = (left, foot), cost
        left, foot = best
        busy.append((left, foot, left + width, foot + height))
        at = (left - frame[0]) / (frame[2] - frame[0]), (foot + 1.5 - frame[1]) / (frame[3] - frame[1])
        ax.annotate(text, at, xycoords="axes fraction", color=INK["ink" if role == "default" else role])


def _meet(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
