"""Runs by state and kind, what was folded or left out, and what differs that should not."""

import hashlib
import json
from collections.abc import Mapping

import pandas as pd
from markupsafe import Markup

from mmts_ray import results

from .. import commands
from ..finding import Check, Finding, check
from ..page import Column, more, notes, table
from ..statistics import wilson
from ..tables import COPY, STATES, Study, first_line, lost_trials, why_failed
from ..wording import count, duration, fixed, listing, number, percent, short_hash

SAME_FOR_ALL = ("data.", "eval.")  # a comparison across these is no comparison
SAME_FOR_SEARCH = ("train.epochs", "train.steps", "train.batch_size", "model.name")
MANY_LOST = 0.2
MANY_DUPLICATES = 0.01
MOST_ERRORS = 10


def ledger(study: Study) -> Finding:
    """Every run that the ledger holds."""
    trials = study.trials
    groups = {(kind, state): trials[(trials["kind"] == kind) & (trials["state"] == state)]
              for kind in (*results.KINDS, COPY) for state in STATES}  # fmt: skip
    states = pd.DataFrame(
        [
            (kind, state, len(part), len(part) / len(trials), float(part["device_seconds"].sum()) / 3600)
            for (kind, state), part in groups.items()
            if len(part)
        ],
        columns=["kind", "state", "n", "share", "hours"],
    )
    tally = {state: int((trials["state"] == state).sum()) for state in STATES}
    seconds, again = (float(trials[name].sum()) for name in ("device_seconds", "lost_device_seconds"))
    lost = trials[trials["state"].isin(["infeasible", "failed"])]
    counted = lost["error"].fillna("no message").map(first_line).value_counts()
    errors = pd.DataFrame(sorted(counted.items(), key=lambda item: (-item[1], item[0])), columns=["error", "n"])
    title = Markup("The ledger holds no run")
    if len(trials):
        named = listing([f"{n} {state}" for state, n in tally.items() if n], most=len(STATES))
        title = Markup("{}: {}; {} of device time").format(count(len(trials), "run"), named, duration(seconds))
    return Finding(
        title=title,
        used="every record",
        frames={"states": states, "errors": errors.head(MOST_ERRORS), "same": _identity(study)},
        numbers={
            **tally,
            "runs": len(trials),
            "device_seconds": seconds,
            "lost_device_seconds": again,
            "duplicates": study.duplicates,
            "orphans": study.orphans,
            "ledger_hash": study.ledger_hash,
        },
        sentences=(
            f"{count(study.duplicates, 'duplicate')} folded; the last one written counts. Only finished runs are "
            f"compared: stopped ones never reach a picture. Ledger hash {short_hash(study.ledger_hash)}.",
            f"Of the device time {duration(again)} was trained again, because a process or machine was lost."
            if again
            else "No device time was lost to kills.",
        ),
        checks=tuple([*_sameness(study), *_completeness(study, tally), *_notes(study)]),
    )


def draw(study: Study, finding: Finding) -> Markup:
    total = finding.numbers["runs"]
    columns = [
        Column("kind", "Kind", lambda row: row["kind"], False),
        Column("state", "State", lambda row: row["state"], False),
        Column("n", "Runs", lambda row: str(row["n"])),
        Column("share", "Share", lambda row: percent(row["share"], total)),
        Column("hours", "Device time", lambda row: duration(3600 * row["hours"])),
    ]
    body = table("ledger.states", finding.frames["states"], columns, label="Runs by state") + notes(finding.sentences)
    same = [
        Column("what", "Of all runs", lambda row: row["what"], False),
        Column("value", "Value", lambda row: Markup('<span title="{}">{}</span>').format(row["whole"], row["value"]),
               False),
    ]  # fmt: skip
    body += table("ledger.same", finding.frames["same"], same, label="What the runs share", sort=False)
    errors = finding.frames["errors"]
    if len(errors):
        shown = [
            Column("error", "Message", lambda row: row["error"], False),
            Column("n", "Runs", lambda row: str(row["n"])),
        ]
        body += more("Why runs failed", table("ledger.errors", errors, shown, label="Errors"))
    return body


def _identity(study: Study) -> pd.DataFrame:
    """Global batch, seeds per configuration and hashes of code, data, space and ledger."""
    trials, meta = study.trials, study.meta
    batches = sorted(trials["global_batch"].dropna().unique())
    fresh = trials[(trials["kind"] == "confirm") & (trials["state"] == "done")]
    seeds = fresh.groupby("config_hash")["seed"].nunique()
    per = "no fresh runs" if seeds.empty else str(seeds.min()) if seeds.min() == seeds.max() else (
        f"{seeds.min()} to {seeds.max()}")  # fmt: skip
    space = hashlib.sha256(json.dumps(meta.get("space") or [], sort_keys=True).encode()).hexdigest()
    git, data = meta.get("git") or {}, meta.get("data") or {}
    rows = [
        ("effective global batch", listing([f"{b:g}" for b in batches]), ""),
        ("fresh seeds of a configuration", per, ""),
        *(
            (name, short_hash(str(value)) if value else "unknown", str(value or ""))
            for name, value in (("code", git.get("commit")), ("data", data.get("key")), ("space", space),
                                ("ledger", study.ledger_hash))
        ),
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["what", "value", "whole"])


