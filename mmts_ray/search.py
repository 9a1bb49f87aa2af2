"""Ray Tune at the rim: a study's trials, from its file and its ledger, whether it starts, resumes, grows or confirms.

There is one mechanism. `_drive` is given the trials that are certain (unfinished ones first, then baselines or reruns)
and asks the sampler for the rest; Tune runs them in warm actors. What happened is read back from the ledger alone.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

# Tune's own loggers and snapshots cost more than a short trial, and nothing of ours reads them
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "86400")
os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")  # an infeasible trial has no metric
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # Ctrl-C is ours: stop, say how to resume
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")

import numpy as np
import ray
from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler
from ray.tune.search import Searcher

from mmts_ray import results
from mmts_ray.features import Frozen
from mmts_ray.plan import (
    Planned,
    Rows,
    config_of,
    confirmations,
    missing_baselines,
    next_number,
    objective_values,
    start_record,
    unfinished,
    values_of,
)
from mmts_ray.sampler import Sampler
from mmts_ray.study import StudyConfig
from mmts_ray.trial import TrialActor, checkpoint_dir

KEEP_BEST = 5  # search trials whose weights are kept
MOST_REPEATS = 200  # proposals in a row that have run already: then the space is taken as exhausted
ORPHAN_SECONDS = 60


class Progress(Protocol):
    """What a driver tells its user; `cli` has the implementation."""

    def begin(self, *, planned: int, finished: int) -> None: ...
    def trial_ended(self, planned: Planned, *, status: str, metrics: dict[str, float], seconds: float) -> None: ...


@contextlib.contextmanager
def lease(study_dir: Path) -> Iterator[None]:
    """The right to drive a study: one driver at a time, and only after the trials of a killed one have ended."""
    with (study_dir / "driver.lock").open("a") as mine, (study_dir / "actors.lock").open("a") as actors:
        try:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{study_dir}: another mmts-ray process is driving this study; wait for it, or end it"
            ) from None
        deadline = time.monotonic() + ORPHAN_SECONDS
        while True:
            try:
                fcntl.flock(actors, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(actors, fcntl.LOCK_UN)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ValueError(
                        f"{study_dir}: trials of an earlier driver are still running after {ORPHAN_SECONDS} s"
                    ) from None
                time.sleep(0.2)
        yield


def search(
    study: StudyConfig, study_dir: Path, frozen: Frozen, *, cache_dir: Path, progress: Progress, address: str
) -> None:
    """Run the study to its number of trials: unfinished trials first, then missing baselines, then sampled points."""
    with lease(study_dir):
        known = results.trials_of(study_dir)
        sampler = Sampler(study, study_dir)
        _synchronise(study, sampler, known)
        begun = unfinished(known, "search", "baseline", "confirm")
        first_id = next_number(known, "t")
        baselines = missing_baselines(study, known, first_id)
        sampled = sum(row["kind"] == "search" for row in known.values())
        total = len(sampler.grid) if study.strategy == "grid" else study.trials
        wanted = max(total - sampled, 0) if study.searched else 0
        proposals = Proposals(
            study,
            study_dir,
            known=known,
            plan=[*begun, *baselines],
            data_key=frozen.key,
            sampler=sampler,
            sampled=sampled,
            wanted=wanted,
            next_id=first_id + len(baselines),
            progress=progress,
        )
        progress.begin(planned=len(proposals.plan) + wanted, finished=len(known) - len(begun))
        _drive(study, study_dir, frozen, proposals, cache_dir=cache_dir, address=address)


def confirm(
    study: StudyConfig,
    study_dir: Path,
    frozen: Frozen,
    *,
    top: int,
    seeds: int,
    cache_dir: Path,
    progress: Progress,
    address: str,
) -> None:
    """Rerun the baselines and the best `top` configurations on fresh seeds, each seed shared by all of them."""
    with lease(study_dir):
        known = results.trials_of(study_dir)
        begun = unfinished(known, "confirm")
        fresh = confirmations(study, known, top=top, seeds=seeds)
        with contextlib.closing(results.Ledger(study_dir)) as ledger:
            for planned in fresh:  # written down first, so that `resume` finishes what is interrupted here
                ledger.append(start_record(study, planned, status="waiting", data_key=frozen.key))
        plan = [*begun, *fresh]
        finished = sum(row["kind"] == "confirm" for row in known.values()) - len(begun)
        progress.begin(planned=len(plan), finished=finished)
        proposals = Proposals(study, study_dir, known=known, plan=plan, data_key=frozen.key, progress=progress)
        _drive(study, study_dir, frozen, proposals, cache_dir=cache_dir, address=address)


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
    ) -> None:
        super().__init__()
        self.study, self.study_dir, self.sampler, self.progress = study, study_dir, sampler, progress
        self.plan, self.data_key = list(plan), data_key
        self.sampled, self.wanted, self.next_id = sampled, wanted, next_id
        self.ledger = results.Ledger(study_dir)
        self.live: dict[str, Planned] = {}  # by Tune's trial id
        self.last: dict[str, dict[str, Any]] = {}
        # what ran or runs, by configuration, with its values once they are known
        self.ran = {
            row["config_hash"]: values_of(study, row) if row["status"] == "done" else None
            for row in known.values()
            if row["kind"] != "confirm"
        }
        self.ran |= {p.config.hash: None for p in plan}
        sign = 1 if study.objective[0][1] == "max" else -1
        done = [
            (row, values_of(study, row))
            for row in known.values()
            if row["kind"] == "search" and row["status"] == "done"
        ]
        self.kept = sorted(((sign * v[0], row["trial"]) for row, v in done if v), reverse=True)[:KEEP_BEST]

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        planned = self._next()
        if planned is None:
            return Searcher.FINISHED
        self.ledger.append(start_record(self.study, planned, status="running", data_key=self.data_key))
        self.live[trial_id] = planned
        return {"trial": planned.trial, "kind": planned.kind, "flat": planned.config.flat()}

    def _next(self) -> Planned | None:
        if self.plan:
            return self.plan.pop(0)
        if self.wanted <= 0 or self.sampler is None:
            return None
        trial = f"t{self.next_id:04d}"
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
                return Planned(trial=trial, kind="search", name=None, config=config)
            # the same configuration and seed give the same numbers: remind the sampler instead of training again
            values = self.ran[config.hash]
            self.sampler.tell(number, status="done" if values else "failed", values=values)
        self.wanted = 0
        return None

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self.last[trial_id] = result

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        planned = self.live.pop(trial_id, None)
        if planned is None:
            return
        result = result or self.last.get(trial_id, {})
        self.last.pop(trial_id, None)
        status = result.get("status", "failed")
        if error and status not in results.FINISHED:
            status = "failed"
            self._write_end(planned, result, status, error="the trial's process died")
        elif status == "running":  # the scheduler's doing: the actor itself has not ended the trial
            status = "stopped"
            self._write_end(planned, result, status)
        metrics = {
            k: float(v) for k, v in result.items() if k.startswith(("val_", "test_")) and isinstance(v, (int, float))
        }
        values = objective_values(self.study, metrics)
        number = self.sampler.number_of.get(planned.trial) if self.sampler is not None else None
        if self.sampler is not None and planned.kind == "search" and number is not None:
            self.sampler.tell(number, status=status, values=values, epoch=int(result.get("epoch", 0)))
        elif self.sampler is not None and planned.kind == "baseline":
            self.sampler.adopt(planned.trial, planned.config, status=status, values=values)
        self.ran[planned.config.hash] = values if status == "done" else None
        self._prune(planned, status, values)
        seconds = float(result.get("seconds", result.get("time_total_s", 0.0)))
        self.progress.trial_ended(planned, status=status, metrics=metrics, seconds=seconds)

    def _write_end(self, planned: Planned, result: dict[str, Any], status: str, error: str | None = None) -> None:
        metrics = {f"metric.{k}": v for k, v in result.items() if k.startswith(("val_", "train_"))}
        seconds = result.get("seconds")
        self.ledger.append(
            {
                "trial": planned.trial,
                "step": result.get("step", 0),
                "epoch": result.get("epoch", 0),
                "seconds": seconds,
                "device_seconds": seconds and round(seconds * max(1.0, self.study.resources.gpus), 4),
                "status": status,
                "error": error,
                **metrics,
            }
        )

    def _prune(self, planned: Planned, status: str, values: list[float] | None) -> None:
        """Keep the weights of the best few searched trials, and of everything that is compared; delete the rest."""
        if planned.kind != "search":
            return
        drop = [planned.trial]
        if status == "done" and values:
            sign = 1 if self.study.objective[0][1] == "max" else -1
            order = sorted([*self.kept, (sign * values[0], planned.trial)], reverse=True)
            self.kept, drop = order[:KEEP_BEST], [trial for _, trial in order[KEEP_BEST:]]
        for trial in drop:
            shutil.rmtree(checkpoint_dir(self.study_dir, trial), ignore_errors=True)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the ledger and the Optuna journal are what a resumed study is built from."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: see `save`."""


