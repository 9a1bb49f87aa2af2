"""TensorBoard, MLflow and Weights & Biases show what the ledger holds, fail no trial, and keep no token."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmts_ray import loggers, results
from mmts_ray.study import to_dict

ROOT = Path(__file__).parents[1]
SPACE = [{"path": "train.lr", "kind": "float", "low": 1e-3, "high": 0.1, "log": True}]
TOKEN = "t0ken" * 8
NAMES = tuple(loggers.LOGGERS)


@pytest.fixture(autouse=True)
def tokens_at_hand(monkeypatch):
    """Every test runs with tokens in the environment, none of which may be found again."""
    for name in ("WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, TOKEN)
    for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def study(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    results.write_meta(folder, {"study": "toy", "space": SPACE})
    return folder


def record_start(ledger, trial, **more):
    extra = {"param.train.lr": 0.01, "param.loss.name": "siglip", "param.loss.filter_threshold": None}
    ledger.append({"trial": trial, "kind": "search", "seed": 3, "status": "running", **extra, **more})


def record_steps(ledger, trial, steps):
    for step in steps:
        ledger.append({"trial": trial, "step": step, "epoch": step, "status": "running", "metric.val_r1": step / 10})


def record_end(ledger, trial, step, status="done", **more):
    ledger.append({"trial": trial, "step": step, "status": status, "metric.val_r1": step / 10, **more})


def feed(name, study):
    """One driver's life of one logger; returns what it said."""
    pytest.importorskip(loggers.LOGGERS[name][0], reason=f"{name} is not installed")
    said = []
    with loggers.Loggers([name], study, study="toy", said=said.append):
        pass
    return said


def curves(name, study):
    """trial -> (curve of val_r1 as (step, value), status), read back with the logger's own code."""
    return {"tensorboard": from_tensorboard, "mlflow": from_mlflow, "wandb": from_wandb}[name](study)


def from_tensorboard(study):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard")
    plugin = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2", reason="no tensorboard")
    found = {}
    for folder in sorted(p for p in (study / "loggers" / "tensorboard").iterdir() if p.is_dir()):
        read = events.EventAccumulator(str(folder))
        read.Reload()
        curve = [(e.step, round(e.value, 6)) for e in read.Scalars("val_r1")]
        content = read.summary_metadata.get("_hparams_/session_start_info")
        status = None
        if content:
            hparams = plugin.HParamsPluginData.FromString(content.plugin_data.content).session_start_info.hparams
            status = hparams["status"].string_value
            assert hparams["train.lr"].number_value == 0.01
            assert "loss.name" not in hparams, "only what is searched"
        found[folder.name] = (curve, status)
    return found


def from_mlflow(study):
    mlflow = pytest.importorskip("mlflow", reason="no mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{study}/loggers/mlflow/mlflow.db")
    (experiment,) = [e for e in client.search_experiments() if e.name == "toy"]
    found = {}
    for run in client.search_runs([experiment.experiment_id]):
        history = client.get_metric_history(run.info.run_id, "val_r1")
        assert run.data.tags["trial"] not in found, "one run a trial"
        assert run.data.params["train.lr"] == "0.01"
        found[run.data.tags["trial"]] = (sorted((m.step, m.value) for m in history), run.data.tags.get("status"))
    return found


def from_wandb(study):
    protocol = pytest.importorskip("wandb.proto.wandb_internal_pb2", reason="no wandb")
    found = {}
    for path in sorted((study / "loggers" / "wandb").rglob("*.wandb")):
        raw, place = path.read_bytes(), 7
        assert raw.startswith(b":W&B")
        assert len(raw) < 32768, "one block of the file's format"
        curve, status, trial = [], None, path.name.removeprefix("run-").rpartition("-")[0]
        while place < len(raw):  # checksum (4 bytes), length (2), kind (1), a protocol buffer of wandb's own
            length = int.from_bytes(raw[place + 4 : place + 6], "little")
            record = protocol.Record.FromString(raw[place + 7 : place + 7 + length])
            place += 7 + length
            items = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            if "val_r1" in items:
                curve.append((items["_step"], items["val_r1"]))
            for item in record.summary.update:
                if (".".join(item.nested_key) or item.key) == "status":
                    status = json.loads(item.value_json)
        assert trial not in found, "one run a trial"
        found[trial] = (curve, status)
    return found


def no_token_in(folder):
    for path in folder.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("name", NAMES)
