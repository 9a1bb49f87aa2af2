"""Folders and parquet of Hugging Face's datasets, with the dirt that people meet."""

import json
import pickle

import numpy as np
import pytest
from corpora import arrow, colour_of, jpeg, one_line, put, rows_of, saved

from mmts_ray.data import hf

pytestmark = pytest.mark.usefixtures("own_cache")


def test_a_saved_folder_is_read_by_row_without_the_datasets_package(tmp_path):
    data = hf(path=str(saved(tmp_path / "d", rows_of(20))), class_column="label")
    assert np.bincount(data.split_N).tolist() == [16, 2, 2]
    assert data.class_names == ("cat", "dog")
    for index, m in enumerate(np.argsort(data.image_M).tolist()):
        number = int(data.captions[m].split()[1])
        assert colour_of(data, index) == number
        assert data.class_names[data.class_N[index]] == ("cat", "dog")[number % 2]
    pickle.loads(pickle.dumps(data.image))(3)


def test_a_saved_dictionary_of_splits_keeps_them(tmp_path):
    root = tmp_path / "dict"
    for name, first, count in (("train", 0, 10), ("validation", 20, 4), ("test", 40, 3), ("unlabelled", 60, 2)):
        saved(root / name, rows_of(count, first=first), pieces=1)
    put(root / "dataset_dict.json", json.dumps({"splits": ["train", "validation", "test", "unlabelled"]}))
    data = hf(path=str(root))
    assert np.bincount(data.split_N).tolist() == [10, 4, 3]
    assert data.notes == ("dict: split unlabelled is not used",)


@pytest.mark.parametrize("kind", ["struct", "binary", "lists"])
def test_parquet_shards_of_every_form(tmp_path, kind):
    import pyarrow.parquet as pq

    for part, first, count in (("train", 0, 30), ("test", 50, 6)):
        rows = rows_of(count, first=first)
        for row in rows:
            if kind == "binary":
                row["image"] = row["image"]["bytes"]
            if kind == "lists":
                row["caption"] = [row["caption"], " second ", None]
        pq.write_table(arrow(rows), put(tmp_path / "data" / f"{part}-00000-of-00001.parquet", b""), row_group_size=7)
    data = hf(path=str(tmp_path), validation_share=0.1)
    assert np.bincount(data.split_N).tolist() == [27, 3, 6]
    assert len(data.captions) == (72 if kind == "lists" else 36)
    colours = [colour_of(data, i) for i in np.random.default_rng(0).permutation(36).tolist()]
    assert sorted(colours) == [*range(30), *range(50, 56)]


def test_dirty_rows_of_a_saved_folder_are_dropped_and_repeated_pictures_are_one(tmp_path):
    rows = rows_of(40, per_picture=2)
    rows += [
        {"image": None, "caption": "nothing", "label": 0},
        {"image": {"bytes": b"", "path": "x"}, "caption": "empty", "label": 0},
        {"image": {"bytes": b"<html>", "path": "x"}, "caption": "page", "label": 0},
        {"image": {"bytes": jpeg(99), "path": "x"}, "caption": "  ", "label": 0},
        {"image": {"bytes": None, "path": "pictures/gone.jpg"}, "caption": "gone", "label": 0},
        {"image": {"bytes": None, "path": "pictures/here.jpg"}, "caption": "a path", "label": 0},
    ]
    folder = saved(tmp_path / "d", rows, pieces=1)
    put(folder / "pictures" / "here.jpg", jpeg(150))
    data = hf(path=str(folder), max_dropped=0.2)
    assert data.dropped == {
        "no image given": 1,
        "image is empty (0 bytes)": 1,
        "not an image": 1,
        "empty caption": 1,
        "image file not found": 1,
    }
    assert len(data.image_ids) == 21
    assert np.bincount(data.image_M).tolist().count(2) == 20
    assert 150 in [colour_of(data, i) for i in range(21)]


def test_a_split_column_is_followed_and_a_picture_in_two_splits_is_dropped(tmp_path):
    rows = rows_of(20)
    for n, row in enumerate(rows):
        row["split"] = ("restval", "val", "test")[n % 3] if n else "train"
    rows.append({**rows[0], "caption": "the same picture", "split": "test"})
    data = hf(path=str(saved(tmp_path / "d", rows, pieces=1)), split_column="split")
    assert np.bincount(data.split_N).tolist() == [7, 7, 6]
    assert data.dropped == {"picture is in another split too": 1}


def test_hf_refuses_in_one_line(tmp_path):
    import pyarrow.parquet as pq

    good = saved(tmp_path / "d", rows_of(6))
    gone = saved(tmp_path / "g", rows_of(6))
    (gone / "data-00001-of-00002.arrow").unlink()
    chosen = saved(tmp_path / "c", rows_of(6))
    put(
        chosen / "state.json",
        json.dumps({**json.loads((chosen / "state.json").read_text()), "_indices_data_files": [1]}),
    )
    put(tmp_path / "p" / "x.parquet", b"not parquet")
    for name in ("train-0", "other"):
        pq.write_table(arrow(rows_of(3)), put(tmp_path / "mixed" / f"{name}.parquet", b""))
    (tmp_path / "empty").mkdir()
    for kwargs, words in (
        ({"path": "no/where"}, "no such folder; data.path is a folder of save_to_disk"),
        ({"path": str(tmp_path / "empty")}, "neither state.json nor dataset_dict.json nor parquet shards"),
        ({"path": str(good), "caption_column": "captoin"}, "no column 'captoin'.*caption"),
        ({"path": str(gone)}, "data-00001-of-00002.arrow is not there, though state.json names it"),
        ({"path": str(chosen)}, "legal is ds.flatten_indices"),
        ({"path": str(tmp_path / "p")}, "cannot be read"),
        ({"path": str(tmp_path / "mixed")}, "other.parquet names no split and others do"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            hf(**kwargs)
        one_line(caught)
