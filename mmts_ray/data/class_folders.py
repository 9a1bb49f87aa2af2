"""A folder with a folder of pictures for each class, as ImageNet and many others come: for zero-shot classification."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mmts_ray.data.dataset import TEST, Dataset, digest, number_classes
from mmts_ray.data.drops import Drops
from mmts_ray.data.pairs import file_stamp, open_at
from mmts_ray.data.picture import SUFFIXES, read_rgb

if TYPE_CHECKING:
    pass

MEANINGS = "classes.txt"


def class_folders(path: str | Path) -> Dataset:
    """Pictures `PATH/CLASS/...`, each with its class as caption: the name of the folder, _ read as a blank.

    Where names are codes, `PATH/classes.txt` says what they mean: lines of FOLDER<tab>name. Files with other endings
    are passed over; what cannot be decoded is dropped when it is encoded, up to a tenth. ValueError when there are
    fewer than two classes, or a folder has no name in classes.txt.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise ValueError(f"model.zeroshot: {root}: no such folder; legal is a folder with a folder for each class")
    meaning = _meanings(root / MEANINGS)
    files: list[Path] = []
    names: list[str] = []
    for folder in sorted(f for f in root.iterdir() if f.is_dir() and not f.name.startswith(".")):
        own = sorted(f for f in folder.rglob("*") if f.suffix.lower().removeprefix(".") in SUFFIXES)
        if own and meaning and folder.name not in meaning:
            raise ValueError(f"{root / MEANINGS}: no name for {folder.name!r}; legal is a line FOLDER<tab>name for it")
        files += own
        names += [meaning.get(folder.name, folder.name.replace("_", " "))] * len(own)
    class_N, class_names = number_classes(names)
    if len(class_names) < 2:
        raise ValueError(f"model.zeroshot: {root}: pictures of {len(class_names)} classes; legal is at least two")
    inside = [file.relative_to(root).as_posix() for file in files]
    everyone = np.arange(len(files), dtype=np.int32)
    return Dataset(
        name=root.name,
        captions=names,
        image_M=everyone,
        split_N=np.full(len(files), TEST, dtype=np.int8),
        id_N=everyone,
        image_ids=inside,
        row_M=everyone.astype(np.int64) + 1,
        drops=Drops(source=str(root), total=len(files), max_dropped=0.1),
        images_fingerprint=digest([f"{name} {file_stamp(file)}" for name, file in zip(inside, files)]),
        image=partial(open_at, read_rgb, files),
        class_N=class_N,
        class_names=class_names,
    )


def _meanings(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf8").splitlines(), 1):
        folder, _, name = line.partition("\t")
        if line.strip() and not name.strip():
            raise ValueError(f"{path}: line {number} is not FOLDER<tab>name")
        if line.strip():
            found[folder] = name.strip()
    return found
