"""TensorBoard, MLflow and Weights & Biases, fed from the ledger while a study runs.

`loggers: [tensorboard, mlflow, wandb]` in the study file turns them on. Each follows the ledger in a thread of the
driver, so that no trial waits for one and none can fail a trial: a logger that raises is switched off with one line.
What it has written is under STUDY/loggers/NAME, nothing leaves the machine unless MLFLOW_TRACKING_URI or WANDB_MODE say
so, and NAME/logged lists the trials that are complete there: the next `resume` adds what is missing.
"""

import hashlib
import importlib.util
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from mmts_ray import results

Record = dict[str, Any]
EVERY_SECONDS = 2.0
CLOSING_SECONDS = 60.0  # how long the end of a study waits for a slow logger
LOGGED = "logged"


class Sink(Protocol):
    """One place that shows runs; each method is given records of the ledger, and is called from one thread."""

    def begin(self, trial: str, start: Record, searched: Iterable[str]) -> None: ...
    def step(self, trial: str, row: Record) -> None: ...
    def end(self, trial: str, row: Record) -> None: ...
    def close(self) -> None: ...


def missing(names: Iterable[str]) -> None:
    """ValueError, one line, for the first logger whose package is not installed."""
    for name in names:
        package = LOGGERS[name][0]
        if importlib.util.find_spec(package) is None:
            raise ValueError(
                f"loggers: {name} needs the package {package}, which is not installed; "
                f"pip install 'mmts-ray[{name}]', or take {name} out of loggers"
            )


class Loggers:
    """The loggers of a study, for the time of a `with`: each in its own thread; `said` is told when one gives up."""

    def __init__(self, names: Iterable[str], study_dir: Path, *, study: str, said: Callable[[str], None]) -> None:
        self.feeds = [Feed(name, study_dir, study=study, said=said) for name in names]

    def __enter__(self) -> "Loggers":
        for feed in self.feeds:
            feed.start()
        return self

    def __exit__(self, *exception: object) -> None:
        for feed in self.feeds:
            feed.stopping.set()
        deadline = time.monotonic() + CLOSING_SECONDS
        for feed in self.feeds:
            feed.join(max(0.0, deadline - time.monotonic()))
            if feed.is_alive():
                feed.said(f"{feed.name}: still writing after {CLOSING_SECONDS:.0f} s; `mmts-ray resume` adds the rest")


