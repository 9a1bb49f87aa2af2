"""Losses against naive double loops over their documented formulas, for every combination of options."""

import itertools
import math

import pytest
import torch
from vectors import pair, rows

from mmts_ray import kernels
from mmts_ray.losses import info_nce, max_margin, regularized_info_nce, siglip

SIZE = 5
IDS_B = torch.tensor([0, 1, 2, 0, 3])


def naive_info_nce(image_BD, text_BD, temperature_B, *, r_mix, picks, margin, edge, teacher_BE, threshold, ids_B, ways):
    """The docstring's formula, term by term, with acos."""
    total, anchors = 0.0, 0
    sides = {"image_to_text": (image_BD, text_BD), "text_to_image": (text_BD, image_BD)}
    for number, (way, (own, other)) in enumerate(sides.items()):
        if ways not in ("both", way):
            continue
        for i in range(len(own)):
            t = temperature_B[i]
            positive = torch.exp(torch.dot(own[i], other[i]) / t)
            denominator = positive
            for j in range(len(own)):
                if j == i or (ids_B is not None and ids_B[i] == ids_B[j]):
                    continue
                alike = torch.dot(teacher_BE[i], teacher_BE[j])
                if threshold is not None and alike > threshold:
                    continue
                if picks is None:
                    inter, intra = 1 - r_mix, r_mix
                else:
                    intra = float(picks[number][i, j] if number == 0 else picks[number][j, i])
                    inter = 1 - intra
                for weight, cosine in ((inter, torch.dot(own[i], other[j])), (intra, torch.dot(own[i], own[j]))):
                    if margin > 0:
                        angle, move = torch.acos(cosine), margin * abs(1 - alike)
                        if edge == "floor":
                            cosine = torch.cos((angle - move).clamp(min=0))
                        elif angle > margin:
                            cosine = torch.cos(angle - move)
                    if weight:
                        denominator = denominator + weight * torch.exp(cosine / t)
            total = total - torch.log(positive / denominator)
            anchors += 1
    return total / anchors


LATTICE = list(
    itertools.product(
        ("number", "learnable", "per sample"),
        ((0.0, "replace"), (0.35, "replace"), (0.35, "weighted"), (1.0, "replace"), (1.0, "weighted")),
        ((0.0, "gate"), (0.9, "gate"), (0.9, "floor")),
        (None, 0.2),
        (None, IDS_B),
        ("both", "image_to_text", "text_to_image"),
    )
)


@pytest.mark.parametrize("ways", ["both", "image_to_text", "text_to_image"])
@pytest.mark.parametrize("kind", ["number", "learnable", "per sample"])
def test_info_nce_is_its_formula_for_every_combination_of_options(kind, ways):
    teacher_BE = rows(7, SIZE, 3)
    for kind_, (r_mix, mode), (margin, edge), threshold, ids_B, ways_ in LATTICE:
        if (kind_, ways_) != (kind, ways):
            continue
        image_BD, text_BD = pair(0, SIZE, 3)
        leaves = [image_BD, text_BD]
        if kind == "number":
            temperature, temperature_B = 0.3, torch.full((SIZE,), 0.3, dtype=torch.float64)
        else:
            shape = () if kind == "learnable" else (SIZE,)
            temperature = torch.linspace(0.2, 0.5, SIZE, dtype=torch.float64)[: SIZE if shape else 1].reshape(shape)
            temperature_B = temperature.requires_grad_().expand(SIZE)
            leaves.append(temperature)
        drawn = r_mix > 0 and mode == "replace"
        expected = naive_info_nce(
            image_BD,
            text_BD,
            temperature_B,
            r_mix=r_mix,
            picks=kernels.mix_masks(SIZE, r_mix, torch.Generator().manual_seed(3)) if drawn else None,
            margin=margin,
            edge=edge,
            teacher_BE=teacher_BE,
            threshold=threshold,
            ids_B=ids_B,
            ways=ways,
        )
        references = torch.autograd.grad(expected, leaves)
        for form in ("dense", "cached", "stream"):
            out = info_nce(
                image_BD,
                text_BD,
                temperature=temperature,
                ids_B=ids_B,
                teacher_BE=teacher_BE,
                generator=torch.Generator().manual_seed(3),
                r_mix=r_mix,
                mix_mode=mode,
                angular_margin=margin,
                filter_threshold=threshold,
                angle_edge=edge,
                directions=ways,
                impl=form,
            )
            case = (form, r_mix, mode, margin, edge, threshold, ids_B is not None)
            assert out.loss.item() == pytest.approx(expected.item(), rel=1e-12), case
            for actual, reference in zip(torch.autograd.grad(out.loss, leaves), references):
                torch.testing.assert_close(actual, reference, rtol=1e-9, atol=1e-11, msg=str(case))


