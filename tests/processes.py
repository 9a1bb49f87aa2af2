"""Processes that meet in one torch.distributed group: what each of them measured."""

import datetime
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# the same cases run under NCCL wherever there is a device
BACKENDS = ["gloo", *([pytest.param("nccl", marks=pytest.mark.gpu)] if torch.cuda.is_available() else [])]


def measured(measure, count, backend, folder, *, deadline_s):
    """`measure(rank, count, device)` of each of `count` processes, in rank order; tensors and plain values only."""
    if backend == "nccl" and torch.cuda.device_count() < count:
        pytest.skip(f"needs {count} CUDA devices")
    running = mp.spawn(_member, (measure, count, backend, str(folder)), nprocs=count, join=False)
    end = time.monotonic() + deadline_s
    try:
        while not running.join(timeout=max(0.0, min(5.0, end - time.monotonic()))):
            assert time.monotonic() < end, f"{count} workers did not end within {deadline_s} s"
    finally:
        for process in running.processes:
            if process.is_alive():
                process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(count)]


def _member(rank, measure, count, backend, folder):
    torch.set_num_threads(1)
    device = "cpu" if backend == "gloo" else f"cuda:{rank}"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend,
        init_method=(Path(folder) / "meet").as_uri(),
        rank=rank,
        world_size=count,
        timeout=datetime.timedelta(seconds=60),
    )
    try:
        torch.save(measure(rank, count, device), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()
