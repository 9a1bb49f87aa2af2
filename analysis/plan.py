"""Which runs a study lacks for its verdict, why, and what each will cost: `mmts-ray report STUDY --plan`.

Fresh seeds of the default, the winner and the runner-up come first. What lies around the winner (rings, bounds, the way
from the default) is planned once it has fresh seeds: the best of a search changes in about half of all studies when it
is run again, and rings around the wrong setting are lost. `mmts-ray extend STUDY --plan FILE` runs the entries.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mmts_ray import results

from . import commands
from .choice import FRESH_NEEDED, choose
from .plan_entry import EPOCHS, Entry, cost, missing
from .probes import identity, reacts
from .steps import at_random, beyond, legal_value, parents_first, path_between, ring, taking
from .tables import Parameter, Study
from .wording import count

EDGE = 0.05  # a winner in the outer twentieth of a range gets bound probes


@dataclass(frozen=True)
class Plan:
    """What is missing now, and in words what can be planned only after that."""

    study: Study
    entries: tuple[Entry, ...]
    notes: tuple[str, ...]

    @property
    def runs(self) -> int:
        return sum(len(entry.seeds) for entry in self.entries)

    @property
    def hours(self) -> float:
        return sum(entry.hours for entry in self.entries)


@dataclass(frozen=True, eq=False)
class _Arm:
    """A configuration to be run on fresh seeds."""

    name: str
    start: str
    config: Mapping[str, Any]


def plan(study: Study) -> Plan:
    """The missing runs of a study; ValueError, one line, when it has no finished trial to plan around."""
    if study.finished.empty:
        raise ValueError(f"{study.folder}: no finished trial to plan around; run `{commands.resume(study)}` first")
    seeds = fresh_seeds(study)
    entries: list[Entry] = []
    notes: list[str] = []
    for arm, reason in _arms(study):
        entries += missing(study, arm.name, "confirm", arm.start, arm.config, {}, seeds, reason)
    entries += _controls(study)
    winner = _settled(study)
    if winner is None:
        notes.append("Rings, bounds, ablation and inert check are planned around a winner with fresh seeds:")
        notes.append(f"run this plan, then `{commands.report(study)} --plan` again.")
    else:
        entries += _around(study, winner, seeds, notes)
    open_runs = int(study.trials["state"].isin(["running", "waiting"]).sum())
    if open_runs:
        notes.append(f"{count(open_runs, 'run')} not finished yet, left to `{commands.resume(study)}`.")
    return Plan(study, tuple(_each_once(entries)), tuple(notes))


def _each_once(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Entries without the runs that an earlier entry asks for."""
    asked: set[Any] = set()
    for entry in entries:
        key = identity(entry.config)
        seeds = tuple(seed for seed in entry.seeds if (key, seed) not in asked)
        asked |= {(key, seed) for seed in seeds}
        if seeds:
            yield replace(entry, seeds=seeds)


def fresh_seeds(study: Study) -> list[int]:
    """The seeds that reruns share: those in use, then further ones, as many as the study asks for."""
    wanted = max(FRESH_NEEDED, int((study.meta.get("confirm") or {}).get("seeds") or commands.SEEDS))
    fresh = study.trials[study.trials["kind"] == "confirm"]
    used = sorted({int(s) for s in fresh["seed"].dropna()})
    further = (s for s in range(results.FRESH_SEEDS, results.FRESH_SEEDS + wanted + len(used)) if s not in used)
    return sorted([*used[:wanted], *(next(further) for _ in range(wanted - len(used)))])


