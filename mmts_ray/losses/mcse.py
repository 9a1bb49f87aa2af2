"""MCSE: SimCSE, and both views of a caption must find their image."""

from typing import TYPE_CHECKING, Annotated, Any

from mmts_ray.losses.batch import IMPL, checked_batch, checked_choice, per_pair
from mmts_ray.losses.output import LossOut
from mmts_ray.losses.simcse import simcse
from mmts_ray.space import Float

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


def mcse(
    view1_BD: "Tensor",
    view2_BD: "Tensor",
    grounded1_BG: "Tensor",
    grounded2_BG: "Tensor",
    image_BG: "Tensor",
    *,
    temperature: "float | Tensor",
    grounding_temperature: "float | Tensor | None" = None,
    ids_B: "Tensor | None" = None,
    group: "ProcessGroup | None" = None,
    with_stats: bool = True,
    grounding_weight: Annotated[
        float, Float(0, 10, doc="weight of the image loss beside SimCSE", source="https://github.com/uds-lsv/MCSE")
    ] = 0.01,
    impl: Annotated[str, IMPL] = "auto",
) -> LossOut:
    """MCSE on a batch of captions with images.

        L = SimCSE(z, z'; t) + grounding_weight * 1/2 [ CE(s; t') + CE(s'; t') ]
        CE(s; t') = mean_i -log  e^{s_i.v_i/t'} / sum_j e^{s_i.v_j/t'}

    z, z' (B, D) are the two dropout views in the space of the text loss, s, s' (B, G) the same views and v (B, G) the
    images in the grounding space; all unit rows. t' is `grounding_temperature`, by default t (published: both 0.05).
    Rows of one id are not each other's negatives. With grounding_weight 0 it is SimCSE on the same batch.

    Stats: simcse, grounding (unweighted), same_id_share.
    Matched against uds-lsv/MCSE MCSE.compute_loss (vectors sentence_*.npz). Raises ValueError as `simcse` does.
    Reference: arXiv:2204.10931.
    """
    import torch

    from mmts_ray import kernels

    checked_batch(grounded1_BG, grounded2_BG, image_BG, what="grounded views and image", group=group)
    checked_choice(impl=(impl, IMPL))
    text = simcse(
        view1_BD, view2_BD, temperature=temperature, ids_B=ids_B, group=group, with_stats=with_stats, impl=impl
    )
    if grounding_temperature is None:
        grounding_temperature = temperature
    with torch.autocast(image_BG.device.type, enabled=False):
        grounded1_BG, grounded2_BG, image_BG = kernels.at_least_float32(grounded1_BG, grounded2_BG, image_BG)
        temperature_B = per_pair("grounding_temperature", grounding_temperature, image_BG)
        halves = [
            kernels.softmax_loss(
                view_BG, image_BG, temperature_B, directions="image_to_text", ids_B=ids_B, impl=impl, group=group
            )[0]
            for view_BG in (grounded1_BG, grounded2_BG)
        ]
        grounding = 0.5 * (halves[0] + halves[1])
    stats: dict[str, Any] = {}
    if with_stats:
        stats = {**text.stats, "simcse": text.loss.detach(), "grounding": grounding.detach()}
    return LossOut(text.loss + grounding_weight * grounding, stats)
