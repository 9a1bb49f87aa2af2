"""From pictures with captions to a data set: what the readers of image-caption formats share.

Shapes: N images, M caption rows (pairs).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mmts_ray.data.dataset import SPLITS, TEST, TRAIN, VALIDATION, Dataset, digest, number_classes, split_by_id
from mmts_ray.data.drops import Drops

if TYPE_CHECKING:
    from PIL.Image import Image

EMPTY_CAPTION = "empty caption"
CAPTION_NOT_TEXT = "caption is not text"
UNKNOWN_SPLIT = "split is not train, validation or test"
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training", "restval"), TRAIN),  # restval: Karpathy's split of COCO
    **dict.fromkeys(("validation", "val", "valid", "dev"), VALIDATION),
    **dict.fromkeys(("test", "testing"), TEST),
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a data set: where it is, its part, and a stamp that changes when the picture does."""

    source: Any  # what the data set's `opener` takes
    stamp: str
    split: int | None = None  # None: drawn by seed
    category: str = ""


@dataclass(frozen=True, slots=True)
class Caption:
    """One caption of a picture, as a row of the source gives it."""

    row: int
    image: str  # name of the picture
    text: str


def one_line(text: str) -> str:
    """A caption without line breaks and repeated or outer blanks."""
    return " ".join(text.split())


def caption_texts(*cells: Any, clean: Callable[[str], str] = one_line) -> tuple[list[str] | None, int]:
    """(captions of cells that hold one or a list each, how many were blank); None when one holds what is not text.

    No word is special: "NA", "null" and "nan" are captions.
    """
    found: list[str] = []
    blank = 0
    for cell in cells:
        for text in cell if isinstance(cell, list | tuple) else [cell]:
            if text is None or (isinstance(text, str) and not text.strip()):
                blank += 1
            elif not isinstance(text, str) or any("\ud800" <= c <= "\udfff" for c in text):
                return None, blank
            else:
                found.append(clean(text))
    return found, blank


def assemble(
    pictures: Mapping[str, Picture],
    captions: Iterable[Caption],
    *,
    name: str,
    drops: Drops,
    opener: "Callable[[Any], Image]",
    seed: int,
    validation_share: float,
    test_share: float,
    notes: tuple[str, ...] = (),
    classes: bool = False,
) -> Dataset:
    """The data set of pictures with captions; every picture is its own id, and those without a caption are left out.

    Where no picture has a split, all are split by seed; where none is for validation, its share is taken from training.
    Pictures are kept in the order of their names, captions in that of their pictures and texts, so that the order of
    the source does not matter. Raises ValueError when too much was dropped or nothing is left to train on.
    """
    if not drops.total:
        raise ValueError(f"{drops.source}: it has no rows")
    drops.check()
    pairs = sorted({(c.image, c.text): c for c in reversed(list(captions))}.values(), key=lambda c: (c.image, c.text))
    names = sorted({c.image for c in pairs})
    position = {image: index for index, image in enumerate(names)}
    kept = [pictures[image] for image in names]
    split_N, split_notes = _split(names, kept, drops.source, seed, validation_share, test_share)
    class_N, class_names = number_classes([p.category for p in kept]) if classes else (None, ())
    return Dataset(
        name=name,
        captions=[c.text for c in pairs],
        image_M=np.array([position[c.image] for c in pairs], dtype=np.int32),
        split_N=split_N,
        id_N=np.arange(len(names), dtype=np.int32),
        image_ids=names,
        row_M=np.array([c.row for c in pairs], dtype=np.int64),
        drops=drops,
        images_fingerprint=digest([p.stamp for p in kept]),
        image=partial(open_at, opener, [p.source for p in kept]),
        class_N=class_N,
        class_names=class_names,
        notes=notes + split_notes,
    )


def open_at(opener: "Callable[[Any], Image]", sources: Sequence[Any], index: int) -> "Image":
    """Picture `index` of the sources; what a data set's `image` is made of."""
    return opener(sources[index])


def _split(
    names: Sequence[str], kept: Sequence[Picture], source: str, seed: int, validation_share: float, test_share: float
) -> tuple[np.ndarray, tuple[str, ...]]:
    """(split of each picture, notes) by what the source says, by seed where it says nothing."""
    if all(p.split is None for p in kept):
        drawn = split_by_id(names, seed=seed, validation_share=validation_share, test_share=test_share, source=source)
        return np.array([drawn[name] for name in names], dtype=np.int8), ()
    split_N = np.array([TRAIN if p.split is None else p.split for p in kept], dtype=np.int8)
    training = [name for name, split in zip(names, split_N) if split == TRAIN]
    if not training:
        raise ValueError(f"{source}: no picture is for training; its parts are {_parts(split_N)}")
    if (split_N == VALIDATION).any():
        return split_N, ()
    drawn = split_by_id(training, seed=seed, validation_share=validation_share, test_share=0.0, source=source)
    for index, name in enumerate(names):
        split_N[index] = drawn.get(name, split_N[index])
    chosen = int((split_N == VALIDATION).sum())
    return split_N, (f"{source}: no validation pictures; {chosen} of {len(training)} training pictures taken for it",)


def _parts(split_N: np.ndarray) -> str:
    return ", ".join(f"{name} {int((split_N == part).sum())}" for part, name in enumerate(SPLITS))


def file_stamp(path: Path) -> tuple[str, str]:
    """(why a file cannot be a picture, or nothing; its size and time of change). It is not opened."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a name that no file system takes
        return "image file not found", ""
    if status.st_size == 0:
        return "image is empty (0 bytes)", ""
    return "", f"{status.st_size} {status.st_mtime_ns}"
