"""Signs of life of a running trial, through the cluster's own key-value store: one small write every few seconds.

The ledger cannot serve: a trial without early stopping may train for an hour between two records, and on a bucket they
arrive late. A sign is given after every optimiser step, so that a slow trial is never taken for a stuck one.
"""

import os
import time

from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put

NAMESPACE = b"mmts-ray-pulse"


class Pulse:
    """The trial's side: `beat` may be called as often as one likes; every `every` seconds one is written."""

    def __init__(self, run: str, trial: str, *, every: float) -> None:
        self.key, self.every = _key(run, trial), every
        self.last = -float("inf")

    def beat(self, seed: int, step: int) -> None:
        """The trial is at this step of its seed number `seed`, counted from 0."""
        now = time.monotonic()
        if now - self.last >= self.every:
            self.last = now
            _internal_kv_put(self.key, f"{os.getpid()}-{time.time_ns()} {seed} {step}".encode(), namespace=NAMESPACE)


def read(run: str, trial: str) -> tuple[str, tuple[int, int]] | None:
    """The driver's side: the last sign (all it tells is whether it is a new one), its seed and step."""
    raw = _internal_kv_get(_key(run, trial), namespace=NAMESPACE)
    if not raw:
        return None
    sign, seed, step = raw.decode().split()
    return sign, (int(seed), int(step))


def forget(run: str, trial: str) -> None:
    """The next sign is the first one of a new process."""
    _internal_kv_del(_key(run, trial), namespace=NAMESPACE)


def _key(run: str, trial: str) -> bytes:
    return f"{run}/{trial}".encode()
