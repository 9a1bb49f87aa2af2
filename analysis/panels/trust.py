"""Can I trust the runs? The ledger, the data, and how to get the same bytes again."""

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from ..finding import Check, Finding, Panel
from ..page import Column, code, more, notes, table
from ..statistics import wilson
from ..tables import STATES, Study, best_of_search, choose, column
from ..wording import count, duration, listing, number, percent, short_hash, whole
from .verdict import confirm_command

SAME_FOR_ALL = ("data.", "eval.")  # a comparison across these is no comparison
SAME_FOR_SEARCH = ("train.epochs", "train.steps", "train.max_steps", "train.batch_size", "model.name")
MANY_INFEASIBLE = 0.2
MANY_DUPLICATES = 0.01


def ledger(study: Study) -> Finding:
    """Runs by state and kind, what they cost, what was folded or left out, and what differs that should not."""
    trials = study.trials
    rows = []
    for kind in ("baseline", "search", "confirm"):
        for state in STATES:
            part = trials[(trials["kind"] == kind) & (trials["state"] == state)]
            if len(part):
                hours = float(part["device_seconds"].sum()) / 3600
                rows.append({"kind": kind, "state": state, "n": len(part), "share": len(part) / len(trials), "hours": hours})
    states = pd.DataFrame(rows, columns=["kind", "state", "n", "share", "hours"])
    tally = {state: int((trials["state"] == state).sum()) for state in STATES}
    seconds = float(trials["device_seconds"].sum())
    errors = (
        trials.loc[trials["state"].isin(["infeasible", "failed"]), "error"].fillna("no message").map(_first_line)
        .value_counts().rename_axis("error").reset_index(name="n").sort_values(["n", "error"], ascending=[False, True])
    )  # fmt: skip
    per_config = trials[trials["kind"] == "confirm"].groupby("config_hash")["seed"].nunique()
    named = [f"{n} {state}" for state, n in tally.items() if n]
    title = Markup("{}: {}; {} of device time").format(
        count(len(trials), "run"), listing(named, most=5), duration(seconds)
    ) if len(trials) else Markup("The ledger holds no run")  # fmt: skip
    return Finding(
        title=title,
        used="every record",
        frames={"states": states, "errors": errors.head(10)},
        numbers={**tally, "runs": len(trials), "device_seconds": seconds, "duplicates": study.duplicates,
                 "orphans": study.orphans, "fresh_seeds_most": int(per_config.max()) if len(per_config) else 0,
                 "ledger_hash": study.ledger_hash},
        sentences=(
            f"{count(study.duplicates, 'duplicate')} folded (the last one written counts). "
            f"Only finished runs are compared; stopped ones never reach a picture. Ledger hash {short_hash(study.ledger_hash)}.",
        ),
        checks=tuple(_ledger_checks(study, tally)),
    )  # fmt: skip


def draw_ledger(study: Study, finding: Finding) -> Markup:
    columns = [
        Column("kind", "Kind", lambda row: row["kind"], False),
        Column("state", "State", lambda row: row["state"], False),
        Column("n", "Runs", lambda row: str(row["n"])),
        Column("share", "Share", lambda row: percent(row["share"], len(study.trials))),
        Column("hours", "Device time", lambda row: duration(3600 * row["hours"])),
    ]
    body = table("ledger.states", finding.frames["states"], columns, label="Runs by state") + notes(finding.sentences)
    errors = finding.frames["errors"]
    if len(errors):
        shown = [
            Column("error", "Message", lambda row: row["error"], False),
            Column("n", "Runs", lambda row: str(row["n"])),
        ]
        body += more("Why runs failed", table("ledger.errors", errors, shown, label="Errors"))
    return body


def data(study: Study) -> Finding:
    """What the runs were trained and scored on, what was dropped, and whom to credit."""
    meta = study.meta.get("data") or {}
    dropped = {str(k): int(v) for k, v in (meta.get("dropped") or {}).items()}
    kept = {split: meta[split] for split in ("train", "validation", "test") if isinstance(meta.get(split), int)}
    frame = pd.DataFrame(
        [{"item": f"{split} rows", "n": n} for split, n in kept.items()]
        + [{"item": f"dropped: {reason}", "n": n} for reason, n in sorted(dropped.items())],
        columns=["item", "n"],
    )
    lost = sum(dropped.values())
    if not kept:
        title = Markup("The study recorded no data sizes")
    else:
        total = sum(kept.values())
        title = Markup("{} kept, {} dropped").format(
            count(total, "row"), number(lost, f"{lost} ({percent(lost / (lost + total), lost + total)})") if lost else "none"
        )
    facts = [
        f"{label}: {meta[key]}." for key, label in
        (("image_encoder", "Image encoder"), ("text_encoder", "Text encoder"), ("key", "Data key")) if meta.get(key)
    ]  # fmt: skip
    credits = [f"Credit: {credit}" for credit in meta.get("credits") or []]
    said = [str(note) for note in meta.get("notes") or []]
    checks = [Check("no row of the data was dropped", "record",
                    Markup("{} of the data dropped.").format(count(lost, "row")) if lost else None,
                    Markup("Reasons: {}.").format(listing(sorted(dropped))), lost)]  # fmt: skip
    checks += [Check("no note on the data", "record", note) for note in said] or [Check("no note on the data")]
    return Finding(
        title=title,
        used="meta.json",
        frames={"rows": frame},
        numbers={"dropped": lost, **kept},
        sentences=tuple([*facts, *credits]),
        checks=tuple(checks),
    )