class Feed(threading.Thread):
    """Follows the ledger and hands each record of a trial to one sink, its start first, its end last."""

    def __init__(self, name: str, study_dir: Path, *, study: str, said: Callable[[str], None]) -> None:
        super().__init__(name=name, daemon=True)
        self.study_dir, self.study, self.said = study_dir, study, said
        self.folder = study_dir / "loggers" / name
        self.stopping = threading.Event()
        self.follow = results.Follow(study_dir)
        self.open: set[str] = set()
        self.early: dict[str, list[Record]] = {}  # records read before their trial's start was
        marks = self.folder / LOGGED
        self.logged = set(marks.read_text(encoding="utf8").split()) if marks.is_file() else set()

    def run(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            sink = LOGGERS[self.name][1](self.folder, self.study)
            searched = [entry["path"] for entry in results.read_meta(self.study_dir)["space"]]
            while True:
                last = self.stopping.is_set()
                self._feed(sink, searched)
                if last:
                    break
                self.stopping.wait(EVERY_SECONDS)
            sink.close()
        except Exception as problem:  # whatever a logger does, the study goes on
            reason = str(problem).strip().splitlines() or [""]
            self.said(f"{self.name}: switched off: {type(problem).__name__}: {without_login(reason[0])[:200]}")

    def _feed(self, sink: Sink, searched: list[str]) -> None:
        rows = sorted(self.follow.new(), key=lambda row: row.get("time", 0.0))
        for row in rows:
            trial = str(row["trial"])
            is_start = any(key.startswith("param.") for key in row)
            if is_start and trial not in self.open and trial not in self.logged and row.get("status") == "running":
                sink.begin(trial, row, searched)
                self.open.add(trial)
                for before in self.early.pop(trial, []):
                    self._hand_on(sink, trial, before)
            elif not is_start and trial in self.open:
                self._hand_on(sink, trial, row)
            elif not is_start and trial not in self.logged:
                self.early.setdefault(trial, []).append(row)

    def _hand_on(self, sink: Sink, trial: str, row: Record) -> None:
        if row.get("status") not in results.FINISHED:
            sink.step(trial, row)
            return
        if trial in self.open:  # an end that was written twice counts once
            sink.end(trial, row)
            self.open.remove(trial)
            self.logged.add(trial)
            with (self.folder / LOGGED).open("a", encoding="utf8") as marks:
                marks.write(f"{trial}\n")


def without_login(text: str) -> str:
    """An address in a message without the user and password that it may carry."""
    return re.sub(r"//[^/@\s]+@", "//", text)


def metrics_of(row: Record) -> dict[str, float]:
    """The finite numbers of a record under the names of its metrics."""
    found = {key.removeprefix("metric."): value for key, value in row.items() if key.startswith("metric.")}
    return {key: float(value) for key, value in found.items() if isinstance(value, (int, float))}


def parameters_of(start: Record) -> dict[str, Any]:
    return {key.removeprefix("param."): value for key, value in start.items() if key.startswith("param.")}


def label_of(trial: str, start: Record) -> str:
    return f"{trial} {start['name']}" if start.get("name") else trial


class TensorBoard:
    """A folder of event files per trial, with its searched parameters for the HPARAMS page."""

    def __init__(self, folder: Path, study: str) -> None:
        self.folder = folder
        self.writers: dict[str, Any] = {}
        self.hparams: dict[str, dict[str, Any]] = {}

    def begin(self, trial: str, start: Record, searched: Iterable[str]) -> None:
        from tensorboardX import SummaryWriter

        shutil.rmtree(self.folder / trial, ignore_errors=True)  # left by a driver that was killed
        self.writers[trial] = SummaryWriter(logdir=str(self.folder / trial), flush_secs=5)
        params = parameters_of(start)
        plain = {path: params[path] for path in searched if params.get(path) is not None}
        self.hparams[trial] = {"kind": start.get("kind") or "", "seed": start.get("seed") or 0, **plain}

    def step(self, trial: str, row: Record) -> None:
        for name, value in metrics_of(row).items():
            self.writers[trial].add_scalar(name, value, int(row.get("step", 0)), walltime=row.get("time"))

    def end(self, trial: str, row: Record) -> None:
        from tensorboardX.summary import hparams

        writer = self.writers.pop(trial)
        ends = metrics_of(row)
        legal = {k: v if isinstance(v, (bool, int, float)) else str(v) for k, v in self.hparams.pop(trial).items()}
        for summary in hparams({**legal, "status": row["status"]}, ends):
            writer.file_writer.add_summary(summary)
        for name, value in ends.items():
            writer.add_scalar(name, value, int(row.get("step", 0)), walltime=row.get("time"))
        writer.close()

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


class MLflow:
    """One experiment a study, one run a trial, in STUDY/loggers/mlflow/mlflow.db or where MLFLOW_TRACKING_URI says."""

    def __init__(self, folder: Path, study: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when mlflow is imported
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.ERROR)
        logging.getLogger("alembic").setLevel(logging.ERROR)
        folder = folder.absolute()
        self.client = MlflowClient(
            tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder}/mlflow.db"
        )
        known = self.client.get_experiment_by_name(study)
        self.experiment = (
            known.experiment_id
            if known
            else self.client.create_experiment(study, artifact_location=(folder / "artifacts").as_uri())
        )
        self.runs: dict[str, str] = {}

    def begin(self, trial: str, start: Record, searched: Iterable[str]) -> None:
        from mlflow.entities import Param

        # a run that an interrupted driver left open is started again, not continued: its steps would be there twice
        for left in self.client.search_runs(
            [self.experiment], f"tags.trial = '{trial}' and attributes.status = 'RUNNING'"
        ):
            self.client.delete_run(left.info.run_id)
        tags = {key: str(start[key]) for key in ("trial", "kind", "name", "config_hash", "seed") if start.get(key)}
        run = self.client.create_run(
            self.experiment, start_time=_milliseconds(start), tags=tags, run_name=label_of(trial, start)
        )
        self.runs[trial] = run.info.run_id
        params = [Param(key, str(value)) for key, value in parameters_of(start).items()]
        self.client.log_batch(run.info.run_id, params=params)

    def step(self, trial: str, row: Record) -> None:
        from mlflow.entities import Metric

        when, step = _milliseconds(row), int(row.get("step", 0))
        metrics = [Metric(name, value, when, step) for name, value in metrics_of(row).items()]
        self.client.log_batch(self.runs[trial], metrics=metrics)

    def end(self, trial: str, row: Record) -> None:
        self.step(trial, row)
        run = self.runs.pop(trial)
        self.client.set_tag(run, "status", row["status"])
        if row.get("error"):
            self.client.set_tag(run, "error", str(row["error"]))
        state = {"done": "FINISHED", "stopped": "KILLED"}.get(row["status"], "FAILED")
        self.client.set_terminated(run, state, end_time=_milliseconds(row))

    def close(self) -> None:
        """Nothing: runs of trials that have not ended stay open, and are started again by the next driver."""


