"""Ray Tune at the rim: a study's trials, from its file and its ledger, whether it starts, resumes, grows or confirms.

There is one mechanism. `_drive` is given the trials that are certain (unfinished ones first, then baselines or reruns) and
asks the sampler for the rest; Tune runs them in warm actors. What happened is read back from the ledger alone.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from mmts_ray.config import TrialConfig, from_flat
from mmts_ray.features import Frozen
from mmts_ray.sampler import Sampler
from mmts_ray.study import StudyConfig
from mmts_ray.trial import TrialActor, checkpoint_dir

KEEP_BEST = 5  # search trials whose weights are kept
FRESH_SEEDS = 1000  # confirm's seeds start here, so that they never meet a seed of the search
ORPHAN_SECONDS = 60


@dataclass(frozen=True)
class Planned:
    """A trial that will run: its id, what it is for, and its complete configuration."""

    trial: str
    kind: str
    name: str | None
    config: TrialConfig
    number: int | None = None  # of the Optuna trial it belongs to


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
        sampler = Sampler(study, study_dir)
        known = results.trials_of(study_dir)
        _synchronise(study, sampler, known)
        plan = [_planned(row, sampler) for row in known.values() if row["status"] not in results.FINISHED]
        run_names = {row.get("name") for row in known.values() if row["kind"] == "baseline"}
        next_id = _next_number(known, "t")
        for name, _ in study.baselines:
            if name not in run_names:
                config = study.baseline_config(name)
                plan.append(Planned(trial=f"t{next_id:04d}", kind="baseline", name=name, config=config))
                next_id += 1
        sampled = sum(row["kind"] == "search" for row in known.values())
        total = len(sampler.grid) if study.strategy == "grid" else study.trials
        wanted = total - sampled if study.searched else 0
        proposals = Proposals(
            study,
            study_dir,
            plan=plan,
            sampler=sampler,
            sampled=sampled,
            wanted=max(wanted, 0),
            next_id=next_id,
            progress=progress,
        )
        progress.begin(planned=len(plan) + max(wanted, 0), finished=len(known) - sum(p.trial in known for p in plan))
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
        done = {(r["config_hash"], int(r["seed"])) for r in known.values() if r["kind"] == "confirm"}
        plan = [
            _planned(r, None) for r in known.values() if r["kind"] == "confirm" and r["status"] not in results.FINISHED
        ]
        unfinished = len(plan)
        next_id = _next_number(known, "c")
        ledger = results.Ledger(study_dir)
        for seed in range(FRESH_SEEDS, FRESH_SEEDS + seeds):
            for name, config in _candidates(study, known, top):
                if (config.hash, seed) in done:
                    continue
                done.add((config.hash, seed))
                planned = Planned(trial=f"c{next_id:04d}", kind="confirm", name=name, config=config.with_seed(seed))
                next_id += 1
                plan.append(planned)
                ledger.append(start_record(study, planned, status="waiting"))  # so that `resume` knows of it
        ledger.close()
        finished = sum(r["kind"] == "confirm" for r in known.values()) - unfinished
        progress.begin(planned=len(plan), finished=finished)
        proposals = Proposals(
            study, study_dir, plan=plan, sampler=None, sampled=0, wanted=0, next_id=0, progress=progress
        )
        _drive(study, study_dir, frozen, proposals, cache_dir=cache_dir, address=address)


class Proposals(Searcher):
    """Hands Tune the planned trials, then what the sampler proposes, and tells everyone how each one ended."""

    def __init__(
        self,
        study: StudyConfig,
        study_dir: Path,
        *,
        plan: list[Planned],
        sampler: Sampler | None,
        sampled: int,
        wanted: int,
        next_id: int,
        progress: Progress,
    ) -> None:
        super().__init__()
        self.study, self.study_dir, self.sampler, self.progress = study, study_dir, sampler, progress
        self.plan = list(plan)
        self.sampled, self.wanted, self.next_id = sampled, wanted, next_id
        self.ledger = results.Ledger(study_dir)
        self.live: dict[str, Planned] = {}  # by Tune's trial id
        self.last: dict[str, dict[str, Any]] = {}
        self.best: list[tuple[float, str]] = []

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        planned = self._next()
        if planned is None:
            return Searcher.FINISHED
        self.ledger.append(start_record(self.study, planned, status="running"))
        self.live[trial_id] = planned
        return {"trial": planned.trial, "kind": planned.kind, "flat": planned.config.flat()}

    def _next(self) -> Planned | None:
        if self.plan:
            return self.plan.pop(0)
        if self.wanted <= 0 or self.sampler is None:
            return None
        trial = f"t{self.next_id:04d}"
        number, point = self.sampler.ask(trial, self.sampled)
        self.next_id += 1
        self.sampled += 1
        self.wanted -= 1
        config = self.study.trial_config(point)
        return Planned(trial=trial, kind="search", name=None, config=config, number=number)

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
        if self.sampler is not None and planned.kind == "search" and planned.number is not None:
            self.sampler.tell(planned.number, status=status, values=values, epoch=int(result.get("epoch", 0)))
        elif self.sampler is not None and planned.kind == "baseline":
            self.sampler.adopt(planned.trial, planned.config.flat(), status=status, values=values)
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
        """Keep the weights of the best few and of what is compared; delete the rest."""
        import shutil

        if planned.kind != "search":
            return
        if status == "done" and values:
            sign = 1 if self.study.objective[0][1] == "max" else -1
            self.best = sorted([*self.best, (sign * values[0], planned.trial)], reverse=True)
            drop = [trial for _, trial in self.best[KEEP_BEST:]]
            self.best = self.best[:KEEP_BEST]
        else:
            drop = [planned.trial]
        for trial in drop:
            shutil.rmtree(checkpoint_dir(self.study_dir, trial), ignore_errors=True)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the ledger and the Optuna journal are what a resumed study is built from."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: see `save`."""


