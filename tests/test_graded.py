"""Graded retrieval: the published figures, a double loop, ties, and relevancy from class keys."""

import json
import math

import numpy as np
import pytest
import torch
import toy
from vectors import REFERENCE

from mmts_ray.config import from_flat
from mmts_ray.data.relevance import Relevance, numbered
from mmts_ray.metrics.graded import multi_instance, precision_and_gain, thirds
from mmts_ray.train import TrainData
from mmts_ray.train.pairs import Pairs


def entries(verbs, nouns):
    return [(int(verb), set(classes)) for verb, classes in zip(verbs, nouns)]


def official(number):
    """(arrays of a reference file, its relevance)."""
    with np.load(REFERENCE / f"mir_{number}.npz") as archive:
        arrays = dict(archive)
    videos, captions = (
        entries(arrays[f"{what}_verb"], json.loads(str(arrays[f"{what}_nouns"]))) for what in ("video", "caption")
    )
    verb_K, noun_KV, key = numbered(videos + captions)
    key_N, key_C = key[: len(videos)], key[len(videos) :]
    return arrays, Relevance(verb_K, noun_KV, key_N, key_C, np.zeros(len(key_C), dtype=np.int8))


@pytest.mark.parametrize("block", [None, 60], ids=["at once", "in blocks"])
@pytest.mark.parametrize("number", [0, 1])
def test_figures_equal_those_of_the_authors_code(number, block, monkeypatch):
    if block:
        monkeypatch.setattr("mmts_ray.metrics.graded.BLOCK_ELEMENTS", block)
    arrays, relevance = official(number)
    relevancy_NC = relevance.between(relevance.key_N, relevance.key_C)
    np.testing.assert_array_equal(relevancy_NC, arrays["relevancy"])
    videos, captions = relevancy_NC.shape
    similarity, one = arrays["similarity"], np.eye(captions)
    found = multi_instance(similarity, one, relevancy_NC, np.arange(videos), np.arange(captions))
    for ours, theirs in (("i2t_", "v2t"), ("t2i_", "t2v"), ("", "avg")):
        for measure in ("map", "ndcg"):
            assert found[f"{ours}{measure}"] == pytest.approx(float(arrays[f"{measure}_{theirs}"]), abs=1e-12)


def naive(scores, relevancy):
    """Average precisions and gain of one query by a walk down its list, less relevant first among equals."""
    order = sorted(range(len(scores)), key=lambda g: (-scores[g], relevancy[g]))
    soft = hits = precision = binary = gain = ideal = 0.0
    relevant = sum(r > 0 for r in relevancy)
    for k, g in enumerate(order, start=1):
        soft, hits = soft + relevancy[g], hits + (relevancy[g] == 1)
        if relevancy[g] == 1:
            precision, binary = precision + soft / k, binary + hits / k
        if k <= relevant:
            gain += relevancy[g] / math.log2(k + 1)
    for k, r in enumerate(sorted(relevancy, reverse=True), start=1):
        ideal += r / math.log2(k + 1)
    nothing = float("nan")
    return (precision / hits, binary / hits) if hits else (nothing, nothing), gain / ideal if ideal else nothing


