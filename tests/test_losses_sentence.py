"""Losses of sentence embeddings: the authors' numbers, enumeration, what composes."""

import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.functional import normalize
from vectors import DTYPES, Vector, pair, rows

from mmts_ray.losses import arccon, info_nce, kdmcse, mcse, n_pair, simcse

SIZE = 6
IDS_B = torch.tensor([0, 1, 2, 0, 3, 1])
OFF = {"image_threshold": None, "text_threshold": None}


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.fixture(params=["dense", "cached", "stream"])
def impl(request):
    return request.param


def units(vector, *names):
    """Leaves, and their unit rows: the published classes normalise inside."""
    leaves = [vector.leaf(name) for name in names]
    return leaves, [normalize(x) for x in leaves]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("branches", ["sum", "mean"])
def test_kdmcse_total_matches_the_published_code(number, branches, impl, dtype):
    vector = Vector(f"kdmcse_{number}", dtype)
    leaves, rows_ = units(
        vector, "simcse_view1", "simcse_view2", "student_view1", "student_view2", "image_head", "text_head"
    )
    threshold = vector.number("filter_threshold") if vector.arrays["filter_on"] else None
    weight = 0.05
    out = kdmcse(
        *rows_,
        teacher_image_BE=vector.tensor("teacher_image"),
        teacher_text_BE=vector.tensor("teacher_text"),
        temperature=vector.number("temperature"),
        angular_margin=vector.number("angular_margin"),
        image_threshold=threshold,
        text_threshold=threshold,
        filter_source="code",
        grounding_weight=weight,
        branches=branches,
        impl=impl,
    )
    weight *= 0.5 if branches == "mean" else 1
    expected = vector.number("simcse_loss") + weight * vector.number("inter_loss")
    assert out.loss.item() == pytest.approx(expected, rel=DTYPES[dtype])
    for name, key in (
        ("simcse", "simcse_loss"),
        ("image_branch", "image_branch_loss"),
        ("text_branch", "text_branch_loss"),
    ):
        assert vector.error(out.stats[name], key) <= vector.bound
    if threshold is not None:
        pairs = len(rows_[0]) * (len(rows_[0]) - 1)
        for kind in ("image", "text"):
            counted = out.stats[f"filtered_share_{kind}"].item() * pairs
            assert round(counted) == vector.arrays[f"filtered_{kind}_branch"]
    out.loss.backward()
    for leaf, name in zip(leaves[2:], ("grad_view1", "grad_view2", "grad_image_head", "grad_text_head")):
        assert vector.error(leaf.grad / weight, name) <= vector.bound


@pytest.mark.parametrize("number", range(2))
def test_simcse_mcse_and_arccon_match_the_published_code(number, impl, dtype):
    vector = Vector(f"sentence_{number}", dtype)
    names = ("view1", "view2", "grounded1", "grounded2", "image")
    temperature = vector.number("temperature")
    _, rows_ = units(vector, *names)
    out = mcse(*rows_, temperature=temperature, grounding_weight=0.3, impl=impl)
    expected = vector.number("simcse_loss") + 0.3 * vector.number("mcse_inter_loss")
    assert out.loss.item() == pytest.approx(expected, rel=DTYPES[dtype], abs=DTYPES[dtype])
    exact, m = dtype == torch.float64, vector.number("positive_margin")
    for loss, prefix in (
        (lambda a, b: arccon(a, b, temperature=temperature, positive_margin=m, directions="image_to_text"), "arccon"),
        (lambda a, b: simcse(a, b, temperature=temperature, text_margin=0.15, impl=impl), "simcse_margin"),
    ):
        leaves, views = units(vector, "view1", "view2")
        value = loss(*views).loss
        value.backward()
        assert value.item() == pytest.approx(vector.number(f"{prefix}_loss"), rel=1e-10 if exact else 1e-4)
        if exact:  # in float32 the published arccos has lost more digits than the comparison wants
            assert vector.error(leaves[0].grad, f"{prefix}_grad_view1") <= vector.bound
            assert vector.error(leaves[1].grad, f"{prefix}_grad_view2") <= vector.bound


