"""Groups: k-means on distinct captions (D10), classes, terciles, the cache beside the features."""

import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mmts_ray import groups as module
from mmts_ray.data.dataset import digest
from mmts_ray.features import Frozen
from mmts_ray.groups import GROUPS, Groups, cached, captions, classes, images, none, terciles
from mmts_ray.space import declared


def frozen_of(text_UT, text_M, split_M=None, *, image_NI=None, image_M=None, class_N=None):
    """One image per caption row unless said otherwise."""
    text_UT = np.asarray(text_UT, dtype=np.float32)
    text_M = np.asarray(text_M, dtype=np.int32)
    image_M = np.arange(len(text_M), dtype=np.int32) if image_M is None else np.asarray(image_M, dtype=np.int32)
    n = int(image_M.max()) + 1
    split_N = np.zeros(n, dtype=np.int8) if split_M is None else np.asarray(split_M, dtype=np.int8)
    rng = np.random.default_rng(0)
    image_NI = rng.normal(size=(n, 5)).astype(np.float32) if image_NI is None else np.asarray(image_NI, np.float32)
    key = digest(text_UT, text_M, split_N, image_NI, image_M, class_N)
    return Frozen(image_NI, text_UT, text_M, image_M, split_N, np.arange(n, dtype=np.int32), class_N, key)


def blobs(counts, dim=8, noise=0.02, seed=0):
    """Unit vectors around len(counts) orthogonal directions, counts[c] of them around direction c."""
    rng = np.random.default_rng(seed)
    centre = np.repeat(np.arange(len(counts)), counts)
    points = np.eye(dim)[centre] + noise * rng.normal(size=(len(centre), dim))
    return points / np.linalg.norm(points, axis=1, keepdims=True), centre


def same_partition(a, b):
    return len(set(zip(a.tolist(), b.tolist()))) == len(set(a.tolist())) == len(set(b.tolist()))


def check(frozen, groups):
    """What holds for all groups: sizes are counts of training pairs, labels run by size, terciles follow labels."""
    train = frozen.split_N[frozen.image_M] == 0
    assert groups.label_M.dtype == np.int32
    assert groups.size_M.dtype == groups.sizes_G.dtype == np.int64
    assert groups.size_M.shape == groups.label_M.shape == groups.tercile_M.shape == frozen.text_M.shape
    assert groups.sizes_G.sum() == train.sum()
    assert groups.sizes_G.min() >= 1
    assert (np.diff(groups.sizes_G) <= 0).all()
    for m, label in enumerate(groups.label_M.tolist()):
        assert groups.size_M[m] == ((groups.label_M == label) & train).sum()
    assert set(groups.label_M[train].tolist()) == set(range(len(groups.sizes_G)))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_separated_blobs_are_found_with_their_sizes(seed):
    points, centre = blobs([40, 25, 10, 4])
    frozen = frozen_of(points, np.arange(79))
    found = captions(frozen, k=4, seed=seed)
    check(frozen, found)
    assert found.sizes_G.tolist() == [40, 25, 10, 4]
    assert found.label_M.tolist() == centre.tolist()
    assert found.notes == ()


def test_sizes_count_pairs_and_clusters_come_from_distinct_captions():
    points, centre = blobs([3, 3])
    text_M = np.repeat(np.arange(6), [10, 1, 1, 2, 2, 2])
    frozen = frozen_of(points, text_M)
    found = captions(frozen, k=2)
    check(frozen, found)
    assert found.sizes_G.tolist() == [12, 6]
    assert same_partition(found.label_M, centre[text_M])


def test_validation_rows_take_the_nearest_centre_and_do_not_count():
    points, centre = blobs([30, 20, 10])
    split = np.where(np.arange(60) % 5 == 0, 1, 0)
    frozen = frozen_of(points, np.arange(60), split)
    found = captions(frozen, k=3)
    check(frozen, found)
    assert found.sizes_G.tolist() == [24, 16, 8]
    assert same_partition(found.label_M, centre)


def test_the_validation_captions_cannot_move_a_centre():
    points, _ = blobs([30, 20], noise=0.3)
    split = np.where(np.arange(50) % 5 == 0, 1, 0)
    moved = points.copy()
    moved[split == 1] = points[split == 1][::-1]
    train = split == 0
    one = captions(frozen_of(points, np.arange(50), split), k=5)
    two = captions(frozen_of(moved, np.arange(50), split), k=5)
    assert one.label_M[train].tolist() == two.label_M[train].tolist()


# --- D10: fewer distinct points than clusters


def test_sixty_captions_with_six_texts_and_ten_clusters_make_six():
    points, _ = blobs([1] * 6)
    text_M = np.arange(60) % 6
    frozen = frozen_of(points, text_M)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = captions(frozen, k=10)
    check(frozen, found)
    assert found.sizes_G.tolist() == [10] * 6
    assert same_partition(found.label_M, text_M)
    assert found.notes == ("10 clusters asked, 6 distinct training captions: 6 clusters used",)
    assert sorted(set(found.tercile_M.tolist())) == [0, 1, 2]


