"""Flickr30k (and Flickr8k): a folder of pictures and one of the four files in which its captions go round."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from mmts_ray.data.dataset import Dataset
from mmts_ray.data.drops import Drops
from mmts_ray.data.karpathy import read_karpathy
from mmts_ray.data.pairs import CAPTION_NOT_TEXT, EMPTY_CAPTION, Caption, Picture, assemble, caption_texts, file_stamp
from mmts_ray.data.picture import read_rgb
from mmts_ray.data.rows import NOT_TEXT, Format, read_lines, read_rows
from mmts_ray.space import Choice, Float, Int, Text

FOLDERS = ("flickr30k-images", "flickr30k_images", "flickr30k_images/flickr30k_images", "images", "Images", ".")
IMAGE_COLUMNS = ("image", "image_name")
CAPTION_COLUMNS = ("caption", "comment")
NO_TAB = "no tab between picture and caption"
NO_NUMBER = "no # between picture and number"
NO_SEPARATOR = "lost separator"

Rows = Iterable[tuple[int, str, str]]  # row number, picture, caption


def flickr30k(
    *,
    path: Annotated[
        str, Text(path=True, doc="results_20130124.token, captions.txt, results.csv or dataset_flickr30k.json")
    ],
    images: Annotated[
        str | None, Text(path=True, doc="folder of the pictures", none="flickr30k-images, images, ... beside the file")
    ] = None,
    validation_share: Annotated[
        float, Float(0.001, 0.9, doc="share of images for validation, without a split")
    ] = 0.032,
    test_share: Annotated[float, Float(0.0, 0.9, doc="share of images for the test, without a split")] = 0.032,
    seed: Annotated[int, Int(0, 2**31 - 1, doc="of the split by image, where the file has none")] = 0,
    strict: Annotated[bool, Choice((True, False), doc="refuse the data when one row cannot be used")] = False,
    max_dropped: Annotated[
        float, Float(0.0, 1.0, doc="refuse them when more than this share of rows is dropped")
    ] = 0.1,
) -> Dataset:
    """Flickr30k: pictures with five captions each, split by Karpathy's file or by seed.

    The token file has lines `picture.jpg#0<TAB>caption`, captions.txt the columns image and caption, results.csv
    `image_name| comment_number| comment`; these have no split, so about 1,000 images each are drawn for validation and
    test. A row is a line, in Karpathy's JSON a picture. Rows that cannot be read (the line of results.csv that lost a
    separator), without a caption or with a missing or empty picture are dropped and counted.
    Raises ValueError, one line, for a file of another kind, without a folder of pictures, or when too much is dropped.
    """
    file = Path(path).expanduser().absolute()
    if not file.is_file():
        raise ValueError(
            f"{file}: no such file; data.path is results_20130124.token, captions.txt, results.csv or Karpathy's JSON"
        )
    drops = Drops(source=file.name, strict=strict, max_dropped=max_dropped)
    folder = _folder(file, images)
    if file.suffix.lower() == ".json":
        pictures, captions, notes = read_karpathy(file, drops, lambda _, name: (name, [folder / name]))
    else:
        pictures, captions = _pictures(_rows(file, drops), folder, drops)
        notes = ()
    return assemble(
        pictures,
        captions,
        name="flickr30k",
        drops=drops,
        opener=read_rgb,
        seed=seed,
        validation_share=validation_share,
        test_share=test_share,
        notes=notes,
    )


def _folder(file: Path, images: str | None) -> Path:
    if images is not None:
        folder = Path(images).expanduser().absolute()
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such folder; data.images is the folder of the pictures")
        return folder
    for name in FOLDERS:
        if (file.parent / name).is_dir() and any((file.parent / name).glob("*.jpg")):
            return file.parent / name
    raise ValueError(f"{file.parent}: no folder of pictures ({', '.join(FOLDERS)}) beside {file.name}; set data.images")


def _rows(file: Path, drops: Drops) -> Rows:
    """The captions of a text file, which its first line tells the kind of."""
    lines = read_lines(file, "utf-8")
    if not lines:
        raise ValueError(f"{file}: the file is empty")
    first = lines[0][1] or ""
    if "#" in first.partition("\t")[0] and "\t" in first:
        return _token_rows(lines, drops)
    if "|" in first:
        return _piped_rows(file, lines, drops)
    header = [name.strip().strip('"') for name in first.split(",")]
    image, caption = (next((n for n in names if n in header), "") for names in (IMAGE_COLUMNS, CAPTION_COLUMNS))
    if not image or not caption:
        raise ValueError(
            f"{file}: first line {first[:60]!r} is not one of Flickr30k's; legal are lines picture.jpg#0<TAB>caption, "
            "or a header image,caption or image_name| comment_number| comment"
        )
    rows, _ = read_rows(file, [image, caption], image, Format(delimiter=",", suffix=".csv"), drops)
    return [(number, cells[image], cells[caption]) for number, cells in rows]


def _token_rows(lines: list[tuple[int, str | None]], drops: Drops) -> Rows:
    for number, line in lines:
        drops.total += 1
        if line is None:
            drops.add(number, NOT_TEXT)
            continue
        mark, tab, caption = line.partition("\t")
        name, hash_mark, _ = mark.rpartition("#")
        if not tab or not hash_mark:
            drops.add(number, NO_NUMBER if tab else NO_TAB)
            continue
        yield number, name, caption


def _piped_rows(file: Path, lines: list[tuple[int, str | None]], drops: Drops) -> Rows:
    header = [name.strip() for name in (lines[0][1] or "").split("|")]
    if header[0] not in IMAGE_COLUMNS or header[-1] not in CAPTION_COLUMNS or len(header) != 3:
        raise ValueError(f"{file}: header {lines[0][1]!r}; legal is image_name| comment_number| comment")
    for number, line in lines[1:]:
        drops.total += 1
        if line is None:
            drops.add(number, NOT_TEXT)
            continue
        cells = line.split("|", 2)
        if len(cells) < 3:
            drops.add(number, NO_SEPARATOR, line.strip()[:40])
            continue
        yield number, cells[0], cells[2]


def _pictures(rows: Rows, folder: Path, drops: Drops) -> tuple[dict[str, Picture], list[Caption]]:
    pictures: dict[str, Picture] = {}
    captions: list[Caption] = []
    flaws: dict[str, str] = {}
    for row, cell, caption in rows:
        name = cell.strip()
        if name not in flaws:
            flaws[name], stamp = file_stamp(folder / name)
            if not flaws[name]:
                pictures[name] = Picture(source=folder / name, stamp=f"{name} {stamp}")
        texts, _ = caption_texts(caption)
        if not texts:
            drops.add(row, CAPTION_NOT_TEXT if texts is None else EMPTY_CAPTION, name)
        elif flaws[name]:
            drops.add(row, flaws[name], name)
        else:
            captions.append(Caption(row, name, texts[0]))
    return pictures, captions