def test_a_logger_shows_what_the_ledger_holds(name, study):
    driver, actor = results.Ledger(study), results.Ledger(study)
    actor.path = actor.path.with_name("a-" + actor.path.name)  # read before the driver's file, which has the starts
    record_start(driver, "t0000", name="plain", kind="baseline")
    record_steps(actor, "t0000", [1, 2])
    record_end(actor, "t0000", 3)
    record_start(driver, "t0001")
    actor.append({"trial": "t0001", "step": 1, "status": "running", "metric.val_r1": 0.1, "metric.bad": float("nan")})
    record_end(driver, "t0001", 2, "stopped")
    record_start(driver, "t0002", status="waiting")  # it has not begun: nothing to show
    assert feed(name, study) == []
    shown = {
        trial: ([(s, round(v, 6)) for s, v in curve], status) for trial, (curve, status) in curves(name, study).items()
    }
    expected = {"t0000": [(1, 0.1), (2, 0.2), (3, 0.3)], "t0001": [(1, 0.1), (2, 0.2)]}
    assert {
        trial: [(step, round(value, 6)) for step, value in curve] for trial, (curve, _) in shown.items()
    } == expected
    assert {t: s for t, (_, s) in shown.items()} == {"t0000": "done", "t0001": "stopped"}
    no_token_in(study)


@pytest.mark.parametrize("name", NAMES)
def test_after_a_kill_every_trial_is_shown_once_and_what_is_complete_is_not_written_again(name, study):
    pytest.importorskip(loggers.LOGGERS[name][0], reason=f"{name} is not installed")
    ledger = results.Ledger(study)
    record_start(ledger, "t0000")
    record_end(ledger, "t0000", 2)
    record_start(ledger, "t0001")
    record_steps(ledger, "t0001", [1])
    script = (  # a driver that is gone before it could close anything
        "import os, sys, pathlib\nfrom mmts_ray import loggers\n"
        f"feed = loggers.Feed({name!r}, pathlib.Path(sys.argv[1]), study='toy', said=print)\n"
        "feed.folder.mkdir(parents=True)\nsink = loggers.LOGGERS[feed.name][1](feed.folder, 'toy')\n"
        "feed._feed(sink, ['train.lr'])\nos._exit(9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(study)], cwd=ROOT, timeout=240, check=False)
    assert done.returncode == 9
    before = {p: p.stat().st_mtime_ns for p in (study / "loggers").rglob("*t0000*") if p.is_file()}
    record_steps(ledger, "t0001", [1, 2])  # from its checkpoint on
    record_end(ledger, "t0001", 3)
    assert feed(name, study) == []
    shown = curves(name, study)
    assert set(shown) == {"t0000", "t0001"}
    assert [status for _, status in shown.values()] == ["done", "done"]
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert sorted((study / "loggers" / name / loggers.LOGGED).read_text().split()) == ["t0000", "t0001"]
    assert feed(name, study) == []
    assert curves(name, study) == shown


@pytest.mark.parametrize("name", NAMES)
def test_a_logger_that_cannot_write_says_so_in_one_line_and_raises_nothing(name, study):
    pytest.importorskip(loggers.LOGGERS[name][0], reason=f"{name} is not installed")
    (study / "loggers").write_text("in the way")
    record_start(results.Ledger(study), "t0000")
    (line,) = feed(name, study)
    assert line.startswith(f"{name}: switched off: ")
    assert "\n" not in line


def test_a_login_in_an_address_is_not_repeated():
    text = "cannot reach https://me:secret@mlflow.example/api (401)"
    assert loggers.without_login(text) == "cannot reach https://mlflow.example/api (401)"


def test_a_package_that_is_missing_is_refused_with_the_extra_that_brings_it():
    code = (
        "from mmts_ray import loggers\n"
        "for name in loggers.LOGGERS:\n"
        "    try:\n        loggers.missing([name])\n"
        "    except ValueError as problem:\n        print(problem)\n"
    )
    # -S: no installed package at all
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True,
        env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == len(NAMES)
    for name, line in zip(NAMES, lines, strict=True):
        assert f"pip install 'mmts-ray[{name}]'" in line
        assert f"{name} = [" in (ROOT / "pyproject.toml").read_text(encoding="utf8")


@pytest.mark.ray
@pytest.mark.slow
def test_a_search_feeds_its_loggers_and_one_that_fails_costs_no_trial(local_ray, tmp_path):
    from test_search import SPACE as TOY
    from test_search import check_ledger, run

    from mmts_ray import space_file

    folder = tmp_path / "s"
    (folder / "loggers").mkdir(parents=True)
    (folder / "loggers" / "wandb").write_text("in the way")
    meta = {"study": "toy", "space": SPACE}
    results.write_meta(folder, meta)
    study = space_file.parse({**TOY, "trials": 3, "loggers": ["tensorboard", "wandb"]})
    assert space_file.parse(to_dict(study)).loggers == ("tensorboard", "wandb")
    heard = run(study, folder)
    trials = check_ledger(folder)
    assert len(heard.ended) == len(trials) == 5
    assert {t["status"] for t in trials} == {"done"}
    (said,) = heard.said
    assert said.startswith("wandb: switched off: ")
    logged = (folder / "loggers" / "tensorboard" / loggers.LOGGED).read_text().split()
    assert sorted(logged) == sorted(t["trial"] for t in trials)
    assert all(list((folder / "loggers" / "tensorboard" / trial).glob("*tfevents*")) for trial in logged)
    no_token_in(folder)
