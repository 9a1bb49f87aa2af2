"""The objectives with every (B, B) matrix in memory: the plainest form, and the fastest for a small batch.

Shapes: B batch, D embedding, E teacher features. `s_BB[i, j]` is image i against text j. Along dimension `over` lie the
candidates: over=1, anchors are rows (images); over=0, anchors are columns (texts), with no transposed copy.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from mmts_ray.kernels.angles import AngularShift, gram
from mmts_ray.kernels.masks import FLOOR, LOG2E, floor_of, mix_masks, same_id, share


class _AnchoredCrossEntropy(Function):
    """Mean over anchors of -log( e^{s_ii/t_i} / (e^{s_ii/t_i} + a sum_j e^{s_ij/t_i} + b sum_j e^{k_ij/t_i}) ).

    The sums run over j != i; s is `inter_BB`, k is `intra_BB`; b = intra_weight and a = 1 - b, or, without intra_BB,
    a = 1 and no last term. `floor_BB` is added to both: 0 for a candidate, FLOOR for what is none.

    The maximum is taken over candidates only: float32 would underflow at small temperatures after a fixed shift or
    that of a masked entry. Cosines are subtracted before they are divided by the temperature, which loses fewer digits
    than the other order. The temperature's gradient uses raw cosines and masses, in which a masked pair has weight
    exactly 0, so no mask can make it NaN. An anchor without candidates has loss and gradients exactly 0.
    """

    @staticmethod
    def forward(
        ctx: Any,
        temperature_B: Tensor,
        inter_BB: Tensor,
        intra_BB: Tensor | None,
        intra_weight: float,
        floor_BB: Tensor | None,
        over: int,
    ) -> Tensor:
        scale_B = temperature_B.reciprocal()
        positive_B = inter_BB.diagonal()
        blocks = [inter_BB if floor_BB is None else inter_BB + floor_BB]
        top_B = blocks[0].amax(over)
        if intra_BB is not None:
            # A copy: an item's cosine with itself is no candidate.
            intra_floor_BB = intra_BB.clone() if floor_BB is None else intra_BB + floor_BB
            blocks.append(intra_floor_BB.fill_diagonal_(FLOOR))
            top_B = torch.maximum(top_B, blocks[1].amax(over))
        per_B = (LOG2E * scale_B).unsqueeze(over)
        masses = [(block - top_B.unsqueeze(over)).mul_(per_B).exp2_() for block in blocks]
        # The positive is kept apart: its gradient then comes from the negatives' mass, without cancellation.
        masses[0].fill_diagonal_(0)
        negative_B = masses[0].sum(over)
        if intra_BB is not None:
            negative_B = (1 - intra_weight) * negative_B + intra_weight * masses[1].sum(over)
        lead_B = (positive_B - top_B) * scale_B
        total_B = lead_B.exp() + negative_B
        ctx.over, ctx.intra_weight = over, intra_weight
        cosines = (inter_BB, intra_BB) if ctx.needs_input_grad[0] else ()
        ctx.save_for_backward(scale_B, total_B, negative_B, *masses, *cosines)
        return (total_B.log() - lead_B).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scale_B, total_B, negative_B, *rest = ctx.saved_tensors
        masses, cosines = (rest[:-2], rest[-2:]) if ctx.needs_input_grad[0] else (rest, [])
        over, mixes = ctx.over, len(masses) == 2
        per_mass_B = grad * scale_B / (len(scale_B) * total_B)
        weights = (1 - ctx.intra_weight, ctx.intra_weight) if mixes else (1.0,)
        grads = [mass * (weight * per_mass_B).unsqueeze(over) for mass, weight in zip(masses, weights)]
        grad_temperature_B = None
        if cosines:
            positive_B1 = cosines[0].diagonal().unsqueeze(over)
            slopes = [((cosine - positive_B1) * grad_BB).sum(over) for cosine, grad_BB in zip(cosines, grads)]
            grad_temperature_B = -scale_B * sum(slopes)
        grads[0].diagonal().copy_(-negative_B * per_mass_B)
        return grad_temperature_B, grads[0], grads[1] if mixes else None, None, None, None


def softmax_loss(
    image_BD: Tensor,
    text_BD: Tensor,
    temperature_B: Tensor,
    *,
    directions: str = "both",
    r_mix: float = 0.0,
    key: Tensor | None = None,
    angular_margin: float = 0.0,
    angle_edge: str = "gate",
    teacher_BE: tuple[Tensor, Tensor] | None = None,
    filter_threshold: float | None = None,
    filter_teacher: tuple[Tensor, Tensor] | None = None,
    ids_B: Tensor | None = None,
    with_stats: bool = False,
) -> tuple[Tensor, dict[str, Tensor | float]]:
    """`choice.softmax_loss` of whole matrices; `key` decides the picks, teachers are (rows, columns)."""
    batch = len(image_BD)
    stats: dict[str, Tensor | float] = {}
    s_BB = image_BD @ text_BD.T

    teacher_BB = None if teacher_BE is None else teacher_BE[0] @ teacher_BE[1].T
    drop_BB = None
    if filter_threshold is not None:
        assert filter_teacher is not None
        similar_BB = teacher_BB if filter_teacher is teacher_BE else filter_teacher[0] @ filter_teacher[1].T
        assert similar_BB is not None
        drop_BB = torch.gt(similar_BB, filter_threshold).fill_diagonal_(False)
        if with_stats:
            stats["filtered_share"] = share(drop_BB)
    if ids_B is not None:
        same_BB = same_id(ids_B)
        drop_BB = same_BB if drop_BB is None else drop_BB | same_BB
        if with_stats:
            stats["same_id_share"] = share(same_BB)
    turn = picks_2BB = None
    if angular_margin > 0:
        assert teacher_BB is not None
        angle_BB = (1 - teacher_BB).abs_().mul_(angular_margin)
        turn = (angle_BB.cos(), angle_BB.sin(), math.cos(angular_margin) if angle_edge == "gate" else None)
    if r_mix > 0 and key is not None:
        picks_2BB = mix_masks(batch, r_mix, key).to(s_BB)
    elif r_mix == 1:
        # A candidate of weight 0 must not enter the maximum either, so this is a replacement of all.
        picks_2BB = 1 - torch.eye(batch).to(s_BB).expand(2, -1, -1)

    def moved(cosine_BB: Tensor) -> Tensor:
        return cosine_BB if turn is None else AngularShift.apply(cosine_BB, *turn)

    inter_BB = moved(s_BB) if picks_2BB is None else s_BB
    floor_BB = None if drop_BB is None else floor_of(drop_BB, s_BB)
    losses = []
    counts = []
    for name, over, own_BD in (("image_to_text", 1, image_BD), ("text_to_image", 0, text_BD)):
        if directions not in ("both", name):
            continue
        mixed_BB, intra_BB = inter_BB, None
        if picks_2BB is not None:
            picks_BB = picks_2BB[1 - over]
            mixed_BB = moved(s_BB * (1 - picks_BB) + gram(own_BD) * picks_BB)
            counts.append(picks_BB if drop_BB is None else picks_BB.masked_fill(drop_BB, 0))
        elif r_mix > 0:
            intra_BB = moved(gram(own_BD))
        losses.append(_AnchoredCrossEntropy.apply(temperature_B, mixed_BB, intra_BB, r_mix, floor_BB, over))
    if with_stats and r_mix > 0:
        if counts:
            stats["intra_count"] = sum(count.sum() for count in counts) / (len(counts) * batch)
        else:
            kept = batch - 1 if drop_BB is None else batch - 1 - drop_BB.sum() / batch
            stats["intra_count"] = r_mix * kept
    return losses[0] if len(losses) == 1 else 0.5 * (losses[0] + losses[1]), stats


def symmetric_cross_entropy(s_BB: Tensor, temperature_B: Tensor, *, drop_BB: Tensor | None = None) -> Tensor:
    """Plain InfoNCE from cosines that the caller already has: the mean of both directions."""
    floor_BB = None if drop_BB is None else floor_of(drop_BB, s_BB)
    rows, columns = (_AnchoredCrossEntropy.apply(temperature_B, s_BB, None, 0.0, floor_BB, over) for over in (1, 0))
    return 0.5 * (rows + columns)


class _Hinge(Function):
    """Mean of [m_i - s_ii + s_ij]_+ and [m_i - s_ii + s_ji]_+ over i != j, and the share of these terms above 0.

    Only cosines have a gradient, not the margin. `floor_BB` as in the softmax, `terms` the number of terms (0-d).
    """

    @staticmethod
    def forward(
        ctx: Any, s_BB: Tensor, margin_B: Tensor, floor_BB: Tensor | None, terms: Tensor
    ) -> tuple[Tensor, Tensor]:
        slack_B = margin_B - s_BB.diagonal()
        total, grads = s_BB.new_zeros(()), []
        for over in (1, 0):
            hinge_BB = s_BB + slack_B.unsqueeze(over)
            if floor_BB is not None:
                hinge_BB += floor_BB
            total += hinge_BB.clamp_(min=0).fill_diagonal_(0).sum()
            active_BB = hinge_BB.sign_()
            active_BB.diagonal().sub_(active_BB.sum(over))
            grads.append(active_BB)
        grad_BB = grads[0].add_(grads[1])
        ctx.save_for_backward(grad_BB, terms)
        active = -grad_BB.diagonal().sum() / terms
        ctx.mark_non_differentiable(active)
        return total / terms, active

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_BB, terms = ctx.saved_tensors
        return grad_BB * (grad / terms), None, None, None


def hinge_loss(
    image_BD: Tensor, text_BD: Tensor, margin_B: Tensor, *, drop_BB: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The hinge objective of `losses.max_margin`, dense, and the share of its terms that are above 0."""
    batch = len(image_BD)
    s_BB = image_BD @ text_BD.T
    terms = s_BB.new_tensor(2 * batch * (batch - 1))
    if drop_BB is not None:
        terms = terms - 2 * drop_BB.sum()
    floor_BB = None if drop_BB is None else floor_of(drop_BB, s_BB)
    return _Hinge.apply(s_BB, margin_B, floor_BB, terms.clamp(min=1))


