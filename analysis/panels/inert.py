"""Does the code read a parameter at all? Same start, same batches, one parameter moved."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from .. import commands
from ..choice import best_config, choose
from ..finding import Finding, Refusal, check
from ..page import Column, notes, table
from ..probes import reacts
from ..tables import Study
from ..wording import count, listing

NAME = "Inert check"
ANSWERS = {True: "moves the run", False: "inert: to the last digit the same run", None: "not tried"}


def inert(study: Study) -> Finding:
    """Of each searched parameter: whether runs around the best setting that differ in it alone differ at all."""
    trial, config = best_config(study)
    winner = choose(study).winner
    who = f"the winner, {winner.label}" if winner is not None else f"the best of the search, {trial}"
    rows = []
    for parameter in study.space:
        used = parameter.active(config) and parameter.path in config
        answer = reacts(study, parameter.path, config) if used else None
        said = ANSWERS[answer] if used else "not used by this setting"
        rows.append({"path": parameter.path, "name": study.named(parameter.path), "moves": answer, "answer": said})
    frame = pd.DataFrame(rows, columns=["path", "name", "moves", "answer"]).astype(object)
    tried = [row for row in rows if row["moves"] is not None]
    dead = [row["name"] for row in rows if row["moves"] is False]
    if not tried:
        needs = "Needs two runs with one seed that differ in one parameter alone, one epoch each. This plans them:"
        if not rows:
            return Finding(NAME, "0 parameters", refusal=Refusal("The study searched no parameter. Add a search "
                           "section to its file and run:", commands.extend(study)))  # fmt: skip
        return Finding(NAME, "0 pairs of runs", refusal=Refusal(needs, commands.plan(study)))
    title = Markup("No parameter that was tried is inert")
    if dead:
        title = Markup("{} {} inert at {}").format(listing(dead), "is" if len(dead) == 1 else "are", who)
    return Finding(
        title=title,
        used=f"{count(len(tried), 'parameter')} of {len(rows)}, around {who}",
        frames={"parameters": frame},
        numbers={"trial": trial, "inert": dead, "tried": len(tried)},
        sentences=(
            "Runs with the same seed start from the same weights and see the same batches. If moving one parameter "
            "leaves every loss, gradient norm and score as it was, the code does not read it there: no amount of data "
            "would show an effect. It may still act elsewhere, where another parameter switches it on.",
        ),
        checks=(
            check(
                "no searched parameter is inert", "record", dead, "{names} {are} inert at {who}.",
                "Moving it changes neither loss nor gradient there; another parameter may switch it on.",
                names=listing(dead), are="is" if len(dead) == 1 else "are", who=who, size=len(dead),
            ),
        ),
    )  # fmt: skip


def draw(study: Study, finding: Finding) -> Markup:
    def answer(row: Mapping[str, Any]) -> Markup:
        return Markup("<b>{}</b>" if row["moves"] is False else "{}").format(row["answer"])

    columns = [
        Column("name", "Parameter", lambda row: row["name"], False),
        Column("answer", "Moved alone, it", answer, False),
    ]
    return table("inert.parameters", finding.frames["parameters"], columns, label=NAME) + notes(finding.sentences)
