"""Features that the user has computed already: no picture is opened and no encoder runs.

Shapes: N images, M caption rows (pairs), U unique captions, I and T feature dimensions.
"""

import zipfile
from collections.abc import Collection, Sequence
from itertools import repeat
from pathlib import Path
from typing import Annotated

import numpy as np

from mmts_ray.data.dataset import SPLITS, TRAIN, VALIDATION, Dataset, digest, number_classes, split_by_id
from mmts_ray.data.drops import Drops
from mmts_ray.data.pairs import SPLIT_WORDS
from mmts_ray.space import Choice, Float, Int, Text, did_you_mean

REQUIRED = ("image", "text")
PER_IMAGE = ("id", "class", "split")
NAMES = (*REQUIRED, "image_index", "caption", *PER_IMAGE)
NOT_FINITE = "features are not finite"


def features(
    *,
    path: Annotated[
        str, Text(path=True, doc=".npz or .parquet with image and text features, or the image features as .npy")
    ],
    text_path: Annotated[
        str | None, Text(path=True, doc="the text features as .npy", none="they are in the file of path")
    ] = None,
    validation_share: Annotated[
        float, Float(0.0, 0.9, doc="share of ids for validation, when no split is given")
    ] = 0.1,
    test_share: Annotated[float, Float(0.0, 0.9, doc="share of ids for the test, when no split is given")] = 0.1,
    seed: Annotated[int, Int(0, 2**31 - 1, doc="of the split, when none is given")] = 0,
    strict: Annotated[bool, Choice((True, False), doc="refuse the file when one row cannot be used")] = False,
    max_dropped: Annotated[float, Float(0.0, 1.0, doc="refuse it when more than this share of rows is dropped")] = 0.1,
) -> Dataset:
    """Image and text features as arrays: `image` (N, I) and `text` (M, T), one text row per caption.

    `image_index` (M) says which image each text row belongs to. Without it N = M, and equal image rows (with equal id,
    class and split) are one image. Optional: `id`, `class`, `split` (N each) and `caption` (M). In parquet a row is a
    pair and the features are list columns. Rows with NaN or infinity are dropped and counted, rows from 0.
    Raises ValueError, one line, for arrays that do not fit together.
    """
    where = Path(path).expanduser()
    arrays = _read(where, None if text_path is None else Path(text_path).expanduser())
    image_NI, text_MT = (_matrix(where, name, arrays[name]) for name in REQUIRED)
    captions = _column(where, "caption", arrays, len(text_MT))
    given = {name: _column(where, name, arrays, len(image_NI)) for name in PER_IMAGE if name in arrays}
    if "image_index" in arrays:
        image_M = _image_index(where, arrays["image_index"], len(image_NI), len(text_MT))
    elif len(image_NI) != len(text_MT):
        raise ValueError(
            f"{where}: image has {len(image_NI)} rows and text {len(text_MT)}; without image_index (a whole "
            "number per text row) they must be as many"
        )
    else:
        chosen, image_M = _distinct(image_NI, given.values())
        image_NI, given = _take(image_NI, given, chosen)
    drops = Drops(source=where.name, total=len(text_MT), strict=strict, max_dropped=max_dropped)
    usable_M = np.isfinite(image_NI).all(axis=1)[image_M] & np.isfinite(text_MT).all(axis=1)
    for row in np.flatnonzero(~usable_M).tolist():
        drops.add(row, NOT_FINITE)
    drops.check()
    row_M = np.flatnonzero(usable_M)
    chosen, image_M = np.unique(image_M[row_M], return_inverse=True)
    image_NI, given = _take(image_NI, given, chosen)
    text_MT, _ = _take(text_MT, {}, row_M)
    chosen, text_M = _distinct(text_MT, ())
    text_UT, _ = _take(text_MT, {}, chosen)

    ids = given.get("id") or [f"image {index}" for index in range(len(image_NI))]
    id_N, id_names = number_classes(ids)
    if "split" in given:
        split_N = _given_split(where, given["split"], ids)
    else:
        shares = {"validation_share": validation_share, "test_share": test_share}
        drawn = split_by_id(id_names, seed=seed, source=where.name, **shares)
        split_N = np.array([drawn[name] for name in ids], dtype=np.int8)
    class_N, class_names = number_classes(given["class"]) if "class" in given else (None, ())
    return Dataset(
        name=where.stem,
        captions=[captions[row] for row in row_M] if captions else (),
        image_M=image_M.astype(np.int32),
        split_N=split_N,
        id_N=id_N,
        image_ids=ids,
        row_M=row_M.astype(np.int64),
        drops=drops,
        images_fingerprint=digest(image_NI, text_UT),
        class_N=class_N,
        class_names=class_names,
        image_features_NI=image_NI,
        text_features_UT=text_UT,
        text_M=text_M,
    )


