"""Features that somebody else has computed."""

import numpy as np
import pytest

from mmts_ray.data import TEST, TRAIN, VALIDATION, features


def arrays(images=12, per_image=2, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "image": rng.normal(size=(images, 6)).astype(np.float32),
        "text": rng.normal(size=(images * per_image, 4)).astype(np.float32),
        "image_index": np.repeat(np.arange(images), per_image),
    }


def test_features_from_npz(tmp_path):
    given = arrays()
    given |= {"class": np.array(["x", "y"] * 6), "id": np.arange(12) // 2, "caption": np.array(["a"] * 24)}
    np.savez(tmp_path / "f.npz", **given)
    data = features(path=str(tmp_path / "f.npz"))
    assert data.image is None
    np.testing.assert_array_equal(data.image_features_NI, given["image"])
    np.testing.assert_array_equal(data.text_features_UT[data.text_M], given["text"])
    assert data.image_M.tolist() == given["image_index"].tolist()
    assert data.class_names == ("x", "y")
    assert len(set(data.id_N.tolist())) == 6
    for own_id in range(6):
        assert len(set(data.split_N[data.id_N == own_id].tolist())) == 1
    assert list(data.captions) == ["a"] * 24


def test_features_from_npy_and_parquet_are_the_same(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    given = arrays()
    image = given["image"][given["image_index"]]  # one row per pair: equal rows are one image
    np.save(tmp_path / "image.npy", image)
    np.save(tmp_path / "text.npy", given["text"].astype(np.float64))
    words = ["train"] * 16 + ["val"] * 4 + ["test"] * 4
    columns = {"image": image.tolist(), "text": given["text"].tolist(), "split": words}
    pq.write_table(pa.table(columns), tmp_path / "f.parquet")
    from_npy = features(path=str(tmp_path / "image.npy"), text_path=str(tmp_path / "text.npy"))
    from_parquet = features(path=str(tmp_path / "f.parquet"))
    for data in (from_npy, from_parquet):
        np.testing.assert_array_equal(data.image_features_NI, given["image"])
        assert data.image_M.tolist() == given["image_index"].tolist()
        np.testing.assert_array_equal(data.text_features_UT[data.text_M], given["text"])
    assert from_npy.images_fingerprint == from_parquet.images_fingerprint
    assert from_parquet.split_N.tolist() == [TRAIN] * 8 + [VALIDATION] * 2 + [TEST] * 2


def test_equal_texts_are_one_and_rows_that_are_not_finite_are_dropped_and_counted(tmp_path):
    given = arrays()
    given["text"][5] = given["text"][0]
    given["image"][3, 2] = np.nan
    given["text"][20, 1] = np.inf
    np.savez(tmp_path / "f.npz", **given)
    data = features(path=str(tmp_path / "f.npz"), max_dropped=0.2)
    assert data.dropped == {"features are not finite": 3}
    assert sorted(row for row, _, _ in data.drops.rows) == [6, 7, 20]
    assert data.row_M.tolist() == [m for m in range(24) if m not in (6, 7, 20)]
    assert data.image_features_NI.shape == (11, 6)
    assert data.text_features_UT.shape == (20, 4)
    np.testing.assert_array_equal(data.text_features_UT[data.text_M], given["text"][data.row_M])
    np.testing.assert_array_equal(
        data.image_features_NI[data.image_M], given["image"][given["image_index"][data.row_M]]
    )
    with pytest.raises(ValueError, match=r"strict refuses 3 of 24 rows: row 6: features are not finite"):
        features(path=str(tmp_path / "f.npz"), strict=True)
    with pytest.raises(ValueError, match=r"max_dropped=0.1"):
        features(path=str(tmp_path / "f.npz"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_index": None}, r"image has 12 rows and text 24; without image_index"),
        ({"image_index": np.arange(24)}, r"image_index runs from 0 to 23; legal is 0 to 11"),
        ({"image_index": np.arange(23) // 2}, r"image_index has shape \(23,\).*24 whole numbers"),
        ({"image_index": np.arange(24) / 2}, r"type float64; 24 whole numbers"),
        ({"image": np.ones(12)}, r"image has shape \(12,\).*\(rows, dimension\)"),
        ({"text": np.array([["a"] * 4] * 24)}, "legal are numbers"),
        ({"text": np.ones((0, 4))}, r"text has shape \(0, 4\)"),
        ({"image": None, "img": np.ones((12, 6))}, r"no array 'image'.*it has text, image_index, img; needed are"),
        ({"class": np.array(["x"] * 5)}, r"class has shape \(5,\); 12 values"),
        ({"split": np.array(["train"] * 12)}, "split has no validation row"),
        ({"split": np.array(["trian"] * 12)}, "split has 'trian'; legal are train"),
        ({"split": np.array(["train", "val"] * 6), "id": np.zeros(12)}, r"id '0.0' is in train and in val"),
        ({"caption": np.array(["x", None] * 12, dtype=object)}, "holds Python objects"),
    ],
)
def test_features_that_do_not_fit_together_are_refused_in_one_line(tmp_path, change, message):
    given = {name: value for name, value in {**arrays(), **change}.items() if value is not None}
    np.savez(tmp_path / "f.npz", **given)
    with pytest.raises(ValueError, match=message) as refused:
        features(path=str(tmp_path / "f.npz"))
    assert "\n" not in str(refused.value)


def test_features_files_that_cannot_be_read_are_refused(tmp_path):
    np.save(tmp_path / "image.npy", np.ones((3, 3)))
    (tmp_path / "f.npz").write_bytes(b"PK junk")
    (tmp_path / "f.txt").touch()
    for kwargs, message in [
        ({"path": "none.npz"}, "no such file"),
        ({"path": "image.npy"}, "need data.text_path"),
        ({"path": "image.npy", "text_path": str(tmp_path / "t.npy")}, "t.npy: no such file"),
        ({"path": "f.npz"}, "f.npz: "),
        ({"path": "f.txt"}, r"legal are \.npz, \.parquet"),
    ]:
        with pytest.raises(ValueError, match=message):
            features(**{**kwargs, "path": str(tmp_path / kwargs["path"])})