def heads(seed=0):
    """Two views, two grounded views, image and text heads (unit, float64), and teacher rows of one space."""
    views = [rows(seed + k, SIZE, 4).requires_grad_() for k in range(6)]
    return views, {"teacher_image_BE": rows(seed + 7, SIZE, 3), "teacher_text_BE": rows(seed + 8, SIZE, 3)}


def naive_branch(anchor_BD, target_BD, t, *, q_BB, filter_BB, threshold, margin, ids_B):
    total = 0.0
    for i in range(SIZE):
        positive = torch.exp(torch.dot(anchor_BD[i], target_BD[i]) / t)
        below = positive
        for j in range(SIZE):
            if j == i or (ids_B is not None and ids_B[i] == ids_B[j]):
                continue
            if threshold is not None and filter_BB[i, j] > threshold:
                continue
            cosine = torch.dot(anchor_BD[i], target_BD[j])
            angle = torch.acos(cosine)
            if angle > margin:
                cosine = torch.cos(angle - margin * abs(1 - q_BB[i, j]))
            below = below + torch.exp(cosine / t)
        total = total - torch.log(positive / below)
    return total / SIZE


@pytest.mark.parametrize("soft_label_source", ["code", "paper"])
@pytest.mark.parametrize("filter_source", ["code", "paper"])
@pytest.mark.parametrize("thresholds", [(None, None), (0.3, None), (0.1, 0.4)])
@pytest.mark.parametrize("ids_B", [None, IDS_B], ids=["distinct", "duplicates"])
def test_kdmcse_is_its_formula_with_every_source_of_cosines(soft_label_source, filter_source, thresholds, ids_B):
    views, teacher = heads()
    margin, weight = 0.4, 0.7
    out = kdmcse(
        *views,
        **teacher,
        temperature=0.2,
        grounding_temperature=0.3,
        ids_B=ids_B,
        grounding_weight=weight,
        angular_margin=margin,
        image_threshold=thresholds[0],
        text_threshold=thresholds[1],
        soft_label_source=soft_label_source,
        filter_source=filter_source,
    )
    of_image, of_text = teacher["teacher_image_BE"], teacher["teacher_text_BE"]
    images_BB, captions_BB, caption_image_BB = of_image @ of_image.T, of_text @ of_text.T, of_text @ of_image.T
    expected = naive_branch(
        views[0], views[1], 0.2, q_BB=captions_BB, filter_BB=None, threshold=None, margin=9, ids_B=ids_B
    )
    for view_BD in views[2:4]:
        expected = expected + weight / 2 * naive_branch(
            view_BD,
            views[4],
            0.3,
            q_BB=images_BB if soft_label_source == "code" else caption_image_BB,
            filter_BB=caption_image_BB,
            threshold=thresholds[0],
            margin=margin,
            ids_B=ids_B,
        )
        expected = expected + weight / 2 * naive_branch(
            view_BD,
            views[5],
            0.3,
            q_BB=captions_BB,
            filter_BB=caption_image_BB.T if filter_source == "code" else captions_BB,
            threshold=thresholds[1],
            margin=margin,
            ids_B=ids_B,
        )
    assert out.loss.item() == pytest.approx(expected.item(), rel=1e-12)
    for actual, reference in zip(torch.autograd.grad(out.loss, views), torch.autograd.grad(expected, views)):
        torch.testing.assert_close(actual, reference, rtol=1e-9, atol=1e-11)


