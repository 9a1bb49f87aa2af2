"""Metrics against naive loops, closed forms and the published definitions."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from mmts_ray import metrics
from mmts_ray.space import declared

REFERENCE = Path(__file__).parent / "reference"


def rows(seed, *shape):
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=-1)


def many_captions(seed=0, images=23, texts=40, width=5):
    """Images with one to four captions, some captions carried by several images, one pair listed twice."""
    rng = np.random.default_rng(seed)
    pairs = [(i, t) for i in range(images) for t in rng.choice(texts, size=rng.integers(1, 5), replace=False)]
    pairs += [(int(rng.integers(images)), t) for t in sorted(set(range(texts)) - {t for _, t in pairs})]
    pairs.append(pairs[0])
    order = rng.permutation(len(pairs))
    image_P, text_P = np.array(pairs)[order].T
    image_ND = rows(seed, images, width)
    text_UD = rows(seed + 1, texts, width)
    first_t = np.unique(text_P, return_index=True)[1]
    return image_ND, normalize(text_UD + 0.9 * image_ND[image_P[first_t]], dim=1), image_P, text_P


def naive_ranks(query_QD, gallery_GD, query_P, gallery_P):
    """Candidates are walked one by one; a wrong one is ahead unless it is strictly worse than the best right one."""
    ranks = []
    for q in range(len(query_QD)):
        right = {int(g) for p, g in zip(query_P, gallery_P) if p == q}
        similarity = [float(torch.dot(query_QD[q], gallery_GD[g])) for g in range(len(gallery_GD))]
        best = max((similarity[g] for g in right), default=None)
        ranks.append(-1 if best is None else sum(s >= best for g, s in enumerate(similarity) if g not in right))
    return ranks


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("block", [1 << 22, 100, 1])
def test_ranks_are_those_of_a_naive_walk(seed, block, monkeypatch):
    monkeypatch.setattr(metrics.paired, "BLOCK_ELEMENTS", block)
    image_ND, text_UD, image_P, text_P = many_captions(seed)
    i2t, t2i = naive_ranks(image_ND, text_UD, image_P, text_P), naive_ranks(text_UD, image_ND, text_P, image_P)
    assert metrics.ranks(image_ND, text_UD, image_P, text_P).tolist() == i2t
    assert metrics.ranks(text_UD, image_ND, text_P, image_P).tolist() == t2i
    out = metrics.retrieval(image_ND, text_UD, image_P, text_P)
    for name, ranks in (("i2t", np.array(i2t)), ("t2i", np.array(t2i))):
        for k in (1, 5, 10):
            assert out[f"{name}_r{k}"] == pytest.approx((ranks < k).mean())
        assert out[f"{name}_median_rank"] == np.median(ranks) + 1
    for k in (1, 5, 10):
        assert out[f"r{k}"] == pytest.approx(0.5 * ((np.array(i2t) < k).mean() + (np.array(t2i) < k).mean()))
    assert 0 < out["r1"] < out["r5"] < out["r10"] < 1


def test_any_caption_of_an_image_is_a_hit_and_any_image_of_a_caption():
    image_ND = torch.eye(3, dtype=torch.float64)
    text_UD = normalize(torch.tensor([[1.0, 0, 0], [0, 1, 0.9], [0, 0.8, 1]], dtype=torch.float64), dim=1)
    # image 0 has captions 0 and 2; caption 1 is carried by images 1 and 2
    image_P, text_P = np.array([0, 0, 1, 2]), np.array([0, 2, 1, 1])
    assert metrics.ranks(image_ND, text_UD, image_P, text_P).tolist() == [0, 0, 1]
    assert metrics.ranks(text_UD, image_ND, text_P, image_P).tolist() == [0, 0, 2]


def test_a_perfect_embedding_scores_one_and_a_collapsed_one_nothing():
    everyone = np.arange(20)
    perfect = metrics.retrieval(rows(0, 20, 8), rows(0, 20, 8), everyone, everyone)
    assert all(v == 1 for v in perfect.values())
    point_ND = rows(0, 1, 8).expand(20, 8)
    collapsed = metrics.retrieval(point_ND, point_ND, everyone, everyone)
    assert collapsed["i2t_r10"] == collapsed["t2i_r10"] == collapsed["r1"] == 0
    assert collapsed["i2t_median_rank"] == 20


def test_not_a_number_never_scores():
    everyone = np.arange(12)
    image_ND = rows(0, 12, 4)
    assert metrics.retrieval(image_ND * math.nan, image_ND, everyone, everyone)["r10"] == 0
    assert metrics.retrieval(image_ND * math.nan, image_ND * math.nan, everyone, everyone)["r10"] == 0
    one_bad = image_ND.clone()
    one_bad[3] = math.nan
    out = metrics.ranks(one_bad, image_ND, everyone, everyone)
    assert out[3] == 11
    assert (out[[0, 1, 2]] == 0).all()
    several = metrics.ranks(image_ND[:1], one_bad, np.array([0, 0]), np.array([0, 3]))
    assert several[0] == 10  # one of its captions is not a number: all ten wrong ones are ahead


def test_queries_without_a_pair_are_not_asked():
    image_ND = rows(0, 6, 4)
    ranks = metrics.ranks(image_ND, image_ND, np.array([0, 2]), np.array([0, 2]))
    assert ranks.tolist() == [0, -1, 0, -1, -1, -1]
    assert metrics.retrieval(image_ND, image_ND, np.array([0, 2]), np.array([0, 2]))["i2t_r1"] == 1


def test_head_mid_tail_are_recalls_of_their_images():
    rank_N = torch.tensor([0, 7, 0, 3, -1])
    image_P = np.array([0, 1, 2, 3, 3, 0])
    tercile_P = np.array([0, 0, 1, 1, 2, 2])  # images 0 and 3 have captions in two terciles
    out = metrics.by_tercile(rank_N, image_P, tercile_P)
    assert (out["n_tail"], out["n_mid"], out["n_head"]) == (2, 2, 2)
    assert (out["tail_r1"], out["tail_r5"], out["tail_r10"]) == (0.5, 0.5, 1.0)
    assert (out["mid_r1"], out["mid_r5"]) == (0.5, 1.0)
    assert (out["head_r1"], out["head_r5"]) == (0.5, 1.0)
    empty = metrics.by_tercile(rank_N, image_P, np.full(6, 1))
    assert empty["n_head"] == 0
    assert math.isnan(empty["head_r1"])
    unseen = metrics.by_tercile(rank_N, image_P, np.full(6, -1))
    assert unseen["n_tail"] == unseen["n_mid"] == unseen["n_head"] == 0


@pytest.mark.parametrize("number", range(2))
def test_gap_and_alignment_match_the_published_definitions(number):
    with np.load(REFERENCE / f"reg_{number}.npz") as vector:
        image, text = vector["image"], vector["text"]
        assert metrics.modality_distance(image, text) == pytest.approx(float(vector["modality_distance"]), rel=1e-12)
        assert metrics.alignment(image, text) == pytest.approx(float(vector["alignment"]), rel=1e-12)
        halves = 0.5 * (metrics.uniformity(image) + metrics.uniformity(text))
        assert halves == pytest.approx(float(vector["uniformity"]), rel=1e-12)


@pytest.mark.parametrize("count", [2, 3, 127, 128, 129, 300])
def test_uniformity_is_exact_in_blocks(count):
    rows_ND = rows(0, count, 6)
    pairs = torch.pdist(rows_ND).square().mul(-2).exp()
    assert metrics.uniformity(rows_ND) == pytest.approx(math.log(pairs.mean().item()), rel=1e-12)
    assert metrics.uniformity(rows_ND.float()) == pytest.approx(math.log(pairs.mean().item()), rel=1e-5)


def test_uniformity_at_its_ends():
    assert metrics.uniformity(rows(0, 1, 4).expand(9, 4)) == pytest.approx(0, abs=1e-12)
    one = rows(0, 1, 4)
    assert metrics.uniformity(torch.cat([one, -one])) == pytest.approx(-8)
    assert math.isnan(metrics.uniformity(one))


def test_modality_distance_of_opposite_points_is_two():
    one = rows(0, 1, 4).expand(5, 4)
    assert metrics.modality_distance(one, -one) == pytest.approx(2)
    assert metrics.modality_distance(one, one) == 0


def test_modality_accuracy_tells_apart_what_is_apart():
    image_PD = rows(0, 200, 8)
    apart_D = torch.zeros(8, dtype=torch.float64)
    apart_D[0] = 3
    separated = metrics.modality_accuracy(
        normalize(image_PD + apart_D, dim=1), normalize(image_PD - apart_D, dim=1), seed=0
    )
    assert separated == 1
    # the same points under both labels cannot be told apart: each held-out pair is right once
    assert metrics.modality_accuracy(image_PD, image_PD, seed=0) == 0.5
    mixed = metrics.modality_accuracy(image_PD, rows(1, 200, 8), seed=0)
    assert 0.3 < mixed < 0.7
    assert mixed == metrics.modality_accuracy(image_PD, rows(1, 200, 8), seed=0)
    seeds = {metrics.modality_accuracy(image_PD, rows(1, 200, 8), seed=s) for s in range(5)}
    assert len(seeds) > 1


def test_modality_accuracy_keeps_both_members_of_a_pair_on_one_side():
    """Pairs that differ only by a private direction: memorising a training pair must not help on the held-out ones."""
    image_PD = torch.eye(40, dtype=torch.float64)
    accuracy = metrics.modality_accuracy(image_PD, -image_PD, seed=3)
    assert accuracy <= 0.5


def test_modality_accuracy_without_enough_pairs_or_with_nan_is_nan():
    assert math.isnan(metrics.modality_accuracy(rows(0, 1, 4), rows(1, 1, 4), seed=0))
    assert math.isnan(metrics.modality_accuracy(rows(0, 9, 4) * math.nan, rows(1, 9, 4), seed=0))
    assert metrics.modality_accuracy(rows(0, 2, 4), rows(1, 2, 4), seed=0) in (0.0, 0.5, 1.0)


def test_a_linear_probe_finds_classes_that_a_plane_divides_and_no_others():
    corner_ND = torch.eye(3, dtype=torch.float64).repeat(40, 1)
    noisy_ND = normalize(corner_ND + 0.2 * rows(0, 120, 3), dim=1)
    class_N = np.arange(120) % 3
    assert metrics.probe_accuracy(noisy_ND[:90], class_N[:90], noisy_ND[90:], class_N[90:]) == 1
    shuffled_N = np.random.default_rng(0).permutation(class_N)
    assert metrics.probe_accuracy(noisy_ND[:90], shuffled_N[:90], noisy_ND[90:], class_N[90:]) < 0.7
    # a third of the held-out images is of a class that training lacks
    two = class_N[:90] < 2
    assert metrics.probe_accuracy(noisy_ND[:90][two], class_N[:90][two], noisy_ND[90:], class_N[90:]) == 2 / 3


def test_a_linear_probe_without_two_classes_or_with_nan_is_nan():
    image_ND = rows(0, 10, 4)
    class_N = np.arange(10) % 2
    assert math.isnan(metrics.probe_accuracy(image_ND, class_N * 0, image_ND, class_N))
    assert math.isnan(metrics.probe_accuracy(image_ND, class_N, image_ND[:0], class_N[:0]))
    assert math.isnan(metrics.probe_accuracy(image_ND * math.nan, class_N, image_ND, class_N))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("final", [False, True])
def test_evaluate_puts_the_parts_together(dtype, final):
    image_ND, text_UD, image_P, text_P = many_captions()
    image_ND, text_UD = image_ND.to(dtype), text_UD.to(dtype)
    tercile_P = image_P % 3
    out = metrics.evaluate(image_ND, text_UD, image_P, text_P, tercile_P=tercile_P, final=final, seed=0)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    image_ND, text_UD = image_ND.to(wide), text_UD.to(wide)
    expected = metrics.retrieval(image_ND, text_UD, image_P, text_P)
    expected |= metrics.by_tercile(metrics.ranks(image_ND, text_UD, image_P, text_P), image_P, tercile_P)
    expected["modality_distance"] = metrics.modality_distance(image_ND[image_P], text_UD[text_P])
    expected["alignment"] = metrics.alignment(image_ND[image_P], text_UD[text_P])
    expected["uniformity"] = 0.5 * (metrics.uniformity(image_ND) + metrics.uniformity(text_UD))
    assert set(out) - set(expected) == ({"modality_accuracy"} if final else set())
    assert all(isinstance(v, float) for v in out.values())
    for name, value in expected.items():
        assert out[name] == pytest.approx(value, rel=1e-6), name
    assert 0 <= out.get("modality_accuracy", 0.5) <= 1


def test_evaluate_takes_arrays_and_tensors_alike_and_leaves_its_input_alone():
    image_ND, text_UD, image_P, text_P = many_captions()
    kept = image_ND.clone(), text_UD.clone()
    tensors = metrics.evaluate(
        image_ND.requires_grad_(),
        text_UD,
        torch.as_tensor(image_P),
        torch.as_tensor(text_P, dtype=torch.int32),
        tercile_P=torch.as_tensor(image_P % 3),
        final=True,
        seed=1,
    )
    arrays = metrics.evaluate(
        kept[0].numpy(), kept[1].numpy(), image_P, text_P, tercile_P=image_P % 3, final=True, seed=1
    )
    assert tensors == arrays
    assert torch.equal(image_ND.detach(), kept[0])
    assert torch.equal(text_UD, kept[1])
    with pytest.raises(ValueError, match="legal is one of each, at least one"):
        metrics.evaluate(image_ND, text_UD, image_P[:0], text_P[:0], final=False, seed=0)


def test_evaluate_does_not_depend_on_the_order_of_images_captions_or_pairs():
    image_ND, text_UD, image_P, text_P = many_captions()
    rng = np.random.default_rng(0)
    image_order, text_order, pair_order = (rng.permutation(n) for n in (len(image_ND), len(text_UD), len(image_P)))
    moved = metrics.evaluate(
        image_ND[image_order],
        text_UD[text_order],
        np.argsort(image_order)[image_P][pair_order],
        np.argsort(text_order)[text_P][pair_order],
        tercile_P=(image_P % 3)[pair_order],
        final=False,
        seed=0,
    )
    straight = metrics.evaluate(image_ND, text_UD, image_P, text_P, tercile_P=image_P % 3, final=False, seed=0)
    assert moved.keys() == straight.keys()
    for name, value in straight.items():
        assert moved[name] == pytest.approx(value, rel=1e-9), name


def test_head_tail_names_a_group_source():
    assert metrics.head_tail() == ("captions", {"k": 50, "seed": 0})
    assert metrics.head_tail(source="images", k=7) == ("images", {"k": 7, "seed": 0})
    assert metrics.head_tail(source="classes") == ("classes", {})
    assert list(declared(metrics.head_tail)) == ["source", "k", "probe"]


def test_ranks_of_one_gallery_row_and_one_query():
    one = rows(0, 1, 4)
    assert metrics.ranks(one, one, np.array([0]), np.array([0])).tolist() == [0]
    for queries, gallery in itertools.product((1, 3), repeat=2):
        ranks = metrics.ranks(rows(0, queries, 4), rows(1, gallery, 4), np.arange(queries), np.zeros(queries, int))
        assert ((ranks >= 0) & (ranks < gallery)).all()


def test_zero_shot_takes_the_class_whose_mean_prompt_is_nearest_and_a_tie_is_wrong():
    image_ND, prompts_CPD = rows(0, 30, 4), rows(1, 15, 4).view(5, 3, 4)
    class_N = np.arange(30) % 5
    right = 0
    for image, own in zip(image_ND, class_N):
        scores = [float(image @ (mean / mean.norm())) for mean in (prompts.sum(0) / 3 for prompts in prompts_CPD)]
        right += all(scores[own] > score for other, score in enumerate(scores) if other != own)
    assert 0 < right < 30
    assert metrics.zeroshot_top1(image_ND, prompts_CPD, class_N) == pytest.approx(right / 30)
    same = prompts_CPD[:1].repeat(5, 1, 1)
    assert metrics.zeroshot_top1(image_ND, same, class_N) == 0
    assert math.isnan(metrics.zeroshot_top1(image_ND[:0], prompts_CPD, class_N[:0]))
