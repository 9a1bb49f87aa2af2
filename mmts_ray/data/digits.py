"""The 1,797 handwritten digits that come with scikit-learn, as pairs of views: no download."""

from typing import Annotated

import numpy as np

from mmts_ray.data.dataset import Dataset, split_by_id
from mmts_ray.data.drops import Drops
from mmts_ray.data.views import VIEWS, two_sided, two_views
from mmts_ray.space import Choice, Float, Int

BRIGHTEST = 16


def digits(
    *,
    view: Annotated[
        str, Choice(VIEWS, doc="how the two sides differ: each moved by its own few pixels, or the second turned by 90")
    ] = "shift",
    shift: Annotated[int, Int(0, 4, doc="largest move of view shift", unit="pixels")] = 1,
    validation_share: Annotated[float, Float(0.01, 0.9, doc="share of pictures for validation")] = 0.1,
    test_share: Annotated[float, Float(0.0, 0.9, doc="share of pictures for the test")] = 0.1,
    seed: Annotated[int, Int(0, 2**31 - 1, doc="of the split and of the moves, drawn once")] = 0,
) -> Dataset:
    """scikit-learn's digits, 8 x 8 pixels, 10 classes: both sides of a pair are the same digit, seen differently."""
    from sklearn.datasets import load_digits

    found = load_digits()
    pixels_NHW = (found.images / (BRIGHTEST / 2) - 1).astype(np.float32)
    sides = two_views(pixels_NHW, view=view, shift=shift, seed=seed)
    ids = [f"digit {row:04d}" for row in range(len(pixels_NHW))]
    shares = {"validation_share": validation_share, "test_share": test_share}
    split = split_by_id(ids, seed=seed, source="digits", **shares)
    return two_sided(
        *sides,
        name="digits",
        split_N=np.array([split[name] for name in ids]),
        ids=ids,
        classes=[str(label) for label in found.target.tolist()],
        rows=range(len(ids)),
        drops=Drops(source="digits", total=len(ids)),
        credits=("pictures: Optical Recognition of Handwritten Digits, by scikit-learn, BSD",),
    )
