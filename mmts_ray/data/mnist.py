"""MNIST, Fashion-MNIST, KMNIST and EMNIST from idx files, as pairs of views.

An idx file is big-endian: 2051, number, height, width, then a byte a pixel; or 2049, number, then a byte a label.
"""

import gzip
import string
from pathlib import Path
from typing import Annotated

import numpy as np

from mmts_ray.data.dataset import TEST, TRAIN, VALIDATION, Dataset, split_by_id
from mmts_ray.data.drops import Drops
from mmts_ray.data.views import VIEWS, two_sided, two_views
from mmts_ray.space import Choice, Float, Int, Text

IMAGES_MAGIC, LABELS_MAGIC = 2051, 2049
FOLDERS = (".", "raw", "gzip", "MNIST/raw", "EMNIST/raw", "FashionMNIST/raw", "KMNIST/raw")
LETTERS = "abdefghnqrt"  # small letters that balanced and bymerge tell from their capitals
CLASS_NAMES = {
    "letters": " " + string.ascii_lowercase,  # labelled from 1
    "byclass": string.digits + string.ascii_uppercase + string.ascii_lowercase,
    "balanced": string.digits + string.ascii_uppercase + LETTERS,
    "bymerge": string.digits + string.ascii_uppercase + LETTERS,
}


def mnist(
    *,
    path: Annotated[
        str, Text(path=True, doc="folder with the idx files, with or without .gz, or with MNIST/raw in it")
    ],
    emnist: Annotated[
        str | None,
        Choice(
            (None, "balanced", "byclass", "bymerge", "digits", "letters", "mnist"),
            doc="which of EMNIST's sets (stored transposed, turned upright); null: MNIST's file names",
            source="arXiv:1702.05373",
        ),
    ] = None,
    view: Annotated[
        str, Choice(VIEWS, doc="how the two sides differ: each moved by its own few pixels, or the second turned by 90")
    ] = "shift",
    shift: Annotated[int, Int(0, 14, doc="largest move of view shift", unit="pixels")] = 4,
    images: Annotated[
        int | None, Int(10, 1_000_000, doc="training pictures that are used, drawn by seed", none="all of them")
    ] = None,
    validation_share: Annotated[float, Float(0.001, 0.9, doc="share of the training pictures for validation")] = 0.1,
    seed: Annotated[int, Int(0, 2**31 - 1, doc="of the validation share and of the moves, drawn once")] = 0,
) -> Dataset:
    """Handwritten digits or letters, 28 x 28 pixels: both sides of a pair are the same picture, seen differently.

    The test files are the test; a share of the training pictures validates. A row is a picture, from 0 through the
    training file, then through the test file. Raises ValueError, one line, for a missing, cut-off or other file and for
    files that do not belong together.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise ValueError(f"{root}: no such folder; data.path is the folder with the idx files of MNIST or EMNIST")
    parts = [_read_part(root, emnist, part) for part in ("train", "test")]
    if parts[0][0].shape[1:] != parts[1][0].shape[1:]:
        raise ValueError(f"{root}: training pictures are {_size(parts[0][0])}, test pictures {_size(parts[1][0])}")
    training = len(parts[0][0])
    chosen = np.arange(training)
    if images is not None and images < training:
        chosen = np.sort(np.random.default_rng(seed).choice(training, images, replace=False))
    pixels_NHW = np.concatenate([parts[0][0][chosen], parts[1][0]])
    if emnist is not None:
        pixels_NHW = pixels_NHW.transpose(0, 2, 1)
    labels_N = np.concatenate([parts[0][1][chosen], parts[1][1]])
    sides = two_views(pixels_NHW.astype(np.float32) / 127.5 - 1, view=view, shift=shift, seed=seed)
    rows = [*chosen.tolist(), *range(training, training + len(parts[1][0]))]
    ids = [f"picture {row:06d}" for row in rows]
    drawn = split_by_id(ids[: len(chosen)], seed=seed, validation_share=validation_share, test_share=0, source="mnist")
    split_N = np.array([TRAIN if drawn.get(name) == TRAIN else VALIDATION for name in ids], dtype=np.int8)
    split_N[len(chosen) :] = TEST
    return two_sided(
        *sides,
        name=f"emnist {emnist}" if emnist else root.name if root.name not in ("raw", "gzip") else "mnist",
        split_N=split_N,
        ids=ids,
        classes=_names(root, emnist, labels_N),
        rows=rows,
        drops=Drops(source="mnist", total=len(ids)),
    )


def _size(pixels_NHW: np.ndarray) -> str:
    return " x ".join(map(str, pixels_NHW.shape[1:]))


def _read_part(root: Path, emnist: str | None, part: str) -> tuple[np.ndarray, np.ndarray]:
    """(pictures, labels) of the training or test files."""
    start = f"emnist-{emnist}-{part}" if emnist else {"train": "train", "test": "t10k"}[part]
    image_file, label_file = (_find(root, start, kind) for kind in ("images-idx3", "labels-idx1"))
    pixels_NHW, labels_N = read_idx(image_file, IMAGES_MAGIC), read_idx(label_file, LABELS_MAGIC)
    if len(pixels_NHW) != len(labels_N):
        raise ValueError(
            f"{label_file}: {len(labels_N)} labels for the {len(pixels_NHW)} pictures of {image_file.name}"
        )
    if not len(pixels_NHW):
        raise ValueError(f"{image_file}: no pictures in it")
    return pixels_NHW, labels_N


def _find(root: Path, start: str, kind: str) -> Path:
    # torchvision writes train-images-idx3-ubyte, the archives of others train-images.idx3-ubyte
    names = [f"{start}-{kind}-ubyte", f"{start}-{kind.replace('-idx', '.idx')}-ubyte"]
    for folder in FOLDERS:
        for name in names:
            for file in (root / folder / name, root / folder / f"{name}.gz"):
                if file.is_file():
                    return file
    raise ValueError(f"{root}: no {names[0]}, with or without .gz, there nor in {', '.join(FOLDERS[1:])}")


def read_idx(file: Path, magic: int) -> np.ndarray:
    """The bytes of an idx file in their shape; ValueError, one line, for another file or one that was cut off."""
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, ValueError) as problem:
        raise ValueError(f"{file}: cannot be read ({problem})") from None
    except Exception as problem:  # zlib raises its own
        raise ValueError(f"{file}: not a gzip file ({problem})") from None
    dims = magic % 256
    if len(raw) < 4 + 4 * dims:
        raise ValueError(f"{file}: {len(raw)} bytes; the header of an idx file of {dims} dimensions has {4 + 4 * dims}")
    header = np.frombuffer(raw[: 4 + 4 * dims], dtype=">u4")
    if header[0] != magic:
        raise ValueError(f"{file}: begins with {header[0]}; an idx file of {dims} dimensions begins with {magic}")
    shape = tuple(int(n) for n in header[1:])
    body = np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * dims)
    if len(body) != np.prod(shape, dtype=np.int64):
        raise ValueError(f"{file}: {len(body)} bytes of content for a shape of {shape}; the file is not whole")
    return body.reshape(shape)


def _names(root: Path, emnist: str | None, labels_N: np.ndarray) -> list[str]:
    known = CLASS_NAMES.get(emnist or "", string.digits)
    if int(labels_N.max()) >= len(known):
        raise ValueError(f"{root}: label {int(labels_N.max())}; legal for this set is 0 to {len(known) - 1}")
    return [known[label] for label in labels_N.tolist()]
