"""What a panel's data function returns, and how the page and the JSON twin read it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from .wording import full, plain

SEVERITIES = {
    "changes": ("■", "Changes the answer"),
    "limits": ("▲", "Limits the claim"),
    "record": ("●", "For the record"),
}


class Exact(dict):
    """A mapping that the JSON twin keeps to the last digit: a configuration, which must hash as it did."""


@dataclass(frozen=True)
class Refusal:
    """Stands where the picture would be: what is missing and the command that fills it."""

    needs: Markup | str
    command: str


@dataclass(frozen=True)
class Check:
    """Something that was looked at. `problem` is None when it passed; `size` orders warnings of one severity."""

    name: str
    severity: str = "record"
    problem: Markup | str | None = None
    consequence: Markup | str = ""
    size: float = 0.0


def check(
    name: str,
    severity: str,
    failed: Any,
    problem: str,
    consequence: str = "",
    /,
    *,
    size: float | None = None,
    **values: Any,
) -> Check:
    """A check that raises a warning when `failed` is true; `problem` and `consequence` are filled with `values`."""
    if not failed:
        return Check(name, severity)
    text, advice = Markup(problem).format(**values), Markup(consequence).format(**values)
    return Check(name, severity, text, advice, float(failed) if size is None else size)


@dataclass(frozen=True)
class Setting:
    """A column that a panel adds to the table "What should I set?": one cell and one number per parameter path."""

    key: str
    head: str
    cells: Mapping[str, Markup | str]
    values: Mapping[str, Any]
    numeric: bool = False
    note: Markup | str = ""
    legend: Markup | str = ""


@dataclass(frozen=True)
class Alt:
    """A figure in words: `title` says what it is, `desc` gives axes, finding, n and what is missing."""

    title: str
    desc: str


@dataclass(frozen=True)
class Finding:
    """The numbers of one panel and every sentence about them.

    `frames` and `numbers` hold all that the drawing shows. With a `refusal` the panel is not drawn.
    """

    title: Markup | str
    used: str
    frames: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)
    sentences: tuple[Markup | str, ...] = ()
    alts: Mapping[str, Alt] = field(default_factory=dict)
    refusal: Refusal | None = None
    checks: tuple[Check, ...] = ()
    settings: tuple[Setting, ...] = ()

    @property
    def worst(self) -> str | None:
        """Severity of the worst warning, or None."""
        raised = {check.severity for check in self.checks if check.problem is not None}
        return next((severity for severity in SEVERITIES if severity in raised), None)


@dataclass(frozen=True)
class Panel:
    """One entry of a PANELS table: its name in the navigation, its two functions, and whether it is open at load."""

    name: str
    data: Callable[..., Finding]  # of a Study, or of several
    draw: Callable[..., Markup]
    open: bool = False


def glyph(finding: Finding) -> tuple[str, str]:
    """(mark, word) before a panel's name in the navigation."""
    if finding.refusal is not None:
        return "○", "not drawn"
    return {"changes": ("■", "changes the answer"), "limits": ("▲", "warning")}.get(finding.worst or "", ("●", ""))


def twin(finding: Finding) -> dict[str, Any]:
    """A finding as JSON: exact numbers, plain text, frames as columns and rows."""
    return {
        "title": plain(finding.title),
        "used": finding.used,
        "drawn": finding.refusal is None,
        "refusal": finding.refusal and {"needs": plain(finding.refusal.needs), "command": finding.refusal.command},
        "sentences": [plain(sentence) for sentence in finding.sentences],
        "numbers": {key: _value(value) for key, value in finding.numbers.items()},
        "frames": {
            name: {"columns": list(frame), "rows": [[_value(v) for v in row] for row in frame.itertuples(index=False)]}
            for name, frame in finding.frames.items()
        },
        "figures": {name: {"title": alt.title, "desc": alt.desc} for name, alt in finding.alts.items()},
    }


def _value(value: Any) -> Any:
    if isinstance(value, np.bool_):
        return bool(value)
    if value is None or isinstance(value, (str, bool)):
        return plain(value) if isinstance(value, Markup) else value
    if isinstance(value, Exact):
        return dict(value)
    if isinstance(value, Mapping):
        return {str(key): _value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_value(inner) for inner in value]
    return full(value)
