"""Symmetric multi-similarity: a hinge whose margin, and whose side, come from graded relevance."""

from typing import TYPE_CHECKING, Annotated, Any

from mmts_ray.losses.batch import checked_batch, fixed_margin, gathered, per_pair, spread
from mmts_ray.losses.output import LossOut
from mmts_ray.space import Float

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


def sms(
    image_BD: "Tensor",
    text_BD: "Tensor",
    *,
    margin: "float | Tensor",
    ids_B: "Tensor | None" = None,
    relevance_BB: "Tensor | None" = None,
    group: "ProcessGroup | None" = None,
    with_stats: bool = True,
    slack: Annotated[
        float,
        Float(0, 2, doc="equally relevant pairs may differ by this much in cosine", source="arXiv:2406.12256"),
    ] = 0.1,
    relevance_step: Annotated[
        float,
        Float(0, 1, doc="relevances closer than this count as equal", source="https://github.com/xqwang14/SMS-Loss"),
    ] = 1.1 / 240,
) -> LossOut:
    """Symmetric multi-similarity loss for graded relevance.

    For image anchor i and text j != i, c relevance, s cosine, delta = c_ii - c_ij, a = m_i delta - (s_ii - s_ij):

        delta > e      [a]_+              the pair is more relevant: its cosine leads by at least m_i delta
        |delta| < e    [|a| - slack]_+    equally relevant: the cosines are close
        else           [-a]_+             the other text is more relevant: it must lead, likewise

    and the mean over the 2B(B-1) terms of both directions (texts alike, with c_ji and s_ji). e is `relevance_step`.

    `relevance_BB` in [0, 1] has a row per image and a column per text; its diagonal is the relevance of the pairs
    themselves, which need not be 1. On several workers (`group`) it is that of the whole batch, in rank order. Without
    it, pairs of one id are relevant to each other (1) and all others not (0): a max-margin loss in which the captions
    of one image are tied instead of left out. m_i comes from the schedule (published: 0.6) and may be one per pair.

    Units: margin, slack and cosines are dimensionless. Stats: active_hinge_share of the terms above 0; equal_share and
    reversed_share, the terms of the second and third kind; margin_min, _mean, _max.
    Matched against xqwang14/SMS-Loss SymmetricMultiSimiliarityLoss with fix_norm (vectors sms_*.npz). It is not part of
    MM-TS. Raises ValueError on shapes that do not fit and on a margin that asks for a gradient.
    Reference: arXiv:2406.12256.
    """
    import torch

    from mmts_ray import kernels

    checked_batch(image_BD, text_BD, group=group)
    fixed_margin(margin, "sms")
    with torch.autocast(image_BD.device.type, enabled=False):
        image_BD, text_BD = kernels.at_least_float32(image_BD, text_BD)
        margin_B = per_pair("margin", margin, image_BD)
        image_BD, text_BD, margin_B, ids_B = gathered(group, image_BD, text_BD, margin_B, ids_B)
        batch = len(image_BD)
        if relevance_BB is None:
            relevance_BB = torch.eye(batch, device=image_BD.device)
            if ids_B is not None:
                relevance_BB = relevance_BB + kernels.same_id(ids_B)
        elif relevance_BB.shape != (batch, batch):
            raise ValueError(f"relevance_BB: shape {tuple(relevance_BB.shape)} does not fit; legal is {(batch, batch)}")
        relevance_BB = relevance_BB.detach().to(image_BD)
        s_BB = image_BD @ text_BD.T
        itself_BB = torch.eye(batch, dtype=torch.bool, device=image_BD.device)
        total, kinds = s_BB.new_zeros(()), []
        for own_BB, c_BB in ((s_BB, relevance_BB), (s_BB.T, relevance_BB.T)):  # anchors are rows
            delta_BB = c_BB.diagonal().unsqueeze(1) - c_BB
            a_BB = margin_B.unsqueeze(1) * delta_BB - (own_BB.diagonal().unsqueeze(1) - own_BB)
            ahead_BB, equal_BB = delta_BB > relevance_step, delta_BB.abs() < relevance_step
            inner_BB = torch.where(ahead_BB, a_BB, torch.where(equal_BB, a_BB.abs() - slack, -a_BB))
            term_BB = inner_BB.clamp(min=0).masked_fill(itself_BB, 0)
            total = total + term_BB.sum()
            kinds.append((term_BB > 0, equal_BB & ~itself_BB, ~(ahead_BB | equal_BB | itself_BB)))
        stats: dict[str, Any] = {}
        if with_stats:
            names = ("active_hinge_share", "equal_share", "reversed_share")
            stats = {n: 0.5 * (kernels.share(a) + kernels.share(b)) for n, a, b in zip(names, *kinds)}
            stats |= spread("margin", margin_B)
    return LossOut(total / max(1, 2 * batch * (batch - 1)), stats)
