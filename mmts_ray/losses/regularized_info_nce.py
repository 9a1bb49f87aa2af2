"""InfoNCE with explicit alignment and uniformity."""

from typing import TYPE_CHECKING, Annotated, Any

from mmts_ray.losses.batch import IMPL, checked_batch, checked_choice, per_pair, same_id_share, spread
from mmts_ray.losses.output import LossOut
from mmts_ray.space import Float

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

SMALL = 512  # up to this batch one matrix of cosines, shared by all terms, is the fastest


def regularized_info_nce(
    image_BD: "Tensor",
    text_BD: "Tensor",
    *,
    temperature: "float | Tensor",
    ids_B: "Tensor | None" = None,
    group: "ProcessGroup | None" = None,
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
    impl: Annotated[str, IMPL] = "auto",
) -> LossOut:
    """InfoNCE plus explicit alignment and uniformity, the usual baseline against a modality gap.

        L = InfoNCE + a mean_i |u_i - w_i|^2 + b 1/2 sum_{z in u, w} log mean_{i<j} e^{-2|z_i - z_j|^2}
                    + c log mean_{i != j} e^{-2|u_i - w_j|^2}

    Distances are taken as 2 - 2 cos, equal on unit rows. Same-id pairs leave the means; without any pair left (a batch
    of one) a uniformity is 0. On several workers (`group`) all inputs are this worker's rows.

    Units: all dimensionless.
    Stats: alignment, uniformity, cross_uniformity (unweighted); temperature_min, _mean, _max; same_id_share.
    Matched against abrar-fahim/contrastive-gap; that the xNCE paper's "regularized InfoNCE" is this one is our reading.
    Raises ValueError on shapes that do not fit. Reference: arXiv:2405.18570, arXiv:2005.10242.
    """
    import torch

    from mmts_ray import kernels

    checked_batch(image_BD, text_BD, group=group)
    checked_choice(impl=(impl, IMPL))
    with torch.autocast(image_BD.device.type, enabled=False):
        image_BD, text_BD = kernels.at_least_float32(image_BD, text_BD)
        temperature_B = per_pair("temperature", temperature, image_BD)
        if group is None and (impl == "dense" or (impl == "auto" and len(image_BD) <= SMALL)):
            drop_BB = None if ids_B is None else kernels.same_id(ids_B)
            s_BB = image_BD @ text_BD.T
            info_nce = kernels.symmetric_cross_entropy(s_BB, temperature_B, drop_BB=drop_BB)
            alignment = 2 - 2 * s_BB.diagonal().mean()
            within = [kernels.log_potential(kernels.gram(x_BD), drop_BB=drop_BB) for x_BD in (image_BD, text_BD)]
            cross_uniformity = kernels.log_potential(s_BB, drop_BB=drop_BB)
        else:
            options: dict[str, Any] = {"ids_B": ids_B, "impl": impl, "group": group}
            info_nce, _ = kernels.softmax_loss(image_BD, text_BD, temperature_B, **options)
            alignment = 2 - 2 * kernels.mean_rows((image_BD * text_BD).sum(1), group)
            within = [kernels.potential_loss(x_BD, **options) for x_BD in (image_BD, text_BD)]
            cross_uniformity = kernels.potential_loss(image_BD, text_BD, **options)
        uniformity = 0.5 * (within[0] + within[1])
        loss = (
            info_nce
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
                **spread("temperature", temperature_B, group),
            }
            if ids_B is not None:
                stats["same_id_share"] = same_id_share(ids_B, group)
    return LossOut(loss, stats)
