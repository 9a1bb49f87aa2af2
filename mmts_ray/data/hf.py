"""Hugging Face data sets on disk: a folder of `save_to_disk`, or parquet shards; read with pyarrow alone."""

import hashlib
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mmts_ray.data import picture
from mmts_ray.data.dataset import SPLITS, Dataset
from mmts_ray.data.drops import Drops
from mmts_ray.data.index import indexed
from mmts_ray.data.pairs import (
    CAPTION_NOT_TEXT,
    EMPTY_CAPTION,
    SPLIT_WORDS,
    UNKNOWN_SPLIT,
    Caption,
    Picture,
    assemble,
    caption_texts,
    file_stamp,
)
from mmts_ray.data.rows import check_columns
from mmts_ray.space import Choice, Float, Int, Text

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL.Image import Image

KIND = "hf 1"  # changes with what an index holds
STATE, PARTS = "state.json", "dataset_dict.json"
EMPTY_IMAGE = "no image given"
EMPTY = "image is empty (0 bytes)"
OTHER_SPLIT = "picture is in another split too"
ROW_GROUPS = 4  # of parquet files, kept decoded


def hf(
    *,
    path: Annotated[
        str, Text(path=True, doc="a folder that save_to_disk wrote, a folder of parquet shards, or one .parquet")
    ],
    image_column: Annotated[str, Text(doc="column with the picture: {bytes, path}, bytes, or a path")] = "image",
    caption_column: Annotated[str, Text(doc="column with the caption, or a list of captions")] = "caption",
    class_column: Annotated[str | None, Text(doc="column with the class", none="no classes")] = None,
    split_column: Annotated[
        str | None, Text(doc="column saying train, validation or test", none="the splits of the folder, or by seed")
    ] = None,
    validation_share: Annotated[float, Float(0.001, 0.9, doc="share for validation, without such a split")] = 0.1,
    test_share: Annotated[float, Float(0.0, 0.9, doc="share for the test, where nothing names a split")] = 0.1,
    seed: Annotated[int, Int(0, 2**31 - 1, doc="of the split")] = 0,
    strict: Annotated[bool, Choice((True, False), doc="refuse the data when one row cannot be used")] = False,
    max_dropped: Annotated[
        float, Float(0.0, 1.0, doc="refuse them when more than this share of rows is dropped")
    ] = 0.1,
) -> Dataset:
    """A Hugging Face data set with a picture and a caption column.

    Splits are those that `save_to_disk` wrote for a DatasetDict, or the first word of a shard's name or folder
    (`train-00000-of-00002.parquet`, `test/0.parquet`). Rows with the same bytes are one picture with several captions;
    class names come from the ClassLabel that the file declares. A row is counted through the files in order. Rows
    without picture or caption are dropped and counted, like pictures that are in two splits.
    Pictures are hashed once and the result kept in the cache. Arrow files are mapped: a picture is one read. Parquet
    gives whole row groups: four stay decoded, so training that shuffles such pictures is slow; save them to disk first.
    Raises ValueError, one line, for another folder, a missing column, or too many drops.
    """
    root = Path(path).expanduser().absolute()
    files, notes = _files(root)
    drops = Drops(source=root.name, strict=strict, max_dropped=max_dropped)
    pictures: dict[str, Picture] = {}
    captions: list[Caption] = []
    words = {name: column for name, column in (("class", class_column), ("split", split_column)) if column}
    row = 0
    for file, part in files:
        columns = _read(file, [image_column, caption_column, *words.values()])
        found = indexed(file, f"{KIND} {image_column}", lambda p: _index(p, image_column))
        names = _class_names(file, class_column) if class_column else ()
        for place, (identity, flaw, inside) in enumerate(found["pictures"]):
            row += 1
            texts, _ = caption_texts(columns[caption_column][place])
            word = str(columns[split_column][place]).strip().lower() if split_column else ""
            split = SPLIT_WORDS.get(word) if split_column else part
            if inside and not flaw:  # a path: the file may have changed since it was indexed
                flaw, stamp = file_stamp(root / inside)
                identity = f"{inside} {stamp}"
            known = pictures.get(identity)
            reason, detail = flaw, inside
            if not reason and texts is None:
                reason = CAPTION_NOT_TEXT
            elif not reason and not texts:
                reason = EMPTY_CAPTION
            elif not reason and split_column and split is None:
                reason, detail = UNKNOWN_SPLIT, repr(word)
            elif not reason and known is not None and known.split != split:
                reason = OTHER_SPLIT
            if reason:
                drops.add(row, reason, detail)
                continue
            if known is None:
                source = (str(root / inside), -1, "") if inside else (str(file), place, image_column)
                category = _category(columns[class_column][place], names) if class_column else ""
                pictures[identity] = Picture(source=source, stamp=identity, split=split, category=category)
            captions += [Caption(row, identity, text) for text in texts or ()]
    drops.total = row
    return assemble(
        pictures,
        captions,
        name=root.stem,
        drops=drops,
        opener=_open,
        seed=seed,
        validation_share=validation_share,
        test_share=test_share,
        notes=notes,
        classes=class_column is not None,
    )