def draw_data(study: Study, finding: Finding) -> Markup:
    columns = [
        Column("item", "What", lambda row: row["item"], False),
        Column("n", "Rows", lambda row: whole(int(row["n"]))),
    ]
    frame = finding.frames["rows"]
    drawn = table("data.rows", frame, columns, label="Data") if len(frame) else Markup("")
    return drawn + notes(finding.sentences)


def reproduce(study: Study) -> Finding:
    """Commands, the winner's configuration, versions and hashes."""
    winner, best = choose(study).winner, best_of_search(study)
    trial = winner.trial if winner else str(best["trial"]) if best is not None else None
    config = study.configs.get(str(trial), {})
    meta = study.meta
    git, versions = meta.get("git") or {}, meta.get("versions") or {}
    command = str(meta.get("command") or f"mmts-ray search SPACE.yaml --out {shlex.quote(study.folder)}")
    commands = [command, confirm_command(study), f"mmts-ray report {shlex.quote(study.folder)}"]
    dirty = bool(git.get("dirty"))
    return Finding(
        title=Markup("{}, commit {}{}").format(
            listing([f"{name} {version}" for name, version in sorted(versions.items())], most=6) if versions else "versions not recorded",
            short_hash(str(git.get("commit") or "unknown")), " with uncommitted changes" if dirty else "",
        ),
        used="meta.json",
        numbers={
            "commands": commands, "trial": trial, "config": dict(sorted(config.items())), "versions": dict(versions),
            "git": dict(git), "hardware": dict(meta.get("hardware") or {}), "data_key": (meta.get("data") or {}).get("key"),
            "strategy": meta.get("strategy"), "seed": meta.get("seed"), "ledger_hash": study.ledger_hash,
        },
        sentences=tuple(_facts(study)),
        checks=(
            Check("the code had no uncommitted changes", "record",
                  "The code had uncommitted changes." if dirty else None,
                  "The commit alone does not reproduce these runs."),
        ),
    )  # fmt: skip


def draw_reproduce(study: Study, finding: Finding) -> Markup:
    numbers = finding.numbers
    body = code("\n".join(numbers["commands"]))
    if numbers["config"]:
        body += Markup("<h4>Configuration of {}</h4>").format(numbers["trial"]) + code(_as_yaml(numbers["config"]))
    return body + notes(finding.sentences)


def _ledger_checks(study: Study, tally: Mapping[str, int]) -> list[Check]:
    trials = study.trials
    checks = _mixed_checks(study)
    names = sorted(trials["study"].dropna().unique())
    checks.append(Check("all runs belong to one study", "changes",
                        Markup("The ledger mixes {} studies: {}.").format(len(names), listing(names)) if len(names) > 1 else None,
                        "Their configurations may not be comparable."))  # fmt: skip
    search = trials[(trials["kind"] == "search") & (trials["state"] != "running")]
    lost = int(search["state"].isin(["infeasible", "failed"]).sum())
    rate = wilson(lost, len(search))
    problem = None
    if lost:
        problem = Markup("{} of {} search trials failed ({} [{}, {}]).").format(
            number(lost, lost), len(search), percent(rate.mean), percent(rate.lo).removesuffix(" %"), percent(rate.hi).removesuffix(" %")
        )
    severity = "limits" if rate.mean > MANY_INFEASIBLE else "record"
    checks.append(Check("no search trial failed", severity, problem, _why(study), lost))
    stopped = tally["stopped"]
    checks.append(Check("no run was stopped early", "record",
                        Markup("{} stopped early left out.").format(count(stopped, "run")) if stopped else None,
                        "Their scores are of another fidelity and are never pooled with finished runs.", stopped))  # fmt: skip
    running = tally["running"] + tally["waiting"]
    checks.append(Check("no run is unfinished", "limits",
                        Markup("{} had not ended when this report was made.").format(count(running, "run")) if running else None,
                        Markup("Run <code>mmts-ray resume {}</code> and report again.").format(shlex.quote(study.folder)), running))  # fmt: skip
    copies = study.duplicates
    checks.append(Check("no record was written twice", "limits" if copies > MANY_DUPLICATES * max(1, len(trials) + len(study.steps)) else "record",
                        Markup("{} folded.").format(count(copies, "duplicate")) if copies else None,
                        "The last one written counts: repeats after a resume, or a point that was run twice.", copies))  # fmt: skip
    checks.append(Check("every run has its start record", "limits",
                        Markup("{} without a start record left out.").format(count(study.orphans, "run")) if study.orphans else None,
                        "Its configuration is unknown: the line was torn.", study.orphans))  # fmt: skip
    known = set(map(str, (study.meta.get("data") or {}).get("notes") or []))  # said by the data panel
    said = {str(n) for entry in trials["note"].dropna() for n in (entry if isinstance(entry, list) else [entry])}
    said = sorted(said - known)
    checks += [Check("no run left a note", "record", Markup("{}").format(note)) for note in said] or [Check("no run left a note")]
    return checks


