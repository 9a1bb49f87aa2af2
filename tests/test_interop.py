"""Sweeps of other programs become study folders, and studies theirs; the other program itself writes or reads."""

import csv
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import optuna
import pytest
import yaml
from ledger_maker import synthetic
from mmts_ray.analysis import report

from mmts_ray import results
from mmts_ray.cli import main

MAP = {
    "study": "elsewhere",
    "objective": {"acc": "max"},
    "search": {
        "lr": {"loguniform": [1.0e-4, 1.0]},
        "layers": {"int": [1, 4]},
        "kind": {"choice": ["a", "b"]},
    },
    "seed": "seed",
}


def run(*words):
    return main([str(word) for word in words])


def refused(capsys, *words):
    capsys.readouterr()
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err


def written(path, content):
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def check_opens(folder, capsys):
    """`status` and `report` open an imported folder; a panel that lacks something says what."""
    capsys.readouterr()
    assert run("status", folder) == 0
    twin = json.loads(report.write(folder).with_name("report.json").read_text())
    for name, panel in twin["panels"].items():
        assert panel["title"].strip(), name
    return twin


def loaded(path):
    storage = (
        optuna.storages.RDBStorage(f"sqlite:///{path}")
        if path.suffix == ".db"
        else optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    )
    (summary,) = optuna.get_all_study_summaries(storage)
    return optuna.load_study(study_name=summary.study_name, storage=storage)


@pytest.mark.parametrize("suffix", [".journal", ".db"])
def test_a_study_goes_to_optuna_and_back_and_says_the_same(suffix, tmp_path, capsys):
    source = synthetic(tmp_path / "s", trials=12, confirm=2, top=1, epochs=3)
    out = tmp_path / f"out{suffix}"
    assert run("export", source, out, "--to", "optuna") == 0
    study = loaded(out)
    trials = results.trials_of(source)
    assert len(study.trials) == len(trials)
    assert study.metric_names == ["val_i2t_r1"]
    best = max(t["metric.val_i2t_r1"] for t in trials.values() if t["status"] == "done")
    assert study.best_value == best
    assert len(study.trials[1].intermediate_values) == 3
    back = tmp_path / "back"
    assert run("import", out, "--out", back) == 0
    again = results.trials_of(back)
    assert set(again) == set(trials)
    for name, row in trials.items():
        for key in ("kind", "name", "seed", "status", "config_hash", "metric.val_i2t_r1", "metric.test_i2t_r1"):
            assert again[name].get(key) == row.get(key), (name, key)
        assert {k: v for k, v in again[name].items() if k.startswith("param.")} == {
            k: v for k, v in row.items() if k.startswith("param.")
        }
    kept = ("path", "kind", "low", "high", "log")
    spaces = [results.read_meta(folder)["space"] for folder in (source, back)]
    assert [[e[k] for k in kept] for e in spaces[0]] == [[e[k] for k in kept] for e in spaces[1]]
    verdict = check_opens(back, capsys)["panels"]["verdict"]
    original = json.loads(report.write(source).with_name("report.json").read_text())["panels"]["verdict"]
    assert verdict["title"] == original["title"]
    assert "is there already" in refused(capsys, "export", source, out, "--to", "optuna")
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")], "nothing half-written is left"


def test_a_study_that_optuna_made_itself_is_read_with_every_state(tmp_path, capsys):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = tmp_path / "o.db"
    study = optuna.create_study(storage=f"sqlite:///{path}", study_name="theirs", direction="minimize")

    def objective(trial):
        x, kind = trial.suggest_float("x", 0, 1), trial.suggest_categorical("kind", ["a", "b"])
        if kind == "b":
            trial.suggest_int("only_b", 1, 8, log=True)
        trial.report(x, 1)
        if trial.number == 3:
            raise optuna.TrialPruned
        if trial.number == 4:
            raise RuntimeError("bad")
        return x * x

    study.optimize(objective, n_trials=15, catch=RuntimeError)
    study.ask().suggest_float("x", 0, 1)
    study.ask()  # it has no parameter yet, and so is no trial of a sweep
    assert run("import", path, "--out", tmp_path / "s") == 0
    trials = list(results.trials_of(tmp_path / "s").values())
    assert [t["status"] for t in trials] == ["done"] * 3 + ["stopped", "failed"] + ["done"] * 10 + ["running"]
    assert [t["metric.value"] for t in trials if t["status"] == "done"] == [
        t.value for t in study.trials if t.state.name == "COMPLETE"
    ]
    meta = results.read_meta(tmp_path / "s")
    assert meta["objective"] == {"value": "min"}
    assert {e["path"]: e["kind"] for e in meta["space"]} == {"x": "float", "kind": "choice", "only_b": "int"}
    assert any("no seeds" in note for note in meta["imported"]["notes"])
    assert any("1 trials without a parameter" in note for note in meta["imported"]["notes"])
    twin = check_opens(tmp_path / "s", capsys)
    assert "No verdict" in twin["panels"]["verdict"]["title"]
    told = json.dumps(twin)
    assert "mmts-ray import SWEEP" in told, "more trials come from the program that made these"
    assert not re.search(r"mmts-ray (search|confirm|extend|resume)", told)
    optuna.create_study(storage=f"sqlite:///{path}", study_name="second")
    assert "--study is missing; it holds theirs, second" in refused(capsys, "import", path, "--out", tmp_path / "t")
    assert "--study third" in refused(capsys, "import", path, "--out", tmp_path / "t", "--study", "third")
    assert run("import", path, "--out", tmp_path / "t", "--study", "theirs") == 0


