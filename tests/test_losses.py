"""Losses against the authors' own classes, against naive double loops, and against the hazards that users reported."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize
from vectors import DTYPES, Vector, pair, rows

from mmts_ray import kernels
from mmts_ray.losses import (
    LOSSES,
    SCHEDULED,
    STATE,
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
from mmts_ray.space import declared


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.fixture(params=["dense", "cached", "stream"])
def impl(request):
    return request.param


# --- the authors' own numbers -----------------------------------------------------------------------------------------


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


# --- naive double loops -----------------------------------------------------------------------------------------------

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


# --- properties -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["replace", "weighted"])
def test_without_mixing_margin_and_filter_it_is_exactly_info_nce(mode):
    image_BD, text_BD = pair(0, 16, 8)
    plain = info_nce(image_BD, text_BD, temperature=0.1)
    same = info_nce(
        image_BD, text_BD, temperature=0.1, r_mix=0.0, mix_mode=mode, angular_margin=0.0, filter_threshold=None
    )
    assert same.loss.item() == plain.loss.item()
    neutral = info_nce(image_BD, text_BD, temperature=0.1, filter_threshold=1.1, teacher_BE=rows(3, 16, 4))
    assert neutral.loss.item() == plain.loss.item()


def test_mean_loss_of_replacement_is_at_most_the_weighted_loss_and_close_to_it():
    image_BD, text_BD = pair(0, 64, 16)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        weighted = info_nce(image_BD, text_BD, temperature=0.1, r_mix=0.3, mix_mode="weighted").loss.item()
        draws = [
            info_nce(image_BD, text_BD, temperature=0.1, r_mix=0.3, generator=generator).loss.item() for _ in range(300)
        ]
    error = np.std(draws) / math.sqrt(len(draws))
    assert np.std(draws) > 0  # drawn anew at each call
    assert np.mean(draws) <= weighted + 3 * error
    assert np.mean(draws) >= weighted - 0.1


def test_replacement_repeats_with_its_seed():
    image_BD, text_BD = pair(0, 16, 8)

    def loss(seed):
        return info_nce(
            image_BD, text_BD, temperature=0.1, r_mix=0.3, generator=torch.Generator().manual_seed(seed)
        ).loss.item()

    assert loss(0) == loss(0)
    assert loss(0) != loss(1)


def test_all_losses_follow_a_permutation_of_the_batch():
    image_BD, text_BD = pair(0, 12, 6)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    value_B = torch.linspace(0.1, 0.4, 12, dtype=torch.float64)
    ids_B = torch.arange(12) // 2
    for name, loss in LOSSES.items():
        extra = {}
        if name == "info_nce":
            teacher_BE = rows(3, 12, 4)
            extra = {"r_mix": 0.3, "mix_mode": "weighted", "angular_margin": 0.3, "filter_threshold": 0.5}
        if name in STATE:
            extra = {"state": STATE[name](12, 12)}
        results = []
        for order_B in (torch.arange(12), order):
            leaves = [x.detach()[order_B].requires_grad_() for x in (image_BD, text_BD)]
            if name == "info_nce":
                extra["teacher_BE"] = teacher_BE[order_B]
            if name in STATE:
                extra |= {"image_B": order_B, "text_B": order_B}
            out = loss(*leaves, **{SCHEDULED[name]: value_B[order_B]}, ids_B=ids_B[order_B], **extra)
            results.append((out.loss, *torch.autograd.grad(out.loss, leaves)))
        (loss_a, *grads_a), (loss_b, *grads_b) = results
        assert loss_a.item() == pytest.approx(loss_b.item(), rel=1e-12), name
        for a, b in zip(grads_a, grads_b):
            torch.testing.assert_close(a[order], b, rtol=1e-10, atol=1e-12)


def test_captions_of_one_image_are_not_pushed_apart():
    """Masking is by id, not by equal embeddings, which dropout would make unequal: sentence-transformers issue 2756."""
    image_BD, text_BD = pair(0, 10, 6)
    ids_B = torch.arange(10) // 5
    temperature_B = torch.linspace(0.1, 0.3, 10, dtype=torch.float64)
    out = info_nce(image_BD, text_BD, temperature=temperature_B, ids_B=ids_B)
    assert out.stats["same_id_share"].item() == pytest.approx(2 * 5 * 4 / 90)
    # pairs of one id apart: each anchor sees its positive and the five of the other image
    s_BB = (image_BD @ text_BD.T).detach()
    total = 0.0
    for i in range(10):
        others = [j for j in range(10) if ids_B[j] != ids_B[i]]
        for row in (s_BB[i], s_BB[:, i]):
            kept = row[[i, *others]] / temperature_B[i]
            total += (torch.logsumexp(kept, 0) - kept[0]).item()
    assert out.loss.item() == pytest.approx(total / 20, rel=1e-12)


def test_teacher_and_per_sample_temperature_carry_no_gradient_they_were_not_asked_for():
    image_BD, text_BD = pair(0, 8, 6)
    teacher_BE = rows(3, 8, 4).requires_grad_()
    out = info_nce(image_BD, text_BD, temperature=0.1, teacher_BE=teacher_BE, angular_margin=0.2, filter_threshold=0.9)
    out.loss.backward()
    assert teacher_BE.grad is None


def test_stats_are_detached_and_can_be_skipped():
    image_BD, text_BD = pair(0, 8, 6)
    temperature_B = torch.linspace(0.1, 0.3, 8, dtype=torch.float64).requires_grad_()
    options = {
        "temperature": temperature_B,
        "ids_B": torch.arange(8),
        "teacher_BE": rows(3, 8, 4),
        "filter_threshold": 0.5,
        "r_mix": 0.25,
    }
    for extra in ({"mix_mode": "weighted"}, {"generator": torch.Generator().manual_seed(0)}):
        stats = info_nce(image_BD, text_BD, **options, **extra).stats
        assert set(stats) == {
            "temperature_min", "temperature_mean", "temperature_max", "filtered_share", "same_id_share", "intra_count"
        }  # fmt: skip
        assert all(not isinstance(v, torch.Tensor) or (v.ndim == 0 and not v.requires_grad) for v in stats.values())
        assert info_nce(image_BD, text_BD, **options, **extra, with_stats=False).stats == {}
    counted = info_nce(image_BD, text_BD, temperature=0.1, r_mix=0.25, mix_mode="weighted").stats["intra_count"]
    assert counted == pytest.approx(0.25 * 7)
    drawn = info_nce(image_BD, text_BD, temperature=0.1, r_mix=0.25, generator=torch.Generator().manual_seed(4))
    masks = kernels.mix_masks(8, 0.25, torch.Generator().manual_seed(4))
    assert drawn.stats["intra_count"].item() == pytest.approx(masks.sum().item() / 16)


# --- hazards ----------------------------------------------------------------------------------------------------------


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


def test_refusals_name_the_legal_set():
    image_BD, text_BD = pair(0, 4, 3)
    cases = [
        ({"temperature": 0.0}, "legal is above 0"),
        ({"temperature": -0.1}, "legal is above 0"),
        ({"temperature": math.nan}, "legal is above 0"),
        ({"temperature": torch.ones(3)}, r"legal is a number, \(\) or \(4,\)"),
        ({"temperature": 0.1, "mix_mode": "concat"}, "legal is one of replace, weighted"),
        ({"temperature": 0.1, "angle_edge": "soft"}, "legal is one of gate, floor"),
        ({"temperature": 0.1, "directions": "all"}, "legal is one of both, image_to_text, text_to_image"),
        ({"temperature": 0.1, "angular_margin": 0.1}, "loss.angular_margin needs teacher similarities"),
        ({"temperature": 0.1, "filter_threshold": 0.9}, "loss.filter_threshold needs teacher similarities"),
        ({"temperature": 0.1, "r_mix": 0.1}, "pass generator"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            info_nce(image_BD, text_BD, **options)
    for loss, options in (
        (info_nce, {"temperature": 0.1}),
        (max_margin, {"margin": 0.1}),
        (siglip, {"temperature": 0.1}),
    ):
        with pytest.raises(ValueError, match="must be one non-empty"):
            loss(image_BD, text_BD[:3], **options)
        with pytest.raises(ValueError, match="must be one non-empty"):
            loss(image_BD[:0], text_BD[:0], **options)
    with pytest.raises(ValueError, match="a margin cannot be learned"):
        max_margin(image_BD, text_BD, margin=torch.tensor(0.2, requires_grad=True))


def test_every_default_is_legal_and_described():
    for name, loss in LOSSES.items():
        assert name in SCHEDULED
        for parameter in declared(loss).values():
            assert parameter.domain.parse(parameter.default) == parameter.default
            assert parameter.domain.doc
    assert list(declared(info_nce)) == [
        "r_mix", "mix_mode", "angular_margin", "filter_threshold", "filter_threshold_image", "angle_edge",
        "soft_labels", "directions", "impl"
    ]  # fmt: skip


def test_declarations_can_be_read_without_torch():
    code = "import sys, mmts_ray.losses, mmts_ray.schedules, mmts_ray.metrics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
