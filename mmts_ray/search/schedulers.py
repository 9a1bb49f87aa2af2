"""The schedulers of STRATEGIES: what stops, pauses or replaces a trial before its end."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, TrialScheduler

from mmts_ray import results
from mmts_ray.plan import Evaluation, Planned
from mmts_ray.ranking import Rows
from mmts_ray.search.brackets import Brackets
from mmts_ray.search.population import Population
from mmts_ray.search.proposals import Proposals
from mmts_ray.study import REDUCTION, STRATEGIES, StudyConfig


def scheduler_of(study: StudyConfig) -> TrialScheduler | None:
    """The scheduler of the study's strategy; None when every trial runs to its end."""
    return SCHEDULERS[STRATEGIES[study.strategy].scheduler](study)


class Asha(AsyncHyperBandScheduler):
    """Tune's ASHA, which knows a trial by its id in the ledger, so that it can be told what earlier processes saw.

    Only what reports its evaluations takes part: baselines and controls neither stop nor decide who does.
    """

    def __init__(self, study: StudyConfig) -> None:
        (self.judged, mode), *_ = study.objective
        self.sign = 1.0 if mode == "max" else -1.0
        super().__init__(
            time_attr="epoch",
            metric=self.judged,
            mode=mode,
            max_t=study.epochs,
            grace_period=1,
            reduction_factor=REDUCTION,
        )

    def replay(self, groups: Rows, seen: list[Evaluation]) -> set[str]:
        """Take in what was seen before, in its order; returns the trials that are stopped by it."""
        stopped: set[str] = set()
        for trial, epoch, metrics, _ in seen:
            if self.judged not in metrics:
                continue
            action = self._brackets[0].on_result(_named(trial), epoch, self.sign * metrics[self.judged])
            if action == TrialScheduler.STOP and epoch < self._max_t:
                stopped.add(trial)
        return stopped

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_add(tune_controller, _named(trial.config["trial"]))

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        return super().on_trial_result(tune_controller, _named(trial.config["trial"]), result)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        if trial.config["report"]:
            super().on_trial_complete(tune_controller, _named(trial.config["trial"]), result)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_remove(tune_controller, _named(trial.config["trial"]))


def _named(trial: str) -> Any:
    """What ASHA looks at in one of Tune's trials: its id."""
    return SimpleNamespace(trial_id=trial)


