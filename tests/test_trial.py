"""A trial's life without Ray: what a kill costs, and what the ledger says it cost."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from mmts_ray import results, status

LATE = 0.6  # a step, writing a checkpoint, and other programs on the same cores

CODE = """
import sys, time
from pathlib import Path
import toy, torch
torch.set_num_threads(1)
from mmts_ray import results
from mmts_ray.config import from_flat
from mmts_ray.train import TrainData
from mmts_ray.train.pairs import Pairs
from mmts_ray.trial import run
folder, (slow, every, device, alive) = Path(sys.argv[1]), map(float, sys.argv[2:])
run.ALIVE_SECONDS = alive or run.ALIVE_SECONDS
update = Pairs.update
def slowly(self, *args, **kwargs):
    time.sleep(slow)
    with open(folder / "clock", "a") as clock:
        clock.write(f"{trial._seconds()['seconds']}\\n")
    return update(self, *args, **kwargs)
Pairs.update = slowly
flat = from_flat({"data.name": "features", "data.path": "unused", "model.dim": 6, "eval.k": 3, "groups.k": 3,
                  "train.epochs": 2, "train.batch_size": 16, "train.eval_every": 2}).flat()
start = {"trial": "t0000", "kind": "search", **{f"param.{k}": v for k, v in flat.items()}}
task = {"trial": "t0000", "kind": "search", "flat": flat, "report": False, "starts": {"t0000": start}}
ledger = results.Ledger(folder)
options = {"gpus": device, "checkpoint_seconds": every}
trial = run.TrialRun(task, TrainData(toy.frozen(images=900)), ledger=ledger, study_dir=folder, options=options)
print(trial.step()["status"], flush=True)
"""


def begin(folder, *, slow, every, devices=1, alive=0.2):
    words = [sys.executable, "-c", CODE, str(folder), *map(str, (slow, every, devices, alive))]
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)


def kill_after(process, steps, folder):
    """SIGKILL in the middle of a step; the seconds that the trial had trained by then, by its own clock."""
    clock = folder / "clock"
    while not clock.exists() or clock.read_text().count("\n") < steps:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    trained = float(clock.read_text().splitlines()[-1])
    assert not any(k.startswith("metric.") for r in results.records(folder) for k in r), "an epoch has ended already"
    return trained


@pytest.mark.slow
def test_a_kill_inside_a_long_epoch_costs_at_most_checkpoint_seconds_and_the_ledger_says_what(tmp_path):
    """Epochs of 38 steps of 0.1 s, one evaluation at the very end: the only checkpoints are those between."""
    trained = kill_after(begin(tmp_path, slow=0.1, every=0.8, devices=2), 25, tmp_path)
    out, _ = begin(tmp_path, slow=0.0, every=0.8, devices=2).communicate(timeout=200)
    assert out == "done\n"
    rows = sorted((r for r in results.records(tmp_path) if "device_seconds" in r), key=lambda r: r["time"])
    again = taken_up(tmp_path)
    lost = trained - again["seconds"]
    assert again["step"] > 5
    # the clock is read before a step: a checkpoint after it may be that much newer
    assert -0.2 <= lost <= 0.8 + LATE, "the checkpoint was older than asked for"
    trial = results.trials_of(tmp_path)["t0000"]
    assert trial["status"] == "done"
    # known from the last sign of life: at most one of these and a step short of the truth
    assert 2 * (lost - 0.2 - LATE) <= trial["lost_device_seconds"] <= 2 * (lost + LATE)
    assert trial["device_seconds"] == pytest.approx(rows[-1]["device_seconds"] + trial["lost_device_seconds"], abs=1e-3)


def taken_up(folder):
    """The second record of the process that went on, after the trial's start: it says where its checkpoint was."""
    newest = max((folder / "ledger").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return json.loads(newest.read_text().splitlines()[1])


@pytest.mark.slow
def test_as_shipped_the_ledger_knows_what_a_kill_costs_to_a_fifth_of_checkpoint_seconds(tmp_path):
    """Signs of life of 10 s would lie further apart than the checkpoints: every kill would seem to cost nothing."""
    trained = kill_after(begin(tmp_path, slow=0.1, every=3.0, alive=0), 55, tmp_path)
    out, _ = begin(tmp_path, slow=0.0, every=3.0, alive=0).communicate(timeout=200)
    assert out == "done\n"
    lost = trained - taken_up(tmp_path)["seconds"]
    counted = results.trials_of(tmp_path)["t0000"]["lost_device_seconds"]
    assert lost - 1.0 - LATE <= counted <= lost + LATE


@pytest.mark.slow
def test_without_a_checkpoint_all_of_it_is_lost_and_counted(tmp_path):
    trained = kill_after(begin(tmp_path, slow=0.1, every=1000), 15, tmp_path)
    out, _ = begin(tmp_path, slow=0.0, every=1000).communicate(timeout=200)
    assert out == "done\n"
    trial = results.trials_of(tmp_path)["t0000"]
    assert trained - 0.2 - LATE <= trial["lost_device_seconds"] <= trained + LATE
    results.write_meta(tmp_path, {"study": "s", "objective": {"val_i2t_r1": "max"}, "trials": 1, "space": []})
    now = status.read(tmp_path)
    assert now["lost_device_hours"] == pytest.approx(trial["lost_device_seconds"] / 3600)
    assert "of them trained again after a kill" in status.text(now)
