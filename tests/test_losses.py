"""What holds for every loss: order, masks, draws, statistics; what is refused and what is declared."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from vectors import pair, rows

from mmts_ray import kernels
from mmts_ray.losses import LOSSES, SCHEDULED, STATE, info_nce, max_margin, siglip
from mmts_ray.space import declared


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
