"""The multi-class N-pair loss on embeddings that are not normalised."""

from typing import TYPE_CHECKING, Annotated

from mmts_ray.losses.batch import IMPL, checked_batch, checked_choice
from mmts_ray.losses.output import LossOut
from mmts_ray.space import Float

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


def n_pair(
    anchor_BD: "Tensor",
    positive_BD: "Tensor",
    *,
    ids_B: "Tensor | None" = None,
    group: "ProcessGroup | None" = None,
    with_stats: bool = True,
    norm_weight: Annotated[
        float,
        Float(0, 1, doc="weight of the squared norms", source="tf.contrib.losses.metric_learning.npairs_loss"),
    ] = 0.002,
    impl: Annotated[str, IMPL] = "auto",
) -> LossOut:
    """N-pair loss: one direction of a softmax over inner products, and a penalty on the norms.

        L = 1/B sum_i log(1 + sum_{j != i} e^{x_i.y_j - x_i.y_i}) + norm_weight/4 (mean_i |x_i|^2 + mean_i |y_i|^2)

    Rows are NOT unit rows here: the norms are what sets the scale, in place of a temperature. On unit rows it is
    `info_nce` at temperature 1 with directions="image_to_text", which is how to search it; so it is a function and not
    in LOSSES, where embeddings are unit rows. Same-id pairs are not negatives.

    Follows TensorFlow's npairs_loss, whose penalty carries the factor 1/4 and its default weight (the paper leaves the
    weight open); tested by enumeration. Stats: anchor_norm, positive_norm, the mean lengths of this worker's rows;
    same_id_share. Raises ValueError on shapes that do not fit.
    Reference: Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective, NeurIPS 2016.
    """
    import torch

    from mmts_ray import kernels

    checked_batch(anchor_BD, positive_BD, what="anchor and positive", group=group)
    checked_choice(impl=(impl, IMPL))
    with torch.autocast(anchor_BD.device.type, enabled=False):
        anchor_BD, positive_BD = kernels.at_least_float32(anchor_BD, positive_BD)
        loss, stats = kernels.softmax_loss(
            anchor_BD,
            positive_BD,
            anchor_BD.new_ones(len(anchor_BD)),
            directions="image_to_text",
            ids_B=ids_B,
            with_stats=with_stats,
            impl=impl,
            group=group,
        )
        squares = kernels.mean_rows(anchor_BD.square().sum(1) + positive_BD.square().sum(1), group)
        if with_stats:
            stats |= {
                "anchor_norm": anchor_BD.detach().norm(dim=1).mean(),
                "positive_norm": positive_BD.detach().norm(dim=1).mean(),
            }
    return LossOut(loss + norm_weight / 4 * squares, stats)
