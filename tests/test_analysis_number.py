"""Number agreement: every sentence of every panel, at counts of nothing, one and two."""

import ast
import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from agreement import faults
from ledger_maker import SPACE, Maker, arms, meta_of, native, synthetic, write_study
from markupsafe import Markup
from mmts_ray.analysis import plan, plan_text, report, tables
from mmts_ray.analysis.panels import PANELS, collected
from mmts_ray.analysis.several import SEVERAL, studies
from mmts_ray.analysis.several import write as several
from mmts_ray.analysis.wording import plain
from sweeps import BASE, TEST, VAL, ramp, shifted, write_more

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("text", [
    "20 are needed; 1 were.", "1 trials beyond the axis", "1 lack them.", "differs by 1 points", "1 have them",
    "2 was left", "2 trial failed", "0 has them", "1 of 3 settings are dominated", "1 of 3 carried settings lose",
    "1 of 1 search trials failed", "widened for 1 looks",
])  # fmt: skip
def test_faults_are_seen(text):
    assert faults(text)


@pytest.mark.parametrize("text", [
    "1 was; 0 were; 2 were", "0.1 points", "1 of 3 settings is dominated", "1 run, 2 runs", "21 trials are left out",
    "1 of 3 settings lost", "10 trials", "1 % of it", "−1 point", "1 look", "12 seeds", "1.1 points [0.1, 2.1]",
    "1 of them loses R@1", "every 2 runs", "1 to 12; 1 hollow",
])  # fmt: skip
def test_what_agrees_is_left_alone(text):
    assert not faults(text)


def texts(finding):
    yield from (finding.title, finding.used, *finding.sentences)
    yield from (part for alt in finding.alts.values() for part in (alt.title, alt.desc))
    if finding.refusal:
        yield finding.refusal.needs
    for check in finding.checks:
        yield from (part for part in (check.problem, check.consequence) if part)
    for column in finding.settings:
        yield from (column.note, column.legend, *column.cells.values())


def parts(html):
    """The texts of a drawing, a cell or paragraph at a time."""
    html = re.sub(r"<svg.*?</svg>", " ", str(html), flags=re.DOTALL)
    for part in re.split(r"</?(?:td|th|tr|p|pre|div|summary|h\d|li)\b[^>]*>", html):
        yield Markup(re.sub("<[^>]+>", "", part)).unescape()


def drawn(study, key, finding):
    panel = next(panels[key] for panels in PANELS.values() if key in panels)
    return list(parts(panel.draw(study, finding)))


@dataclass
class Made:
    """A folder of one small study, and what it is small in."""

    name: str
    make: object


def bare(folder, trials, fresh, baselines=1, lost=0, kind="search", **meta):
    """`trials` search trials, of which `lost` fail, and `fresh` seeds of the default and of the first."""
    maker = Maker(folder.name)
    rng = np.random.default_rng(trials + 10 * fresh)

    def metrics():
        score = float(0.3 + 0.02 * rng.standard_normal())
        split = {f"{s}_{m}": v for s in ("val", "test") for m, v in (
            ("i2t_r1", score), ("modality_distance", 0.5 + 0.1 * rng.random()), ("head_r1", score + 0.1),
            ("mid_r1", score), ("tail_r1", score - 0.1), ("n_head", 40), ("n_mid", 40), ("n_tail", 40))}  # fmt: skip
        return split

    names = ["paper", "other", "third"][:baselines]
    params = {name: {"train.lr": 1e-3 * (1 + place)} for place, name in enumerate(names)}
    for place, name in enumerate(names):
        maker.run(f"b{place}", "baseline", params[name], metrics(), name=name)
    for number in range(trials):
        own = {"train.lr": 1e-2 * (1 + number / (trials + 1))}
        params.setdefault("t0000", own)
        end = {"status": "failed", "error": "boom"} if number < lost else {}
        maker.run(f"t{number:04d}", kind, own, {} if end else metrics(), **end)
    for name in [*names, "t0000"] if trials else names:
        for seed in range(fresh):
            maker.run(f"c{name}{seed}", "confirm", params[name], metrics(), seed=1000 + seed, name=name)
    space = meta.pop("space", SPACE[:1])
    return write_study(folder, maker.rows, meta_of(folder.name, space=space, baselines=names, **meta))