def sigmoid_loss(
    image_BD: Tensor, text_BD: Tensor, temperature: Tensor, bias: Tensor | float, *, drop_BB: Tensor | None = None
) -> Tensor:
    """The objective of `losses.siglip`; `temperature` is 0-d, or (B,) and then applied anchor-wise both ways."""
    s_BB = image_BD @ text_BD.T
    sign_BB = torch.full_like(s_BB, -1).fill_diagonal_(1)
    scale = temperature.reciprocal()
    losses = []
    for scales in (scale.unsqueeze(1), scale.unsqueeze(0)) if scale.ndim else (scale,):
        log_share_BB = torch.nn.functional.logsigmoid(sign_BB * (s_BB * scales + bias))
        if drop_BB is not None:
            log_share_BB = log_share_BB.masked_fill(drop_BB, 0)
        losses.append(-log_share_BB.sum() / len(s_BB))
    return losses[0] if len(losses) == 1 else 0.5 * (losses[0] + losses[1])


def log_potential(cosine_BB: Tensor, *, drop_BB: Tensor | None = None) -> Tensor:
    """log mean over i != j, not dropped, of exp(-2 |x_i - y_j|^2) for unit rows; 0 when no pair is left.

    |x - y|^2 = 2 - 2 x.y on the sphere, so the exponent is 4 cos - 4, in [-8, 0].
    """
    batch = len(cosine_BB)
    itself_BB = torch.eye(batch, dtype=torch.bool, device=cosine_BB.device)
    away_BB = itself_BB if drop_BB is None else itself_BB | drop_BB
    pairs = (~away_BB).sum()
    exponent_BB = 4 * LOG2E * (cosine_BB - 1) + floor_of(away_BB, cosine_BB)
    mean = exponent_BB.exp2().sum() / pairs.clamp(min=1)
    return torch.where(pairs > 0, mean, 1.0).log()
