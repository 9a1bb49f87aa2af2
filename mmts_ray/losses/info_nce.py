"""InfoNCE, and what is built on its softmax: MM-TS, xNCE and AdapACSE, in one function because they compose."""

from typing import TYPE_CHECKING, Annotated, Any

from mmts_ray.losses.batch import ANGLE_EDGE, DIRECTIONS, IMPL, checked_batch, checked_choice, per_pair, spread
from mmts_ray.losses.output import LossOut
from mmts_ray.space import Choice, Float

if TYPE_CHECKING:
    from torch import Generator, Tensor
    from torch.distributed import ProcessGroup

MIX_MODE = Choice(
    ("replace", "weighted"),
    doc="intra-modal negatives replace inter-modal ones, each with chance r_mix, or weigh r_mix : 1-r_mix",
    source="ours, after arXiv:2607.10698",
)
SOFT_LABELS = Choice(
    ("text", "image", "code", "paper"),
    doc="frozen features behind the teacher cosines: of captions; of images; code: of what is ranked, images or "
    "captions; paper: caption-caption where captions are ranked, caption-image where images are",
    source="arXiv:2403.17486, https://github.com/duyngtr16061999/KDMCSE; text and image are ours",
)


def info_nce(
    image_BD: "Tensor",
    text_BD: "Tensor",
    *,
    temperature: "float | Tensor",
    ids_B: "Tensor | None" = None,
    teacher_BE: "Tensor | tuple[Tensor, Tensor] | None" = None,
    filter_teacher: "tuple[Tensor, Tensor] | None" = None,
    generator: "Generator | None" = None,
    group: "ProcessGroup | None" = None,
    with_stats: bool = True,
    r_mix: Annotated[
        float,
        Float(0, 1, doc="share of intra-modal among the negatives; 0 = InfoNCE", source="arXiv:2607.10698"),
    ] = 0.0,
    mix_mode: Annotated[str, MIX_MODE] = "replace",
    angular_margin: Annotated[
        float,
        Float(
            0,
            1.5,
            doc="negatives move to the anchor by this times |1 - teacher cosine|; 0 = off, best in the paper 0.125",
            unit="rad",
            source="arXiv:2403.17486",
        ),
    ] = 0.0,
    filter_threshold: Annotated[
        float | None,
        Float(
            -1,
            1,
            doc="negatives whose teacher cosine is above this are removed; the paper suggests 0.85 to 0.9",
            source="arXiv:2403.17486",
            none="filter off",
        ),
    ] = None,
    filter_threshold_image: Annotated[
        float | None,
        Float(
            -1,
            1,
            doc="its own threshold where images are ranked, under soft_labels code or paper: cosines of another scale",
            source="arXiv:2403.17486",
            none="as filter_threshold",
        ),
    ] = None,
    angle_edge: Annotated[str, ANGLE_EDGE] = "gate",
    soft_labels: Annotated[str, SOFT_LABELS] = "text",
    directions: Annotated[str, DIRECTIONS] = "both",
    impl: Annotated[str, IMPL] = "auto",
) -> LossOut:
    """Softmax contrastive loss: InfoNCE, MM-TS, xNCE and AdapACSE, in any combination.

    For image anchors (texts alike, with w and u exchanged), t_i the pair's temperature, s_ij = u_i.w_j, k_ij = u_i.u_j:

        L_i = -log  e^{s_ii/t_i} / ( e^{s_ii/t_i} + sum_{j != i, kept} [ a_ij e^{f(s_ij)/t_i} + b_ij e^{f(k_ij)/t_i} ] )

    and the loss is the mean over anchors, then over directions.

    Temperature. Anchor-wise in both directions, so the two logit matrices are not each other's transpose (MM-TS,
    arXiv:2603.08202; matched against SergShel/MM-TS MMTSClipLoss and, for one number, open_clip's ClipLoss). A large
    number, such as 0.5, is the high-temperature InfoNCE of the xNCE paper: search_spaces/high_temperature.yaml.

    Mixing (xNCE, arXiv:2607.10698). Its exact formula was not public when this was written: THIS PARAMETERISATION IS
    OURS, built from what is known (intra-modal negatives join the denominator, r_mix sets their share, the positive
    stays cross-modal). `weighted`: a = 1 - r_mix, b = r_mix. `replace`: b_ij is 1 with chance r_mix, a_ij = 1 - b_ij,
    drawn anew at each call and for each direction from `generator`; its mean denominator is that of `weighted`, so its
    mean loss is at most that one. An item is never its own negative. r_mix = 0 is exactly InfoNCE.

    Angular margin (AdapACSE, arXiv:2403.17486). f(cos x) = cos(x - d_ij) with d_ij = angular_margin |1 - q_ij|, where
    q_ij is the teacher's cosine of i and j: what the teacher finds less similar becomes a harder negative. The
    positive is not moved. `gate` is the published code (an angle up to angular_margin is left alone: f jumps there),
    `floor` is max(x - d_ij, 0). Matched against duyngtr16061999/KDMCSE: one branch is one call with
    directions="image_to_text", anchors first. One published review states the margin's direction the other way round;
    code and figures agree with this one.

    Filter (same paper). j is kept iff its teacher cosine is at most the threshold; the positive always is. The cosine
    is q_ij, as the paper's text branch has it; the published code filters by cross-modal cosines instead, which
    `filter_teacher` = (rows_BE, columns_BE) gives: image i / text j by rows_i.columns_j. The released script leaves the
    filter off and compares unnormalised products; here all are unit rows, and the filter is on when a threshold is
    given. When all negatives of an anchor are removed its loss is 0, with zero gradients, the temperature's too.

    Teacher. Under soft_labels `text` and `image`, `teacher_BE` are the unit rows that both directions use. Under `code`
    and `paper` it is a pair, (of the images, of the captions), and each direction has its own cosines, as the two
    branches of KDMCSE have: where captions are ranked q_ij is caption_i.caption_j; where images are, image_i.image_j
    (code) or caption_i.image_j (paper, anchor first: both encoders must share a space).

    Units: temperatures and cosines are dimensionless, angles radian. On several workers (`group`) all inputs are this
    worker's rows; loss and gradients, after the mean over workers, are those of the whole batch.
    Stats: temperature_min, _mean, _max; filtered_share and same_id_share of the B(B-1) ordered pairs; intra_count, the
    intra-modal negatives per anchor (expected number, if weighted).
    Raises ValueError on shapes that do not fit, a temperature that is not positive, an unknown choice, a margin or
    filter without teacher, and `replace` without generator.
    """
    import torch

    from mmts_ray import kernels

    checked_batch(image_BD, text_BD, group=group)
    checked_choice(
        mix_mode=(mix_mode, MIX_MODE),
        angle_edge=(angle_edge, ANGLE_EDGE),
        soft_labels=(soft_labels, SOFT_LABELS),
        directions=(directions, DIRECTIONS),
        impl=(impl, IMPL),
    )
    by_branch = soft_labels in ("code", "paper")
    filters = filter_threshold is not None or (by_branch and filter_threshold_image is not None)
    uses_teacher = angular_margin > 0 or (filters and filter_teacher is None)
    if uses_teacher:
        _checked_teacher(teacher_BE, soft_labels, "angular_margin" if angular_margin > 0 else "filter_threshold")
    if r_mix > 0 and mix_mode == "replace" and generator is None:
        raise ValueError("loss.mix_mode replace draws its negatives: pass generator, seeded for this purpose")

    with torch.autocast(image_BD.device.type, enabled=False):
        image_BD, text_BD = kernels.at_least_float32(image_BD, text_BD)
        temperature_B = per_pair("temperature", temperature, image_BD)
        options: dict[str, Any] = {
            "r_mix": r_mix,
            "generator": generator if mix_mode == "replace" else None,
            "angular_margin": angular_margin,
            "angle_edge": angle_edge,
            "ids_B": ids_B,
            "with_stats": with_stats,
            "impl": impl,
            "group": group,
        }
        if filter_teacher is not None:
            filter_teacher = (filter_teacher[0].detach().to(image_BD), filter_teacher[1].detach().to(image_BD))
        branches: list[tuple[str, Any, float | None]] = [(directions, None, filter_threshold)]
        if uses_teacher and isinstance(teacher_BE, tuple):
            image_BE, text_BE = (x.detach().to(image_BD) for x in teacher_BE)
            threshold_image = filter_threshold if filter_threshold_image is None else filter_threshold_image
            # image i stands in row i of a matrix: caption_j.image_i where text j is the anchor
            of_images = image_BE if soft_labels == "code" else (image_BE, text_BE)
            both = [("image_to_text", text_BE, filter_threshold), ("text_to_image", of_images, threshold_image)]
            branches = [branch for branch in both if directions in ("both", branch[0])]
        elif uses_teacher and isinstance(teacher_BE, torch.Tensor):
            branches = [(directions, teacher_BE.detach().to(image_BD), filter_threshold)]
        losses, parts = [], []
        for way, own_teacher, threshold in branches:
            loss, part = kernels.softmax_loss(
                image_BD,
                text_BD,
                temperature_B,
                directions=way,
                teacher_BE=own_teacher,
                filter_threshold=threshold,
                filter_teacher=filter_teacher,
                **options,
            )
            losses.append(loss)
            parts.append(part)
        loss, stats = losses[0], parts[0]
        if len(branches) > 1:
            loss = 0.5 * (losses[0] + losses[1])
            stats = {name: 0.5 * (parts[0].get(name, 0.0) + parts[1].get(name, 0.0)) for name in parts[0] | parts[1]}
        if with_stats:
            stats |= spread("temperature", temperature_B, group)
    return LossOut(loss, stats)


def _checked_teacher(teacher_BE: "Tensor | tuple[Tensor, Tensor] | None", soft_labels: str, wants: str) -> None:
    by_branch = soft_labels in ("code", "paper")
    if teacher_BE is None:
        raise ValueError(f"loss.{wants} needs teacher similarities: pass teacher_BE, unit rows of frozen features")
    if isinstance(teacher_BE, tuple) != by_branch:
        legal = "a pair of tensors (images, captions)" if by_branch else "one tensor"
        raise ValueError(f"teacher_BE: loss.soft_labels {soft_labels} needs {legal}")
    if soft_labels == "paper" and teacher_BE[0].shape[1] != teacher_BE[1].shape[1]:
        widths = f"{teacher_BE[0].shape[1]} and {teacher_BE[1].shape[1]}"
        raise ValueError(
            f"loss.soft_labels: paper compares captions with images, whose features have {widths} dimensions; "
            "legal are code, text, image, or encoders that share a space"
        )