def litter(folder, n):
    """n of everything that a ledger may be left with."""
    maker, rng = Maker(folder.name), np.random.default_rng(0)
    for number, status in enumerate(["done"] * 4 + ["stopped"] * n + ["failed"] * n + ["running"] * n):
        error = {"error": "boom"} if status == "failed" else {}
        maker.run(f"t{number:04d}", "search", native(rng.random(6)), {VAL: 0.3}, status=status, **error)
    ends = [row for row in maker.rows if row["status"] == "done"][:n]
    maker.rows += [dict(row) for row in ends]
    meta = meta_of(folder.name)
    meta["data"] |= {"dropped": {"empty": n} if n else {}, "train": n, "validation": n, "test": n, "health": {
        "groups": {"source": "captions", "k": n, "head": {"groups": n, "pairs": n, "smallest": n, "largest": n}},
        "repeated_images": n, "false_negatives": 0.02, "same_id": 0.01}}  # fmt: skip
    folder = write_study(folder, maker.rows, meta)
    lines = "".join(f'{{"trial": "x{i}", "step": 1, "status": "done"}}\n' for i in range(n))
    (folder / "ledger" / "x.jsonl").write_text(lines)
    return folder


def partly(folder, n, **options):
    """A settled winner two changes away from the default, with n of the reruns that a plan asks for."""
    synthetic(folder, trials=40, confirm=5, seed=3, space=SPACE[:2], **options)
    study = tables.load(folder)
    maker, entries = Maker(folder.name), [e for e in plan.plan(study).entries if e.kind == "probe"]
    for role in ("ring", "ablation", "alone", "reset", "inert", "bound"):
        for entry in [e for e in entries if e.name.startswith(role)][:n]:
            for seed in entry.seeds:
                score = 0.3 + 0.001 * seed % 7
                config = {k: v for k, v in entry.config.items() if k != "train.seed"}
                maker.run(f"p{len(maker.rows)}", "probe", config, {VAL: score, TEST: score}, seed=seed, name=entry.name)
    write_more(folder, maker.rows)
    return folder


def traded(folder, n):
    """A default and two others, of which n are dominated and n lose something beyond noise."""
    scores, extra = {"paper": BASE}, {"paper": {"test_modality_distance": [0.5, 0.51, 0.5, 0.52, 0.5]}}
    for place in range(2):
        down = place < n
        scores[f"t{place:04d}"] = shifted(-0.05 if down else 0.05)
        extra[f"t{place:04d}"] = {
            "test_modality_distance": [v + (0.2 if down else -0.1) for v in (0.5, 0.51, 0.5, 0.52, 0.5)]
        }
    return arms(folder, scores, extra=extra)


STUDIES = [
    *(Made(f"{t} trials, {f} seeds, {b} baselines", lambda at, t=t, f=f, b=b: bare(at, t, f, b))
      for t, f, b in itertools.product((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2))),
    *(Made(f"{n} lost of {t}", lambda at, n=n, t=t: bare(at, t, 3, lost=n)) for n, t in ((1, 1), (1, 2), (2, 3))),
    *(Made(f"{n} controls", lambda at, n=n: bare(at, n, 3, kind="control", strategy="tpe_asha")) for n in (1, 2)),
    *(Made(f"{n} of what is left behind", lambda at, n=n: litter(at, n)) for n in (0, 1, 2)),
    *(Made(f"{n} of each rerun", lambda at, n=n: partly(at, n)) for n in (0, 1, 2)),
    *(Made(f"{n} traded", lambda at, n=n: traded(at, n)) for n in (0, 1, 2)),
    *(Made(f"{n} probes of a ramp", lambda at, n=n: ramp(at, probes=(0.9, 0.8)[:n], cliff=0.9)) for n in (0, 1, 2)),
    Made("no parameter", lambda at: bare(at, 3, 3, space=[])),
    Made("two parameters", lambda at: synthetic(at, trials=60, confirm=5, space=SPACE[:2], seed=1)),
    Made("six parameters", lambda at: synthetic(at, trials=90, confirm=5, top=6, seed=2, epochs=3)),
    Made("an adaptive one", lambda at: synthetic(at, trials=30, confirm=5, seed=2, strategy="tpe")),
]  # fmt: skip


