"""Ray Tune runs what the proposals hand out, in warm actors."""

import errno
import logging
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

# Tune's own loggers and snapshots cost more than a short trial, and nothing of ours reads them
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "86400")
os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")  # an infeasible trial has no metric
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # Ctrl-C is ours: stop, say how to resume
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")

import numpy as np
import ray
from ray import tune
from ray.tune.schedulers import TrialScheduler

from mmts_ray import results, storage
from mmts_ray.features import Frozen
from mmts_ray.search import preflight
from mmts_ray.search.preflight import SLOT
from mmts_ray.search.proposals import Proposals
from mmts_ray.search.watch import DEATHS, Watch
from mmts_ray.study import StudyConfig
from mmts_ray.trial import shared
from mmts_ray.trial.actor import TrialActor

LOCAL_SLOTS = 1000  # a machine of one's own: its CPUs and GPUs decide how many trials run at once
STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG, errno.EACCES, errno.EPERM}
PULSE_SECONDS = 5.0  # between two signs of life of a trial


def drive(
    study: StudyConfig,
    study_dir: Path,
    frozen: Frozen,
    proposals: Proposals,
    *,
    scheduler: TrialScheduler | None = None,
    cache_dir: Path,
    address: str,
) -> None:
    """Run what `proposals` hands out until it has nothing left."""
    if not proposals.plan and proposals.wanted <= 0:
        return
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # its tracebacks of deaths: `watch` tells them in a line
    with results.writing(study_dir):
        token = shared.put_token(study_dir)
    own_ray = not ray.is_initialized()
    if own_ray:
        local: dict[str, Any] = {"resources": {SLOT: LOCAL_SLOTS}} if address == "local" else {}
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, **local)
    try:
        resources = study.resources
        concurrent = preflight.check(resources, local=own_ray and address == "local")
        run = f"{time.time_ns()}"
        stall_seconds = 60 * study.stall_minutes
        if not storage.uri(study_dir):
            shared.refuse_unshared(study_dir, token)
        pauses = getattr(scheduler, "pauses", False)
        if pauses:
            scheduler.concurrent = proposals.concurrent = concurrent  # type: ignore[union-attr]
        options = {
            "workers": resources.workers,
            "cpus": resources.cpus,
            "gpus": resources.gpus,
            "cache_dir": str(cache_dir),
            "checkpoint_seconds": study.checkpoint_seconds,
            "storage": storage.uri(study_dir),
            "run": run,
            "pulse_seconds": min(PULSE_SECONDS, stall_seconds / 10),
            "token": None if storage.uri(study_dir) else token,
        }
        # plain arrays, not memory maps: the object store then shares them between actors without a copy
        frozen = replace(frozen, image_NI=np.asarray(frozen.image_NI), text_UT=np.asarray(frozen.text_UT))
        given = {"study_dir": str(study_dir.absolute()), "options": options}
        if resources.workers > 1:
            from mmts_ray.trial.workers import WorkersActor  # which loads torch

            # in a list, a reference stays one: the driver needs no copy of what its workers read
            actor = tune.with_parameters(WorkersActor, frozen=[ray.put(frozen)], **given)
            holds = {SLOT: 1.0}
        else:
            actor = tune.with_parameters(TrialActor, frozen=frozen, **given)
            holds = {"CPU": resources.cpus, "GPU": resources.gpus}
        tuner = tune.Tuner(
            tune.with_resources(actor, holds),
            tune_config=tune.TuneConfig(
                search_alg=proposals,
                scheduler=scheduler,
                num_samples=-1,
                # a paused trial takes no place, which Tune's own limit does not know
                max_concurrent_trials=None if pauses else concurrent,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                name=run,
                storage_path=str((study_dir / "ray").absolute()),
                verbose=0,
                # a dead process: again from the trial's own checkpoint; errors inside a trial are not retried
                failure_config=tune.FailureConfig(max_failures=DEATHS),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                callbacks=[Watch(run, proposals, resources, stall_seconds=stall_seconds)],
                log_to_file=False,
            ),
        )
        try:
            tuner.fit()
        except Exception as problem:
            raise _told(problem, study_dir) from None
        if proposals.interrupted:
            raise results.Unwritable(proposals.interrupted)
    finally:
        proposals.ledger.close()
        Path(token["path"]).unlink(missing_ok=True)
        shutil.rmtree(study_dir / "ray", ignore_errors=True)  # Tune's pickles: nothing of ours reads them
        if own_ray:
            ray.shutdown()


def _told(problem: Exception, study_dir: Path) -> Exception:
    """What Tune raised, or what it hides: that something could not be written, by us or by Tune in its own folder."""
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, results.Unwritable):
            return cause
        if isinstance(cause, OSError) and cause.errno in STORAGE_ERRORS:
            return results.Unwritable(f"{study_dir}: cannot be written ({cause.strerror})")
        cause = cause.__cause__ or cause.__context__
    return problem
