"""Graded relevance and mined negatives: SMS against the authors' class and its formula, triplet by enumeration."""

import itertools

import pytest
import torch
from torch.autograd import gradcheck
from vectors import DTYPES, Vector, pair, rows

from mmts_ray.losses import max_margin, sms, triplet

SIZE = 6
IDS_B = torch.tensor([0, 1, 2, 0, 3, 1])
MARGIN_B = torch.linspace(0.1, 0.9, SIZE, dtype=torch.float64)
LEVELS = torch.tensor([0, 0.25, 0.5, 1.0], dtype=torch.float64)


def graded(seed):
    return LEVELS[torch.randint(4, (SIZE, SIZE), generator=torch.Generator().manual_seed(seed))]


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sms_matches_the_published_code(number, dtype):
    vector = Vector(f"sms_{number}", dtype)
    leaves = [vector.leaf("image"), vector.leaf("text")]
    units = [torch.nn.functional.normalize(x) for x in leaves]  # the published class normalises inside
    relevance_BB = vector.tensor("relevance")
    out = sms(*units, margin=vector.number("margin"), slack=vector.number("slack"), relevance_BB=relevance_BB)
    out.loss.backward()
    assert vector.error(out.loss, "loss") <= vector.bound
    assert vector.error(leaves[0].grad, "grad_image") <= vector.bound
    assert vector.error(leaves[1].grad, "grad_text") <= vector.bound


def naive_sms(image_BD, text_BD, margin_B, relevance_BB, slack, step):
    terms = []
    for i, j in itertools.permutations(range(SIZE), 2):
        positive = torch.dot(image_BD[i], text_BD[i])
        for cosine, relevance in (
            (torch.dot(image_BD[i], text_BD[j]), relevance_BB[i, j]),
            (torch.dot(text_BD[i], image_BD[j]), relevance_BB[j, i]),
        ):
            delta = relevance_BB[i, i] - relevance
            a = margin_B[i] * delta - (positive - cosine)
            if delta > step:
                terms.append(a.clamp(min=0))
            elif abs(delta) < step:
                terms.append((a.abs() - slack).clamp(min=0))
            else:
                terms.append((-a).clamp(min=0))
    return torch.stack(terms).mean()


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("kind", ["graded", "ids", "distinct"])
@pytest.mark.parametrize("step", [0.01, 0.3])  # the second counts a quarter as equal
def test_sms_is_its_formula(per_sample, kind, step):
    image_BD, text_BD = pair(4, SIZE, 4)
    relevance_BB = graded(1)
    ids_B = IDS_B if kind == "ids" else None
    if kind != "graded":
        relevance_BB = torch.eye(SIZE, dtype=torch.float64)
        if kind == "ids":
            relevance_BB = (IDS_B[:, None] == IDS_B[None, :]).double()
    margin_B = MARGIN_B if per_sample else torch.full_like(MARGIN_B, 0.6)
    out = sms(
        image_BD,
        text_BD,
        margin=MARGIN_B if per_sample else 0.6,
        relevance_BB=relevance_BB if kind == "graded" else None,
        ids_B=ids_B,
        slack=0.05,
        relevance_step=step,
    )
    expected = naive_sms(image_BD, text_BD, margin_B, relevance_BB, 0.05, step)
    assert out.loss.item() == pytest.approx(expected.item(), rel=1e-13)
    both = [torch.autograd.grad(x, [image_BD, text_BD]) for x in (out.loss, expected)]
    for actual, reference in zip(*both):
        torch.testing.assert_close(actual, reference)
    delta_BB = relevance_BB.diagonal()[:, None] - relevance_BB
    assert (out.stats["reversed_share"] > 0) == bool((delta_BB < -step).any())


def test_sms_of_distinct_pairs_is_max_margin():
    image_BD, text_BD = pair(2, SIZE, 4)
    assert sms(image_BD, text_BD, margin=MARGIN_B).loss.item() == pytest.approx(
        max_margin(image_BD, text_BD, margin=MARGIN_B).loss.item(), rel=1e-14
    )


def naive_triplet(image_BD, text_BD, margin_B, ids_B, negatives):
    total = 0.0
    for i in range(SIZE):
        positive = torch.dot(image_BD[i], text_BD[i])
        others = [j for j in range(SIZE) if j != i and (ids_B is None or ids_B[i] != ids_B[j])]
        for cosines in (
            [torch.dot(image_BD[i], text_BD[j]) for j in others],
            [torch.dot(text_BD[i], image_BD[j]) for j in others],
        ):
            if negatives == "hardest":
                chosen = max(cosines)
            else:
                below = [c for c in cosines if c < positive]
                chosen = max(below) if below else min(cosines)
            total = total + (margin_B[i] - positive + chosen).clamp(min=0)
    return total / (2 * SIZE)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("negatives", ["hardest", "semi_hard"])
@pytest.mark.parametrize("ids_B", [None, IDS_B], ids=["distinct", "duplicates"])
def test_triplet_is_its_formula(seed, negatives, ids_B):
    image_BD, text_BD = pair(10 * seed, SIZE, 3)
    out = triplet(image_BD, text_BD, margin=MARGIN_B, ids_B=ids_B, negatives=negatives)
    expected = naive_triplet(image_BD, text_BD, MARGIN_B, ids_B, negatives)
    assert out.loss.item() == pytest.approx(expected.item(), rel=1e-13)
    both = [torch.autograd.grad(x, [image_BD, text_BD]) for x in (out.loss, expected)]
    for actual, reference in zip(*both):
        torch.testing.assert_close(actual, reference)


def test_semi_hard_takes_the_easiest_negative_when_all_beat_the_positive():
    image_BD = rows(0, SIZE, 3)
    text_BD = -image_BD
    out = triplet(image_BD, text_BD, margin=0.2, negatives="semi_hard")
    assert out.loss.item() == pytest.approx(
        naive_triplet(image_BD, text_BD, torch.full((SIZE,), 0.2, dtype=torch.float64), None, "semi_hard").item(),
        rel=1e-12,
    )


def test_gradients_by_finite_differences():
    image_BD, text_BD = pair(4, SIZE, 4)
    assert gradcheck(lambda u, w: sms(u, w, margin=MARGIN_B, relevance_BB=graded(1)).loss, [image_BD, text_BD])
    for negatives in ("hardest", "semi_hard"):
        assert gradcheck(lambda u, w, n=negatives: triplet(u, w, margin=0.5, negatives=n).loss, [image_BD, text_BD])


def test_refusals():
    image_BD, text_BD = pair(4, SIZE, 4)
    learned = torch.tensor(0.2, requires_grad=True)
    for loss in (sms, triplet):
        with pytest.raises(ValueError, match="a margin cannot be learned"):
            loss(image_BD, text_BD, margin=learned)
        with pytest.raises(ValueError, match="must be one non-empty"):
            loss(image_BD, text_BD[:2], margin=0.2)
    with pytest.raises(ValueError, match=r"relevance_BB: shape \(2, 2\) does not fit; legal is \(6, 6\)"):
        sms(image_BD, text_BD, margin=0.2, relevance_BB=torch.eye(2))
    with pytest.raises(ValueError, match="legal is one of hardest, semi_hard"):
        triplet(image_BD, text_BD, margin=0.2, negatives="all")
