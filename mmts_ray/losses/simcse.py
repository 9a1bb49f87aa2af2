"""SimCSE: a sentence must be nearest to itself under another dropout mask."""

from typing import TYPE_CHECKING, Annotated

from mmts_ray.losses.batch import ANGLE_EDGE, IMPL, checked_batch, checked_choice, per_pair, spread
from mmts_ray.losses.output import LossOut
from mmts_ray.space import Float

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

TEXT_MARGIN = Float(
    0,
    1.5,
    doc="fixed angular margin on the negatives of the text loss: 0 in the paper, 0.15 in the released script",
    unit="rad",
    source="https://github.com/duyngtr16061999/KDMCSE",
)


def simcse(
    view1_BD: "Tensor",
    view2_BD: "Tensor",
    *,
    temperature: "float | Tensor",
    ids_B: "Tensor | None" = None,
    group: "ProcessGroup | None" = None,
    with_stats: bool = True,
    text_margin: Annotated[float, TEXT_MARGIN] = 0.0,
    angle_edge: Annotated[str, ANGLE_EDGE] = "gate",
    impl: Annotated[str, IMPL] = "auto",
) -> LossOut:
    """Unsupervised SimCSE on two views of each sentence, unit rows (B, D), anchors first.

        L = mean_i -log  e^{z_i.z'_i/t} / ( e^{z_i.z'_i/t} + sum_{j != i} e^{f(z_i.z'_j)/t} )

    One direction only, as published. f is the identity, or, with `text_margin` m, cos(x - m) where the angle x is above
    m: the released KDMCSE passes its text loss through its angular module, which its equations do not say. So the
    default follows the papers (0), and 0.15 is the script. `angle_edge` as in `info_nce`. Sentences of one id (equal
    texts) are not each other's negatives.

    Units: temperature (published: 0.05) and cosines dimensionless, margins radian. Stats: temperature_min, _mean, _max;
    same_id_share.
    Matched against princeton-nlp/SimCSE's form as in duyngtr16061999/KDMCSE (vectors kdmcse_*.npz, simcse_loss).
    Raises ValueError on shapes that do not fit, an unknown choice, and a temperature that is not positive.
    Reference: arXiv:2104.08821, arXiv:2403.17486.
    """
    import torch

    from mmts_ray import kernels

    checked_batch(view1_BD, view2_BD, what="view 1 and view 2", group=group)
    checked_choice(angle_edge=(angle_edge, ANGLE_EDGE), impl=(impl, IMPL))
    with torch.autocast(view1_BD.device.type, enabled=False):
        view1_BD, view2_BD = kernels.at_least_float32(view1_BD, view2_BD)
        temperature_B = per_pair("temperature", temperature, view1_BD)
        loss, stats = kernels.softmax_loss(
            view1_BD,
            view2_BD,
            temperature_B,
            directions="image_to_text",
            angular_margin=text_margin,
            angle_edge=angle_edge,
            # a teacher to whom nothing is similar: every negative moves by the whole margin
            teacher_BE=view1_BD.new_zeros(len(view1_BD), 1) if text_margin > 0 else None,
            ids_B=ids_B,
            with_stats=with_stats,
            impl=impl,
            group=group,
        )
        if with_stats:
            stats |= spread("temperature", temperature_B, group)
    return LossOut(loss, stats)
