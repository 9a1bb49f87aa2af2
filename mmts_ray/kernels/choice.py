"""Which form an objective takes: `impl` and `group` lead from here to whole matrices or to tiles.

Shapes: B batch, D embedding, E teacher features.
"""

import math
from functools import partial

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from mmts_ray.kernels import dense, pairs
from mmts_ray.kernels.masks import mix_codes, mix_key, same_id, same_id_pairs
from mmts_ray.kernels.softmax import Case, Softmax
from mmts_ray.kernels.workers import Shard, gather_rows, shard_of

IMPLS = ("auto", "dense", "cached", "stream")

# Up to these batches whole matrices are fastest on one worker, as measured on a CPU (benchmarks/kernels.py). An
# accelerator is not measured: there a walk's many launches are expected to cost more than memory, up to DEVICE_DENSE.
DENSE = {"softmax": 384, "hinge": 384, "sigmoid": 128, "potential": 128}
DEVICE_DENSE = 4096
# Kept tiles may take this much memory.
CACHED_BYTES = 256 << 20

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
    shard = shard_of(len(image_BD), group, image_BD.device)
    drawn = r_mix > 0 and generator is not None
    copies = 1.0 + (r_mix > 0)
    form = _softmax_form(impl, shard, image_BD, copies * (1 + (angular_margin > 0)))
    teachers = teacher_BE if isinstance(teacher_BE, tuple) or teacher_BE is None else (teacher_BE, teacher_BE)
    filters_by_it = filter_threshold is not None and filter_teacher is None
    moving = _all_rows(teachers, shard) if angular_margin > 0 or filters_by_it else None
    filtering = _all_rows(filter_teacher, shard) if filter_teacher is not None else moving
    if ids_B is not None:
        ids_B = shard.gather(ids_B)
    if form == "dense":
        return dense.softmax_loss(
            gather_rows(image_BD, group),
            gather_rows(text_BD, group),
            gather_rows(temperature_B, group),
            directions=directions,
            r_mix=r_mix,
            key=shard.first(mix_key(generator, image_BD.device)) if drawn and generator is not None else None,
            angular_margin=angular_margin,
            angle_edge=angle_edge,
            teacher_BE=moving,
            filter_threshold=filter_threshold,
            filter_teacher=filtering,
            ids_B=ids_B,
            with_stats=with_stats,
        )
    case = Case(shard, {"both": (1, 0), "image_to_text": (1,), "text_to_image": (0,)}[directions], form == "cached")
    if drawn and generator is not None:
        case.codes_22B = mix_codes(shard.first(mix_key(generator, image_BD.device)), shard.batch)
        case.pick_chance = r_mix
    if r_mix > 0:
        case.inter_weight, case.intra_weight = (1.0, 1.0) if drawn else (1 - r_mix, r_mix)
    if angular_margin > 0:
        assert moving is not None
        case.margin, case.teacher = angular_margin, moving
        case.gate = math.cos(angular_margin) if angle_edge == "gate" else None
    if filter_threshold is not None:
        case.threshold, case.filter_teacher = filter_threshold, filtering
    if ids_B is not None:
        case.ids_B = _compared(ids_B, image_BD)
    if with_stats:
        case.counts = {name: image_BD.new_zeros(()) for name in ("dropped", "filtered", "intra")}
    loss = Softmax.apply(image_BD, text_BD, temperature_B, case)
    return loss, _softmax_stats(case, ids_B, r_mix, drawn) if with_stats else {}


def _softmax_stats(case: Case, ids_B: Tensor | None, r_mix: float, drawn: bool) -> dict[str, Tensor | float]:
    assert case.counts is not None
    batch = case.shard.batch
    ordered = max(1, batch * (batch - 1))
    stats: dict[str, Tensor | float] = {}
    if case.threshold is not None:
        stats["filtered_share"] = case.shard.sum(case.counts["filtered"]) / ordered
    if ids_B is not None:
        stats["same_id_share"] = same_id_pairs(ids_B) / ordered
    if drawn:
        stats["intra_count"] = case.shard.sum(case.counts["intra"]) / (len(case.directions) * batch)
    elif r_mix > 0:
        stats["intra_count"] = r_mix * (batch - 1 - case.shard.sum(case.counts["dropped"]) / batch)
    return stats


def _all_rows(pair: tuple[Tensor, Tensor] | None, shard: Shard) -> tuple[Tensor, Tensor] | None:
    """Teacher rows of all workers; two that are one tensor stay one, which halves the walk."""
    if pair is None:
        return None
    rows_BE = shard.gather(pair[0].detach())
    return rows_BE, rows_BE if pair[1] is pair[0] else shard.gather(pair[1].detach())


