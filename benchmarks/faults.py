"""What each fault costs: one small real study per fault, hit once in the middle of a trial, by process id.

python benchmarks/faults.py
python benchmarks/faults.py --only "driver killed" "node lost" --json out.json

Each study has three trials of some 20 s on made features, one after another, with an evaluation every epoch and a
checkpoint every `--checkpoint-seconds`. The blow falls when one trial has ended and another is four fifths of the way
to its next checkpoint: close to the worst moment. All figures are read back from the study's ledger:

    again   seconds from the blow to the next evaluation, by a process that has taken the trial up; of an outage the
            longest time without an evaluation. After a dead driver and a full disk `resume` is given at once.
    twice   epochs that were evaluated twice, because they came after the last checkpoint
    lost    device-seconds that the ledger counts as trained again
    wrong   finished trials that are gone or ran again, and configurations that are there twice: 0, or a bug

Nodes are processes on this machine, under Ray's own settings for health checks. A full disk is a small file system that
only root may mount.
"""

import argparse
import contextlib
import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "storage"))

import commands
import object_store
import own_ray
import toy
import yaml

from mmts_ray import results

PATIENCE = 600.0  # seconds for one step of a study
OUTAGE_SECONDS = 10.0
NOTICE_SECONDS = 15.0  # what `mmts_ray.spot` keeps for itself included
wait_for = partial(commands.wait_for, seconds=PATIENCE)
Row = dict[str, Any]
Process = subprocess.Popen[str]

SPACE = {
    "study": "faults",
    "strategy": "random",
    "trials": 3,
    "search": {"train.lr": {"loguniform": [1.0e-3, 1.0e-1]}},
    "resources": {"concurrent": 1},
}
FIXED = {"data.name": "features", "data.path": "toy.npz", "model.dim": 8, "eval.k": 3, "schedule.name": "cosine"}


@dataclass(frozen=True)
class Cost:
    """What one fault cost; `trained` is how long the hit trial had trained before it."""

    fault: str
    again: float
    twice: int
    lost: float
    wrong: int
    trained: float
    trials: int
    load: float = field(default_factory=lambda: round(os.getloadavg()[0], 1))


@dataclass(frozen=True)
class Blow:
    """When a study was hit, in which trial, and what it held then."""

    at: float
    trial: str
    before: dict[str, Row]


