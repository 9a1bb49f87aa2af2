"""`mmts-ray submit`: the driver's own exit status, and safe to run again, against a fake Jobs API."""

import json
import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import toy

from mmts_ray import folder, space_file, submit
from mmts_ray.cli import main

ADDRESS = "http://127.0.0.1:8265"


def space(path: Path, **changes) -> Path:
    text = {
        "study": "small",
        "objective": {"val_i2t_r1": "max"},
        "strategy": "random",
        "trials": 2,
        "fixed": {
            "data": {"name": "features", "path": str(path / "toy.npz")},
            "train": {"epochs": 2, "batch_size": 32},
        },
        "search": {"train.lr": {"loguniform": [1e-3, 1e-2]}},
    } | changes
    if not (path / "toy.npz").exists():
        toy.npz(path)
    (path / "space.yaml").write_text(json.dumps(text))
    return path / "space.yaml"


@pytest.fixture
def study(tmp_path):
    return space_file.load(space(tmp_path))


@dataclass
class Cluster:
    """A Jobs API in memory: each submitted job ends as `ends` says; `heads` are the calls that fail before it."""

    ends: list = field(default_factory=lambda: [("SUCCEEDED", 0)])
    jobs: dict = field(default_factory=dict)
    submitted: list = field(default_factory=list)
    lost_in_log: int = 0  # so many times the head dies while the log is followed
    forgets: bool = True  # a new head knows no job
    down: int = 0  # connections refused before a head answers
    log: str = "one\ntwo\n"

    def connect(self, address):
        assert address == ADDRESS
        if self.down:
            self.down -= 1
            raise ConnectionError("Failed to connect to Ray at address: x.")
        return self

    def list_jobs(self):
        return list(self.jobs.values())

    def submit_job(self, *, entrypoint, submission_id, runtime_env, metadata):
        if submission_id in self.jobs:
            raise RuntimeError(f"Request failed with status code 500: Job {submission_id} already exists")
        files = {p.name: p.read_text() for p in Path(runtime_env["working_dir"]).iterdir()}
        self.submitted.append((submission_id, entrypoint, files, runtime_env, metadata))
        self.add(submission_id, metadata)
        return submission_id

    def add(self, submission_id, metadata, status="RUNNING", code=None):
        self.jobs[submission_id] = SimpleNamespace(
            submission_id=submission_id, metadata=metadata, status=status, driver_exit_code=code, message="why\nmore"
        )

    async def tail_job_logs(self, job):
        if self.lost_in_log:
            self.lost_in_log -= 1
            yield self.log[:5]
            if self.forgets:
                self.jobs.clear()
            self.down = 3
            raise RuntimeError("WebSocket connection closed unexpectedly with close code 1006")
        for at in range(0, len(self.log), 3):
            yield self.log[at : at + 3]
        status, code = self.ends[0] if len(self.ends) == 1 else self.ends.pop(0)
        self.jobs[job].status, self.jobs[job].driver_exit_code = status, code

    def get_job_info(self, job):
        if job not in self.jobs:
            raise RuntimeError(f"Request failed with status code 404: Job {job} does not exist")
        return self.jobs[job]


def run(cluster, study, out="/shared/s", **more):
    waits = []
    status = submit.submit(study, out, address=ADDRESS, connect=cluster.connect, sleep=waits.append, **more)
    return status, waits


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (("SUCCEEDED", 0), 0),
        (("SUCCEEDED", None), 0),
        (("FAILED", 7), 7),
        (("FAILED", 1), 1),
        (("FAILED", 2), 2),
        (("FAILED", 137), 137),
        (("FAILED", -9), 137),
        (("FAILED", None), 1),
        (("FAILED", 0), 1),
        (("STOPPED", None), 130),
    ],
)
def test_the_exit_status_is_the_drivers(end, status, study, capsys):
    assert run(Cluster(ends=[end]), study)[0] == status
    out, err = capsys.readouterr()
    assert f"small-1: {end[0].lower()}, exit status {status}, study folder /shared/s" in out
    assert "one\ntwo\n" in err
    assert ("submit: why\n" in err) == (end == ("FAILED", None))


