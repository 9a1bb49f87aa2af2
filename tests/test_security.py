"""Opening a study runs nothing that is in it; servers bind to loopback; secrets stay out of files."""

import ast
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import toy

from mmts_ray import folder, results, space_file

ROOT = Path(__file__).parents[1]
CODE = sorted(
    [*(ROOT / "mmts_ray").rglob("*.py"), *(ROOT / "analysis").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
)
TOKEN = "0f1e2d3c" * 8
PICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "jsonpickle"}
# of a study's folder, as Ray Tune, torch and Optuna name them
TUNE_FILES = (
    "ray/1790000000/tuner.pkl", "ray/1790000000/trainable.pkl", "ray/1790000000/search_gen_state-2026.json",
    "ray/1790000000/searcher-state-2026.pkl", "ray/1790000000/experiment_state-2026.json",
    "ray/1790000000/TrialActor_1/params.pkl", "ray/1790000000/TrialActor_1/checkpoint_000000/checkpoint.pkl",
    "optuna.pkl", "sampler.pkl", "report/summary.pkl", "ledger/rows.pkl",
)  # fmt: skip


def unsafe(source: str) -> list[str]:
    """Calls and imports that can run what a file contains, and shells."""
    found = []
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            found += [f"{line}: import {a.name}" for a in node.names if a.name.split(".")[0] in PICKLERS]
        elif isinstance(node, ast.ImportFrom):
            modules = {(node.module or "").split(".")[0]} | {a.name for a in node.names}
            found += [f"{line}: from {node.module}" for m in modules & (PICKLERS | {"Unpickler"})]
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            given = {k.arg: ast.unparse(k.value) for k in node.keywords}
            last = name.rpartition(".")[2]
            if name.endswith("torch.load") and given.get("weights_only") != "True":
                found.append(f"{line}: {name} without weights_only=True")
            if "yaml" in name and last in ("load", "load_all", "full_load", "unsafe_load", "full_load_all"):
                found.append(f"{line}: {name}")
            if given.get("allow_pickle", "False") != "False":
                found.append(f"{line}: {name} with allow_pickle")
            if last in ("read_pickle", "to_pickle", "load_from_checkpoint") or name.endswith("Tuner.restore"):
                found.append(f"{line}: {name}")
            if (
                name in ("eval", "exec", "compile", "__import__", "os.system", "os.popen")
                or given.get("shell") == "True"
            ):
                found.append(f"{line}: {name} runs text")
        elif isinstance(node, ast.Attribute) and node.attr in (
            "Unpickler",
            "unsafe_load",
            "UnsafeLoader",
            "FullLoader",
        ):
            found.append(f"{line}: {node.attr}")
    return found


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_can_run_what_a_file_contains(path):
    assert unsafe(path.read_text(encoding="utf8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import cloudpickle as cp",
        "import ray.cloudpickle\nfrom ray import cloudpickle",
        "from pickle import loads",
        "from joblib import load",
        "torch.load(p)",
        "torch.load(p, weights_only=False)",
        "torch.load(p, weights_only=flag)",
        "yaml.load(t)",
        "yaml.load(t, Loader=yaml.SafeLoader)",
        "yaml.unsafe_load(t)",
        "yaml.full_load(t)",
        "np.load(p, allow_pickle=True)",
        "pd.read_pickle(p)",
        "tune.Tuner.restore(p, trainable=t)",
        "eval(t)",
        "exec(t)",
        "subprocess.run(t, shell=True)",
        "os.system(t)",
    ],
)
def test_a_planted_call_is_found(source):
    assert unsafe(source)


def test_what_is_safe_is_not_called_unsafe():
    assert not unsafe(
        "torch.load(p, weights_only=True)\nyaml.safe_load(t)\nnp.load(p)\nnp.load(p, allow_pickle=False)\n"
        "model.eval()\nre.compile(t)\nsubprocess.run([t])"
    )