def _arms(study: Study) -> list[tuple[_Arm, str]]:
    """Who needs fresh seeds: the default, and the settings that may win."""
    chosen, found = choose(study), []
    if study.default is not None:
        runs = study.trials[(study.trials["name"] == study.default) & (study.trials["kind"] == "baseline")]
        config = study.configs.get(str(runs["trial"].iloc[0]), {}) if len(runs) else {}
        if config:
            found.append((_Arm(study.default, study.default, config), "the default that others must beat"))
    top = max(2, int((study.meta.get("confirm") or {}).get("top") or commands.TOP))
    ranked = study.searched if len(study.searched) else study.finished
    order = (ranked["score"] * -study.objective.better).sort_values(kind="stable").index
    best = [str(t) for t in ranked.loc[order, "trial"]]
    for role, candidate in (("winner", chosen.winner), ("runner-up", chosen.runner_up)):
        trial = candidate and (candidate.trial or str(candidate.runs["trial"].iloc[0]))
        if candidate is not None and trial in study.configs:
            start = candidate.label if candidate.source == "baseline" else str(trial)
            found.append((_Arm(candidate.label, start, study.configs[str(trial)]), f"the {role} on fresh seeds so far"))
    for place, trial in enumerate(best[:top]):
        words = "the best of the search" if place == 0 else f"number {place + 1} of the search"
        found.append((_Arm(trial, trial, study.configs.get(trial, {})), f"{words}: its score is a maximum of noise"))
    once = {identity(arm.config): (arm, reason) for arm, reason in reversed(found) if arm.config}
    return [once[key] for key in dict.fromkeys(identity(arm.config) for arm, _ in found) if key in once]


def _settled(study: Study) -> _Arm | None:
    """The winner, when it and the default have the fresh seeds that a verdict needs."""
    chosen = choose(study)
    compared = [chosen.winner] + ([chosen.default] if study.default is not None else [])
    column = study.reported.column
    if any(c is None or len(c.values(column)) < FRESH_NEEDED for c in compared) or chosen.winner is None:
        return None
    winner = chosen.winner
    trial = winner.trial or str(winner.runs["trial"].iloc[0])
    start = winner.label if winner.source == "baseline" else trial
    return _Arm(winner.label, start, study.configs.get(trial, {}))


def _around(study: Study, winner: _Arm, seeds: Sequence[int], notes: list[str]) -> Iterator[Entry]:
    """Inert check, rings, bounds and the ablation path of a settled winner."""
    live = []
    for parameter in study.space:
        name = study.named(parameter.path)
        if not parameter.active(winner.config) or winner.config.get(parameter.path) is None:
            notes.append(f"{name}: not used by the winner, so nothing is planned for it.")
        elif reacts(study, parameter.path, winner.config) is False:
            notes.append(f"{name}: inert, runs that differ in it alone agree to the last digit, so no ring is planned.")
        else:
            live.append(parameter)
    for parameter in live:
        yield from _inert(study, winner, parameter, seeds)
    for parameter in live:
        yield from _ring(study, winner, parameter, seeds)
    for parameter in live:
        yield from _bounds(study, winner, parameter, seeds)
    yield from _ablation(study, winner, seeds)
    yield from _alone(study, winner, seeds)


def _inert(study: Study, winner: _Arm, parameter: Parameter, seeds: Sequence[int]) -> Iterator[Entry]:
    """One epoch at each end of the range, from the same start: does the code read the parameter at all?"""
    if parameter.path == EPOCHS or reacts(study, parameter.path, winner.config) is not None:
        return
    ends: tuple[Any, Any] = (parameter.low, parameter.high)
    if parameter.kind == "choice":
        ends = (parameter.values[0], parameter.values[-1])
    reason = "do two runs that differ in it alone differ at all?"
    for end, value in zip(("low", "high"), ends):
        changes = {parameter.path: legal_value(parameter, value), EPOCHS: 1}
        yield from _changed(study, f"inert {parameter.path} {end}", winner, changes, seeds[:1], reason)


def _ring(study: Study, winner: _Arm, parameter: Parameter, seeds: Sequence[int]) -> Iterator[Entry]:
    reason = "how far may it drift? measured beside the winner, on its seeds"
    for where, value in ring(parameter, winner.config[parameter.path]):
        yield from _changed(study, f"ring {parameter.path} {where}", winner, {parameter.path: value}, seeds, reason)


