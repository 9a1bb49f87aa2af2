"""Ray Tune at the rim: a study's trials, from its file and its ledger, whether it starts, resumes, grows or confirms.

There is one mechanism. `drive` is given the trials that are certain (unfinished ones first, then baselines or reruns)
and asks the sampler for the rest; Tune runs them in warm actors. What happened is read back from the ledger alone.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mmts_ray import plan_file, results
from mmts_ray.features import Frozen
from mmts_ray.loggers import Loggers
from mmts_ray.plan import (
    Planned,
    config_of,
    confirmations,
    evaluations,
    grouped,
    missing_baselines,
    missing_controls,
    next_number,
    start_records,
    unfinished,
)
from mmts_ray.ranking import Rows, excess, metrics_of, values
from mmts_ray.sampler import Sampler
from mmts_ray.search.budget import Budget
from mmts_ray.search.drive import drive
from mmts_ray.search.lease import lease
from mmts_ray.search.population import Population
from mmts_ray.search.proposals import Progress, Proposals
from mmts_ray.search.schedulers import Asha, HyperBand, scheduler_of
from mmts_ray.search.warm import warm_start
from mmts_ray.study import StudyConfig


def search(
    study: StudyConfig, study_dir: Path, frozen: Frozen, *, cache_dir: Path, progress: Progress, address: str
) -> None:
    """Run the study to its number of trials: unfinished ones first, then missing baselines and controls, then points
    that the strategy proposes."""
    with lease(study_dir), Loggers(study.loggers, study_dir, study=study.study, said=progress.event):
        trials, steps, _ = results.fold(results.records(study_dir))
        known = {row["trial"]: row for row in trials}
        groups = grouped(study, known)
        sampler = Sampler(study, study_dir)
        _synchronise(study, sampler, groups)
        for line in warm_start(study, sampler, groups, data_key=frozen.key):
            progress.event(line)
        scheduler = scheduler_of(study)
        stopped: set[str] = set()
        if isinstance(scheduler, Asha | HyperBand):
            stopped = scheduler.replay(groups, evaluations(study, known, steps))
        begun = unfinished(study, known, steps, *results.KINDS)
        # planned in a population in place of another, but killed before the other's end was written
        stopped |= {row["derived.replaces"] for row in groups.values() if row.get("derived.replaces")}
        first_id = next_number(known, "t")
        baselines = missing_baselines(study, known, first_id)
        controls = missing_controls(study, known, first_id + len(baselines))
        plan = [*(p for p in begun if p.trial not in stopped), *baselines, *controls]
        sampled = sum(row["kind"] == "search" and not row.get("derived.parent") for row in groups.values())
        total = len(sampler.grid) if study.strategy == "grid" else study.trials - study.controls
        proposals = Proposals(
            study,
            study_dir,
            known=known,
            plan=plan,
            data_key=frozen.key,
            sampler=sampler,
            sampled=sampled,
            wanted=max(total - sampled, 0) if study.searched else 0,
            next_id=first_id + len(baselines) + len(controls),
            progress=progress,
            scheduled=scheduler is not None,
            budget=Budget(study, study_dir),
            certain=sum(p.trial not in stopped for p in begun),
            keep_every=study.round_epochs if isinstance(scheduler, Population) else 0,
        )
        ending = [p for p in begun if p.trial in stopped]  # decided, but killed before it was written
        progress.begin(planned=len(ending) + len(plan) + proposals.wanted, finished=len(groups) - len(begun))
        for one in ending:
            proposals.stop(one, steps)
        if isinstance(scheduler, HyperBand):
            scheduler.lead(proposals, begun, steps)
        elif isinstance(scheduler, Population):
            scheduler.lead(proposals)
        drive(study, study_dir, frozen, proposals, scheduler=scheduler, cache_dir=cache_dir, address=address)


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
    fresh = partial(confirmations, study, top=top, seeds=seeds)
    _run_certain(study, study_dir, frozen, fresh, ("confirm",), cache_dir=cache_dir, progress=progress, address=address)


def planned(
    study: StudyConfig,
    study_dir: Path,
    frozen: Frozen,
    *,
    path: Path,
    cache_dir: Path,
    progress: Progress,
    address: str,
) -> None:
    """Run what a plan file lists and the ledger does not hold, and what an interrupted plan left."""
    fresh, kinds = partial(plan_file.load, path, study), tuple(plan_file.LETTERS)
    _run_certain(study, study_dir, frozen, fresh, kinds, cache_dir=cache_dir, progress=progress, address=address)


def _run_certain(
    study: StudyConfig,
    study_dir: Path,
    frozen: Frozen,
    missing: Callable[[Rows], list[Planned]],
    kinds: tuple[str, ...],
    *,
    cache_dir: Path,
    progress: Progress,
    address: str,
) -> None:
    """Run the unfinished trials of these kinds, and then what is missing; nothing is sampled or stopped."""
    with lease(study_dir), Loggers(study.loggers, study_dir, study=study.study, said=progress.event):
        known = results.trials_of(study_dir)
        fresh, begun = missing(known), unfinished(study, known, [], *kinds)
        with contextlib.closing(results.Ledger(study_dir)) as ledger:
            for one in fresh:  # written down first, so that `resume` finishes what is interrupted here
                for record in start_records(study, one, status="waiting", data_key=frozen.key):
                    ledger.append(record)
        finished = sum(row["kind"] in kinds for row in known.values()) - len(begun)
        plan = [*begun, *fresh]
        progress.begin(planned=len(plan), finished=finished)
        proposals = Proposals(study, study_dir, known=known, plan=plan, data_key=frozen.key, progress=progress)
        drive(study, study_dir, frozen, proposals, cache_dir=cache_dir, address=address)


def _synchronise(study: StudyConfig, sampler: Sampler, groups: Rows) -> None:
    """Tell the sampler what the ledger knows and it does not: ends it missed, and trials of a lost or other journal."""
    for trial, row in groups.items():
        if row["kind"] in results.FRESH or row["status"] not in results.FINISHED or row.get("derived.parent"):
            continue
        metrics = metrics_of(row)
        end = {"status": row["status"], "values": values(study.objective, metrics), "epoch": row["epoch"]}
        end["excess"] = excess(study.constraints, metrics) if metrics else None
        if trial in sampler.number_of:
            sampler.tell(sampler.number_of[trial], **end)
        else:
            sampler.adopt(trial, config_of(row), **end)
    for trial, number in sampler.number_of.items():
        if trial not in groups and sampler.running(number):  # asked, but killed before its start was written
            sampler.tell(number, status="failed", values=None)
