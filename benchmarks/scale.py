"""How the driver's cost grows with a study: many trivial trials through the real search, on pretended CPUs.

python benchmarks/scale.py                        # 2,000 trials, 64 CPUs that Ray is told to have, 8 actors
python benchmarks/scale.py --concurrent 64 --wait 3
python benchmarks/scale.py --trials 200 --cpus 8 --json out.json

Each trial is a real training run, of a few steps on a small made data set, so what is measured is the driver:
proposals, Optuna's journal, Tune's loop, the ledger. CPU seconds are those of the driver's process alone; the actors,
which share the machine's real cores, only make the clock run. Then: the memory of an actor, bytes that a trial leaves
besides checkpoints, and the time of `mmts-ray status` on a ledger of a million rows, made by repeating this study's own
records.

An actor holds torch, Ray and pandas, and sixty-four of them more memory than small machines have. With `--wait` trials
do all that a trial does but train: they take an actor of their own for so many seconds, write their records and end,
without torch. Few seconds leave actors idle, as the driver cannot start trials faster than it can.
"""

import argparse
import contextlib
import fcntl
import itertools
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import own_ray
import toy

from mmts_ray import folder, results, search, space_file, storage
from mmts_ray.trial import group
from mmts_ray.trial.actor import TrialActor
from mmts_ray.trial.run import TrialRun

SPACE = {
    "study": "scale",
    "strategy": "tpe",
    "fixed": {
        "data.name": "features",
        "data.path": "made",
        "model.dim": 4,
        "eval.k": 2,
        "schedule.name": "cosine",
        "train": {"epochs": 1, "batch_size": 32},
    },
    "search": {
        "train.lr": {"loguniform": [1.0e-4, 1.0e-1]},
        "schedule.tau_min": {"loguniform": [0.01, 0.1]},
        "schedule.alpha": {"uniform": [0, 0.1]},
        "schedule.spread": {"uniform": [0, 0.2]},
        "loss.r_mix": {"uniform": [0, 0.5]},
        "groups.k": {"choice": [2, 3, 5]},
    },
    "baseline": [{"name": "plain", "schedule.name": "constant"}],
    "checkpoint_seconds": 600,
}
MILLION = 1_000_000
CPU_MS = 60.0  # the target for a trial at the end of the study
STATUS_SECONDS = 5.0
TRIAL_BYTES = 20_000


class WaitingRun(TrialRun):
    """A trial with one evaluation, out of a formula and after some seconds, that keeps no weights."""

    wait = 0.0

    def _start(self) -> Iterator[Any]:
        self.beat(0)
        self.epochs = 1
        self._append({**self.start, "status": "running"})
        self._sign_of_life(0, 0)
        time.sleep(self.wait)
        score = 1 / (1 + math.log(self.flat["train.lr"] / 0.01) ** 2 + self.flat["loss.r_mix"])
        metrics = {"train_loss": 1 - score, "val_i2t_r1": score}
        return iter(
            [SimpleNamespace(step=1, epoch=1, metrics=metrics, notes=(), infeasible="", ranks=None, state=dict)]
        )

    def _keep_weights(self, row: Any) -> None: ...


class WaitingActor(TrialActor):
    """Leads waiting trials."""

    def setup(self, config: dict[str, Any], *, frozen: Any, study_dir: str, options: dict[str, Any]) -> None:  # type: ignore[override]
        group.TrialRun = WaitingRun  # type: ignore[misc]
        self.study_dir, self.options, self.refusal = storage.attach(study_dir, None), options, ""
        self.ledger = results.Ledger(study_dir)
        self.alive = (self.study_dir / "actors.lock").open("a")
        fcntl.flock(self.alive, fcntl.LOCK_SH)
        self.data = SimpleNamespace(device="cpu")  # type: ignore[assignment]
        self._begin(config)


class Meter:
    """Progress that notes the driver's CPU seconds at the end of each trial, and once the memory of the actors."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.actors: list[float] = []  # MB of each; what several share counts in parts
        self.aside = 0.0  # CPU seconds that looking at them took

    def begin(self, *, planned: int, finished: int) -> None:
        self.planned = planned

    def waiting(self, reason: str) -> None: ...

    def resources(self, used: dict[str, float], total: dict[str, float]) -> None: ...

    def more(self, count: int) -> None: ...

    def event(self, text: str) -> None:
        print(text, file=sys.stderr)

    def trial_ended(self, planned: Any, *, status: str, metrics: dict[str, float], seconds: float) -> None:
        self.cpu.append(cpu_seconds() - self.aside)
        if len(self.cpu) == self.planned // 2:
            self.actors = list(actors_mb())
            self.aside = cpu_seconds() - self.cpu[-1]
        if len(self.cpu) % 100 == 0:
            print(f"{len(self.cpu)}/{self.planned} trials", file=sys.stderr, flush=True)


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def actors_mb() -> Iterator[float]:
    """The memory of each process that leads trials, of what it shares with others its part."""
    for pid in own_ray.trial_processes(os.getpid()):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            yield next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000


def run(study_dir: Path, *, trials: int, cpus: int, concurrent: int, strategy: str, wait: float) -> tuple[Meter, float]:
    """What was measured, and wall seconds, of one search."""
    import ray

    if wait:
        WaitingRun.wait = wait
        sys.modules["mmts_ray.search.drive"].TrialActor = WaitingActor  # type: ignore[attr-defined]

    study = space_file.parse({**SPACE, "strategy": strategy, "trials": trials, "resources": {"concurrent": concurrent}})
    frozen = toy.frozen(images=60)
    folder.create(study, study_dir, frozen, command="benchmarks/scale.py", cache_dir=study_dir / "cache")
    ray.init(
        address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        object_store_memory=200_000_000,
    )  # fmt: skip
    meter, begun = Meter(), time.monotonic()
    try:
        search.search(study, study_dir, frozen, cache_dir=study_dir / "cache", progress=meter, address="local")
    finally:
        ray.shutdown()
    return meter, time.monotonic() - begun


def per_trial(cpu: list[float], parts: int = 10) -> list[tuple[int, float]]:
    """(trials ended, milliseconds of CPU a trial) over equal parts of the study; the first holds Ray's start."""
    marks = [round(i * (len(cpu) - 1) / parts) for i in range(parts + 1)]
    return [(b + 1, 1000 * (cpu[b] - cpu[a]) / (b - a)) for a, b in itertools.pairwise(marks) if b > a]


