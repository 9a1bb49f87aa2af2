"""How long a report takes and how large it is: made-up ledgers, written and reported in this process.

python benchmarks/report.py                  # 200 configurations x 3 seeds x 20 epochs
python benchmarks/report.py --rows 1000000   # a long ledger: one search, 19 evaluations a trial

Prints wall and CPU seconds of reading and of the whole report, the size of the page, and the peak of memory.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from ledger_maker import meta_of, metrics_of, native, synthetic

EPOCHS = 19


def long_ledger(folder: Path, rows: int) -> Path:
    """One random search on the simulator whose ledger has this many lines, written without holding them."""
    (folder / "ledger").mkdir(parents=True)
    rng = np.random.default_rng(0)
    trials, written = rows // (EPOCHS + 2), 0
    with (folder / "ledger" / "writer-1.jsonl").open("w", encoding="utf8") as file:
        for number in range(trials):
            u = rng.random(6)
            config = {f"param.{path}": value for path, value in native(u).items()}
            metrics = {f"metric.{k}": round(v, 4) for k, v in metrics_of(u, rng, test=False).items()}
            trial, clock = f"t{number:06d}", 1_790_000_000.0 + number
            head = {"study": folder.name, "trial": trial, "kind": "search", "config_hash": f"{number:012x}", "seed": 0,
                    "global_batch": 256}  # fmt: skip
            lines = [json.dumps({**head, **config, "status": "running", "time": clock})]
            for epoch in range(1, EPOCHS + 1):
                step = {"trial": trial, "step": 12 * epoch, "epoch": epoch, "seconds": 0.1 * epoch}
                lines.append(json.dumps({**step, "status": "running", **metrics, "time": clock + 0.01 * epoch}))
            end = {"trial": trial, "step": 12 * EPOCHS, "epoch": EPOCHS, "device_seconds": 2.0, "status": "done"}
            lines.append(json.dumps({**end, **metrics, "time": clock + 0.5}))
            file.write("\n".join(lines) + "\n")
            written += len(lines)
    (folder / "meta.json").write_text(json.dumps(meta_of(folder.name, trials=trials, baselines=[])), encoding="utf8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=0, help="lines of a long ledger; 0: the usual study")
    given = parser.parse_args()
    from mmts_ray.analysis import report, tables

    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept) / "study"
        if given.rows:
            long_ledger(folder, given.rows)
        else:
            synthetic(folder, trials=200, confirm=3, top=200, epochs=20)
        lines = sum(1 for _ in (folder / "ledger" / "writer-1.jsonl").open("rb"))
        wall, cpu = time.perf_counter(), time.process_time()
        tables.load(folder)
        print(f"{lines} rows read: {time.perf_counter() - wall:.1f} s wall, {time.process_time() - cpu:.1f} s CPU")
        wall, cpu = time.perf_counter(), time.process_time()
        path, _ = report.write_and_summarise(folder)
        print(f"report: {time.perf_counter() - wall:.1f} s wall, {time.process_time() - cpu:.1f} s CPU")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"page {path.stat().st_size / 1e3:.0f} kB, peak memory {peak:.2f} GiB")


if __name__ == "__main__":
    main()
