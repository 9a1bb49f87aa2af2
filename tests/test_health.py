"""Repeats, false negatives and group sizes of the training data, against counting by hand."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from toy import frozen

from mmts_ray.features import Frozen
from mmts_ray.health import health


def small(*, texts, images, ids=None, image_of=None, split=None) -> Frozen:
    image_of = list(range(len(images))) if image_of is None else image_of
    return Frozen(
        image_NI=np.array([[x, 1.0] for x in images], dtype=np.float32),
        text_UT=np.eye(max(texts) + 1, dtype=np.float32),
        text_M=np.array(texts, dtype=np.int32),
        image_M=np.array(image_of, dtype=np.int32),
        split_N=np.zeros(len(images), dtype=np.int8) if split is None else np.array(split, dtype=np.int8),
        id_N=np.arange(len(images), dtype=np.int32) if ids is None else np.array(ids, dtype=np.int32),
        class_N=None,
        key="small",
    )


def of(data: Frozen, k: int = 3) -> dict:
    return health(data, source="captions", kwargs={"k": k, "seed": 0}, cache_dir=None)


def test_repeats_are_counted_and_what_shares_an_id_is_no_false_negative():
    #             image 0, 1 and 3 look alike; captions 0 and 2 are the same words; 0 and 1 share an id
    found = of(small(images=[5, 5, 6, 5], texts=[0, 1, 0, 2], ids=[7, 7, 8, 9]))
    assert found["repeated_images"] == 2
    assert found["repeated_captions"] == 1
    # ordered pairs: look alike {01, 03, 13}, say alike {02}; 01 shares an id
    assert found["false_negatives"] == pytest.approx(3 * 2 / 12)
    assert found["same_id"] == pytest.approx(2 / 12)


def test_an_image_draws_one_of_its_captions():
    found = of(small(images=[1, 2], image_of=[0, 0, 1, 1], texts=[0, 1, 0, 2]))
    assert found["false_negatives"] == pytest.approx(0.25)  # both draw caption 0
    assert found["repeated_captions"] == 1


def test_only_the_training_split_counts():
    found = of(small(images=[1, 2, 3, 1], texts=[0, 1, 2, 0], split=[0, 0, 0, 2]))
    assert found["repeated_images"] == found["repeated_captions"] == 0
    assert found["false_negatives"] == 0


def test_chances_equal_drawing_every_batch_of_two():
    rng = np.random.default_rng(3)
    image_of = np.sort(rng.integers(0, 8, 20)).tolist()
    image_of[:8] = range(8)
    data = small(images=rng.integers(0, 4, 8).tolist(), image_of=image_of, texts=rng.integers(0, 6, 20).tolist(),
                 ids=rng.integers(0, 4, 8).tolist())  # fmt: skip
    rows = {i: [m for m in range(20) if image_of[m] == i] for i in range(8)}
    hits = total = 0.0
    for i, j in itertools.permutations(range(8), 2):
        for a, b in itertools.product(rows[i], rows[j]):
            alike = data.image_NI[i, 0] == data.image_NI[j, 0] or data.text_M[a] == data.text_M[b]
            hits += (alike and data.id_N[i] != data.id_N[j]) / len(rows[i]) / len(rows[j])
        total += 1
    assert of(data)["false_negatives"] == pytest.approx(hits / total)


def test_the_thirds_hold_every_training_pair_and_their_sizes_do_not_overlap():
    data = frozen(captions_each=2)
    found = of(data, k=12)["groups"]
    assert sum(found[name]["pairs"] for name in ("head", "mid", "tail")) == sum(found["sizes"]) == 120
    assert found["tail"]["largest"] <= found["mid"]["smallest"] <= found["mid"]["largest"] <= found["head"]["smallest"]
    assert found["sizes"] == sorted(found["sizes"])
    assert found["source"] == "captions"


def test_similarities_are_shares_of_pairs_without_a_common_id_by_cosine():
    data = small(images=[0, 1e6, -1e6, 0], texts=[0, 1, 2, 0], ids=[1, 2, 3, 1])
    found = of(data)["similarities"]
    assert found["images_compared"] == 4
    # images 0 and 3 share an id: of the ten other ordered pairs 1-2 are opposite (2), the rest at right angles (8)
    images = dict(enumerate(found["images"]))
    assert images[0] == pytest.approx(0.2)
    assert images[19] + images[20] == pytest.approx(0.8)
    assert sum(found["captions"]) == pytest.approx(1)
    assert found["captions"][20] == pytest.approx(1)


def test_without_features_nothing_is_taken_for_a_repeat_and_no_cosines_are_told():
    made = frozen()
    bare = replace(made, image_NI=made.image_NI[:, :0], text_UT=made.text_UT[:, :0])
    found = health(bare, source="classes", kwargs={}, cache_dir=None)
    assert found["repeated_images"] == 0
    assert found["similarities"] == {}
    assert "problem" in health(bare, source="captions", kwargs={"k": 3, "seed": 0}, cache_dir=None)["groups"]
    only = health(replace(made, image_NI=made.image_NI[:, :0]), source="classes", kwargs={}, cache_dir=None)
    assert set(only["similarities"]) == {"images_compared", "captions"}
