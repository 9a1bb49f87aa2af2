"""A user's own table: a row has a picture (a file or bytes), one or several captions, perhaps id, class and split.

Shapes: N images, M caption rows (pairs).
"""

import hashlib
import os.path
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from mmts_ray.data import picture
from mmts_ray.data.dataset import SPLITS, TRAIN, VALIDATION, Dataset, digest, joined, number_classes, split_by_id
from mmts_ray.data.drops import Drops
from mmts_ray.data.pairs import CAPTION_NOT_TEXT, EMPTY_CAPTION, SPLIT_WORDS, UNKNOWN_SPLIT, caption_texts, open_at
from mmts_ray.data.rows import Format, read_rows
from mmts_ray.space import Choice, Float, Int, Text

EMPTY_IMAGE = "no image given"
EMPTY_ID = "empty id"
NO_CLASS = "(none)"


@dataclass(frozen=True)
class Pair:
    """One picture with one caption, as a row of the table gives it."""

    row: int
    image: str  # identity of the picture
    caption: str
    id: str
    category: str
    split: int


def table(
    *,
    path: Annotated[
        str, Text(path=True, doc="the table: .csv, .tsv, .jsonl, .parquet; pictures are sought from its folder")
    ],
    image_column: Annotated[str, Text(doc="column with the picture: a path, or its bytes in parquet")] = "image",
    caption_columns: Annotated[
        str, Text(doc="column with the caption or a list of captions; several columns: a,b,c")
    ] = "caption",
    id_column: Annotated[
        str | None, Text(doc="column with an id; equal ids are never negatives", none="every picture is its own id")
    ] = None,
    class_column: Annotated[str | None, Text(doc="column with the class", none="no classes")] = None,
    split_column: Annotated[
        str | None, Text(doc="column saying train, validation or test", none="a seeded split by id")
    ] = None,
    validation_share: Annotated[float, Float(0.0, 0.9, doc="share of ids for validation, without split_column")] = 0.1,
    test_share: Annotated[float, Float(0.0, 0.9, doc="share of ids for the test, without split_column")] = 0.1,
    seed: Annotated[int, Int(0, 2**31 - 1, doc="of the split, without split_column")] = 0,
    delimiter: Annotated[
        str | None, Text(doc="one character between the cells", none="comma in .csv, tab in .tsv")
    ] = None,
    encoding: Annotated[str, Text(doc="text encoding; a byte-order mark decides over it")] = "utf-8",
    strict: Annotated[bool, Choice((True, False), doc="refuse the table when one row cannot be used")] = False,
    max_dropped: Annotated[float, Float(0.0, 1.0, doc="refuse it when more than this share of rows is dropped")] = 0.1,
) -> Dataset:
    """Pictures and captions from a table.

    Rows with the same picture are one image with several captions. Rows that cannot be used (no picture, no caption,
    broken quotes, ...) are dropped, counted by reason with their row numbers. A picture that turns out truncated when
    it is decoded for encoding is dropped and counted there in the same way. Pairs are kept sorted by picture and
    caption, so the order of the rows does not matter. Raises ValueError, one line, for a table that cannot be used.
    """
    where = Path(path).expanduser()
    drops = Drops(source=where.name, strict=strict, max_dropped=max_dropped)
    columns = [name.strip() for name in caption_columns.split(",") if name.strip()]
    if not columns:
        raise ValueError("data.caption_columns: no column named; legal is a column, or several as a,b,c")
    wanted = list(dict.fromkeys([image_column, *columns, *filter(None, (id_column, class_column, split_column))]))
    rows, notes = read_rows(where, wanted, image_column, Format(delimiter=delimiter, encoding=encoding), drops)
    pictures = _Pictures(where.parent)
    pairs: list[Pair] = []
    blanks = 0
    for number, cells in rows:
        identity, reason, detail = pictures.look(cells[image_column])
        captions, blank = caption_texts(*(cells[name] for name in columns), clean=str.strip)
        own_id = _word(cells[id_column]) if id_column else identity
        category = _word(cells[class_column]) if class_column else ""
        word = _word(cells[split_column]) if split_column else "train"
        if not reason:
            if captions is None:
                reason, detail = CAPTION_NOT_TEXT, ""
            elif not captions:
                reason, detail = EMPTY_CAPTION, ""
            elif not own_id:
                reason, detail = EMPTY_ID, ""
            elif word.lower() not in SPLIT_WORDS:
                reason, detail = UNKNOWN_SPLIT, repr(word)
        if reason:
            drops.add(number, reason, detail)
            continue
        blanks += blank
        split = SPLIT_WORDS[word.lower()]
        pairs += [Pair(number, identity, caption, own_id, category or NO_CLASS, split) for caption in captions or ()]
    if not drops.total:
        raise ValueError(f"{where}: the table has no rows")
    drops.check()
    if blanks:
        notes += (f"{where.name}: {blanks} blank captions skipped in rows that have others",)
    pairs.sort(key=lambda p: (p.image, p.caption, p.row))
    names = sorted({p.image for p in pairs})
    position = {name: index for index, name in enumerate(names)}
    image_M = np.array([position[p.image] for p in pairs], dtype=np.int32)
    id_N, id_names = _join_ids(pairs, image_M, len(names))
    if split_column:
        split_I, note = _given_split(where.name, pairs, id_N[image_M], id_names, seed, validation_share)
        notes += note
    else:
        shares = {"validation_share": validation_share, "test_share": test_share}
        drawn = split_by_id(id_names, seed=seed, source=where.name, **shares)
        split_I = np.array([drawn[name] for name in id_names], dtype=np.int8)
    class_N: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    if class_column:
        class_N, class_names, note = _classes(where.name, pairs, names)
        notes += note
    return Dataset(
        name=where.stem,
        captions=[p.caption for p in pairs],
        image_M=image_M,
        split_N=split_I[id_N],
        id_N=id_N,
        image_ids=names,
        row_M=np.array([p.row for p in pairs], dtype=np.int64),
        drops=drops,
        images_fingerprint=digest([pictures.stamp(name) for name in names]),
        image=partial(open_at, picture.read_rgb, [pictures.sources[name] for name in names]),
        class_N=class_N,
        class_names=class_names,
        notes=notes,
    )


