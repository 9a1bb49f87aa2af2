"""What Tune does not tell: that a trial waits, has gone silent, of what it died; what of the cluster is in use."""

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial

from mmts_ray.search import preflight
from mmts_ray.search.proposals import Proposals
from mmts_ray.study import Resources
from mmts_ray.trial import pulse

DEATHS = 3  # how often in a row the process of a trial may die before it has got further than the time before
SHOWN_AFTER = 5.0  # seconds that a trial waits before anybody is told
LOOK_SECONDS = 2.0
START = (0, 0)  # seed and step


class Silence:
    """How long each trial has given no sign of life; pure, the caller has the clock."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str | None, float]] = {}

    def seconds(self, trial: str, sign: str | None, now: float) -> float:
        """Seconds since the sign changed, or since the trial was first asked after."""
        before = self._last.get(trial)
        if before is None or before[0] != sign:
            before = self._last[trial] = (sign, now)
        return now - before[1]

    def forget(self, trial: str) -> None:
        self._last.pop(trial, None)


class Watch(tune.Callback):
    """Ends trials that have gone silent, counts their processes' deaths, says what is in use and waited for."""

    def __init__(self, run: str, proposals: Proposals, resources: Resources, *, stall_seconds: float) -> None:
        self.run, self.proposals, self.resources = run, proposals, resources
        self.stall_seconds = stall_seconds
        self.every = min(LOOK_SECONDS, stall_seconds / 5)
        self.next_look = 0.0
        self.silence = Silence()
        self.reached: dict[str, tuple[int, int]] = {}  # the furthest seed and step, by trial
        self.died_at: dict[str, tuple[int, int]] = {}  # the furthest when its process died
        self.waits: dict[str, float] = {}  # since when
        self.stalled: dict[str, str] = {}  # why, by Tune's trial id
        self.trials: Sequence[Trial] = ()
        proposals.why = self.why

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        self.trials = trials
        now = time.monotonic()
        if now < self.next_look:
            return
        self.next_look = now + self.every
        for trial in trials:
            if trial.trial_id in self.proposals.live:
                self._look(trial, now)
        total, free = ray.cluster_resources(), ray.available_resources()
        self.proposals.progress.resources({key: total[key] - free.get(key, 0.0) for key in total}, total)
        long = [since for since in self.waits.values() if now - since >= SHOWN_AFTER]
        self.proposals.progress.waiting(self._waiting(len(self.waits), total, free) if long else "")

    def _look(self, trial: Trial, now: float) -> None:
        name = self.proposals.live[trial.trial_id].trial
        if trial.status != Trial.RUNNING:
            self.silence.forget(name)
            self.waits.setdefault(name, now)
            return
        sign = pulse.read(self.run, name)
        if sign is None and self.resources.workers > 1:  # its driver runs, its workers wait for room
            self.waits.setdefault(name, now)
            return
        self.waits.pop(name, None)
        silent = self.silence.seconds(name, sign and sign[0], now)
        if sign is not None:
            self.reached[name] = max(sign[1], self.reached.get(name, START))
        if silent >= self.stall_seconds and trial.trial_id not in self.stalled:
            self._end(trial, name)

    def _end(self, trial: Trial, name: str) -> None:
        """Kill its process; Tune then reports its end, and does not try again."""
        self.stalled[trial.trial_id] = (
            f"no optimiser step for {self.stall_seconds / 60:g} minutes (stall_minutes), the last seen was "
            f"{self.reached.get(name, START)[1]}; its process was ended"
        )
        self.proposals.progress.event(f"{name}: {self.stalled[trial.trial_id]}")
        trial.max_failures = 0
        if trial.temporary_state.ray_actor is not None:
            ray.kill(trial.temporary_state.ray_actor)

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        planned = self.proposals.live.get(trial.trial_id)
        if planned is None:
            return
        reached = self.reached.get(planned.trial, START)
        if reached > self.died_at.get(planned.trial, START):  # it got further: this death is the first of a row
            trial.run_metadata.num_failures = min(trial.run_metadata.num_failures, 1)
        self.died_at[planned.trial] = reached
        pulse.forget(self.run, planned.trial)
        self.silence.forget(planned.trial)
        self.proposals.waits_again(planned)
        self.proposals.progress.event(f"{planned.trial}: its process died; it goes on from its own checkpoint")

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._drop(trial)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._drop(trial)

    def _drop(self, trial: Trial) -> None:
        name = trial.config["trial"]
        pulse.forget(self.run, name)
        self.silence.forget(name)
        for kept in (self.reached, self.died_at, self.waits):
            kept.pop(name, None)  # type: ignore[attr-defined]

    def why(self, trial_id: str) -> tuple[str, str]:
        """The status and the reason of a trial whose processes Tune has given up."""
        if trial_id in self.stalled:
            return "failed", self.stalled[trial_id]
        trial = next((t for t in self.trials if t.trial_id == trial_id), None)
        # Tune's own reader looks into the storage, where the file comes later
        told = Path(trial.error_file) if trial is not None and trial.error_file else None
        return cause_of_death(told.read_text(errors="replace") if told is not None and told.is_file() else "")

    def _waiting(self, number: int, total: Mapping[str, float], free: Mapping[str, float]) -> str:
        report = preflight.report()
        told = report["autoscaler_report"] if report else {}
        live = len(self.proposals.live)
        try:
            return waiting_reason(number, live, self.resources, total, free, told)
        except (AttributeError, TypeError, ValueError):  # the report's shape is Ray's own: no trial dies of a display
            return waiting_reason(number, live, self.resources, total, free, {})


