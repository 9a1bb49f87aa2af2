"""Reference vectors as tensors, and random batches of unit rows: shared by the tests of the losses.

`tests/reference` holds inputs and right answers that the authors' own classes gave in float64. mmts_*, base_*,
kdmcse_* and reg_* hold one step each. isogclr_* hold eight steps of zhqiu/contrastive-learning-iSogCLR, stacked, with
all temperatures after each and the moving means after the last (its mass and running maximum as one logarithm).
sms_* come from xqwang14/SMS-Loss; sentence_* from uds-lsv/MCSE (simcse and grounding loss) and from both angular
functions of duyngtr16061999/KDMCSE (margin on the positive: ArcCon; fixed margin on negatives: its text loss).
"""

from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import normalize

REFERENCE = Path(__file__).parent / "reference"
DTYPES = {torch.float64: 1e-10, torch.float32: 1e-5}


class Vector:
    """A reference file, its arrays as tensors of one type."""

    def __init__(self, name, dtype):
        with np.load(REFERENCE / f"{name}.npz") as arrays:
            self.arrays = dict(arrays)
        self.dtype = dtype
        self.bound = DTYPES[dtype]

    def tensor(self, name):
        return torch.tensor(self.arrays[name], dtype=self.dtype)

    def leaf(self, name):
        return self.tensor(name).requires_grad_()

    def number(self, name):
        return float(self.arrays[name])

    def error(self, actual, name):
        """The largest difference, relative to the largest entry; `bound` is 1e-10 in float64 and 1e-5 in float32."""
        expected = self.arrays[name]
        return float(np.abs(actual.detach().double().numpy() - expected).max() / np.abs(expected).max())


def rows(seed, *shape, dtype=torch.float64):
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype), dim=-1)


def pair(seed, size, width, dtype=torch.float64):
    image_BD = rows(seed, size, width, dtype=dtype)
    text_BD = normalize(image_BD + 0.8 * rows(seed + 1, size, width, dtype=dtype), dim=1)
    return image_BD.requires_grad_(), text_BD.requires_grad_()