class _Pictures:
    """The distinct pictures of a table, each looked at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources: dict[str, picture.Source] = {}
        self.looked: dict[str, tuple[str, str, str]] = {}

    def look(self, cell: Any) -> tuple[str, str, str]:
        """(identity, reason, detail) of the picture in a cell; the reason is empty when it can be used, so far."""
        inside = (
            (cell.get("bytes") or cell.get("path")) if isinstance(cell, dict) else cell
        )  # as Hugging Face writes it
        if isinstance(inside, bytes) and inside:
            name = hashlib.sha256(inside).hexdigest()
            if name not in self.looked:
                self.looked[name] = (name, picture.flaw(inside), "")
                self.sources[name] = inside
            return self.looked[name]
        if not isinstance(inside, str) or not inside.strip():
            return "", EMPTY_IMAGE, ""
        if inside not in self.looked:
            # a name may well end in a space, so the text as it stands goes first
            raw = inside if os.path.isfile(self.folder / inside) else inside.strip()
            name = Path(os.path.normpath(raw)).as_posix()
            self.sources[name] = self.folder / name
            self.looked[inside] = (name, picture.flaw(self.folder / name), name)
        return self.looked[inside]

    def stamp(self, name: str) -> str:
        """Changes when the picture changes: its hash, or its file's size and time of change."""
        source = self.sources[name]
        if isinstance(source, bytes):
            return name
        status = source.stat()
        return f"{name} {status.st_size} {status.st_mtime_ns}"


def _word(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def _join_ids(pairs: Sequence[Pair], image_M: np.ndarray, images: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """(id of each image, id names): a picture with two ids makes them one, so that no split can divide it."""
    given_M, given = number_classes([p.id for p in pairs])
    group_N, group_I = joined(image_M, given_M, lefts=images, rights=len(given))
    first_name: dict[int, str] = {}
    for group, name in zip(group_I.tolist(), given):
        first_name.setdefault(group, name)
    return number_classes([first_name[group] for group in group_N.tolist()])


def _given_split(
    source: str, pairs: Sequence[Pair], id_M: np.ndarray, id_names: Sequence[str], seed: int, validation_share: float
) -> tuple[np.ndarray, tuple[str, ...]]:
    """(split of each id, notes) as the table says; a table without validation rows has some drawn from training."""
    first: dict[int, Pair] = {}
    for pair, own_id in sorted(zip(pairs, id_M.tolist()), key=lambda entry: entry[0].row):
        other = first.setdefault(own_id, pair)
        if other.split != pair.split:
            raise ValueError(
                f"{source}: {id_names[own_id]!r} is in {SPLITS[other.split]} (row {other.row}) and in "
                f"{SPLITS[pair.split]} (row {pair.row}); an id, and a picture, belongs to one split"
            )
    split_I = np.array([first[own_id].split for own_id in range(len(id_names))], dtype=np.int8)
    if not (split_I == TRAIN).any():
        raise ValueError(f"{source}: the split column names no training row; legal are {', '.join(SPLIT_WORDS)}")
    if (split_I == VALIDATION).any():
        return split_I, ()
    training = [name for name, split in zip(id_names, split_I) if split == TRAIN]
    drawn = split_by_id(training, seed=seed, validation_share=validation_share, test_share=0.0, source=source)
    chosen = [index for index, name in enumerate(id_names) if drawn.get(name) == VALIDATION]
    split_I[chosen] = VALIDATION
    return split_I, (f"{source}: no validation rows; {len(chosen)} of {len(training)} training ids taken for it",)


def _classes(
    source: str, pairs: Sequence[Pair], names: Sequence[str]
) -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """(class of each image, class names, notes); a picture with several classes gets the first in sorted order."""
    per_image: dict[str, set[str]] = {name: set() for name in names}
    for pair in pairs:
        per_image[pair.image].add(pair.category)
    several = sum(len(found) > 1 for found in per_image.values())
    class_N, class_names = number_classes([min(per_image[name]) for name in names])
    note = (f"{source}: {several} pictures have several classes, the first in sorted order is used",) if several else ()
    return class_N, class_names, note
