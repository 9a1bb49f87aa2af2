"""The objectives. Each is one function of a batch of paired embeddings; its keyword arguments are its parameters.

`image_BD[i]` and `text_BD[i]` are a positive pair, both unit rows (the caller normalises). A loss returns the value to
minimise and statistics for the training traces. What `schedule.*` drives is named in SCHEDULED: a temperature, which is
dimensionless and divides cosines, or a margin, a difference of cosines. It may be
    a number                     fixed
    a 0-d tensor                 learnable: its gradient is exact
    a tensor (B,)                one value per pair, used wherever that pair is the anchor, in both directions (MM-TS)

`ids_B` (integers) marks pairs that show the same thing, such as the captions of one image: they are never each other's
negatives. Half-precision embeddings are widened to float32, whatever the autocast state. A batch of one pair has no
negatives: its softmax and hinge losses are 0 with zero gradients. NaN in, NaN out.

`group` is a torch.distributed process group: tensors with a B are then this worker's share, of any size, and the loss
and, after the mean over workers that data parallelism takes, every gradient are those of the whole batch in one
process. `impl` says how a loss with a kernel is computed, never what; arccon, isogclr, sms and triplet have none and
hold a few (B, B) matrices.

LOSSES can be searched, by `loss.name`, on any image-text data, SENTENCE_LOSSES with a model that reads sentences: they
take two views of each, and several heads. `n_pair` is a function only: its rows are not unit rows.

Shapes: B batch, D embedding, E teacher features.
"""

from collections.abc import Callable

from mmts_ray.losses.arccon import arccon
from mmts_ray.losses.info_nce import info_nce
from mmts_ray.losses.isogclr import isogclr, isogclr_state
from mmts_ray.losses.kdmcse import kdmcse
from mmts_ray.losses.max_margin import max_margin
from mmts_ray.losses.mcse import mcse
from mmts_ray.losses.n_pair import n_pair
from mmts_ray.losses.output import LossOut, advance
from mmts_ray.losses.regularized_info_nce import regularized_info_nce
from mmts_ray.losses.siglip import siglip
from mmts_ray.losses.simcse import simcse
from mmts_ray.losses.sms import sms
from mmts_ray.losses.triplet import triplet

LOSSES: dict[str, Callable[..., LossOut]] = {
    "info_nce": info_nce,
    "max_margin": max_margin,
    "siglip": siglip,
    "regularized_info_nce": regularized_info_nce,
    "arccon": arccon,
    "isogclr": isogclr,
    "sms": sms,
    "triplet": triplet,
}

# Of two views of each sentence, and of what the heads make of them, image and caption.
SENTENCE_LOSSES: dict[str, Callable[..., LossOut]] = {"simcse": simcse, "mcse": mcse, "kdmcse": kdmcse}

# The argument of each loss that schedule.* drives.
SCHEDULED = {
    "info_nce": "temperature",
    "max_margin": "margin",
    "siglip": "temperature",
    "regularized_info_nce": "temperature",
    "arccon": "temperature",
    "isogclr": "temperature",
    "sms": "margin",
    "triplet": "margin",
    **dict.fromkeys(SENTENCE_LOSSES, "temperature"),
}

# Losses that remember something per training sample: from the numbers of images and captions to a fresh state.
STATE = {"isogclr": isogclr_state}

__all__ = [
    "LOSSES",
    "SCHEDULED",
    "SENTENCE_LOSSES",
    "STATE",
    "LossOut",
    "advance",
    "arccon",
    "info_nce",
    "isogclr",
    "isogclr_state",
    "kdmcse",
    "max_margin",
    "mcse",
    "n_pair",
    "regularized_info_nce",
    "siglip",
    "simcse",
    "sms",
    "triplet",
]
