"""COCO in the official splits and in Karpathy's, with the dirt that people meet."""

import json
import pickle

import numpy as np
import pytest
from corpora import colour_of, jpeg, karpathy, official, one_line, put

from mmts_ray.data import TEST, TRAIN, VALIDATION, coco


@pytest.mark.parametrize("year", ["2014", "2017"])
def test_coco_joins_annotations_to_images_and_tests_on_val(tmp_path, year):
    data = coco(path=str(official(tmp_path, year)), split=f"official_{year}", validation_share=0.1)
    assert np.bincount(data.split_N).tolist() == [18, 2, 5]
    assert [int(n.split("_")[-1].split("/")[-1][:12]) for n in data.image_ids] == [*range(1, 21), *range(901, 906)]
    assert np.bincount(data.image_M).tolist() == [2] * 25
    assert data.captions[:2] == ["A thing number 1.", "a thing of 1"]
    assert {"L": colour_of(data, 1), "CMYK": colour_of(data, 2)}["L"] == 2
    assert data.dropped == {}
    assert "no validation pictures; 2 of 20 training pictures taken" in data.notes[0]
    again = coco(path=str(tmp_path), split=f"official_{year}", validation_share=0.1, seed=1)
    assert (again.split_N != data.split_N).any()
    assert (again.split_N[-5:] == TEST).all()
    pickle.loads(pickle.dumps(data.image))(0)


def test_coco_counts_missing_empty_and_unknown_pictures_and_blank_captions(tmp_path):
    official(tmp_path)
    file = tmp_path / "annotations" / "captions_train2017.json"
    content = json.loads(file.read_text())
    (tmp_path / "train2017" / f"{4:012d}.jpg").unlink()
    put(tmp_path / "train2017" / f"{5:012d}.jpg", b"")
    content["images"].append({"id": 77, "file_name": "no_annotation.jpg"})
    content["annotations"] += [
        {"id": 900, "image_id": 12345, "caption": "of nothing"},
        {"id": 901, "image_id": 6, "caption": " \n "},
        {"id": 902, "image_id": 6, "caption": None},
        {"id": 903, "image_id": 6, "caption": 7},
    ]
    put(file, json.dumps(content))
    data = coco(path=str(tmp_path), split="official_2017", max_dropped=0.5)
    assert data.dropped == {
        "image file not found": 2,
        "image is empty (0 bytes)": 2,
        "empty caption": 2,
        "annotation of an image that the file does not list": 1,
        "caption is not text": 1,
    }
    assert len(data.image_ids) == 23
    assert "captions_train2017.json: 1 images have no annotation and are left out" in data.notes
    with pytest.raises(ValueError, match="strict refuses 8 of 54 rows") as caught:
        coco(path=str(tmp_path), split="official_2017", strict=True)
    assert "train2017/000000000004.jpg" in one_line(caught)
    with pytest.raises(ValueError, match=r"more than max_dropped=0.1 allows"):
        coco(path=str(tmp_path), split="official_2017")


def test_karpathys_split_of_coco_trains_on_restval_and_finds_pictures_of_2017(tmp_path):
    entries = []
    for number, split in enumerate(["train", "restval", "val", "test", "train", "train"]):
        folder = "train2014" if split == "train" else "val2014"
        name = f"COCO_{folder}_{number:012d}.jpg"
        entries.append(
            {
                "filepath": folder,
                "filename": name,
                "cocoid": number,
                "split": split,
                "texts": [f"one {number}", "two\n "],
            }
        )
        if number == 4:
            put(tmp_path / "train2017" / f"{number:012d}.jpg", jpeg(number))
        elif number != 5:
            put(tmp_path / folder / name, jpeg(number))
    file = karpathy(tmp_path / "annotations" / "dataset_coco.json", entries)
    data = coco(path=str(tmp_path), max_dropped=0.5)
    assert data.dropped == {"image file not found": 1}
    by_colour = {colour_of(data, i): int(data.split_N[i]) for i in range(len(data.image_ids))}
    assert by_colour == {0: TRAIN, 1: TRAIN, 2: VALIDATION, 3: TEST, 4: TRAIN}
    assert sorted(set(data.captions)) == ["one 0", "one 1", "one 2", "one 3", "one 4", "two"]
    same = coco(path=str(file), images=str(tmp_path), max_dropped=0.5)
    assert same.fingerprint == data.fingerprint


def test_coco_refuses_in_one_line_what_is_not_there(tmp_path):
    (tmp_path / "annotations").mkdir()
    for kwargs, words in (
        ({"path": str(tmp_path / "no")}, "no such file or folder; data.path is COCO's folder"),
        ({"path": str(tmp_path)}, "no dataset_coco.json there nor in its annotations/"),
        ({"path": str(tmp_path), "split": "official_2014"}, "no captions_train2014.json there nor"),
        ({"path": str(tmp_path), "images": str(tmp_path / "x")}, "x: no such folder; data.images is"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            coco(**kwargs)
        one_line(caught)
    for content, words in (
        (b"{", "not a JSON file"),
        (b"\xff\x00", "not a JSON file"),
        (b"[]", "no list 'images'; it has list"),
    ):
        put(tmp_path / "dataset_coco.json", content)
        with pytest.raises(ValueError, match=words) as caught:
            coco(path=str(tmp_path))
        one_line(caught)
    put(tmp_path / "captions_train2017.json", json.dumps({"annotations": [], "categories": []}))
    with pytest.raises(ValueError, match="'images' is not a list of objects"):
        coco(path=str(tmp_path), split="official_2017")
    with pytest.raises(ValueError, match="is a file; legal for split official_2017 is the folder"):
        coco(path=str(tmp_path / "dataset_coco.json"), split="official_2017")
