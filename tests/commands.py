"""The command line in a process of its own, and waiting for what it does."""

import os
import signal
import subprocess
import sys
import time


def start(*words, cwd, **environment):
    """`mmts-ray WORDS` with a cache beside the study; its output is read by `communicate`."""
    return subprocess.Popen(
        [sys.executable, "-m", "mmts_ray", *map(str, words)],
        cwd=cwd,
        env={**os.environ, "MMTS_RAY_CACHE": str(cwd / "cache"), "OMP_NUM_THREADS": "1", **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # a test run in the background of a script inherits "ignore Ctrl-C", which Python then keeps
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for(condition, what, process=None, *, seconds):
    """What the condition finds in the end; `process` is a program without which it never will."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)
    return found