def test_what_is_submitted_is_the_resolved_study_and_a_search_that_resumes(study, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "t" * 64)
    cluster = Cluster()
    run(cluster, study, out="/shared/a b", allow_failures=3)
    ((name, entrypoint, files, env, metadata),) = cluster.submitted
    assert name == "small-1"
    assert shlex.split(entrypoint) == [
        *("mmts-ray", "search", "space.yaml", "--out", "/shared/a b", "--address", "auto"),
        *("--resume-if-exists", "--allow-failures", "3"),
    ]
    assert list(files) == ["space.yaml"]
    (tmp_path / "sent.yaml").write_text(files["space.yaml"])
    assert space_file.load(tmp_path / "sent.yaml") == study
    assert metadata == {"mmts_ray_out": "/shared/a b"}
    assert set(env) == {"working_dir", "env_vars"}
    assert "t" * 64 not in repr(cluster.submitted)


def test_a_running_job_is_followed_not_doubled(study, capsys):
    cluster = Cluster(ends=[("FAILED", 5)])
    cluster.add("small-4", {submit.OUT: "/shared/s"})
    cluster.add("other-1", {submit.OUT: "/shared/other"})
    assert run(cluster, study)[0] == 5
    assert cluster.submitted == []
    assert "small-4 is running this study" in capsys.readouterr().err


def test_an_ended_job_makes_room_for_the_next_number(study):
    cluster = Cluster()
    for number, status in ((1, "SUCCEEDED"), (2, "FAILED"), (10, "STOPPED")):
        cluster.add(f"small-{number}", {submit.OUT: "/shared/s"}, status)
    cluster.add("small-12", {submit.OUT: "/shared/elsewhere"})
    cluster.add("raysubmit_x", None)
    cluster.add(None, None)
    assert run(cluster, study)[0] == 0
    assert cluster.submitted[0][0] == "small-13"


def test_a_job_submitted_by_somebody_else_in_between_is_followed(study):
    cluster = Cluster(ends=[("FAILED", 9)])
    first = cluster.list_jobs

    def raced():
        cluster.list_jobs = first
        before = list(cluster.jobs.values())
        cluster.add("small-1", {submit.OUT: "/shared/s"})
        return before

    cluster.list_jobs = raced
    assert run(cluster, study)[0] == 9
    assert cluster.submitted == []


def test_a_lost_head_is_waited_for_and_the_study_submitted_again(study, capsys):
    cluster = Cluster(lost_in_log=1)
    status, waits = run(cluster, study)
    assert status == 0
    assert [s[0] for s in cluster.submitted] == ["small-1", "small-1"]  # a new head knows no numbers
    assert len(waits) == 4
    assert "waiting up to 30 minutes" in capsys.readouterr().err


def test_a_broken_tunnel_submits_nothing_and_repeats_no_line(study, capsys):
    cluster = Cluster(lost_in_log=2, forgets=False)
    assert run(cluster, study)[0] == 0
    assert len(cluster.submitted) == 1
    err = capsys.readouterr().err
    assert (err.count("one\n"), err.count("wo\n")) == (1, 1)


def test_heads_that_are_lost_again_and_again_need_a_person(study, capsys):
    cluster = Cluster(lost_in_log=100)
    assert run(cluster, study)[0] == 1
    assert len(cluster.submitted) == submit.RESUBMISSIONS + 1
    assert "look at the cluster" in capsys.readouterr().err


def test_no_cluster_to_begin_with_is_refused_at_once(study):
    with pytest.raises(ValueError, match=r"no cluster answers at http://127.0.0.1:8265 \(Failed to connect") as refused:
        run(Cluster(down=1), study)
    assert "\n" not in str(refused.value)


def test_a_head_that_stays_away_is_told_in_one_line(study):
    with pytest.raises(ValueError, match="what has been run is kept"):
        run(Cluster(lost_in_log=1, down=0), study, head_seconds=0)


def test_ctrl_c_leaves_the_job_and_says_how_to_go_on(study, capsys):
    cluster = Cluster()

    async def interrupted(job):
        raise KeyboardInterrupt
        yield ""

    cluster.tail_job_logs = interrupted
    assert run(cluster, study)[0] == 130
    err = capsys.readouterr().err
    assert "small-1 goes on" in err
    assert f"ray job stop --address {ADDRESS} small-1" in err


def test_not_waiting_returns_at_once(study):
    cluster = Cluster()
    assert run(cluster, study, wait=False)[0] == 0
    assert cluster.jobs["small-1"].status == "RUNNING"


