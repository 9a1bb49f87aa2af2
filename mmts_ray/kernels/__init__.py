"""The arithmetic of the objectives: exact, one similarity product shared by both directions, on one worker or many.

Embeddings are unit rows, so products are cosines. Callers pass float32 or float64 (`at_least_float32`) and switch
autocast off: half-precision logits at temperature 0.01 lose the gradient's second digit.

`impl` says how a (B, B) matrix is held; values and gradients are the same to rounding:
    dense    whole, by autograd: about 5 B^2 numbers
    cached   in tiles; what the gradient needs of each is kept: 1 to 4 B^2 numbers
    stream   in tiles that are formed again for the gradient: memory grows with B, one more product per similarity
    auto     the fastest that fits: see `choice.py`
`group` is a torch.distributed process group: every argument is then this worker's shard of the batch, the loss is that
of the whole batch, and gradients are exact after DistributedDataParallel's mean.

angles.py   cosines and smaller angles         dense.py    whole matrices
masks.py    ids, picks, floors                 tiles.py    rectangles and their bookkeeping
choice.py   which form                         softmax.py  the softmax objective in tiles
workers.py  rows spread over workers           pairs.py    objectives whose pairs are independent, in tiles
"""

from mmts_ray.kernels.angles import at_least_float32, gram
from mmts_ray.kernels.choice import hinge_loss, potential_loss, sigmoid_loss, softmax_loss
from mmts_ray.kernels.dense import log_potential, symmetric_cross_entropy
from mmts_ray.kernels.masks import mix_masks, same_id, same_id_pairs, share
from mmts_ray.kernels.workers import Shard, gather_rows, mean_rows

__all__ = [
    "Shard",
    "at_least_float32",
    "gather_rows",
    "gram",
    "hinge_loss",
    "log_potential",
    "mean_rows",
    "mix_masks",
    "potential_loss",
    "same_id",
    "same_id_pairs",
    "share",
    "sigmoid_loss",
    "softmax_loss",
    "symmetric_cross_entropy",
]
