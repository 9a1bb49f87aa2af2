"""Losses against the authors' own classes, loss and gradients."""

import pytest
import torch
from torch.nn.functional import normalize
from vectors import DTYPES, Vector

from mmts_ray.losses import info_nce, max_margin, regularized_info_nce, siglip


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.fixture(params=["dense", "cached", "stream"])
def impl(request):
    return request.param


@pytest.mark.parametrize("number", range(5))
def test_mm_ts_info_nce_matches_the_published_code(number, impl, dtype):
    vector = Vector(f"mmts_{number}", dtype)
    image_BD, text_BD = vector.leaf("image"), vector.leaf("text")
    out = info_nce(image_BD, text_BD, temperature=vector.tensor("tau"), impl=impl)
    out.loss.backward()
    assert vector.error(out.loss, "infonce_loss") <= vector.bound
    assert vector.error(image_BD.grad, "infonce_grad_image") <= vector.bound
    assert vector.error(text_BD.grad, "infonce_grad_text") <= vector.bound
    assert out.stats["temperature_max"].item() == pytest.approx(vector.arrays["tau"].max())


@pytest.mark.parametrize("number", range(5))
def test_mm_ts_max_margin_matches_the_published_code(number, impl, dtype):
    vector = Vector(f"mmts_{number}", dtype)
    image_BD, text_BD = vector.leaf("image"), vector.leaf("text")
    # the published class normalises once more, which takes the radial part out of its gradients
    out = max_margin(normalize(image_BD), normalize(text_BD), margin=vector.tensor("tau"), impl=impl)
    out.loss.backward()
    assert vector.error(out.loss, "max_margin_loss") <= vector.bound
    assert vector.error(image_BD.grad, "max_margin_grad_image") <= vector.bound
    assert vector.error(text_BD.grad, "max_margin_grad_text") <= vector.bound


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("temperature_kind", ["number", "learnable", "per sample"])
def test_info_nce_matches_open_clip(number, temperature_kind, impl, dtype):
    vector = Vector(f"base_{number}", dtype)
    image_BD, text_BD = vector.leaf("image"), vector.leaf("text")
    temperature = vector.number("temperature")
    if temperature_kind == "learnable":
        temperature = torch.tensor(temperature, dtype=dtype, requires_grad=True)
    elif temperature_kind == "per sample":
        temperature = torch.full((len(image_BD),), temperature, dtype=dtype)
    out = info_nce(image_BD, text_BD, temperature=temperature, impl=impl)
    out.loss.backward()
    assert vector.error(out.loss, "infonce_loss") <= vector.bound
    assert vector.error(image_BD.grad, "infonce_grad_image") <= vector.bound
    assert vector.error(text_BD.grad, "infonce_grad_text") <= vector.bound


@pytest.mark.parametrize("number", range(2))
def test_siglip_matches_open_clip(number, impl, dtype):
    vector = Vector(f"base_{number}", dtype)
    for temperature in (vector.number("temperature"), vector.tensor("temperature").expand(len(vector.arrays["image"]))):
        image_BD, text_BD = vector.leaf("image"), vector.leaf("text")
        out = siglip(image_BD, text_BD, temperature=temperature, bias=vector.number("siglip_bias"), impl=impl)
        out.loss.backward()
        assert vector.error(out.loss, "siglip_loss") <= vector.bound
        assert vector.error(image_BD.grad, "siglip_grad_image") <= vector.bound
        assert vector.error(text_BD.grad, "siglip_grad_text") <= vector.bound


