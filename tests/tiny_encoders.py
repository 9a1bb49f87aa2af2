"""Two encoders that cost nothing, `colour` and `letters`, and pictures of one colour for them."""

import numpy as np

from mmts_ray.data import TRAIN, Dataset, Drops
from mmts_ray.encoders import Tower

NAMES = {"image_encoder": "colour", "text_encoder": "letters"}


def colour_tower(log=None):
    """Mean colour of a picture; writes a line per load and per batch."""
    if log is not None:
        log.append("load")

    def run(inputs):
        if log is not None:
            log.append(len(inputs))
        return np.stack(inputs).astype(np.float32)

    return Tower(dim=3, batch_size=4, prepare=lambda p: np.asarray(p).mean((0, 1)), encode=run)


def letters_tower(log=None):
    if log is not None:
        log.append("load")

    def run(texts):
        if log is not None:
            log.append([len(t) for t in texts])
        return np.array([[len(t), sum(map(ord, t))] for t in texts], dtype=np.float32)

    return Tower(dim=2, batch_size=4, prepare=str, encode=run)


def colours(count=20, captions=None):
    """Pictures of one colour each, two captions a picture."""
    from PIL import Image

    def open_image(index):
        return Image.new("RGB", (4, 4), (index, 2 * index, 255 - index))

    every = np.arange(count, dtype=np.int32)
    return Dataset(
        name="colours",
        captions=captions or [f"{'x' * (i % 7)} {i // 4}" for i in range(2 * count)],
        image_M=np.repeat(every, 2).astype(np.int32),
        split_N=np.where(every % 5 == 4, 1, TRAIN).astype(np.int8),
        id_N=every,
        image_ids=[f"p{i}" for i in range(count)],
        row_M=np.arange(2 * count, dtype=np.int64) + 2,
        drops=Drops(source="colours", total=2 * count, max_dropped=0.5),
        images_fingerprint=f"colours {count}",
        image=open_image,
        class_N=(every % 3).astype(np.int32),
        class_names=("a", "b", "c"),
    )


def check(frozen, dataset):
    """The features are those of the data set's pictures and captions, row by row."""
    for m, caption in enumerate(dataset.captions):
        index = int(dataset.image_M[m])
        np.testing.assert_allclose(frozen.image_NI[frozen.image_M[m]], [index, 2 * index, 255 - index])
        np.testing.assert_allclose(frozen.text_UT[frozen.text_M[m]], [len(caption), sum(map(ord, caption))])
    assert len(frozen.text_UT) == len(set(dataset.captions))
    np.testing.assert_array_equal(frozen.split_N, dataset.split_N)