def bytes_of_a_trial(study_dir: Path, trials: int) -> float:
    """Mean bytes that a trial leaves in the study's folder, checkpoints and caches apart."""
    apart = {"checkpoints", "cache"}
    files = [p for p in study_dir.rglob("*") if p.is_file() and p.relative_to(study_dir).parts[0] not in apart]
    return sum(p.stat().st_size for p in files) / trials


def long_ledger(source: Path, target: Path, *, rows: int, steps: int = 48) -> int:
    """Repeat a study's first whole trial under new names, with `steps` evaluations each, up to `rows` records."""
    records = list(results.records(source))
    ended = [r["trial"] for r in records if r.get("status") == "done"]
    mine = [r for r in records if r["trial"] == ended[0]]
    step = next(r for r in mine if r["status"] == "running" and any(k.startswith("metric.") for k in r))
    rest = [r for r in mine if r is not step]
    (target / "ledger").mkdir(parents=True)
    results.write_meta(target, {k: v for k, v in results.read_meta(source).items() if k != "schema"})
    written = number = 0
    with (target / "ledger" / "made.jsonl").open("w", encoding="utf8") as file:
        while written < rows:
            repeated = [*rest[:-1], *({**step, "step": i, "epoch": i} for i in range(steps)), rest[-1]]
            file.writelines(json.dumps({**r, "trial": f"t{number:06d}"}) + "\n" for r in repeated)
            written, number = written + len(repeated), number + 1
    return written


def status_seconds(study_dir: Path) -> tuple[float, float]:
    """(CPU, wall) seconds of `mmts-ray status` on a study, the whole process."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([sys.executable, "-m", "mmts_ray", "status", str(study_dir)], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.monotonic() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--cpus", type=int, default=64, help="that Ray is told to have")
    parser.add_argument("--concurrent", type=int, default=8, help="trials at a time (default 8)")
    parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS", help="instead of training, without torch")
    parser.add_argument("--strategy", default="tpe")
    parser.add_argument("--rows", type=int, default=MILLION, help="of the ledger that status reads")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as temporary:
        study_dir = Path(temporary) / "scale"
        sizes = {"trials": args.trials, "cpus": args.cpus, "concurrent": args.concurrent}
        meter, wall = run(study_dir, **sizes, strategy=args.strategy, wait=args.wait)
        cpu, actors = meter.cpu, meter.actors
        table = per_trial(cpu)
        size = bytes_of_a_trial(study_dir, len(cpu))
        rows = long_ledger(study_dir, Path(temporary) / "long", rows=args.rows)
        status_cpu, status_wall = status_seconds(Path(temporary) / "long")
    cores = f"{args.cpus} pretended CPUs on {os.cpu_count()}"
    kind = f"trials of {args.wait:g} s" if args.wait else "trials"
    print(f"{len(cpu)} {kind}, {args.strategy}, {cores}, {args.concurrent} at a time: {wall:.0f} s")
    print(f"load at the end {os.getloadavg()[0]:.1f}\n\ntrials ended   driver's CPU a trial, ms")
    for ended, milliseconds in table:
        print(f"{ended:12d}   {milliseconds:.1f}")
    print(f"\nat the end {table[-1][1]:.1f} ms a trial (target at most {CPU_MS:.0f})")
    print(f"{len(actors)} actors, {sum(actors) / len(actors):.0f} MB each, {sum(actors) / 1000:.1f} GB together")
    print(f"files of a trial besides checkpoints: {size / 1000:.1f} kB (target under {TRIAL_BYTES / 1000:.0f})")
    print(f"status on {rows} rows: {status_cpu:.1f} s CPU, {status_wall:.1f} s (target under {STATUS_SECONDS:.0f})")
    if args.json:
        kept = {"trials": len(cpu), "wall": wall, "cpu_ms": table, "actors_mb": actors, "bytes": size, "rows": rows}
        args.json.write_text(json.dumps(kept | {"status_cpu": status_cpu, "status_wall": status_wall}), encoding="utf8")


if __name__ == "__main__":
    main()
