"""Numbers as text: decimals from the standard error, minus signs, points, folds, durations.

Functions return Markup; a number that is claimed carries its full precision in `data-v`.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from .statistics import Interval
from .tables import Metric, Parameter

THIN = "\u202f"
NBSP = "\u00a0"
MINUS = "\u2212"
MOST_DIGITS = 6
WORDS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")


def full(value: Any) -> float | int | None:
    """A number as it stands in the JSON and in `data-v`: ten significant digits, null when not finite."""
    if value is None or isinstance(value, (bool, str)) or not np.isfinite(float(value)):
        return None
    return int(value) if isinstance(value, (int, np.integer)) else float(f"{float(value):.10g}")


def number(value: Any, text: Any, tag: str = "span") -> Markup:
    """A displayed number that carries its exact value."""
    exact = full(value)
    if exact is None:
        return Markup("{}").format(text)
    return Markup("<{0} data-v={1}>{2}</{0}>").format(Markup(tag), Markup(f'"{exact}"'), text)


def decimals(se: float) -> int:
    """Digits after the point that a standard error supports: one more when it starts with 1."""
    if not math.isfinite(se) or se <= 0:
        return 3
    exponent = math.floor(math.log10(se))
    # a standard error made of rounding alone would ask for seventeen digits
    return min(MOST_DIGITS, max(0, -exponent) + (1 if exponent <= 0 and se / 10**exponent < 2 else 0))


def fixed(value: float, digits: int) -> str:
    """Fixed decimals with a true minus, thin spaces between thousands, and no negative zero."""
    text = f"{abs(value):,.{digits}f}".replace(",", THIN)
    return f"{MINUS}{text}" if value < 0 and any(c in "123456789" for c in text) else text


def signed(value: float, digits: int) -> str:
    text = fixed(value, digits)
    return text if text.startswith(MINUS) or not any(c in "123456789" for c in text) else f"+{text}"


def significant(value: float, digits: int = 2) -> str:
    """A number to a few significant digits, plain between 0.001 and 10 000, else as 1e-4."""
    if value == 0:
        return "0"
    if not 0.001 <= abs(value) < 10_000:
        mantissa, exponent = f"{abs(value):.{digits - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{MINUS if value < 0 else ''}{mantissa}e{int(exponent)}"
    text = f"{abs(value):.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{MINUS if value < 0 else ''}{text}"


def setting(value: Any, parameter: Parameter | None = None) -> str:
    """A parameter's value: whole numbers whole, others to three significant digits, words as they are."""
    if value is None or (isinstance(value, (float, np.floating)) and math.isnan(value)):
        return "null"
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, float, np.integer, np.floating)):
        whole = parameter is not None and parameter.kind == "int" and float(value).is_integer()
        return f"{int(value)}" if whole or isinstance(value, (int, np.integer)) else significant(float(value), 3)
    return str(value)


def unit(metric: Metric) -> str:
    """Unit of a value, with its leading space."""
    return f"{NBSP}%" if metric.share else ""


def points(metric: Metric, shown: str = "") -> str:
    """Unit of a difference, with its leading space: a change of a percentage is in points; `shown` is the number."""
    return f" point{'' if shown.lstrip(f'+{MINUS}') == '1' else 's'}" if metric.share else ""


def amount(value: float, metric: Metric, tag: str = "span") -> Markup:
    """The size of a difference, two significant digits and its unit: `0.96 points`, `1 point`."""
    shown = significant(value * metric.scale)
    return number(value, f"{shown}{points(metric, shown)}", tag)


def digits_of(interval: Interval, metric: Metric) -> int:
    half = interval.half * metric.scale
    if math.isfinite(half) and half > 1e-9 * abs(interval.mean * metric.scale):  # less is rounding
        return decimals(2 * half / 3.92)
    return 1 if metric.share else 3


