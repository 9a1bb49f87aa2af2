"""What the objectives cost against the matrix products that they cannot do without, in time and memory.

    python benchmarks/kernels.py                        the whole table, under five minutes
    python benchmarks/kernels.py --sizes 8192 --memory 0 --workers 0 --objectives MM-TS

Time: seconds of CPU of one thread, forward and backward, least of the repetitions, over the least time of as many
products of (B, D) by (D, B), run in turns with it in the same process. `products` says how many an objective needs:
symmetric similarities count half forward. Memory: the process's peak above inputs, gradients included, each case in a
fresh process. Workers: wall seconds of a step on several processes, over those of open_clip's local loss with gradient
gather, in turns.
"""

import argparse
import ctypes
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.nn.functional import normalize

from mmts_ray import kernels

FORMS = ("dense", "cached", "stream", "auto")
# objective -> products that it needs, of (B, D) by (D, B) or of that size
PRODUCTS = {"MM-TS": 3, "xNCE": 6, "xNCE drawn": 6, "AdapACSE": 4, "all composed": 7, "max-margin": 3, "SigLIP": 3}
MEASURED = {"MM-TS", "xNCE", "AdapACSE", "all composed", "max-margin"}  # those whose memory is
MIXED: dict[str, Any] = {"r_mix": 0.1}
MOVED: dict[str, Any] = {"angular_margin": 0.125, "filter_threshold": 0.9}


def inputs(batch: int, width: int, first: int = 0, last: int | None = None) -> dict[str, Tensor]:
    """Unit rows with pairs that resemble each other, a teacher, two samples per id; rows `first` to `last` of them."""
    generator = torch.Generator().manual_seed(0)

    def draw() -> Tensor:
        return torch.randn(batch, width, generator=generator)

    image_BD = normalize(draw(), dim=1)
    text_BD = normalize(image_BD + 0.05 * draw(), dim=1)
    whole = {
        "image": image_BD,
        "text": text_BD,
        "teacher": normalize(draw(), dim=1),
        "ids": torch.arange(batch) // 2,
        "temperature": torch.linspace(0.03, 0.1, batch),
    }
    share = {name: value[first:last].clone() for name, value in whole.items()}
    for name in ("image", "text"):
        share[name].requires_grad_()
    return share


def loss_of(objective: str, x: dict[str, Tensor], **how: Any) -> Tensor:
    """One objective's loss; `how` has impl and, on several workers, group."""
    image_BD, text_BD, temperature_B = x["image"], x["text"], x["temperature"]
    if objective == "max-margin":
        return kernels.hinge_loss(image_BD, text_BD, 3 * temperature_B, **how)[0]
    if objective == "SigLIP":
        return kernels.sigmoid_loss(image_BD, text_BD, torch.tensor(0.1), -10.0, **how)
    teacher: dict[str, Any] = {"teacher_BE": x["teacher"]}
    options: dict[str, dict[str, Any]] = {
        "MM-TS": {},
        "xNCE": MIXED,
        "xNCE drawn": MIXED | {"generator": torch.Generator().manual_seed(1)},
        "AdapACSE": MOVED | teacher,
        "all composed": MIXED | MOVED | teacher | {"ids_B": x["ids"]},
    }
    return kernels.softmax_loss(image_BD, text_BD, temperature_B, **options[objective], **how)[0]


def step(loss: Callable[[], Tensor], x: dict[str, Tensor]) -> None:
    torch.autograd.grad(loss(), (x["image"], x["text"]))