def _files(root: Path) -> tuple[list[tuple[Path, int | None]], tuple[str, ...]]:
    """((file, its split), notes): every Arrow or parquet file of the data set, in order."""
    if root.is_file() and root.suffix == ".parquet":
        return [(root, _part(root.parent, root))], ()
    if not root.is_dir():
        raise ValueError(f"{root}: no such folder; data.path is a folder of save_to_disk, or of parquet shards")
    if (root / STATE).is_file():
        return [(file, None) for file in _arrow_files(root)], ()
    if (root / PARTS).is_file():
        names = _json(root / PARTS).get("splits") or []
        known = [name for name in names if name.lower() in SPLIT_WORDS]
        files: list[tuple[Path, int | None]]
        files = [(file, SPLIT_WORDS[name.lower()]) for name in known for file in _arrow_files(root / name)]
        if not files:
            raise ValueError(f"{root}: its splits are {', '.join(names) or 'none'}; legal are {', '.join(SPLIT_WORDS)}")
        other = [name for name in names if name not in known]
        return files, tuple(f"{root.name}: split {name} is not used" for name in other)
    shards = sorted(root.rglob("*.parquet"))
    if not shards:
        raise ValueError(
            f"{root}: neither {STATE} nor {PARTS} nor parquet shards; legal is a folder of save_to_disk, or of shards"
        )
    parts = [_part(root, shard) for shard in shards]
    if None in parts and len(set(parts)) > 1:
        odd = shards[parts.index(None)].name
        raise ValueError(
            f"{root}: {odd} names no split and others do; legal are {', '.join(SPLITS)} as first word of all"
        )
    return list(zip(shards, parts)), ()


def _part(root: Path, shard: Path) -> int | None:
    """The split that a parquet shard's name, or its folder's, begins with."""
    for word in (shard.name, *(folder for folder in shard.relative_to(root).parts[:-1])):
        first = re.split(r"[-_.]", word.lower())[0]
        if first in SPLIT_WORDS:
            return SPLIT_WORDS[first]
    return None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as problem:
        raise ValueError(f"{path}: cannot be read ({str(problem).splitlines()[0][:100]})") from None
    return found if isinstance(found, dict) else {}


def _arrow_files(folder: Path) -> list[Path]:
    if not (folder / STATE).is_file():
        raise ValueError(f"{folder}: no {STATE}; the folder is not one that save_to_disk wrote, or not whole")
    state = _json(folder / STATE)
    files = [folder / str(entry.get("filename")) for entry in state.get("_data_files") or [] if isinstance(entry, dict)]
    missing = [file for file in files if not file.is_file()]
    if missing or not files:
        raise ValueError(
            f"{folder}: {missing[0].name if missing else 'its data'} is not there, though {STATE} names it"
        )
    if state.get("_indices_data_files"):
        raise ValueError(f"{folder}: rows chosen by an index are not read; legal is ds.flatten_indices().save_to_disk")
    return files