def _synchronise(study: StudyConfig, sampler: Sampler, known: Rows) -> None:
    """Tell the sampler what the ledger knows and it does not: ends it missed, and trials of a lost or other journal."""
    for trial, row in known.items():
        if row["kind"] == "confirm" or row["status"] not in results.FINISHED:
            continue
        values = values_of(study, row)
        if trial in sampler.number_of:
            sampler.tell(sampler.number_of[trial], status=row["status"], values=values, epoch=row["epoch"])
        else:
            sampler.adopt(trial, config_of(row), status=row["status"], values=values)
    for trial, number in sampler.number_of.items():
        if trial not in known and sampler.running(number):  # asked, but killed before its start was written
            sampler.tell(number, status="failed", values=None)


def _drive(
    study: StudyConfig, study_dir: Path, frozen: Frozen, proposals: Proposals, *, cache_dir: Path, address: str
) -> None:
    """Run what `proposals` hands out until it has nothing left."""
    if not proposals.plan and proposals.wanted <= 0:
        return
    own_ray = not ray.is_initialized()
    if own_ray:
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        resources = study.resources
        total = ray.cluster_resources()
        for key, need in (("CPU", resources.cpus), ("GPU", resources.gpus)):
            if need > total.get(key, 0):
                raise ValueError(
                    f"resources: a trial needs {need:g} {key}, the cluster has {total.get(key, 0):g}; "
                    f"lower resources.{key.lower()}s"
                )
        fitting = int(total["CPU"] // resources.cpus)
        if resources.gpus:
            fitting = min(fitting, int(total["GPU"] / resources.gpus))
        concurrent = min(fitting, resources.concurrent or fitting)
        asha = study.strategy == "tpe_asha" and proposals.sampler is not None
        options = {
            "cpus": resources.cpus,
            "gpus": resources.gpus,
            "cache_dir": str(cache_dir),
            "checkpoint_seconds": study.checkpoint_seconds,
            "report_every_row": asha,
        }
        # plain arrays, not memory maps: the object store then shares them between actors without a copy
        frozen = replace(frozen, image_NI=np.asarray(frozen.image_NI), text_UT=np.asarray(frozen.text_UT))
        actor = tune.with_parameters(TrialActor, frozen=frozen, study_dir=str(study_dir.absolute()), options=options)
        tuner = tune.Tuner(
            tune.with_resources(actor, {"CPU": resources.cpus, "GPU": resources.gpus}),
            tune_config=tune.TuneConfig(
                search_alg=proposals,
                scheduler=_asha(study) if asha else None,
                num_samples=-1,
                max_concurrent_trials=concurrent,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                name=f"{time.time_ns()}",
                storage_path=str((study_dir / "ray").absolute()),
                verbose=0,
                # a dead process: once more from the trial's own checkpoint; errors inside a trial are not retried
                failure_config=tune.FailureConfig(max_failures=1),
                log_to_file=False,
            ),
        )
        tuner.fit()
    finally:
        proposals.ledger.close()
        shutil.rmtree(study_dir / "ray", ignore_errors=True)  # Tune's pickles: nothing of ours reads them
        if own_ray:
            ray.shutdown()


def _asha(study: StudyConfig) -> AsyncHyperBandScheduler:
    (metric, mode), *_ = study.objective
    epochs = study.trial_config(study.example()).kwargs("train")["epochs"]
    return AsyncHyperBandScheduler(
        time_attr="epoch", metric=metric, mode=mode, max_t=epochs, grace_period=1, reduction_factor=3
    )