class Bomb:
    """A pickle that leaves a mark when it is loaded."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return (os.mkdir, (str(self.mark),))


def plant(study_dir: Path, mark: Path, names=TUNE_FILES) -> None:
    for name in names:
        path = study_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(Bomb(mark)))


def test_the_bomb_works(tmp_path):
    plant(tmp_path, tmp_path / "mark", ["a.pkl"])
    pickle.loads((tmp_path / "a.pkl").read_bytes())
    assert (tmp_path / "mark").exists()


# every file that is opened, and every name that any unpickler looks up
WATCH = """
import json, sys
opened, looked_up = [], []
def hook(event, args):
    if event == "open":
        opened.append(str(args[0]))
    elif event == "pickle.find_class":
        looked_up.append(f"{args[0]}.{args[1]}")
sys.addaudithook(hook)
from mmts_ray.cli import main
status = main(sys.argv[2:])
with open(sys.argv[1], "w") as out:
    json.dump({"status": status, "opened": opened, "looked_up": looked_up}, out)
"""


@pytest.mark.parametrize("verb", ["status", "report", "collect"])
def test_reading_a_study_opens_no_pickle(verb, tmp_path):
    study_dir, mark, seen = tmp_path / "s", tmp_path / "mark", tmp_path / "seen.json"
    made_study(study_dir)
    plant(study_dir, mark)
    command = [sys.executable, "-c", WATCH, str(seen), verb, str(study_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=ROOT)
    assert seen.is_file(), done.stderr
    found = json.loads(seen.read_text())
    assert found["status"] == 0, done.stderr
    assert found["looked_up"] == []
    planted = {str(study_dir / name) for name in TUNE_FILES}
    assert not planted & set(found["opened"])
    assert not mark.exists()


def made_study(study_dir: Path) -> None:
    """A study as the platform writes it: three trials that are done."""
    frozen = toy.frozen()
    study = space_file.parse(
        {
            "study": "made",
            "trials": 3,
            "fixed": FIXED | {"data.path": "/unused.npz"},
            "search": {"train.lr": {"loguniform": [1e-3, 1e-1]}},
        }
    )
    folder.create(study, study_dir, frozen, command="mmts-ray search")
    ledger = results.Ledger(study_dir)
    for number in range(3):
        planned = study.trial_config({"train.lr": 0.003 * (number + 1)})
        begin = {"trial": f"t{number:04d}", "step": 0, "epoch": 0}
        ledger.append(
            begin
            | {"study": "made", "kind": "search", "config_hash": planned.hash, "seed": 0, "status": "running"}
            | {f"param.{k}": v for k, v in planned.flat().items()}
        )
        ledger.append(
            begin | {"step": 3, "epoch": 3, "status": "done", "seconds": 1.0, "metric.val_i2t_r1": 0.1 + number / 10}
        )
    ledger.close()


FIXED = {
    "data.name": "features",
    "model.dim": 6,
    "train.epochs": 3,
    "train.batch_size": 16,
}


@pytest.mark.ray
def test_resuming_and_extending_run_nothing_that_was_planted(tmp_path, local_ray):
    """`last.pt` is the one pickle-like file that a trial does open: it is refused, and only its trial fails."""
    from mmts_ray.cli import main
    from mmts_ray.trial.run import LAST, checkpoint_dir

    study_dir, mark = tmp_path / "s", tmp_path / "mark"
    npz = toy.npz(tmp_path)
    space = tmp_path / "space.yaml"
    space.write_text(
        json.dumps(
            {
                "study": "planted",
                "trials": 2,
                "fixed": FIXED | {"data.path": str(npz)},
                "search": {"train.lr": {"loguniform": [1e-3, 1e-1]}},
                "checkpoint_seconds": 0,
            }
        )
    )
    assert main(["search", str(space), "--out", str(study_dir), "--quiet"]) == 0
    # the second trial looks as if its driver had been killed
    for path in (study_dir / "ledger").glob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        kept = [row for row in rows if not (row["trial"] == "t0001" and row["status"] == "done")]
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    plant(study_dir, mark)
    plant(checkpoint_dir(study_dir, "t0001"), mark, [LAST])
    assert main(["resume", str(study_dir), "--quiet", "--allow-failures", "1"]) == 0
    assert not mark.exists()
    trials = results.trials_of(study_dir)
    assert trials["t0001"]["status"] == "failed"
    assert "weights_only" in trials["t0001"]["error"] or "Unpickl" in trials["t0001"]["error"]
    assert trials["t0000"]["status"] == "done"
    plant(study_dir, mark)
    assert main(["extend", str(study_dir), "--trials", "1", "--quiet", "--allow-failures", "1"]) == 0
    assert results.trials_of(study_dir)["t0002"]["status"] == "done"
    assert not mark.exists()
    assert not (study_dir / "ray").exists()


def test_a_features_file_that_is_a_pickle_is_refused(tmp_path):
    import numpy as np

    from mmts_ray.cli import main

    mark = tmp_path / "mark"
    np.savez(tmp_path / "x.npz", image=np.array([Bomb(mark)], dtype=object), text=np.array([Bomb(mark)], dtype=object))
    space = tmp_path / "space.yaml"
    space.write_text(
        json.dumps(
            {"study": "x", "trials": 0, "fixed": {"data.name": "features", "data.path": str(tmp_path / "x.npz")}}
        )
    )
    assert main(["train", str(space)]) == 2
    assert not mark.exists()


def test_a_study_file_with_a_yaml_tag_runs_nothing(tmp_path, capsys):
    from mmts_ray.cli import main

    mark = tmp_path / "mark"
    (tmp_path / "study.yaml").write_text(f"study: !!python/object/apply:os.mkdir [{mark}]\n")
    assert main(["resume", str(tmp_path)]) == 2
    assert main(["check", str(tmp_path / "study.yaml")]) == 2
    assert not mark.exists()


def test_no_server_of_ours_listens_to_the_world():
    for path in [*CODE, ROOT / "cluster.yaml", *(ROOT / "deploy").iterdir()]:
        assert "0.0.0.0" not in path.read_text(encoding="utf8"), path
    for path in CODE:
        for call in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "ray.init":
                given = {k.arg: ast.unparse(k.value) for k in call.keywords}
                assert given.get("include_dashboard") == "False" or given.get("dashboard_host") == "'127.0.0.1'", path


def test_a_token_in_the_environment_reaches_no_file(tmp_path, monkeypatch):
    for name in ("RAY_AUTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY"):
        monkeypatch.setenv(name, TOKEN)
    made_study(tmp_path / "s")
    from mmts_ray.cli import main

    assert main(["collect", str(tmp_path / "s")]) == 0
    assert main(["report", str(tmp_path / "s")]) == 0
    files = [path for path in (tmp_path / "s").rglob("*") if path.is_file()]
    assert len(files) > 4
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]


def test_no_verb_takes_a_token_on_the_command_line():
    for path in (ROOT / "mmts_ray").rglob("*.py"):
        taken = re.search(r"add_argument\([^)]*(token|password|secret|key)[\"']", path.read_text(), re.IGNORECASE)
        assert not taken, (path, taken)


def test_the_document_names_what_the_files_set():
    text = (ROOT / "docs" / "security.md").read_text()
    policies = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    worker, head = policies
    actions = json.dumps(worker)
    assert "ec2:" not in actions
    assert "iam:" not in actions
    assert {a for s in head["Statement"] for a in ([s["Action"]] if isinstance(s["Action"], str) else s["Action"])} >= {
        "ec2:RunInstances", "ec2:CreateTags", "ec2:TerminateInstances", "ec2:DescribeInstances", "iam:PassRole",
    }  # fmt: skip
    for said in ("RAY_AUTH_MODE=token", "--dashboard-host=127.0.0.1", "6379", "8265", "10001", "weights_only=True"):
        assert said in text
