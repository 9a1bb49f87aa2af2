"""The report of a study: one offline HTML file and its JSON twin, the same bytes for the same ledger."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmts_ray import results

from . import page
from .choice import best_config, choose
from .finding import Finding, glyph, twin
from .panels import PANELS, collected, verdict
from .statistics import Interval
from .tables import Study, load, why_failed
from .wording import count, day, duration, plain, score, setting, short_hash

SCHEMA = 1


def write(study_dir: str | Path, out: str | Path | None = None) -> Path:
    """Write report.html and report.json of a study, each whole or not at all; returns the path of the HTML file.

    `out` is the folder, by default STUDY/report. Raises ValueError, one line, when STUDY is no study folder.
    """
    return write_and_summarise(study_dir, out)[0]


def write_and_summarise(study_dir: str | Path, out: str | Path | None = None) -> tuple[Path, dict[str, Any]]:
    """`write` and `summary` in one pass over the ledger."""
    study = load(study_dir)
    folder = Path(out) if out is not None else Path(study_dir) / "report"
    folder.mkdir(parents=True, exist_ok=True)
    findings = find(study)
    settings = collected.settings(study, findings)
    raised, passed = collected.warnings(findings)
    html = _render(study, findings, settings, raised, passed)
    results.write_whole(folder / "report.json", _json(study, findings, settings, raised, passed))
    results.write_whole(folder / "report.html", html)
    return folder / "report.html", _summary(study, findings)


def summary(study_dir: str | Path) -> dict[str, Any]:
    """What the command line says at the end of a study.

    Keys: study, feasible, reason (why not feasible), case, any_setting (whether any searched setting will do), sentence
    (the verdict), command (what to run next, or None), metric, direction, best {label, trial, source, config_hash, n,
    params}, scores {winner, runner_up, default: {label, mean, lo, hi, n, text} or None}, difference {mean, lo, hi, n,
    paired, established} or None, warnings [text].
    `params` holds the searched parameters that apply to the best configuration.
    """
    study = load(study_dir)
    return _summary(study, find(study))


def _summary(study: Study, findings: Mapping[str, Finding]) -> dict[str, Any]:
    finding = findings["verdict"]
    raised, _ = collected.warnings(findings)
    rows = finding.frames["scores"].to_dict(orient="records")
    scores: dict[str, Any] = {"winner": None, "runner_up": None, "default": None}
    for row in rows:
        key = str(row["role"]).replace("-", "_")
        if key in scores:
            number = {k: float(row[k]) if math.isfinite(row[k]) else None for k in ("mean", "lo", "hi")}
            interval = Interval(row["mean"], row["lo"], row["hi"], int(row["n"]))
            shown = f"{study.reported.split} {study.reported.label} {plain(score(interval, study.reported))}".strip()
            scores[key] = {"label": row["label"], **number, "n": int(row["n"]), "text": shown}
    return {
        "study": study.name,
        "feasible": not study.finished.empty,
        "reason": _reason(study),
        "case": finding.numbers["case"],
        "any_setting": bool(finding.numbers["any_setting"]),
        "sentence": plain(finding.title),
        "command": finding.refusal.command if finding.refusal else None,
        "metric": study.reported.key,
        "direction": finding.numbers["direction"],
        "best": _best(study),
        "scores": scores,
        "difference": twin(finding)["numbers"]["difference"],
        "warnings": [f"{w['word']}: {plain(w['problem'])}" for w in raised],
    }


def text(found: Mapping[str, Any]) -> str:
    """A `summary` in a few lines for the terminal."""
    lines = [found["reason"] or found["sentence"]]
    best = found["best"]
    if best:
        values = ", ".join(f"{path}={setting(value)}" for path, value in best["params"].items())
        word = "best, by chance" if found["any_setting"] else "best"
        lines.append(f"{word}: {best['label']} ({values})" if values else f"{word}: {best['label']}")
    for key, name in (("winner", "best"), ("default", "default")):
        got = found["scores"][key]
        if got and got["n"]:
            lines.append(f"{name}, {got['label']}: {got['text']}, {count(got['n'], 'fresh seed')}")
    if found["command"]:
        lines.append(f"next: {found['command']}")
    return "\n".join([*lines, *found["warnings"]])


def find(study: Study) -> dict[str, Finding]:
    """Every panel's finding, the verdict first."""
    findings = {"verdict": verdict.verdict(study)}
    for panels in PANELS.values():
        for key, panel in panels.items():
            findings[key] = panel.data(study)
    return findings


