"""KDMCSE: SimCSE, and both views of a caption must find its image and its text in a teacher's space."""

from typing import TYPE_CHECKING, Annotated, Any

from mmts_ray.losses.batch import ANGLE_EDGE, IMPL, checked_batch, checked_choice, per_pair
from mmts_ray.losses.output import LossOut
from mmts_ray.losses.simcse import TEXT_MARGIN, simcse
from mmts_ray.space import Choice, Float

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

SOURCE = "https://github.com/duyngtr16061999/KDMCSE"
SOFT_LABEL_SOURCE = Choice(
    ("code", "paper"),
    doc="teacher cosines behind the margin of the image branch: image-image as released, or caption-image; that of the "
    "text branch is caption-caption in both",
    source=SOURCE,
)
FILTER_SOURCE = Choice(
    ("paper", "code"),
    doc="teacher cosines that filter the text branch: caption-caption, or image-caption as released; the image branch "
    "is filtered by caption-image in both",
    source=SOURCE,
)
BRANCHES = Choice(("sum", "mean"), doc="image and text branch are added as released, or averaged", source=SOURCE)


def kdmcse(
    view1_BD: "Tensor",
    view2_BD: "Tensor",
    grounded1_BG: "Tensor",
    grounded2_BG: "Tensor",
    image_BG: "Tensor",
    text_BG: "Tensor",
    *,
    teacher_image_BE: "Tensor",
    teacher_text_BE: "Tensor",
    temperature: "float | Tensor",
    grounding_temperature: "float | Tensor | None" = None,
    ids_B: "Tensor | None" = None,
    group: "ProcessGroup | None" = None,
    with_stats: bool = True,
    grounding_weight: Annotated[
        float, Float(0, 10, doc="weight of the branches beside SimCSE: 0.01 in the released script", source=SOURCE)
    ] = 0.01,
    branches: Annotated[str, BRANCHES] = "sum",
    angular_margin: Annotated[
        float,
        Float(
            0,
            1.5,
            doc="negatives move to the anchor by this times |1 - teacher cosine|; 0.15 in the released script",
            unit="rad",
            source="arXiv:2403.17486",
        ),
    ] = 0.125,
    angle_edge: Annotated[str, ANGLE_EDGE] = "gate",
    text_margin: Annotated[float, TEXT_MARGIN] = 0.0,
    image_threshold: Annotated[
        float | None,
        Float(
            -1,
            1,
            doc="image negatives whose teacher cosine is above this are removed; caption-image cosines are low",
            source="arXiv:2403.17486",
            none="filter off",
        ),
    ] = 0.9,
    text_threshold: Annotated[
        float | None,
        Float(
            -1,
            1,
            doc="text negatives whose teacher cosine is above this are removed",
            source="arXiv:2403.17486",
            none="filter off",
        ),
    ] = 0.9,
    soft_label_source: Annotated[str, SOFT_LABEL_SOURCE] = "code",
    filter_source: Annotated[str, FILTER_SOURCE] = "paper",
    impl: Annotated[str, IMPL] = "auto",
) -> LossOut:
    """KDMCSE's total on a batch of captions with images.

        L = SimCSE(z, z'; t) + grounding_weight * (V + T),    or (V + T)/2 with branches="mean"
        V = 1/2 [ A(s, v) + A(s', v) ],   T = 1/2 [ A(s, w) + A(s', w) ]
        A(s, x) = mean_i -log  e^{s_i.x_i/t'} / ( e^{s_i.x_i/t'} + sum_{j != i, kept} e^{cos(theta_ij - m d_ij)/t'} )

    with cos theta_ij = s_i.x_j and d_ij = |1 - q_ij|, q the teacher's cosine (AdapACSE; `info_nce` says more). z, z'
    (B, D) are the two dropout views in the space of the text loss (head 1); s, s' (B, G) the same views (head 2), v
    (B, G) the teacher's image (head 3) and w (B, G) its caption (head 4) in the grounding space; all unit rows. The
    teacher's frozen features (B, E), unit rows of one space, carry no gradient. t' is `grounding_temperature`, by
    default t (published: both 0.05). Rows of one id are not each other's negatives.

    Paper and released code differ; each difference is an option, and the default is
        branches           sum (code, weight 0.01; the paper's mean is the same with half the weight)
        soft_label_source  code: V uses image-image cosines; paper: caption-image. T: caption-caption in both
        filter_source      paper: T is filtered by caption-caption cosines; code: by image-caption. V: caption-image
        thresholds         0.9 (paper 0.85 to 0.9). The script's 0.8 is inert, for it does not switch the filter on, and
                           its argparse default 70 is on unnormalised features; here cosines are compared
        angular_margin     0.125 (the paper's best; script 0.15)
        text_margin        0 (paper; script 0.15)
    With grounding_weight 0 it is SimCSE on the same batch, which is the baseline to compare with.

    Stats: simcse, image_branch, text_branch (unweighted),
    filtered_share_image, filtered_share_text of the B(B-1) ordered pairs, same_id_share.
    Matched against duyngtr16061999/KDMCSE MCSE.compute_loss (vectors kdmcse_*.npz). Raises ValueError on shapes that do
    not fit, teachers of two spaces, an unknown choice, and a temperature that is not positive.
    Reference: arXiv:2403.17486.
    """
    import torch

    from mmts_ray import kernels

    checked_batch(grounded1_BG, grounded2_BG, image_BG, text_BG, what="grounded views, image and text", group=group)
    checked_choice(
        branches=(branches, BRANCHES),
        soft_label_source=(soft_label_source, SOFT_LABEL_SOURCE),
        filter_source=(filter_source, FILTER_SOURCE),
        angle_edge=(angle_edge, ANGLE_EDGE),
        impl=(impl, IMPL),
    )
    if soft_label_source == "paper" or image_threshold is not None or filter_source == "code":
        checked_batch(teacher_image_BE, teacher_text_BE, what="teacher image and text", group=group)
    simple = simcse(
        view1_BD,
        view2_BD,
        temperature=temperature,
        ids_B=ids_B,
        group=group,
        with_stats=with_stats,
        text_margin=text_margin,
        angle_edge=angle_edge,
        impl=impl,
    )
    if grounding_temperature is None:
        grounding_temperature = temperature
    losses, filtered = {}, {}
    with torch.autocast(image_BG.device.type, enabled=False):
        views = kernels.at_least_float32(grounded1_BG, grounded2_BG, image_BG, text_BG)
        targets = {"image_branch": views[2], "text_branch": views[3]}
        temperature_B = per_pair("grounding_temperature", grounding_temperature, views[2])
        image_BE, text_BE = (x.detach().to(views[0]) for x in (teacher_image_BE, teacher_text_BE))
        # row i of these matrices is the anchor, caption i
        margin_by: dict[str, Any] = {
            "image_branch": image_BE if soft_label_source == "code" else (text_BE, image_BE),
            "text_branch": text_BE,
        }
        filter_by = {
            "image_branch": (text_BE, image_BE),
            "text_branch": (text_BE if filter_source == "paper" else image_BE, text_BE),
        }
        thresholds = {"image_branch": image_threshold, "text_branch": text_threshold}
        for name, target_BG in targets.items():
            halves = [
                kernels.softmax_loss(
                    view_BG,
                    target_BG,
                    temperature_B,
                    directions="image_to_text",
                    angular_margin=angular_margin,
                    angle_edge=angle_edge,
                    teacher_BE=margin_by[name] if angular_margin > 0 else None,
                    filter_threshold=thresholds[name],
                    filter_teacher=filter_by[name],
                    ids_B=ids_B,
                    with_stats=with_stats,
                    impl=impl,
                    group=group,
                )
                for view_BG in views[:2]
            ]
            losses[name] = 0.5 * (halves[0][0] + halves[1][0])
            filtered[name] = halves[0][1].get("filtered_share", 0.0)
    total = losses["image_branch"] + losses["text_branch"]
    if branches == "mean":
        total = 0.5 * total
    stats: dict[str, Any] = {}
    if with_stats:
        stats = {
            **simple.stats,
            "simcse": simple.loss.detach(),
            **{name: loss.detach() for name, loss in losses.items()},
            "filtered_share_image": filtered["image_branch"],
            "filtered_share_text": filtered["text_branch"],
        }
    return LossOut(simple.loss + grounding_weight * total, stats)
