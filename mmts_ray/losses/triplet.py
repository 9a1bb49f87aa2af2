"""Hinge ranking against one negative per anchor: the hardest, or the hardest that still loses to the positive."""

from typing import TYPE_CHECKING, Annotated, Any

from mmts_ray.losses.batch import checked_batch, checked_choice, fixed_margin, gathered, per_pair, spread
from mmts_ray.losses.output import LossOut
from mmts_ray.space import Choice

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

NEGATIVES = Choice(
    ("hardest", "semi_hard"),
    doc="the most similar negative, or the most similar one that is less similar than the positive",
    source="arXiv:1707.05612, arXiv:1503.03832",
)


def triplet(
    image_BD: "Tensor",
    text_BD: "Tensor",
    *,
    margin: "float | Tensor",
    ids_B: "Tensor | None" = None,
    group: "ProcessGroup | None" = None,
    with_stats: bool = True,
    negatives: Annotated[str, NEGATIVES] = "hardest",
) -> LossOut:
    """Triplet loss with negatives mined in the batch, in both directions.

        L = 1/2B sum_i ( [m_i - s_ii + s_ij*]_+ + [m_i - s_ii + s_j*i]_+ ),   s_ij = u_i.w_j, j* != i the negative

    `hardest` (VSE++): the largest s. `semi_hard` (FaceNet): the largest s below s_ii, or, if there is none, the
    smallest of all, as TensorFlow's implementation falls back. On the sphere |x - y|^2 = 2 - 2 cos, so a margin on
    squared distances is twice this one. With all negatives instead of one it is `max_margin`. VSE++ sums over the
    batch where this is a mean. Same-id pairs are never the negative; an anchor without negatives has loss 0.

    m_i comes from the schedule and may be one per pair. Units: margins and cosines are dimensionless.
    Stats: active_hinge_share of the 2B terms above 0; margin_min, _mean, _max.
    Follows the papers' formulas, not one published class; tested by enumeration. Raises ValueError on shapes that do
    not fit, an unknown choice and a margin that asks for a gradient. Reference: arXiv:1707.05612, arXiv:1503.03832.
    """
    import torch

    from mmts_ray import kernels
    from mmts_ray.kernels.masks import FLOOR

    checked_batch(image_BD, text_BD, group=group)
    checked_choice(negatives=(negatives, NEGATIVES))
    fixed_margin(margin, "triplet")
    with torch.autocast(image_BD.device.type, enabled=False):
        image_BD, text_BD = kernels.at_least_float32(image_BD, text_BD)
        margin_B = per_pair("margin", margin, image_BD)
        image_BD, text_BD, margin_B, ids_B = gathered(group, image_BD, text_BD, margin_B, ids_B)
        s_BB = image_BD @ text_BD.T
        away_BB = torch.eye(len(s_BB), dtype=torch.bool, device=s_BB.device)
        if ids_B is not None:
            away_BB = away_BB | kernels.same_id(ids_B)
        terms = []
        for own_BB in (s_BB, s_BB.T):  # the mask is symmetric
            positive_B = own_BB.diagonal()
            hardest_B = own_BB.masked_fill(away_BB, FLOOR).amax(1)
            if negatives == "semi_hard":
                too_hard_BB = own_BB.detach() >= positive_B.detach().unsqueeze(1)
                below_B = own_BB.masked_fill(away_BB | too_hard_BB, FLOOR).amax(1)
                easiest_B = own_BB.masked_fill(away_BB, -FLOOR).amin(1)
                found_B = ~(away_BB | too_hard_BB).all(1)
                hardest_B = torch.where(found_B, below_B, torch.where(away_BB.all(1), hardest_B, easiest_B))
            terms.append((margin_B - positive_B + hardest_B).clamp(min=0))
        hinge_2B = torch.cat(terms)
        stats: dict[str, Any] = {}
        if with_stats:
            stats = {"active_hinge_share": (hinge_2B > 0).sum() / len(hinge_2B), **spread("margin", margin_B)}
    return LossOut(hinge_2B.mean(), stats)
