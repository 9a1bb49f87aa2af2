"""InfoNCE with an angular margin on the positive."""

import math
from typing import TYPE_CHECKING, Annotated, Any

from mmts_ray.losses.batch import DIRECTIONS, checked_batch, checked_choice, gathered, per_pair, spread
from mmts_ray.losses.output import LossOut
from mmts_ray.space import Float

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


def arccon(
    image_BD: "Tensor",
    text_BD: "Tensor",
    *,
    temperature: "float | Tensor",
    ids_B: "Tensor | None" = None,
    group: "ProcessGroup | None" = None,
    with_stats: bool = True,
    positive_margin: Annotated[
        float,
        Float(
            0,
            1.5,
            doc="the positive is moved away from the anchor by this; 0 = InfoNCE",
            unit="rad",
            source="https://aclanthology.org/2022.acl-long.336",
        ),
    ] = math.radians(10),
    directions: Annotated[str, DIRECTIONS] = "both",
) -> LossOut:
    """ArcCon: a fixed margin is added to the angle of the positive, so that it must beat the negatives by it.

        L_i = -log  e^{cos(x_ii + m)/t_i} / ( e^{cos(x_ii + m)/t_i} + sum_{j != i} e^{cos(x_ij)/t_i} ), cos x_ij = s_ij

    for image anchors (texts alike); the mean over anchors, then over directions. A positive at an angle above pi - m is
    left alone. cos(x + m) is formed without arccos, whose slope is infinite for a perfect pair. ArcCSE uses it between
    two dropout views of a sentence, with directions="image_to_text", anchors first, and m = 10 degrees, the default.
    Same-id pairs are not negatives.

    Units: m in radian, t_i and cosines dimensionless. Stats: temperature_min, _mean, _max; same_id_share.
    Matched against the (unused) calculate_arccos1 of duyngtr16061999/KDMCSE, which is ArcCSE's form (vectors
    sentence_*.npz). Raises ValueError on shapes that do not fit, an unknown choice, and a temperature that is not
    positive.
    Reference: Zhang et al., ACL 2022, https://aclanthology.org/2022.acl-long.336.
    """
    import torch

    from mmts_ray import kernels
    from mmts_ray.kernels.angles import MIN_SINE
    from mmts_ray.kernels.masks import FLOOR

    checked_batch(image_BD, text_BD, group=group)
    checked_choice(directions=(directions, DIRECTIONS))
    with torch.autocast(image_BD.device.type, enabled=False):
        image_BD, text_BD = kernels.at_least_float32(image_BD, text_BD)
        temperature_B = per_pair("temperature", temperature, image_BD)
        image_BD, text_BD, temperature_B, ids_B = gathered(group, image_BD, text_BD, temperature_B, ids_B)
        s_BB = image_BD @ text_BD.T
        positive_B = s_BB.diagonal()
        sine_B = ((1 - positive_B) * (1 + positive_B)).clamp(min=MIN_SINE**2).sqrt()
        moved_B = positive_B * math.cos(positive_margin) - sine_B * math.sin(positive_margin)
        moved_B = torch.where(positive_B >= -math.cos(positive_margin), moved_B, positive_B)
        s_BB = s_BB.diagonal_scatter(moved_B)
        drop_BB = None if ids_B is None else kernels.same_id(ids_B)
        label_B = torch.arange(len(s_BB), device=s_BB.device)
        losses = []
        for name, own_BB in (("image_to_text", s_BB), ("text_to_image", s_BB.T)):
            if directions in ("both", name):
                logits_BB = own_BB / temperature_B.unsqueeze(1)
                if drop_BB is not None:
                    # after the division: a mask divided by the temperature would reach its gradient
                    logits_BB = logits_BB.masked_fill(drop_BB, FLOOR)
                losses.append(torch.nn.functional.cross_entropy(logits_BB, label_B))
        stats: dict[str, Any] = {}
        if with_stats:
            stats = spread("temperature", temperature_B)
            if drop_BB is not None:
                stats["same_id_share"] = kernels.share(drop_BB)
    return LossOut(sum(losses[1:], losses[0]) / len(losses), stats)