@pytest.mark.ray
@pytest.mark.slow
def test_a_real_ray_tune_folder_is_read_without_its_pickles(local_ray, tmp_path, capsys, monkeypatch):
    from ray import tune

    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "0")

    def trainable(config):
        for epoch in range(3):
            if config["layers"] == 4 and epoch == 1:
                raise RuntimeError("four layers do not fit")
            tune.report({"acc": config["lr"] * (epoch + 1), "loss": 1.0 / (epoch + 1)})

    space = {"lr": tune.loguniform(1e-4, 1.0), "layers": tune.grid_search([1, 2, 4]), "kind": "a", "seed": 7}
    tuner = tune.Tuner(
        trainable, param_space=space, run_config=tune.RunConfig(name="r", storage_path=str(tmp_path), verbose=0)
    )
    tuner.fit()
    for pickled in tmp_path.rglob("*.pkl"):
        pickled.write_bytes(b"cos\nsystem\n(S'touch /tmp/never'\ntR.")  # would run a command if anybody opened it
    mapping = written(tmp_path / "map.yaml", MAP)
    assert run("import", tmp_path / "r", "--out", tmp_path / "s", "--map", mapping) == 0
    trials = list(results.trials_of(tmp_path / "s").values())
    assert sorted((t["param.layers"], t["status"]) for t in trials) == [(1, "done"), (2, "done"), (4, "failed")]
    for trial in trials:
        assert trial["seed"] == 7
        if trial["status"] == "done":
            assert trial["metric.acc"] == pytest.approx(3 * trial["param.lr"])
            assert trial["metric.loss"] == pytest.approx(1 / 3)
            assert not [k for k in trial if k in ("metric.pid", "metric.training_iteration")]
        else:
            assert "four layers do not fit" in trial["error"]
    assert len(results.fold(results.records(tmp_path / "s"))[1]) == 7
    check_opens(tmp_path / "s", capsys)


TABLE = """lr,layers,kind,acc,extra,seed,state,who
0.001,1,a,0.5,3,0,ok,default
0.01,2,b,0.75,4,0,ok,
0.1,3,a,,5,1,crashed,
"""


def test_a_table_is_read_by_its_map(tmp_path, capsys):
    (tmp_path / "t.csv").write_text(TABLE, encoding="utf-8-sig")
    status = {"column": "state", "done": "ok", "failed": ["crashed", "lost"]}
    mapping = written(tmp_path / "map.yaml", {**MAP, "status": status, "name": "who", "baseline": "default"})
    assert run("import", tmp_path / "t.csv", "--out", tmp_path / "s", "--map", mapping) == 0
    first, second, third = results.trials_of(tmp_path / "s").values()
    assert (first["kind"], first["name"], first["metric.acc"], first["seed"]) == ("baseline", "default", 0.5, 0)
    assert (second["kind"], second["status"], second["metric.extra"]) == ("search", "done", 4.0)
    assert (third["status"], third["param.kind"], third["seed"]) == ("failed", "a", 1)
    assert results.read_meta(tmp_path / "s")["baselines"] == ["default"]
    check_opens(tmp_path / "s", capsys)