@pytest.mark.parametrize("made", STUDIES, ids=lambda made: made.name)
def test_every_sentence_of_every_panel_agrees_in_number(tmp_path, made):
    study = tables.load(made.make(tmp_path / "s"))
    findings = report.find(study)
    raised, passed = collected.warnings(findings)
    said = {key: [plain(text) for text in texts(finding)] for key, finding in findings.items()}
    for key, finding in findings.items():
        if finding.refusal is None and key != "verdict":
            said[key] += drawn(study, key, finding)
    settings = collected.settings(study, findings)
    said["settings"] = [*map(plain, texts(settings)), *parts(collected.draw_settings(study, settings))]
    said["page"] = [collected.warnings_title(raised, passed), report.text(report.summary(tmp_path / "s"))]
    if len(study.finished):
        asked = plan.plan(study)
        said["plan"] = [plan_text.total(asked), *asked.notes]
    assert {key: found for key, every in said.items() if (found := [f for text in every for f in faults(text)])} == {}


def pair(tmp_path, make, same=True):
    folders = [make(tmp_path / name, place) for place, name in enumerate(("a", "b", "c")[: 2 if same else 3])]
    for place, folder in enumerate(folders):
        path = folder / "meta.json"
        path.write_text(path.read_text().replace("abcdef0123456789", "k" if same else f"k{place}"))
    return folders


@pytest.mark.parametrize("same", [True, False], ids=["one data set", "several"])
@pytest.mark.parametrize("trials", [1, 2, 22])
@pytest.mark.parametrize("fresh", [1, 3])
def test_every_sentence_about_several_studies_agrees_in_number(tmp_path, same, trials, fresh):
    made = several.make(pair(tmp_path, lambda at, place: bare(at, trials + place, fresh), same))
    raised, passed = collected.warnings(made.findings)
    said = [plain(text) for finding in made.findings.values() for text in texts(finding)]
    said += [several.text(several.summary(made)), collected.warnings_title(raised, passed)]
    for panels in SEVERAL.values():
        for key, panel in panels.items():
            if made.findings[key].refusal is None:
                said += parts(panel.draw(made.several, made.findings[key]))
    assert [fault for text in said for fault in faults(text)] == []


def test_one_carried_setting_that_loses_is_told_in_the_singular(tmp_path):
    from mmts_ray.analysis.several import transfer
    from test_analysis_several import carried_over

    found = transfer.transfer(studies.read(carried_over(tmp_path, both_ways=False)))
    assert plain(found.title).startswith("1 of 1 carried setting loses; the most, a on b: ")


VERBS = {"was", "were", "is", "are", "has", "have", "lack", "do", "lose", "show", "move"}


def computed(value):
    """Whether an interpolated value is counted, not a constant of the file."""
    return not (isinstance(value, ast.Name) and value.id.isupper())


@pytest.mark.parametrize("path", sorted((ROOT / "analysis").rglob("*.py")), ids=lambda p: p.name)
def test_no_verb_follows_a_count_as_it_is(path):
    """f"{n} were": the verb has to be chosen by the number, as `agree` does."""
    bad = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if not isinstance(node, ast.JoinedStr):
            continue
        for before, after in itertools.pairwise(node.values):
            if isinstance(before, ast.FormattedValue) and isinstance(after, ast.Constant) and computed(before.value):
                word = re.match(r" (\w+)", after.value)
                inner = ast.unparse(before.value)
                if (
                    word
                    and word[1] in VERBS
                    and re.search(r"len\(|sum\(|^n$|\bn\b|count", inner)
                    and "count(" not in inner
                ):
                    bad.append(f"{node.lineno}: {{{inner}}} {word[1]}")
    assert bad == []
