"""What the data of a study look like before anything is trained: repeats, false negatives, sizes of groups.

Shapes: N images, M caption rows, G groups with training pairs.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mmts_ray.data.dataset import TRAIN
from mmts_ray.features import Frozen
from mmts_ray.groups import cached

PARTS = ("tail", "mid", "head")  # by their number in `Groups.tercile_M`
MOST_SIZES = 500
MOST_COMPARED = 3000  # training images whose pairwise cosines are counted; of more, a fixed random draw
BINS = 40  # of cosines, from -1 to 1


def health(frozen: Frozen, *, source: str, kwargs: Mapping[str, Any], cache_dir: Path | None) -> dict[str, Any]:
    """Repeats and group sizes of the training split, as meta.json keeps them.

    `repeated_images`, `repeated_captions`: training images that look like an earlier one (equal features), training
    captions that an earlier image carries word for word. `false_negatives`: the chance that two random training images
    of a batch, each with a random caption of its own, show or say the same thing without sharing an id, so that the
    loss pushes them apart; `same_id` the chance that they share one, which every objective respects. A batch of B has
    B - 1 times as many per anchor. `groups`: the grouping behind head, middle and tail (`source`, `kwargs`), for each
    of them how many groups, training pairs, smallest and largest, and all sizes, or 101 quantiles of many.
    """
    rows = np.flatnonzero(frozen.split_N[frozen.image_M] == TRAIN)
    image_M, text_M = frozen.image_M[rows], frozen.text_M[rows]
    images = np.unique(image_M)
    look_N = np.zeros(len(frozen.image_NI), dtype=np.int64)
    # without features, every image is taken to look like no other
    seen = frozen.image_NI.shape[1] > 0
    look_N[images] = _same_rows(np.asarray(frozen.image_NI)[images]) if seen else np.arange(len(images))
    look_M, say_M, id_M = look_N[image_M], text_M.astype(np.int64), frozen.id_N[image_M].astype(np.int64)
    either = _chance(image_M, look_M) + _chance(image_M, say_M) - _chance(image_M, look_M, say_M)
    known = _chance(image_M, look_M, id_M) + _chance(image_M, say_M, id_M) - _chance(image_M, look_M, say_M, id_M)
    pairs = np.unique(np.stack([text_M, image_M], axis=1), axis=0)
    return {
        "repeated_images": int(len(images) - len(np.unique(look_N[images]))),
        "repeated_captions": int(len(pairs) - len(np.unique(pairs[:, 0]))),
        "false_negatives": max(0.0, either - known),
        "same_id": _chance(image_M, id_M),
        "groups": _sizes(frozen, rows, source=source, kwargs=kwargs, cache_dir=cache_dir),
        "similarities": _similarities(frozen, rows),
    }


def _similarities(frozen: Frozen, rows: np.ndarray) -> dict[str, Any]:
    """Shares of training pairs without a common id per cosine of the frozen encoders, `BINS` bins from -1 to 1.

    These are the teacher's cosines that a filter threshold is held against and an angular margin is scaled by, of the
    images and of their first captions.
    """
    images, first = np.unique(frozen.image_M[rows], return_index=True)
    if len(images) > MOST_COMPARED:
        drawn = np.sort(np.random.default_rng(0).choice(len(images), MOST_COMPARED, replace=False))
        images, first = images[drawn], first[drawn]
    id_N = frozen.id_N[images]
    other = id_N[:, None] != id_N[None, :]
    features = {"captions": frozen.text_UT[frozen.text_M[rows[first]]], "images": frozen.image_NI[images]}
    if not features["captions"].shape[1]:
        return {}
    features = {what: raw for what, raw in features.items() if raw.shape[1]}
    out: dict[str, Any] = {"images_compared": len(images)}
    for what, raw in features.items():
        unit = np.asarray(raw, dtype=np.float32)
        unit = unit / np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
        counts = np.histogram(np.clip(unit @ unit.T, -1, 1)[other], bins=np.linspace(-1, 1, BINS + 1))[0]
        out[what] = [float(f"{share:.6g}") for share in counts / max(1, counts.sum())]
    return out


def _sizes(
    frozen: Frozen, rows: np.ndarray, *, source: str, kwargs: Mapping[str, Any], cache_dir: Path | None
) -> dict[str, Any]:
    try:
        groups = cached(frozen, source, kwargs, cache_dir)
    except ValueError as problem:  # the trials will say so too, each in its own end record
        return {"source": source, **kwargs, "problem": str(problem)}
    third_G = np.full(len(groups.sizes_G), -1)
    third_G[groups.label_M[rows]] = groups.tercile_M[rows]
    out: dict[str, Any] = {"source": source, **kwargs}
    for third, name in enumerate(PARTS):
        sizes = groups.sizes_G[third_G == third]
        if len(sizes):
            ends = {"smallest": int(sizes.min()), "largest": int(sizes.max())}
            out[name] = {"groups": len(sizes), "pairs": int(sizes.sum()), **ends}
    many = len(groups.sizes_G) > MOST_SIZES
    shown = np.quantile(groups.sizes_G, np.linspace(0, 1, 101)) if many else groups.sizes_G[::-1]
    return {**out, "sizes": [int(size) for size in shown]}


def _same_rows(rows_NE: np.ndarray) -> np.ndarray:
    """A number for each row, the same for rows with the same bytes."""
    seen: dict[bytes, int] = {}
    digests = (hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=16).digest() for row in rows_NE)
    return np.array([seen.setdefault(digest, len(seen)) for digest in digests], dtype=np.int64)


def _chance(image_M: np.ndarray, *keys_M: np.ndarray) -> float:
    """The chance that two different random images, each with one of its rows at random, agree in all keys."""
    _, image_M, rows_N = np.unique(image_M, return_inverse=True, return_counts=True)
    images = len(rows_N)
    if images < 2:
        return 0.0
    weight_M = 1 / rows_N[image_M]
    _, key_M = np.unique(np.stack(keys_M, axis=1), axis=0, return_inverse=True)
    _, own_M = np.unique(key_M.astype(np.int64) * images + image_M, return_inverse=True)
    of_key, own = np.bincount(key_M, weights=weight_M), np.bincount(own_M, weights=weight_M)
    return float(((of_key**2).sum() - (own**2).sum()) / (images * (images - 1)))