def _read(path: Path, text_path: Path | None) -> dict[str, np.ndarray]:
    """The arrays of the file or files, by name; nothing that is pickled is loaded."""
    kind = path.suffix.lower()
    for wanted in filter(None, (path, text_path)):
        if not wanted.is_file():
            raise ValueError(f"{wanted}: no such file")
    if (kind == ".npy") != (text_path is not None):
        raise ValueError(f"{path}: image features as .npy need data.text_path, a .npy too, and no other kind takes it")
    try:
        if text_path is not None:
            return {"image": np.load(path, mmap_mode="r"), "text": np.load(text_path, mmap_mode="r")}
        if kind == ".npz":
            with np.load(path) as archive:
                arrays = {name: archive[name] for name in archive.files if name in NAMES}
                names = archive.files
        elif kind == ".parquet":
            arrays, names = _read_parquet(path)
        else:
            raise ValueError(f"{path}: unknown kind of features; legal are .npz, .parquet, or two .npy")
    except (OSError, EOFError, zipfile.BadZipFile) as problem:
        raise ValueError(f"{path}: cannot be read ({str(problem).splitlines()[0]})") from None
    except ValueError as problem:
        if "pickle" not in str(problem):
            raise
        raise ValueError(f"{path}: holds Python objects; save numbers and plain text arrays only") from None
    for name in REQUIRED:
        if name not in arrays:
            raise ValueError(
                f"{path}: no array {name!r}{did_you_mean(name, names)}; it has {', '.join(names)}; "
                f"needed are {', '.join(REQUIRED)}, known too: {', '.join(n for n in NAMES if n not in REQUIRED)}"
            )
    return arrays


def _read_parquet(path: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(path).names
        columns = pq.read_table(path, columns=[name for name in names if name in NAMES and name != "image_index"])
    except (pa.ArrowException, OSError) as problem:
        raise ValueError(f"{path}: not a readable parquet file ({str(problem).splitlines()[0]})") from None
    arrays = {}
    for name in columns.column_names:
        values = columns[name].to_pylist()
        if name in REQUIRED:
            if len({len(v) if isinstance(v, list) else -1 for v in values}) > 1:
                raise ValueError(f"{path}: column {name!r} has rows of different lengths; all need the same dimension")
            arrays[name] = np.array(values)
        else:
            arrays[name] = np.array(["" if v is None else str(v) for v in values])
    return arrays, names


def _matrix(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    if array.ndim != 2 or not len(array) or not array.shape[1] or array.dtype.kind not in "fiu":
        raise ValueError(
            f"{path}: {name} has shape {array.shape} and type {array.dtype}; "
            "legal are numbers of shape (rows, dimension)"
        )
    # what does not fit in float32 becomes infinite and is dropped as such
    with np.errstate(over="ignore"):
        return np.asarray(array, dtype=np.float32)


def _column(path: Path, name: str, arrays: dict[str, np.ndarray], rows: int) -> list[str]:
    """A column of words, one per row; empty when there is none."""
    array = arrays.get(name)
    if array is None:
        return []
    if array.shape != (rows,):
        raise ValueError(f"{path}: {name} has shape {array.shape}; {rows} values are needed, one per row")
    return [str(value) for value in array.tolist()]


def _image_index(path: Path, array: np.ndarray, images: int, rows: int) -> np.ndarray:
    if array.shape != (rows,) or array.dtype.kind not in "iu":
        raise ValueError(
            f"{path}: image_index has shape {array.shape} and type {array.dtype}; {rows} whole numbers are needed, "
            "one per text row"
        )
    if rows and (array.min() < 0 or array.max() >= images):
        raise ValueError(f"{path}: image_index runs from {array.min()} to {array.max()}; legal is 0 to {images - 1}")
    return array.astype(np.int64)


def _distinct(rows_RC: np.ndarray, beside: Collection[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
    """(first position of each distinct row, in order; which of them each row is), equal in the columns `beside` too."""
    seen: dict[tuple[object, ...], int] = {}
    which = [
        seen.setdefault((row.tobytes(), *words), len(seen))
        for row, words in zip(rows_RC, zip(*beside) if beside else repeat(()))
    ]
    which_R = np.array(which, dtype=np.int32)
    _, firsts = np.unique(which_R, return_index=True)
    return firsts, which_R


def _take(
    rows_RC: np.ndarray, words: dict[str, list[str]], chosen: np.ndarray
) -> tuple[np.ndarray, dict[str, list[str]]]:
    """The chosen rows (in ascending order); everything is left as it is, uncopied, when all are."""
    if len(chosen) == len(rows_RC):
        return rows_RC, words
    return rows_RC[chosen], {name: [column[i] for i in chosen.tolist()] for name, column in words.items()}


def _given_split(path: Path, words: Sequence[str], ids: Sequence[str]) -> np.ndarray:
    first: dict[str, str] = {}
    for word, own_id in zip(words, ids):
        if word.strip().lower() not in SPLIT_WORDS:
            raise ValueError(f"{path}: split has {word!r}; legal are {', '.join(SPLIT_WORDS)}")
        if first.setdefault(own_id, word) != word:
            raise ValueError(f"{path}: id {own_id!r} is in {first[own_id]} and in {word}; an id belongs to one split")
    split_N = np.array([SPLIT_WORDS[word.strip().lower()] for word in words], dtype=np.int8)
    for part in (TRAIN, VALIDATION):
        if not (split_N == part).any():
            raise ValueError(f"{path}: split has no {SPLITS[part]} row; legal are {', '.join(SPLIT_WORDS)}")
    return split_N