@pytest.mark.parametrize("seed", range(6))
def test_figures_are_those_of_a_walk_down_the_list_with_ties_keys_and_queries_without_a_right_answer(seed, monkeypatch):
    monkeypatch.setattr("mmts_ray.metrics.graded.BLOCK_ELEMENTS", 50)
    rng = np.random.default_rng(seed)
    query_QD, gallery_GD = rng.integers(-2, 3, (13, 2)) * 0.5, rng.integers(-2, 3, (21, 2)) * 0.5
    relevancy_JL = rng.choice([0, 0, 0.25, 0.5, 1], size=(5, 7))
    row_Q, column_G = rng.integers(0, 5, 13), rng.integers(0, 7, 21)
    found = precision_and_gain(query_QD, gallery_GD, relevancy_JL, row_Q, column_G)
    for q in range(13):
        (soft, binary), gain = naive((query_QD[q] @ gallery_GD.T).tolist(), relevancy_JL[row_Q[q], column_G].tolist())
        for name, expected in (("map", soft), ("binary_map", binary), ("ndcg", gain)):
            assert found[name][q] == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_a_collapsed_embedding_and_one_that_is_not_a_number_score_the_worst_order():
    relevancy, place = np.array([[1.0, 0.5, 0.0, 0.0]]), np.arange(4)
    worst, _ = naive([0.0] * 4, relevancy[0].tolist())
    for query in (0.0, math.nan):
        found = precision_and_gain(np.full((1, 1), query), np.ones((4, 1)), relevancy, np.zeros(1, int), place)
        assert (found["map"][0], found["binary_map"][0]) == worst == (1.5 / 4, 1 / 4)


def test_scores_by_thirds_of_the_groups_and_of_the_samples_count_each_image_once():
    rng = np.random.default_rng(0)
    size_N = np.repeat([1, 2, 50, 400], [2, 3, 5, 10])
    tercile_N = np.repeat([0, 0, 1, 2], [2, 3, 5, 10])
    image_ND = rng.normal(size=(20, 3))
    relevancy_NC = np.eye(20)
    place = np.arange(20)
    found = multi_instance(
        image_ND, rng.normal(size=(20, 3)), relevancy_NC, place, place, size_N=size_N, tercile_N=tercile_N
    )
    assert thirds(size_N).tolist() == [0] * 5 + [1] * 5 + [2] * 10
    parts = [found[f"n_{name}"] for name in ("rare", "medium", "common")]
    assert parts == [5, 5, 10]
    mean = sum(found[f"{name}_map"] * n for name, n in zip(("rare", "medium", "common"), parts)) / 20
    assert mean == pytest.approx(found["i2t_map"])
    assert found["rare_map"] == pytest.approx(found["tail_map"])


def test_relevancy_by_keys_is_the_definition():
    left, right = [(1, {2}), (0, {2, 3}), (1, set())], [(1, {2}), (1, {2, 3, 4}), (2, {5})]
    verb_K, noun_KV, key = numbered(left + right)
    relevance = Relevance(verb_K, noun_KV, key[:3], key[3:], np.zeros(3, dtype=np.int8))
    expected = [[1, (1 + 1 / 3) / 2, 0], [0.25, 1 / 3, 0], [0.5, 0.5, 0]]
    np.testing.assert_allclose(relevance.between(key[:3], key[3:]), expected)
    again = numbered((left + right)[::-1])
    np.testing.assert_array_equal(again[2][::-1], key)


def test_arms_of_one_seed_see_the_same_samples_and_drawn_captions_in_the_same_order():
    data = TrainData(toy.graded(toy.frozen(captions_each=2)))
    batches = {}
    arms = {"constant": {"schedule.name": "constant"}, "cosine": {}, "max margin": {"loss.name": "max_margin"}}
    for name, arm in arms.items():
        config = from_flat({**toy.FIXED, **arm, "train.captions": "relevant"})
        recipe = config.function("train")(**config.kwargs("train"))
        batches[name] = [list(Pairs(config=config, data=data, recipe=recipe).batches(epoch)) for epoch in (0, 1)]
    first, later = batches["constant"]
    for other in batches.values():
        for mine, theirs in zip(batches["constant"], other):
            assert all(torch.equal(a, b) for x, y in zip(mine, theirs) for a, b in zip(x, y))
    drawn = [dict(zip(torch.cat([b.rows_B for b in e]).tolist(), torch.cat([b.text_B for b in e]).tolist()))
             for e in (first, later)]  # fmt: skip
    assert drawn[0] != drawn[1]
    images = [sorted({int(data.frozen.image_M[row]) for row in epoch}) for epoch in drawn]
    assert images[0] == images[1] == data.split(0).images.tolist()
