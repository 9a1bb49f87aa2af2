"""Performance profiles: the share of runs above each score, over data sets, with bands (after rliable).

Agarwal, Schwarzer, Castro, Courville, Bellemare, arXiv:2108.13264. Every data set counts the same, whatever its number
of seeds. The reference that scores are set against is drawn again with them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .interval import LEVEL

RESAMPLES = 1000


@dataclass(frozen=True)
class Profile:
    """`share` (t,) of runs whose score is at least each of the thresholds, and its limits, each by itself."""

    share: np.ndarray
    lo: np.ndarray
    hi: np.ndarray


def profiles(
    blocks: Sequence[Mapping[str, np.ndarray]],
    reference: str,
    thresholds: np.ndarray,
    rng: np.random.Generator,
    better: int = 1,
) -> dict[str, Profile]:
    """The profile of each arm; a block is a data set: arm -> scores (k,), in the order of the seeds that all share.

    Scores are positive, and divided by the mean of the `reference` arm on their data set (its inverse where smaller is
    better). Stratified bootstrap: seeds are drawn again within each data set, the same ones for all arms, and blurred,
    or a handful of seeds would have no tails. Where no run, or every run, is above a threshold the limit is exact.
    """
    arms = list(blocks[0])
    scores = [np.stack([np.asarray(block[arm], dtype=float) for arm in arms]) for block in blocks]
    at = arms.index(reference)
    found = _shares([own[:, None, :] for own in scores], at, thresholds, better)[:, 0]
    resampled = _shares([_again(own, rng) for own in scores], at, thresholds, better)
    lo, hi = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1)
    # if all of n independent runs fail, their mean chance is below this; that of unlike runs is lower still
    edge = 1 - ((1 - LEVEL) / 2) ** (1 / (len(scores) * min(own.shape[1] for own in scores)))
    lo = np.where(found >= 1, np.minimum(lo, 1 - edge), np.minimum(lo, found))
    hi = np.where(found <= 0, np.maximum(hi, edge), np.maximum(hi, found))
    return {arm: Profile(found[i], lo[i], hi[i]) for i, arm in enumerate(arms)}


def _again(own: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(arms, resamples, k) from the scores (arms, k) of a data set: smoothed, with their variance."""
    k, centre = own.shape[1], own.mean(1)[:, None, None]
    again = (own[:, rng.integers(k, size=(RESAMPLES, k))] - centre) * np.sqrt(k / (k - 1))
    width = k**-0.2  # of the kernel, in standard deviations
    blur = width * own.std(1, ddof=1)[:, None, None] * rng.standard_normal((RESAMPLES, k))
    return centre + (again + blur) / np.sqrt(1 + width**2)


def _shares(scores: Sequence[np.ndarray], at: int, thresholds: np.ndarray, better: int) -> np.ndarray:
    """(arms, resamples, t) from (arms, resamples, k) per data set."""
    total = np.zeros((*scores[0].shape[:2], len(thresholds)))
    for own in scores:
        level = own[at].mean(-1)[:, None]
        # the reference lies too close to a mean that is its own
        near = level + (own[at] - level) * np.sqrt(own.shape[-1] / (own.shape[-1] - 1))
        own = np.concatenate([own[:at], near[None], own[at + 1 :]])
        relative = own / level if better > 0 else level / own
        ordered = np.sort(relative, axis=-1)
        for arm in range(len(total)):
            for row in range(total.shape[1]):
                below = np.searchsorted(ordered[arm, row], thresholds - 1e-12, side="left")
                total[arm, row] += 1 - below / own.shape[-1]
    return total / len(scores)
