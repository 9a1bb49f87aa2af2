"""Retrieval where a caption is right by degrees (multi-instance): average precision and discounted gain.

Shapes: Q queries, G gallery, D embedding, N images, C listed captions, J and L distinct keys of both, V levels.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from mmts_ray.metrics.paired import BLOCK_ELEMENTS, TERCILES, _mean, _numpy

if TYPE_CHECKING:
    from mmts_ray.metrics.paired import Rows

THIRDS = ("rare", "medium", "common")
MEASURES = ("map", "binary_map", "ndcg")


def precision_and_gain(
    query_QD: "Rows", gallery_GD: "Rows", relevancy_JL: np.ndarray, row_Q: "Rows", column_G: "Rows"
) -> dict[str, np.ndarray]:
    """Average precision and discounted gain of each query when gallery rows are relevant by degrees; float64 (Q,).

    Gallery row g has relevancy R = relevancy_JL[row_Q[q], column_G[g]] in [0, 1] for query q. With the gallery in order
    of similarity, k = 1 for the first, and "right" meaning R = 1 exactly:

    `map`         mean over right k of (sum of R up to k) / k: as published for EPIC-KITCHENS-100, so half-right rows
                  before a right one raise it
    `binary_map`  the same with the number of right rows up to k: average precision proper
    `ndcg`        sum over k <= K of R_k / log2(k + 1), over the same sum in the best order; K rows have R > 0

    NaN for a query without a right row, or for `ndcg` without a relevant one. Of rows with equal similarity the less
    relevant come first, and a similarity that is not a number counts against the row or the query. Memory is bounded.
    Source: the evaluation of AVION and MM-TS (arXiv:2603.08202), whose figures it gives.
    """
    import torch

    query_QD, gallery_GD = (torch.as_tensor(rows).detach() for rows in (query_QD, gallery_GD))
    row_Q, column_G = _numpy(row_Q), _numpy(column_G)
    values_V, level_JL = np.unique(relevancy_JL, return_inverse=True)
    level_JL = level_JL.reshape(relevancy_JL.shape)
    bits = max(1, int(len(values_V) - 1).bit_length())
    gain_G = 1 / np.log2(np.arange(len(column_G)) + 2.0)
    total_G = np.concatenate([[0.0], np.cumsum(gain_G)])
    out = {name: np.full(len(query_QD), math.nan) for name in MEASURES}
    step = max(1, BLOCK_ELEMENTS // max(1, len(gallery_GD)))
    for start in range(0, len(query_QD), step):
        part = slice(start, start + step)
        s_bG = (query_QD[part] @ gallery_GD.T).float().cpu().numpy()
        level_bG = level_JL[row_Q[part]][:, column_G]
        level_bG = _in_order(
            s_bG, level_bG, relevant_bG=values_V[level_bG] > 0 if np.isnan(s_bG).any() else None, bits=bits
        )
        size_bV = np.stack([np.bincount(row, minlength=len(values_V)) for row in level_bG])
        end_bV = np.cumsum(size_bV[:, ::-1], axis=1)[:, ::-1]  # rows at least as relevant as each level
        best_b = ((total_G[end_bV] - total_G[end_bV - size_bV]) * values_V).sum(1)
        # nine of ten entries are of no relevancy: only the others are looked at
        b, k = np.nonzero(values_V[level_bG] > 0)
        r = values_V[level_bG[b, k]]
        relevant_b = np.bincount(b, minlength=len(s_bG))
        gained = np.where(k < relevant_b[b], r * gain_G[k], 0.0)
        right = r == 1
        n_b = np.bincount(b[right], minlength=len(s_bG))

        def mean_precision(seen: np.ndarray) -> np.ndarray:
            before_b = np.concatenate([[0.0], np.cumsum(np.bincount(b, weights=seen, minlength=len(s_bG)))])[:-1]  # noqa: B023
            up_to = np.cumsum(seen) - before_b[b]  # noqa: B023
            precision = (up_to / (k + 1))[right]  # noqa: B023
            return np.bincount(b[right], weights=precision, minlength=len(s_bG)) / n_b  # noqa: B023

        with np.errstate(invalid="ignore", divide="ignore"):
            out["map"][part] = mean_precision(r)
            out["binary_map"][part] = mean_precision(right.astype(np.float64))
            out["ndcg"][part] = np.bincount(b, weights=gained, minlength=len(s_bG)) / best_b
    return out


def _in_order(s_bG: np.ndarray, level_bG: np.ndarray, *, relevant_bG: np.ndarray | None, bits: int) -> np.ndarray:
    """The levels of each row by falling similarity, equal similarities by rising level.

    Similarity and level are packed in one integer: sorting numbers is several times as fast as sorting their places.
    """
    if relevant_bG is not None:
        s_bG = np.where(np.isnan(s_bG), np.where(relevant_bG, -np.inf, np.inf), s_bG).astype(np.float32)
    raw_bG = (s_bG + np.float32(0)).view(np.int32)  # -0 becomes 0
    # a float's bits rise with it while it is positive, and fall below 0
    key_bG = -(raw_bG ^ ((raw_bG >> 31) & np.int32(0x7FFFFFFF))).astype(np.int64)
    key_bG <<= bits
    key_bG |= level_bG
    key_bG.sort(axis=1)
    return key_bG & ((1 << bits) - 1)


def multi_instance(
    image_ND: "Rows",
    caption_CD: "Rows",
    relevancy_JL: np.ndarray,
    row_N: "Rows",
    column_C: "Rows",
    *,
    size_N: "Rows | None" = None,
    tercile_N: "Rows | None" = None,
) -> dict[str, float]:
    """Multi-instance retrieval of one split, from unit rows of its images and listed captions.

    Keys: i2t_map, t2i_map and map, their mean; the same with binary_map and ndcg. With `size_N`, the training size of
    each image's group, i2t_map of three equal parts of the images by that size: common_map, medium_map, rare_map and
    n_common, n_medium, n_rare. With `tercile_N` (0 tail, 1 mid, 2 head) i2t_map of each: tail_map, mid_map, head_map.
    """
    way = {
        "i2t": precision_and_gain(image_ND, caption_CD, relevancy_JL, row_N, column_C),
        "t2i": precision_and_gain(caption_CD, image_ND, np.ascontiguousarray(relevancy_JL.T), column_C, row_N),
    }
    out: dict[str, float] = {}
    for name in MEASURES:
        both = {f"{direction}_{name}": _mean(per[name][~np.isnan(per[name])]) for direction, per in way.items()}
        out |= {**both, name: 0.5 * sum(both.values())}
    map_N = way["i2t"]["map"]
    cuts = [(TERCILES, _numpy(tercile_N))] if tercile_N is not None else []
    cuts += [(THIRDS, thirds(_numpy(size_N)))] if size_N is not None else []
    for names, part_N in cuts:
        for part, name in enumerate(names):
            chosen = map_N[(part_N == part) & ~np.isnan(map_N)]
            out[f"{name}_map"] = _mean(chosen)
            if names is THIRDS:
                out[f"n_{name}"] = float(len(chosen))
    return out


def thirds(size_N: np.ndarray) -> np.ndarray:
    """Which third of the samples each is in by its group's size: 0 rare, 1 medium, 2 common; equal sizes stay together.

    A size goes where the middle of its samples lies.
    """
    _, place_N, count = np.unique(size_N, return_inverse=True, return_counts=True)
    middle = np.cumsum(count) - count / 2
    return np.minimum((3 * middle / max(1, len(size_N))).astype(np.int64), 2)[place_N]
