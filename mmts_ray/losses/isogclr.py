"""iSogCLR: every training sample learns its own temperature, by its own rule."""

import math
from typing import TYPE_CHECKING, Annotated, Any

from mmts_ray.losses.batch import checked_batch, checked_choice, gathered, per_pair
from mmts_ray.losses.output import LossOut
from mmts_ray.space import Choice, Float

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

REMEMBERED = ("temperature", "slope", "log_mass", "peak")
CODE = "https://github.com/zhqiu/contrastive-learning-iSogCLR"
LOG_FLOOR = math.log(1e-14)
MASS_FLOOR = Choice(
    ("code", "paper"),
    doc="the sum of the negatives counts as at least 1e-14 of the sample's largest ever, so that samples with far "
    "negatives fade, or is taken as it is",
    source=CODE,
)


def isogclr_state(images: int, texts: int, device: str = "cpu") -> "dict[str, Tensor]":
    """What `isogclr` remembers of every image (N,) and caption (U,), before any was seen.

    temperature; slope, the moving mean of its gradient; log_mass, the log of the moving mean of the sum of the
    exponentiated negatives, -inf for a sample not seen yet; peak, the largest exponent so far, at least 0. Plain
    tensors: put them into the checkpoint as they are.
    """
    import torch

    state = {}
    for side, count in (("image", images), ("text", texts)):
        state[f"{side}_temperature"] = torch.zeros(count, device=device)
        state[f"{side}_slope"] = torch.zeros(count, device=device)
        state[f"{side}_log_mass"] = torch.full((count,), -math.inf, device=device)
        state[f"{side}_peak"] = torch.zeros(count, device=device)
    return state


