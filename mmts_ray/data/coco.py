"""COCO captions: the official annotation files or Karpathy's split, beside the folders of pictures."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from mmts_ray.data.dataset import TEST, TRAIN, Dataset
from mmts_ray.data.drops import Drops
from mmts_ray.data.karpathy import read_json, read_karpathy
from mmts_ray.data.pairs import CAPTION_NOT_TEXT, EMPTY_CAPTION, Caption, Picture, assemble, caption_texts, file_stamp
from mmts_ray.data.picture import read_rgb
from mmts_ray.space import Choice, Float, Int, Text

KARPATHY = "dataset_coco.json"
YEARS = {"official_2014": "2014", "official_2017": "2017"}
NO_IMAGE = "annotation of an image that the file does not list"


def coco(
    *,
    path: Annotated[
        str, Text(path=True, doc="folder with annotations/ and train2017/, val2017/ (or 2014), or dataset_coco.json")
    ],
    images: Annotated[
        str | None, Text(path=True, doc="folder with train2017/, val2017/ (or 2014)", none="that of path")
    ] = None,
    split: Annotated[
        str,
        Choice(
            ("official_2017", "official_2014", "karpathy"),
            doc="official: val is the test, a share of train validates; karpathy: that of dataset_coco.json",
            source="arXiv:1504.00325; arXiv:1412.2306",
        ),
    ] = "karpathy",
    validation_share: Annotated[
        float, Float(0.001, 0.9, doc="share of the training images for validation, with an official split")
    ] = 0.05,
    seed: Annotated[int, Int(0, 2**31 - 1, doc="of the validation share")] = 0,
    strict: Annotated[bool, Choice((True, False), doc="refuse the data when one row cannot be used")] = False,
    max_dropped: Annotated[
        float, Float(0.0, 1.0, doc="refuse them when more than this share of rows is dropped")
    ] = 0.1,
) -> Dataset:
    """COCO captions: pictures with five captions each, some with more.

    A row is an annotation (counted through train, then val) of the official files, a picture of Karpathy's, whose
    `restval` belongs to training. Karpathy's names are those of 2014; where such a file is missing, that of 2017 with
    the same number is taken. Rows of missing or empty pictures and without a caption are dropped and counted; line
    breaks and outer blanks go from captions; images without annotation are left out with a note.
    Raises ValueError, one line, when a file is not there, not the expected JSON, or too much is dropped.
    """
    root = Path(path).expanduser().absolute()
    single = root.is_file()
    folder = Path(images).expanduser().absolute() if images else root.parent if single else root
    if not root.exists():
        raise ValueError(f"{root}: no such file or folder; data.path is COCO's folder, or {KARPATHY}")
    if images and not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; data.images is the folder with train2017/ and val2017/, or 2014")
    if single and split != "karpathy":
        raise ValueError(f"data.path: {root} is a file; legal for split {split} is the folder that has annotations/")
    drops = Drops(source=root.name, strict=strict, max_dropped=max_dropped)
    if split == "karpathy":
        file = root if single else _find(root, KARPATHY)

        pictures, captions, notes = read_karpathy(file, drops, partial(_places, folder))
    else:
        pictures, captions, notes = _official(root, folder, YEARS[split], drops)
    return assemble(
        pictures,
        captions,
        name="coco",
        drops=drops,
        opener=read_rgb,
        seed=seed,
        validation_share=validation_share,
        test_share=0.0,
        notes=notes,
    )


def _find(root: Path, name: str) -> Path:
    for folder in (root, root / "annotations"):
        if (folder / name).is_file():
            return folder / name
    raise ValueError(f"{root}: no {name} there nor in its annotations/; data.split chooses between the three files")


def _places(folder: Path, entry: dict[str, Any], name: str) -> tuple[str, list[Path]]:
    """(name, where Karpathy's picture may lie): under its own name, or under that of 2017."""
    part, number = entry.get("filepath"), entry.get("cocoid")
    inside = f"{part}/{name}" if isinstance(part, str) and part else name
    later = [f"{year}/{number:012d}.jpg" for year in ("train2017", "val2017")] if isinstance(number, int) else []
    return inside, [folder / inside, *(folder / place for place in later)]


def _official(
    root: Path, folder: Path, year: str, drops: Drops
) -> tuple[dict[str, Picture], list[Caption], tuple[str, ...]]:
    pictures: dict[str, Picture] = {}
    captions: list[Caption] = []
    notes: tuple[str, ...] = ()
    row = 0
    for part, split in ((f"train{year}", TRAIN), (f"val{year}", TEST)):
        file = _find(root, f"captions_{part}.json")
        found = read_json(file, "annotations", f"COCO's captions_{part}.json")
        listed = {entry.get("id"): entry for entry in read_json_list(file, found, "images")}
        looked: dict[Any, tuple[str, str]] = {}  # id -> (name, flaw)
        for annotation in read_json_list(file, found, "annotations"):
            row += 1
            drops.total += 1
            number = annotation.get("image_id")
            entry = listed.get(number)
            name = entry.get("file_name") if entry else None
            if not isinstance(name, str) or not name:
                drops.add(row, NO_IMAGE, f"{file.name}, image_id {number}")
                continue
            texts, _ = caption_texts(annotation.get("caption"))
            if number not in looked:
                inside = f"{part}/{name}"
                flaw, stamp = file_stamp(folder / inside)
                looked[number] = inside, flaw
                if not flaw:
                    pictures[inside] = Picture(source=folder / inside, stamp=f"{inside} {stamp}", split=split)
            inside, flaw = looked[number]
            if texts is None or len(texts) != 1:
                where = f"{file.name}, annotation {annotation.get('id')}"
                drops.add(row, CAPTION_NOT_TEXT if texts is None else EMPTY_CAPTION, where)
            elif flaw:
                drops.add(row, flaw, inside)
            else:
                captions.append(Caption(row, inside, texts[0]))
        bare = len(listed) - len(looked)
        notes += (f"{file.name}: {bare} images have no annotation and are left out",) if bare else ()
    return pictures, captions, notes


def read_json_list(file: Path, found: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The objects of a list; ValueError, one line, when it is not one of objects."""
    entries = found.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{file}: {key!r} is not a list of objects; legal is COCO's captions_*.json")
    return entries
