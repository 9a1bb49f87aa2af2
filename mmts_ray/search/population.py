"""Population based training: the worst of a population go on as moved copies of the best, while all of them train.

Each copy is a trial of its own in the ledger, with its own parameters, that begins with its parent's checkpoint; the
one whose place it takes ends as stopped. Tune's own scheduler would change a trial under its name, and does nothing at
all when it finds no checkpoint. Reference: arXiv:1711.09846.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from mmts_ray.search.proposals import Proposals
from mmts_ray.study import WORST, StudyConfig

CHOICES = 0x9B7  # the stream of random numbers that parents are drawn from


@dataclass
class Member:
    """What is known of a trial of the population: its last decided epoch, its score there, where its seeds stood."""

    epoch: int = 0
    score: float | None = None
    step: int = 0


class Population(FIFOScheduler):
    """Decides every `study.round_epochs`; trials that find no place take turns, the least trained first."""

    pauses = True

    def __init__(self, study: StudyConfig) -> None:
        super().__init__()
        self.study = study
        (self.judged, mode), *_ = study.objective
        self.sign = 1.0 if mode == "max" else -1.0
        self.members: dict[Trial, Member] = {}
        self.concurrent = 1
        self.proposals: Proposals | None = None
        self.rng = np.random.default_rng([study.seed, CHOICES])

    def lead(self, proposals: Proposals) -> None:
        self.proposals = proposals
        proposals.expects = lambda: bool(proposals.live)  # a copy may yet take a trial's place

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        if trial.config["report"]:
            assert self.proposals is not None
            parent = self.proposals.live[trial.trial_id].parent
            # where it goes on: one that counted as new would take its turn before its parent, for ever if it is worse
            self.members[trial] = Member(epoch=parent.epoch if parent else 0)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        member = self.members.get(trial)
        if member is None or self.judged not in result or result["epoch"] % self.study.round_epochs:
            return TrialScheduler.CONTINUE
        member.epoch, member.score = result["epoch"], self.sign * result[self.judged]
        member.step = min((answer["step"] for answer in result["members"]), default=0)
        if self._replaced(trial):
            return TrialScheduler.STOP
        assert self.proposals is not None
        others = (other.status in (Trial.PENDING, Trial.PAUSED) for other in tune_controller.get_trials())
        if self.proposals.plan or self.proposals.wanted > 0 or any(others):
            self.proposals.on_pause(trial.trial_id)
            return TrialScheduler.PAUSE
        return TrialScheduler.CONTINUE

    def _replaced(self, trial: Trial) -> bool:
        """Whether a copy of one of the best has been planned in this trial's place."""
        scored = sorted(
            (t for t, m in self.members.items() if m.score is not None and not t.is_finished()),
            key=lambda t: self.members[t].score,  # type: ignore[arg-type, return-value]
        )
        share = min(math.ceil(len(scored) * WORST), len(scored) // 2)
        if trial not in scored[:share]:
            return False
        best = scored[len(scored) - share :]
        parent = best[int(self.rng.integers(len(best)))]
        assert self.proposals is not None
        at = self.members[parent]
        if at.score == self.members[trial].score:  # the worst is as good as the best
            return False
        return self.proposals.replace(trial.trial_id, parent.trial_id, epoch=at.epoch, step=at.step)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        trials = tune_controller.get_trials()
        waiting = [t for t in trials if t.status in (Trial.PENDING, Trial.PAUSED)]
        if not waiting or sum(t.status == Trial.RUNNING for t in trials) >= self.concurrent:
            return None
        chosen = min(waiting, key=lambda t: self.members[t].epoch if t in self.members else 0)
        assert self.proposals is not None
        self.proposals.on_unpause(chosen.trial_id)
        return chosen

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self.members.pop(trial, None)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self.members.pop(trial, None)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        self.members.pop(trial, None)