@dataclass
class Case:
    """A folder in which a study runs, and how `mmts-ray` is called there."""

    folder: Path
    epochs: int
    every: float  # seconds between two checkpoints
    out: str = "study"
    env: dict[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        toy.npz(self.folder, images=240)
        fixed = {**FIXED, "train": {"epochs": self.epochs, "batch_size": 16}}
        text = yaml.safe_dump({**SPACE, "fixed": fixed, "checkpoint_seconds": self.every})
        (self.folder / "space.yaml").write_text(text, encoding="utf8")

    @property
    def study(self) -> Path:
        """The folder that trials write to, also when it stands for an address."""
        mirrors = (self.folder / "cache" / "studies").glob("faults-*[0-9a-f]")
        return next(mirrors, self.folder / "unmade") if "://" in self.out else self.folder / self.out

    def start(self, verb: str, *words: str) -> Process:
        target = ["space.yaml", "--out", self.out] if verb == "search" else [self.out]
        return commands.start(verb, *target, *self.words, *words, cwd=self.folder, **self.env)

    def finish(self, process: Process, status: int = 0) -> None:
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == status, (out, err)

    def middle(self, process: Process) -> str:
        """The trial whose blow is due, as soon as there is one."""

        def due() -> str | None:
            trials = results.trials_of(self.study) if (self.study / "ledger").is_dir() else {}
            states = {trial: row["status"] for trial, row in trials.items()}
            for trial, state in states.items():
                if state == "running" and "done" in states.values():
                    with contextlib.suppress(FileNotFoundError):
                        last = (self.study / "checkpoints" / trial / "last.pt").stat().st_mtime
                        if time.time() - last >= 0.8 * self.every:
                            return trial
            return None

        return wait_for(due, "no trial got to its middle", process)

    def strike(self, trial: str, *pids: int) -> Blow:
        """SIGKILL to these processes."""
        blow = Blow(time.time(), trial, results.trials_of(self.study))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return blow

    def evaluations(self) -> dict[Path, list[Row]]:
        """Of each process that has written any, in its order."""
        found = {}
        for path in sorted((self.study / "ledger").glob("*.jsonl")):
            rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            found[path] = [r for r in rows if "metric.train_loss" in r and r["status"] == "running"]
        return {path: rows for path, rows in found.items() if rows}

    def trainer(self, trial: str) -> int:
        """The living process that evaluates this trial."""
        mine = [path for path, rows in self.evaluations().items() if rows[-1]["trial"] == trial]
        pids = [int(path.name.split("-")[-2]) for path in mine]
        return next(pid for pid in pids if Path(f"/proc/{pid}").exists())

    def cost(self, fault: str, blow: Blow, *, silence: bool = False) -> Cost:
        """Read from the ledger of the study that has ended since."""
        written = self.evaluations()
        rows = sorted(itertools.chain(*written.values()), key=lambda row: row["time"])
        if silence:
            again = max(b["time"] - a["time"] for a, b in itertools.pairwise(rows) if b["time"] > blow.at)
        else:
            new = [mine for mine in written.values() if mine[0]["time"] > blow.at]
            again = min(row["time"] for mine in new for row in mine if row["trial"] == blow.trial) - blow.at
        trials = results.trials_of(self.study)
        ended = {trial: row for trial, row in blow.before.items() if row["status"] in results.FINISHED}
        kept = ("status", "starts", "end_time")
        wrong = sum(any(trials.get(trial, {}).get(key) != row[key] for key in kept) for trial, row in ended.items())
        wrong += len(trials) - len({(row["config_hash"], row["seed"]) for row in trials.values()})
        states = [row["status"] for row in trials.values()]
        assert states == ["done"] * len(states), states
        return Cost(
            fault=fault,
            again=round(again, 1),
            twice=len(rows) - len({(row["trial"], row["step"]) for row in rows}),
            lost=round(sum(row["lost_device_seconds"] for row in trials.values()), 1),
            wrong=wrong,
            trained=round(max(r["seconds"] for r in rows if r["trial"] == blow.trial and r["time"] <= blow.at), 1),
            trials=len(trials),
        )


Fault = Callable[[str, partial[Case]], Cost]


def trial_killed(fault: str, case_of: partial[Case]) -> Cost:
    case = case_of()
    process = case.start("search")
    trial = case.middle(process)
    blow = case.strike(trial, case.trainer(trial))
    case.finish(process)
    return case.cost(fault, blow)


def worker_killed(fault: str, case_of: partial[Case]) -> Cost:
    """The one that does not write; both have to begin again. An exchange takes longer than a step of such a model."""
    case = case_of(words=("resources.workers=2",), epochs=case_of.keywords["epochs"] // 3)
    process = case.start("search")
    trial = case.middle(process)
    workers = [pid for pid in own_ray.descendants(process.pid) if b"RayTrainWorker" in own_ray.command(pid)]
    (other,) = set(workers) - {case.trainer(trial)}
    blow = case.strike(trial, other)
    case.finish(process)
    return case.cost(fault, blow)


def driver_killed(fault: str, case_of: partial[Case]) -> Cost:
    case = case_of()
    process = case.start("search")
    blow = case.strike(case.middle(process), process.pid)
    process.communicate()
    case.words = ()
    case.finish(case.start("resume"))
    return case.cost(fault, blow)


def node_lost(fault: str, case_of: partial[Case], *, notice: float = 0.0) -> Cost:
    """One of two nodes with room for the trial; with notice, what `mmts_ray.spot` does comes first."""
    folder = case_of.keywords["folder"]
    env = own_ray.environment(folder, secrets.token_hex(32))
    ports = own_ray.free_ports(6)
    with contextlib.ExitStack() as ends:
        head = own_ray.Head(folder, env, ports, "--num-cpus=0", '--resources={"trial_slot": 4}')
        ends.enter_context(own_ray.running(head))
        nodes = []
        for number in (0, 1):
            named = f'--resources={{"n{number}": 1}}'
            nodes.append(own_ray.Worker(folder, env, head, ports[4 + number], number, named))
            ends.enter_context(own_ray.running(nodes[-1]))
        address = f"127.0.0.1:{head.port}"
        case = case_of(env=env, words=("--address", address))
        process = case.start("search")
        trial = case.middle(process)
        trainer = case.trainer(trial)
        number, node = next((i, n) for i, n in enumerate(nodes) if trainer in own_ray.descendants(n.process.pid))
        if notice:
            drain(address, number, env, notice)
        blow = case.strike(trial, *own_ray.descendants(node.process.pid), node.process.pid)
        case.finish(process)
        return case.cost(fault, blow)


def drain(address: str, number: int, env: dict[str, str], seconds: float) -> None:
    """What the watcher on a node does when the cloud gives it so many seconds; returns when they are over."""
    code = "import ray, sys; ray.init(address=sys.argv[1], logging_level='ERROR', log_to_driver=False); print(next("
    code += "n['NodeID'] for n in ray.nodes() if sys.argv[2] in n['Resources']))"
    begun = time.monotonic()
    asked = [sys.executable, "-c", code, address, f"n{number}"]
    node = subprocess.run(asked, env=env, check=True, capture_output=True, text=True).stdout.split()[-1]
    words = ["--now", str(seconds), "--address", address, "--node-id", node]
    subprocess.run([sys.executable, "-m", "mmts_ray.spot", *words], env=env, check=True, capture_output=True)
    time.sleep(max(0.0, begun + seconds - time.monotonic()))


def storage_outage(fault: str, case_of: partial[Case]) -> Cost:
    """An S3 server that refuses connections for OUTAGE_SECONDS."""
    with object_store.serving() as door:
        case = case_of(out=f"s3://{object_store.BUCKET}/faults", env=object_store.environment(door))
        process = case.start("search")
        blow = case.strike(case.middle(process))
        door.shut_for(OUTAGE_SECONDS)
        case.finish(process)
        elsewhere = Case(case.folder / "elsewhere", 1, 1.0, out=case.out, env=case.env)
        reader = elsewhere.start("collect")
        elsewhere.finish(reader)
        assert results.trials_of(elsewhere.study) == results.trials_of(case.study), "the bucket holds something else"
        return case.cost(fault, blow, silence=True)


def full_disk(fault: str, case_of: partial[Case]) -> Cost:
    disk = case_of.keywords["folder"] / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], check=True, capture_output=True)
    try:
        case = case_of(out="disk/study")
        process = case.start("search")
        blow = case.strike(case.middle(process))
        with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        case.finish(process, status=3)
        (disk / "ballast").unlink()
        case.finish(case.start("resume"))
        return case.cost(fault, blow)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


