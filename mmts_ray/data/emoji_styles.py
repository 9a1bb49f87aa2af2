"""The same things drawn twice: pairs of pictures in two styles, from a folder of pictures with a table."""

import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np

from mmts_ray.data import picture
from mmts_ray.data.dataset import Dataset
from mmts_ray.data.drops import Drops
from mmts_ray.data.pairs import SPLIT_WORDS, UNKNOWN_SPLIT
from mmts_ray.data.rows import Format, read_rows
from mmts_ray.data.views import two_sided
from mmts_ray.space import Choice, Float, Int, Text

TABLE, ARCHIVE = "captions.csv", "images.zip"
COLUMNS = ("id", "split", "style", "concept", "group")
ONE_STYLE = "no picture of the other style"
TWICE = "concept has a picture of this style already"
BROKEN = "image cannot be decoded"


def emoji_styles(
    *,
    path: Annotated[
        str,
        Text(path=True, doc="folder with captions.csv (id, split, style, concept, group) and images.zip, or pictures"),
    ],
    first: Annotated[str, Text(doc="style of the first side, as in the column style")] = "noto",
    second: Annotated[str, Text(doc="style of the second side")] = "twemoji",
    size: Annotated[int, Int(8, 224, doc="side that pictures are reduced to", unit="pixels")] = 32,
    strict: Annotated[bool, Choice((True, False), doc="refuse the folder when one picture cannot be used")] = False,
    max_dropped: Annotated[float, Float(0.0, 1.0, doc="refuse it when more than this share is dropped")] = 0.1,
) -> Dataset:
    """Drawings of one thing in two styles, square, on white: a pair is the two drawings of a concept.

    Pictures are members `ID.webp` (or png, jpg) of images.zip, or files beside the table. The class is the group. A row
    is a line of the table; rows of other styles are left alone, rows without a partner or with a broken picture are
    dropped and counted. Raises ValueError, one line, for another folder, or when too much is dropped.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise ValueError(f"{root}: no such folder; data.path is the folder that has {TABLE}")
    drops = Drops(source=root.name, strict=strict, max_dropped=max_dropped)
    rows, _ = read_rows(root / TABLE, COLUMNS, "id", Format(), drops)
    styles = {cells["style"] for _, cells in rows}
    for style in (first, second):
        if style not in styles or first == second:
            raise ValueError(
                f"{root / TABLE}: styles {first!r} and {second!r}; legal are two of {', '.join(sorted(styles))}"
            )
    drops.total = len(drops.rows) + sum(cells["style"] in (first, second) for _, cells in rows)
    by_style: dict[str, dict[str, tuple[int, dict[str, str]]]] = {first: {}, second: {}}
    for number, cells in rows:
        side = by_style.get(cells["style"])
        if side is None:
            continue
        if cells["split"].strip().lower() not in SPLIT_WORDS:
            drops.add(number, UNKNOWN_SPLIT, repr(cells["split"]))
        elif cells["concept"] in side:
            drops.add(number, TWICE, cells["concept"])
        else:
            side[cells["concept"]] = number, cells
    for mine, other in ((first, second), (second, first)):
        for concept, (number, _) in by_style[mine].items():
            if concept not in by_style[other]:
                drops.add(number, ONE_STYLE, concept)
    both = sorted(by_style[first].keys() & by_style[second].keys())
    split_of = {c: {SPLIT_WORDS[by_style[s][c][1]["split"].strip().lower()] for s in by_style} for c in both}
    divided = [concept for concept in both if len(split_of[concept]) > 1]
    if divided:
        raise ValueError(f"{root / TABLE}: concept {divided[0]!r} is in two splits; a concept belongs to one")
    reader = _reader(root)
    kept, sides = [], []
    for concept in both:
        drawn = []
        for style in (first, second):
            number, cells = by_style[style][concept]
            try:
                drawn.append(_pixels(reader(cells["id"]), size))
            except (OSError, KeyError, SyntaxError, ValueError) as problem:
                drops.add(number, BROKEN, f"{cells['id']}: {' '.join(str(problem).split())[:80]}")
        if len(drawn) == 2:
            kept.append(concept)
            sides.append(drawn)
    drops.check()
    pixels_2NI = np.stack([np.stack([pair[side] for pair in sides]) for side in range(2)])
    return two_sided(
        *pixels_2NI,
        name=f"{root.name} {first}/{second}",
        split_N=np.array([min(split_of[concept]) for concept in kept]),
        ids=kept,
        classes=[by_style[first][concept][1]["group"] for concept in kept],
        rows=[by_style[first][concept][0] for concept in kept],
        drops=drops,
        notes=drops.notes(),
    )


def _pixels(raw: bytes, size: int) -> np.ndarray:
    """Pixels (3, size, size) in [-1, 1] of a picture on white, cut square in the middle."""
    from PIL import Image

    opened = picture.read_rgb(raw)
    side = min(opened.size)
    left, top = ((length - side) // 2 for length in opened.size)
    reduced = opened.resize((size, size), Image.Resampling.BOX, box=(left, top, left + side, top + side))
    return (np.asarray(reduced, dtype=np.float32) / 127.5 - 1).transpose(2, 0, 1)


def _reader(root: Path) -> Callable[[str], bytes]:
    """How to get at the bytes of a picture by its id: from images.zip, else from a file beside the table."""
    if (root / ARCHIVE).is_file():
        try:
            archive = zipfile.ZipFile(root / ARCHIVE)
        except zipfile.BadZipFile as problem:
            raise ValueError(f"{root / ARCHIVE}: not a zip file ({problem})") from None
        return partial(_from, {Path(name).stem: name for name in archive.namelist()}, archive.read)
    files = [file for folder in (root, root / "images") if folder.is_dir() for file in sorted(folder.iterdir())]
    found = {file.stem: str(file) for file in files if file.suffix.lower().lstrip(".") in picture.SUFFIXES}
    if not found:
        raise ValueError(f"{root}: neither {ARCHIVE} nor pictures there nor in images")
    return partial(_from, found, lambda name: Path(name).read_bytes())


def _from(names: dict[str, str], read: Callable[[str], bytes], own_id: str) -> bytes:
    if own_id not in names:
        raise OSError("no such picture")
    return read(names[own_id])
