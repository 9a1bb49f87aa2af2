"""The command line as a user meets it: verbs, refusals, exit statuses."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import toy
import yaml

from mmts_ray import results
from mmts_ray.cli import main

ROOT = Path(__file__).parents[1]
DEMO = str(ROOT / "search_spaces" / "demo.yaml")


@pytest.fixture
def space(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MMTS_RAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    toy.npz(tmp_path)
    content = {
        "study": "toy",
        "trials": 3,
        "fixed": {
            "data.name": "features",
            "data.path": "toy.npz",
            "model.dim": 6,
            "eval.k": 3,
            "train": {"epochs": 2, "batch_size": 16},
        },
        "search": {"train.lr": {"loguniform": [1e-3, 1e-1]}},
        "baseline": [{"name": "plain", "schedule.value": 0.1}],
        "confirm": {"top": 1, "seeds": 3},
    }
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def refused(capsys, *words):
    """Exit 2 and one line on stderr; returns the line."""
    try:
        status = main([str(word) for word in words])
    except SystemExit as end:
        status = end.code
    out, err = capsys.readouterr()
    assert status == 2, (out, err)
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.startswith("mmts-ray: ")
    return err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chek"], "invalid choice: 'chek'"),
        (["check", "none.yaml"], "none.yaml: no such file"),
        (["check", DEMO, "train.learning_rate=1"], "train.learning_rate"),
        (["check", DEMO, "train.lr=5"], "train.lr: 5 is out of range"),
        (["check", DEMO, "loss.name=max_margin", "loss.r_mix=0.1"], "belongs to info_nce"),
        (["check", DEMO, "--unknown"], "unrecognized arguments: --unknown"),
        (["params", "infonce"], "did you mean info_nce?"),
        (["train", DEMO], "searches train.lr"),
        (["train", DEMO, "--baseline", "plan"], "legal are fixed temperature"),
        (["status", "."], "not a study folder"),
        (["report", "."], "not a study folder"),
        (["resume", "."], "not a study folder"),
        (["confirm", "nowhere"], "not a study folder"),
        (["collect", "nowhere"], "not a study folder"),
        (["extend", "nowhere", "--trials", "2"], "not a study folder"),
    ],
    ids=lambda x: " ".join(x[:2]) if isinstance(x, list) else "",
)
def test_refusals_are_one_line_and_exit_2(words, said, capsys):
    assert said in refused(capsys, *words)


def test_params_shows_every_declared_parameter_with_its_default(capsys):
    from mmts_ray.config import NAMED, SINGLE
    from mmts_ray.space import declared

    assert main(["params"]) == 0
    out = capsys.readouterr().out
    functions = [f for table, _ in NAMED.values() for f in table.values()] + list(SINGLE.values())
    for function in functions:
        for name in declared(function):
            assert f".{name}" in out
    assert main(["params", "info_nce", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {r["parameter"] for r in rows} >= {"loss.r_mix", "loss.angular_margin", "loss.filter_threshold"}
    assert main(["params", "loss", "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.count(" | ") for line in lines if line.startswith("| loss")} == {6}


def test_check_prints_the_resolved_study_and_its_cost(capsys):
    assert main(["check", DEMO, "trials=10"]) == 0
    out = capsys.readouterr().out
    assert "schedule.tau_min" in out
    assert "10 sampled + 4 baseline + 35 confirming trials" in out
    assert main(["check", DEMO, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cost"]["sampled_trials"] == 32


def test_train_prints_a_line_per_epoch_and_repeats_itself(space, capsys):
    assert main(["train", str(space), "--baseline", "plain", "--test", "--json"]) == 0
    first = capsys.readouterr().out
    rows = [json.loads(line) for line in first.splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2]
    assert "test_i2t_r1" in rows[-1]
    assert main(["train", str(space), "train.lr=0.001", "schedule.value=0.1", "--test", "--json"]) == 0
    assert capsys.readouterr().out == first
    assert main(["train", str(space), "--baseline", "plain", "train.epochs=1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("epoch 1")
    assert out.count("\n") == 1


def test_prepare_counts_what_is_there(space, capsys):
    assert main(["prepare", str(space)]) == 0
    assert capsys.readouterr().out.startswith("90 images, 90 captions")


@pytest.mark.ray
def test_a_study_from_search_to_report(space, local_ray, capsys, tmp_path):
    assert main(["search", str(space), "--out", "s"]) == 0
    out, err = capsys.readouterr()
    assert "4 done (1 baseline, 3 search)" in out
    assert "[4/4]" in err
    assert "left" in err
    assert "a study is there already" in refused(capsys, "search", space, "--out", "s")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    assert "is not a study" in refused(capsys, "search", space, "--out", "other")
    assert sorted(p.name for p in (tmp_path / "other").iterdir()) == ["file"]
    assert main(["resume", "s", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["extend", "s", "--trials", "2", "--quiet"]) == 0
    assert "6 done (1 baseline, 5 search)" in capsys.readouterr().out
    assert yaml.safe_load(Path("s/study.yaml").read_text())["trials"] == 5
    assert "legal is a whole number above 0" in refused(capsys, "extend", "s")
    wider = yaml.safe_load(space.read_text())
    wider["search"]["train.lr"] = {"loguniform": [1e-4, 1e-1]}
    Path("wider.yaml").write_text(yaml.safe_dump(wider))
    assert main(["extend", "s", "--trials", "1", "--space", "wider.yaml", "--quiet"]) == 0
    assert results.read_meta("s")["space"][0]["low"] == 1e-4
    wider["fixed"]["train"]["epochs"] = 3
    Path("wider.yaml").write_text(yaml.safe_dump(wider))
    capsys.readouterr()
    assert "its fixed differs" in refused(capsys, "extend", "s", "--space", "wider.yaml")
    assert main(["confirm", "s", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["status", "s", "--json"]) == 0
    now = json.loads(capsys.readouterr().out)
    assert now["kinds"] == {"baseline": 1, "search": 6, "confirm": 6, "control": 0, "probe": 0}
    assert main(["collect", "s"]) == 0
    assert Path(capsys.readouterr().out.strip()).is_file()
    assert main(["report", "s"]) == 0
    out = capsys.readouterr().out
    assert "test" in out
    assert "report: s/report/report.html" in out
    meta = results.read_meta("s")
    assert meta["data"]["train"] == 60
    assert meta["space"][0]["path"] == "train.lr"
    assert Path(yaml.safe_load(Path("s/study.yaml").read_text())["fixed"]["data.path"]).is_absolute()


@pytest.mark.ray
def test_failed_trials_exit_1_and_say_why(space, local_ray, capsys):
    words = ["search", str(space), "--out", "f", "eval.source=classes", "groups.name=classes", "--quiet"]
    made = toy.arrays()
    import numpy as np

    named = np.array(["train", "validation", "test"])[made["split"]]
    np.savez("toy.npz", image=made["image"], text=made["text"], image_index=made["image_index"], split=named)
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert "4 failed" in out
    assert err.count("\n") == 1
    assert "4 trials failed, 0 allowed" in err
    assert "class" in err


def test_help_is_quick_and_check_too():
    """Not a timing: the shortest of three runs must be far from the seconds that torch or Ray would cost."""
    for words, limit in ((["--help"], 1.5), (["check", DEMO], 3.0)):
        times = []
        for _ in range(3):
            began = time.monotonic()
            done = subprocess.run([sys.executable, "-m", "mmts_ray", *words], capture_output=True, timeout=60)
            times.append(time.monotonic() - began)
            assert done.returncode == 0
        assert min(times) < limit


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m mmts_ray params --markdown | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, env={**os.environ})
    assert done.stdout.startswith("| parameter")
    assert done.stderr == ""