def score(interval: Interval, metric: Metric, tag: str = "span", with_unit: bool = True) -> Markup:
    """`31.4 % [30.9, 31.9]`; a single run says so."""
    if interval.n == 0:
        return Markup("no run")
    scale, suffix = metric.scale, unit(metric) if with_unit else ""
    if interval.n == 1:
        return Markup("{}{} (one run)").format(number(interval.mean, significant(interval.mean * scale), tag), suffix)
    digits = digits_of(interval, metric)
    value = Markup("{}{}").format(fixed(interval.mean * scale, digits), suffix)
    return Markup("{} {}").format(number(interval.mean, value, tag), limits(interval, metric, digits))


def limits(interval: Interval, metric: Metric, digits: int, sign: bool = False, flip: bool = False) -> Markup:
    """The muted `[30.9, 31.9]`; flipped when the text gives the size of a negative difference."""
    scale = metric.scale
    ends = (-interval.hi, -interval.lo) if flip else (interval.lo, interval.hi)
    show = signed if sign else fixed
    text = f"[{show(ends[0] * scale, digits)},{NBSP}{show(ends[1] * scale, digits)}]"
    return Markup('<span class="ci">{}</span>').format(text)


def change(interval: Interval, metric: Metric, with_unit: bool = False) -> Markup:
    """A signed difference with its limits: `+1.9 points [+1.1, +2.7]`."""
    digits = digits_of(interval, metric)
    shown = signed(interval.mean * metric.scale, digits)
    value = number(interval.mean, f"{shown}{points(metric, shown) if with_unit else ''}")
    return Markup("{} {}").format(value, limits(interval, metric, digits, sign=True))


def named(value: Any, metric: Metric, digits: int, tag: str = "span") -> Markup:
    """A score with what it measures: `31.4 % R@1`, or `loss 0.51`."""
    text = f"{fixed(value * metric.scale, digits)}{unit(metric)}"
    return number(value, f"{text} {metric.label}" if metric.share else f"{metric.label} {text}", tag)


def single(value: float, metric: Metric) -> Markup:
    """A score of one run, three significant digits."""
    return number(value, significant(value * metric.scale, 3))


def percent(share: float, n: int | None = None) -> str:
    """A share in percent, without decimals below a thousand cases."""
    return f"{fixed(100 * share, 0 if n is None or n < 1000 else 1)}{NBSP}%"


def whole(n: int) -> str:
    """A count, exact, with thin spaces between thousands."""
    return f"{n:,}".replace(",", THIN)


def count(n: int, noun: str, plural: str | None = None) -> str:
    return f"{whole(n)} " + (noun if n == 1 else plural or f"{noun}s")


def agree(n: int, one: str, many: str) -> str:
    """A number with its verb: `1 was`, `3 were`."""
    return f"{whole(n)} {one if n == 1 else many}"


def in_words(n: int) -> str:
    return WORDS[n] if n < len(WORDS) else whole(n)


def listing(items: Sequence[Any], most: int = 4) -> Markup:
    """`a, b and c`; beyond `most`, the rest is counted."""
    if len(items) > most:
        items = [*items[: most - 1], f"{len(items) - most + 1} more"]
    if not items:
        return Markup("none")
    head, last = items[:-1], items[-1]
    joined = Markup(", ").join(escape(item) for item in head)
    return Markup("{} and {}").format(joined, last) if head else escape(last)


def duration(seconds: float) -> str:
    """Two significant digits in seconds, minutes or hours."""
    for size, name in ((3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 1.5 * size:
            return f"{significant(seconds / size)} {name}"
    return f"{significant(seconds)} seconds"


def day(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d")


def short_hash(digest: str) -> str:
    return f"{digest[:4]}…{digest[-2:]}" if len(digest) > 8 else digest


def plain(text: Any) -> str:
    """Markup without its tags, for the JSON twin and the terminal."""
    return Markup(text).striptags() if isinstance(text, Markup) else str(text)