def _milliseconds(row: Record) -> int:
    return int(1000 * row.get("time", time.time()))


class Wandb:
    """One project a study, one run a trial; offline, for `wandb sync`, unless WANDB_MODE says so."""

    def __init__(self, folder: Path, study: str) -> None:
        import wandb

        self.folder, self.study = folder, study
        self.mode = os.environ.get("WANDB_MODE") or "offline"
        # the machine, its packages and the command line are in meta.json; here they would only be a leak
        quiet: dict[str, Any] = {
            "console": "off",
            "silent": True,
            "quiet": True,
            "disable_git": True,
            "disable_code": True,
        }
        hidden: dict[str, Any] = {"x_disable_meta": True, "x_disable_stats": True, "x_save_requirements": False}
        self.settings = wandb.Settings(**quiet, **hidden)
        self.runs: dict[str, Any] = {}

    def begin(self, trial: str, start: Record, searched: Iterable[str]) -> None:
        import wandb

        identity = hashlib.sha256(f"{self.study} {start.get('config_hash')} {start.get('time')}".encode()).hexdigest()
        identity = f"{trial}-{identity[:8]}"
        for left in self.folder.glob(f"wandb/offline-run-*-{identity}"):  # by a driver that was killed
            shutil.rmtree(left, ignore_errors=True)
        self.runs[trial] = wandb.init(
            project=re.sub(r"[/\\#?%:]", "-", self.study)[:128],
            id=identity,
            name=label_of(trial, start),
            group=start.get("kind"),
            config={"seed": start.get("seed"), "config_hash": start.get("config_hash"), **parameters_of(start)},
            dir=str(self.folder.absolute()),
            mode=self.mode,  # type: ignore[arg-type]
            reinit="create_new",
            settings=self.settings,
        )

    def step(self, trial: str, row: Record) -> None:
        self.runs[trial].log({**metrics_of(row), "epoch": row.get("epoch")}, step=int(row.get("step", 0)))

    def end(self, trial: str, row: Record) -> None:
        self.step(trial, row)
        run = self.runs.pop(trial)
        run.summary.update({**metrics_of(row), "status": row["status"], "error": row.get("error")})
        run.finish(exit_code=0 if row["status"] in ("done", "stopped") else 1)

    def close(self) -> None:
        import wandb

        for run in self.runs.values():
            run.finish(exit_code=1)
        wandb.teardown()


# name in the study file: (package that must be there, what it makes)
LOGGERS: dict[str, tuple[str, Callable[[Path, str], Sink]]] = {
    "tensorboard": ("tensorboardX", TensorBoard),
    "mlflow": ("mlflow", MLflow),
    "wandb": ("wandb", Wandb),
}
