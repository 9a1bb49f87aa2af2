"""The objectives. Each is one function of a batch of paired embeddings; its keyword arguments are its parameters.

`image_BD[i]` and `text_BD[i]` are a positive pair, both unit rows (the caller normalises). A loss returns the value to
minimise and statistics for the training traces. What `schedule.*` drives is named in SCHEDULED: a temperature, which is
dimensionless and divides cosines, or a margin, a difference of cosines. It may be
    a number                     fixed
    a 0-d tensor                 learnable: its gradient is exact
    a tensor (B,)                one value per pair, used wherever that pair is the anchor, in both directions (MM-TS)

`ids_B` (integers) marks pairs that show the same thing, such as the captions of one image: they are never each other's
negatives. Half-precision embeddings are widened to float32, whatever the autocast state. A batch of one pair has no
negatives: its softmax and hinge losses are 0 with zero gradients. NaN in, NaN out.

Shapes: B batch, D embedding, E teacher features.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from mmts_ray.space import Choice, Float

if TYPE_CHECKING:
    from torch import Generator, Tensor


@dataclass(frozen=True)
class LossOut:
    """A loss (0-d, differentiable) and its statistics, 0-d detached tensors or numbers, so that none costs a sync."""

    loss: "Tensor"
    stats: "dict[str, Tensor | float]" = field(default_factory=dict)


def info_nce(
    image_BD: "Tensor",
    text_BD: "Tensor",
    *,
    temperature: "float | Tensor",
    ids_B: "Tensor | None" = None,
    teacher_BE: "Tensor | None" = None,
    filter_teacher: "tuple[Tensor, Tensor] | None" = None,
    generator: "Generator | None" = None,
    with_stats: bool = True,
    r_mix: Annotated[
        float,
        Float(0, 1, doc="share of intra-modal among the negatives; 0 = InfoNCE", source="arXiv:2607.10698"),
    ] = 0.0,
    mix_mode: Annotated[
        str,
        Choice(
            ("replace", "weighted"),
            doc="intra-modal negatives replace inter-modal ones, each with chance r_mix, or weigh r_mix : 1-r_mix",
            source="ours, after arXiv:2607.10698",
        ),
    ] = "replace",
    angular_margin: Annotated[
        float,
        Float(
            0,
            1.5,
            doc="negatives move to the anchor by this times |1 - teacher cosine|; 0 = off, best in the paper 0.125",
            unit="rad",
            source="arXiv:2403.17486",
        ),
    ] = 0.0,
    filter_threshold: Annotated[
        float | None,
        Float(
            -1,
            1,
            doc="negatives whose teacher cosine is above this are removed; the paper suggests 0.85 to 0.9",
            source="arXiv:2403.17486",
            none="filter off",
        ),
    ] = None,
    angle_edge: Annotated[
        str,
        Choice(
            ("gate", "floor"),
            doc="a negative within the angular margin: left alone as in the published code, or stopped at angle 0",
            source="https://github.com/duyngtr16061999/KDMCSE; floor is ours",
        ),
    ] = "gate",
    soft_labels: Annotated[
        str,
        Choice(
            ("text", "image"),
            doc="whose frozen features are the teacher: the caller passes those as teacher_BE",
            source="arXiv:2403.17486",
        ),
    ] = "text",
    directions: Annotated[
        str,
        Choice(("both", "image_to_text", "text_to_image"), doc="which modality's anchors are averaged over"),
    ] = "both",
) -> LossOut:
    """Softmax contrastive loss: InfoNCE, MM-TS, xNCE and AdapACSE, in any combination.

    For image anchors (texts alike, with w and u exchanged), t_i the pair's temperature, s_ij = u_i.w_j, k_ij = u_i.u_j:

        L_i = -log  e^{s_ii/t_i} / ( e^{s_ii/t_i} + sum_{j != i, kept} [ a_ij e^{f(s_ij)/t_i} + b_ij e^{f(k_ij)/t_i} ] )

    and the loss is the mean over anchors, then over directions.

    Temperature. Anchor-wise in both directions, so the two logit matrices are not each other's transpose (MM-TS,
    arXiv:2603.08202; matched against SergShel/MM-TS MMTSClipLoss and, for one number, open_clip's ClipLoss).

    Mixing (xNCE, arXiv:2607.10698). Its exact formula was not public when this was written: THIS PARAMETERISATION IS
    OURS, built from what is known (intra-modal negatives join the denominator, r_mix sets their share, the positive
    stays cross-modal). `weighted`: a = 1 - r_mix, b = r_mix. `replace`: b_ij is 1 with chance r_mix, a_ij = 1 - b_ij,
    drawn anew at each call and for each direction from `generator`; its mean denominator is that of `weighted`, so its
    mean loss is at most that one. An item is never its own negative. r_mix = 0 is exactly InfoNCE.

    Angular margin (AdapACSE, arXiv:2403.17486). f(cos x) = cos(x - d_ij) with d_ij = angular_margin |1 - q_ij|, where
    q_ij is the cosine of teacher rows i and j: what the teacher finds less similar becomes a harder negative. The
    positive is not moved. `gate` is the published code (an angle up to angular_margin is left alone: f jumps there),
    `floor` is max(x - d_ij, 0). Matched against duyngtr16061999/KDMCSE: one branch is one call with
    directions="image_to_text", anchors first. One published review states the margin's direction the other way round;
    code and figures agree with this one.

    Filter (same paper). j is kept iff its teacher cosine is at most `filter_threshold`; the positive always is. The
    cosine is q_ij, as the paper's text branch has it; the published code filters by cross-modal cosines instead, which
    `filter_teacher` = (rows_BE, columns_BE) gives: image i / text j by rows_i.columns_j. The released script leaves the
    filter off and compares unnormalised products; here all are unit rows, and the filter is on when a threshold is
    given. When all negatives of an anchor are removed its loss is 0, with zero gradients, the temperature's too.

    Stats: temperature_min, _mean, _max; filtered_share and same_id_share of the B(B-1) ordered pairs; intra_count, the
    intra-modal negatives per anchor (expected number, if weighted).
    Raises ValueError on shapes that do not fit, a temperature that is not positive, an unknown choice, a margin or
    filter without teacher, and `replace` without generator.
    """
    import torch

    from mmts_ray import kernels

    _checked_batch(image_BD, text_BD)
    _checked_choice(mix_mode=(mix_mode, ("replace", "weighted")), angle_edge=(angle_edge, ("gate", "floor")))
    _checked_choice(directions=(directions, ("both", "image_to_text", "text_to_image")))
    uses_teacher = angular_margin > 0 or (filter_threshold is not None and filter_teacher is None)
    if uses_teacher and teacher_BE is None:
        wants = "angular_margin" if angular_margin > 0 else "filter_threshold"
        raise ValueError(f"loss.{wants} needs teacher similarities: pass teacher_BE, unit rows of frozen features")
    if r_mix > 0 and mix_mode == "replace" and generator is None:
        raise ValueError("loss.mix_mode replace draws its negatives: pass generator, seeded for this purpose")

    with torch.autocast(image_BD.device.type, enabled=False):
        image_BD, text_BD = kernels.at_least_float32(image_BD, text_BD)
        temperature_B = _per_pair("temperature", temperature, image_BD)
        if filter_teacher is not None:
            filter_teacher = (filter_teacher[0].detach().to(image_BD), filter_teacher[1].detach().to(image_BD))
        loss, stats = kernels.softmax_loss(
            image_BD,
            text_BD,
            temperature_B,
            directions=directions,
            r_mix=r_mix,
            generator=generator if mix_mode == "replace" else None,
            angular_margin=angular_margin,
            angle_edge=angle_edge,
            teacher_BE=teacher_BE.detach().to(image_BD) if uses_teacher and teacher_BE is not None else None,
            filter_threshold=filter_threshold,
            filter_teacher=filter_teacher,
            ids_B=ids_B,
            with_stats=with_stats,
        )
        if with_stats:
            stats |= _spread("temperature", temperature_B)
    return LossOut(loss, stats)


def max_margin(
    image_BD: "Tensor",
    text_BD: "Tensor",
    *,
    margin: "float | Tensor",
    ids_B: "Tensor | None" = None,
    relevance_B: "Tensor | None" = None,
    with_stats: bool = True,
) -> LossOut:
    """Bidirectional hinge ranking loss, with one margin or one per pair (MM-TS).

        L = 1/(2B(B-1)) sum_i sum_{j != i} ( [m_i - s_ii + s_ji]_+ + [m_i - s_ii + s_ij]_+ ),   s_ij = u_i.w_j

    m_i is the anchor's margin in both directions; it comes from the schedule. With `relevance_B` in [0, 1] (how well
    the sampled caption fits: EgoVLP's adaptive multi-instance form, whose published margin is 0.4) it is relevance_i
    times that. Same-id pairs leave both the sum and the count.

    Stats: active_hinge_share of the terms above 0; margin_min, _mean, _max; same_id_share of the B(B-1) ordered pairs.
    Matched against SergShel/MM-TS MMTSMaxMarginRankingLoss, AVION's max-margin with fix_norm (margin 0.2) and EgoVLP's
    adaptive max-margin. Raises ValueError on shapes that do not fit, and on a margin that asks for a gradient: the
    loss only ever falls with the margin, so learning it switches the loss off.
    Reference: arXiv:2603.08202, arXiv:2206.01670.
    """
    import torch

    from mmts_ray import kernels

    _checked_batch(image_BD, text_BD)
    if getattr(margin, "requires_grad", False):
        raise ValueError("loss.max_margin: a margin cannot be learned; legal is a schedule that is constant or cosine")
    with torch.autocast(image_BD.device.type, enabled=False):
        image_BD, text_BD = kernels.at_least_float32(image_BD, text_BD)
        margin_B = _per_pair("margin", margin, image_BD)
        if relevance_B is not None:
            margin_B = margin_B * _per_pair("relevance_B", relevance_B, image_BD).detach()
        drop_BB = None if ids_B is None else kernels.same_id(ids_B)
        loss, active = kernels.hinge_loss(image_BD, text_BD, margin_B, drop_BB=drop_BB)
        stats: dict[str, Any] = {}
        if with_stats:
            stats = {"active_hinge_share": active, **_spread("margin", margin_B)}
            if drop_BB is not None:
                stats["same_id_share"] = kernels.share(drop_BB)
    return LossOut(loss, stats)


def siglip(
    image_BD: "Tensor",
    text_BD: "Tensor",
    *,
    temperature: "float | Tensor",
    ids_B: "Tensor | None" = None,
    with_stats: bool = True,
    bias: Annotated[
        "float | Tensor",
        Float(-20, 0, doc="added to the logits; its start when the schedule is learnable", source="arXiv:2303.15343"),
    ] = -10.0,
) -> LossOut:
    """Pairwise sigmoid loss: every image-text pair is a binary decision of its own.

        L = -1/B sum_ij log sigmoid( y_ij (s_ij / t + bias) ),   y_ij = 1 on the diagonal, else -1

    `bias` may be a 0-d tensor and then has a gradient. A temperature per pair (ours; the paper has one number) is
    used anchor-wise: the loss is the mean of the two matrices s_ij / t_i and s_ij / t_j. Same-id pairs leave the sum.

    Stats: temperature_min, _mean, _max; same_id_share of the B(B-1) ordered pairs.
    Matched against open_clip's SigLipLoss. Raises ValueError on shapes that do not fit.
    Reference: arXiv:2303.15343.
    """
    import torch

    from mmts_ray import kernels

    _checked_batch(image_BD, text_BD)
    with torch.autocast(image_BD.device.type, enabled=False):
        image_BD, text_BD = kernels.at_least_float32(image_BD, text_BD)
        temperature_B = _per_pair("temperature", temperature, image_BD)
        one_for_all = not isinstance(temperature, torch.Tensor) or temperature.ndim == 0
        drop_BB = None if ids_B is None else kernels.same_id(ids_B)
        loss = kernels.sigmoid_loss(
            image_BD, text_BD, temperature_B[0] if one_for_all else temperature_B, bias, drop_BB=drop_BB
        )
        stats: dict[str, Any] = {}
        if with_stats:
            stats = _spread("temperature", temperature_B)
            if drop_BB is not None:
                stats["same_id_share"] = kernels.share(drop_BB)
    return LossOut(loss, stats)


def regularized_info_nce(
    image_BD: "Tensor",
    text_BD: "Tensor",
    *,
    temperature: "float | Tensor",
    ids_B: "Tensor | None" = None,
    with_stats: bool = True,
    alignment_weight: Annotated[
        float, Float(0, 10, doc="weight of the alignment of positive pairs", source="arXiv:2405.18570")
    ] = 1.0,
    uniformity_weight: Annotated[
        float, Float(0, 10, doc="weight of the uniformity within each modality", source="arXiv:2405.18570")
    ] = 1.0,
    cross_uniformity_weight: Annotated[
        float, Float(0, 10, doc="weight of the uniformity across modalities", source="arXiv:2405.18570")
    ] = 1.0,
) -> LossOut:
    """InfoNCE plus explicit alignment and uniformity, the usual baseline against a modality gap.

        L = InfoNCE + a mean_i |u_i - w_i|^2 + b 1/2 sum_{z in u, w} log mean_{i<j} e^{-2|z_i - z_j|^2}
                    + c log mean_{i != j} e^{-2|u_i - w_j|^2}

    Distances are taken as 2 - 2 cos, equal on unit rows. Same-id pairs leave the means; without any pair left (a batch
    of one) a uniformity is 0.

    Stats: alignment, uniformity, cross_uniformity (unweighted); temperature_min, _mean, _max; same_id_share.
    Matched against abrar-fahim/contrastive-gap; that the xNCE paper's "regularized InfoNCE" is this one is our reading.
    Raises ValueError on shapes that do not fit. Reference: arXiv:2405.18570, arXiv:2005.10242.
    """
    import torch

    from mmts_ray import kernels

    _checked_batch(image_BD, text_BD)
    with torch.autocast(image_BD.device.type, enabled=False):
        image_BD, text_BD = kernels.at_least_float32(image_BD, text_BD)
        temperature_B = _per_pair("temperature", temperature, image_BD)
        drop_BB = None if ids_B is None else kernels.same_id(ids_B)
        s_BB = image_BD @ text_BD.T
        alignment = 2 - 2 * s_BB.diagonal().mean()
        within = [kernels.log_potential(kernels.gram(x_BD), drop_BB=drop_BB) for x_BD in (image_BD, text_BD)]
        uniformity = 0.5 * (within[0] + within[1])
        cross_uniformity = kernels.log_potential(s_BB, drop_BB=drop_BB)
        loss = (
            kernels.symmetric_cross_entropy(s_BB, temperature_B, drop_BB=drop_BB)
            + alignment_weight * alignment
            + uniformity_weight * uniformity
            + cross_uniformity_weight * cross_uniformity
        )
        stats: dict[str, Any] = {}
        if with_stats:
            stats = {
                "alignment": alignment.detach(),
                "uniformity": uniformity.detach(),
                "cross_uniformity": cross_uniformity.detach(),
                **_spread("temperature", temperature_B),
            }
            if drop_BB is not None:
                stats["same_id_share"] = kernels.share(drop_BB)
    return LossOut(loss, stats)


def _checked_batch(image_BD: "Tensor", text_BD: "Tensor") -> int:
    if image_BD.ndim != 2 or image_BD.shape != text_BD.shape or not len(image_BD):
        raise ValueError(
            f"embeddings: image {tuple(image_BD.shape)} and text {tuple(text_BD.shape)} must be one non-empty (B, D)"
        )
    return len(image_BD)


def _checked_choice(**given: tuple[str, tuple[str, ...]]) -> None:
    for name, (value, legal) in given.items():
        if value not in legal:
            raise ValueError(f"loss.{name}: {value!r} is not legal; legal is one of {', '.join(legal)}")


def _per_pair(name: str, value: "float | Tensor", like_BD: "Tensor") -> "Tensor":
    """The scheduled value as (B,), differentiable; positive if it is a temperature given as a number."""
    import torch

    batch = len(like_BD)
    if isinstance(value, torch.Tensor):
        if value.shape not in ((), (batch,)):
            raise ValueError(f"{name}: shape {tuple(value.shape)} does not fit; legal is a number, () or ({batch},)")
        return value.to(like_BD).expand(batch)
    if name == "temperature" and not value > 0:
        raise ValueError(f"temperature: {value} does not divide logits sensibly; legal is above 0")
    return like_BD.new_full((batch,), value)


def _spread(name: str, value_B: "Tensor") -> "dict[str, Tensor]":
    value_B = value_B.detach()
    return {f"{name}_min": value_B.min(), f"{name}_mean": value_B.mean(), f"{name}_max": value_B.max()}


LOSSES: dict[str, Callable[..., LossOut]] = {
    "info_nce": info_nce,
    "max_margin": max_margin,
    "siglip": siglip,
    "regularized_info_nce": regularized_info_nce,
}

# The argument of each loss that schedule.* drives.
SCHEDULED = {
    "info_nce": "temperature",
    "max_margin": "margin",
    "siglip": "temperature",
    "regularized_info_nce": "temperature",
}
