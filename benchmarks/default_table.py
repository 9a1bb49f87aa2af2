"""What each objective reaches on the default data, next to an independent implementation's figures.

    python benchmarks/default_table.py [--seeds 6]

Every cell is `mmts-ray train` with the parameters of the row, 10 epochs, validation, 347 candidates, image to text.
`z` is the difference to the reference in standard errors of both means (the reference: 3 seeds, xNCE rows 2; where it
gave no spread, ours is used).
"""

import argparse
import json
import math
import subprocess
import sys

import numpy as np

TAUS = {0.01: (0.274, 0.007), 0.03: (0.327, 0.009), 0.05: (0.349, 0.002), 0.1: (0.358, 0.014), 0.2: (0.313, 0.016)}
ROWS = [(f"InfoNCE tau {t}", [f"schedule.value={t}"], mean, spread, 3) for t, (mean, spread) in TAUS.items()]
ROWS += [("InfoNCE learnable tau", ["schedule.name=learnable"], 0.354, 0.008, 3)]
ROWS += [
    (
        f"xNCE {mode}, tau .01, r {r}",
        ["schedule.value=0.01", f"loss.r_mix={r}", f"loss.mix_mode={mode}"],
        mean,
        None,
        2,
    )
    for mode, r, mean in (
        ("replace", 0.01, 0.293),
        ("replace", 0.5, 0.281),
        ("weighted", 0.01, 0.287),
        ("weighted", 0.5, 0.293),
    )
]
SHOWN = ("val_i2t_r1", "val_i2t_r5", "val_i2t_r10", "val_modality_distance", "val_modality_accuracy")


def run(space: str, words: list[str], seed: int) -> dict[str, float]:
    command = [sys.executable, "-m", "mmts_ray", "train", space, "--json", *words, f"train.seed={seed}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--only", default="", metavar="WORD", help="rows with this word in their name")
    args = parser.parse_args()
    seeds = args.seeds
    space = "benchmarks/default_table.yaml"
    print(f"| objective | R@1 | reference | z | R@5 | R@10 | modality distance | modality accuracy |\n|{' --- |' * 8}")
    for name, words, reference, spread, count in (row for row in ROWS if args.only in row[0]):
        ends = [run(space, words, seed) for seed in range(seeds)]
        values = {key: np.array([end[key] for end in ends]) for key in SHOWN}
        r1 = values["val_i2t_r1"]
        own = r1.std(ddof=1)
        error = math.sqrt(own**2 / seeds + (spread if spread is not None else own) ** 2 / count)
        rest = " | ".join(f"{values[key].mean():.3f}" for key in SHOWN[1:])
        z = (r1.mean() - reference) / error
        print(f"| {name} | {r1.mean():.3f} ± {own:.3f} | {reference:.3f} | {z:+.1f} | {rest} |", flush=True)


if __name__ == "__main__":
    main()
