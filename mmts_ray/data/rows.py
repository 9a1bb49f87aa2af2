"""Reading tables as people have them: csv, tsv, jsonl, parquet; each row with its number, each bad row accounted for.

Row numbers are those a text editor shows (the header is line 1); in parquet the first row is 1.
"""

import codecs
import csv
import gzip
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmts_ray.data.drops import Drops
from mmts_ray.space import did_you_mean

DELIMITERS = {".csv": ",", ".tsv": "\t"}
LONGEST_RECORD = 50  # lines that one quoted record may span
NOT_TEXT = "not text in this encoding"
UNBALANCED = "unbalanced quotes"
COLUMN_COUNT = "wrong number of columns"
REPEATED_HEADER = "repeated header"
NOT_JSON = "not a JSON object"

Line = tuple[int, str | None]  # number, text; None when the bytes are not text
Row = tuple[int, dict[str, Any]]


@dataclass(frozen=True)
class Format:
    """How a text table is written; `delimiter` None means by the suffix of the file's name, or by `suffix` instead."""

    delimiter: str | None = None
    encoding: str = "utf-8"
    suffix: str | None = None


def read_rows(
    path: Path, wanted: Sequence[str], marker: str, text: Format, drops: Drops
) -> tuple[list[Row], tuple[str, ...]]:
    """(rows with the wanted columns, notes). Rows that cannot be read go to `drops`, which also learns the total.

    `marker` is the column whose cells tell rows apart when quotes are unbalanced (the image).
    Raises ValueError, one line, for a missing file, an unknown suffix or a missing column.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file; data.path is a csv, tsv, jsonl or parquet file")
    suffixes = [s.lower() for s in path.suffixes]
    suffix = text.suffix or (suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else (suffixes or [""])[-1])
    if suffix == ".parquet":
        return _parquet_rows(path, wanted, drops), ()
    if suffix not in (*DELIMITERS, ".jsonl", ".ndjson"):
        raise ValueError(
            f"{path}: unknown kind of table; legal are .csv, .tsv, .jsonl, .ndjson (or these with .gz), .parquet"
        )
    lines = read_lines(path, text.encoding)
    if not lines:
        raise ValueError(f"{path}: the file is empty")
    if suffix in (".jsonl", ".ndjson"):
        return _json_rows(path, lines, wanted, drops), ()
    return _delimited_rows(path, lines, text.delimiter or DELIMITERS[suffix], wanted, marker, drops)


def read_lines(path: Path, encoding: str) -> list[Line]:
    """The lines of a text file that are not blank. A byte-order mark decides over `encoding`."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
    except (OSError, EOFError) as problem:
        raise ValueError(f"{path}: cannot be read ({problem})") from None
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif raw.startswith(codecs.BOM_UTF8):
        raw, encoding = raw[len(codecs.BOM_UTF8) :], "utf-8"
    try:
        lines: list[str | None] = [*_split(raw.decode(encoding))]
    except LookupError:
        raise ValueError(f"{path}: unknown encoding {encoding!r}; legal are utf-8, latin-1, cp1252, ...") from None
    except UnicodeDecodeError as problem:
        if codecs.lookup(encoding).name != "utf-8":
            raise ValueError(f"{path}: not {encoding} text ({problem.reason} at byte {problem.start})") from None
        lines = [_decoded(line) for line in raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")]
    return [(number, line) for number, line in enumerate(lines, start=1) if line is None or line.strip()]


def _split(text: str) -> list[str]:
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _decoded(line: bytes) -> str | None:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _not_text(number: int, drops: Drops) -> None:
    drops.add(number, NOT_TEXT, "not UTF-8; set data.encoding to latin-1 or cp1252 if that is what it is")


def _delimited_rows(
    path: Path, lines: list[Line], delimiter: str, wanted: Sequence[str], marker: str, drops: Drops
) -> tuple[list[Row], tuple[str, ...]]:
    if len(delimiter) != 1 or delimiter in '"\n\r':
        raise ValueError(f"data.delimiter: {delimiter!r} is not a delimiter; legal is one character, as , or ;")
    header = _single(lines[0][1] or "", delimiter)
    if lines[0][1] is None or header is None:
        raise ValueError(f"{path}: the header (line {lines[0][0]}) cannot be read")
    header = [name.strip() for name in header]
    check_columns(path, header, wanted, f" when split at {delimiter!r}")
    repeated = sorted({name for name in wanted if header.count(name) > 1})
    if repeated and drops.strict:
        raise ValueError(f"{path}: column {repeated[0]!r} appears {header.count(repeated[0])} times; strict needs one")
    notes = tuple(
        f"{path.name}: column {name!r} appears {header.count(name)} times, the first is used" for name in repeated
    )
    positions = {name: header.index(name) for name in wanted}
    rows: list[Row] = []
    for number, cells in _records(lines[1:], delimiter, len(header), positions[marker], drops):
        drops.total += 1
        if [cell.strip() for cell in cells] == header:
            drops.add(number, REPEATED_HEADER)
        elif len(cells) != len(header):
            drops.add(number, COLUMN_COUNT, f"{len(cells)} instead of {len(header)}")
        else:
            rows.append((number, {name: cells[position] for name, position in positions.items()}))
    return rows, notes


def _records(
    lines: list[Line], delimiter: str, width: int, marker: int, drops: Drops
) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of each record; a record whose quotes do not close costs its own line only."""
    at = 0
    while at < len(lines):
        number, line = lines[at]
        cells, used = None, 1
        if line is None:
            drops.total += 1
            _not_text(number, drops)
        else:
            cells = _single(line, delimiter)
            if cells is None:
                cells, used = _several(lines, at, delimiter, width, marker)
            if cells is None and delimiter == "\t" and line.count("\t") == width - 1:
                cells = line.split("\t")  # a quote in a tab-separated file may be just a quote
            if cells is None:
                drops.total += 1
                drops.add(number, UNBALANCED)
            else:
                yield number, cells
        at += used


def _single(line: str, delimiter: str) -> list[str] | None:
    """The cells of a record on one line, or None when its quotes do not balance."""
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error:
        return None


def _several(lines: list[Line], at: int, delimiter: str, width: int, marker: int) -> tuple[list[str] | None, int]:
    """(cells, lines used) of a quoted record over several lines; cells is None when it is not one.

    An opening quote that was never closed swallows rows up to the next quote. Such a record is told from a true one by
    what it swallowed: a line that is itself a row, with as many cells and the same kind of file name in the image cell.
    """
    joined = lines[at][1] or ""
    swallowed: list[str] = []
    for end in range(at + 1, min(at + LONGEST_RECORD, len(lines))):
        line = lines[end][1]
        if line is None:
            break
        joined += "\n" + line
        swallowed.append(line)
        if '"' not in line:
            continue
        try:
            cells = next(csv.reader(io.StringIO(joined), delimiter=delimiter, strict=True))
        except csv.Error as problem:
            if "end of data" in str(problem):
                continue  # the quote that would close it is further down
            break
        kind = Path(cells[marker]).suffix.lower() if len(cells) == width else None
        as_rows = [line.split(delimiter) for line in swallowed]
        if kind is None or any(len(r) == width and Path(r[marker].strip('"')).suffix.lower() == kind for r in as_rows):
            break
        return cells, end - at + 1
    return None, 1


def _json_rows(path: Path, lines: list[Line], wanted: Sequence[str], drops: Drops) -> list[Row]:
    rows: list[Row] = []
    columns: dict[str, None] = {}
    for number, line in lines:
        drops.total += 1
        if line is None:
            _not_text(number, drops)
            continue
        try:
            entry = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            entry = None
        if not isinstance(entry, dict):
            drops.add(number, NOT_JSON)
            continue
        columns.update(dict.fromkeys(entry))
        rows.append((number, {name: entry.get(name) for name in wanted}))
    if rows:
        check_columns(path, list(columns), wanted)
    return rows


def _parquet_rows(path: Path, wanted: Sequence[str], drops: Drops) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        check_columns(path, pq.read_schema(path).names, wanted)
        entries = pq.read_table(path, columns=list(wanted)).to_pylist()
    except (pa.ArrowException, OSError) as problem:
        raise ValueError(f"{path}: not a readable parquet file ({str(problem).splitlines()[0]})") from None
    drops.total += len(entries)
    return list(enumerate(entries, start=1))


def check_columns(path: Path, columns: Sequence[str], wanted: Sequence[str], how: str = "") -> None:
    """Refuse a table that lacks a wanted column."""
    for name in wanted:
        if name not in columns:
            shown = ", ".join(map(str, columns[:20])) + (", ..." if len(columns) > 20 else "")
            raise ValueError(f"{path}: no column {name!r}{did_you_mean(name, columns)}; it has{how}: {shown}")
