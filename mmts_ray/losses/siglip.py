"""The sigmoid loss: each pair a decision of its own."""

from typing import TYPE_CHECKING, Annotated, Any

from mmts_ray.losses.batch import IMPL, checked_batch, checked_choice, per_pair, same_id_share, spread
from mmts_ray.losses.output import LossOut
from mmts_ray.space import Float

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


def siglip(
    image_BD: "Tensor",
    text_BD: "Tensor",
    *,
    temperature: "float | Tensor",
    ids_B: "Tensor | None" = None,
    group: "ProcessGroup | None" = None,
    with_stats: bool = True,
    bias: Annotated[
        "float | Tensor",
        Float(-20, 0, doc="added to the logits; its start when the schedule is learnable", source="arXiv:2303.15343"),
    ] = -10.0,
    impl: Annotated[str, IMPL] = "auto",
) -> LossOut:
    """Pairwise sigmoid loss: every image-text pair is a binary decision of its own.

        L = -1/B sum_ij log sigmoid( y_ij (s_ij / t + bias) ),   y_ij = 1 on the diagonal, else -1

    `bias` may be a 0-d tensor and then has a gradient. A temperature per pair (ours; the paper has one number) is
    used anchor-wise: the loss is the mean of the two matrices s_ij / t_i and s_ij / t_j. Same-id pairs leave the sum.
    On several workers (`group`) all inputs but the bias and a single temperature are this worker's rows.

    Units: temperature, bias and cosines are dimensionless.
    Stats: temperature_min, _mean, _max; same_id_share of the B(B-1) ordered pairs.
    Matched against open_clip's SigLipLoss. Raises ValueError on shapes that do not fit.
    Reference: arXiv:2303.15343.
    """
    import torch

    from mmts_ray import kernels

    checked_batch(image_BD, text_BD, group=group)
    checked_choice(impl=(impl, IMPL))
    with torch.autocast(image_BD.device.type, enabled=False):
        image_BD, text_BD = kernels.at_least_float32(image_BD, text_BD)
        temperature_B = per_pair("temperature", temperature, image_BD)
        given = temperature.to(image_BD) if isinstance(temperature, torch.Tensor) else image_BD.new_tensor(temperature)
        loss = kernels.sigmoid_loss(
            image_BD,
            text_BD,
            given if given.ndim == 0 else temperature_B,
            bias,
            ids_B=ids_B,
            impl=impl,
            group=group,
        )
        stats: dict[str, Any] = {}
        if with_stats:
            stats = spread("temperature", temperature_B, group)
            if ids_B is not None:
                stats["same_id_share"] = same_id_share(ids_B, group)
    return LossOut(loss, stats)
