"""COCO, Karpathy's splits, tar shards and saved folders: small ones in the real format."""

import io
import json
import os
import tarfile
from pathlib import Path

import image_files
import numpy as np


def jpeg(number=0, mode="RGB", size=(16, 12)) -> bytes:
    """A picture of one colour that tells its number."""
    colour = {"RGB": (number % 256,) * 3, "L": number % 256, "CMYK": (number % 256, 10, 10, 0)}[mode]
    return image_files.jpeg(mode, colour, size, quality=95)


def put(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def one_line(caught) -> str:
    assert "\n" not in str(caught.value)
    return str(caught.value)


def colour_of(data, index) -> int:
    picture = data.image(index)
    assert picture.mode == "RGB"
    return int(np.asarray(picture)[0, 0, 0])


def official(root: Path, year="2017", train=20, val=5) -> Path:
    """A COCO folder with two captions a picture, and all its dirt."""
    annotation = 0
    for part, first, count in (("train", 1, train), ("val", 901, val)):
        images, annotations = [], []
        for number in range(first, first + count):
            name = f"{number:012d}.jpg" if year == "2017" else f"COCO_{part}2014_{number:012d}.jpg"
            images.append(
                {"id": number, "file_name": name, "height": 12, "width": 16, "license": 1, "coco_url": "http"}
            )
            put(root / f"{part}{year}" / name, jpeg(number, "L" if number == 2 else "CMYK" if number == 3 else "RGB"))
            for text in (f"A thing number {number}. ", f"a\nthing \n of {number}"):
                annotations.append({"id": annotation, "image_id": number, "caption": text})
                annotation += 1
        content = {"info": {"year": int(year)}, "licenses": [], "images": images, "annotations": annotations}
        put(root / "annotations" / f"captions_{part}{year}.json", json.dumps(content))
    return root


def karpathy(path: Path, entries: list[dict]) -> Path:
    for number, entry in enumerate(entries):
        entry["sentences"] = [
            {"raw": text, "tokens": text.split(), "imgid": number, "sentid": place}
            for place, text in enumerate(entry.pop("texts"))
        ]
    return put(path, json.dumps({"dataset": "coco", "images": entries}))


def shard(path: Path, members: list[tuple[str, bytes | str]], cut: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            raw = content if isinstance(content, bytes) else content.encode()
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    if cut:
        os.truncate(path, cut)
    return path


def sample(number: int, key: str | None = None) -> list[tuple[str, bytes | str]]:
    key = key or f"{number:09d}"
    return [
        (f"{key}.jpg", jpeg(number)),
        (f"{key}.txt", f"caption {number}"),
        (f"{key}.json", json.dumps({"caption": f"json caption {number}", "status": "success"})),
    ]


def shards(folder: Path, count=3, each=10) -> Path:
    for number in range(count):
        members = [m for i in range(each) for m in sample(number * each + i)]
        shard(folder / f"cc-{number:05d}.tar", members)
    return folder


def rows_of(count, first=0, per_picture=1):
    return [
        {
            "image": {"bytes": jpeg(first + n // per_picture), "path": f"{n}.jpg"},
            "caption": f"text {first + n}",
            "label": n % 2,
        }
        for n in range(count)
    ]


def arrow(rows, names=("cat", "dog")):
    import pyarrow as pa

    table = pa.Table.from_pylist(rows)
    features = {"image": {"_type": "Image"}, "label": {"names": list(names), "_type": "ClassLabel"}}
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def saved(folder: Path, rows, pieces=2) -> Path:
    """As `Dataset.save_to_disk` writes it: Arrow streams, state.json and dataset_info.json."""
    import pyarrow as pa

    folder.mkdir(parents=True)
    names = []
    for piece in range(pieces):
        table = arrow(rows[piece::pieces])
        names.append(f"data-{piece:05d}-of-{pieces:05d}.arrow")
        with pa.OSFile(str(folder / names[-1]), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0123", "_split": None}
    put(folder / "state.json", json.dumps(state))
    put(folder / "dataset_info.json", json.dumps({"features": {}}))
    return folder
