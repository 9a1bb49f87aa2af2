"""The spot watcher against a metadata server on loopback, and Ray's drain on a node that a test started."""

import contextlib
import json
import secrets
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import own_ray
import pytest
import toy

from mmts_ray import results, spot

ACTION = "/latest/meta-data/spot/instance-action"


class Metadata:
    """Answers from a list, the last one for ever: (status, body), or None for a connection that is cut."""

    def __init__(self, answers, *, valid_for=10**9):
        self.answers, self.valid_for = list(answers), valid_for
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.tokens = 0
        self.uses = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self):
                outer.asked.append(("PUT", self.path, dict(self.headers)))
                if self.path != "/latest/api/token" or "X-aws-ec2-metadata-token-ttl-seconds" not in self.headers:
                    return self.answer(400, "")
                outer.tokens, outer.uses = outer.tokens + 1, 0
                self.answer(200, f"token-{outer.tokens}")

            def do_GET(self):
                outer.asked.append(("GET", self.path, dict(self.headers)))
                if self.path == ACTION:
                    outer.uses += 1
                    given = self.headers.get("X-aws-ec2-metadata-token")
                    if given != f"token-{outer.tokens}" or outer.uses > outer.valid_for:
                        return self.answer(401, "")
                elif (
                    self.path != "/computeMetadata/v1/instance/preempted" or self.headers["Metadata-Flavor"] != "Google"
                ):
                    return self.answer(403, "")
                answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                if answer is None:
                    return self.connection.close()
                self.answer(*answer)

            def answer(self, status, body):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def gets(self):
        return [path for method, path, _ in self.asked if method == "GET"]


class Enough(Exception):
    """The test has seen enough of an endless watch."""


def sleeper(times):
    left = [times]

    def sleep(seconds):
        left[0] -= 1
        if left[0] < 0:
            raise Enough

    return sleep


def notice_in(seconds, action="terminate"):
    end = datetime.now(UTC) + timedelta(seconds=seconds)
    return (200, json.dumps({"action": action, "time": end.strftime("%Y-%m-%dT%H:%M:%SZ")}))


def test_aws_without_a_notice_is_none_and_one_token_serves_many_polls():
    with Metadata([(404, "")]) as server:
        source = spot.Aws(server.url)
        assert [source.notice() for _ in range(5)] == [None] * 5
    assert server.tokens == 1
    assert server.gets() == [ACTION] * 5


def test_aws_notice_gives_the_seconds_that_are_left():
    with Metadata([notice_in(118)]) as server:
        notice = spot.Aws(server.url).notice()
    assert notice.reason == "EC2 spot notice: terminate"
    assert 115 < notice.seconds <= 118


@pytest.mark.parametrize("body", ['{"action": "stop"}', '{"action": "stop", "time": "soon"}', "[]", '"x"'])
def test_a_notice_without_a_readable_time_is_still_a_notice(body):
    with Metadata([(200, body)]) as server:
        assert spot.Aws(server.url).notice().seconds == 120


def test_a_notice_of_the_past_has_no_seconds_left():
    with Metadata([notice_in(-30)]) as server:
        assert spot.Aws(server.url).notice().seconds == 0


def test_an_expired_token_is_renewed_in_the_same_poll():
    with Metadata([(404, "")], valid_for=2) as server:
        source = spot.Aws(server.url)
        assert [source.notice() for _ in range(5)] == [None] * 5
    assert server.tokens == 3  # 2 polls each


def test_a_server_that_refuses_every_token_is_a_problem_not_a_notice():
    with Metadata([(404, "")], valid_for=0) as server, pytest.raises(OSError, match="401"):
        spot.Aws(server.url).notice()
    assert server.tokens == 2  # renewed once, not for ever


def test_gcp_says_true_or_false():
    with Metadata([(200, "FALSE"), (200, "TRUE\n"), (200, "<html>")]) as server:
        source = spot.Gcp(server.url)
        assert source.notice() is None
        assert source.notice() == spot.Notice("Compute Engine preemption", 30.0)
        with pytest.raises(ValueError, match="neither TRUE nor FALSE"):
            source.notice()
    assert server.asked[0][2]["Metadata-Flavor"] == "Google"


