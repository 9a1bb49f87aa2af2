"""A matplotlib Figure as a small inline SVG that follows the page's theme.

Figures are drawn with sentinel colours that become CSS variables, so one picture serves light, dark and print.
Coordinates are points; text stays text. The same Figure can be saved as PDF for a paper.
"""

import io
import re
from typing import Any

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.figure import Figure

# role of the page's palette -> sentinel; no figure may use any other colour
INK = {
    name: f"#0505{number:02x}"
    for number, name in enumerate(
        ("ink", "muted", "rule", "card", "win", "second", "third", "fourth", "dots", "tint", "null", "fail",
         "tail", "mid", "head"),
        start=1,
    )
}  # fmt: skip

RC: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mmts-ray",
    "path.simplify_threshold": 0.3,
    "font.family": "DejaVu Sans",  # wider than the usual system fonts, so substitution never overflows
    "font.size": 8.5,
    "axes.linewidth": 0.6,
    "axes.edgecolor": INK["muted"],
    "axes.labelcolor": INK["ink"],
    "axes.labelsize": 8.5,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "figure.facecolor": "none",
    "grid.color": INK["rule"],
    "grid.linewidth": 0.6,
    "text.color": INK["ink"],
    "text.parse_math": False,
    "xtick.color": INK["muted"],
    "ytick.color": INK["muted"],
    "xtick.labelcolor": INK["ink"],
    "ytick.labelcolor": INK["ink"],
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "xtick.major.width": 0.6,
}

_NUMBER = re.compile(r"(?<!opacity: )-?\d+\.\d+")
_TAG = re.compile(r"<[^>]+>")
_DOT = re.compile(r"M (\S+) (\S+) L \1 \2(?= |$|\")")
_HASHED = r"(?:m|p|h|clip)[0-9a-f]{8,}"  # markers and clip paths, named by content


def inline_svg(figure: Figure, identity: str, title: str, desc: str) -> Markup:
    """The figure as an `<svg>` element: themed, without scripts, styles, fonts or shared ids."""
    buffer = io.StringIO()
    with mpl.rc_context(RC):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    width, height = (72 * size for size in figure.get_size_inches())
    body = text[text.index(">", text.index("<svg")) + 1 : text.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", body, flags=re.DOTALL)
    body = body.replace("xlink:href", "href")
    body = re.sub(rf' id="(?!{_HASHED}")[^"]*"', "", body)
    # a clip path shared between figures dies with the closed panel that owns it
    body = re.sub(rf'(\bid="|href="#|url\(#)({_HASHED})', rf"\g<1>{identity}-\g<2>", body)
    body = _TAG.sub(lambda tag: _compact(tag[0]), body)
    body = re.sub(r">\s+<", "><", body).strip().replace("<defs></defs>", "")
    if "<g " not in body:  # groups without attributes do nothing
        body = re.sub(r"</?g/?>", "", body)
    for name, sentinel in INK.items():
        body = body.replace(sentinel, f"var(--{name})")
    return Markup(
        f'<svg class="fig" role="img" aria-labelledby="{identity}-t {identity}-d" viewBox="0 0 {width:g} {height:g}"'
        f' width="{width * 4 / 3:.0f}" height="{height * 4 / 3:.0f}" style="max-width:{width * 1.6:.0f}px">'
        f'<title id="{identity}-t">{escape(title)}</title><desc id="{identity}-d">{escape(desc)}</desc>{body}</svg>'
    )


def _compact(tag: str) -> str:
    """Round coordinates and shorten paths and styles inside one tag; text between tags is never touched."""
    tag = re.sub(r"\s+", " ", _NUMBER.sub(lambda n: f"{round(float(n[0]), 1) + 0.0:g}", tag))
    if tag.startswith("<path"):
        tag = _DOT.sub(r"M\1 \2h0", tag)
        tag = re.sub(r"([MLz]) (?=[-\d])", r"\1", tag)
        tag = re.sub(r" (?=[MLz])", "", tag).replace(' "', '"')
    if tag.startswith("<text"):
        tag = re.sub(r" font-family: [^;\"]*;?", "", tag).replace(f" fill: {INK['ink']}", "")
        tag = re.sub(r" transform=\"rotate\(-?0 [^\"]*\)\"", "", tag)
    tag = re.sub(r"stroke-linejoin: \w+;? ?", "", tag)
    return re.sub(r";(?=\")", "", tag.replace(": ", ":").replace("; ", ";"))