@pytest.mark.parametrize("k", [1, 2, 50])
def test_one_caption_is_one_cluster(k):
    frozen = frozen_of([[0.6, 0.8]], [0])
    found = captions(frozen, k=k)
    check(frozen, found)
    assert found.sizes_G.tolist() == [1]
    assert len(found.notes) == (k > 1)


def test_identical_captions_under_different_words_are_one_cluster():
    # the same sentence in capitals: the encoder's vectors differ in the last digit
    points = np.tile([[0.6, 0.8]], (20, 1)) + np.random.default_rng(0).uniform(-1e-7, 1e-7, size=(20, 2))
    frozen = frozen_of(points, np.arange(20))
    found = captions(frozen, k=5)
    check(frozen, found)
    assert found.sizes_G.tolist() == [20]
    assert "1 distinct training captions" in found.notes[0]


@pytest.mark.parametrize(("k", "note"), [(29, 0), (30, 0), (31, 1), (1000, 1)])
def test_more_clusters_than_captions(k, note):
    points, _ = blobs([30], noise=0.5)
    frozen = frozen_of(points, np.arange(30))
    found = captions(frozen, k=k)
    check(frozen, found)
    assert len(found.sizes_G) == min(k, 30)
    assert len(found.notes) == note


def test_shuffled_rows_and_the_same_seed_give_the_same_groups():
    rng = np.random.default_rng(1)
    points = rng.normal(size=(200, 16))
    text_M = rng.integers(0, 200, size=500)
    split_M = rng.choice([0, 0, 0, 1, 2], size=500)
    one = captions(frozen_of(points, text_M, split_M), k=12, seed=3)
    again = captions(frozen_of(points, text_M, split_M), k=12, seed=3)
    assert one.label_M.tolist() == again.label_M.tolist()
    rows, texts = rng.permutation(500), rng.permutation(200)
    position = np.argsort(texts)
    shuffled = captions(frozen_of(points[texts], position[text_M[rows]], split_M[rows]), k=12, seed=3)
    assert shuffled.label_M.tolist() == one.label_M[rows].tolist()
    assert shuffled.size_M.tolist() == one.size_M[rows].tolist()
    other = captions(frozen_of(points, text_M, split_M), k=12, seed=4)
    assert not same_partition(other.label_M, one.label_M)


def test_the_length_of_a_vector_does_not_matter_and_a_zero_vector_is_allowed():
    points, _ = blobs([20, 10], noise=0.1)
    scale = np.random.default_rng(0).uniform(0.1, 9, size=(30, 1))
    one = captions(frozen_of(points, np.arange(30)), k=2)
    two = captions(frozen_of(points * scale, np.arange(30)), k=2)
    assert one.label_M.tolist() == two.label_M.tolist()
    points[0] = 0
    frozen = frozen_of(points, np.arange(30))
    check(frozen, captions(frozen, k=3))


def test_fitting_on_a_part_of_the_points_leaves_no_empty_group(monkeypatch):
    monkeypatch.setattr(module, "MOST_FITTED", 60)
    monkeypatch.setattr(module, "POINTS_PER_CLUSTER", 1)
    points, centre = blobs([200, 150, 100])
    frozen = frozen_of(points, np.arange(450))
    found = captions(frozen, k=3)
    check(frozen, found)
    assert same_partition(found.label_M, centre)
    monkeypatch.setattr(module, "_fit", lambda points_PE, *, k, seed: np.eye(8)[:6])  # three centres nobody is near to
    found = captions(frozen, k=6)
    check(frozen, found)
    assert found.sizes_G.tolist() == [200, 150, 100]


def test_the_nearest_centre_is_the_nearest_one_by_one():
    rng = np.random.default_rng(0)
    points, centres = rng.normal(size=(5000, 7)), rng.normal(size=(9, 7))
    expected = ((points[:, None] - centres[None]) ** 2).sum(-1).argmin(1)
    np.testing.assert_array_equal(module._nearest(points, centres), expected)


# --- images, classes, none


def test_images_are_clustered_by_their_own_features():
    points, centre = blobs([6, 3])
    image_M = np.repeat(np.arange(9), 2)
    frozen = frozen_of(np.eye(18), np.arange(18), image_NI=points * 7, image_M=image_M)
    found = images(frozen, k=2)
    check(frozen, found)
    assert found.sizes_G.tolist() == [12, 6]
    assert same_partition(found.label_M, centre[image_M])


def test_class_counts_and_a_class_that_training_never_saw():
    class_N = np.array([5, 5, 5, 2, 2, 9, 7, 5], dtype=np.int32)
    split = np.array([0, 0, 0, 0, 0, 0, 1, 2])
    frozen = frozen_of(np.eye(8), np.arange(8), split, class_N=class_N)
    found = classes(frozen)
    check(frozen, found)
    assert found.sizes_G.tolist() == [3, 2, 1]
    assert found.size_M.tolist() == [3, 3, 3, 2, 2, 1, 0, 3]
    assert found.label_M[6] == 3
    assert found.tercile_M.tolist() == [2, 2, 2, 1, 1, 0, 0, 2]
    assert found.notes == ("1 classes (1 pairs) do not occur in training and count as of size 0",)
    with pytest.raises(ValueError, match=r"classes needs classes.*legal are captions, images, none"):
        classes(replace(frozen, class_N=None))


