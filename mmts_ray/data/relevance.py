"""How relevant a caption is to an image when there are degrees: from class keys, without the matrix of all pairs.

Shapes: N images, C listed captions, K distinct keys (a verb class with a set of noun classes), V noun classes.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np

from mmts_ray.data.dataset import digest


@dataclass(frozen=True)
class Relevance:
    """The key of every image and of every caption of a list that is shared by all images.

    A listed caption is for one split: in training a caption that may be drawn, elsewhere one that is ranked. The whole
    matrix of 67,217 training clips and 15,989 captions would be 4.3 GB; 6,000 keys say the same.
    """

    verb_K: np.ndarray  # int32
    noun_KV: np.ndarray  # bool: the noun classes of each key
    key_N: np.ndarray  # int32
    key_C: np.ndarray  # int32
    split_C: np.ndarray  # int8

    @property
    def fingerprint(self) -> str:
        """Identity of keys, images and captions: 64 hex digits."""
        return digest(self.verb_K, self.noun_KV, self.key_N, self.key_C, self.split_C)

    def between(self, left_k: np.ndarray, right_k: np.ndarray) -> np.ndarray:
        """Relevancy of two lists of keys, (left, right), float64 in [0, 1].

        R = (1[verb_l = verb_r] + |nouns_l & nouns_r| / |nouns_l | nouns_r|) / 2, exactly 1 for equal keys; two keys
        without any noun share none. Source: the multi-instance retrieval of EPIC-KITCHENS-100, arXiv:2006.13256.
        """
        left_KV, right_KV = (self.noun_KV[k].astype(np.float32) for k in (left_k, right_k))
        common = (left_KV @ right_KV.T).astype(np.float64)  # small whole numbers: exact in float32
        either = left_KV.sum(1)[:, None] + right_KV.sum(1)[None, :] - common
        same_verb = self.verb_K[left_k][:, None] == self.verb_K[right_k][None, :]
        return 0.5 * (same_verb + common / np.maximum(either, 1))


def numbered(keys: Sequence[tuple[int, Set[int]]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(verb_K, noun_KV, the key of each entry) of entries (verb class, noun classes)."""
    plain = [(verb, tuple(sorted(nouns))) for verb, nouns in keys]
    distinct = sorted(set(plain))
    position = {key: index for index, key in enumerate(distinct)}
    classes = sorted({noun for _, nouns in distinct for noun in nouns})
    column = {noun: index for index, noun in enumerate(classes)}
    noun_KV = np.zeros((len(distinct), len(classes)), dtype=bool)
    for index, (_, nouns) in enumerate(distinct):
        noun_KV[index, [column[noun] for noun in nouns]] = True
    verb_K = np.array([verb for verb, _ in distinct], dtype=np.int32)
    return verb_K, noun_KV, np.array([position[key] for key in plain], dtype=np.int32)
