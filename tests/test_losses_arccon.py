"""ArcCon and n-pair: their formulas by enumeration, and the gradient where the arc cosine has none."""

import math

import pytest
import torch
from vectors import pair, rows

from mmts_ray.losses import arccon, info_nce, n_pair

SIZE = 6
IDS_B = torch.tensor([0, 1, 2, 0, 3, 1])


@pytest.mark.parametrize("temperature_kind", ["number", "learnable", "per sample"])
def test_arccon_is_its_formula_in_both_directions(temperature_kind):
    image_BD, text_BD = pair(0, SIZE, 3)
    with torch.no_grad():
        text_BD[2] = -image_BD[2]  # an angle above pi - m, which stays
    leaves, margin = [image_BD, text_BD], 0.6
    temperature = 0.3
    if temperature_kind != "number":
        shape = (SIZE,) if temperature_kind == "per sample" else ()
        temperature = torch.full(shape, 0.3, dtype=torch.float64, requires_grad=True)
        leaves.append(temperature)
    temperature_B = torch.as_tensor(temperature, dtype=torch.float64).expand(SIZE)
    for ids_B in (None, IDS_B):
        for directions in ("both", "image_to_text", "text_to_image"):
            out = arccon(
                image_BD,
                text_BD,
                temperature=temperature,
                ids_B=ids_B,
                positive_margin=margin,
                directions=directions,
            )
            total, anchors = 0.0, 0
            for way, (own, other) in {
                "image_to_text": (image_BD, text_BD),
                "text_to_image": (text_BD, image_BD),
            }.items():
                if directions not in ("both", way):
                    continue
                for i in range(SIZE):
                    cosine = torch.dot(own[i], other[i]).clamp(-1 + 1e-14, 1 - 1e-14)
                    if torch.acos(cosine) <= math.pi - margin:
                        cosine = torch.cos(torch.acos(cosine) + margin)
                    logits = [cosine / temperature_B[i]]
                    for j in range(SIZE):
                        if j != i and (ids_B is None or ids_B[i] != ids_B[j]):
                            logits.append(torch.dot(own[i], other[j]) / temperature_B[i])
                    total = total + torch.logsumexp(torch.stack(logits), 0) - logits[0]
                    anchors += 1
            expected = total / anchors
            assert out.loss.item() == pytest.approx(expected.item(), rel=1e-12)
            for actual, reference in zip(torch.autograd.grad(out.loss, leaves), torch.autograd.grad(expected, leaves)):
                # the oracle's clamp cuts the gradient of the opposite pair, ours is exact there
                keep = torch.ones(SIZE, dtype=torch.bool)
                keep[2] = False
                if actual.ndim == 2:
                    actual, reference = actual[keep], reference[keep]
                torch.testing.assert_close(actual, reference, rtol=1e-9, atol=1e-11)


def test_arccon_without_margin_is_info_nce():
    image_BD, text_BD = pair(0, SIZE, 4)
    plain = info_nce(image_BD, text_BD, temperature=0.1)
    assert arccon(image_BD, text_BD, temperature=0.1, positive_margin=0.0).loss.item() == pytest.approx(
        plain.loss.item(), rel=1e-13
    )
    harder = arccon(image_BD, text_BD, temperature=0.1, positive_margin=0.3)
    assert harder.loss > plain.loss


def test_a_perfect_positive_still_has_a_bounded_gradient_under_a_margin():
    """cos(arccos(s) + m) has slope -infinity at s = 1; a view against itself lies there."""
    for dtype in (torch.float32, torch.bfloat16):
        view_BD = rows(0, 8, 16, dtype=torch.float32).to(dtype).requires_grad_()
        out = arccon(view_BD, view_BD.detach(), temperature=0.05, positive_margin=0.5, directions="image_to_text")
        (gradient,) = torch.autograd.grad(out.loss, view_BD)
        assert torch.isfinite(gradient).all()
        assert gradient.abs().max() < 20 / 0.05
        assert gradient.abs().sum() > 0


@pytest.mark.parametrize("ids_B", [None, IDS_B], ids=["distinct", "duplicates"])
def test_n_pair_is_its_formula_on_rows_of_any_length(ids_B):
    generator = torch.Generator().manual_seed(0)
    anchor_BD, positive_BD = (
        torch.randn(SIZE, 4, generator=generator, dtype=torch.float64).mul_(2).requires_grad_() for _ in range(2)
    )
    out = n_pair(anchor_BD, positive_BD, ids_B=ids_B, norm_weight=0.1)
    total = 0.0
    for i in range(SIZE):
        gaps = [
            torch.exp(torch.dot(anchor_BD[i], positive_BD[j]) - torch.dot(anchor_BD[i], positive_BD[i]))
            for j in range(SIZE)
            if j != i and (ids_B is None or ids_B[i] != ids_B[j])
        ]
        total = total + torch.log(1 + sum(gaps))
        total = total + 0.1 / 4 * (anchor_BD[i].square().sum() + positive_BD[i].square().sum())
    expected = total / SIZE
    assert out.loss.item() == pytest.approx(expected.item(), rel=1e-13)
    leaves = [anchor_BD, positive_BD]
    for actual, reference in zip(torch.autograd.grad(out.loss, leaves), torch.autograd.grad(expected, leaves)):
        torch.testing.assert_close(actual, reference, rtol=1e-10, atol=1e-12)
