"""The two parts of the page that every panel can add to: warnings, and the table "What should I set?"."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from ..choice import best_config, choose
from ..finding import SEVERITIES, Exact, Finding, Setting
from ..page import Column, notes, table
from ..tables import Study, default_value
from ..wording import count, full, in_words, listing, plain, setting
from . import flat
from .tunability import INERT, NO, OPEN, YES

NOT_MEASURED = {"evidence": "importance", "gain": "gain per parameter", "safe_range": "safe range"}
NEEDS = (YES, OPEN, "not measured", NO, "as the default", INERT)  # what to act on, first to last
SHOWN = 7  # warnings before the rest is folded


def warnings(findings: Mapping[str, Finding]) -> tuple[list[dict[str, Any]], list[str]]:
    """(warnings worst first, names of the checks that passed), each warning linked to the panel that raised it."""
    order = list(SEVERITIES)
    raised: list[dict[str, Any]] = []
    passed: list[str] = []
    for panel, finding in findings.items():
        for check in finding.checks:
            if check.problem is None:
                passed.append(check.name)
                continue
            mark, word = SEVERITIES[check.severity]
            raised.append(
                {
                    "severity": check.severity,
                    "mark": mark,
                    "word": word,
                    "problem": check.problem,
                    "consequence": check.consequence,
                    "check": check.name,
                    "size": full(check.size),
                    "panel": panel,
                }
            )
    raised.sort(key=lambda w: (order.index(w["severity"]), -abs(w["size"] or 0)))
    return raised, passed


def warnings_twin(raised: list[dict[str, Any]], passed: list[str]) -> dict[str, Any]:
    kept = ("severity", "problem", "consequence", "check", "size", "panel")
    return {"raised": [{key: plain(w[key]) if isinstance(w[key], str) else w[key] for key in kept} for w in raised],
            "passed": passed}  # fmt: skip


def warnings_title(raised: list[dict[str, Any]], passed: list[str]) -> str:
    found = sum(w["severity"] != "record" for w in raised)
    notes_ = len(raised) - found
    if not found:
        more = f"; {count(notes_, 'note')}" if notes_ else ""
        return f"No warnings: {count(len(passed), 'check')} passed{more}"
    tail = f" and {count(notes_, 'note')}" if notes_ else ""
    return f"{in_words(found)} warning{'s' if found > 1 else ''}{tail}{', worst first' if len(raised) > 1 else ''}"


def settings(study: Study, findings: Mapping[str, Finding]) -> Finding:
    """One row per searched parameter: the winner's value, the default, and what the panels add."""
    winner = choose(study).winner
    trial, config = best_config(study)
    added = [column for finding in findings.values() for column in finding.settings]
    rows = []
    for parameter in study.space:
        value = config.get(parameter.path)
        default, of_baseline = default_value(study, parameter)
        used = bool(config) and parameter.active(config) and parameter.path in config
        set_to = setting(value, parameter) if used else "not used" if config else "unknown"
        row = {
            "path": parameter.path,
            "name": study.named(parameter.path),
            "doc": f"{parameter.doc} ({parameter.unit})" if parameter.unit else parameter.doc,
            "set_to": value if used else None,
            "set_to_text": set_to,
            "default": default,
            "default_text": setting(default, parameter)
            + ("" if of_baseline or study.default is None else " (declared)"),
        }
        for column in added:
            row[column.key] = column.values.get(parameter.path)
        rows.append(row)
    rows.sort(key=lambda row: _need(row, added))
    columns = ["path", "name", "doc", "set_to", "set_to_text", "default", "default_text", *(c.key for c in added)]
    frame = pd.DataFrame(rows, columns=columns).astype(object)
    frame = frame.where(frame.notna(), None)
    verdict = findings["verdict"]
    return Finding(
        title="What should I set?",
        used=f"winner {winner.label}" if winner else f"best of the search, {trial}" if trial else "no finished trial",
        frames={"parameters": frame},
        numbers={"trial": trial, "config": Exact(sorted(config.items())), "any": bool(verdict.numbers["any_setting"])},
        sentences=(_lead(study, verdict, winner is not None, trial),),
        settings=tuple(added),
    )


def _need(row: Mapping[str, Any], added: Sequence[Setting]) -> tuple[int, float]:
    """What to act on first: worth tuning, then not established, then leave it; within each, the clearer effect."""
    by = {column.key: column for column in added}
    worth = str(by["worth"].cells.get(row["path"], "")) if "worth" in by else ""
    place = NEEDS.index(worth) if worth in NEEDS else len(NEEDS) // 2
    p = row.get("evidence")
    return place, 1.0 if p is None else float(p)


def draw_settings(study: Study, finding: Finding, name: str = "settings") -> Markup:
    """The table; `name` is its panel in the JSON twin."""
    frame = finding.frames["parameters"]
    if frame.empty:
        return Markup("")
    columns = [
        Column(
            "name", "Parameter", lambda row: Markup('<span title="{}">{}</span>').format(row["doc"], row["name"]), False
        ),
        Column("set_to", "Set to", _any if finding.numbers["any"] else lambda row: _bold(row["set_to_text"])),
        Column("default", "Default", lambda row: row["default_text"]),
    ]
    for added in finding.settings:
        columns.append(Column(added.key, added.head, _cell(added.cells), added.numeric))
    legend = Markup("").join(column.legend for column in finding.settings if column.legend)
    small = [column.note for column in finding.settings if column.note]
    shown = {column.key for column in finding.settings}
    absent = [words for key, words in NOT_MEASURED.items() if key not in shown]
    words = str(listing(absent))
    without = f" {words[:1].upper()}{words[1:]} {'is' if len(absent) == 1 else 'are'} not measured by this report."
    exact = "the exact values that the fresh seeds ran at are under Reproduce."
    small.append(f"Set to: shown to three significant digits; {exact}{without if absent else ''}")
    drawn = table(f"{name}.parameters", frame, columns, label="What should I set?", wide=True)
    return Markup("{}{}{}").format(legend, drawn, notes(small))


def _bold(text: str) -> Markup:
    return Markup("<b>{}</b>").format(text)


def _any(row: Mapping[str, Any]) -> Markup:
    """Where any setting will do: not the value, but that it ran."""
    if row["set_to"] is None:
        return _bold(row["set_to_text"])
    return Markup('<b>any</b> <span class="ci">ran at {}</span>').format(row["set_to_text"])


def _cell(cells: Mapping[str, Markup | str]) -> Any:
    return lambda row: cells.get(row["path"], "not measured")


def _lead(study: Study, verdict: Finding, confirmed: bool, trial: str | None) -> Markup:
    case = verdict.numbers["case"]
    if trial is None:
        return Markup("No trial finished with a score, so there is nothing to set.")
    if not study.space:
        return Markup("Nothing was searched: the settings were given, and the verdict compares them.")
    if case == "refused":
        who = "the best setting with fresh seeds" if confirmed else f"the best trial of the search, {study.behind}"
        return Markup("Provisional: these are the values of {}, {}.").format(who, trial)
    if case == "any setting":
        text = "Any of the searched values will do: {}. Nothing needs to be set; these values are of {}, one of many."
        return Markup(text).format(flat.claim(study), trial)
    if case == "established" and verdict.numbers["any_setting"]:
        return Markup("The searched settings beat the default, and any of them will do: {}.").format(flat.claim(study))
    if case == "established" or case == "alone":
        return Markup("These are the winner's values.")
    if case == "worse":
        return Markup("Keep the default: these values scored below it.")
    return Markup("These are the winner's values; leaving the default costs nothing that this study can measure.")