def test_the_lattice_reaches_both_sides_of_the_angular_edge_and_of_the_filter():
    image_BD, text_BD = pair(0, SIZE, 3)
    off = ~torch.eye(SIZE, dtype=torch.bool)
    angles = torch.acos(image_BD @ text_BD.T)[off]
    assert (angles < 0.9).any()
    assert (angles > 0.9).any()
    alike = (rows(7, SIZE, 3) @ rows(7, SIZE, 3).T)[off]
    assert (alike > 0.2).any()
    assert (alike < 0.2).any()
    assert (alike < 0).any()  # the angle then moves by more than the margin


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("ids_B", [None, IDS_B], ids=["distinct", "duplicates"])
def test_max_margin_is_its_formula(per_sample, ids_B):
    image_BD, text_BD = pair(2, SIZE, 3)
    margin_B = (
        torch.linspace(0.05, 0.6, SIZE, dtype=torch.float64)
        if per_sample
        else torch.full((SIZE,), 0.2, dtype=torch.float64)
    )
    out = max_margin(image_BD, text_BD, margin=margin_B if per_sample else 0.2, ids_B=ids_B)
    terms = []
    for i, j in itertools.permutations(range(SIZE), 2):
        if ids_B is None or ids_B[i] != ids_B[j]:
            positive = torch.dot(image_BD[i], text_BD[i])
            terms.append((margin_B[i] - positive + torch.dot(image_BD[i], text_BD[j])).clamp(min=0))
            terms.append((margin_B[i] - positive + torch.dot(text_BD[i], image_BD[j])).clamp(min=0))
    expected = torch.stack(terms).mean()
    assert out.loss.item() == pytest.approx(expected.item(), rel=1e-13)
    assert out.stats["active_hinge_share"].item() == pytest.approx((torch.stack(terms) > 0).double().mean().item())
    grads = torch.autograd.grad(out.loss, [image_BD, text_BD]), torch.autograd.grad(expected, [image_BD, text_BD])
    for actual, reference in zip(*grads):
        torch.testing.assert_close(actual, reference)


@pytest.mark.parametrize("ids_B", [None, IDS_B], ids=["distinct", "duplicates"])
def test_siglip_is_its_formula_anchor_wise_in_both_directions(ids_B):
    image_BD, text_BD = pair(2, SIZE, 3)
    temperature_B = torch.linspace(0.2, 0.5, SIZE, dtype=torch.float64)
    out = siglip(image_BD, text_BD, temperature=temperature_B, bias=-3.0, ids_B=ids_B)
    total = 0.0
    for i, j in itertools.product(range(SIZE), repeat=2):
        if i != j and ids_B is not None and ids_B[i] == ids_B[j]:
            continue
        for anchor in (i, j):
            logit = torch.dot(image_BD[i], text_BD[j]).item() / temperature_B[anchor].item() - 3.0
            total += 0.5 * math.log1p(math.exp(-logit if i == j else logit))
    assert out.loss.item() == pytest.approx(total / SIZE, rel=1e-12)


@pytest.mark.parametrize("ids_B", [None, IDS_B], ids=["distinct", "duplicates"])
def test_regularized_info_nce_adds_its_weighted_terms(ids_B):
    image_BD, text_BD = pair(2, SIZE, 3)
    weights = {"alignment_weight": 0.3, "uniformity_weight": 2.0, "cross_uniformity_weight": 0.7}
    out = regularized_info_nce(image_BD, text_BD, temperature=0.2, ids_B=ids_B, **weights)

    def potential(x_BD, y_BD):
        kept = [
            (-2 * (x_BD[i] - y_BD[j]).square().sum()).exp()
            for i, j in itertools.permutations(range(SIZE), 2)
            if ids_B is None or ids_B[i] != ids_B[j]
        ]
        return torch.stack(kept).mean().log()

    expected = (
        info_nce(image_BD, text_BD, temperature=0.2, ids_B=ids_B).loss
        + 0.3 * (image_BD - text_BD).square().sum(1).mean()
        + 2.0 * 0.5 * (potential(image_BD, image_BD) + potential(text_BD, text_BD))
        + 0.7 * potential(image_BD, text_BD)
    )
    assert out.loss.item() == pytest.approx(expected.item(), rel=1e-12)
    # gradients agree along the sphere: off it, 2 - 2 cos and |u - w|^2 are different functions
    for x_BD in (image_BD, text_BD):
        (actual,) = torch.autograd.grad(out.loss, x_BD, retain_graph=True)
        (reference,) = torch.autograd.grad(expected, x_BD, retain_graph=True)
        for gradient in (actual, reference):
            gradient -= (gradient * x_BD).sum(1, keepdim=True) * x_BD.detach()
        torch.testing.assert_close(actual, reference, rtol=1e-10, atol=1e-12)
