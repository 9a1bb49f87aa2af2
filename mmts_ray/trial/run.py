"""The life of one trial, without Ray: rows into the ledger, checkpoints, one end.

Whoever leads it (a warm actor, a worker group, a test) calls `step` until the answer is done. The trial writes its
evaluations and its end to the ledger itself, so that a killed driver loses nothing; it keeps its own checkpoints, so
that Tune's pickles are never needed.
"""

import io
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mmts_ray import results, storage
from mmts_ray.config import from_flat

LAST = "last.pt"
START = "start.pt"  # the checkpoint of another trial, from which this one goes on
WEIGHTS = "weights.safetensors"
ALIVE_SECONDS = 10.0  # between two signs of life, from which the ledger knows what a kill has cost
ALIVE_PART = 5  # so many of them between two checkpoints: more rarely, a kill would seem to cost nothing
_NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"  # on a CPU, torch raises a plain RuntimeError


def checkpoint_dir(study_dir: str | Path, trial: str) -> Path:
    return Path(study_dir) / "checkpoints" / trial


def kept_at(epoch: int) -> str:
    """The name of a checkpoint that others may go on from."""
    return f"epoch-{epoch:06d}.pt"


def hand_over(study_dir: str | Path, donor: str, heir: str, epoch: int) -> bool:
    """Give a trial the checkpoint that another one kept at an epoch; False when it is not there (any more)."""
    source, target = checkpoint_dir(study_dir, donor) / kept_at(epoch), checkpoint_dir(study_dir, heir) / START
    storage.fetch(study_dir, source)
    temporary = target.with_name(f".{START}.{os.getpid()}")
    with results.writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(source, temporary)
        except FileNotFoundError:
            return False
        os.replace(temporary, target)
    storage.keep(study_dir, target)
    return True


