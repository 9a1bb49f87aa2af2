"""The report in a real browser: layout, contrast, themes, scripts on and off, print. Skips itself without Chromium."""

import json
import re

import chromium
import pytest
from ledger_maker import DEFAULT, Maker, meta_of, synthetic, unit, write_study
from mmts_ray.analysis import plan, report
from mmts_ray.analysis.panels import PANELS
from mmts_ray.analysis.several import write as several
from sweeps import BASE, shifted
from test_analysis_budget import two_losses
from test_analysis_curves import cosines
from test_analysis_flat import level
from test_analysis_gap import FAR, NEAR, baselines
from test_analysis_plan import QUICK, TOP, World
from test_analysis_profiles import carried
from test_analysis_report import numbers_of, rich  # noqa: F401  (rich is a fixture)

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


def everything(folder):
    """A study in which no panel lacks anything: three settings of one quantity, and every run that a plan asks for."""
    temperatures = {f"fixed at temperature {x:g}": {**DEFAULT, "schedule.tau": x} for x in (0.02, 0.04, 0.1)}
    health = cosines(captions={"0.0": 0.7, "0.8": 0.2, "0.9": 0.1}, images={"0.5": 1.0})
    data = {**meta_of("")["data"], "health": health}
    world = World(folder, trials=110, points=[TOP], confirm=5, data=data, baselines=["paper", *temperatures])
    for name, params in temperatures.items():
        config = {**params, **QUICK}
        world.maker.run(f"b{name[-4:]}", "baseline", config, world.measure(unit(params), 0), name=name, epochs=4)
        for seed in range(1000, 1005):
            world.run(name, "confirm", config, seed)
    for _ in range(8):
        made = plan.plan(world.study)
        if not made.entries:
            break
        world.carry_out(made)
    return folder


def nothing(folder):
    """A study of one run, which failed."""
    maker = Maker("nothing")
    maker.run("t0000", "search", {"train.lr": 0.1}, {}, status="failed", error="boom")
    return write_study(folder, maker.rows, meta_of("nothing", baselines=[]))


@pytest.fixture(scope="module")
def written(rich, tmp_path_factory):  # noqa: F811
    made = tmp_path_factory.mktemp("made")
    studies = {
        "rich": rich,
        "plain": synthetic(made / "plain", trials=30, confirm=0),
        "everything": everything(made / "everything"),
        "nothing": nothing(made / "nothing"),
        "losses": two_losses(made / "losses", ahead=0.08).path,
        "level": level(made / "level"),
        "baselines": baselines(made / "baselines", {"paper": BASE, "b": shifted(0.05)}, {"paper": FAR, "b": NEAR}).path,
    }
    others = [synthetic(made / f"other{seed}", trials=30, confirm=3, seed=seed) for seed in (4, 5)]
    compared = several.write(several.make(others))
    profiles = several.write(several.make(carried(made / "sets")))
    return {"several": compared, "profiles": profiles} | {
        name: report.write(folder) for name, folder in studies.items()
    }


def twin_of(path):
    return json.loads(path.with_name("report.json").read_text(encoding="utf8"))


KEYS = [key for panels in PANELS.values() for key in panels]
ALWAYS = {"ledger", "data", "reproduce"}  # they speak of the runs as they are


def test_every_panel_is_drawn_in_one_study_and_refused_in_another(written):
    full, bare = twin_of(written["everything"])["panels"], twin_of(written["nothing"])["panels"]
    assert {key: full[key]["refusal"] for key in KEYS if not full[key]["drawn"]} == {}
    assert {key for key in KEYS if bare[key]["drawn"]} == ALWAYS


def complaints(page):
    return [
        event
        for event in page.events
        if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")
        or (event["method"] == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "warning"))
    ]


STUDIES = ["rich", "plain", "everything", "nothing"]


@pytest.mark.parametrize("name", [*STUDIES, "losses", "level", "baselines", "several", "profiles"])
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
    assert figures or name == "nothing"
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


SORT = """[...document.querySelectorAll('table[data-sort]')].map(table => {
  const cells = i => [...table.tBodies[0].rows].map(r => r.cells[i]).map(c => {
    const t = c.dataset.v ?? c.textContent.trim().replace('\u2212', '-'), n = parseFloat(t);
    return Number.isNaN(n) ? null : n });
  const out = [], heads = table.querySelectorAll('thead th').length, rows = table.tBodies[0].rows.length;
  for (let i = 0; i < heads; i++) {
    const th = table.querySelectorAll('thead th')[i];
    for (const wanted of ['descending', 'ascending']) {
      th.querySelector('button').click();
      out.push({head: th.textContent, wanted, said: th.getAttribute('aria-sort'), values: cells(i),
                lost: rows - table.tBodies[0].rows.length}) }}
  return {name: table.dataset.frame, out}})"""


@pytest.mark.parametrize("name", ["rich", "everything"])
def test_every_table_sorts_by_every_column_and_loses_no_row(page, written, name):
    page.open(written[name], width=1400)
    page.run(OPEN_ALL)
    tables = page.run(SORT)
    assert tables
    for table in tables:
        for click in table["out"]:
            where = (table["name"], click["head"], click["wanted"])
            assert click["said"] == click["wanted"], where
            assert click["lost"] == 0, where
            numbers = [v for v in click["values"] if v is not None]
            assert numbers == sorted(numbers, reverse=click["wanted"] == "descending"), where
    assert not complaints(page)


@pytest.mark.parametrize("name", STUDIES)
def test_what_the_page_shows_is_what_the_json_twin_holds(page, written, name):
    page.open(written[name], width=1400)
    page.run(OPEN_ALL)
    twin = twin_of(written[name])
    shown = page.run("[...document.querySelectorAll('[data-v]')].map(e => e.dataset.v)")
    known = numbers_of(twin)
    strange = sorted({v for v in shown if re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?", v) and float(v) not in known})
    assert strange == []
    squeeze = lambda text: re.sub(r"\s+", " ", text).strip()  # noqa: E731
    for key in KEYS:
        panel = twin["panels"][key]
        text = squeeze(page.run(f"document.getElementById({key!r}).innerText"))
        assert squeeze(panel["title"]) in text, key
        if not panel["drawn"]:
            assert squeeze(panel["refusal"]["needs"]) in text, key
            assert squeeze(panel["refusal"]["command"]) in text, key


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