def test_a_token_in_a_log_or_an_error_is_not_shown(study, monkeypatch, tmp_path, capsys):
    (tmp_path / "token").write_text("file-token-0123456789\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "env-token-0123456789")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    cluster = Cluster(log="RAY_AUTH_TOKEN=env-token-0123456789 and file-token-0123456789\n")
    cluster.tail_job_logs = None

    async def whole(job):
        yield cluster.log
        cluster.jobs[job].status = "SUCCEEDED"

    cluster.tail_job_logs = whole
    assert run(cluster, study)[0] == 0
    out, err = capsys.readouterr()
    assert "RAY_AUTH_TOKEN=*** and ***" in err
    assert "token-0123" not in out + err


def test_the_environment_does_not_overrule_the_address(study, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "http://elsewhere:1")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://elsewhere:2")
    cluster = Cluster()
    seen = []

    def connect(address):
        seen.append({k: os.environ.get(k) for k in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")})
        return cluster.connect(address)

    submit.submit(study, "/shared/s", address=ADDRESS, connect=connect)
    assert seen == [{"RAY_ADDRESS": None, "RAY_API_SERVER_ADDRESS": None}]
    assert os.environ["RAY_ADDRESS"] == "http://elsewhere:1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--address", "auto", "--out", "/s"], "--address: 'auto' is no dashboard"),
        (["--address", "ray://127.0.0.1:10001", "--out", "/s"], "is no dashboard; legal is http://HOST:PORT"),
        (["--address", "http://me:secret@h:8265", "--out", "/s"], "--address: it holds a name or password"),
        (["--out", "studies/x"], "--out: 'studies/x' is relative"),
        (["--out", "/s", "train.lr=nonsense"], "train.lr"),
    ],
)
def test_refusals_are_one_line_and_touch_no_cluster(words, said, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(submit, "_connect", pytest.fail)
    assert main(["submit", str(space(tmp_path)), *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
    assert "secret" not in err


def test_a_token_in_clear_text_is_warned_of(capsys):
    submit.check_address("http://127.0.0.1:8265")
    assert capsys.readouterr().err == ""
    submit.check_address("http://10.0.0.1:8265")
    assert "clear text" in capsys.readouterr().err


def test_resume_if_exists_takes_only_the_same_study(study, tmp_path):
    folder.create(study, tmp_path / "s", toy.frozen(), command="mmts-ray search")
    assert folder.is_study(tmp_path / "s")
    assert folder.same_study(study, tmp_path / "s") == study
    other = space_file.load(space(tmp_path, seed=5))
    with pytest.raises(ValueError, match="holds another study, its seed differs"):
        folder.same_study(other, tmp_path / "s")
    epochs = space_file.load(tmp_path / "space.yaml", {"train.epochs": 3, "seed": 0})
    with pytest.raises(ValueError, match=r"its fixed train\.epochs differs"):
        folder.same_study(epochs, tmp_path / "s")


def test_resume_if_exists_keeps_trials_that_extend_added(study, tmp_path):
    folder.create(study, tmp_path / "s", toy.frozen(), command="mmts-ray search")
    more = folder.extended(study, trials=3, space=None)
    folder.save(more, tmp_path / "s")
    assert folder.same_study(study, tmp_path / "s") == more
    with pytest.raises(ValueError, match="its trials differs"):
        folder.same_study(folder.extended(study, trials=9, space=None), tmp_path / "s")


@pytest.mark.parametrize("left", [[], ["meta.json"], ["meta.json", ".study.yaml.17"], [".meta.json.17"]])
def test_a_start_that_was_killed_is_started_again(left, study, tmp_path):
    (tmp_path / "s").mkdir()
    for name in left:
        (tmp_path / "s" / name).write_text("{")
    assert not folder.is_study(tmp_path / "s")
    folder.create(study, tmp_path / "s", toy.frozen(), command="mmts-ray search")
    assert folder.open_study(tmp_path / "s") == study


def test_other_peoples_files_are_still_refused(study, tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "meta.json").touch()
    (tmp_path / "s" / "thesis.tex").touch()
    with pytest.raises(ValueError, match="is not a study"):
        folder.refuse_existing(tmp_path / "s")
