"""What the full EPIC-KITCHENS-100 retrieval test costs: mAP, binary mAP and nDCG both ways, on one thread.

    python benchmarks/graded.py EPIC100 [--repeat 3]     # the folder with the official retrieval CSVs

Embeddings are random (256 numbers, unit rows), so the scores are the chance line. Prints CPU seconds, the best run.
"""

import argparse
import time

import numpy as np
import torch

from mmts_ray.data import TEST, epic100
from mmts_ray.metrics import multi_instance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--train", help="the CSV of training clips, when it has another name")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = epic100(path=args.folder, train=args.train)
    assert data.relevance is not None
    key_N = data.relevance.key_N[data.split_N == TEST]
    key_C = data.relevance.key_C[data.relevance.split_C == TEST]
    generator = torch.Generator().manual_seed(0)
    image_ND, caption_CD = (
        torch.nn.functional.normalize(torch.randn(len(keys), 256, generator=generator), dim=1)
        for keys in (key_N, key_C)
    )
    seconds = []
    for _ in range(args.repeat):
        start = time.process_time()
        left, row_N = np.unique(key_N, return_inverse=True)
        right, column_C = np.unique(key_C, return_inverse=True)
        found = multi_instance(image_ND, caption_CD, data.relevance.between(left, right), row_N, column_C)
        seconds.append(time.process_time() - start)
    print(f"{len(key_N):,} clips x {len(key_C):,} captions: {min(seconds):.1f} CPU s, one thread")
    print("  ".join(f"{name} {value:.4f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