@lru_cache(maxsize=512)
def _arrow(file: str) -> "pa.Table":
    """An Arrow file, mapped and not read."""
    import pyarrow as pa

    source = pa.memory_map(file)
    try:
        return pa.ipc.open_stream(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_file(source).read_all()


def _schema(file: Path) -> "pa.Schema":
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_schema(file) if file.suffix == ".parquet" else _arrow(str(file)).schema
    except (pa.ArrowException, OSError) as problem:
        raise ValueError(f"{file}: cannot be read ({str(problem).splitlines()[0][:100]})") from None


def _read(file: Path, wanted: list[str]) -> dict[str, list[Any]]:
    """The columns of a file but the first, which has the pictures; all are checked to be there."""
    import pyarrow.parquet as pq

    check_columns(file, _schema(file).names, wanted)
    small = wanted[1:]
    table = pq.read_table(file, columns=small) if file.suffix == ".parquet" else _arrow(str(file)).select(small)
    return {name: table[name].to_pylist() for name in small}


def _batches(file: Path, column: str) -> Iterator[list[Any]]:
    """The cells of a column, a few hundred at a time."""
    import pyarrow.parquet as pq

    if file.suffix == ".parquet":
        opened = pq.ParquetFile(file)
        batches = opened.iter_batches(batch_size=128, columns=[column])
    else:
        batches = iter(_arrow(str(file)).select([column]).to_batches(max_chunksize=128))
    for batch in batches:
        yield batch.column(0).to_pylist()


def _index(file: Path, column: str) -> dict[str, Any]:
    """`pictures`: for each row [hash of the bytes, why it cannot be used, or the path where there are no bytes]."""
    rows: list[tuple[str, str, str]] = []
    for cells in _batches(file, column):
        for cell in cells:
            raw, inside = _bytes_or_path(cell)
            if raw is not None:
                flaw = picture.flaw(raw) if raw else EMPTY
                rows.append((hashlib.sha256(raw).hexdigest()[:32], flaw, ""))
            else:
                rows.append(("", "" if inside else EMPTY_IMAGE, inside))
    return {"pictures": rows}


def _bytes_or_path(cell: Any) -> tuple[bytes | None, str]:
    """(bytes of a picture, or None; its path)."""
    if isinstance(cell, dict):
        cell = cell.get("bytes") if cell.get("bytes") is not None else cell.get("path")
    if isinstance(cell, bytes):
        return cell, ""
    return None, cell.strip() if isinstance(cell, str) else ""


def _open(place: tuple[str, int, str]) -> "Image":
    file, row, column = place
    if row < 0:
        return picture.read_rgb(Path(file))
    if file.endswith(".parquet"):
        group, first = _group_of(file, row)
        cell = _row_group(file, group, column)[row - first].as_py()
    else:
        cell = _arrow(file)[column][row].as_py()
    raw, _ = _bytes_or_path(cell)
    assert raw is not None, place
    return picture.read_rgb(raw)


@lru_cache(maxsize=512)
def _starts(file: str) -> list[int]:
    """The first row of each row group, and the number of rows."""
    import pyarrow.parquet as pq

    meta = pq.read_metadata(file)
    starts = [0]
    for group in range(meta.num_row_groups):
        starts.append(starts[-1] + meta.row_group(group).num_rows)
    return starts


def _group_of(file: str, row: int) -> tuple[int, int]:
    """(row group that a row is in, its first row)."""
    from bisect import bisect_right

    starts = _starts(file)
    group = bisect_right(starts, row) - 1
    return group, starts[group]


@lru_cache(maxsize=ROW_GROUPS)
def _row_group(file: str, group: int, column: str) -> "pa.ChunkedArray":
    import pyarrow.parquet as pq

    return pq.ParquetFile(file).read_row_group(group, columns=[column])[column]


def _class_names(file: Path, column: str) -> tuple[str, ...]:
    """The names of a ClassLabel column, from what the file says of its features; empty for other columns."""
    raw = (_schema(file).metadata or {}).get(b"huggingface", b"{}")
    try:
        features = json.loads(raw)["info"]["features"]
        names = features[column]["names"]
    except (ValueError, KeyError, TypeError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _category(cell: Any, names: tuple[str, ...]) -> str:
    if isinstance(cell, int) and 0 <= cell < len(names):
        return names[cell]
    return "(none)" if cell is None or str(cell).strip() == "" else str(cell).strip()
