"""Which pairs count: same ids, and intra-modal picks that can be drawn again for any rectangle of the matrix.

Masks are float arithmetic rather than booleans and `where`, which cost four to ten times an addition on a CPU.

Shapes: B batch, R rows and C columns of a rectangle of the (B, B) matrix.
"""

import math

import torch
from torch import Tensor

# Added to a candidate that is not one: finite, so that no 0 * inf arises, and below any cosine at any temperature.
FLOOR = -1e30
# e^x = 2^(x LOG2E): torch's exp2 costs a quarter of its exp on a CPU, and a fortieth where the result is subnormal.
LOG2E = 1 / math.log(2)


def same_id(ids_B: Tensor) -> Tensor:
    """Which pairs (B, B) carry the same id, the diagonal excepted: these are never negatives."""
    return (ids_B[:, None] == ids_B[None, :]).fill_diagonal_(False)


def same_id_pairs(ids_B: Tensor) -> Tensor:
    """How many ordered pairs i != j carry the same id, 0-d, without forming them."""
    counts = torch.unique(ids_B, return_counts=True)[1]
    return (counts * (counts - 1)).sum()


def share(pairs_BB: Tensor) -> Tensor:
    """Share of the B(B-1) ordered pairs that a mask without diagonal holds, 0-d; 0 for a batch of one."""
    batch = len(pairs_BB)
    return pairs_BB.sum() / max(1, batch * (batch - 1))


def floor_of(drop_BB: Tensor, like_BB: Tensor) -> Tensor:
    """FLOOR where a pair is dropped, else 0."""
    return drop_BB.to(like_BB.dtype).mul_(FLOOR)


def mix_key(generator: torch.Generator, device: torch.device) -> Tensor:
    """The two numbers that decide every pick of one call."""
    return torch.randint(2**62, (2,), generator=generator, device=generator.device).to(device)


def mix_codes(key_2: Tensor, batch: int) -> Tensor:
    """One random word per item: int32 (2, 2, B), by direction (images anchor, texts anchor), anchor and candidate."""
    # SplitMix64 of a counter: the words are those of a sequential generator, yet each can be formed on its own
    word = torch.arange(1, 4 * batch + 1, device=key_2.device).view(batch, 2, 2).permute(1, 2, 0)
    word = (word * -7046029254386353131).add_(key_2[0])
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        word.bitwise_xor_(word >> shift).mul_(factor)
    return (word.add_(key_2[1]) >> 24).to(torch.int32)


def picks(
    row_R: Tensor, column_C: Tensor, r_mix: float, out_RC: Tensor | None = None, spare_RC: Tensor | None = None
) -> Tensor:
    """1 where a hash of both items' words says so, with chance r_mix, else 0: float (..., R, C).

    `out_RC`, of any float type, takes the result; `spare_RC`, float32, lends its memory.
    """
    size = (*row_R.shape, column_C.shape[-1])
    if out_RC is None:
        out_RC = torch.empty(size, dtype=torch.float32, device=row_R.device)
    word_RC, high_RC = (
        torch.empty(size, dtype=torch.int32, device=row_R.device) if lent is None else lent.view(torch.int32)
        for lent in (spare_RC, out_RC if out_RC.dtype == torch.float32 else None)
    )
    torch.bitwise_xor(row_R[..., :, None], column_C[..., None, :], out=word_RC)
    # after the hash "lowbias32" found by C. Wellons; its last step is left out, as only the highest bits decide
    word_RC.mul_(0x7FEB352D)
    word_RC.bitwise_xor_(torch.bitwise_right_shift(word_RC, 15, out=high_RC).bitwise_and_(0x1FFFF))
    word_RC.mul_(-2073254261)  # 0x846CA68B
    # an int32 is uniform in [-2^31, 2^31); comparing floats costs a quarter of comparing integers
    return out_RC.copy_(word_RC).lt_((r_mix - 0.5) * 2**32) if r_mix < 1 else out_RC.fill_(1)


def mix_masks(batch: int, r_mix: float, source: torch.Generator | Tensor) -> Tensor:
    """1 where a negative comes from the anchor's own modality, with chance r_mix each, else 0: float32 (2, B, B).

    [0] is indexed (image anchor, candidate), [1] (candidate, text anchor); the diagonal is always 0. `source` is a key,
    or a generator that yields one.
    """
    key_2 = mix_key(source, source.device) if isinstance(source, torch.Generator) else source
    codes_22B = mix_codes(key_2, batch)
    # rows of the matrix: image anchors, and candidates of text anchors
    rows_2B, columns_2B = (codes.diagonal(dim1=0, dim2=1).T for codes in (codes_22B, codes_22B.flip(1)))
    picks_2BB = picks(rows_2B, columns_2B, r_mix)
    picks_2BB.diagonal(dim1=1, dim2=2).fill_(0)
    return picks_2BB
