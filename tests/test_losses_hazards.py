"""Every loss on the batches that users reported to break losses: saturation, duplicates, zero rows, half precision."""

import math

import pytest
import torch
from vectors import pair, rows

from mmts_ray.losses import (
    arccon,
    info_nce,
    isogclr,
    isogclr_state,
    max_margin,
    regularized_info_nce,
    siglip,
    sms,
    triplet,
)


@pytest.fixture(params=["dense", "cached", "stream"])
def impl(request):
    return request.param


def every_loss(image_BD, text_BD, impl="auto", **common):
    small, common = common, {**common, "impl": impl}
    size, dtype = len(image_BD), torch.float64 if image_BD.dtype == torch.float64 else torch.float32
    generator = torch.Generator().manual_seed(0)
    teacher_BE = rows(3, size, 4).to(dtype)
    everything = {"angular_margin": 0.15, "filter_threshold": 0.5, "teacher_BE": teacher_BE}
    yield "plain", info_nce(image_BD, text_BD, temperature=0.05, **common)
    for edge in ("gate", "floor"):
        yield f"adapacse {edge}", info_nce(image_BD, text_BD, temperature=0.05, angle_edge=edge, **everything, **common)
    yield "replace", info_nce(image_BD, text_BD, temperature=0.05, r_mix=0.5, generator=generator, **common)
    yield (
        "all",
        info_nce(
            image_BD,
            text_BD,
            temperature=torch.linspace(0.01, 0.2, size, dtype=dtype),
            r_mix=0.5,
            mix_mode="weighted",
            **everything,
            **common,
        ),
    )
    yield "max_margin", max_margin(image_BD, text_BD, margin=0.2, **common)
    yield "siglip", siglip(image_BD, text_BD, temperature=0.05, **common)
    yield "regularized", regularized_info_nce(image_BD, text_BD, temperature=0.05, **common)
    both = {**everything, "teacher_BE": (teacher_BE, teacher_BE.flip(0)), "filter_threshold_image": 0.3}
    for labels in ("code", "paper"):
        yield labels, info_nce(image_BD, text_BD, temperature=0.05, soft_labels=labels, **both, **common)
    yield "arccon", arccon(image_BD, text_BD, temperature=0.05, **small)
    yield "sms", sms(image_BD, text_BD, margin=0.6, **small)
    for negatives in ("hardest", "semi_hard"):
        yield negatives, triplet(image_BD, text_BD, margin=0.2, negatives=negatives, **small)
    place_B = torch.arange(size)
    state = isogclr_state(size, size)
    yield (
        "isogclr",
        isogclr(image_BD, text_BD, temperature=0.01, state=state, image_B=place_B, text_B=place_B, **small),
    )


def hazards(dtype):
    near = rows(0, 8, 16, dtype=dtype)
    one = rows(1, 1, 16, dtype=dtype).expand(8, 16)
    zero = near.clone()
    zero[2:4] = 0
    yield "identical views", near, near
    yield "opposite views", near, -near
    yield "collapsed", one, one
    yield "collapsed and opposite", one, -one
    yield "duplicates", near[[0, 0, 1, 1, 2, 2, 3, 3]], near[[0, 0, 1, 1, 2, 2, 3, 3]]
    yield "zero rows", zero, near
    yield "zero on both sides", zero, zero
    yield "one pair", near[:1], near[1:2]
    yield "two equal pairs", one[:2], one[:2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_losses_and_gradients_are_finite_everywhere(dtype, impl):
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for case, image_BD, text_BD in hazards(wide):
        leaves = [x.detach().to(dtype).clone().requires_grad_() for x in (image_BD, text_BD)]
        for ids_B in (None, torch.arange(len(image_BD)) // 2, torch.zeros(len(image_BD), dtype=torch.int64)):
            for name, out in every_loss(*leaves, impl=impl, ids_B=ids_B):
                assert torch.isfinite(out.loss), (case, name)
                assert out.loss.dtype == wide
                assert all(math.isfinite(v) for v in out.stats.values()), (case, name)
                for gradient in torch.autograd.grad(out.loss, leaves):
                    assert gradient.dtype == dtype
                    assert torch.isfinite(gradient).all(), (case, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_saturated_positive_still_learns(dtype, impl):
    """arccos of a value clamped to +-1 has gradient 0 or NaN there: pytorch issue 8069."""
    image_BD = rows(0, 8, 16, dtype=torch.float32).to(dtype)
    text_BD = image_BD.roll(1, dims=0)  # every negative of one anchor is its exact copy
    leaves = [image_BD.clone().requires_grad_(), text_BD.clone().requires_grad_()]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    teacher_BE = rows(3, 8, 4, dtype=torch.float64)
    for edge in ("gate", "floor"):
        options = {"temperature": 0.05, "angular_margin": 0.15, "angle_edge": edge, "impl": impl}
        out = info_nce(*leaves, teacher_BE=teacher_BE.float(), **options)
        reference = info_nce(*exact, teacher_BE=teacher_BE, **options)
        for actual, expected in zip(torch.autograd.grad(out.loss, leaves), torch.autograd.grad(reference.loss, exact)):
            assert actual.abs().sum(1).min() > 0.1
            tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-4
            assert (actual.double() - expected).abs().max() <= tolerance * expected.abs().max()


def test_half_precision_inputs_are_widened(impl):
    image_BD, text_BD = (x.detach() for x in pair(0, 64, 32, dtype=torch.float32))
    for dtype in (torch.bfloat16, torch.float16):
        narrow = [x.to(dtype) for x in (image_BD, text_BD)]
        for (name, out), (_, reference) in zip(
            every_loss(*narrow, impl=impl), every_loss(*(x.double() for x in narrow))
        ):
            assert out.loss.item() == pytest.approx(reference.loss.item(), rel=2e-5, abs=1e-6), name


def test_autocast_does_not_reach_the_loss(impl):
    image_BD, text_BD = pair(0, 64, 32, dtype=torch.float32)
    plain = {name: out.loss for name, out in every_loss(image_BD, text_BD, impl=impl)}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for name, out in every_loss(image_BD, text_BD, impl=impl):
            assert out.loss.dtype == torch.float32, name
            assert out.loss.item() == plain[name].item(), name
            actual, expected = (torch.autograd.grad(loss, image_BD)[0] for loss in (out.loss, plain[name]))
            assert torch.equal(actual, expected), name


def test_one_pair_has_no_negatives(impl):
    image_BD, text_BD = pair(0, 1, 4)
    for name, out in every_loss(image_BD, text_BD, impl=impl):
        if name not in ("siglip", "regularized"):
            assert out.loss.item() == 0, name
            assert all(torch.count_nonzero(g) == 0 for g in torch.autograd.grad(out.loss, [image_BD, text_BD])), name
    regularized = regularized_info_nce(image_BD, text_BD, temperature=0.1)
    assert regularized.loss.item() == pytest.approx((image_BD - text_BD).square().sum().item())


def test_not_a_number_is_not_hidden(impl):
    image_BD, text_BD = (x.detach().clone() for x in pair(0, 6, 4))
    image_BD[2, 1] = math.nan
    for name, out in every_loss(image_BD, text_BD, impl=impl):
        assert torch.isnan(out.loss), name
