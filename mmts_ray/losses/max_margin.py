"""Hinge ranking with one margin, one per pair (MM-TS), or one per relevance (EgoVLP)."""

from typing import TYPE_CHECKING, Annotated, Any

from mmts_ray.losses.batch import IMPL, checked_batch, checked_choice, fixed_margin, per_pair, same_id_share, spread
from mmts_ray.losses.output import LossOut

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


def max_margin(
    image_BD: "Tensor",
    text_BD: "Tensor",
    *,
    margin: "float | Tensor",
    ids_B: "Tensor | None" = None,
    relevance_B: "Tensor | None" = None,
    group: "ProcessGroup | None" = None,
    with_stats: bool = True,
    impl: Annotated[str, IMPL] = "auto",
) -> LossOut:
    """Bidirectional hinge ranking loss, with one margin or one per pair (MM-TS).

        L = 1/(2B(B-1)) sum_i sum_{j != i} ( [m_i - s_ii + s_ji]_+ + [m_i - s_ii + s_ij]_+ ),   s_ij = u_i.w_j

    m_i is the anchor's margin in both directions; it comes from the schedule. With `relevance_B` in [0, 1] (how well
    the sampled caption fits: EgoVLP's adaptive multi-instance form, whose published margin is 0.4) it is relevance_i
    times that, a constant to the gradient. Same-id pairs leave both the sum and the count. On several workers (`group`)
    all inputs are this worker's rows.

    Units: margins and cosines are dimensionless, margin_i of shape (), (B,) or a number.
    Stats: active_hinge_share of the terms above 0; margin_min, _mean, _max; same_id_share of the B(B-1) ordered pairs.
    Matched against SergShel/MM-TS MMTSMaxMarginRankingLoss, AVION's max-margin with fix_norm (margin 0.2) and EgoVLP's
    adaptive max-margin. Raises ValueError on shapes that do not fit, and on a margin that asks for a gradient: the
    loss only ever falls with the margin, so learning it switches the loss off.
    Reference: arXiv:2603.08202, arXiv:2206.01670.
    """
    import torch

    from mmts_ray import kernels

    checked_batch(image_BD, text_BD, group=group)
    checked_choice(impl=(impl, IMPL))
    fixed_margin(margin, "max_margin")
    with torch.autocast(image_BD.device.type, enabled=False):
        image_BD, text_BD = kernels.at_least_float32(image_BD, text_BD)
        margin_B = per_pair("margin", margin, image_BD)
        if relevance_B is not None:
            margin_B = margin_B * per_pair("relevance_B", relevance_B, image_BD).detach()
        loss, active = kernels.hinge_loss(image_BD, text_BD, margin_B, ids_B=ids_B, impl=impl, group=group)
        stats: dict[str, Any] = {}
        if with_stats:
            stats = {"active_hinge_share": active, **spread("margin", margin_B, group)}
            if ids_B is not None:
                stats["same_id_share"] = same_id_share(ids_B, group)
    return LossOut(loss, stats)