class TrialRun:
    """One trial from its start or its checkpoint to its end; `data` is a `train.TrainData`.

    `task` holds plain values: `trial` (its id), `kind`, `flat` (its configuration), `report` (a scheduler wants to see
    every evaluation), `starts` (by trial, the record that opens it, written when it begins to run), `keep_every` (a
    checkpoint for others to go on from, every so many epochs; 0 for none) and `parent_hash` (of the configuration whose
    checkpoint it begins with, if any). `options` holds `gpus` (devices of the trial) and `checkpoint_seconds`. With a
    process group of `workers` this is one of several, of which the first alone writes, and what is raised in it is
    passed on. `beat` is told the step whenever the trial shows that it is alive. What cannot be written raises
    `results.Unwritable`: the trial is not at fault, and goes on from here later.
    """

    def __init__(
        self,
        task: dict[str, Any],
        data: Any,
        *,
        ledger: results.Ledger,
        study_dir: str | Path,
        options: dict[str, Any],
        workers: Any = None,
        beat: Callable[[int], None] = lambda step: None,
    ) -> None:
        self.trial, self.kind, self.flat, self.report = task["trial"], task["kind"], task["flat"], task["report"]
        self.start, self.beat = task["starts"][self.trial], beat
        self.keep_every, self.parent_hash = task.get("keep_every", 0), task.get("parent_hash")
        self.data, self.ledger, self.options, self.workers = data, ledger, options, workers
        self.writes = workers is None or workers.rank() == 0
        self.study_dir, self.folder = study_dir, checkpoint_dir(study_dir, self.trial)
        self.continues = False  # after a pause, so that this is no new start
        self.rows: Iterator[Any] | None = None
        self.last_row: Any = None
        self.spent = 0.0  # seconds at work, those before the checkpoint that we continue from included
        self.since: float | None = None  # when the present step began
        self.saved = self.alive = time.monotonic()
        every = options["checkpoint_seconds"]
        self.alive_every = min(ALIVE_SECONDS, max(every / ALIVE_PART, 1.0)) if every else ALIVE_SECONDS

    def step(self) -> dict[str, Any]:
        """Train up to the next evaluation that the scheduler wants to see, or to the end when none decides."""
        self.since = time.monotonic()
        try:
            return self._advance()
        finally:
            self.spent = self._seconds()["seconds"]
            self.since = None

    def stop(self, reason: str) -> None:
        """End the trial where it is: another seed of its group has ended badly."""
        self._end("stopped", error=reason)

    def _advance(self) -> dict[str, Any]:
        try:
            if self.rows is None:
                self.rows = self._start()
            for row in self.rows:
                self.last_row = row
                if row.infeasible:
                    return self._end("infeasible", error=row.infeasible)
                self._record(row)
                if row.epoch >= self.epochs:
                    self._keep_weights(row)
                    if row.ranks is not None and self.writes:
                        with results.writing(self.folder):
                            results.write_ranks(self.study_dir, self.trial, row.ranks())
                        storage.keep(self.study_dir, Path(self.study_dir) / "ranks" / f"{self.trial}.parquet")
                    return self._end("done")
                if time.monotonic() - self.saved >= self.options["checkpoint_seconds"]:
                    self._checkpoint(row.state)
                if self.keep_every and row.epoch % self.keep_every == 0:
                    self._keep_for_others(row)
                if self.report:
                    return self._result(row)
            return self._end("done")
        except results.Unwritable:
            raise
        except Exception as problem:
            if self.workers is not None:  # the other workers wait for this one: who leads them all ends the trial
                raise
            return self.fail(problem)

    def fail(self, problem: Exception) -> dict[str, Any]:
        """End the trial for what was raised in it."""
        import torch

        if isinstance(problem, MemoryError | torch.cuda.OutOfMemoryError) or _NO_MEMORY in str(problem):
            told = str(problem).strip().splitlines()
            return self._end("infeasible", error=f"out of memory: {told[0] if told else type(problem).__name__}")
        return self._end("failed", error=f"{type(problem).__name__}: {problem}")

    def save(self) -> dict[str, Any]:
        """Write a checkpoint of the last row, from which a paused trial continues, here or elsewhere."""
        if self.last_row is not None and self.rows is not None:
            self._checkpoint(self.last_row.state, paused=self.options.get("run"))
        return {}

    def _start(self) -> Iterator[Any]:
        from mmts_ray.train import train

        if self.writes:
            self.beat(0)
        config = from_flat(self.flat)
        self.epochs = config.kwargs("train")["epochs"]
        try:
            state = self._load_checkpoint()
        finally:
            if not self.continues:  # only now does it run: until here it has waited for a place
                self._append({**self.start, "status": "running"})
        self._sign_of_life(*((state["step"], state["epoch"]) if state else (0, 0)))
        return train(config, self.data, state, test=self.kind in results.FRESH, pulse=self._pulse, group=self.workers)

    def _pulse(self, step: int, epoch: int, state: Callable[[], dict[str, Any]]) -> None:
        """Between evaluations, which can lie far apart: a checkpoint when it is due, or a sign of life."""
        if self.writes:
            self.beat(step)
        now, most = time.monotonic(), self.options["checkpoint_seconds"]
        if most and now - self.saved >= most:
            self._checkpoint(state)
        if now - self.alive >= self.alive_every:
            self._sign_of_life(step, epoch)

    def _seconds(self) -> dict[str, float]:
        """Training in this trial's present state, and the same times its devices."""
        seconds = self.spent + (time.monotonic() - self.since if self.since is not None else 0.0)
        return {
            "seconds": round(seconds, 4),
            "device_seconds": round(seconds * max(1.0, self.options["gpus"]), 4),
        }

    def _append(self, record: dict[str, Any]) -> None:
        if self.writes:
            self.ledger.append(record)

    def _sign_of_life(self, step: int, epoch: int) -> None:
        self.alive = time.monotonic()
        self._append({"trial": self.trial, "step": step, "epoch": epoch, **self._seconds(), "status": "running"})

    def _record(self, row: Any) -> None:
        if self.writes:
            self.beat(row.step)
        self._append(
            {
                "trial": self.trial,
                "step": row.step,
                "epoch": row.epoch,
                "seconds": self._seconds()["seconds"],  # not device_seconds: readers pass over what counts none
                "status": "running",
                **{f"metric.{k}": v for k, v in row.metrics.items()},
            }
        )
        if time.monotonic() - self.alive >= self.alive_every:
            self._sign_of_life(row.step, row.epoch)

    def _end(self, status: str, *, error: str | None = None) -> dict[str, Any]:
        row = self.last_row
        metrics = row.metrics if row is not None and status in ("done", "stopped") else {}
        self._append(
            {
                "trial": self.trial,
                "step": row.step if row else 0,
                "epoch": row.epoch if row else 0,
                **self._seconds(),
                "status": status,
                "error": error,
                "note": list(row.notes) if row and row.notes else None,
                **{f"metric.{k}": v for k, v in metrics.items()},
            }
        )
        if self.writes:
            with results.writing(self.folder):
                for path in sorted(self.folder.glob("*.pt")):
                    path.unlink(missing_ok=True)
                    storage.drop(self.study_dir, path)
            storage.settle(self.study_dir)  # an end that others are told of is not lost with this machine
        self.rows = None
        return {**self._where(row), "status": status, "error": error or "", "done": True, "metrics": metrics}

    def _result(self, row: Any) -> dict[str, Any]:
        return {**self._where(row), "status": "running", "error": "", "done": False, "metrics": row.metrics}

    def _where(self, row: Any) -> dict[str, Any]:
        at = {"epoch": row.epoch, "step": row.step} if row else {"epoch": 0, "step": 0}
        return {"trial": self.trial, **at, "seconds": self._seconds()["seconds"]}

    def _keep_for_others(self, row: Any) -> None:
        """A checkpoint that stays while this trial goes on: the last two, as a decision may come one round late."""
        self._checkpoint(row.state, name=kept_at(row.epoch))
        if self.writes:
            for path in sorted(self.folder.glob(kept_at(0).replace("000000", "*")))[:-2]:
                path.unlink(missing_ok=True)
                storage.drop(self.study_dir, path)

    def _checkpoint(self, state: Callable[[], dict[str, Any]], *, name: str = LAST, paused: str | None = None) -> None:
        """`paused` names the driver's run that has made it pause: going on from here is then no new start."""
        import torch

        if not self.writes:
            return
        # through memory: torch's own writer hides what the system says of a full disk
        buffer = io.BytesIO()
        torch.save({"seconds": self._seconds()["seconds"], "train": state(), "paused": paused}, buffer)
        self._write(name, buffer.getbuffer())
        if name == LAST:
            self.saved = time.monotonic()

    def _load_checkpoint(self) -> dict[str, Any] | None:
        import torch

        # a process may have died between handing a checkpoint over and writing down who gets it: then it is nobody's
        for path in (self.folder / LAST, self.folder / START)[: 2 if self.parent_hash else 1]:
            storage.fetch(self.study_dir, path)
            if path.is_file():
                break
        else:
            if self.parent_hash:
                raise ValueError(f"{self.folder / START}: the checkpoint that this trial goes on from is missing")
            return None
        kept = torch.load(path, map_location=self.data.device, weights_only=True)
        if path.name == LAST:
            self.spent += float(kept["seconds"])
            if kept.get("paused") is not None and kept["paused"] == self.options.get("run"):
                self.continues = True
                self._checkpoint(lambda: kept["train"])  # from now on, going on from here is a start after a death
        elif kept["train"]["config_hash"] == self.parent_hash:
            kept["train"]["config_hash"] = from_flat(self.flat).hash
        return kept["train"]

    def _keep_weights(self, row: Any) -> None:
        """The trained heads as safetensors; the driver keeps those of the best trials and of confirmed ones."""
        from safetensors.torch import save

        if not self.writes:
            return
        state = row.state()
        tensors = {k: v.contiguous().cpu() for k, v in {**state["model"], **state["learned"]}.items()}
        self._write(WEIGHTS, save(tensors, metadata={"trial": self.trial, "config_hash": state["config_hash"]}))

    def _write(self, name: str, content: bytes | memoryview) -> None:
        """A file of the trial, whole or not at all."""
        path, temporary = self.folder / name, self.folder / f".{name}.{os.getpid()}"
        with results.writing(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(content)
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        storage.keep(self.study_dir, path)
