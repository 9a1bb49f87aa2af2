"""Ray Tune at the rim: a study's trials, from its file and its ledger, whether it starts, resumes, grows or confirms.

There is one mechanism. `drive` is given the trials that are certain (unfinished ones first, then baselines or reruns)
and asks the sampler for the rest; Tune runs them in warm actors. What happened is read back from the ledger alone.
"""

import contextlib
from pathlib import Path

from mmts_ray import plan_file, results
from mmts_ray.features import Frozen
from mmts_ray.plan import (
    Planned,
    Rows,
    config_of,
    confirmations,
    missing_baselines,
    next_number,
    start_record,
    unfinished,
    values_of,
)
from mmts_ray.sampler import Sampler
from mmts_ray.search.drive import drive
from mmts_ray.search.lease import lease
from mmts_ray.search.proposals import Progress, Proposals
from mmts_ray.study import StudyConfig


def search(
    study: StudyConfig, study_dir: Path, frozen: Frozen, *, cache_dir: Path, progress: Progress, address: str
) -> None:
    """Run the study to its number of trials: unfinished trials first, then missing baselines, then sampled points."""
    with lease(study_dir):
        known = results.trials_of(study_dir)
        sampler = Sampler(study, study_dir)
        _synchronise(study, sampler, known)
        begun = unfinished(known, *results.KINDS)
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
        drive(study, study_dir, frozen, proposals, cache_dir=cache_dir, address=address)


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
        fresh = confirmations(study, known, top=top, seeds=seeds)
        _run_certain(study, study_dir, frozen, known, fresh, ("confirm",), cache_dir, progress, address)


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
    with lease(study_dir):
        known = results.trials_of(study_dir)
        fresh = plan_file.load(path, study, known)
        kinds = tuple(plan_file.LETTERS)
        _run_certain(study, study_dir, frozen, known, fresh, kinds, cache_dir, progress, address)


def _run_certain(
    study: StudyConfig,
    study_dir: Path,
    frozen: Frozen,
    known: Rows,
    fresh: list[Planned],
    kinds: tuple[str, ...],
    cache_dir: Path,
    progress: Progress,
    address: str,
) -> None:
    """Run the unfinished trials of these kinds, and then the fresh ones; nothing is sampled or stopped."""
    begun = unfinished(known, *kinds)
    with contextlib.closing(results.Ledger(study_dir)) as ledger:
        for one in fresh:  # written down first, so that `resume` finishes what is interrupted here
            ledger.append(start_record(study, one, status="waiting", data_key=frozen.key))
    finished = sum(row["kind"] in kinds for row in known.values()) - len(begun)
    progress.begin(planned=len(begun) + len(fresh), finished=finished)
    plan = [*begun, *fresh]
    proposals = Proposals(study, study_dir, known=known, plan=plan, data_key=frozen.key, progress=progress)
    drive(study, study_dir, frozen, proposals, cache_dir=cache_dir, address=address)


def _synchronise(study: StudyConfig, sampler: Sampler, known: Rows) -> None:
    """Tell the sampler what the ledger knows and it does not: ends it missed, and trials of a lost or other journal."""
    for trial, row in known.items():
        if row["kind"] in results.FRESH or row["status"] not in results.FINISHED:
            continue
        values = values_of(study, row)
        if trial in sampler.number_of:
            sampler.tell(sampler.number_of[trial], status=row["status"], values=values, epoch=row["epoch"])
        else:
            sampler.adopt(trial, config_of(row), status=row["status"], values=values)
    for trial, number in sampler.number_of.items():
        if trial not in known and sampler.running(number):  # asked, but killed before its start was written
            sampler.tell(number, status="failed", values=None)
