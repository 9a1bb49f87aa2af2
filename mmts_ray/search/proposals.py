"""What runs next and what came of it: planned trials first, then what the sampler proposes."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from ray.tune.search import Searcher

from mmts_ray import explore, results, storage
from mmts_ray.plan import (
    MOST_REPEATS,
    Parent,
    Planned,
    grouped,
    ranked,
    start_records,
    trial_id,
)
from mmts_ray.ranking import Metrics, Rows, excess, metrics_of, values
from mmts_ray.sampler import Sampler
from mmts_ray.search.budget import Budget
from mmts_ray.study import StudyConfig
from mmts_ray.trial.run import checkpoint_dir, hand_over

SAMPLED = ("search", "control")
MOVES = 0x5EA  # the stream of random numbers that moves of a population are drawn from
KEEP_BEST = 5  # searched configurations whose weights are kept


class Progress(Protocol):
    """What a driver tells its user; `progress.Trials` is the implementation.

    `waiting` gives the reason why trials that could run do not ("" when none waits any more), `resources` what of the
    cluster is in use and what there is, `event` one line that the user should know and that ends nothing.
    """

    def begin(self, *, planned: int, finished: int) -> None: ...
    def waiting(self, reason: str) -> None: ...
    def resources(self, used: dict[str, float], total: dict[str, float]) -> None: ...
    def event(self, text: str) -> None: ...
    def more(self, count: int) -> None: ...
    def trial_ended(self, planned: Planned, *, status: str, metrics: dict[str, float], seconds: float) -> None: ...


class Proposals(Searcher):
    """Hands Tune the planned trials, then what the sampler proposes, and tells everyone how each one ended."""

    def __init__(
        self,
        study: StudyConfig,
        study_dir: Path,
        *,
        known: Rows,
        plan: list[Planned],
        data_key: str,
        progress: Progress,
        sampler: Sampler | None = None,
        sampled: int = 0,
        wanted: int = 0,
        next_id: int = 0,
        scheduled: bool = False,
        budget: Budget | None = None,
        certain: int = 0,
        keep_every: int = 0,
    ) -> None:
        super().__init__()
        self.study, self.study_dir, self.sampler, self.progress = study, study_dir, sampler, progress
        self.plan, self.data_key = list(plan), data_key
        self.sampled, self.wanted, self.next_id = sampled, wanted, next_id
        self.ledger = results.Ledger(study_dir)
        self.live: dict[str, Planned] = {}  # by Tune's trial id
        self.budget = budget
        self.certain = certain  # of the plan, what has begun and is finished whatever the budget says
        self.interrupted = ""  # why nothing more is run, when the storage has failed
        self.expects: Callable[[], bool] = lambda: False  # whether a scheduler may plan more, once nothing is left
        self.why: Callable[[str], tuple[str, str]] = lambda trial_id: ("failed", "the trial's process died")
        self.last: dict[str, dict[str, Any]] = {}
        self.reports, self.keep_every = scheduled, keep_every
        self.paused: set[str] = set()
        self.concurrent: int | None = None  # set when a scheduler pauses trials: so many that are not paused
        # what ran or runs, by configuration, with its values once they are known
        groups = [row for row in grouped(study, known).values() if row["kind"] not in results.FRESH]
        self.ran = {row["config_hash"]: metrics_of(row) if row["status"] == "done" else None for row in groups}
        self.ran |= {p.config.hash: None for p in plan}
        done = [row for row in groups if row["kind"] in SAMPLED and row["status"] == "done"]
        self.best = ranked(study, done)[:KEEP_BEST]

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        if self.concurrent is not None and len(self.live) - len(self.paused) >= self.concurrent:
            return None
        try:
            planned = None if self.interrupted else self._next()
            if planned is None:
                if self.interrupted or not self.expects():
                    return Searcher.FINISHED
                if (planned := self._next()) is None:
                    return None
            starts = self.waits(planned)
            storage.settle(self.study_dir)  # whatever is lost from now on, its id and its parameters are known
        except OSError as problem:
            self._interrupt(problem)
            return Searcher.FINISHED
        self.live[trial_id] = planned
        return {
            "trial": planned.trial,
            "kind": planned.kind,
            "flat": planned.config.flat(),
            "members": [list(member) for member in planned.members.items()],
            "starts": {record["trial"]: record for record in starts},
            # a scheduler may stop what was sampled; what others are compared with always runs to its end, and so does
            # a configuration that was whole before seeds were added
            "report": self.reports and planned.kind == "search" and "done" not in dict(planned.ended).values(),
            "ended": [list(pair) for pair in planned.ended],
            "before": [list(row) for row in planned.before],
            "keep_every": self.keep_every if planned.kind == "search" else 0,
            "parent_hash": planned.parent.config_hash if planned.parent else None,
        }

    def waits(self, planned: Planned) -> list[dict[str, Any]]:
        """Into the ledger: its trials are wanted and have no place yet. Each writes itself that it runs."""
        records = start_records(self.study, planned, status="waiting", data_key=self.data_key)
        for record in records:
            self.ledger.append(record)
        return records

    def waits_again(self, planned: Planned) -> None:
        """Its process has died, and Tune looks for another place."""
        try:
            self.waits(planned)
        except OSError as problem:
            self._interrupt(problem)

    def _interrupt(self, problem: OSError | str) -> None:
        self.interrupted = self.interrupted or str(problem)

    def on_pause(self, trial_id: str) -> None:
        self.paused.add(trial_id)

    def on_unpause(self, trial_id: str) -> None:
        self.paused.discard(trial_id)

    def replace(self, old_id: str, parent_id: str, *, epoch: int, step: int) -> bool:
        """Plan a moved copy of one of Tune's trials in the place of another; False when it left no checkpoint."""
        old, parent = self.live[old_id], self.live[parent_id]
        rng = np.random.default_rng([self.study.seed, MOVES, self.next_id])
        config = explore.moved(self.study, parent.config, rng, taken=self.ran)
        if config is None:
            return False
        origin = Parent(parent.trial, parent.config.hash, epoch, step, old.trial)
        heir = Planned(
            trial=trial_id("t", self.next_id),
            kind="search",
            name=None,
            config=config,
            seeds=parent.seeds,
            parent=origin,
        )
        try:
            for seed, trial in heir.members.items():
                if not hand_over(self.study_dir, parent.members[seed], trial, epoch):
                    return False
            self.waits(heir)
        except OSError as problem:
            self._interrupt(problem)
            return False
        self.next_id += 1
        self.ran[config.hash] = None
        self.plan.insert(0, heir)
        self.progress.more(1)
        return True

    def _next(self) -> Planned | None:
        if self.certain <= 0 and self.budget and (self.plan or self.wanted > 0) and (why := self.budget.exhausted()):
            self.progress.event(why)
            self.plan, self.wanted = [], 0
        if self.plan:
            self.certain -= 1
            return self.plan.pop(0)
        if self.wanted <= 0 or self.sampler is None:
            return None
        trial = trial_id("t", self.next_id)
        for _ in range(MOST_REPEATS):
            number, point = self.sampler.ask(trial, self.sampled)
            try:
                config = self.study.trial_config(point)
            except ValueError:  # no configuration: parameters that are legal alone and not together
                self.sampler.tell(number, status="infeasible", values=None)
                continue
            if config.hash not in self.ran:
                self.next_id += 1
                self.sampled += 1
                self.wanted -= 1
                self.ran[config.hash] = None
                seeds = self.study.seeds_of(config)
                return Planned(trial=trial, kind="search", name=None, config=config, seeds=seeds)
            # the same configuration and seed give the same numbers: remind the sampler instead of training again
            metrics = self.ran[config.hash]
            self.sampler.tell(number, status="done" if metrics else "failed", **self._told(metrics or {}))
        self.wanted = 0
        return None

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self.last[trial_id] = result

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        planned = self.live.pop(trial_id, None)
        self.paused.discard(trial_id)
        if planned is None:
            return
        result = result or self.last.get(trial_id, {})
        self.last.pop(trial_id, None)
        try:
            self._ended(trial_id, planned, result, error)
        except OSError as problem:
            self._interrupt(problem)

    def _ended(self, trial_id: str, planned: Planned, result: dict[str, Any], error: bool) -> None:
        status = result.get("status", "running" if error else "failed")  # it may have died before it answered once
        if status == "interrupted":
            self._interrupt(result["error"])
        if self.interrupted:  # what the ledger holds stands; the rest is done when the study is resumed
            return
        if error and status not in results.FINISHED:
            status, reason = self.why(trial_id)
            self._write_ends(planned, result, status, error=reason)
        elif status == "running":  # the scheduler's doing: the actor itself has not ended the trial
            status = "stopped"
            self._write_ends(planned, result, status)
        metrics = {
            k: float(v) for k, v in result.items() if k.startswith(("val_", "test_")) and isinstance(v, (int, float))
        }
        self.finish(planned, status, metrics, epoch=int(result.get("epoch", 0)))
        seconds = float(result.get("seconds", result.get("time_total_s", 0.0)))
        self.progress.trial_ended(planned, status=status, metrics=metrics, seconds=seconds)

    def finish(self, planned: Planned, status: str, metrics: dict[str, float], *, epoch: int) -> None:
        """Tell the sampler how a configuration ended, and keep its weights only if they are among the best."""
        told = self._told(metrics)
        # what began with another's checkpoint says nothing of its own parameters alone
        if self.sampler is not None and planned.kind not in results.FRESH and planned.parent is None:
            number = self.sampler.number_of.get(planned.trial)
            if number is not None:
                self.sampler.tell(number, status=status, epoch=epoch, **told)
            else:
                self.sampler.adopt(planned.trial, planned.config, status=status, epoch=epoch, **told)
        self.ran[planned.config.hash] = metrics if status == "done" else None
        self._prune(planned, status, metrics)

    def _told(self, metrics: Metrics) -> dict[str, Any]:
        """What the sampler hears of a configuration: its values, and by how much it breaks the constraints."""
        return {
            "values": values(self.study.objective, metrics),
            "excess": excess(self.study.constraints, metrics) if metrics else None,
        }

    def stop(self, planned: Planned, steps: list[dict[str, Any]]) -> None:
        """End an interrupted configuration where it stands: the scheduler has stopped it."""
        last = {step["trial"]: step for step in sorted(steps, key=lambda step: step["step"])}
        members = [last[trial] for trial in planned.members.values()]
        answers = [
            {**row, "metrics": {k.removeprefix("metric."): v for k, v in row.items() if k.startswith("metric.")}}
            for row in members
        ]
        self._write_ends(planned, {"members": answers}, "stopped")
        metrics = results.mean([answer["metrics"] for answer in answers])
        self.finish(planned, "stopped", metrics, epoch=min(row["epoch"] for row in members))
        self.progress.trial_ended(planned, status="stopped", metrics=metrics, seconds=0.0)

    def _write_ends(self, planned: Planned, result: dict[str, Any], status: str, error: str | None = None) -> None:
        """End every seed that has not ended itself; the process that led them is gone or has moved on."""
        known = results.trials_of(self.study_dir) if error else {}
        answers = {answer["trial"]: answer for answer in result.get("members", [])}
        for seed, trial in planned.members.items():
            answer = answers.get(trial, {})
            if (
                seed in dict(planned.ended)
                or answer.get("done")
                or known.get(trial, {}).get("status") in results.FINISHED
            ):
                continue
            seconds = answer.get("seconds")
            self.ledger.append(
                {
                    "trial": trial,
                    "step": answer.get("step", 0),
                    "epoch": answer.get("epoch", 0),
                    "seconds": seconds,
                    "device_seconds": seconds and round(seconds * max(1.0, self.study.resources.gpus), 4),
                    "status": status,
                    "error": error,
                    **{f"metric.{k}": v for k, v in answer.get("metrics", {}).items()},
                }
            )

    def _prune(self, planned: Planned, status: str, metrics: Metrics) -> None:
        """Keep the weights of the best few sampled trials, and of everything that is compared; delete the rest."""
        if planned.kind not in SAMPLED:
            return
        row = {"trial": planned.trial, "status": status, **{f"metric.{k}": v for k, v in metrics.items()}}
        self.best = ranked(self.study, before := [*self.best, row])[:KEEP_BEST]
        drop = {one["trial"] for one in before} - {one["trial"] for one in self.best}
        for group in drop:
            for folder in [
                checkpoint_dir(self.study_dir, group),
                *checkpoint_dir(self.study_dir, "").glob(f"{group}-*"),
            ]:
                shutil.rmtree(folder, ignore_errors=True)
            storage.drop(self.study_dir, checkpoint_dir(self.study_dir, group))
            storage.drop(self.study_dir, checkpoint_dir(self.study_dir, f"{group}-*"))

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the ledger and the Optuna journal are what a resumed study is built from."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: see `save`."""