def _render(
    study: Study, findings: Mapping[str, Finding], settings: Finding, raised: list[dict[str, Any]], passed: list[str]
) -> str:
    pointed = {warning["panel"] for warning in raised}
    names = {"verdict": "Verdict"}
    sections = []
    for question, panels in PANELS.items():
        entries = []
        for key, panel in panels.items():
            finding = findings[key]
            names[key] = panel.name
            entries.append(
                {
                    "key": key,
                    "name": panel.name,
                    "finding": finding,
                    "open": panel.open or (key in pointed and finding.worst in ("changes", "limits")),
                    "glyph": glyph(finding),
                    "body": page.refusal(panel.name, finding) if finding.refusal else panel.draw(study, finding),
                }
            )
        sections.append({"question": question, "panels": entries})
    return page.whole(
        name=study.name,
        header=_header(study),
        verdict=findings["verdict"],
        verdict_chart=verdict.draw(study, findings["verdict"]),
        verdict_glyph=glyph(findings["verdict"]),
        warnings=raised,
        passed=passed,
        found=sum(warning["severity"] != "record" for warning in raised),
        warnings_title=collected.warnings_title(raised, passed),
        shown=collected.SHOWN,
        names=names,
        settings_sentences=settings.sentences,
        settings_body=collected.draw_settings(study, settings),
        sections=sections,
        twin="report.json",
    )


def _json(
    study: Study, findings: Mapping[str, Finding], settings: Finding, raised: list[dict[str, Any]], passed: list[str]
) -> str:
    report = {
        "schema": SCHEMA,
        "study": study.name,
        "header": _header(study),
        "objective": {m.key: "min" if m.better < 0 else "max" for m in study.objectives},
        "reported": study.reported.key,
        "interval": 0.95,
        "ledger_hash": study.ledger_hash,
        "feasible": not study.finished.empty,
        "warnings": collected.warnings_twin(raised, passed),
        "panels": {
            **{key: twin(finding) for key, finding in findings.items()},
            "settings": twin(settings),
        },
    }
    return json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _header(study: Study) -> str:
    trials, metric = study.trials, study.reported
    search = trials[trials["kind"] == "search"]
    fresh = trials[trials["kind"] == "confirm"]
    ends = trials["end_time"].dropna()
    data = study.meta.get("data") or {}
    parts = [
        f"{count(len(search), 'search trial')} ({study.meta.get('strategy') or 'strategy unknown'}), "
        f"{count(len(fresh), 'fresh run')}, {duration(float(trials['device_seconds'].sum()))} of device time.",
        f"Metric: {metric.label} on {metric.split or 'the reported split'}{', %' if metric.share else ''}, "
        f"{'lower' if metric.better < 0 else 'higher'} is better. Intervals are 95 %.",
    ]
    named = f"{data['data']} " if data.get("data") else ""
    where = [f"data {named}{short_hash(str(data['key']))}"] if data.get("key") else []
    when = [f"last run {day(float(ends.max()))}"] if len(ends) else []
    rest = ", ".join([*where, *when, f"ledger {short_hash(study.ledger_hash)}"])
    parts.append(f"{rest[0].upper()}{rest[1:]}.")
    return " ".join(parts)


def _reason(study: Study) -> str | None:
    if not study.finished.empty:
        return None
    if study.trials.empty:
        return "the ledger holds no run"
    states = study.trials["state"].value_counts()
    tally = ", ".join(f"{int(states[state])} {state}" for state in sorted(states.index))
    return f"no feasible trial: {tally}. {why_failed(study)}".strip()


def _best(study: Study) -> dict[str, Any] | None:
    winner = choose(study).winner
    trial, config = best_config(study)
    if trial is None:
        return None
    row = study.trials[study.trials["trial"] == trial]
    applies = [p for p in study.space if p.path in config and p.active(config)]
    return {
        "label": winner.label if winner is not None else trial,
        "trial": trial,
        "source": winner.source if winner is not None else str(row["kind"].iloc[0]),
        "config_hash": winner.key if winner is not None else row["config_hash"].iloc[0],
        "n": len(winner.values(study.reported.column)) if winner is not None else 0,
        "params": {p.path: config[p.path] for p in applies},
    }
