"""Semantic textual similarity: do cosines order pairs of sentences as people do?

Shapes: P pairs, D embedding.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from mmts_ray.metrics.paired import alignment, uniformity

if TYPE_CHECKING:
    from torch import Tensor

STS_TASKS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")
ALIKE = 4.0  # of 5: pairs that count as saying the same, for alignment


def spearman(first_P: np.ndarray, second_P: np.ndarray) -> float:
    """Spearman's rank correlation, ties by their mean rank, in [-1, 1]; NaN for fewer than two pairs or no spread."""
    from scipy.stats import rankdata

    if len(first_P) < 2:
        return math.nan
    a_P, b_P = (rankdata(x_P) - (len(x_P) + 1) / 2 for x_P in (first_P, second_P))
    scale = math.sqrt(float(a_P @ a_P) * float(b_P @ b_P))
    return float(a_P @ b_P) / scale if scale else math.nan


def sts_scores(tasks: "Mapping[str, tuple[Tensor, Tensor, np.ndarray]]", *, spread: str = "") -> dict[str, float]:
    """Spearman correlation of cosines and human scores, by task.

    `tasks` holds for each task both sentences of every pair of all its subsets, unit rows (P, D), and the scores: one
    correlation over all pairs ("all" in SentEval, what the papers report), not a mean over subsets; the papers print it
    times 100. Keys: the tasks; sts_avg, their plain mean. With `spread`, of that task: alignment, the mean squared
    distance of the pairs scored 4 or more of 5, and uniformity of the sentences of both sides, over the whole set (the
    published script takes means over batches). Reference: arXiv:2104.08821, arXiv:1803.05449 (SentEval).
    """
    import torch

    found = {
        task: spearman((left_PD * right_PD).sum(1).double().cpu().numpy(), gold_P)
        for task, (left_PD, right_PD, gold_P) in tasks.items()
    }
    found["sts_avg"] = sum(found.values()) / len(found) if found else math.nan
    if spread in tasks:
        left_PD, right_PD, gold_P = tasks[spread]
        alike_p = torch.from_numpy(np.flatnonzero(gold_P >= ALIKE)).to(left_PD.device)
        if len(alike_p):
            found["alignment"] = alignment(left_PD[alike_p], right_PD[alike_p])
        found["uniformity"] = uniformity(torch.cat([left_PD, right_PD]))
    return found
