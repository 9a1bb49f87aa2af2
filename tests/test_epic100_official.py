"""EPIC-KITCHENS-100: the official files as they are, and what a run on them is known to give."""

import csv
import gzip
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from mmts_ray.analysis.statistics import difference
from test_epic100 import RECIPE

from mmts_ray.config import from_flat
from mmts_ray.data import TEST, TRAIN, VALIDATION, epic100
from mmts_ray.features import encode
from mmts_ray.metrics import multi_instance
from mmts_ray.train import TrainData, train

torch.set_num_threads(1)
OFFICIAL = Path(__file__).parents[2] / "shared" / "data" / "epic100"
UDA = "train_clips_uda.csv.gz"
official = pytest.mark.skipif(not OFFICIAL.is_dir(), reason=f"the annotations are not in {OFFICIAL}")


@pytest.fixture(scope="module")
def real():
    return epic100(path=str(OFFICIAL), train=UDA, validation="test")


@official
def test_the_official_test_is_what_it_is_known_to_be(real):
    relevance = real.relevance
    clips, captions = np.flatnonzero(real.split_N == TEST), np.flatnonzero(relevance.split_C == TEST)
    assert (len(clips), len(captions)) == (9668, 3842)
    assert len({real.listed[c] for c in captions}) == 3835  # equal texts with other classes are two captions
    keys, key_N = np.unique(relevance.key_N[clips], return_inverse=True)
    assert len(keys) == 1979  # 1,999 when a noun that is listed twice counts twice
    values, ones = set(), 0
    for part in np.array_split(np.arange(len(clips)), 10):
        block = relevance.between(relevance.key_N[clips[part]], relevance.key_C[captions])
        values |= set(np.unique(block).tolist())
        ones += int((block == 1).sum())
        assert (block == 1).any(axis=1).all()
    assert len(values) == 18
    assert sorted(values)[:4] == pytest.approx([0, 1 / 12, 0.1, 0.125])  # the bound of the recipe, 0.1, cuts two off
    assert ones / (9668 * 3842) == pytest.approx(0.00168, abs=5e-6)
    assert key_N.max() == 1978


@official
def test_blocks_from_keys_are_the_dense_matrix_of_classes(real):
    relevance = real.relevance
    rows = {}
    with gzip.open(OFFICIAL / "retrieval_test.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            rows[row["narration_id"]] = (
                int(row["verb_class"]),
                {int(n) for n in re.findall(r"\d+", row["all_noun_classes"])},
            )
    with gzip.open(OFFICIAL / "retrieval_test_sentence.csv.gz", "rt") as file:
        captions = [rows[row["narration_id"]] for row in csv.DictReader(file)]
    clips = list(rows.values())
    verb = [np.eye(97)[[v for v, _ in entries]] for entries in (clips, captions)]
    noun = [np.zeros((len(entries), 300)) for entries in (clips, captions)]
    for hot, entries in zip(noun, (clips, captions)):
        for place, (_, nouns) in enumerate(entries):
            hot[place, sorted(nouns)] = 1
    tests = np.flatnonzero(real.split_N == TEST)
    listed = np.flatnonzero(relevance.split_C == TEST)
    chosen = np.random.default_rng(0).permutation(len(clips))[:1000]
    common = noun[0][chosen] @ noun[1].T
    either = noun[0][chosen].sum(1)[:, None] + noun[1].sum(1)[None] - common
    dense = 0.5 * (verb[0][chosen] @ verb[1].T + common / either)
    np.testing.assert_array_equal(relevance.between(relevance.key_N[tests[chosen]], relevance.key_C[listed]), dense)


@official
def test_training_clips_captions_and_classes_are_what_they_are_known_to_be(real):
    trained = real.split_N == TRAIN
    assert trained.sum() == 29_023
    assert (real.relevance.split_C == TRAIN).sum() == 15_989
    classes, counts = np.unique(real.class_N[trained], return_counts=True)
    assert (len(classes), counts.min(), counts.max()) == (250, 1, 1524)
    assert (~np.isin(real.class_N[real.split_N == TEST], classes)).sum() == 115
    assert (real.split_N == VALIDATION).sum() == 2000
    assert any("2,000 clips against" in note and "9,668 clips against 3,842" in note for note in real.notes)
    assert "stand-in" in real.name
    assert not real.dropped


@official
def test_held_out_validation_shares_no_video_with_training_and_no_clip_with_the_test():
    data = epic100(path=str(OFFICIAL), train=UDA, classes="verb")
    videos = [{name.rpartition("_")[0] for name in np.array(data.image_ids)[data.split_N == part]} for part in range(3)]
    assert not videos[0] & videos[1]
    assert sum((data.split_N == part).sum() for part in (TRAIN, VALIDATION)) == 29_023
    assert len(set(data.image_ids)) == len(data.image_ids)
    assert len(set(data.class_N[data.split_N != TEST].tolist())) == 92


@official
@pytest.mark.slow
def test_on_stand_ins_the_published_margins_lose_to_a_fixed_one_paired_by_seed(real):
    flat = {**RECIPE, "data.path": "x", "train.epochs": 5, "train.eval_every": 5, "train.batch_size": 512}
    flat |= {"train.lr_schedule": "cosine", "train.weight_decay": 0.01}
    fixed = {"schedule.value": 0.2}
    both = {"schedule.name": "cosine", "schedule.alpha": 0.2, "schedule.shift_min": 0.17, "schedule.shift_max": 0.3}
    data = TrainData(encode(real, image_encoder="efficientnet-lite0", text_encoder="minilm-l6"))
    metrics = {}
    for name, arm in (("fixed", fixed), ("both", both)):
        for seed in range(3):
            (row,) = train(from_flat({**flat, **arm, "train.seed": seed}), data)
            metrics[name, seed] = row.metrics
    first = metrics["fixed", 0]
    assert 0.52 < first["val_i2t_map"] < 0.57
    assert 0.55 < first["val_i2t_ndcg"] < 0.62
    assert first["val_i2t_binary_map"] < first["val_i2t_map"] - 0.15  # half-right rows raise the published one
    values = {name: pd.Series([metrics[name, seed]["val_i2t_map"] for seed in range(3)]) for name in ("fixed", "both")}
    gain = difference(values["both"], values["fixed"])
    assert gain.paired
    assert gain.n == 3
    assert gain.hi < 0
    assert gain.mean == pytest.approx(-0.010, abs=0.006)


@official
def test_random_scores_are_the_chance_line(real):
    relevance, rng = real.relevance, np.random.default_rng(0)
    clips = rng.permutation(np.flatnonzero(real.split_N == TEST))[:500]
    listed = np.flatnonzero(relevance.split_C == TEST)
    left, row_N = np.unique(relevance.key_N[clips], return_inverse=True)
    right, column_C = np.unique(relevance.key_C[listed], return_inverse=True)
    embedded = rng.normal(size=(len(clips), 16)), rng.normal(size=(len(listed), 16))
    found = multi_instance(*embedded, relevance.between(left, right), row_N, column_C)
    assert 0.05 < found["i2t_map"] < 0.07
    assert 0.09 < found["i2t_ndcg"] < 0.13
