"""One configuration on its seeds: trials in step with each other, which end as one.

Whoever leads it calls `step` until the answer is done, as with `run.TrialRun`, of which there is one a seed. What a
scheduler and a sampler see is the mean over the seeds.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mmts_ray import results, storage
from mmts_ray.config import SEED
from mmts_ray.trial.run import TrialRun, checkpoint_dir


class GroupRun:
    """A group from its start, or from where it was interrupted, to its end.

    `task` holds plain values: `trial` (the first seed's), `kind`, `flat` (the first seed's configuration), `members`
    [[seed, trial], ...], `report` (a scheduler wants to see every evaluation), and of an interrupted group `ended`
    [[seed, status], ...] and `before` [[seed, epoch, metrics], ...]. `begin` makes the trial of one seed from its task.
    With a scheduler all seeds are in memory at once; without one they run one by one.
    """

    def __init__(self, task: dict[str, Any], begin: Callable[[dict[str, Any]], TrialRun]) -> None:
        self.epochs, self.report = int(task["flat"]["train.epochs"]), task["report"]
        self.ended: dict[int, str] = {seed: status for seed, status in task["ended"]}
        self.seeds: list[int] = [seed for seed, _ in task["members"]]
        self.runs = {
            seed: begin({**task, "trial": trial, "flat": {**task["flat"], SEED: seed}})
            for seed, trial in task["members"]
            if seed not in self.ended
        }
        self.last: dict[int, dict[str, Any]] = {}  # what each trial answered last
        self.metrics: dict[int, dict[int, dict[str, float]]] = {seed: {} for seed in self.seeds}  # by epoch
        for seed, epoch, metrics in task["before"]:
            self.metrics[seed][epoch] = metrics
        # the scheduler remembers what all seeds had reported
        self.reported = max(set.intersection(*(set(rows) for rows in self.metrics.values())), default=0)

    def step(self) -> dict[str, Any]:
        """Train every seed up to the next evaluation that the scheduler wants to see, or to the end."""
        if self.report and not self._broken():
            for seed in list(self.runs):
                while self._next(seed) is None and seed in self.runs:
                    self._advance(seed)
                if self._broken():
                    return self._finish()
            following = [epoch for epoch in map(self._next, self.seeds) if epoch is not None]
            if following and min(following) < self.epochs:
                self.reported = min(following)
                reached = [self.metrics[seed][self.reported] for seed in self.seeds]
                return self._answer("running", reached, self.reported)
        return self._finish()

    def fail(self, problem: Exception) -> dict[str, Any]:
        """End what has not ended for what one of the seeds raised in another process."""
        for seed in list(self.runs):
            self.last[seed] = self.runs.pop(seed).fail(problem)
            self.ended[seed] = self.last[seed]["status"]
        return self._finish()

    def save(self) -> dict[str, Any]:
        """Write a checkpoint of every seed's last evaluation."""
        for run in self.runs.values():
            run.save()
        return {}

    def _next(self, seed: int) -> int | None:
        """The first epoch that this seed has reached and the scheduler has not seen."""
        return min((epoch for epoch in self.metrics[seed] if epoch > self.reported), default=None)

    def _advance(self, seed: int) -> None:
        answer = self.runs[seed].step()
        self.last[seed] = answer
        if answer["done"]:
            self.ended[seed] = answer["status"]
            del self.runs[seed]  # and its model with it
        if answer["metrics"]:
            self.metrics[seed][answer["epoch"]] = answer["metrics"]

    def _broken(self) -> int | None:
        """A seed that did not get to its end: the configuration then has no mean."""
        return next((seed for seed, status in self.ended.items() if status != "done"), None)

    def _finish(self) -> dict[str, Any]:
        for seed in list(self.runs):
            while seed in self.runs and self._broken() is None:
                self._advance(seed)
        broken = self._broken()
        if broken is None:
            return self._answer("done", [self.metrics[seed][self.epochs] for seed in self.seeds], self.epochs)
        status = self.ended[broken]
        for run in self.runs.values():
            run.stop(f"seed {broken} of this configuration is {status}")
        epoch = min((answer["epoch"] for answer in self.last.values()), default=0)
        return self._answer(status, [], epoch, error=self.last.get(broken, {}).get("error", ""))

    def _answer(self, status: str, metrics: list[dict[str, float]], epoch: int, *, error: str = "") -> dict[str, Any]:
        return {
            "status": status,
            "error": error,
            "done": status != "running",
            "epoch": epoch,
            "seconds": sum(answer["seconds"] for answer in self.last.values()),
            "members": list(self.last.values()),
            **results.mean(metrics),
        }


def group_run(
    task: dict[str, Any],
    data: Any,
    *,
    ledger: results.Ledger,
    study_dir: str | Path,
    options: dict[str, Any],
    workers: Any = None,
    beat: Callable[[int, int], None] = lambda seed, step: None,
) -> GroupRun:
    """The group of a task, from its start or from where the ledger and its checkpoints say that it stopped.

    `beat` is told the number of the seed and its step whenever one shows that it is alive.
    """
    number = {trial: i for i, (_, trial) in enumerate(task["members"])}

    def begin(task: dict[str, Any]) -> TrialRun:
        return TrialRun(
            task,
            data,
            ledger=ledger,
            study_dir=study_dir,
            options=options,
            workers=workers,
            beat=partial(beat, number[task["trial"]]),
        )

    storage.catch_up(study_dir, [checkpoint_dir(study_dir, trial) for _, trial in task["members"]])
    return GroupRun(caught_up(task, Path(study_dir)), begin)


def interrupted(problem: results.Unwritable) -> dict[str, Any]:
    """The answer of a trial that could not write: it is not at fault, and goes on when the study is resumed."""
    return {"status": "interrupted", "error": str(problem), "done": True, "epoch": 0}


def caught_up(task: dict[str, Any], study_dir: Path) -> dict[str, Any]:
    """The task with what the ledger knows of its trials: a process that died may have ended some of them."""
    if not any(checkpoint_dir(study_dir, trial).exists() for _, trial in task["members"]):
        return task
    seeds = {trial: seed for seed, trial in task["members"]}
    trials, steps, _ = results.fold(results.records(study_dir))
    mine = [row for row in trials if row["trial"] in seeds]
    ended = [row for row in mine if row["status"] in results.FINISHED]
    seen = [row for row in [*steps, *ended] if row["trial"] in seeds]
    before = [[seeds[row["trial"]], row["epoch"], _metrics(row)] for row in seen]
    return {
        **task,
        "ended": [[seeds[row["trial"]], row["status"]] for row in ended],
        "before": [*task["before"], *(row for row in before if row[2])],
    }


def _metrics(row: dict[str, Any]) -> dict[str, float]:
    return {k.removeprefix("metric."): v for k, v in row.items() if k.startswith("metric.") and v is not None}
