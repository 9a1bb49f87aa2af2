"""A study as a Ray Job: hand it to a cluster, follow it, report how its driver really ended.

The job runs `mmts-ray search --resume-if-exists`, so that submitting again is always safe: a running job is followed,
and a study that is there is resumed. When the head of the cluster is lost, the job's record is lost with it; `submit`
waits for a head to come back and hands the study in again.

Ray's own `ray job submit` returns 0 for a job that was stopped and 1 for every failure. No token is handled here: Ray
reads RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token by itself, and what is printed is searched for it.
"""

import asyncio
import contextlib
import logging
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from mmts_ray.study import StudyConfig

TOKEN = Path("~/.mmts-ray/auth/token")  # where cluster.yaml keeps it on the user's machine
OUT = "mmts_ray_out"  # the study folder, in the metadata of our jobs
HEAD_SECONDS = 1800.0  # how long a lost head is waited for
POLL_SECONDS = 5.0
RESUBMISSIONS = 5  # heads lost before a person should look
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
INTERRUPTED = 130


def submit(
    study: "StudyConfig",
    out: str,
    *,
    address: str,
    allow_failures: int = 0,
    wait: bool = True,
    head_seconds: float = HEAD_SECONDS,
    connect: Callable[[str], Any] | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> int:
    """Run the study on the cluster at `address`, in its folder `out`; returns the driver's exit status.

    A stopped job is 130, a driver killed by signal n is 128 + n, a job that failed without an exit code is 1.
    ValueError: an address or folder that cannot work, a wrong token, no cluster to begin with.
    """
    check_address(address)
    check_out(out)
    job = _Job(study, out, address=address, allow_failures=allow_failures, connect=connect or _connect, sleep=sleep)
    try:
        with _only_this_address():
            job.attach(0)
            return job.follow(head_seconds) if wait else 0
    except KeyboardInterrupt:
        _tell(f"not following any more; {job.id or 'the job'} goes on. The same command follows it again, "
              f"`ray job stop --address {address} {job.id}` ends it")  # fmt: skip
        return INTERRUPTED


def check_address(address: str) -> None:
    """ValueError unless this is the address of a dashboard."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"--address: {address!r} is no dashboard; legal is http://HOST:PORT, which `ray dashboard cluster.yaml` or "
            "`kubectl port-forward` opens at http://127.0.0.1:8265"
        )
    if parts.username or parts.password:
        raise ValueError(
            "--address: it holds a name or password; legal is http://HOST:PORT, the token has its own file"
        )
    if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        _tell(f"the token travels to {parts.hostname} in clear text; an SSH tunnel to 127.0.0.1 hides it")


def check_out(out: str) -> None:
    """ValueError unless the folder is the same one for every machine of the cluster."""
    from mmts_ray.storage import address

    parsed = address.parse(out)
    if isinstance(parsed, Path) and not parsed.is_absolute():
        raise ValueError(
            f"--out: {out!r} is relative, but the job runs in a temporary folder of the head; legal is an absolute "
            "path that every node shares, or a bucket such as s3://bucket/studies/name"
        )


def exit_status(status: str, code: int | None) -> int:
    """The exit status of a job's end: the driver's own, where it had one."""
    if status == "SUCCEEDED":
        return 0
    if status == "STOPPED":
        return INTERRUPTED
    if code is None or code == 0:
        return 1
    return code if code > 0 else 128 - code


class _Job:
    """One study on one cluster: the job that runs it now, and how much of its log has been shown."""

    def __init__(
        self,
        study: "StudyConfig",
        out: str,
        *,
        address: str,
        allow_failures: int,
        connect: Callable[[str], Any],
        sleep: Callable[[float], object],
    ) -> None:
        self.study, self.out, self.address, self.allow_failures = study, out, address, allow_failures
        self.connect, self.sleep = connect, sleep
        self.client: Any = None
        self.id = ""
        self.shown = self.submissions = 0
        self.tokens = _tokens()

    def attach(self, head_seconds: float) -> None:
        """Know the job of this study: the present one, a running one or a new one; wait `head_seconds` for a head."""
        deadline = time.monotonic() + head_seconds
        while True:
            try:
                self.client = self.connect(self.address)
                self._find_or_submit()
                return
            except (OSError, RuntimeError) as problem:
                told = self._plain(str(problem)).strip() or type(problem).__name__
                if "already exists" in told:  # somebody else has just submitted it
                    self.sleep(1.0)
                    continue
                if time.monotonic() >= deadline:
                    raise ValueError(
                        f"--address: no cluster answers at {self.address} ({told.splitlines()[0]}); open the tunnel "
                        "and submit again: what has been run is kept"
                    ) from None
                self.sleep(POLL_SECONDS)

    def _find_or_submit(self) -> None:
        name = re.sub(r"[^A-Za-z0-9_-]", "-", self.study.study)
        jobs = self.client.list_jobs()
        if self.id and any(job.submission_id == self.id for job in jobs):
            return  # this head still knows it, even if it has ended
        for job in jobs:
            if (job.metadata or {}).get(OUT) == self.out and _name(job.status) not in ENDED:
                self.id, self.shown = job.submission_id, 0
                _tell(f"{self.id} is running this study; following it")
                return
        numbers = [re.fullmatch(rf"{re.escape(name)}-(\d+)", job.submission_id or "") for job in jobs]
        number = max((int(found[1]) for found in numbers if found), default=0) + 1
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "space.yaml").write_text(_text(self.study), encoding="utf8")
            words = ["mmts-ray", "search", "space.yaml", "--out", self.out, "--address", "auto", "--resume-if-exists"]
            submitted = self.client.submit_job(
                entrypoint=shlex.join([*words, "--allow-failures", str(self.allow_failures)]),
                submission_id=f"{name}-{number}",
                runtime_env={"working_dir": folder, "env_vars": {"PYTHONUNBUFFERED": "1"}},
                metadata={OUT: self.out},
            )
        self.id, self.shown, self.submissions = submitted, 0, self.submissions + 1
        _tell(f"submitted {self.id}, study folder {self.out}")

    def follow(self, head_seconds: float) -> int:
        """Show the log until the job has ended; returns its exit status."""
        from aiohttp import ClientError

        while True:
            try:
                asyncio.run(self._show())
                details = self.client.get_job_info(self.id)
            except (OSError, RuntimeError, ClientError):
                _tell(f"no answer from {self.address}; waiting up to {head_seconds / 60:.0f} minutes for it")
                if self.submissions > RESUBMISSIONS:
                    _tell(f"{RESUBMISSIONS} heads were lost; look at the cluster, then submit again")
                    return 1
                self.sleep(POLL_SECONDS)
                self.attach(head_seconds)
                continue
            if _name(details.status) in ENDED:
                return self._end(details)
            self.sleep(1.0)  # the log has ended just before the job

    async def _show(self) -> None:
        """Print what is new in the job's log; a log that is read again starts at its beginning."""
        seen = 0
        async for text in self.client.tail_job_logs(self.id):
            fresh = text[max(self.shown - seen, 0) :]
            seen += len(text)
            self.shown = max(self.shown, seen)
            if fresh:
                print(self._plain(fresh), end="", file=sys.stderr, flush=True)

    def _end(self, details: Any) -> int:
        status = exit_status(_name(details.status), details.driver_exit_code)
        print(f"{self.id}: {_name(details.status).lower()}, exit status {status}, study folder {self.out}", flush=True)
        if _name(details.status) == "FAILED" and details.driver_exit_code is None:
            _tell(self._plain((details.message or "no message").strip().splitlines()[0]))
        return status

    def _plain(self, text: str) -> str:
        for token in self.tokens:
            text = text.replace(token, "***")
        return text


def _connect(address: str) -> Any:
    """A client of the Jobs API; ValueError when the cluster refuses the token, ConnectionError when there is none."""
    if TOKEN.expanduser().is_file() and not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(TOKEN.expanduser())
    if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # otherwise Ray sends none
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    for module in ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk", "ray._private.runtime_env"):
        logging.getLogger(module).setLevel(logging.WARNING)  # what they say of uploads and sockets, we say better
    try:
        return JobSubmissionClient(address)
    except AuthenticationError as problem:
        told = str(problem).strip().splitlines()[0].partition(". ")[0]
        raise ValueError(
            f"--address: {address} takes no token of ours ({told}); legal is the cluster's own, in RAY_AUTH_TOKEN, "
            f"RAY_AUTH_TOKEN_PATH or {TOKEN}"
        ) from None


@contextlib.contextmanager
def _only_this_address() -> Iterator[None]:
    """Ray lets these two variables overrule the address that it is given."""
    held = {k: os.environ.pop(k) for k in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS") if k in os.environ}
    try:
        yield
    finally:
        os.environ.update(held)


def _tokens() -> Sequence[str]:
    """Every token that Ray might use here, so that none is printed."""
    found = [os.environ.get("RAY_AUTH_TOKEN", "")]
    for path in (os.environ.get("RAY_AUTH_TOKEN_PATH"), TOKEN, "~/.ray/auth_token"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            found.append(Path(path or "/").expanduser().read_text(encoding="utf8"))
    return [token.strip() for token in found if len(token.strip()) >= 8]


def _text(study: "StudyConfig") -> str:
    import yaml

    from mmts_ray.study import to_dict

    return yaml.safe_dump(to_dict(study), sort_keys=False, allow_unicode=True)


def _name(status: Any) -> str:
    """JobStatus is an enum of strings."""
    return str(getattr(status, "value", status))


def _tell(line: str) -> None:
    print(f"mmts-ray submit: {line}", file=sys.stderr, flush=True)