def least(cases: dict[str, Callable[[], None]], repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    """The least time of each case, all run in turns."""
    best = dict.fromkeys(cases, math.inf)
    for _ in range(repeats):
        for name, case in cases.items():
            start = clock()
            case()
            best[name] = min(best[name], clock() - start)
    return best


def clip_loss(**flags: Any) -> Callable[[dict[str, Tensor]], Tensor]:
    """open_clip's loss at its one temperature."""
    from open_clip.loss import ClipLoss

    loss = ClipLoss(**flags)
    return lambda x: loss(x["image"], x["text"], torch.tensor(20.0))


def time_table(sizes: list[int], width: int, objectives: list[str], repeats: int) -> None:
    torch.set_num_threads(1)
    print(f"\n| time, D = {width} | B | products | {' | '.join(FORMS)} | products per s |\n|---|---|---|{'---|' * 5}")
    for batch in sizes:
        x = inputs(batch, width)
        x_BD, s_BB, out_BD = x["image"].detach(), torch.empty(batch, batch), torch.empty(batch, width)

        def floor(x_BD: Tensor = x_BD, s_BB: Tensor = s_BB, out_BD: Tensor = out_BD) -> None:
            torch.mm(x_BD, x_BD.T, out=s_BB)
            torch.mm(s_BB, x_BD, out=out_BD)
            torch.mm(s_BB.T, x_BD, out=out_BD)

        clip = clip_loss()
        for objective in ["open_clip ClipLoss", *objectives]:
            if objective == "open_clip ClipLoss":
                products, cases = 3, {"dense": partial(step, partial(clip, x), x)}
            else:
                products = PRODUCTS[objective]
                cases = {form: partial(step, partial(loss_of, objective, x, impl=form), x) for form in FORMS}
            # a batch of 256 takes milliseconds: enough turns for its least to mean something
            turns = max(repeats, min(50, repeats * (2048 // batch) ** 2))
            best = least({"floor": floor, **cases}, turns, time.process_time)
            one = best["floor"] / 3
            cells = [f"{best[form] / (products * one):.2f}x" if form in best else "" for form in FORMS]
            rate = f"{1 / one:.3g} ({2 * batch**2 * width / one / 1e9:.0f} GFLOP/s)"
            print(f"| {objective} | {batch} | {products} | {' | '.join(cells)} | {rate} |", flush=True)


def peak_above_inputs(objective: str, form: str, batch: int, width: int) -> float:
    """MB, in this process."""
    torch.set_num_threads(1)
    for size in (600, batch):  # the small one loads the libraries' code
        x = inputs(size, width)
        ctypes.CDLL(None).malloc_trim(0)  # what making the inputs left behind is not theirs
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = _status("VmRSS")
        step(partial(clip_loss(), x) if form == "open_clip" else partial(loss_of, objective, x, impl=form), x)
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def memory_table(batch: int, width: int, objectives: list[str]) -> None:
    print(f"\n| memory, B = {batch}, D = {width} | dense, MB | stream, MB | dense / stream |\n|---|---|---|---|")
    for objective in ["open_clip ClipLoss", *objectives]:
        forms = ("open_clip",) if objective.startswith("open_clip") else ("dense", "stream")
        found: dict[str, float] = {}
        for form in forms:
            command = [
                sys.executable,
                __file__,
                "--peak",
                objective,
                form,
                "--sizes",
                str(batch),
                "--width",
                str(width),
            ]
            found[form] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        cells = [f"{megabytes:.0f}" for megabytes in found.values()]
        cells += [f"{found['dense'] / found['stream']:.0f}"] if "stream" in found else ["", ""]
        print(f"| {objective} | {' | '.join(cells)} |", flush=True)


def worker(rank: int, workers: int, meet: str, batch: int, width: int, repeats: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(meet).as_uri(), rank=rank, world_size=workers)
    size = batch // workers
    x = inputs(batch, width, rank * size, (rank + 1) * size)
    local = clip_loss(local_loss=True, gather_with_grad=True, rank=rank, world_size=workers)
    whole = clip_loss(gather_with_grad=True, rank=rank, world_size=workers)
    # by name: the loss, and open_clip's loss that it is compared with
    cases: dict[str, Callable[[], Tensor]] = {
        "open_clip, local loss, gradient gather": partial(local, x),
        "open_clip, whole loss, gradient gather": partial(whole, x),
    }
    for form in ("cached", "stream", "dense"):
        cases[f"ours, MM-TS, {form}"] = partial(loss_of, "MM-TS", x, impl=form, group=dist.group.WORLD)

    def timed(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            step(loss, x)
            dist.barrier()

        return run

    for loss in cases.values():
        timed(loss)()
    best = least({name: timed(loss) for name, loss in cases.items()}, repeats, time.perf_counter)
    if rank == 0:
        base = next(iter(best.values()))
        print(f"\n| {workers} workers, B = {batch}, D = {width} | wall, s | speed |\n|---|---|---|")
        for name, seconds in best.items():
            print(f"| {name} | {seconds:.3f} | {base / seconds:.2f}x |", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[256, 1024, 4096], help="batches to time")
    parser.add_argument("--width", type=int, default=512, help="of embeddings and teacher rows")
    parser.add_argument("--objectives", nargs="*", default=list(PRODUCTS), choices=list(PRODUCTS))
    parser.add_argument("--repeats", type=int, default=2, help="turns at the largest batches; small ones take more")
    parser.add_argument("--memory", type=int, default=8192, help="batch whose memory is measured; 0 leaves it out")
    parser.add_argument("--workers", type=int, default=2, help="processes of the last table; 0 leaves it out")
    parser.add_argument("--batch", type=int, default=4096, help="batch of all workers")
    parser.add_argument("--peak", nargs=2, metavar=("OBJECTIVE", "FORM"), help="print one case's memory only")
    given = parser.parse_args()
    if given.peak:
        print(peak_above_inputs(given.peak[0], given.peak[1], given.sizes[0], given.width))
        return
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    time_table(given.sizes, given.width, given.objectives, given.repeats)
    if given.memory:
        memory_table(given.memory, given.width, [name for name in given.objectives if name in MEASURED])
    if given.workers:
        with tempfile.TemporaryDirectory() as folder:
            arguments = (given.workers, str(Path(folder) / "meet"), given.batch, given.width, 3 * given.repeats)
            mp.spawn(worker, arguments, nprocs=given.workers)
    print(f"\nload at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
