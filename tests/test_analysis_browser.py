"""The report in a real browser: layout, contrast, themes, scripts on and off, print. Skips itself without Chromium."""

import json
import re

import chromium
import pytest
from ledger_maker import synthetic
from mmts_ray.analysis import report
from mmts_ray.analysis.several import write as several
from test_analysis_report import rich  # noqa: F401  (a fixture)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium.BINARY is None, reason="no Chromium or Chrome on the path"),
]

OPEN_ALL = "document.querySelectorAll('details').forEach(d => d.open = true)"
WIDTH = "document.documentElement.scrollWidth"  # innerWidth grows with the content on a phone
FIGURES = """[...document.querySelectorAll('svg.fig')].map(svg => {
  const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
  const texts = [...svg.querySelectorAll('text')].map(t => {
    const r = t.getBoundingClientRect();
    return {text: t.textContent, size: parseFloat(getComputedStyle(t).fontSize) * scale,
            x0: r.left - box.left, x1: r.right - box.left, y0: r.top - box.top, y1: r.bottom - box.top}});
  return {width: box.width, height: box.height, texts}})"""
BARS = "[...document.querySelectorAll('svg.bar')].map(b => b.getBoundingClientRect().width)"
CLIPPED = """[...document.querySelectorAll('td, th, p, summary, .barhead, .ends, .warning')].filter(e =>
  e.offsetParent && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline')
  .map(e => e.className + ' ' + e.textContent.slice(0, 60))"""
CONTRAST = """(() => {
  const rgb = c => c.startsWith('color(') ? c.match(/[\\d.]+/g).slice(0, 3).map(v => 255 * v)
                                          : c.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const clear = c => /, 0\\)$/.test(c) || c === 'transparent';
  const linear = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = rgb(c).map(linear); return .2126 * r + .7152 * g + .0722 * b };
  const bad = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    const unseen = e.closest('script, style, title, desc, .sr, .skip') || !e.getClientRects().length;
    if (unseen || !walk.currentNode.textContent.trim()) continue;
    const style = getComputedStyle(e), ink = e.closest('svg') ? style.fill : style.color;
    let under = e; while (under && clear(getComputedStyle(under).backgroundColor)) under = under.parentElement;
    const [a, b] = [light(ink), light(getComputedStyle(under || document.documentElement).backgroundColor)];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.push([walk.currentNode.textContent.trim().slice(0, 40), ratio.toFixed(2), ink]);
  } return bad })()"""


@pytest.fixture(scope="module")
def page():
    with chromium.browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def written(rich, tmp_path_factory):  # noqa: F811
    plain = synthetic(tmp_path_factory.mktemp("plain") / "plain", trials=30, confirm=0)
    other = synthetic(tmp_path_factory.mktemp("other") / "other", trials=30, confirm=3, seed=4)
    same = synthetic(tmp_path_factory.mktemp("same") / "same", trials=30, confirm=3, seed=5)
    compared = several.write(several.make([other, same]))
    return {"rich": report.write(rich), "plain": report.write(plain), "several": compared}


def complaints(page):
    return [
        event
        for event in page.events
        if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")
        or (event["method"] == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "warning"))
    ]


@pytest.mark.parametrize("name", ["rich", "plain", "several"])
@pytest.mark.parametrize("dark", [False, True], ids=["day", "night"])
@pytest.mark.parametrize("width", [400, 1400])
def test_layout(page, written, width, dark, name):
    page.open(written[name], width=width, dark=dark)
    assert page.run(WIDTH) <= width
    page.run(OPEN_ALL)
    assert page.run(WIDTH) <= width
    assert not complaints(page)
    asked = [e["params"]["request"]["url"] for e in page.events if e["method"] == "Network.requestWillBeSent"]
    assert all(url.startswith(("file:", "data:")) for url in asked)
    figures = page.run(FIGURES)
    assert figures
    for figure in figures:
        assert figure["width"] >= 240
        for text in figure["texts"]:
            assert 10 <= text["size"] <= 16, text
            assert text["x0"] >= -1, text
            assert text["y0"] >= -1, text
            assert text["x1"] <= figure["width"] + 1, text
            assert text["y1"] <= figure["height"] + 1, text
        for i, a in enumerate(figure["texts"]):
            for b in figure["texts"][:i]:
                across = min(a["x1"], b["x1"]) - max(a["x0"], b["x0"])
                down = min(a["y1"], b["y1"]) - max(a["y0"], b["y0"])
                assert across <= 1 or down <= 3, (a, b)
    assert all(bar >= 60 for bar in page.run(BARS))
    assert not page.run(CLIPPED)
    assert not page.run(CONTRAST)


def test_sorting_and_csv(page, written):
    page.open(written["rich"], width=1400)
    page.run(OPEN_ALL)
    frame = "document.querySelector('[data-frame=\"fresh.configurations\"]')"
    values = f"[...{frame}.tBodies[0].rows].map(r => +r.cells[3].dataset.v)"
    head = f"{frame}.querySelectorAll('th button')[3]"
    before = page.run(values)
    page.run(f"{head}.click()")
    assert page.run(values) == sorted(before, reverse=True)
    page.run(f"{head}.click()")
    assert page.run(values) == sorted(before)
    assert page.run(f"{head}.closest('th').getAttribute('aria-sort')") == "ascending"
    text = page.run(f"csv({frame})")
    assert len(text.strip().split("\n")) == len(before) + 1
    assert page.run("document.querySelectorAll('button.csv').length") == page.run(
        "document.querySelectorAll('table').length"
    )


def test_theme_buttons_and_links_to_closed_panels(page, written):
    page.open(written["rich"], width=1400)
    ground = "getComputedStyle(document.body).backgroundColor"
    day = page.run(ground)
    for _ in range(2):
        page.run("document.querySelectorAll('#buttons button')[0].click()")
    assert page.run(ground) != day
    assert page.run("document.documentElement.dataset.theme") == "dark"
    assert not page.run("document.getElementById('reproduce').open")
    page.run("document.querySelector('nav a[href=\"#reproduce\"]').click()")
    assert page.run("document.getElementById('reproduce').open")
    page.run("document.querySelectorAll('#buttons button')[1].click()")
    assert page.run("[...document.querySelectorAll('details.panel')].every(d => d.open)")


def test_without_script_nothing_is_dead(page, written):
    page.open(written["rich"], width=1400, script=False)
    text = page.run("document.body.innerText")
    twin = json.loads(written["rich"].with_name("report.json").read_text())
    assert twin["panels"]["verdict"]["title"][:40] in re.sub(r"\s+", " ", text)
    assert page.run("document.querySelectorAll('button').length") == 0


def test_print(page, written):
    page.open(written["rich"], width=1400)
    pdf = page.pdf()
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 14
