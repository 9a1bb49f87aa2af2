"""Threads that encode: a batch each."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

BATCHES_AT_ONCE = 16  # threads, at most


@contextmanager
def encoding_pool() -> Iterator[ThreadPoolExecutor]:
    """Threads that each encode a batch with one torch thread; as many as cores, OMP_NUM_THREADS has the last word.

    Torch's own threads meet after every operation: on two cores that others use too, two of them are ten times slower
    than one, while batches side by side lose nothing.
    """
    import torch

    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = int(wanted) if wanted.isdigit() and int(wanted) > 0 else cores
    workers = min(threads, BATCHES_AT_ONCE)
    before = torch.get_num_threads()
    torch.set_num_threads(threads // workers)
    pool = ThreadPoolExecutor(max_workers=workers)  # made here: a thread keeps the torch setting it starts with
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)