def test_what_cannot_be_read_is_refused_in_one_line_and_leaves_nothing(tmp_path, capsys):
    (tmp_path / "t.csv").write_text(TABLE)
    out = tmp_path / "s"

    def says(expected, source="t.csv", **changes):
        mapping = written(tmp_path / "map.yaml", {k: v for k, v in {**MAP, **changes}.items() if v is not None})
        err = refused(capsys, "import", tmp_path / source, "--out", out, "--map", mapping)
        assert expected in err, err
        assert not out.exists()

    says("no such file", source="none.csv")
    says("objective: {metric: max or min}", objective=None)
    says("no column 'accuracy'", objective={"accuracy": "max"})
    says("search: needs the searched parameters", search=None)
    says("lr: {'lognormal': [0, 1]}; legal are", search={"lr": {"lognormal": [0, 1]}})
    says("legal are {uniform", search={"lr": {"loguniform": [0, 1]}})
    says("no column 'layer' (did you mean layers?)", search={"layer": {"int": [1, 4]}})
    says("unknown key", seeds="seed")
    says("t.csv:4: state is 'crashed'; the map knows ok", status={"column": "state", "done": "ok"})
    says("status: needs column", status={"done": "ok"})
    (tmp_path / "empty").mkdir()
    says("no trial folder with a result.json", source="empty")
    (tmp_path / "odd.bin").write_bytes(b"\x80\x04K\x01.")
    says("legal are a Ray Tune results folder", source="odd.bin")
    (tmp_path / "torn.db").write_bytes(b"SQLite format 3\x00 and no more")
    says("Optuna cannot read it", source="torn.db")
    assert "needs --map" in refused(capsys, "import", tmp_path / "t.csv", "--out", out)
    out.mkdir()
    assert "is there already" in refused(
        capsys, "import", tmp_path / "t.csv", "--out", out, "--map", written(tmp_path / "map.yaml", MAP)
    )
    assert list(out.iterdir()) == []


def test_values_outside_the_declared_range_are_told(tmp_path, capsys):
    (tmp_path / "t.csv").write_text(TABLE)
    mapping = written(tmp_path / "map.yaml", {**MAP, "search": {"lr": {"loguniform": [0.005, 1]}}})
    assert run("import", tmp_path / "t.csv", "--out", tmp_path / "s", "--map", mapping) == 0
    assert "lr: outside what the map declares in 1 trials, t0000 first" in capsys.readouterr().out


def test_deepcave_gets_a_space_and_a_table_in_its_words(tmp_path):
    source = synthetic(tmp_path / "s", trials=12, confirm=2, top=1)
    meta = results.read_meta(source)
    mixed = {"path": "groups.k", "kind": "choice", "values": [2, "b", True], "default": 2, "when": {}}
    results.write_meta(source, {**{k: v for k, v in meta.items() if k != "schema"}, "space": [*meta["space"], mixed]})
    assert run("export", source, tmp_path / "dc", "--to", "deepcave") == 0
    space = list(csv.DictReader((tmp_path / "dc" / "configspace.csv").open()))
    assert [(row["name"], row["type"], row["log"]) for row in space[:2]] == [
        ("train.lr", "float", "True"),
        ("schedule.tau", "float", "True"),
    ]
    assert [space[-1][f"item_{i}"] for i in range(3)] == ["k=2", 'k="b"', "k=true"]
    table = list(csv.DictReader((tmp_path / "dc" / "trials.csv").open()))
    trials = results.trials_of(source)
    assert [row["trial"] for row in table] == list(trials)
    (metric,) = [column for column in table[0] if column.startswith("metric:")]
    for row, trial in zip(table, trials.values(), strict=True):
        assert row["status"] == {"done": "success", "infeasible": "failed"}[trial["status"]]
        assert float(row["train.lr"]) == trial["param.train.lr"]
        assert (float(row[metric]) if row[metric] else None) == trial.get("metric.val_i2t_r1")
        assert int(row["seed"]) == trial["seed"]


READER = """
import sys
from deepcave.runs.converters.dataframe import DataFrameRun
run = DataFrameRun.from_path(sys.argv[1])
print(len(run.history), len(run.configspace), [o.name for o in run.get_objectives()])
"""


def test_deepcave_itself_reads_the_export(tmp_path):
    python = os.environ.get("DEEPCAVE_PYTHON", "")
    if not shutil.which(python):
        pytest.skip("DeepCAVE 1.4 needs Python below 3.11: name one that has it in DEEPCAVE_PYTHON")
    source = synthetic(tmp_path / "s", trials=12, confirm=2, top=1)
    assert run("export", source, tmp_path / "dc", "--to", "deepcave") == 0
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [python, "-c", READER, str(Path(tmp_path / "dc"))],
        capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == f"{len(results.trials_of(source))} 6 ['val_i2t_r1', 'Time']"
