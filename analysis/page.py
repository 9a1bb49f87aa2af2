"""HTML parts that panels are drawn with: tables, figures with text beside them, bars, refusals, code."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from .finding import Alt, Finding
from .svg import inline_svg
from .wording import full

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Column:
    """A column of a table: `key` names the frame's column that sorts and exports, `show` makes the text."""

    key: str
    head: Markup | str
    show: Callable[[Any], Markup | str]
    numeric: bool = True
    css: str = ""


@cache
def environment() -> Environment:
    """Autoescaping templates of this folder; a name that a template misspells is an error."""
    env = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return env


def macro(template: str, name: str, /, **values: Any) -> Markup:
    """A macro of a template of this folder."""
    return Markup(getattr(environment().get_template(template).module, name)(**values)).strip()


def bar(name: str, /, **numbers: Any) -> Markup:
    """In-row SVG in percentages of its cell."""
    return macro("bars.html", name, **numbers)


def table(
    name: str, frame: pd.DataFrame, columns: Sequence[Column], label: str, sort: bool = True, wide: bool = False
) -> Markup:
    """A frame as a table whose first column heads the rows. `name` is `panel.frame`, as in the JSON twin;
    a `wide` one fills the page (it holds bars), others are as wide as their text.
    """
    rows = []
    plain = frame.astype(object).where(frame.notna(), None)
    for row in plain.to_dict(orient="records"):
        cells = [
            {
                "text": column.show(row),
                "value": full(row[column.key]) if _is_number(row.get(column.key)) else None,
                "column": column,
            }
            for column in columns
        ]
        rows.append(cells)
    return macro("parts.html", "table", name=name, columns=columns, rows=rows, label=label, sort=sort, wide=wide)


def figure(drawing: Figure, identity: str, alt: Alt) -> Markup:
    """A Figure as inline SVG."""
    return inline_svg(drawing, identity=identity, title=alt.title, desc=alt.desc)


def beside(picture: Markup, sentences: Sequence[Markup | str]) -> Markup:
    """A picture with reading text to its right, below it on a phone."""
    text = Markup("").join(Markup("<p>{}</p>").format(sentence) for sentence in sentences)
    return Markup('<div class="beside"><div>{}</div><div class="prose">{}</div></div>').format(picture, text)


def notes(sentences: Sequence[Markup | str]) -> Markup:
    """Small print under a picture or table."""
    return Markup("").join(Markup('<p class="note">{}</p>').format(sentence) for sentence in sentences)


def code(text: str) -> Markup:
    """A command or configuration to copy."""
    return Markup('<pre tabindex="0">{}</pre>').format(text)


def more(summary: str, body: Markup) -> Markup:
    """A closed part inside a panel."""
    return Markup('<details class="more"><summary>{}</summary>{}</details>').format(summary, body)


def refusal(name: str, finding: Finding) -> Markup:
    """The dashed box that replaces a drawing."""
    assert finding.refusal is not None
    return macro("parts.html", "refusal", name=name, needs=finding.refusal.needs, command=finding.refusal.command)


def whole(**values: Any) -> str:
    """The page: `report.html` with its style and script, without blank lines."""
    css, script = ((FOLDER / name).read_text(encoding="utf8") for name in ("report.css", "report.js"))
    html = environment().get_template("report.html").render(css=Markup(css), script=Markup(script), **values)
    return "\n".join(line for line in html.splitlines() if line.strip()) + "\n"


class Axis:
    """Places values on a bar: percentages between 2 and 98, so that dots at the ends stay whole."""

    def __init__(self, low: float, high: float) -> None:
        pad = 0.0 if high > low else 0.5
        self.low, self.high = low - pad, high + pad

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(2 + 96 * min(1.0, max(0.0, share)), 2)


def _is_number(value: Any) -> bool:
    return value is not None and not isinstance(value, (str, bool, Mapping, list, tuple)) and full(value) is not None
