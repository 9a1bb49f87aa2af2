"""Pairs of pictures: both sides of a pair are pixels, so that two like encoders show what contrast does to a gap.

Pixels are in [-1, 1]. Shapes: N pairs, H height, W width, C channels, I = C H W flattened pixels.
"""

from collections.abc import Sequence

import numpy as np

from mmts_ray.data.dataset import Dataset, digest, number_classes
from mmts_ray.data.drops import Drops

VIEWS = ("shift", "rotate")


def two_views(pixels_NHW: np.ndarray, *, view: str, shift: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two pictures (N, H, W) of each, drawn once from `seed`: equal pictures through equal encoders would stay equal.

    shift: each side is moved by its own whole numbers of pixels, uniform in [-shift, shift] in both directions, onto
    ground of -1. rotate: the second side is turned by a quarter, the first is left as it is.
    """
    if view == "rotate":
        return pixels_NHW, np.rot90(pixels_NHW, axes=(1, 2))
    generator = np.random.default_rng(seed)
    sides = [_shifted(pixels_NHW, generator.integers(-shift, shift + 1, size=(len(pixels_NHW), 2))) for _ in range(2)]
    return sides[0], sides[1]


def _shifted(pixels_NHW: np.ndarray, by_N2: np.ndarray) -> np.ndarray:
    """Each picture moved down and right by its two numbers; what moves in is ground, -1."""
    out_NHW = np.full_like(pixels_NHW, -1)
    _, height, width = pixels_NHW.shape
    for down, right in np.unique(by_N2, axis=0).tolist():
        of = (by_N2 == (down, right)).all(axis=1)
        to_y, to_x = slice(max(down, 0), height + min(down, 0)), slice(max(right, 0), width + min(right, 0))
        from_y, from_x = slice(max(-down, 0), height - max(down, 0)), slice(max(-right, 0), width - max(right, 0))
        out_NHW[of, to_y, to_x] = pixels_NHW[of, from_y, from_x]
    return out_NHW


def two_sided(
    image_NI: np.ndarray,
    text_NI: np.ndarray,
    *,
    name: str,
    split_N: np.ndarray,
    ids: Sequence[str],
    classes: Sequence[str],
    rows: Sequence[int],
    drops: Drops,
    notes: tuple[str, ...] = (),
    credits: tuple[str, ...] = (),
) -> Dataset:
    """A data set of ready features from two pictures a pair, flattened; row i of both sides is pair i."""
    image_NI, text_NI = (
        np.ascontiguousarray(side, dtype=np.float32).reshape(len(side), -1) for side in (image_NI, text_NI)
    )
    every = np.arange(len(image_NI), dtype=np.int32)
    class_N, class_names = number_classes(classes)
    return Dataset(
        name=name,
        captions=(),
        image_M=every,
        split_N=split_N.astype(np.int8),
        id_N=every,
        image_ids=ids,
        row_M=np.asarray(rows, dtype=np.int64),
        drops=drops,
        images_fingerprint=digest(image_NI, text_NI),
        class_N=class_N,
        class_names=class_names,
        notes=notes,
        credits=credits,
        image_features_NI=image_NI,
        text_features_UT=text_NI,
        text_M=every,
    )