def isogclr(
    image_BD: "Tensor",
    text_BD: "Tensor",
    *,
    temperature: "float | Tensor",
    state: "dict[str, Tensor]",
    image_B: "Tensor",
    text_B: "Tensor",
    ids_B: "Tensor | None" = None,
    group: "ProcessGroup | None" = None,
    with_stats: bool = True,
    rho: Annotated[
        float, Float(0, 20, doc="how far from uniform the negatives may be weighed: larger = colder", source=CODE)
    ] = 8.0,
    step_size: Annotated[
        float, Float(0, 1, doc="step of the temperatures; 0 = they stay as they start", source=CODE)
    ] = 0.03,
    mass_rate: Annotated[
        float, Float(0.01, 1, doc="share of the new sum in its moving mean; 1 = no memory", source=CODE)
    ] = 0.8,
    slope_rate: Annotated[
        float, Float(0.01, 1, doc="share of the new gradient in its moving mean; 1 = no memory", source=CODE)
    ] = 0.5,
    tau_low: Annotated[
        float, Float(1e-4, 10, log=True, doc="temperatures are clamped from below", source=CODE)
    ] = 0.005,
    tau_span: Annotated[
        float, Float(1, 1e4, log=True, doc="the highest temperature over the lowest, tau_low", source=CODE)
    ] = 10.0,
    mass_floor: Annotated[str, MASS_FLOOR] = "code",
) -> LossOut:
    """iSogCLR: the robust global contrastive loss with a learned temperature per image and per caption.

    For image anchors (texts alike, over images), t_i the image's temperature and d_ij = s_ij - s_ii, j != i:

        g_i = sum_j e^{d_ij/t_i}          G_i <- (1 - mass_rate) G_i + mass_rate g_i,   G_i = g_i at the first visit
        w_ij = e^{d_ij/t_i} / G_i         constants to the gradient; here and below G_i is at least the floor
        L = mean_i sum_j w_ij d_ij + the same for texts          (a sum of two directions, as published)
        slope_i = log(G_i / (B - 1)) + rho - sum_j w_ij d_ij/t_i,  clamped to [-5, 5]
        v_i <- (1 - slope_rate) v_i + slope_rate slope_i,   t_i <- clamp(t_i - step_size v_i, tau_low, tau_high)

    with tau_high = tau_low tau_span (published: 0.005 to 0.05). L's gradient is that of the objective,
    t_i log(G_i / (B - 1)); its value is not, and may be negative. `temperature`, the schedule's value, is where a
    sample starts when it is first seen (published: 0.01), clamped to the same range; it has no gradient. Same-id pairs
    are not negatives, and B - 1 is then the number of those left.

    `state` (see `isogclr_state`) is read at rows image_B and text_B (B), the places of the batch's images and captions
    in it, and not written: the new values are in `LossOut.changes`, for `advance`, so the loss is a function of state
    and batch. On several workers every worker holds the whole state and gets the changes of the whole batch.

    Choosing rho. Where G_i = g_i, slope_i = rho - (log(B - 1) - H), H in [0, log(B - 1)] the entropy of the weights:
    with rho above log(B - 1), as the published 8 is for batches below 2,982, every temperature falls to tau_low, and
    only the code's floor and its memory hold any up.

    Floor. The code adds a floor to G that the paper lacks, 1e-14 times the largest e^{d_ij/t_i} that the sample has
    ever had (1 at least): once all its negatives lie 32 t_i below the positive, or below its earlier ones, its weights
    fade and it stops learning. `code`, the default, keeps that; `paper` does not. G itself is kept as a logarithm,
    which agrees with the code's numbers and cannot underflow. The code takes G_i = g_i in the first epoch, this at the
    first visit: the same when an epoch shows all samples.

    Units: temperatures, cosines and slopes dimensionless. Stats: temperature_min, _mean, _max over the batch's images
    and captions, as used; objective, mean t_i (log(G_i / (B - 1)) + rho) over both.
    Matched against zhqiu/contrastive-learning-iSogCLR iSogCLR_Loss over several steps (vectors isogclr_*.npz). Raises
    ValueError on shapes that do not fit, an unknown choice, and a temperature that asks for a gradient.
    Reference: arXiv:2305.11965.
    """
    import torch

    from mmts_ray import kernels

    checked_batch(image_BD, text_BD, group=group)
    checked_choice(mass_floor=(mass_floor, MASS_FLOOR))
    if getattr(temperature, "requires_grad", False):
        raise ValueError("loss.isogclr: learns its temperatures itself; legal is a schedule that is constant or cosine")
    tau_high = tau_low * tau_span
    changes: dict[str, tuple[Tensor, Tensor]] = {}
    with torch.autocast(image_BD.device.type, enabled=False):
        image_BD, text_BD = kernels.at_least_float32(image_BD, text_BD)
        start_B = per_pair("temperature", temperature, image_BD)
        image_BD, text_BD, start_B, ids_B, image_B, text_B = gathered(
            group, image_BD, text_BD, start_B, ids_B, image_B, text_B
        )
        s_BB = image_BD @ text_BD.T
        away_BB = torch.eye(len(s_BB), dtype=torch.bool, device=s_BB.device)
        if ids_B is not None:
            away_BB = away_BB | kernels.same_id(ids_B)
        negatives_B = (~away_BB).sum(1)
        none_B = negatives_B == 0
        loss, used, objective = s_BB.new_zeros(()), [], []
        for side, rows_B, own_BB in (("image", image_B, s_BB), ("text", text_B, s_BB.T)):
            old = {name: state[f"{side}_{name}"][rows_B].to(s_BB) for name in REMEMBERED}
            unseen_B = old["log_mass"].isinf()
            tau_B = torch.where(unseen_B, start_B, old["temperature"]).clamp(tau_low, tau_high)
            gap_BB = own_BB - own_BB.diagonal().unsqueeze(1)
            with torch.no_grad():
                logit_BB = (gap_BB / tau_B.unsqueeze(1)).masked_fill(away_BB, -math.inf)
                now_B = logit_BB.logsumexp(1).masked_fill(none_B, 0)
                memory_B = old["log_mass"] + (math.log1p(-mass_rate) if mass_rate < 1 else -math.inf)
                mass_B = torch.where(unseen_B, now_B, torch.logaddexp(memory_B, now_B + math.log(mass_rate)))
                peak_B = torch.maximum(old["peak"], logit_BB.amax(1))
                floor_B = mass_B if mass_floor == "paper" else torch.maximum(mass_B, peak_B + LOG_FLOOR)
                weight_BB = (logit_BB - floor_B.unsqueeze(1)).exp()
                level_B = floor_B - negatives_B.clamp(min=1).to(floor_B).log()
                gradient_B = level_B + rho - (weight_BB * gap_BB).sum(1) / tau_B
                slope_B = torch.lerp(old["slope"], gradient_B.clamp(-5, 5), slope_rate)
                next_B = (tau_B - step_size * slope_B).clamp(tau_low, tau_high)
            loss = loss + (weight_BB * gap_BB).sum(1).mean()
            for name, new_B in zip(REMEMBERED, (next_B, slope_B, mass_B, peak_B)):
                changes[f"{side}_{name}"] = (rows_B, torch.where(none_B, old[name], new_B))
            used.append(tau_B)
            objective.append(tau_B * (level_B + rho))
        stats: dict[str, Any] = {}
        if with_stats:
            tau_2B = torch.cat(used)
            stats = {
                "temperature_min": tau_2B.min(),
                "temperature_mean": tau_2B.mean(),
                "temperature_max": tau_2B.max(),
            }
            stats["objective"] = torch.cat(objective).mean()
    return LossOut(loss, stats, changes)
