"""Sweep throughput at equal work: a careful Optuna script, a usual Ray Tune script, and `mmts-ray`.

    python benchmarks/sweeps.py [--configurations 96] [--epochs 10] [--repeat 3] [--json out.json]

Every arm trains the same configurations from the same weights in the same order, on the same cached features and cores.
What is timed is a whole process, imports and Ray's start included. See README.md beside this file.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anatomy_report
import replay

HERE = Path(__file__).parent
ARMS = ("optuna", "mmts-ray", "tune")  # in this order, so that the pairs compared run side by side
SETTINGS = ("no-dropout", "dropout")  # without, all arms must agree; with, each drops in its own way
TARGETS = {"optuna": 1.5, "tune": 6.0}
TOLERANCE = 1e-3
METRIC = "i2t_r1"


def main(argv: list[str] | None = None) -> int:
    args = _arguments(argv)
    out: dict[str, Any] = {"configurations": args.configurations, "epochs": args.epochs, "settings": {}}
    with tempfile.TemporaryDirectory(prefix="sweeps-", dir=args.scratch) as scratch:
        for name in args.settings:
            compared = compare(args, dropout=name == "dropout", scratch=Path(scratch) / name)
            out["settings"][name] = compared
            print(f"{name}: {args.configurations} configurations x {args.epochs} epochs")
            print("\n".join(summary(compared)), flush=True)
        out["anatomy"] = anatomy_report.measure(epochs=args.epochs, scratch=Path(scratch))
    ours = [run for run in out["settings"][args.settings[-1]]["runs"] if run["arm"] == "mmts-ray"]
    print("\n".join(anatomy_report.text(out["anatomy"], ours)))
    if args.json:
        args.json.write_text(json.dumps(out, indent=1) + "\n", encoding="utf8")
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", type=int, default=96, metavar="N")
    parser.add_argument("--epochs", type=int, default=10, metavar="N")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="interleaved rounds of all arms")
    parser.add_argument("--seed", type=int, default=0, help="of the draw of the configurations")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--scratch", type=Path, help="where the temporary folder goes (default: the system's)")
    parser.add_argument("--json", type=Path, metavar="OUT.json", help="keep every number")
    return parser.parse_args(argv)


def compare(args: argparse.Namespace, *, dropout: bool, scratch: Path) -> dict[str, Any]:
    """Run every arm `repeat` times, interleaved; agreement of the arms is asked for without dropout only."""
    study = replay.study_of(configurations=args.configurations, epochs=args.epochs, dropout=dropout)
    points = replay.draw(study, seed=args.seed)
    frozen = replay.features(study)
    replay.export(study, frozen, scratch / "inputs")
    task_path = scratch / "task.json"
    task = replay.task(study, points, inputs=scratch / "inputs")
    task_path.write_text(json.dumps(task), encoding="utf8")
    runs = []
    for number in range(args.repeat):
        for arm in args.arms:
            folder = scratch / f"{number}-{arm}"
            folder.mkdir()
            if arm == "mmts-ray":
                replay.queue(study, frozen, points, folder / "study")
                words = [str(folder / "study")]
            else:
                words = [str(task_path), str(folder / "finals.json")]
            run = {"arm": arm, "round": number, "load_before": os.getloadavg()[0]}
            run |= timed(arm, words, folder)
            if arm == "mmts-ray":
                run["finals"] = replay.finals(folder / "study", points)
                run["overhead"] = anatomy_report.overhead(folder / "study", run["started"], run["wall"])
            else:
                run["finals"] = json.loads((folder / "finals.json").read_text(encoding="utf8"))
            run["trials_per_hour"] = 3600 * len(points) / run["wall"]
            load = f"load {run['load_before']:.1f} -> {run['load_after']:.1f}"
            print(f"  {arm:9s} {run['wall']:8.1f} s  {run['trials_per_hour']:7.0f} trials/hour  {load}", flush=True)
            runs.append(run)
    compared: dict[str, Any] = {"points": points, "runs": runs, "ratios": ratios(runs)}
    if not dropout:  # the arms draw different masks
        compared["agreement"] = agreement(runs)
    return compared


def timed(arm: str, words: list[str], folder: Path) -> dict[str, float]:
    """Run one arm's script as a user would, on all cores; RuntimeError with the end of its output when it fails."""
    script = HERE / f"arm_{arm.replace('-', '_')}.py"
    env = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS") and k != "RAY_ADDRESS"}
    log = folder / "output.txt"
    with log.open("w") as output:
        started, clock = time.time(), time.monotonic()
        done = subprocess.run([sys.executable, str(script), *words], env=env, stdout=output, stderr=output, check=False)
        wall = time.monotonic() - clock
    if done.returncode:
        raise RuntimeError(f"arm {arm} ended with status {done.returncode}:\n{log.read_text(errors='replace')[-3000:]}")
    return {"started": started, "wall": wall, "load_after": os.getloadavg()[0]}


def ratios(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """How many times as fast `mmts-ray` is, per round and competitor."""
    ours = {run["round"]: run["wall"] for run in runs if run["arm"] == "mmts-ray"}
    out: dict[str, dict[str, Any]] = {}
    for arm, target in TARGETS.items():
        values = [run["wall"] / ours[run["round"]] for run in runs if run["arm"] == arm and run["round"] in ours]
        if values:
            median, ends = statistics.median(values), [min(values), max(values)]
            out[arm] = {"per_round": values, "median": median, "range": ends, "target": target}
    return out


def agreement(runs: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Difference of the final metric per configuration, each arm's first run against our first."""
    first: dict[str, list[float]] = {}
    for run in runs:
        first.setdefault(run["arm"], [final[METRIC] for final in run["finals"]])
    out = {}
    for arm in TARGETS:
        if arm in first and "mmts-ray" in first:
            gaps = [abs(a - b) for a, b in zip(first[arm], first["mmts-ray"], strict=True)]
            same = sum(gap < TOLERANCE for gap in gaps) / len(gaps)
            out[arm] = {"max": max(gaps), "mean": statistics.mean(gaps), "share_equal": same}
    return out


def summary(compared: dict[str, Any]) -> list[str]:
    """The lines printed for one setting."""
    lines = []
    for arm in ARMS:
        rates = [run["trials_per_hour"] for run in compared["runs"] if run["arm"] == arm]
        if rates:
            ends = f"{min(rates):.0f} .. {max(rates):.0f}"
            lines.append(f"  {arm:9s} {statistics.median(rates):7.0f} trials/hour, median of {len(rates)} ({ends})")
    for arm, ratio in compared["ratios"].items():
        low, high = ratio["range"]
        verdict = "met" if ratio["median"] >= ratio["target"] else "missed"
        lines.append(
            f"  mmts-ray / {arm}: {ratio['median']:.2f} ({low:.2f} .. {high:.2f}), "
            f"target {ratio['target']:g}: {verdict}"
        )
    for arm, gap in compared.get("agreement", {}).items():
        lines.append(
            f"  final val {METRIC}, {arm} against mmts-ray: max difference {gap['max']:.1e}, mean {gap['mean']:.1e}, "
            f"equal within {TOLERANCE:g} in {gap['share_equal']:.0%} of the configurations"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