def cause_of_death(text: str) -> tuple[str, str]:
    """(status, reason) from Ray's words about failures of one trial, the last of which counts."""
    last = text.rpartition("Failure #")[2]
    if re.search(r"low on memory|OUT_OF_MEMORY|OutOfMemory", last):
        return "infeasible", "out of memory: Ray ended its process because the machine ran low on memory"
    if re.search(r"node has died|node was (terminated|drained|preempted)", last):
        return "failed", "its machine was lost, again and again without getting further"
    if "actor died" in last or "actor is dead" in last:
        detail = re.search(r"Worker exit detail: (.+?)(?:\. |\n|$)", last)
        return "failed", "the trial's process died, again and again without getting further" + (
            f": {detail[1]}" if detail else ""
        )
    lines = [line.strip() for line in last.splitlines() if re.match(r"\s*[\w.]*(Error|Exception)\b.*:", line)]
    return "failed", lines[-1] if lines else "the trial's process died"


def waiting_reason(
    number: int,
    live: int,
    resources: Resources,
    total: Mapping[str, float],
    free: Mapping[str, float],
    autoscaler: Mapping[str, Any],
) -> str:
    """One line: how many of the `live` trials wait, for what, what there is of it, what the autoscaler does."""
    key = "GPU" if resources.gpus else "CPU"
    need = resources.gpus or resources.cpus
    trials = f"{number} trial{'s' if number > 1 else ''}"
    if total.get(key, 0) - free.get(key, 0) >= need * live - 1e-6:  # they have their places
        return f"{trials} starting"
    have = f"{free.get(key, 0):g} of {total.get(key, 0):g} {key} free"
    text = f"{trials} waiting for {need:g} {key} each; {have}"
    starting: dict[str, int] = dict(autoscaler.get("pending_launches") or {})
    for _, kind, _ in autoscaler.get("pending_nodes") or ():  # (address, type, status)
        starting[kind] = starting.get(kind, 0) + 1
    if starting:
        text += "; starting " + ", ".join(f"{count} {kind}" for kind, count in sorted(starting.items()))
    known = (autoscaler.get("node_availability_summary") or {}).get("node_availabilities") or {}
    for kind, record in sorted(known.items()):
        problem = record.get("unavailable_node_information")
        if problem:
            text += f"; {kind} could not be had: {problem.get('description') or problem.get('category')}"
    return text
