"""A small data set of ready features in which pairs can be learned: used where real encoders would only cost time."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from mmts_ray.data.relevance import Relevance, numbered
from mmts_ray.features import Frozen

# what a study of it fixes, small enough that a trial takes a moment
FIXED = {
    "data.name": "features",
    "data.path": "unused",
    "model.dim": 6,
    "eval.k": 3,
    "schedule.name": "cosine",
    "train.epochs": 3,
    "train.batch_size": 16,
}


def arrays(*, images: int = 90, captions_each: int = 1, seed: int = 0) -> dict[str, np.ndarray]:
    """Image and text features that share a hidden concept; classes of very unequal size; a fixed split."""
    rng = np.random.default_rng(seed)
    class_N = np.minimum(rng.geometric(0.35, size=images) - 1, 5)
    hidden_NE = rng.normal(size=(6, 8))[class_N] + 0.7 * rng.normal(size=(images, 8))
    image_M = np.repeat(np.arange(images), captions_each)
    image_NI = hidden_NE @ rng.normal(size=(8, 12)) + 0.1 * rng.normal(size=(images, 12))
    text_MT = hidden_NE[image_M] @ rng.normal(size=(8, 10)) + 0.2 * rng.normal(size=(len(image_M), 10))
    split_N = np.zeros(images, dtype=np.int64)
    split_N[images * 2 // 3 : images * 5 // 6] = 1
    split_N[images * 5 // 6 :] = 2
    return {"image": image_NI, "text": text_MT, "image_index": image_M, "class": class_N, "split": split_N}


def frozen(*, images: int = 90, captions_each: int = 1, seed: int = 0) -> Frozen:
    made = arrays(images=images, captions_each=captions_each, seed=seed)
    return Frozen(
        image_NI=made["image"].astype(np.float32),
        text_UT=made["text"].astype(np.float32),
        text_M=np.arange(len(made["text"]), dtype=np.int32),
        image_M=made["image_index"].astype(np.int32),
        split_N=made["split"].astype(np.int8),
        id_N=np.arange(images, dtype=np.int32),
        class_N=made["class"].astype(np.int32),
        key=f"toy-{images}-{captions_each}-{seed}",
    )


def npz(folder: Path, **kwargs: int) -> Path:
    """The same as a file that `data.name: features` reads."""
    made = arrays(**kwargs)
    path = folder / "toy.npz"
    named = np.array(["train", "validation", "test"])[made["split"]]
    features = {name: made[name].astype(np.float32) for name in ("image", "text")}
    others = {"image_index": made["image_index"], "class": made["class"].astype(str), "split": named}
    np.savez(path, **features, **others)
    return path


def graded(made: Frozen) -> Frozen:
    """The same features with a caption list of all splits and relevancy from made-up verb and noun classes."""
    rng = np.random.default_rng(0)
    keys = [(int(verb), {int(noun)}) for verb, noun in rng.integers(0, 3, (len(made.image_M), 2))]
    first = np.unique(made.image_M, return_index=True)[1]
    verb_K, noun_KV, key = numbered([*(keys[row] for row in first), *keys])
    images = len(first)
    split_C = made.split_N[made.image_M]
    relevance = Relevance(verb_K, noun_KV, key[:images], key[images:], split_C)
    return replace(made, key=f"{made.key}-graded", relevance=relevance, text_C=made.text_M)
