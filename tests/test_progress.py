"""What a user sees of a running study: the live view in a terminal, plain lines elsewhere, and `status --watch`."""

import fcntl
import io
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest
import toy
import yaml

from mmts_ray import progress, results, space_file, status
from mmts_ray.plan import Planned

CONTENT = {
    "study": "toy",
    "trials": 4,
    "fixed": {
        "data.name": "features",
        "data.path": "toy.npz",
        "model.dim": 6,
        "eval.k": 3,
        "train": {"epochs": 40, "batch_size": 16, "eval_every": 10},
    },
    "search": {"train.lr": {"loguniform": [1e-3, 1e-1]}},
    "baseline": [{"name": "plain", "schedule.value": 0.1}],
}
CODES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\r")


class Terminal:
    """A program with a terminal of its own for its output and errors; what it showed is in `screen`."""

    def __init__(self, *words, cwd, columns=100):
        master, child = os.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        environment = {**os.environ, "MMTS_RAY_CACHE": str(cwd / "cache"), "OMP_NUM_THREADS": "1", "TERM": "xterm"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mmts_ray", *map(str, words)], cwd=cwd, env=environment, stdin=child, stdout=child,
            stderr=child, start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        os.close(child)
        self.master, self.raw = master, b""
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        while True:
            try:
                ready, _, _ = select.select([self.master], [], [], 0.2)
                if ready:
                    self.raw += os.read(self.master, 1 << 16)
            except OSError:  # the program has closed its end
                return

    @property
    def screen(self):
        return CODES.sub("", self.raw.decode("utf8", errors="replace"))

    def wait_for(self, text, seconds=240, beside=None):
        """Until a pattern has been shown; `beside` is a program without which it never will be."""
        deadline = time.monotonic() + seconds
        while not re.search(text, self.screen):
            assert beside is None or beside.process.poll() in (None, 0), beside.screen[-3000:]
            assert time.monotonic() < deadline, f"{text!r} never shown:\n{self.screen[-3000:]}"
            assert self.process.poll() is None or re.search(text, self.screen), self.screen[-3000:]
            time.sleep(0.1)

    def ended(self, seconds=240):
        self.process.wait(timeout=seconds)
        self.reader.join(timeout=5)
        return self.process.returncode


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_search_in_a_terminal_and_a_watcher_beside_it_show_the_same_view(tmp_path):
    toy.npz(tmp_path, images=240)
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(CONTENT, sort_keys=False))
    study = tmp_path / "s"
    search = Terminal("search", "space.yaml", "--out", "s", cwd=tmp_path)
    deadline = time.monotonic() + 240
    while not (study / status.NOTE).is_file():
        assert time.monotonic() < deadline
        assert search.process.poll() is None, search.screen
        time.sleep(0.1)
    watcher = Terminal("status", "s", "--watch", cwd=tmp_path)
    for shown in (
        r"best val_i2t_r1 0\.\d{4}  t000\d",
        r"train\.lr=",
        r"in use: \d of \d+ CPU",
        r"running [12]",
        r"\d/5",
    ):
        watcher.wait_for(shown, beside=search)
        search.wait_for(shown)
    assert search.ended() == 0, search.screen[-3000:]
    assert "5/5" in search.screen
    assert "done 5   stopped 0   infeasible 0   failed 0   running 0   waiting 0" in search.screen
    assert "Traceback" not in search.screen + watcher.screen
    assert not (study / status.NOTE).exists(), "the note of a driver that has ended"
    watcher.wait_for(r"done 5 .*waiting 0")
    os.killpg(watcher.process.pid, signal.SIGINT)
    assert watcher.ended(30) == 0
    trials = results.trials_of(study)
    assert {t["status"] for t in trials.values()} == {"done"}
    assert len(trials) == 5


def made_study(folder):
    study = space_file.parse(CONTENT)
    folder.mkdir()
    space = [{"path": "train.lr", "kind": "float", "low": 1e-3, "high": 0.1, "log": True}]
    results.write_meta(folder, {"study": "toy", "objective": {"val_i2t_r1": "max"}, "trials": 4, "space": space})
    return study


def planned(study, trial):
    return Planned(trial=trial, kind="search", name=None, config=study.trial_config({"train.lr": 0.01}))