@pytest.mark.parametrize("number", range(2))
def test_max_margin_matches_avion_and_its_adaptive_form_egovlp(number, impl, dtype):
    vector = Vector(f"base_{number}", dtype)
    image_BD, text_BD = vector.leaf("image"), vector.leaf("text")
    out = max_margin(normalize(image_BD), normalize(text_BD), margin=vector.number("margin"), impl=impl)
    out.loss.backward()
    assert vector.error(out.loss, "max_margin_loss") <= vector.bound
    assert vector.error(image_BD.grad, "max_margin_grad_image") <= vector.bound
    assert vector.error(text_BD.grad, "max_margin_grad_text") <= vector.bound
    adaptive = max_margin(
        image_BD, text_BD, margin=vector.number("adaptive_gamma"), relevance_B=vector.tensor("relevance"), impl=impl
    )
    assert vector.error(adaptive.loss, "adaptive_max_margin_loss") <= vector.bound


@pytest.mark.parametrize("number", range(4))
def test_adapacse_branches_match_the_published_code(number, impl, dtype):
    vector = Vector(f"kdmcse_{number}", dtype)
    views = [vector.leaf("student_view1"), vector.leaf("student_view2")]
    heads = [vector.leaf("image_head"), vector.leaf("text_head")]
    teacher_image, teacher_text = vector.tensor("teacher_image"), vector.tensor("teacher_text")
    branches = []
    for head_BD, teacher_BE, filter_teacher, counted in (
        (heads[0], teacher_image, (teacher_text, teacher_image), "filtered_image_branch"),
        (heads[1], teacher_text, (teacher_image, teacher_text), "filtered_text_branch"),
    ):
        outs = [
            info_nce(
                normalize(view_BD),  # the published code normalises inside
                normalize(head_BD),
                temperature=vector.number("temperature"),
                teacher_BE=teacher_BE,
                filter_teacher=filter_teacher,
                angular_margin=vector.number("angular_margin"),
                filter_threshold=vector.number("filter_threshold") if vector.arrays["filter_on"] else None,
                directions="image_to_text",
                impl=impl,
            )
            for view_BD in views
        ]
        branches.append(0.5 * (outs[0].loss + outs[1].loss))
        if vector.arrays["filter_on"]:
            pairs = len(head_BD) * (len(head_BD) - 1)
            assert round(outs[0].stats["filtered_share"].item() * pairs) == vector.arrays[counted]
    total = branches[0] + branches[1]
    total.backward()
    assert vector.error(branches[0], "image_branch_loss") <= vector.bound
    assert vector.error(branches[1], "text_branch_loss") <= vector.bound
    assert vector.error(total, "inter_loss") <= vector.bound
    for leaf, name in zip([*views, *heads], ["grad_view1", "grad_view2", "grad_image_head", "grad_text_head"]):
        assert vector.error(leaf.grad, name) <= vector.bound


@pytest.mark.parametrize("number", range(4))
def test_one_direction_is_simcse(number, impl, dtype):
    vector = Vector(f"kdmcse_{number}", dtype)
    out = info_nce(
        normalize(vector.leaf("simcse_view1")),
        normalize(vector.leaf("simcse_view2")),
        temperature=vector.number("temperature"),
        directions="image_to_text",
        impl=impl,
    )
    assert vector.error(out.loss, "simcse_loss") <= vector.bound


@pytest.mark.parametrize("number", range(2))
def test_regularized_info_nce_matches_the_published_definitions(number, impl, dtype):
    vector = Vector(f"reg_{number}", dtype)
    image_BD, text_BD = vector.leaf("image"), vector.leaf("text")
    temperature = vector.number("temperature")
    out = regularized_info_nce(image_BD, text_BD, temperature=temperature, impl=impl)
    assert vector.error(out.loss, "total") <= vector.bound
    for name in ("alignment", "uniformity", "cross_uniformity"):
        assert vector.error(out.stats[name], name) <= vector.bound
    off = dict.fromkeys(("alignment_weight", "uniformity_weight", "cross_uniformity_weight"), 0.0)
    assert (
        vector.error(
            regularized_info_nce(image_BD, text_BD, temperature=temperature, impl=impl, **off).loss, "infonce_loss"
        )
        <= vector.bound
    )
