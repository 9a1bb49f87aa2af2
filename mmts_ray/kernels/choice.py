"""Which form an objective takes: `impl` and `group` lead from here to whole matrices or to tiles.

Shapes: B batch, D embedding, E teacher features.
"""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from mmts_ray.kernels import dense
from mmts_ray.kernels.masks import same_id
from mmts_ray.kernels.workers import gather_rows, gathered

IMPLS = ("auto", "dense", "cached", "stream")

Teacher = Tensor | tuple[Tensor, Tensor]


def softmax_loss(
    image_BD: Tensor,
    text_BD: Tensor,
    temperature_B: Tensor,
    *,
    directions: str = "both",
    r_mix: float = 0.0,
    generator: torch.Generator | None = None,
    angular_margin: float = 0.0,
    angle_edge: str = "gate",
    teacher_BE: Teacher | None = None,
    filter_threshold: float | None = None,
    filter_teacher: tuple[Tensor, Tensor] | None = None,
    ids_B: Tensor | None = None,
    with_stats: bool = False,
    impl: str = "auto",
    group: ProcessGroup | None = None,
) -> tuple[Tensor, dict[str, Tensor | float]]:
    """The softmax objective of `losses.info_nce` and its statistics.

    With a generator, r_mix is the chance of a negative to be replaced; without, the weight of the intra-modal ones.
    A pair that is filtered or shares an id drops out of both directions, and with it the intra-modal pair in the same
    place of a direction's matrix. `teacher_BE`: unit rows, or (rows, columns) when images and texts have their own.
    """
    _checked(impl)
    all_of = gathered(group)
    if filter_teacher is not None:
        filter_teacher = (gather_rows(filter_teacher[0], group), gather_rows(filter_teacher[1], group))
    if isinstance(teacher_BE, tuple):
        teacher_BE = (gather_rows(teacher_BE[0], group), gather_rows(teacher_BE[1], group))
    else:
        teacher_BE = all_of(teacher_BE)
    return dense.softmax_loss(
        gather_rows(image_BD, group),
        gather_rows(text_BD, group),
        gather_rows(temperature_B, group),
        directions=directions,
        r_mix=r_mix,
        generator=generator,
        angular_margin=angular_margin,
        angle_edge=angle_edge,
        teacher_BE=teacher_BE,
        filter_threshold=filter_threshold,
        filter_teacher=filter_teacher,
        ids_B=all_of(ids_B),
        with_stats=with_stats,
    )


def hinge_loss(
    image_BD: Tensor,
    text_BD: Tensor,
    margin_B: Tensor,
    *,
    drop_BB: Tensor | None = None,
    ids_B: Tensor | None = None,
    impl: str = "auto",
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """The hinge objective of `losses.max_margin`, and the share of its terms that are above 0.

    Pairs of the same id, or those that `drop_BB` holds (the whole batch's), leave both the sum and the count.
    """
    _checked(impl)
    rows = [gather_rows(x, group) for x in (image_BD, text_BD, margin_B)]
    return dense.hinge_loss(rows[0], rows[1], rows[2], drop_BB=_dropped(drop_BB, gathered(group)(ids_B)))


def sigmoid_loss(
    image_BD: Tensor,
    text_BD: Tensor,
    temperature: Tensor,
    bias: Tensor | float,
    *,
    drop_BB: Tensor | None = None,
    ids_B: Tensor | None = None,
    impl: str = "auto",
    group: ProcessGroup | None = None,
) -> Tensor:
    """The objective of `losses.siglip`; `temperature` is 0-d, or (B,) and then applied anchor-wise both ways."""
    _checked(impl)
    if temperature.ndim:
        temperature = gather_rows(temperature, group)
    image_BD, text_BD = gather_rows(image_BD, group), gather_rows(text_BD, group)
    drop_BB = _dropped(drop_BB, gathered(group)(ids_B))
    return dense.sigmoid_loss(image_BD, text_BD, temperature, bias, drop_BB=drop_BB)


def potential_loss(
    x_BD: Tensor,
    y_BD: Tensor | None = None,
    *,
    ids_B: Tensor | None = None,
    impl: str = "auto",
    group: ProcessGroup | None = None,
) -> Tensor:
    """log mean over i != j of exp(-2 |x_i - y_j|^2) for unit rows, y = x when absent; 0 when no pair is left."""
    _checked(impl)
    x_BD = gather_rows(x_BD, group)
    cosine_BB = dense.gram(x_BD) if y_BD is None else x_BD @ gather_rows(y_BD, group).T
    return dense.log_potential(cosine_BB, drop_BB=_dropped(None, gathered(group)(ids_B)))


def _checked(impl: str) -> None:
    if impl not in IMPLS:
        raise ValueError(f"loss.impl: {impl!r} is not legal; legal is one of {', '.join(IMPLS)}")


def _dropped(drop_BB: Tensor | None, ids_B: Tensor | None) -> Tensor | None:
    if ids_B is None:
        return drop_BB
    return same_id(ids_B) if drop_BB is None else drop_BB | same_id(ids_B)