def test_without_a_terminal_there_is_a_plain_line_per_event(tmp_path, capsys):
    study = made_study(tmp_path / "s")
    with progress.Trials(study, tmp_path / "s") as shown:
        shown.begin(planned=3, finished=2)
        shown.waiting("1 trial waits: 2 of 2 CPU are in use")
        shown.waiting("1 trial waits: 2 of 2 CPU are in use")
        shown.waiting("")
        shown.event("tensorboard: switched off: OSError: no space")
        shown.trial_ended(planned(study, "t0000"), status="done", metrics={"val_i2t_r1": 0.25}, seconds=1)
        shown.trial_ended(planned(study, "t0001"), status="failed", metrics={}, seconds=1)
    out, err = capsys.readouterr()
    assert out == ""
    first, waits, said, one, two = err.splitlines()
    assert first == "2 trials are finished, 3 to run"
    assert waits == "1 trial waits: 2 of 2 CPU are in use"
    assert said == "tensorboard: switched off: OSError: no space"
    assert one.startswith("[1/3] t0000: done val_i2t_r1 0.2500  best val_i2t_r1 0.2500 (t0000)")
    assert re.fullmatch(r"\[2/3\] t0001: failed   best val_i2t_r1 0.2500 \(t0000\)  \d+:\d\d left", two)
    with progress.Trials(study, tmp_path / "s", quiet=True) as shown:
        shown.begin(planned=1, finished=0)
        shown.waiting("x")
        shown.event("y")
        shown.trial_ended(planned(study, "t0000"), status="done", metrics={}, seconds=1)
    assert capsys.readouterr() == ("", "")


def rendered(now, columns):
    from rich.console import Console

    console = Console(width=columns, record=True, file=io.StringIO())
    console.print(status.view(now))
    return console.export_text()


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_the_view_names_states_best_resources_time_left_and_why_something_waits(columns, tmp_path):
    folder = tmp_path / "s"
    study = made_study(folder)
    ledger = results.Ledger(folder)
    for n, state in enumerate(["done", "done", "infeasible", "failed", "stopped", "running"]):
        start = {"trial": f"t{n:04d}", "kind": "search", "status": "running", "param.train.lr": 0.01 * (n + 1)}
        ledger.append(start)
        if state != "running":
            ledger.append({"trial": f"t{n:04d}", "status": state, "metric.val_i2t_r1": n / 10, "device_seconds": 36.0})
    with progress.Trials(study, folder, quiet=True) as shown:
        shown.begin(planned=10, finished=0)
        shown.resources({"CPU": 2.0, "GPU": 0.0}, {"CPU": 2.0, "GPU": 0.0, "memory": 1e9})
        shown.waiting("4 trials wait for 1 CPU each: 2 of 2 are in use")
        for n in range(5):
            shown.trial_ended(planned(study, f"t{n:04d}"), status="done", metrics={}, seconds=1)
        shown.note |= {"first_end": time.time() - 100, "last_end": time.time()}
        deadline = time.monotonic() + 60
        while ((now := status.read(folder))["driver"] or {}).get("first_end") != shown.note["first_end"]:
            assert time.monotonic() < deadline, "the note is not kept up to date"
            time.sleep(0.1)
        lines = " ".join(rendered(now, columns).split())
    assert "done 2 stopped 1 infeasible 1 failed 1 running 1 waiting 4" in lines
    assert "best val_i2t_r1 0.1000 t0001" in lines
    assert "train.lr=0.02" in lines
    assert "5/10" in lines
    assert now["seconds_left"] == pytest.approx(125, abs=5)  # 100 s for 4 trials, 5 are left
    assert re.search(r"2:0\d left", lines)
    assert "in use: 2 of 2 CPU" in lines
    assert "GPU" not in lines, "there is none"
    assert "4 trials wait for 1 CPU each: 2 of 2 are in use" in lines
    assert "4 trials wait for 1 CPU each" in status.text(now)
    assert status.read(folder)["driver"] is None, "a driver that has ended leaves no note"


def test_a_driver_that_went_silent_is_told_with_how_to_continue(tmp_path):
    folder = tmp_path / "s"
    made_study(folder)
    note = {"pid": 7, "host": "node", "time": time.time() - 120, "planned": 9, "ended": 3}
    (folder / status.NOTE).write_text(json.dumps(note))
    line = f"its driver (process 7 on node) has been silent for 2:0\\d; if it is gone, `mmts-ray resume {folder}`"
    assert re.search(line.replace("(", r"\(").replace(")", r"\)"), status.text(status.read(folder)))
    assert "silent" in rendered(status.read(folder), 200)
    (folder / status.NOTE).write_text('{"pid": 7, "ho')  # torn: as if there were none
    assert status.read(folder)["driver"] is None
    assert Path(folder / status.NOTE).exists()


def test_watching_gives_at_every_moment_what_a_fresh_read_gives(tmp_path):
    folder = tmp_path / "s"
    made_study(folder)
    watch, ledger = status.Watch(folder), results.Ledger(folder)
    for n in range(30):
        trial = f"t{n // 3:04d}"
        ledger.append([
            {"trial": trial, "kind": "search", "status": "running", "param.train.lr": 0.01},
            {"trial": trial, "step": 1, "status": "running", "metric.val_i2t_r1": 0.5},
            {"trial": trial, "step": 2, "status": "done", "metric.val_i2t_r1": n / 100, "device_seconds": 1.0},
        ][n % 3])  # fmt: skip
        watch.next_fold = 0.0
        assert watch.now() == status.read(folder)