def test_kdmcse_without_margin_and_filter_is_two_plain_branches():
    views, teacher = heads()
    out = kdmcse(*views, **teacher, temperature=0.1, grounding_weight=1, angular_margin=0, **OFF)
    plain = simcse(*views[:2], temperature=0.1).loss
    for target_BD in views[4:]:
        for view_BD in views[2:4]:
            plain = plain + 0.5 * info_nce(view_BD, target_BD, temperature=0.1, directions="image_to_text").loss
    assert out.loss.item() == pytest.approx(plain.item(), rel=1e-14)
    image_only = mcse(*views[:5], temperature=0.1, grounding_weight=0.2)
    assert image_only.loss.item() == pytest.approx(
        (image_only.stats["simcse"] + 0.2 * image_only.stats["grounding"]).item(), rel=1e-14
    )
    off = kdmcse(*views, **teacher, temperature=0.1, grounding_weight=0)
    assert off.loss.item() == pytest.approx(simcse(*views[:2], temperature=0.1).loss.item(), rel=1e-15)
    # nothing of it reaches the teacher
    for frozen in teacher.values():
        frozen.requires_grad_()
    kdmcse(*views, **teacher, temperature=0.1, image_threshold=0.2).loss.backward()
    assert all(frozen.grad is None for frozen in teacher.values())


def test_a_threshold_above_the_largest_teacher_cosine_filters_nothing():
    views, teacher = heads()
    out = kdmcse(*views, **teacher, temperature=0.1, image_threshold=1, text_threshold=1)
    assert out.stats["filtered_share_image"].item() == 0
    assert out.stats["filtered_share_text"].item() == 0
    low = kdmcse(*views, **teacher, temperature=0.1, image_threshold=-1, text_threshold=1)
    assert low.stats["filtered_share_image"].item() == 1
    assert low.stats["image_branch"].item() == 0


@pytest.mark.parametrize("text_margin", [0.0, 0.3])
def test_simcse_is_one_direction_with_a_fixed_margin(text_margin):
    a_BD, b_BD = pair(0, SIZE, 3)
    for ids_B in (None, IDS_B):
        out = simcse(a_BD, b_BD, temperature=0.2, ids_B=ids_B, text_margin=text_margin)
        zero_BB = torch.zeros(SIZE, SIZE, dtype=torch.float64)
        expected = naive_branch(
            a_BD,
            b_BD,
            0.2,
            q_BB=zero_BB if text_margin else zero_BB + 1,
            filter_BB=None,
            threshold=None,
            margin=text_margin,
            ids_B=ids_B,
        )
        assert out.loss.item() == pytest.approx(expected.item(), rel=1e-12)


def test_a_view_within_the_margin_is_left_alone_or_stops_at_angle_0():
    view_BD = torch.eye(2, 3, dtype=torch.float64)
    view_BD[1] = torch.tensor([math.cos(0.2), math.sin(0.2), 0.0], dtype=torch.float64)
    kept = {"gate": math.cos(0.2), "floor": 1.0}
    for edge, cosine in kept.items():
        out = simcse(view_BD, view_BD, temperature=0.5, text_margin=0.3, angle_edge=edge)
        assert out.loss.item() == pytest.approx(math.log1p(math.exp((cosine - 1) / 0.5)), rel=1e-12)


def test_gradients_by_finite_differences_embeddings_and_temperatures():
    views, teacher = heads()
    temperature = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    per_pair_B = torch.linspace(0.2, 0.5, SIZE, dtype=torch.float64).requires_grad_()
    assert gradcheck(
        lambda *x: (
            kdmcse(
                *x[:6],
                **teacher,
                temperature=x[6],
                grounding_temperature=x[7],
                angular_margin=0.3,
                image_threshold=0.3,
                soft_label_source="paper",
                text_margin=0.2,
                ids_B=IDS_B,
            ).loss
        ),
        [*views, temperature, per_pair_B],
    )
    assert gradcheck(lambda *x: mcse(*x[:5], temperature=x[5], grounding_weight=1).loss, [*views[:5], temperature])
    assert gradcheck(lambda u, w, t: arccon(u, w, temperature=t, ids_B=IDS_B).loss, [*views[:2], per_pair_B])
    assert gradcheck(lambda u, w: n_pair(u, w).loss, views[:2])


