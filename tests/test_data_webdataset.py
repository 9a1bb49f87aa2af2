"""Tar shards: indexed once, read at random, with the damage that people meet."""

import io
import json
import os
import pickle
import sys
import tarfile

import numpy as np
import pytest
from corpora import colour_of, jpeg, one_line, put, sample, shard, shards
from PIL import Image
from tiny_encoders import NAMES

from mmts_ray import space_file
from mmts_ray.config import from_flat
from mmts_ray.data import webdataset
from mmts_ray.data.webdataset import braces, index_shard
from mmts_ray.features import encode
from mmts_ray.train import TrainData, train

pytestmark = pytest.mark.usefixtures("own_cache")


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