def _mixed_checks(study: Study) -> list[Check]:
    """What must be equal across compared runs unless the study searched it."""
    trials, searched = study.trials, {parameter.path for parameter in study.space}
    checks = []
    keys = [c for c in trials if str(c) in ("derived.data.key", "derived.data_key")]
    used = sorted({str(v) for c in keys for v in trials[c].dropna()} | ({str(study.meta["data"]["key"])} if keys and (study.meta.get("data") or {}).get("key") else set()))
    paths = [
        str(c).removeprefix("param.") for c in trials
        if str(c).startswith(tuple(f"param.{prefix}" for prefix in SAME_FOR_ALL)) and str(c).removeprefix("param.") not in searched
    ]  # fmt: skip
    differing = [path for path in sorted(paths) if len(_distinct(study, path, trials)) > 1]
    if len(used) > 1:
        differing.insert(0, "data key")
    checks.append(Check("all runs used the same data and the same scoring", "changes",
                        Markup("Runs differ in {}.").format(listing(differing)) if differing else None,
                        "Scores on different data or scored differently are compared here.", len(differing)))  # fmt: skip
    batches = sorted(trials.loc[trials["state"] == "done", "global_batch"].dropna().unique())
    sought = any("batch" in path for path in searched)
    problem = None
    if len(batches) > 1:
        problem = Markup("Finished runs differ in global batch: {}.").format(listing([f"{b:g}" for b in batches]))
    checks.append(Check("all finished runs have the same global batch", "record" if sought else "changes", problem,
                        "The batch was searched, so this is intended." if sought else
                        "A contrastive loss depends on the batch: these scores are not comparable.", len(batches)))  # fmt: skip
    search = trials[trials["kind"] == "search"]
    budget = [path for path in SAME_FOR_SEARCH if path not in searched and len(_distinct(study, path, search)) > 1]
    if "train.batch_size" in budget and len(batches) > 1:
        budget.remove("train.batch_size")  # said already
    checks.append(Check("all search trials have the same budget", "changes",
                        Markup("Search trials differ in {}, which was not searched.").format(listing(budget)) if budget else None,
                        "Trials of different budgets are compared here.", len(budget)))  # fmt: skip
    return checks


def _distinct(study: Study, path: str, trials: pd.DataFrame) -> list[str]:
    return sorted({json.dumps(study.configs[t][path], sort_keys=True) for t in trials["trial"] if path in study.configs.get(t, {})})


def _why(study: Study) -> str:
    lost = study.trials[(study.trials["kind"] == "search") & study.trials["state"].isin(["infeasible", "failed"])]
    if lost.empty:
        return ""
    tally = lost["error"].fillna("no message").map(_first_line).value_counts()
    top = sorted(tally.items(), key=lambda item: (-item[1], item[0]))[0]
    return f"Most common reason: {top[0]} ({top[1]})."


def _first_line(message: Any) -> str:
    lines = str(message).strip().splitlines() or ["no message"]
    return lines[0] if len(lines[0]) <= 160 else f"{lines[0][:159]}…"


def _facts(study: Study) -> list[str]:
    meta = study.meta
    hardware, git = meta.get("hardware") or {}, meta.get("git") or {}
    facts = []
    if git.get("commit"):
        facts.append(f"Commit {git['commit']}.")
    if hardware:
        gpus = hardware.get("gpus") or ["no GPU"]
        parts = [f"{hardware.get('cpus')} CPUs", hardware.get("cpu"), f"{hardware.get('memory_gib')} GiB", *gpus]
        facts.append(f"Hardware: {', '.join(str(part) for part in [*parts, hardware.get('platform')] if part)}.")
    key = (meta.get("data") or {}).get("key")
    if key:
        facts.append(f"Data key {key}.")
    facts.append(f"Ledger hash {study.ledger_hash}.")
    return facts


def _as_yaml(config: Mapping[str, Any]) -> str:
    """`fixed:` of a configuration file, as `mmts-ray train` reads it."""
    return "fixed:\n" + "\n".join(f"  {path}: {_scalar(value)}" for path, value in config.items())


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        text = repr(value)
        # YAML reads 1e-05 as text: the mantissa needs a point
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./-]*", value) and value.lower() not in (
        "true", "false", "yes", "no", "on", "off", "null", "y", "n"
    ):  # fmt: skip
        return value
    return json.dumps(value, ensure_ascii=False)


PANELS = {
    "ledger": Panel("Ledger", ledger, draw_ledger),
    "data": Panel("Data", data, draw_data),
    "reproduce": Panel("Reproduce", reproduce, draw_reproduce),
}
