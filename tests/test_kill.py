"""kill -9 of the driver, of a trial's process, and Ctrl-C: nothing finished is lost or run twice."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import commands
import pytest
import toy
import yaml
from commands import start

from mmts_ray import results

# generous bounds: a test starts Ray up to four times, and other programs may share the cores
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE = 240  # seconds for one step of a test
wait_for = partial(commands.wait_for, seconds=PATIENCE)

TRIALS = 8


@pytest.fixture
def space(tmp_path) -> Path:
    content = {
        "study": "toy",
        "trials": TRIALS,
        "fixed": {
            "data.name": "features",
            "data.path": str(toy.npz(tmp_path, images=240)),
            "model.dim": 8,
            "eval.k": 3,
            "schedule.name": "cosine",
            "train": {"epochs": 150, "batch_size": 16, "eval_every": 5},
        },
        "search": {"train.lr": {"loguniform": [1e-3, 1e-1]}, "schedule.spread": {"uniform": [0, 0.2]}},
        "baseline": [{"name": "plain", "schedule.name": "constant"}],
        "confirm": {"top": 1, "seeds": 2},
        "checkpoint_seconds": 0,
    }
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def finish(*words, cwd, status=0):
    process = start(*words, cwd=cwd)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == status, (words, out, err)
    return out, err


def ended(folder):
    return {t["trial"]: t for t in results.trials_of(folder).values() if t["status"] in results.FINISHED}


def kill_when(process, folder, count):
    """SIGKILL the driver, and only it, once `count` trials have ended and another is under way."""
    wait_for(lambda: len(ended(folder)) >= count or process.poll() is not None, f"{count} trials never ended")
    assert process.poll() is None, process.communicate()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not writers(folder), "the trials of a killed driver live on")


def writers(folder):
    """Process ids that wrote to the ledger and are alive: the driver's and its actors'."""
    pids = {int(path.name.split("-")[-2]) for path in (folder / "ledger").glob("*.jsonl")}
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}


def check_whole(folder, *, search, baselines=1, confirm=0):
    trials = list(results.trials_of(folder).values())
    assert [t["status"] for t in trials] == ["done"] * len(trials), [(t["trial"], t["status"]) for t in trials]
    kinds = [t["kind"] for t in trials]
    assert (kinds.count("search"), kinds.count("baseline"), kinds.count("confirm")) == (search, baselines, confirm)
    keys = {(t["config_hash"], t["seed"]) for t in trials}
    assert len(keys) == len(trials)
    return trials


@pytest.mark.parametrize("strategy", ["tpe", "random", "tpe_asha", "hyperband", "pbt"])
def test_a_killed_driver_resumes_twice_and_the_study_is_whole(strategy, space, tmp_path):
    study = tmp_path / "study"
    kill_when(start("search", space, f"strategy={strategy}", "--out", study, cwd=tmp_path), study, 2)
    first = ended(study)
    kill_when(start("resume", study, cwd=tmp_path), study, len(first) + 2)
    second = ended(study)
    begun, known = results.trials_of(study), steps_of(study)
    interrupted = [t for t in begun.values() if t["status"] == "running"]
    finish("resume", study, cwd=tmp_path)
    trials = results.trials_of(study)
    assert {t["kind"] for t in trials.values()} == {"search", "baseline"}
    copies = [t for t in trials.values() if "derived.parent" in t]  # of pbt
    assert sum(t["kind"] == "search" for t in trials.values()) == TRIALS + len(copies)
    assert all(t["status"] in ("done", "stopped") for t in trials.values())
    assert len({(t["config_hash"], t["seed"]) for t in trials.values()}) == len(trials)
    for name, before in {**second, **first}.items():
        assert trials[name]["end_time"] == before["end_time"], "a finished trial ran again"
        assert trials[name]["starts"] == before["starts"]
    for before in interrupted:
        now = trials[before["trial"]]
        # the scheduler had decided, and the driver was killed before it wrote that down: no evaluation has come since
        evaluated = [len(steps.get(now["trial"], ())) for steps in (known, steps_of(study))]
        decided = strategy not in ("tpe", "random") and now["status"] == "stopped" and evaluated[0] == evaluated[1] > 0
        assert decided or now["starts"] >= 2, [
            {k: t[k] for k in ("trial", "status", "epoch", "starts")} for t in (before, now)
        ]
    out, _ = finish("resume", study, cwd=tmp_path)
    assert f"{TRIALS + len(copies)} search" in out
    assert results.trials_of(study) == trials
    if strategy == "hyperband":  # decides by scores alone, so that three processes stop what one stops
        whole = tmp_path / "whole"
        finish("search", space, f"strategy={strategy}", "--out", whole, cwd=tmp_path)
        assert ends_of(whole) == ends_of(study)
        assert {t["status"] for t in results.trials_of(whole).values()} == {"done", "stopped"}


def ends_of(folder):
    """How and when each configuration ended."""
    return {(t["config_hash"], t["trial"]): (t["status"], t["epoch"]) for t in results.trials_of(folder).values()}


def test_an_interrupted_trial_continues_from_its_own_checkpoint(space, tmp_path):
    study = tmp_path / "study"
    process = start("search", space, "trials=1", "train.epochs=1500", "--out", study, cwd=tmp_path)
    last = list((study / "checkpoints").glob("*/last.pt"))

    def under_way():
        last[:] = (study / "checkpoints").glob("*/last.pt")
        return len(last) == 2 or process.poll() is not None

    wait_for(under_way, "no checkpoint was written")
    time.sleep(0.5)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not writers(study), "the trials of a killed driver live on")
    reached = {t: max(s["epoch"] for s in steps) for t, steps in steps_of(study).items()}
    finish("resume", study, cwd=tmp_path)
    check_whole(study, search=1)
    for trial, steps in steps_of(study).items():
        epochs = [s["epoch"] for s in sorted(steps, key=lambda s: s["time"])]
        again = len(epochs) - len(set(epochs))
        # a kill between writing a row and its checkpoint repeats that row
        assert again <= 3, (trial, reached[trial], again)
        assert sorted(set(epochs)) == [*range(5, 1500, 5), 1500]
        seconds = [s["seconds"] for s in sorted(steps, key=lambda s: s["time"])]
        assert seconds == sorted(seconds), "the clock of a trial goes on where it stopped"
    assert not list((study / "checkpoints").glob("*/last.pt"))


def steps_of(folder):
    """Every evaluation record, unfolded, by trial."""
    found = {}
    for record in results.records(folder):
        if record["step"] and "metric.train_loss" in record and record["status"] == "running":
            found.setdefault(record["trial"], []).append(record)
    return found


def test_a_killed_trial_process_is_restarted_once_from_its_checkpoint(space, tmp_path):
    study = tmp_path / "study"
    process = start(
        "search", space, "trials=2", "train.epochs=1500", "resources.concurrent=1", "--out", study, cwd=tmp_path
    )
    wait_for(lambda: list(study.glob("checkpoints/*/last.pt")) or process.poll() is not None, "no trial began")
    (actor,) = writers(study) - {process.pid}
    os.kill(actor, signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, (out, err)
    trials = check_whole(study, search=2)
    assert len({path.name.split("-")[-2] for path in (study / "ledger").glob("*.jsonl")}) >= 3
    assert all(t["epoch"] == 1500 for t in trials)


def test_confirm_survives_a_kill_through_resume(space, tmp_path):
    study = tmp_path / "study"
    finish("search", space, "trials=2", "--out", study, cwd=tmp_path)
    kill_when(start("confirm", study, cwd=tmp_path), study, 4)
    finish("resume", study, cwd=tmp_path)
    check_whole(study, search=2, confirm=4)
    _, err = finish("confirm", study, cwd=tmp_path)
    check_whole(study, search=2, confirm=4)
    assert "/" not in err


def test_planned_runs_survive_a_kill_and_none_runs_twice(space, tmp_path):
    study = tmp_path / "study"
    finish("search", space, "trials=3", "train.epochs=20", "--out", study, cwd=tmp_path)
    finish("report", study, "--plan", cwd=tmp_path)
    out, _ = finish("extend", study, "--plan", study / "plan.yaml", cwd=tmp_path)  # the default and the best two
    assert "13 done (1 baseline, 3 search, 9 confirm)" in out
    plan = tmp_path / "rings.yaml"
    finish("report", study, "--plan", plan, cwd=tmp_path)
    wanted = {(r["name"], s) for r in yaml.safe_load(plan.read_text())["runs"] for s in r["seeds"]}
    assert {name.split()[0] for name, _ in wanted} >= {"ring", "inert", "ablation"}
    kill_when(start("extend", study, "--plan", plan, cwd=tmp_path), study, 13 + len(wanted) // 2)
    finish("extend", study, "--plan", plan, cwd=tmp_path)
    trials = results.trials_of(study)
    probes = [t for t in trials.values() if t["kind"] == "probe"]
    assert {(t["name"], t["seed"]) for t in probes} == wanted
    assert len({(t["config_hash"], t["seed"]) for t in probes}) == len(probes) == len(wanted)
    assert {t["status"] for t in trials.values()} == {"done"}
    assert all("metric.test_i2t_r1" in t for t in probes)
    out, _ = finish("report", study, "--plan", cwd=tmp_path)
    assert out.startswith("Nothing is missing.")
    finish("extend", study, "--plan", plan, cwd=tmp_path)
    assert results.trials_of(study) == trials
    finish("report", study, cwd=tmp_path)


def test_ctrl_c_stops_says_how_to_go_on_and_leaves_no_process(space, tmp_path):
    study = tmp_path / "study"
    process = start("search", space, "--out", study, cwd=tmp_path)
    wait_for(lambda: len(ended(study)) >= 1 or process.poll() is not None, "nothing ended")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"continue with `mmts-ray resume {study}`" in err
    assert "Traceback" not in err
    wait_for(lambda: not writers(study), "a trial process is left")
    finish("resume", study, cwd=tmp_path)
    check_whole(study, search=TRIALS)


def test_two_drivers_at_once_the_second_is_refused(space, tmp_path):
    study = tmp_path / "study"
    process = start("search", space, "trials=3", "--out", study, cwd=tmp_path)
    wait_for(lambda: list((study / "ledger").glob("*.jsonl")) or process.poll() is not None, "nothing began")
    _, err = finish("resume", study, cwd=tmp_path, status=2)
    assert "another mmts-ray process is driving this study" in err
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, (out, err)
    check_whole(study, search=3)