class HyperBand(FIFOScheduler):
    """HyperBand, the largest bracket first: a trial waits at a rung, paused, until its bracket has got there.

    Tune's own cannot be told what earlier processes saw. Only what reports its evaluations takes part.
    """

    pauses = True

    def __init__(self, study: StudyConfig) -> None:
        super().__init__()
        (self.judged, mode), *_ = study.objective
        self.sign = 1.0 if mode == "max" else -1.0
        self.brackets = Brackets(study.brackets, REDUCTION)
        self.concurrent = 1
        self.proposals: Proposals | None = None
        self.held: dict[str, Planned] = {}  # interrupted while they waited: not with Tune until they go on
        self.steps: list[dict[str, Any]] = []
        self.leaving: set[str] = set()  # to be stopped, and paused with Tune

    def replay(self, groups: Rows, seen: list[Evaluation]) -> set[str]:
        """Take in what the ledger tells; returns the trials that are stopped by it."""
        events: list[tuple[float, Callable[[], None]]]
        events = [(e.time, partial(self._reach, e.trial, e.epoch, e.metrics)) for e in seen]
        searched = sorted(trial for trial, row in groups.items() if row["kind"] == "search")
        for row in (groups[trial] for trial in searched if groups[trial]["status"] in results.FINISHED):
            stopped = row["status"] == "stopped"
            events.append((row["end_time"], partial(self.brackets.end, row["trial"], stopped=stopped)))
        events.sort(key=lambda event: event[0], reverse=True)
        for trial in searched:  # in the order in which they were proposed
            while events and events[-1][0] < groups[trial]["time"]:
                events.pop()[1]()
            self.brackets.enter(trial)
        for _, happened in reversed(events):
            happened()
        return set(self.brackets.decide())

    def lead(self, proposals: Proposals, begun: list[Planned], steps: list[dict[str, Any]]) -> None:
        """Take out of the plan what waits at a rung, and hold it until its bracket has got there."""
        self.proposals, self.steps = proposals, steps
        waiting = {p.trial for p in begun if p.trial in self.brackets.of and self.brackets.waits(p.trial)}
        self.held = {p.trial: p for p in proposals.plan if p.trial in waiting}
        proposals.plan = [p for p in proposals.plan if p.trial not in waiting]
        proposals.certain -= len(self.held)
        proposals.expects = self._expects
        self._release()

    def _expects(self) -> bool:
        self._release()
        assert self.proposals is not None
        return bool(self.held or self.proposals.plan)

    def _release(self) -> None:
        """Decide what can be: when nothing runs and nothing new comes, that is all."""
        proposals = self.proposals
        assert proposals is not None
        if proposals.interrupted:  # what is paused has its checkpoint, and goes on when the study is resumed
            self.leaving |= {proposals.live[tune_id].trial for tune_id in proposals.paused}
            return
        nothing_new = not proposals.plan and proposals.wanted <= 0
        for trial in self.brackets.decide(last=nothing_new and len(proposals.live) == len(proposals.paused)):
            if trial in self.held:
                proposals.stop(self.held.pop(trial), self.steps)
            else:
                self.leaving.add(trial)
        for trial in [trial for trial in self.held if not self.brackets.waits(trial)]:
            proposals.plan.insert(0, self.held.pop(trial))
            proposals.certain += 1
        for tune_id in list(proposals.paused):
            trial = proposals.live[tune_id].trial
            if trial not in self.leaving and not self.brackets.waits(trial):
                proposals.on_unpause(tune_id)

    def _reach(self, trial: str, epoch: int, metrics: Mapping[str, Any]) -> None:
        if trial in self.brackets.of and math.isfinite(metrics.get(self.judged, math.nan)):
            self.brackets.reach(trial, epoch, self.sign * metrics[self.judged])

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        if trial.config["report"]:
            self.brackets.enter(trial.config["trial"])

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        name = trial.config["trial"]
        if not trial.config["report"]:
            return TrialScheduler.CONTINUE
        self._reach(name, int(result["epoch"]), result)
        self._release()
        if name in self.leaving:
            self.leaving.discard(name)
            return TrialScheduler.STOP
        if not self.brackets.waits(name):
            return TrialScheduler.CONTINUE
        assert self.proposals is not None
        self.proposals.on_pause(trial.trial_id)
        return TrialScheduler.PAUSE

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        if trial.config["trial"] in self.brackets.of:
            self.brackets.end(trial.config["trial"])

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self.on_trial_complete(tune_controller, trial, {})

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        self.on_trial_complete(tune_controller, trial, {})

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        assert self.proposals is not None
        self._release()
        trials = sorted(tune_controller.get_live_trials(), key=lambda t: t.config["trial"])
        for trial in trials:
            if trial.status == Trial.PAUSED and trial.config["trial"] in self.leaving:
                self.leaving.discard(trial.config["trial"])
                tune_controller.stop_trial(trial)
        if sum(t.status == Trial.RUNNING for t in trials) >= self.concurrent:
            return None
        further = (t for t in trials if t.status == Trial.PAUSED and t.trial_id not in self.proposals.paused)
        fresh = (t for t in trials if t.status == Trial.PENDING)
        return next(further, None) or next(fresh, None)


SCHEDULERS: dict[str, Callable[[StudyConfig], TrialScheduler | None]] = {
    "": lambda study: None,
    "asha": Asha,
    "hyperband": HyperBand,
    "pbt": Population,
}
