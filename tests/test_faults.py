"""A full disk, too little memory, a torn study: without Ray, in a process whose limits are really that low."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mmts_ray import results

TESTS = Path(__file__).parent

# a trial in a process of its own; limits are set just before it begins, as what is imported before needs more
TRIAL = """
import os, resource, sys
sys.path.insert(0, {tests!r})
import numpy, sklearn.cluster, torch, toy
from mmts_ray import results, space_file
from mmts_ray.plan import Planned, start_records
from mmts_ray.train import TrainData
from mmts_ray.trial.run import TrialRun

torch.set_num_threads(1)
fixed = {{"data.name": "features", "data.path": "unused", "model.dim": 6, "eval.k": 3, "train.epochs": 6}} | {fixed!r}
study = space_file.parse({{"study": "toy", "fixed": fixed}})
data = TrainData(toy.frozen(images={images}))
planned = Planned(trial="t0000", kind="confirm", name=None, config=study.trial_config({{}}))
(start,) = start_records(study, planned, status="waiting", data_key="toy")
task = {{"trial": "t0000", "kind": "confirm", "flat": planned.config.flat(), "report": False}}
task["starts"] = {{"t0000": start}}
options = {{"gpus": 0, "checkpoint_seconds": 0}}
warm = torch.optim.Adam([torch.ones(3, requires_grad=True)])  # torch imports the rest of itself here
def limit(kind, size):
    resource.setrlimit(kind, (size, resource.getrlimit(kind)[1]))
{limit}
run = TrialRun(task, data, ledger=results.Ledger({folder!r}), study_dir={folder!r}, options=options)
try:
    answer = run.step()
except results.Unwritable as problem:
    answer = {{"status": "interrupted", "error": problem}}
print(answer["status"], answer["error"], sep="|", flush=True)
os._exit(0)  # a library that could not finish loading crashes in Python's own shutdown
"""


def trial(folder, *, limit="", images=90, **fixed):
    """(status, error) of a trial under a limit."""
    code = TRIAL.format(tests=str(TESTS), fixed=fixed, images=images, limit=limit, folder=str(folder))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().split("|")


def test_a_full_disk_leaves_whole_lines_and_takes_more_when_there_is_room_again(tmp_path):
    code = f"""
import resource
from mmts_ray import results
ledger = results.Ledger({str(tmp_path)!r})
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
def record(step):
    ledger.append({{"trial": "t0000", "step": step, "status": "running", "metric.x": 0.5}})
for step in range(10):
    record(step)
limit(ledger.path.stat().st_size + 30)  # room for a part of the next line
for step in (10, 11):
    try:
        record(step)
    except results.Unwritable as problem:
        print(problem)
limit(-1)
record(12)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == second
    assert "ledger" in first
    assert "cannot be written" in first
    (path,) = (tmp_path / "ledger").iterdir()
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert steps == [*range(10), 12]


def test_an_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "ledger").write_text("a file is in the way")
    with pytest.raises(results.Unwritable, match=r"ledger: cannot be written \(File exists\)"):
        results.Ledger(tmp_path)


@pytest.mark.parametrize("size", [2_500, 20_000], ids=["no room for the ledger", "no room for a checkpoint"])
def test_a_full_disk_interrupts_a_trial_which_then_goes_on_where_it_was(size, tmp_path):
    full = f"limit(resource.RLIMIT_FSIZE, {size})"
    model = {"model.dim": 400}  # a checkpoint of some 200 kB
    status, error = trial(tmp_path, limit=full, **model)
    assert status == "interrupted"
    assert "cannot be written (File too large)" in error
    (kept,) = results.trials_of(tmp_path).values()
    assert kept["status"] == "running", "no end is written: it is no failure of the trial"
    assert not list(tmp_path.rglob(".last.pt.*")), "no half-written file is left"
    assert trial(tmp_path, **model) == ["done", ""]
    (kept,) = results.trials_of(tmp_path).values()
    assert (kept["status"], kept["epoch"], kept["starts"]) == ("done", 6, 2)


def test_a_trial_that_outgrows_the_memory_is_infeasible_with_the_reason(tmp_path):
    size = "int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()"
    little = f"limit(resource.RLIMIT_AS, {size} + 400_000_000)"
    huge = {"model.dim": 8192, "train.batch_size": 10_000, "train.epochs": 1, "groups.k": 3}  # 328 MB each embedding
    status, error = trial(tmp_path, limit=little, images=15_000, **huge)
    assert status == "infeasible"
    assert error.startswith("out of memory: ")
    (kept,) = results.trials_of(tmp_path).values()
    assert (kept["status"], kept["starts"]) == ("infeasible", 1)