FAULTS: dict[str, Fault] = {
    "trial killed": trial_killed,
    "worker killed": worker_killed,
    "driver killed": driver_killed,
    "node lost": node_lost,
    "node reclaimed": partial(node_lost, notice=NOTICE_SECONDS),
    "storage outage": storage_outage,
    "full disk": full_disk,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="FAULT", help=", ".join(FAULTS)
    )
    parser.add_argument("--epochs", type=int, default=1500, help="of a trial (default 1500)")
    parser.add_argument("--checkpoint-seconds", type=float, default=5.0, help="default 5")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    costs = []
    print(f"a checkpoint every {args.checkpoint_seconds:g} s, load {os.getloadavg()[0]:.1f} before\n")
    print(f"{'fault':16s}{'again':>8s}{'twice':>8s}{'lost':>8s}{'wrong':>8s}{'trained':>10s}{'load':>8s}", flush=True)
    for fault in args.only:
        if fault == "full disk" and os.geteuid() != 0:
            print(f"{fault:16s}   skipped: only root may mount a small file system")
            continue
        with tempfile.TemporaryDirectory(prefix="f") as temporary:
            case_of = partial(Case, folder=Path(temporary), epochs=args.epochs, every=args.checkpoint_seconds)
            cost = FAULTS[fault](fault, case_of)
        costs.append(asdict(cost))
        print(
            f"{fault:16s}{cost.again:8.1f}{cost.twice:8d}{cost.lost:8.1f}{cost.wrong:8d}{cost.trained:10.1f}"
            f"{cost.load:8.1f}",
            flush=True,
        )
    if args.json:
        kept = {"checkpoint_seconds": args.checkpoint_seconds, "epochs": args.epochs, "faults": costs}
        args.json.write_text(json.dumps(kept, indent=2), encoding="utf8")
    sys.exit(any(cost["wrong"] for cost in costs))


if __name__ == "__main__":
    main()