def test_a_proxy_of_the_environment_is_not_used(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Metadata([(404, "")]) as server:
        assert spot.Aws(server.url).notice() is None


@pytest.mark.parametrize(
    ("source", "before", "notice"),
    [
        (spot.Aws, [(404, ""), (500, ""), None, (200, "{broken"), (404, "")], notice_in(100)),
        (spot.Gcp, [(200, "FALSE"), (503, ""), None, (200, "?"), (200, "FALSE")], (200, "TRUE")),
    ],
)
def test_server_errors_are_lived_through_and_the_node_is_drained_once(source, before, notice, capsys):
    drained = []
    with Metadata([*before, notice]) as server:
        found = spot.watch(source(server.url), drained.append, poll_seconds=1, sleep=sleeper(50))
    assert drained == [found]
    assert len(server.gets()) == len(before) + 1
    said = capsys.readouterr().err.splitlines()
    assert sum("answers again" in line for line in said) == 1


def test_no_notice_no_drain_and_nothing_is_said(capsys):
    with Metadata([(404, "")]) as server, pytest.raises(Enough):
        spot.watch(spot.Aws(server.url), pytest.fail, poll_seconds=1, sleep=sleeper(20))
    assert len(server.gets()) == 21
    assert capsys.readouterr().err == ""


def test_a_lasting_problem_is_said_once(capsys):
    with Metadata([(500, "")]) as server, pytest.raises(Enough):
        spot.watch(spot.Aws(server.url), pytest.fail, poll_seconds=1, sleep=sleeper(20))
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_no_server_at_all_is_lived_through(capsys):
    with Metadata([(404, "")]) as server:
        url = server.url
    with pytest.raises(Enough):
        spot.watch(spot.Aws(url), pytest.fail, poll_seconds=1, sleep=sleeper(3))
    assert "metadata server: " in capsys.readouterr().err


@pytest.mark.parametrize("problem", [RuntimeError("Ray refused"), ConnectionError("no head"), ValueError("odd")])
def test_a_refused_drain_is_tried_again_until_it_is_taken(problem, capsys):
    tries = []

    def drain(notice):
        tries.append(notice)
        if len(tries) < 4:
            raise problem

    with Metadata([notice_in(100)]) as server:
        spot.watch(spot.Aws(server.url), drain, poll_seconds=1, sleep=sleeper(10))
    assert len(tries) == 4
    assert capsys.readouterr().err.count(f"drain: {problem}") == 1


def test_rays_own_errors_are_told_not_raised(monkeypatch):
    """They derive from none of Python's errors that a watcher expects, and must not end it."""
    exceptions = pytest.importorskip("ray.exceptions")

    def fail(*_, **__):
        raise exceptions.RpcError("Timed out while waiting for GCS to become available.\nmore")

    monkeypatch.setattr(spot, "_drain", fail)
    with pytest.raises(RuntimeError, match=r"^RpcError: Timed out while waiting for GCS to become available\.$"):
        spot.drain(spot.Notice("test", 30))


def run(*words, env=None, timeout=100):
    command = [sys.executable, "-m", "mmts_ray.spot", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)


def test_the_command_says_what_it_needs():
    for words in ((), ("--provider", "aws", "--now", "3")):
        done = run(*words)
        assert done.returncode == 2
        assert "--provider to watch, or --now" in done.stderr
    assert run("--provider", "azure").returncode == 2


def test_watching_needs_neither_ray_nor_torch():
    code = "import sys, mmts_ray.spot; print(*sorted({'ray', 'torch', 'numpy', 'yaml'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "\n"


# a trial on the worker keeps it alive while it drains: an idle node leaves at once
HOLDER = """
import sys, json, time, ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
from ray._private.state import state

@ray.remote(num_cpus=0, resources={"w": 1})
class Trial:
    def node(self):
        return ray.get_runtime_context().get_node_id()

trial = Trial.remote()
print(json.dumps(ray.get(trial.node.remote())), flush=True)
for line in sys.stdin:
    print(json.dumps(state.get_draining_nodes()), flush=True)
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_notice_drains_this_node_of_a_real_cluster(tmp_path_factory):
    """The whole command: fake metadata, a real head and a real worker, token authentication on."""
    folder = tmp_path_factory.mktemp("s", numbered=False)
    env = own_ray.environment(folder, secrets.token_hex(32))
    ports = own_ray.free_ports(6)
    head = own_ray.Head(folder, env, ports, "--num-cpus=1")
    worker = own_ray.Worker(folder, env, head, ports[4], 0, '--resources={"w": 1}')
    address = f"127.0.0.1:{head.port}"

    command = [sys.executable, "-c", HOLDER, address]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with own_ray.running(worker, head), subprocess.Popen(command, env=env, **pipes) as holder:

        def draining():
            print(file=holder.stdin, flush=True)
            return json.loads(holder.stdout.readline())

        node = json.loads(holder.stdout.readline())
        assert draining() == {}
        # both nodes of this test have one address, so the watcher must not guess
        done = run("--now", "60", "--address", address, env=env)
        assert (done.returncode, "2 live Ray nodes" in done.stderr) == (1, True), done.stderr
        wrong = run("--now", "60", "--address", address, "--node-id", node, env=env | {"RAY_AUTH_TOKEN": "0" * 64})
        assert wrong.returncode == 1
        assert "Traceback" not in wrong.stderr
        assert "0" * 64 not in wrong.stderr
        assert draining() == {}
        with Metadata([(404, ""), (404, ""), notice_in(90)]) as server:
            done = run(
                "--provider", "aws", "--metadata-url", server.url, "--poll-seconds", "0.1", "--address", address,
                "--node-id", node, env=env,
            )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert len(server.gets()) == 3
        assert f"node {node} drains" in done.stderr
        ((drained, until),) = draining().items()
        assert drained == node
        assert 0 < until / 1000 - time.time() < 90
        assert env["RAY_AUTH_TOKEN"] not in done.stderr + done.stdout


NODES = """
import sys, json, ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
print(json.dumps({k: n["NodeID"] for n in ray.nodes() for k in n["Resources"] if k in ("a", "b")}))
"""
SPACE = """
study: moved
objective: {val_i2t_r1: max}
strategy: random
trials: 2
checkpoint_seconds: 1
fixed:
  data: {name: features, path: toy.npz}
  train: {epochs: 6000, batch_size: 32}
search:
  train.lr: {loguniform: [1.0e-3, 1.0e-2]}
"""


@pytest.mark.slow
@pytest.mark.ray
def test_the_trial_of_a_reclaimed_node_goes_on_elsewhere_from_its_checkpoint(tmp_path_factory):
    """Notice, drain, and at the deadline the machine is gone: one step of work is lost, no trial."""
    folder = tmp_path_factory.mktemp("m", numbered=False)
    toy.npz(folder)
    (folder / "space.yaml").write_text(SPACE)
    env = own_ray.environment(folder, secrets.token_hex(32))
    ports = own_ray.free_ports(6)
    head = own_ray.Head(folder, env, ports, "--num-cpus=0", '--resources={"trial_slot": 4}')
    address = f"127.0.0.1:{head.port}"
    study_dir = folder / "study"
    with contextlib.ExitStack() as ends:
        ends.enter_context(own_ray.running(head))
        lost, _ = [
            ends.enter_context(
                _kept(own_ray.Worker(folder, env, head, ports[4 + i], i, f'--resources={{"{name}": 1}}'))
            )
            for i, name in enumerate("ab")
        ]
        done = subprocess.run(
            [sys.executable, "-c", NODES, address], env=env, capture_output=True, text=True, timeout=60
        )
        ids = json.loads(done.stdout.splitlines()[-1])
        command = [sys.executable, "-m", "mmts_ray", "search", "space.yaml", "--out", "study", "--address", address]
        log = ends.enter_context((folder / "search.log").open("w"))
        driver = ends.enter_context(subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log))
        ends.callback(driver.kill)
        deadline = time.monotonic() + 100
        while len(_epochs(study_dir)) < 2:
            assert driver.poll() is None, (folder / "search.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        time.sleep(2)  # past the first checkpoint
        with Metadata([(404, ""), notice_in(9)]) as server:
            words = ("--provider", "aws", "--metadata-url", server.url, "--poll-seconds", "0.1", "--address", address)
            done = run(*words, "--node-id", ids["a"], env=env)
        assert done.returncode == 0, done.stderr
        time.sleep(3)
        before = _epochs(study_dir)
        lost.kill()
        assert driver.wait(150) == 0, (folder / "search.log").read_text()
    trials = results.trials_of(study_dir)
    assert {t: row["status"] for t, row in trials.items()} == {"t0000": "done", "t0001": "done"}
    after = _epochs(study_dir)
    ((moved, process),) = set(after) - set(before)  # one trial was begun a second time, in another process
    assert process in {p for _, p in before}  # the warm one of the node that stayed
    assert 1 < after[moved, process][0] <= max(last for (trial, _), (_, last) in before.items() if trial == moved) + 200
    assert after[moved, process][1] == 6000


def _epochs(study_dir):
    """First and last epoch of each trial in each process that trained it."""
    found = {}
    for path in (study_dir / "ledger").glob("*.jsonl") if study_dir.is_dir() else ():
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if row.get("epoch"):
                found.setdefault((row["trial"], path.name), []).append(row["epoch"])
    return {key: (min(epochs), max(epochs)) for key, epochs in found.items()}


@contextlib.contextmanager
def _kept(node):
    with own_ray.running(node):
        yield node