def start_record(study: StudyConfig, planned: Planned, *, status: str) -> dict[str, Any]:
    """The record that opens a trial; it alone carries the parameters."""
    config = planned.config
    ones = np.ones(1, dtype=np.int64)
    schedule = config.function("schedule")(1, ones, ones, **config.kwargs("schedule"))
    return {
        "study": study.study,
        "trial": planned.trial,
        "kind": planned.kind,
        "name": planned.name,
        "config_hash": config.hash,
        "seed": config.seed,
        "rung": 0,
        "step": 0,
        "epoch": 0,
        "global_batch": config.kwargs("train")["batch_size"],
        "status": status,
        **{f"param.{k}": v for k, v in config.items},
        **{f"derived.schedule.{k}": v for k, v in schedule.derived.items()},
    }


def objective_values(study: StudyConfig, metrics: dict[str, float]) -> list[float] | None:
    """The objective's metrics in order, or None when one is missing."""
    values = [metrics.get(name) for name, _ in study.objective]
    return None if any(v is None for v in values) else [float(v) for v in values if v is not None]


def ranked(study: StudyConfig, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Finished trials, best first: by the objective, or for several metrics by Pareto layer and then the first."""
    done = [r for r in rows if r["status"] == "done"]
    signs = [1.0 if mode == "max" else -1.0 for _, mode in study.objective]
    scored = []
    for row in done:
        values = [row.get(f"metric.{name}") for name, _ in study.objective]
        if all(v is not None for v in values):
            scored.append(([s * v for s, v in zip(signs, values, strict=True)], row))

    def dominated_by(mine: list[float]) -> int:
        return sum(all(o >= m for o, m in zip(other, mine, strict=True)) and other != mine for other, _ in scored)

    key = (lambda s: (-dominated_by(s[0]), s[0][0])) if len(signs) > 1 else (lambda s: s[0])
    return [row for _, row in sorted(scored, key=key, reverse=True)]


def config_of(row: dict[str, Any]) -> TrialConfig:
    """The configuration that a ledger record describes."""
    return from_flat({k.removeprefix("param."): v for k, v in row.items() if k.startswith("param.")})


def _candidates(study: StudyConfig, known: dict[str, dict[str, Any]], top: int) -> list[tuple[str, TrialConfig]]:
    """Baselines under their names, then the best distinct searched configurations under their trial ids."""
    found: dict[str, tuple[str, TrialConfig]] = {}
    for name, _ in study.baselines:
        config = study.baseline_config(name)
        found.setdefault(config.hash, (name, config))
    limit = len(found) + top
    for row in ranked(study, [r for r in known.values() if r["kind"] == "search"]):
        if len(found) >= limit:
            break
        found.setdefault(row["config_hash"], (row["trial"], config_of(row)))
    return list(found.values())


def _synchronise(study: StudyConfig, sampler: Sampler, known: dict[str, dict[str, Any]]) -> None:
    """Tell the sampler what the ledger knows and it does not: ends it missed, and trials of a lost or other journal."""
    for trial, row in known.items():
        if row["kind"] == "confirm" or row["status"] not in results.FINISHED:
            continue
        metrics = {k.removeprefix("metric."): v for k, v in row.items() if k.startswith("metric.")}
        values = objective_values(study, metrics)
        if trial in sampler.number_of:
            sampler.tell(sampler.number_of[trial], status=row["status"], values=values, epoch=row["epoch"])
        else:
            sampler.adopt(trial, config_of(row).flat(), status=row["status"], values=values)
    for trial, number in sampler.number_of.items():
        if trial not in known and sampler.running(number):  # asked, but killed before its start was written
            sampler.tell(number, status="failed", values=None)


def _planned(row: dict[str, Any], sampler: Sampler | None) -> Planned:
    number = sampler.number_of.get(row["trial"]) if sampler else None
    return Planned(trial=row["trial"], kind=row["kind"], name=row.get("name"), config=config_of(row), number=number)


def _next_number(known: dict[str, dict[str, Any]], letter: str) -> int:
    return 1 + max((int(t[1:]) for t in known if t.startswith(letter)), default=-1)


def _drive(
    study: StudyConfig, study_dir: Path, frozen: Frozen, proposals: Proposals, *, cache_dir: Path, address: str
) -> None:
    """Run what `proposals` hands out until it has nothing left."""
    if not proposals.plan and proposals.wanted <= 0:
        return
    own_ray = not ray.is_initialized()
    if own_ray:
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        resources = study.resources
        total = ray.cluster_resources()
        for key, need in (("CPU", resources.cpus), ("GPU", resources.gpus)):
            if need > total.get(key, 0):
                raise ValueError(
                    f"resources: a trial needs {need:g} {key}, the cluster has {total.get(key, 0):g}; lower resources.{key.lower()}s"
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
        if own_ray:
            ray.shutdown()


def _asha(study: StudyConfig) -> AsyncHyperBandScheduler:
    (metric, mode), *_ = study.objective
    epochs = study.trial_config(study.example()).kwargs("train")["epochs"]
    return AsyncHyperBandScheduler(
        time_attr="epoch", metric=metric, mode=mode, max_t=epochs, grace_period=1, reduction_factor=3
    )
