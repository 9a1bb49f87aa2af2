"""How good an embedding is: retrieval, the gap between the modalities, alignment, uniformity, head and tail.

Embeddings are unit rows. A split has N images, U unique captions and P pairs (image, caption): `image_P` and `text_P`
are integers into the rows of `image_ND` and `text_UD`. Shares and recalls are in [0, 1]. Torch tensors or numpy arrays
are accepted. Ties and not-a-number similarities count against the model.

Shapes: N images, U unique captions, P pairs, D embedding, Q queries, G gallery.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    Rows = Tensor | np.ndarray

CUTOFFS = (1, 5, 10)
TERCILES = ("tail", "mid", "head")
BLOCK_ELEMENTS = 1 << 22  # similarities held at a time: 16 MB in float32
UNIFORMITY_BLOCK = 128  # rows: small enough to skip nearly half of a symmetric matrix


def ranks(query_QD: "Rows", gallery_GD: "Rows", query_P: "Rows", gallery_P: "Rows") -> "Tensor":
    """How many wrong candidates come before a query's best right one, 0 for a hit at the top: int64 (Q,).

    Pair p says that gallery row gallery_P[p] is right for query query_P[p]; a query may have several right rows, the
    best of which counts, and never competes with the others. Ties are pessimistic: a wrong candidate with the same
    similarity comes first, so that a collapsed embedding scores nothing. A query without a pair has rank -1.
    Memory is bounded: similarities are formed in blocks of queries.
    """
    import torch

    query_QD, gallery_GD = torch.as_tensor(query_QD), torch.as_tensor(gallery_GD)
    query_P, gallery_P = _distinct(query_P, gallery_P, like=query_QD)
    step = max(1, BLOCK_ELEMENTS // max(1, len(gallery_GD)))
    starts = list(range(0, len(query_QD), step))
    ends = torch.searchsorted(query_P, torch.tensor([*starts, len(query_QD)], device=query_P.device)).tolist()
    blocks = []
    for start, first, end in zip(starts, ends, ends[1:]):
        s_bG = query_QD[start : start + step] @ gallery_GD.T
        blocks.append(_ranks_of(s_bG, query_P[first:end] - start, gallery_P[first:end]))
    return torch.cat(blocks)


def _distinct(query_P: "Rows", gallery_P: "Rows", *, like: "Tensor") -> "tuple[Tensor, Tensor]":
    """Each pair once, sorted by query, on the device of `like`."""
    import torch

    gallery_P = torch.as_tensor(gallery_P).long().to(like.device)
    span = int(gallery_P.max()) + 1 if len(gallery_P) else 1
    pair_P = torch.unique(torch.as_tensor(query_P).long().to(like.device) * span + gallery_P)
    return pair_P // span, pair_P % span


def _ranks_of(s_QG: "Tensor", query_P: "Tensor", gallery_P: "Tensor") -> "Tensor":
    """`ranks` from similarities and distinct pairs."""
    import torch

    right_P = s_QG[query_P, gallery_P]
    best_Q = s_QG.new_full((len(s_QG),), -math.inf).scatter_reduce_(0, query_P, right_P, "amax")
    # "not below" rather than "above": true for ties and for NaN.
    before_Q = s_QG.shape[1] - (s_QG < best_Q.unsqueeze(1)).sum(1)
    own_Q = torch.zeros_like(before_Q).scatter_add_(0, query_P, (~(right_P < best_Q[query_P])).long())
    return torch.where(own_Q > 0, before_Q - own_Q, -1)


def _ranks_both(image_ND: "Tensor", text_UD: "Tensor", image_P: "Rows", text_P: "Rows") -> "tuple[Tensor, Tensor]":
    """`ranks` image to text and text to image; while similarities fit in a block, both from one product."""
    if len(image_ND) * len(text_UD) > BLOCK_ELEMENTS:
        return ranks(image_ND, text_UD, image_P, text_P), ranks(text_UD, image_ND, text_P, image_P)
    image_P, text_P = _distinct(image_P, text_P, like=image_ND)
    s_NU = image_ND @ text_UD.T
    return _ranks_of(s_NU, image_P, text_P), _ranks_of(s_NU.T, text_P, image_P)


def retrieval(image_ND: "Rows", text_UD: "Rows", image_P: "Rows", text_P: "Rows") -> dict[str, float]:
    """Recall at 1, 5, 10 and median rank in both directions.

    Image to text: the unique captions are the gallery, and an image hits if any of its captions is among the first K.
    Text to image: the unique captions are the queries, and one hits if any image that carries it is among the first K.
    Keys: i2t_r1, i2t_r5, i2t_r10, i2t_median_rank (1 = first), the same with t2i, and r1, r5, r10, the means of both.
    Ties count against the model. Reference: the retrieval protocol of arXiv:2103.00020 on Flickr30k and COCO.
    """
    import torch

    return _recalls(*_ranks_both(torch.as_tensor(image_ND), torch.as_tensor(text_UD), image_P, text_P))


def _recalls(i2t_N: "Tensor", t2i_U: "Tensor") -> dict[str, float]:
    out: dict[str, float] = {}
    for name, rank_Q in (("i2t", i2t_N), ("t2i", t2i_U)):
        asked_q = rank_Q[rank_Q >= 0].cpu().numpy()
        for k in CUTOFFS:
            out[f"{name}_r{k}"] = _mean(asked_q < k)
        out[f"{name}_median_rank"] = float(np.median(asked_q)) + 1 if len(asked_q) else math.nan
    for k in CUTOFFS:
        out[f"r{k}"] = 0.5 * (out[f"i2t_r{k}"] + out[f"t2i_r{k}"])
    return out


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def by_tercile(i2t_N: "Rows", image_P: "Rows", tercile_P: "Rows") -> dict[str, float]:
    """Image-to-text recall of the images in tail, middle and head groups, from their ranks.

    tercile_P is 0 (tail), 1 (mid) or 2 (head) by the size of each pair's group; other values (unseen) are left out. An
    image whose captions lie in different terciles counts once in each. Keys head_r1, head_r5, head_r10, n_head (images
    counted), the same with mid and tail; a recall over no image is NaN.
    """
    i2t_N, image_P, tercile_P = (_numpy(x) for x in (i2t_N, image_P, tercile_P))
    out: dict[str, float] = {}
    for tercile, name in enumerate(TERCILES):
        member_N = np.zeros(len(i2t_N), dtype=bool)
        member_N[image_P[tercile_P == tercile]] = True
        rank_q = i2t_N[member_N]
        for k in CUTOFFS:
            out[f"{name}_r{k}"] = _mean(rank_q < k)
        out[f"n_{name}"] = float(len(rank_q))
    return out


def _numpy(rows: "Rows") -> np.ndarray:
    return rows if isinstance(rows, np.ndarray) else rows.detach().cpu().numpy()


def modality_distance(image_PD: "Rows", text_PD: "Rows") -> float:
    """Distance of the two modalities' centres, || mean_i u_i - mean_i w_i ||, in [0, 2]; row i of both is pair i.

    Matched against abrar-fahim/contrastive-gap. Reference: arXiv:2203.02053.
    """
    import torch

    centres = [torch.as_tensor(rows_PD).mean(0) for rows_PD in (image_PD, text_PD)]
    return float(torch.linalg.vector_norm(centres[0] - centres[1]))


def alignment(image_PD: "Rows", text_PD: "Rows") -> float:
    """Mean squared distance of positive pairs, mean_i |u_i - w_i|^2, in [0, 4]. Reference: arXiv:2005.10242."""
    import torch

    return float((torch.as_tensor(image_PD) - torch.as_tensor(text_PD)).square().sum(1).mean())


def uniformity(rows_ND: "Rows") -> float:
    """How evenly the rows cover the sphere, log mean_{i<j} exp(-2 |z_i - z_j|^2), in [-8, 0]; lower is more even.

    Exact over all pairs, in blocks of rows, so memory does not grow with N^2. NaN for fewer than two rows.
    Reference: arXiv:2005.10242.
    """
    import torch

    rows_ND = torch.as_tensor(rows_ND)
    count = len(rows_ND)
    if count < 2:
        return math.nan
    total = 0.0
    for start in range(0, count, UNIFORMITY_BLOCK):
        block_bD = rows_ND[start : start + UNIFORMITY_BLOCK]
        # |z_i - z_j|^2 = 2 - 2 z_i.z_j on the sphere; only columns from the block's own on: the matrix is symmetric
        e_bn = (block_bD @ rows_ND[start:].T).mul_(4).sub_(4).exp_()
        size = len(block_bD)
        e_bn[:, :size].fill_diagonal_(0)
        total += float(e_bn[:, size:].sum() + 0.5 * e_bn[:, :size].sum())
    return math.log(total / (count * (count - 1) / 2))


def modality_accuracy(image_PD: "Rows", text_PD: "Rows", *, seed: int) -> float:
    """How well a logistic regression tells the modalities apart: 1 = separated, 0.5 = mixed.

    Both classes are equally large; 80 % of the pairs train it and accuracy is on the other 20 %, split by pair so that
    both members of a pair are on one side. Row i of both is pair i; the split is drawn from `seed`. NaN for fewer than
    two pairs. Reference: arXiv:2405.18570 (its code splits 80/20, its comment says 20/80).
    """
    from sklearn.linear_model import LogisticRegression

    image_PD, text_PD = _numpy(image_PD), _numpy(text_PD)
    pairs = len(image_PD)
    if pairs < 2 or not (np.isfinite(image_PD).all() and np.isfinite(text_PD).all()):
        return math.nan
    order = np.random.default_rng(np.random.SeedSequence([seed, pairs])).permutation(pairs)
    held = max(1, round(0.2 * pairs))

    def both(of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.concatenate([image_PD[of], text_PD[of]]), np.repeat([0, 1], len(of))

    probe = LogisticRegression(max_iter=1000).fit(*both(order[held:]))
    return float(probe.score(*both(order[:held])))


def probe_accuracy(
    train_ND: "Rows", train_class_N: "Rows", held_ND: "Rows", held_class_N: "Rows", *, iterations: int = 1000
) -> float:
    """Share of held-out images whose class a linear probe finds from the embedding, in [0, 1].

    The probe is a multinomial logistic regression (L2, C = 1) on the unit embeddings of the training images. A class
    that training lacks cannot be found and counts as wrong. NaN without held-out images, with fewer than two training
    classes, or when an embedding is not finite. Reference: the linear probe of arXiv:2103.00020.
    """
    import torch
    from sklearn.linear_model import LogisticRegression

    from mmts_ray import kernels

    wide = kernels.at_least_float32(torch.as_tensor(train_ND), torch.as_tensor(held_ND))
    train_ND, held_ND, train_class_N, held_class_N = map(_numpy, (*wide, train_class_N, held_class_N))
    few = len(held_ND) == 0 or len(np.unique(train_class_N)) < 2
    if few or not (np.isfinite(train_ND).all() and np.isfinite(held_ND).all()):
        return math.nan
    probe = LogisticRegression(max_iter=iterations).fit(train_ND, train_class_N)
    return float(probe.score(held_ND, held_class_N))


def zeroshot_top1(image_ND: "Rows", prompts_CPD: "Rows", class_N: "Rows") -> float:
    """Share of images whose own class is the most similar one, in [0, 1].

    A class is the unit mean of the unit embeddings of its P prompts; ties count against the model. NaN without images.
    Reference: the zero-shot classification of arXiv:2103.00020.
    """
    import torch

    image_ND, prompts_CPD = torch.as_tensor(image_ND), torch.as_tensor(prompts_CPD)
    class_CD = torch.nn.functional.normalize(prompts_CPD.mean(1), dim=1)
    class_N = torch.as_tensor(class_N).long().to(image_ND.device)
    rank_N = _ranks_of(image_ND @ class_CD.T, torch.arange(len(class_N), device=image_ND.device), class_N)
    return _mean((rank_N == 0).cpu().numpy())


def evaluate(
    image_ND: "Rows",
    text_UD: "Rows",
    image_P: "Rows",
    text_P: "Rows",
    *,
    tercile_P: "Rows | None" = None,
    final: bool,
    seed: int,
) -> dict[str, float]:
    """All metrics of one split, from unit rows of its images and unique captions.

    Keys: those of `retrieval`; modality_distance and alignment over the pairs; uniformity, the mean of that of the
    images and that of the unique captions; with `tercile_P` those of `by_tercile`; if `final`, modality_accuracy over
    one pair per image (its first), which takes longer than the rest together. Raises ValueError without pairs.
    """
    import torch

    from mmts_ray import kernels

    image_ND, text_UD = kernels.at_least_float32(torch.as_tensor(image_ND), torch.as_tensor(text_UD))
    image_ND, text_UD = image_ND.detach(), text_UD.detach()
    image_P, text_P = (torch.as_tensor(pair_P).long().to(image_ND.device) for pair_P in (image_P, text_P))
    if not len(image_P) or len(image_P) != len(text_P):
        raise ValueError(f"pairs: {len(image_P)} images and {len(text_P)} captions; legal is one of each, at least one")
    i2t_N, t2i_U = _ranks_both(image_ND, text_UD, image_P, text_P)
    out = _recalls(i2t_N, t2i_U)
    image_PD, text_PD = image_ND[image_P], text_UD[text_P]
    out["modality_distance"] = modality_distance(image_PD, text_PD)
    out["alignment"] = alignment(image_PD, text_PD)
    out["uniformity"] = 0.5 * (uniformity(image_ND) + uniformity(text_UD))
    if tercile_P is not None:
        out |= by_tercile(i2t_N, image_P, tercile_P)
    if final:
        first_n = np.unique(_numpy(image_P), return_index=True)[1]
        out["modality_accuracy"] = modality_accuracy(image_PD[first_n], text_PD[first_n], seed=seed)
    return out
