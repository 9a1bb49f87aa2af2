"""What runs next and what came of it: planned trials first, then what the sampler proposes."""

import shutil
from pathlib import Path
from typing import Any, Protocol

from ray.tune.search import Searcher

from mmts_ray import results
from mmts_ray.plan import Planned, Rows, objective_values, start_record, values_of
from mmts_ray.sampler import Sampler
from mmts_ray.study import StudyConfig
from mmts_ray.trial.run import checkpoint_dir

KEEP_BEST = 5  # search trials whose weights are kept
MOST_REPEATS = 200  # proposals in a row that have run already: then the space is taken as exhausted


class Progress(Protocol):
    """What a driver tells its user; `cli` has the implementation."""

    def begin(self, *, planned: int, finished: int) -> None: ...
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
            if row["kind"] not in results.FRESH
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
        elif self.sampler is not None and planned.kind in ("baseline", "control"):
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
