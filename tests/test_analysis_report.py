"""The written report: its twin, its bytes, its rules, its exit codes."""

import json
import os
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import yaml
from ledger_maker import OBJECTIVE, SPACE, Maker, arms, meta_of, native, synthetic, write_study
from mmts_ray.analysis import __main__ as command
from mmts_ray.analysis import report, tables
from mmts_ray.analysis.panels import PANELS

ROOT = Path(__file__).parents[1]
VAL = f"val_{OBJECTIVE}"
VOID = {"meta", "link", "br", "line", "rect", "circle", "path", "use"}


class Tree(HTMLParser):
    """Elements as (tag, attributes, parent); text by element."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.stack, self.texts = [], [], {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), self.stack[-1] if self.stack else None))
        if tag not in VOID:
            self.stack.append(len(self.elements) - 1)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), self.stack[-1] if self.stack else None))

    def handle_endtag(self, tag):
        assert self.elements[self.stack[-1]][0] == tag, (self.elements[self.stack[-1]], tag, self.getpos())
        self.stack.pop()

    def handle_data(self, data):
        if self.stack:
            self.texts.setdefault(self.stack[-1], []).append(data)

    def parents(self, index):
        while index is not None:
            yield index
            index = self.elements[index][2]


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    """A study with everything: choices, conditions, stopped and failed runs, three baselines, fresh seeds."""
    folder = tmp_path_factory.mktemp("studies") / "rich"
    rng = np.random.default_rng(5)
    space = [
        SPACE[0],
        {"path": "schedule.name", "kind": "choice", "values": ["constant", "cosine"], "default": "constant"},
        {"path": "schedule.tau_min", "kind": "float", "low": 0.01, "high": 0.2, "log": True, "default": 0.03,
         "declared": {"low": 0.001, "high": 1.0}, "when": {"schedule.name": ["cosine"]}},
        {"path": "model.layers", "kind": "int", "low": 1, "high": 4, "log": False, "default": 2,
         "declared": {"low": 1, "high": 16}},
    ]  # fmt: skip

    def metrics(score, *, test):
        found = {}
        for split in ("val", "test") if test else ("val",):
            x = float(np.clip(score + 0.01 * rng.normal(), 0, 1))
            found |= {f"{split}_i2t_r1": x, f"{split}_modality_distance": 0.8 - x, f"{split}_strange": 1234.5 * x}
            for group, shift in (("head", 0.05), ("mid", 0.0), ("tail", -0.05)):
                found |= {f"{split}_{group}_r1": x + shift + 0.01 * rng.normal(), f"{split}_n_{group}": 116.0}
        return found

    def score(params):
        return 0.4 - 0.03 * abs(np.log10(params["train.lr"]) + 2.3) - 0.02 * (params["schedule.name"] == "constant")

    maker, found = Maker("rich"), []
    plain = {"train.lr": 1e-3, "schedule.name": "constant", "schedule.value": 0.05, "model.layers": 2}
    baselines = {"paper": plain, "wide": {**plain, "model.layers": 4}, "fast": {**plain, "train.lr": 1e-2}}
    for number, (name, params) in enumerate(baselines.items()):
        maker.run(f"t{number:04d}", "baseline", params, metrics(score(params), test=False), name=name, epochs=3)
    for number in range(3, 63):
        params = {"train.lr": float(10 ** rng.uniform(-4, -1)), "model.layers": int(rng.integers(1, 5))}
        cosine = rng.random() < 0.6
        params |= {"schedule.name": "cosine" if cosine else "constant"}
        params |= {"schedule.tau_min": float(10 ** rng.uniform(-2, -0.7))} if cosine else {"schedule.value": 0.05}
        if params["train.lr"] > 0.04:
            maker.run(f"t{number:04d}", "search", params, {}, status="infeasible", error="non-finite loss", epochs=1)
            continue
        status = "stopped" if rng.random() < 0.2 else "done"
        values = metrics(score(params), test=False)
        maker.run(f"t{number:04d}", "search", params, values, status=status, epochs=3, note=["6 groups <only>"])
        if status == "done":
            found.append((values[VAL], f"t{number:04d}", params))
    best = sorted(found, key=lambda f: (-f[0], f[1]))[:3]
    for number, (name, params) in enumerate([*baselines.items(), *((trial, params) for _, trial, params in best)]):
        for seed in range(5):
            maker.run(f"c{number:02d}{seed}", "confirm", params, metrics(score(params), test=True), seed=1000 + seed,
                      name=name, epochs=3)  # fmt: skip
    maker.rows.append(dict(maker.rows[4]))
    meta = meta_of("rich", space=space, strategy="tpe_asha", baselines=list(baselines), trials=60)
    meta["data"] |= {"dropped": {"empty caption": 12}, "notes": ["class 7 is empty"]}
    return write_study(folder, maker.rows, meta)


@pytest.fixture(scope="module")
def written(rich):
    path = report.write(rich)
    text = path.read_text(encoding="utf8")
    return text, Tree(text), json.loads(path.with_name("report.json").read_text(encoding="utf8"))


def numbers_of(tree):
    if isinstance(tree, dict):
        return {n for value in tree.values() for n in numbers_of(value)}
    if isinstance(tree, list):
        return {n for value in tree for n in numbers_of(value)}
    return {float(tree)} if isinstance(tree, (int, float)) and not isinstance(tree, bool) else set()


def test_every_shown_number_is_in_the_twin(written):
    _, tree, twin = written
    known = {"warnings": numbers_of(twin["panels"]), **{k: numbers_of(v) for k, v in twin["panels"].items()}}
    seen = 0
    for index, (_, attributes, _) in enumerate(tree.elements):
        if "data-v" not in attributes:
            continue
        sections = [tree.elements[i][1].get("id") for i in tree.parents(index)]
        panel = next(s for s in sections if s in known)
        assert float(attributes["data-v"]) in known[panel], (panel, attributes)
        seen += 1
    assert seen > 150


def test_table_cells_equal_the_twins_cells(written):
    _, tree, twin = written
    tables = [
        i for i, (tag, attributes, _) in enumerate(tree.elements) if tag == "table" and "data-frame" in attributes
    ]
    assert len(tables) >= 8
    for table in tables:
        panel, name = tree.elements[table][1]["data-frame"].split(".")
        frame = twin["panels"][panel]["frames"][name]
        inside = [i for i in range(len(tree.elements)) if table in tree.parents(i)]
        heads = [tree.elements[i][1]["data-c"] for i in inside if "data-c" in tree.elements[i][1]]
        rows = [i for i in inside if tree.elements[i][0] == "tr"][1:]
        assert len(rows) == len(frame["rows"])
        for row, expected in zip(rows, frame["rows"]):
            cells = [i for i in inside if tree.elements[i][2] == row]
            for cell, column in zip(cells, heads, strict=True):
                value, wanted = tree.elements[cell][1].get("data-v"), expected[frame["columns"].index(column)]
                if isinstance(wanted, (int, float)) and not isinstance(wanted, bool):
                    assert float(value) == wanted, (panel, name, column)
                else:
                    assert value is None, (panel, name, column)


def test_every_panel_is_on_the_page_and_in_the_twin(written):
    _, tree, twin = written
    ids = [attributes["id"] for _, attributes, _ in tree.elements if "id" in attributes]
    keys = [key for panels in PANELS.values() for key in panels]
    assert set(twin["panels"]) == {"verdict", "settings", *keys}
    for key in keys:
        assert key in ids
        panel = twin["panels"][key]
        assert panel["drawn"] != bool(panel["refusal"])
        assert panel["title"]


def test_ids_are_unique_and_every_reference_resolves(written):
    text, tree, _ = written
    ids = [attributes["id"] for _, attributes, _ in tree.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = set(re.findall(r"url\(#([^)]+)\)", text))
    for _, attributes, _ in tree.elements:
        wanted |= {attributes["href"][1:]} if attributes.get("href", "").startswith("#") else set()
        wanted |= set(attributes.get("aria-labelledby", "").split())
    assert wanted <= set(ids)


def test_the_page_loads_nothing(written):
    text, tree, _ = written
    assert "default-src 'none'" in text
    assert not re.search(r"(?:https?:)?//\w", re.sub(r"<pre.*?</pre>", "", text, flags=re.DOTALL))
    for tag, attributes, _ in tree.elements:
        assert "src" not in attributes
        assert tag not in ("iframe", "img", "object", "embed")
        assert attributes.get("href", "#").startswith(("#", "data:,"))


def test_figures_are_themed_text_without_shared_styles(written):
    text, _, twin = written
    figures = re.findall(r'<svg class="fig".*?</svg>', text, flags=re.DOTALL)
    assert len(figures) == 7  # history, four parameters, trade-offs, gap
    for figure in figures:
        assert not re.search(r"#[0-9a-fA-F]{6}|xlink|font-family|<style|<metadata", figure)
        assert "<text" in figure
        assert len(figure) < 25_000
        desc = re.search(r"<desc[^>]*>(.*?)</desc>", figure)[1]
        assert 80 <= len(desc) <= 300, desc
        title = re.search(r"<title[^>]*>(.*?)</title>", figure)[1]
        assert len(title.split()) <= 8
        assert any(title == alt["title"] for p in twin["panels"].values() for alt in p["figures"].values())
    assert len(text) < 1_000_000


def test_prose_names_no_colour_and_no_side(written):
    _, tree, _ = written
    for index, texts in tree.texts.items():
        if tree.elements[index][0] in ("style", "script", "pre"):
            continue
        text = " ".join(texts).lower()
        assert not re.search(r"\b(red|blue|green|orange|grey|gray|dark|light|left column|right column)\b", text), text


def test_nothing_is_hand_typed_into_the_template():
    template = (ROOT / "analysis" / "report.html").read_text()
    body = re.sub(r"{[{%].*?[}%]}|<[^>]+>", " ", template.split("<body>")[1], flags=re.DOTALL)
    assert not re.search(r"\d", body)


def test_the_same_study_gives_the_same_bytes(rich, tmp_path):
    outputs = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        code = f"from mmts_ray.analysis import report; report.write({str(rich)!r}, {str(out)!r})"
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=environment, cwd=ROOT)
        outputs.append([(out / name).read_bytes() for name in ("report.html", "report.json")])
    assert outputs[0] == outputs[1]


def test_untrusted_text_is_escaped(tmp_path):
    evil = '</title></style><script>alert("1")</script>&amp;'
    folder = tmp_path / "<b>evil"
    maker = Maker(evil)
    space = [{**SPACE[0], "doc": evil}, {"path": "loss.<i>", "kind": "choice", "values": [evil, "b"], "default": "b"}]
    for number in range(12):
        params = {"train.lr": 1e-3 * (1 + number), "loss.<i>": evil if number % 2 else "b"}
        maker.run(f"t{number:04d}", "search", params, {VAL: 0.01 * number, f"val_{evil}": 0.5}, note=[evil])
    maker.run("t0099", "search", {"train.lr": 0.05}, {}, status="failed", error=evil)
    for seed in range(3):
        for name, lr in (("t0011", 0.012), (evil, 0.001)):
            params = {"train.lr": lr, "loss.<i>": evil}
            metrics = {VAL: 0.2 + 0.01 * seed, f"test_{OBJECTIVE}": 0.2, f"test_{evil}": 0.1 * seed}
            maker.run(f"c{seed}{len(name)}", "confirm", params, metrics, seed=seed, name=name)
    meta = meta_of(evil, space=space, baselines=[evil], command=evil, strategy=evil)
    meta["data"] |= {"dropped": {evil: 1}, "notes": [evil], "credits": [evil], "key": evil}
    meta["git"] |= {"commit": evil}
    meta["versions"] |= {"ray": evil}
    path = report.write(write_study(folder, maker.rows, meta))
    text = path.read_text(encoding="utf8")
    assert "alert" in text
    assert text.count("<script>") == 1
    assert "<i>" not in re.sub(r"<i>[■▲●○]</i>", "", text)
    Tree(text)  # well formed


def test_metrics_nobody_has_heard_of_just_work(written):
    _, _, twin = written
    frame = twin["panels"]["metrics"]["frames"]["metrics"]
    assert "test_strange" in [row[frame["columns"].index("metric")] for row in frame["rows"]]


def test_all_trials_infeasible(tmp_path, capsys):
    maker = Maker("lost")
    rng = np.random.default_rng(0)
    for number in range(6):
        maker.run(f"t{number:04d}", "search", native(rng.random(6)), {}, status="infeasible", error="non-finite loss")
    folder = write_study(tmp_path / "lost", maker.rows, meta_of("lost"))
    assert command.main([str(folder)]) == 1
    out, err = capsys.readouterr()
    assert out.strip() == str(folder / "report" / "report.html")
    assert err == "warning: no feasible trial: 6 infeasible. Most common reason: non-finite loss (6).\n"
    text = (folder / "report" / "report.html").read_text()
    assert "No verdict: no feasible trial." in text
    twin = json.loads((folder / "report" / "report.json").read_text())
    assert not twin["feasible"]
    assert twin["warnings"]["raised"][0]["problem"] == "No trial is feasible."


@pytest.mark.parametrize("rows", [0, 1])
def test_an_empty_or_barely_started_study(tmp_path, rows):
    maker = Maker("s")
    maker.run("t0000", "baseline", native(np.full(6, 0.4)), {VAL: 0.3}, name="paper")
    folder = write_study(tmp_path / "s", maker.rows[: 3 * rows], meta_of("s"))
    assert command.main([str(folder)]) == 1 - rows
    twin = json.loads((folder / "report" / "report.json").read_text())
    refused = [key for key, panel in twin["panels"].items() if panel["refusal"]]
    assert {"verdict", "fresh", "history", "isolation", "groups", "gap", "metrics"} <= set(refused)
    assert all(twin["panels"][key]["refusal"]["command"].startswith("mmts-ray ") for key in refused)


def test_one_parameter_and_one_baseline_without_fresh_seeds(tmp_path):
    folder = arms(tmp_path / "s", {"paper": [], "t0001": [], "t0002": []})
    found = report.summary(folder)
    assert found["case"] == "refused"
    assert found["command"] == "mmts-ray confirm s --top 3 --seeds 5"
    assert found["best"]["params"] == {"train.lr": 0.002}
    assert report.write(folder).is_file()


def test_the_configuration_is_printed_and_kept_to_the_last_digit(rich, written):
    text, _, twin = written
    trial, config = (twin["panels"]["reproduce"]["numbers"][key] for key in ("trial", "config"))
    study = tables.load(rich)
    assert config == study.configs[trial]
    printed = re.search(r"<pre[^>]*>(fixed:.*?)</pre>", text, re.DOTALL)[1]
    assert yaml.safe_load(printed)["fixed"] == config


def test_summary_and_its_text(rich):
    found = report.summary(rich)
    assert json.loads(json.dumps(found)) == found
    assert found["feasible"]
    assert found["metric"] == f"test_{OBJECTIVE}"
    assert found["scores"]["winner"]["n"] == found["scores"]["default"]["n"] == 5
    difference = found["scores"]["winner"]["mean"] - found["scores"]["default"]["mean"]
    assert found["difference"]["mean"] == pytest.approx(difference)
    assert set(found["best"]["params"]) <= {"train.lr", "schedule.name", "schedule.tau_min", "model.layers"}
    lines = report.text(found).splitlines()
    assert lines[0] == found["sentence"]
    assert lines[1].startswith(f"best: {found['best']['label']} (train.lr=")


@pytest.mark.parametrize(("arguments", "said"), [
    ([], "usage: python -m analysis STUDY [STUDY ...]\n"),
    (["a", "b"], "error: a: not a study folder (meta.json is missing); legal is a folder made by mmts-ray search\n"),
])  # fmt: skip
def test_wrong_usage(arguments, said, capsys):
    assert command.main(arguments) == 2
    assert capsys.readouterr().err == said


def test_a_wrong_folder_is_one_line(tmp_path, capsys):
    assert command.main([str(tmp_path / "nothing")]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert "not a study folder" in err


def test_it_runs_from_a_checkout_without_torch_or_ray(rich, tmp_path):
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['analysis', {str(rich)!r}]\n"
        "try:\n    runpy.run_module('analysis', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code\n"
        "names = ('torch', 'ray', 'optuna', 'open_clip', 'sentence_transformers', 'matplotlib.pyplot')\n"
        "heavy = set(names) & set(sys.modules)\nassert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(rich / "report" / "report.html")


def test_two_hundred_configurations_are_fast_and_small(tmp_path):
    folder = synthetic(tmp_path / "big", trials=200, confirm=3, top=50, epochs=20)
    started = time.process_time()  # of the processor: the wall clock also counts what else the machine does
    path = report.write(folder)
    assert time.process_time() - started < 20
    assert path.stat().st_size < 1_000_000


def test_more_dots_than_a_figure_holds_become_a_count_grid(tmp_path):
    folder = synthetic(tmp_path / "huge", trials=1900, confirm=0)
    text = report.write(folder).read_text(encoding="utf8")
    figures = re.findall(r'<svg class="fig".*?</svg>', text, flags=re.DOTALL)
    assert all(len(figure) < 40_000 for figure in figures)
    assert len(text) < 1_000_000