def test_none_is_one_group():
    frozen = frozen_of(np.eye(4), np.arange(4), [0, 0, 0, 1])
    found = none(frozen)
    check(frozen, found)
    assert found.size_M.tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("name", ["captions", "images", "none"])
def test_nothing_to_train_on_is_refused(name):
    with pytest.raises(ValueError, match="training split has no pairs"):
        GROUPS[name](frozen_of(np.eye(4), np.arange(4), [1, 1, 2, 2]))


def test_terciles_cut_the_list_of_groups_in_three():
    assert terciles(18, 18).tolist() == [2] * 6 + [1] * 6 + [0] * 6
    assert terciles(50, 50).tolist() == [2] * 16 + [1] * 17 + [0] * 17
    assert terciles(3, 5).tolist() == [2, 1, 0, 0, 0]
    assert terciles(2, 2).tolist() == [1, 0]
    assert terciles(1, 1).tolist() == [0]


# --- the cache


@pytest.fixture
def counted(monkeypatch):
    calls = []

    def counting(frozen, *, k=3, seed=0):
        calls.append(k)
        return captions(frozen, k=k, seed=seed)

    monkeypatch.setitem(GROUPS, "captions", counting)
    return calls


def equal(a: Groups, b: Groups):
    for name in ("label_M", "size_M", "sizes_G", "tercile_M"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        assert getattr(a, name).dtype == getattr(b, name).dtype
    assert a.notes == b.notes


def test_groups_are_kept_under_features_and_parameters(counted, tmp_path):
    points, _ = blobs([9, 5])
    frozen = frozen_of(points, np.arange(14))
    first = cached(frozen, "captions", {"k": 20, "seed": 0}, tmp_path)
    equal(cached(frozen, "captions", {"seed": 0, "k": 20}, tmp_path), first)
    assert counted == [20]
    assert len(first.notes) == 1
    cached(frozen, "captions", {"k": 2, "seed": 0}, tmp_path)
    cached(replace(frozen, key="other"), "captions", {"k": 2, "seed": 0}, tmp_path)
    assert counted == [20, 2, 2]
    equal(cached(frozen, "captions", {"k": 20, "seed": 0}, None), first)
    assert counted == [20, 2, 2, 20]
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "junk", "longer data"])
def test_a_damaged_file_is_made_anew(counted, tmp_path, damage):
    points, _ = blobs([9, 5])
    frozen = frozen_of(points, np.arange(14))
    first = cached(frozen, "captions", {"k": 2}, tmp_path)
    (path,) = tmp_path.glob("groups-*.npz")
    raw = bytearray(path.read_bytes())
    if damage == "flipped":
        at = raw.index(np.array([9, 5]).tobytes())  # inside the stored sizes
        raw[at] ^= 1
    if damage == "longer data":
        frozen = replace(frozen_of(points, [*range(14), 0]), key=frozen.key)
    path.write_bytes({"cut": raw[:-30], "empty": b"", "junk": b"PK" + raw[2:200]}.get(damage, raw))
    again = cached(frozen, "captions", {"k": 2}, tmp_path)
    assert counted == [2, 2]
    if damage != "longer data":
        equal(again, first)
    equal(cached(frozen, "captions", {"k": 2}, tmp_path), again)
    assert counted == [2, 2]


def test_a_pickle_in_the_cache_is_never_opened(counted, tmp_path):
    points, _ = blobs([9, 5])
    frozen = frozen_of(points, np.arange(14))
    cached(frozen, "captions", {"k": 2}, tmp_path)
    (path,) = tmp_path.glob("groups-*.npz")

    class Trap:
        def __reduce__(self):
            return (Path(tmp_path / "sprung").touch, ())

    np.savez(path, label_M=np.array([Trap()], dtype=object))
    (tmp_path / "sprung").unlink(missing_ok=True)
    cached(frozen, "captions", {"k": 2}, tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_a_cache_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot keep groups there"):
        cached(frozen_of(np.eye(2), [0, 1]), "none", {}, tmp_path / "file")


def test_every_group_source_declares_its_parameters():
    assert set(GROUPS) == {"captions", "images", "classes", "none"}
    assert set(declared(captions)) == set(declared(images)) == {"k", "seed"}
    assert declared(captions)["k"].default == 50


@pytest.mark.slow
def test_three_thousand_captions_take_seconds_at_most():
    rng = np.random.default_rng(0)
    points = np.eye(384)[rng.zipf(1.5, size=2973) % 384] + rng.normal(size=(2973, 384)) * 0.05
    frozen = frozen_of(points, np.arange(2973))
    for k in (18, 50, 100, 200, 500):
        started = time.monotonic()
        check_sizes = captions(frozen, k=k).sizes_G
        assert time.monotonic() - started < 5  # 0.1 to 0.6 s on a free core
        assert len(check_sizes) == k
