"""The page of several studies and its JSON twin, beside the first study's own report."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mmts_ray import results

from .. import commands, page
from ..finding import Finding, glyph, twin
from ..panels import collected
from ..report import SCHEMA, find
from ..wording import count, listing, plain, short_hash
from . import SEVERAL
from .studies import Several, read
from .transfer import write_plans
from .verdict import draw, verdict

NAME = "several"


@dataclass(frozen=True)
class Made:
    """A comparison: its findings, and the settings of each study."""

    several: Several
    findings: Mapping[str, Finding]
    settings: Sequence[Finding]
    own: Sequence[Mapping[str, Any]]  # of each study: label, verdict, warnings that change the answer


def make(folders: Sequence[str | Path]) -> Made:
    """Read and compare studies; ValueError, one line, when they cannot be compared."""
    several = read(folders)
    findings = {"verdict": verdict(several)}
    for panels in SEVERAL.values():
        findings |= {key: panel.data(several) for key, panel in panels.items()}
    settings, own = [], []
    for label, study in several.each():
        inner = find(study)
        raised, _ = collected.warnings(inner)
        settings.append(collected.settings(study, inner))
        grave = [w for w in raised if w["severity"] == "changes"]
        own.append({"label": label, "verdict": inner["verdict"], "grave": grave, "study": study})
    return Made(several, findings, settings, own)


def write(made: Made, out: str | Path | None = None) -> Path:
    """Write several.html and several.json, each whole or not at all, and the plans that fill the transfer matrix."""
    folder = Path(out) if out is not None else Path(made.several.studies[0].path) / "report"
    folder.mkdir(parents=True, exist_ok=True)
    raised, passed = collected.warnings(made.findings)
    html = _render(made, raised, passed)
    write_plans(made.several, folder)
    results.write_whole(folder / f"{NAME}.json", _json(made, raised, passed))
    results.write_whole(folder / f"{NAME}.html", html)
    return folder / f"{NAME}.html"


def summary(made: Made) -> dict[str, Any]:
    """What the command line says: sentence, case, command, feasible, the verdict of each study, warnings."""
    finding = made.findings["verdict"]
    raised, _ = collected.warnings(made.findings)
    feasible = all(not study.finished.empty for study in made.several.studies)
    lacking = [label for label, study in made.several.each() if study.finished.empty]
    return {
        "studies": list(made.several.labels),
        "case": finding.numbers["case"],
        "sentence": plain(finding.title),
        "command": finding.refusal.command if finding.refusal else None,
        "feasible": feasible,
        "reason": None if feasible else f"no feasible trial in {plain(listing(lacking))}",
        "metric": made.several.metric.key,
        "each": {str(own["label"]): plain(own["verdict"].title) for own in made.own},
        "warnings": [f"{w['word']}: {plain(w['problem'])}" for w in raised],
    }


def text(found: Mapping[str, Any]) -> str:
    """A `summary` in a few lines for the terminal."""
    lines = [found["reason"] or found["sentence"]]
    lines += [f"{label}: {sentence}" for label, sentence in found["each"].items()]
    if found["command"]:
        lines.append("next: " + found["command"].replace("\n", "\n      "))
    return "\n".join([*lines, *found["warnings"]])


def _render(made: Made, raised: list[dict[str, Any]], passed: list[str]) -> str:
    several, findings, names = made.several, made.findings, {"verdict": "Verdict"}
    sections = []
    for question, panels in SEVERAL.items():
        entries = []
        for key, panel in panels.items():
            finding, names[key] = findings[key], panel.name
            body = page.refusal(panel.name, finding) if finding.refusal else panel.draw(several, finding)
            entries.append({"key": key, "name": panel.name, "finding": finding, "open": panel.open,
                            "glyph": glyph(finding), "body": body})  # fmt: skip
        sections.append({"question": question, "panels": entries})
    settings = Markup("")
    for place, (own, finding) in enumerate(zip(made.own, made.settings)):
        settings += Markup("<h3>{}</h3><p>{}</p>").format(own["label"], own["verdict"].title)
        if own["grave"]:
            text = "{} of its own that would change the answer: <code>{}</code>"
            warned = count(len(own["grave"]), "warning")
            settings += Markup(f'<p class="note">{text}</p>').format(warned, commands.report(own["study"]))
        settings += collected.draw_settings(own["study"], finding, f"settings{place}")
    return page.whole(
        name=" against ".join(several.labels)
        if len(several.labels) == 2
        else count(len(several.labels), "study", "studies"),
        header=_header(several),
        verdict=findings["verdict"],
        verdict_chart=draw(several, findings["verdict"]),
        verdict_glyph=glyph(findings["verdict"]),
        warnings=raised,
        found=sum(warning["severity"] != "record" for warning in raised),
        warnings_title=collected.warnings_title(raised, passed),
        shown=collected.SHOWN,
        passed=passed,
        names=names,
        settings_sentences=(),
        settings_body=settings,
        sections=sections,
        twin=f"{NAME}.json",
    )


def _json(made: Made, raised: list[dict[str, Any]], passed: list[str]) -> str:
    several = made.several
    report = {
        "schema": SCHEMA,
        "studies": [
            {"label": label, "study": study.name, "ledger_hash": study.ledger_hash,
             "data_key": (study.meta.get("data") or {}).get("key"), "verdict": plain(own["verdict"].title)}
            for (label, study), own in zip(several.each(), made.own)
        ],
        "header": _header(several),
        "metric": several.metric.key,
        "interval": 0.95,
        "warnings": collected.warnings_twin(raised, passed),
        "panels": {
            **{key: twin(finding) for key, finding in made.findings.items()},
            **{f"verdict{place}": twin(own["verdict"]) for place, own in enumerate(made.own)},
            **{f"settings{place}": twin(finding) for place, finding in enumerate(made.settings)},
        },
    }  # fmt: skip
    return json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _header(several: Several) -> str:
    metric = several.metric
    trials = sum(int((study.trials["kind"] == "search").sum()) for study in several.studies)
    fresh = sum(int((study.trials["kind"] == "confirm").sum()) for study in several.studies)
    hashes = ", ".join(short_hash(study.ledger_hash) for study in several.studies)
    where = "the same data" if several.same_data else count(several.data_sets, "data set")
    return (
        f"{count(len(several.studies), 'study', 'studies')} on {where}: {count(trials, 'search trial')}, "
        f"{count(fresh, 'fresh run')}. Metric: {metric.label} on {metric.split or 'the reported split'}"
        f"{', %' if metric.share else ''}, {'lower' if metric.better < 0 else 'higher'} is better. Intervals are 95 %. "
        f"Ledgers {hashes}."
    )
