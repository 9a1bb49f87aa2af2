"""What every loss asks of its batch, and the declarations that several losses share.

Shapes: B batch (on several workers, this worker's share of it), D embedding.
"""

from typing import TYPE_CHECKING, Any

from mmts_ray.space import Choice

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

DIRECTIONS = Choice(("both", "image_to_text", "text_to_image"), doc="which modality's anchors are averaged over")
IMPL = Choice(
    ("auto", "dense", "cached", "stream"),
    doc="how it is computed, never what: all cosines at once, in row blocks with the cosines kept, or recomputed",
)
ANGLE_EDGE = Choice(
    ("gate", "floor"),
    doc="a negative within the angular margin: left alone as in the published code, or stopped at angle 0",
    source="https://github.com/duyngtr16061999/KDMCSE; floor is ours",
)


def checked_batch(
    first_BD: "Tensor", *others_BD: "Tensor", what: str = "image and text", group: "ProcessGroup | None" = None
) -> int:
    """The batch size; ValueError unless all are one (B, D), which only a worker among several may have empty."""
    shapes = [tuple(x.shape) for x in (first_BD, *others_BD)]
    if first_BD.ndim != 2 or len(set(shapes)) > 1 or not (len(first_BD) or group is not None):
        given = ", ".join(str(s) for s in shapes)
        raise ValueError(f"embeddings: {what} {given} must be one non-empty (B, D)")
    return len(first_BD)


def checked_choice(**given: "tuple[str, Choice]") -> None:
    """ValueError, with what is legal, for a value that its declaration does not list."""
    for name, (value, choice) in given.items():
        if value not in choice.values:
            raise ValueError(f"loss.{name}: {value!r} is not legal; legal is {choice}")


def per_pair(name: str, value: "float | Tensor", like_BD: "Tensor") -> "Tensor":
    """The scheduled value as (B,), differentiable; positive if it is a temperature given as a number."""
    import torch

    batch = len(like_BD)
    if isinstance(value, torch.Tensor):
        if value.shape not in ((), (batch,)):
            raise ValueError(f"{name}: shape {tuple(value.shape)} does not fit; legal is a number, () or ({batch},)")
        return value.to(like_BD).expand(batch)
    if name.endswith("temperature") and not value > 0:
        raise ValueError(f"{name}: {value} does not divide logits sensibly; legal is above 0")
    return like_BD.new_full((batch,), value)


def fixed_margin(margin: "float | Tensor", loss: str) -> None:
    """ValueError for a margin that asks for a gradient: a hinge only ever falls with its margin."""
    if getattr(margin, "requires_grad", False):
        raise ValueError(f"loss.{loss}: a margin cannot be learned; legal is a schedule that is constant or cosine")


def spread(name: str, value_B: "Tensor", group: "ProcessGroup | None" = None) -> "dict[str, Tensor]":
    """Statistics of a scheduled value over the whole batch."""
    (value_B,) = gathered(group, value_B.detach())
    return {f"{name}_min": value_B.min(), f"{name}_mean": value_B.mean(), f"{name}_max": value_B.max()}


def same_id_share(ids_B: "Tensor", group: "ProcessGroup | None" = None) -> "Tensor":
    """The share of the whole batch's ordered pairs that carry one id, 0-d."""
    from mmts_ray import kernels

    (ids_B,) = gathered(group, ids_B)
    return kernels.same_id_pairs(ids_B) / max(1, len(ids_B) * (len(ids_B) - 1))


def gathered(group: "ProcessGroup | None", *tensors_B: "Tensor | None") -> "tuple[Any, ...]":
    """The rows of all workers, in rank order and differentiable; without a group, what was given.

    A small loss is then computed whole on every worker. The gather's gradient sums over workers, so that the mean over
    workers, which data parallelism takes, is the gradient of the single-process batch.
    """
    if group is None:
        return tensors_B
    from mmts_ray import kernels

    return tuple(None if x is None else kernels.gather_rows(x, group) for x in tensors_B)