def _bounds(study: Study, winner: _Arm, parameter: Parameter, seeds: Sequence[int]) -> Iterator[Entry]:
    """At the end that the winner touches, and beyond it where the declared domain goes on."""
    if parameter.kind == "choice" or parameter.high <= parameter.low:
        return
    (here,) = parameter.position([winner.config[parameter.path]])
    for side, touches in (("low", here <= EDGE), ("high", here >= 1 - EDGE)):
        if not touches:
            continue
        for where, value in beyond(parameter, side):
            if value == winner.config[parameter.path]:
                continue
            reason = "the winner lies at an end of the range: is it still better there, or beyond?"
            yield from _changed(
                study, f"bound {parameter.path} {where}", winner, {parameter.path: value}, seeds, reason
            )


def _ablation(study: Study, winner: _Arm, seeds: Sequence[int]) -> Iterator[Entry]:
    """The steps between default and winner; both ends are known from their own fresh seeds."""
    arms = [arm for arm, _ in _arms(study) if arm.start == study.default]
    if not arms or study.default is None or not winner.config:
        return
    for step, (path, config) in enumerate(path_between(study, arms[0].config, winner.config)[:-1], start=1):
        changes = _changes(arms[0].config, config, path)
        reason = "which change from the default made the difference?"
        yield from missing(study, f"ablation {step} {path}", "probe", study.default, config, changes, seeds, reason)


def _alone(study: Study, winner: _Arm, seeds: Sequence[int]) -> Iterator[Entry]:
    """Each change alone: the default with it, and the winner without it."""
    arms = [arm for arm, _ in _arms(study) if arm.start == study.default]
    if not arms or not winner.config:
        return
    default = arms[0]
    blocks = [block for block, _ in path_between(study, default.config, winner.config)]
    for block in blocks if len(blocks) > 1 else []:
        for word, arm, other in (("alone", default, winner), ("reset", winner, default)):
            config = taking(arm.config, other.config, block)
            reason = "what does it gain alone?" if word == "alone" else "what does the winner lose without it?"
            changes = _changes(arm.config, config, block)
            yield from missing(study, f"{word} {block}", "probe", arm.start, config, changes, seeds, reason)


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], block: str) -> dict[str, Any]:
    """What an entry sets; another function (`schedule.*`) brings all its parameters."""
    changed = {k: v for k, v in after.items() if k not in before or repr(before[k]) != repr(v)}
    inside = block.removesuffix("*")
    return changed | {k: v for k, v in after.items() if block.endswith(".*") and k.startswith(inside)}


def _controls(study: Study) -> Iterator[Entry]:
    """Random trials that run to their end, for a study that stops trials."""
    have = int(((study.trials["kind"] == "control") & (study.trials["state"] != "failed")).sum())
    ranges = [p for p in study.space if p.kind == "choice" or p.high > p.low]
    if not commands.stops(study) or not ranges or have >= commands.CONTROLS:
        return
    seed = int(study.meta.get("seed") or 0)
    reason = "stopped trials are a selected sample: only random ones that run to their end show what a rung is worth"
    for number in range(have, commands.CONTROLS):
        # each point from its own stream: a plan that is made again after some have run draws the same others
        rng = np.random.Generator(np.random.PCG64([seed, 0xC0, number]))
        point: dict[str, Any] = {}
        for parameter in parents_first(study.space):
            draw = rng.random()  # one draw each, whether the parameter is active or not
            if parameter.active({**_fixed(study), **point}):
                point[parameter.path] = at_random(parameter, draw)
        config = {**_fixed(study), **point}
        yield Entry(f"control {number + 1}", "control", None, point, config, (seed,), reason, *cost(study, config))


def _fixed(study: Study) -> dict[str, Any]:
    """What all search trials share."""
    configs = [study.configs.get(t, {}) for t in study.searched["trial"].head(50)]
    searched = {p.path for p in study.space}
    first = configs[0] if configs else {}
    return {k: v for k, v in first.items() if k not in searched and all(repr(c.get(k)) == repr(v) for c in configs)}


def _changed(
    study: Study, name: str, arm: _Arm, changes: Mapping[str, Any], seeds: Sequence[int], reason: str
) -> Iterator[Entry]:
    yield from missing(study, name, "probe", arm.start, {**arm.config, **changes}, changes, seeds, reason)