def _sameness(study: Study) -> list[Check]:
    """What must be equal across compared runs unless the study searched it."""
    trials, searched = study.trials, {parameter.path for parameter in study.space}
    names = sorted(trials["study"].dropna().unique())
    recorded = {str(path) for config in study.configs.values() for path in config}
    paths = sorted(p for p in recorded - searched if p.startswith(SAME_FOR_ALL))
    differing = [path for path in paths if _values(study, path, trials) > 1]
    keys = {str(v) for c in trials if str(c) in ("derived.data.key", "derived.data_key") for v in trials[c].dropna()}
    if len(keys) > 1:
        differing.insert(0, "data key")
    batches = sorted(trials.loc[trials["state"] == "done", "global_batch"].dropna().unique())
    sought = any("batch" in path for path in searched)
    budget = [
        p for p in SAME_FOR_SEARCH if p not in searched and _values(study, p, trials[trials["kind"] == "search"]) > 1
    ]
    if len(batches) > 1 and "train.batch_size" in budget:
        budget.remove("train.batch_size")  # said by the check of the global batch
    return [
        check(
            "all runs belong to one study", "changes", len(names) > 1, "The ledger mixes {n} studies: {names}.",
            "Their configurations may not be comparable.", n=len(names), names=listing(names),
        ),
        check(
            "all runs used the same data and the same scoring", "changes", differing, "Runs differ in {what}.",
            "Scores on different data, or scored differently, are compared here.", what=listing(differing),
            size=len(differing),
        ),
        check(
            "all finished runs have the same global batch", "record" if sought else "changes", len(batches) > 1,
            "Finished runs differ in global batch: {batches}.",
            "The batch was searched, so this is intended." if sought
            else "A contrastive loss depends on the batch: these scores are not comparable.",
            batches=listing([f"{batch:g}" for batch in batches]),
        ),
        check(
            "all search trials have the same budget", "changes", budget,
            "Search trials differ in {what}, which was not searched.", "Trials of different budgets are compared here.",
            what=listing(budget), size=len(budget),
        ),
    ]  # fmt: skip


def _completeness(study: Study, tally: Mapping[str, int]) -> list[Check]:
    trials, lost = study.trials, len(lost_trials(study))
    ended = int(((trials["kind"] == "search") & ~trials["state"].isin(["running", "waiting"])).sum())
    rate, open_runs, stopped = wilson(lost, ended), tally["running"] + tally["waiting"], tally["stopped"]
    many = study.duplicates > MANY_DUPLICATES * (len(trials) + len(study.steps))
    return [
        check(
            "no search trial failed", "limits" if rate.mean > MANY_LOST else "record", lost,
            "{lost} of {ended} failed ({share} [{lo}, {hi}]).", "{why}", lost=number(lost, lost),
            ended=count(ended, "search trial"), share=percent(rate.mean), lo=fixed(100 * rate.lo, 0),
            hi=fixed(100 * rate.hi, 0),
            why=why_failed(study),
        ),
        check(
            "no run was stopped early", "record", stopped, "{runs} stopped early left out.",
            "Their scores are of another fidelity and are never pooled with finished runs.", runs=count(stopped, "run"),
        ),
        check(
            "no run is unfinished", "limits", open_runs, "{runs} had not ended when this report was made.",
            "Run <code>{resume}</code> and report again.", runs=count(open_runs, "run"), resume=commands.resume(study),
        ),
        check(
            "no record was written twice", "limits" if many else "record", study.duplicates, "{copies} folded.",
            "The last one written counts: repeats after a resume, or a point that was run twice.",
            copies=count(study.duplicates, "duplicate"),
        ),
        check(
            "every run has its start record", "limits", study.orphans, "{runs} without a start record left out.",
            "Their configurations are unknown: the line was torn.", runs=count(study.orphans, "run"),
        ),
    ]  # fmt: skip


def _notes(study: Study) -> list[Check]:
    """What the runs themselves remarked, except what the data panel already says."""
    known = set(map(str, (study.meta.get("data") or {}).get("notes") or []))
    entries = study.trials["note"].dropna()
    said = {str(note) for entry in entries for note in (entry if isinstance(entry, list) else [entry])}
    return [check("no run left a note", "record", True, "{note}", note=note) for note in sorted(said - known)] or [
        Check("no run left a note")
    ]


def _values(study: Study, path: str, trials: pd.DataFrame) -> int:
    """How many different values a path has over these trials, where it has one."""
    configs = (study.configs.get(trial, {}) for trial in trials["trial"])
    return len({json.dumps(config[path], sort_keys=True) for config in configs if path in config})