def test_soft_labels_follow_what_is_ranked():
    """code: captions by captions, images by images; paper: images by caption-image; each equals its own direction."""
    image_BD, text_BD = pair(0, SIZE, 4)
    of_image, of_text = rows(5, SIZE, 3), rows(6, SIZE, 3)
    q = {"code": of_image @ of_image.T, "paper": of_text @ of_image.T}
    for labels, q_BB in q.items():
        out = info_nce(
            image_BD,
            text_BD,
            temperature=0.2,
            teacher_BE=(of_image, of_text),
            soft_labels=labels,
            angular_margin=0.4,
            filter_threshold=0.3,
            filter_threshold_image=0.1,
        )
        expected = 0.5 * (
            naive_branch(
                image_BD,
                text_BD,
                0.2,
                q_BB=of_text @ of_text.T,
                filter_BB=of_text @ of_text.T,
                threshold=0.3,
                margin=0.4,
                ids_B=None,
            )
            + naive_branch(text_BD, image_BD, 0.2, q_BB=q_BB, filter_BB=q_BB, threshold=0.1, margin=0.4, ids_B=None)
        )
        assert out.loss.item() == pytest.approx(expected.item(), rel=1e-12), labels
        off_BB = ~torch.eye(SIZE, dtype=torch.bool)
        shares = [(of_text @ of_text.T > 0.3)[off_BB].double().mean(), (q_BB > 0.1)[off_BB].double().mean()]
        assert out.stats["filtered_share"].item() == pytest.approx(sum(shares).item() / 2)
    one = info_nce(
        image_BD, text_BD, temperature=0.2, teacher_BE=of_text, angular_margin=0.4, directions="image_to_text"
    )
    by_branch = info_nce(
        image_BD,
        text_BD,
        temperature=0.2,
        teacher_BE=(of_image, of_text),
        soft_labels="code",
        angular_margin=0.4,
        directions="image_to_text",
    )
    assert one.loss.item() == pytest.approx(by_branch.loss.item(), rel=1e-14)
    # the image threshold alone switches the filter on where images are ranked
    out = info_nce(
        image_BD,
        text_BD,
        temperature=0.2,
        teacher_BE=(of_image, of_text),
        soft_labels="code",
        filter_threshold_image=-1.0,
        directions="text_to_image",
    )
    assert out.stats["filtered_share"].item() == 1


def test_refusals():
    views, teacher = heads()
    image_BD, text_BD = views[:2]
    of_text = teacher["teacher_text_BE"]
    options = {"temperature": 0.1, "angular_margin": 0.2}
    cases = [
        ({"soft_labels": "code", "teacher_BE": of_text}, "soft_labels code needs a pair of tensors"),
        ({"soft_labels": "text", "teacher_BE": (of_text, of_text)}, "soft_labels text needs one tensor"),
        ({"soft_labels": "paper", "teacher_BE": (of_text[:, :2], of_text)}, "have 2 and 3 dimensions"),
        ({"soft_labels": "both"}, "legal is one of text, image, code, paper"),
        ({"soft_labels": "code"}, "pass teacher_BE"),
        ({"impl": "fast"}, "legal is one of auto, dense, cached, stream"),
    ]
    for extra, message in cases:
        with pytest.raises(ValueError, match=message):
            info_nce(image_BD, text_BD, **options, **extra)
    for extra, message in (
        ({"branches": "max"}, "legal is one of sum, mean"),
        ({"soft_label_source": "vv"}, "legal is one of code, paper"),
        ({"filter_source": "vv"}, "legal is one of paper, code"),
        ({"angle_edge": "soft"}, "legal is one of gate, floor"),
        ({"grounding_temperature": 0.0}, "grounding_temperature: 0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            kdmcse(*views, **teacher, **{"temperature": 0.1, **extra})
    with pytest.raises(ValueError, match="grounded views, image and text"):
        kdmcse(*views[:5], views[5][:3], **teacher, temperature=0.1)
    with pytest.raises(ValueError, match="teacher image and text"):
        kdmcse(*views, teacher_image_BE=of_text[:, :2], teacher_text_BE=of_text, temperature=0.1)
    with pytest.raises(ValueError, match="view 1 and view 2"):
        simcse(image_BD, text_BD[:2], temperature=0.1)
    with pytest.raises(ValueError, match="anchor and positive"):
        n_pair(image_BD, text_BD[:2])