def _softmax_form(impl: str, shard: Shard, like_BD: Tensor, copies: float) -> str:
    if impl != "auto":
        return impl
    cached_bytes = shard.sizes[shard.rank] * shard.batch * like_BD.element_size() * copies
    if _whole("softmax", shard, like_BD):
        return "dense"
    return "cached" if cached_bytes <= CACHED_BYTES else "stream"


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
    shard = shard_of(len(image_BD), group, image_BD.device)
    if ids_B is not None:
        ids_B = shard.gather(ids_B)
    if _pairs_form("hinge", impl, shard, image_BD, drop_BB) == "dense":
        rows = [gather_rows(x, group) for x in (image_BD, text_BD, margin_B)]
        return dense.hinge_loss(rows[0], rows[1], rows[2], drop_BB=_dropped(drop_BB, ids_B))
    terms = _terms(image_BD, shard, ids_B).clamp(min=1)
    walk = partial(pairs.hinge, shard=shard, ids_B=_compared(ids_B, image_BD))
    total, active = pairs.Pairs.apply(walk, shard.workers, image_BD, text_BD, margin_B.detach())
    return total / terms, active / terms


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
    shard = shard_of(len(image_BD), group, image_BD.device)
    if ids_B is not None:
        ids_B = shard.gather(ids_B)
    if _pairs_form("sigmoid", impl, shard, image_BD, drop_BB) == "dense":
        if temperature.ndim:
            temperature = gather_rows(temperature, group)
        image_BD, text_BD = gather_rows(image_BD, group), gather_rows(text_BD, group)
        return dense.sigmoid_loss(image_BD, text_BD, temperature, bias, drop_BB=_dropped(drop_BB, ids_B))
    bias = torch.as_tensor(bias, dtype=image_BD.dtype, device=image_BD.device)
    walk = partial(pairs.sigmoid, shard=shard, ids_B=_compared(ids_B, image_BD))
    (total,) = pairs.Pairs.apply(walk, shard.workers, image_BD, text_BD, temperature, bias)
    return total / shard.batch


def potential_loss(
    x_BD: Tensor,
    y_BD: Tensor | None = None,
    *,
    ids_B: Tensor | None = None,
    impl: str = "auto",
    group: ProcessGroup | None = None,
) -> Tensor:
    """log mean over i != j of exp(-2 |x_i - y_j|^2) for unit rows, y = x when absent; 0 when no pair is left."""
    shard = shard_of(len(x_BD), group, x_BD.device)
    if ids_B is not None:
        ids_B = shard.gather(ids_B)
    if _pairs_form("potential", impl, shard, x_BD) == "dense":
        x_BD = gather_rows(x_BD, group)
        cosine_BB = dense.gram(x_BD) if y_BD is None else x_BD @ gather_rows(y_BD, group).T
        return dense.log_potential(cosine_BB, drop_BB=_dropped(None, ids_B))
    walk = partial(pairs.potential, shard=shard, ids_B=_compared(ids_B, x_BD))
    (total,) = pairs.Pairs.apply(walk, shard.workers, x_BD, y_BD)
    terms = _terms(x_BD, shard, ids_B) / 2
    return torch.where(terms > 0, total / terms.clamp(min=1), 1.0).log()


def _terms(like_BD: Tensor, shard: Shard, ids_B: Tensor | None) -> Tensor:
    """How many ordered pairs of both directions remain, 0-d."""
    terms = like_BD.new_tensor(2 * shard.batch * (shard.batch - 1))
    return terms if ids_B is None else terms - 2 * same_id_pairs(ids_B)


def _compared(ids_B: Tensor | None, like_BD: Tensor) -> Tensor | None:
    """Ids as small whole floats, which compare at the speed of an addition."""
    return None if ids_B is None else torch.unique(ids_B, return_inverse=True)[1].to(like_BD.dtype)


def _pairs_form(name: str, impl: str, shard: Shard, like_BD: Tensor, drop_BB: Tensor | None = None) -> str:
    _checked(impl)
    if drop_BB is not None:
        if impl in ("cached", "stream") or shard.group is not None:
            raise ValueError(f"loss.impl {impl}: a drop_BB needs dense and one worker; pass ids_B instead")
        return "dense"
    return impl if impl != "auto" else "dense" if _whole(name, shard, like_BD) else "stream"


def _whole(name: str, shard: Shard, like_BD: Tensor) -> bool:
    limit = DENSE[name] if like_BD.device.type == "cpu" else DEVICE_DENSE
    return shard.group is None and shard.batch <= limit


def _checked(impl: str) -> None:
    if impl not in IMPLS:
        raise ValueError(f"loss.impl: {impl!r} is not legal; legal is one of {', '.join(IMPLS)}")


def _dropped(drop_BB: Tensor | None, ids_B: Tensor | None) -> Tensor | None:
    if ids_B is None:
        return drop_BB
    return same_id(ids_B) if drop_BB is None else drop_BB | same_id(ids_B)
