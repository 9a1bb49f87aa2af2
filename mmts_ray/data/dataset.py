"""What every data set is: pictures on demand, caption rows, a split that never divides an id.

Shapes: N images, M caption rows (pairs), U unique captions, I and T feature dimensions.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mmts_ray.data.drops import Drops

if TYPE_CHECKING:
    from PIL.Image import Image

    from mmts_ray.data.relevance import Relevance

SPLITS = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = range(3)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Images, captions and how they pair.

    `image(i)` opens picture i in RGB. A data set of ready features has no pictures: it carries `image_features_NI`,
    `text_features_UT` and `text_M` instead, or the image features alone, or `stand_in`, which makes them from the text
    features of each image's own caption. Images with equal `id_N` are the same thing (never each other's negatives).
    """

    name: str
    captions: Sequence[str]  # (M,); empty for ready features without captions
    image_M: np.ndarray  # int32: image of each caption row
    split_N: np.ndarray  # int8: 0 train, 1 validation, 2 test
    id_N: np.ndarray  # int32
    image_ids: Sequence[str]  # (N,) for messages
    row_M: np.ndarray  # int64: row number in the source
    drops: Drops
    images_fingerprint: str  # changes when a picture or their order changes
    image: "Callable[[int], Image | list[Image]] | None" = None
    class_N: np.ndarray | None = None  # int32 into class_names
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    credits: tuple[str, ...] = ()  # whom to name when the data are used
    image_features_NI: np.ndarray | None = None
    image_source: str = "given"  # what image features are that no encoder of ours made
    of_frames: bool = False  # `image(i)` opens a list of pictures, whose features are averaged
    stand_in: Callable[[np.ndarray], np.ndarray] | None = None  # (N, E) -> (N, I)
    text_features_UT: np.ndarray | None = None
    text_M: np.ndarray | None = field(default=None)
    relevance: "Relevance | None" = None  # where captions are right by degrees
    listed: Sequence[str] = ()  # (C,) captions that all images share, as `relevance` has them

    @property
    def dropped(self) -> dict[str, int]:
        """Rows left out so far, by reason."""
        return self.drops.counts()

    @property
    def fingerprint(self) -> str:
        """Identity of pictures, captions, pairing, split and classes: 64 hex digits."""
        return digest(
            self.images_fingerprint,
            self.captions,
            self.image_M,
            self.text_M,
            self.split_N,
            self.id_N,
            self.class_N,
            self.listed,
            self.relevance.fingerprint if self.relevance is not None else None,
        )


def digest(*parts: str | Iterable[str] | np.ndarray | None) -> str:
    """SHA-256 of texts, lists of texts and arrays, each with its length, type and shape; 64 hex digits."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            total.update(f"{part.dtype.str}{part.shape}".encode())
            total.update(np.ascontiguousarray(part).data)
        elif part is None:
            total.update(b"none")
        else:
            texts = [part] if isinstance(part, str) else list(part)
            total.update(f"{len(texts)}".encode())
            for text in texts:
                raw = text.encode("utf8", errors="surrogatepass")
                total.update(f":{len(raw)}:".encode() + raw)
    return total.hexdigest()


def split_by_id(
    ids: Iterable[str], *, seed: int, validation_share: float, test_share: float, source: str
) -> dict[str, int]:
    """The split of each distinct id: the sorted ids in a seeded random order, cut at the shares.

    The order of the rows is irrelevant. A part with a share above 0 gets at least one id. Raises ValueError when
    there are too few ids for that, or no training share is left.
    """
    distinct = sorted(set(ids))
    count = len(distinct)
    if validation_share <= 0 or validation_share + test_share >= 1:
        raise ValueError(
            f"validation_share {validation_share:g} and test_share {test_share:g} leave no data to train on or to "
            "choose by; legal is validation_share > 0 and a sum below 1"
        )
    tests = int(test_share > 0)
    if count < 2 + tests:
        raise ValueError(f"{source}: {count} distinct ids are too few to split in {2 + tests} parts")
    # rounded first: 1 - 0.1 - 0.1 is a hair below 0.8
    train_end = int(round((1 - validation_share - test_share) * count, 6))
    validation_end = int(round((1 - test_share) * count, 6))
    train_end = min(max(train_end, 1), count - 1 - tests)
    validation_end = min(max(validation_end, train_end + 1), count - tests)
    order = np.random.default_rng(seed).permutation(count)
    found = {}
    for position, index in enumerate(order.tolist()):
        part = TRAIN if position < train_end else VALIDATION if position < validation_end else TEST
        found[distinct[index]] = part
    return found


def number_classes(names: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """(class of each entry, sorted class names)."""
    distinct = sorted(set(names))
    position = {name: index for index, name in enumerate(distinct)}
    return np.array([position[name] for name in names], dtype=np.int32), tuple(distinct)


def joined(left_P: np.ndarray, right_P: np.ndarray, *, lefts: int, rights: int) -> tuple[np.ndarray, np.ndarray]:
    """(group of each left number, of each right one): what the pairs connect, however indirectly, is one group."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(left_P), dtype=bool), (left_P, lefts + right_P)), shape=(lefts + rights,) * 2)
    _, group = connected_components(links, directed=False)
    return group[:lefts], group[lefts:]
