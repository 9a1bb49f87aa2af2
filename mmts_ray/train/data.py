"""What trials train on, kept between them: features on a device, groups, splits.

Shapes: N images, M caption rows (image-caption pairs), U unique captions, I and T feature dims.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmts_ray import prepare
from mmts_ray.cache import default_cache_dir
from mmts_ray.features import Frozen, Kept
from mmts_ray.groups import Groups, cached

TRAIN, VALIDATION, TEST = 0, 1, 2
BLOCK_KEYS = 256  # keys whose relevancy to every listed caption is looked at together


@dataclass(frozen=True)
class Split:
    """The pairs of one split, renumbered: images and unique captions count from 0."""

    images: torch.Tensor  # (N',) rows of the feature matrix
    texts: torch.Tensor  # (U',)
    pair_image: torch.Tensor  # (M',) into images
    pair_text: torch.Tensor  # (M',) into texts
    rows: np.ndarray  # (M',) caption rows of the data


@dataclass(frozen=True)
class Gallery:
    """Captions that a split's images are ranked against by degrees: R = relevancy_JL[row_N[n], column_C[c]]."""

    texts: torch.Tensor  # (C',) rows of the text features
    relevancy_JL: np.ndarray
    row_N: np.ndarray
    column_C: np.ndarray


@dataclass(frozen=True)
class Relevant:
    """Which captions a training image may be given: those of its key, as one list of unique captions cut in parts."""

    key_M: np.ndarray  # (M,) which part of the list a caption row draws from
    start_K: np.ndarray
    count_K: np.ndarray
    texts: np.ndarray
    own_M: np.ndarray  # unique caption of each row, for keys without any

    def draw(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A unique caption for each caption row, every listed one that is relevant being equally likely."""
        key = self.key_M[rows]
        place = self.start_K[key] + (rng.random(len(rows)) * self.count_K[key]).astype(np.int64)
        return np.where(self.count_K[key] > 0, self.texts[np.minimum(place, len(self.texts) - 1)], self.own_M[rows])


@dataclass(frozen=True)
class Rows:
    """Rows of an array that stays in its file; those that were dropped from the data are passed over."""

    array: np.ndarray
    rows_N: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.array.shape[1]

    def __len__(self) -> int:
        return len(self.array) if self.rows_N is None else len(self.rows_N)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        """The rows of an index, on its device."""
        own = index.cpu().numpy()
        return torch.from_numpy(self.array[own if self.rows_N is None else self.rows_N[own]]).to(index.device)


@dataclass
class TrainData:
    """Features on a device and what is derived from them once: standardised images, groups, splits."""

    frozen: Frozen
    device: str = "cpu"
    cache_dir: Path | None = None
    _kept: dict[Any, Any] = field(default_factory=dict)

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.array(array)).to(self.device)  # a copy: the object store is read-only

    def images(self, *, standardise: bool) -> torch.Tensor:
        """Image features (N, I); standardised with mean and deviation of the training images."""

        def make() -> torch.Tensor:
            image_NI = self._tensor(self.frozen.image_NI)
            if not standardise:
                return image_NI
            mean_I, deviation_I = self.standard()
            return (image_NI - mean_I) / deviation_I

        return self._once(("images", standardise), make)

    def standard(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and deviation of the training images' features, (I,) each; the deviation of a constant one is infinite.

        A constant feature carries nothing: it is left at 0 instead of being divided by 0.
        """
        train_NI = self._tensor(self.frozen.image_NI)[self._tensor(self.frozen.split_N == TRAIN)]
        deviation_I = train_NI.std(dim=0, correction=0)
        return train_NI.mean(dim=0), torch.where(deviation_I > 1e-6, deviation_I, torch.inf)

    def texts(self) -> torch.Tensor:
        """Text features of the unique captions (U, T)."""
        return self._once("texts", lambda: self._tensor(self.frozen.text_UT))

    def inputs(self) -> tuple[Rows, ...]:
        """Rows of pixels (N, 3 S S), uint8, and of token ids (U, L), int32, for a model that is trained on them.

        A third array holds the pixels of the zero-shot classification, if they are not the data's own.

        They lie in files of the cache, which all processes of a machine share; where they are missing, as on a machine
        that joins a cluster, they are made anew from the data. ValueError when that gives others.
        """

        def make() -> tuple[Rows, ...]:
            if self.frozen.inputs is None:
                raise ValueError("model.name: this model reads pictures, and these data are features only")
            shown = self.frozen.zeroshot.pixels if self.frozen.zeroshot is not None else None
            wanted = (*self.frozen.inputs, *((shown,) if shown is not None else ()))
            opened = self._opened(wanted)
            return tuple(Rows(array, kept.rows_N) for array, kept in zip(opened, wanted, strict=True))

        return self._once("inputs", make)

    def states(self) -> np.ndarray | None:
        """States of all sentences before a student's first trained layer (L, E); None when all of it is trained.

        Like `inputs`, they lie in a file of the cache.
        """
        kept = self.frozen.sentences.states
        return None if kept is None else self._once("states", lambda: self._opened((kept,))[0])

    def _opened(self, entries: Sequence[Kept]) -> list[np.ndarray]:
        """Arrays of the cache, made anew where this machine does not have them."""
        folder = self.cache_dir if self.cache_dir is not None else default_cache_dir()
        found = [kept.open(folder) for kept in entries]
        if any(array is None for array in found):
            again = prepare.features(self.frozen.encoding, cache_dir=folder, quiet=True)
            if again.key != self.frozen.key:
                raise ValueError(f"data: here they are others (key {again.key}) than the study's {self.frozen.key}")
            found = [kept.open(folder) for kept in entries]
        return [array for array in found if array is not None]

    def teacher(self, kind: str, *, centre: bool = False) -> torch.Tensor:
        """Unit rows of the frozen encoder that gives soft labels: text (U, T) or image (N, I).

        `centre` takes the mean of the training images off the image features first: their cosines then lie around 0.
        """

        def make() -> torch.Tensor:
            features = self.texts() if kind == "text" else self.images(standardise=False)
            if not features.shape[1]:
                raise ValueError(f"loss.soft_labels: {kind} needs features, and model.{kind}_encoder is none")
            if centre and kind == "image":
                features = features - features[self._tensor(self.frozen.split_N == TRAIN)].mean(dim=0)
            return torch.nn.functional.normalize(features, dim=1)

        return self._once(("teacher", kind, centre), make)

    def groups(self, name: str, kwargs: dict[str, Any]) -> Groups:
        """How common each caption row is; computed once and kept beside the features."""
        key = ("groups", name, tuple(sorted(kwargs.items())))
        return self._once(key, lambda: cached(self.frozen, name, kwargs, self.cache_dir))

    def split(self, which: int) -> Split:
        def make() -> Split:
            rows = np.flatnonzero(self.frozen.split_N[self.frozen.image_M] == which)
            images, pair_image = np.unique(self.frozen.image_M[rows], return_inverse=True)
            texts, pair_text = np.unique(self.frozen.text_M[rows], return_inverse=True)
            index = {"images": images, "texts": texts, "pair_image": pair_image, "pair_text": pair_text}
            return Split(**{k: self._tensor(v.astype(np.int64)) for k, v in index.items()}, rows=rows)

        return self._once(("split", which), make)

    def relevant(self, above: float) -> Relevant:
        """What `train.captions: relevant` draws from: listed training captions with a relevancy above the bound."""

        def make() -> Relevant:
            relevance, text_C = self.frozen.relevance, self.frozen.text_C
            if relevance is None or text_C is None:
                data = self.frozen.names.get("data", "the data")
                raise ValueError(
                    f"train.captions: relevant needs graded relevancy, which {data} lacks; legal are one, all"
                )
            pool_C = np.flatnonzero(relevance.split_C == TRAIN)
            keys, key_N = np.unique(relevance.key_N, return_inverse=True)
            in_training = np.unique(key_N[self.frozen.split_N == TRAIN])
            others, column_C = np.unique(relevance.key_C[pool_C], return_inverse=True)
            count_K = np.zeros(len(keys), dtype=np.int64)
            parts = []
            for first in range(0, len(in_training), BLOCK_KEYS):  # all keys by all captions at once would be gigabytes
                block = in_training[first : first + BLOCK_KEYS]
                chosen_bC = (relevance.between(keys[block], others) > above)[:, column_C]
                count_K[block] = chosen_bC.sum(1)
                parts.append(text_C[pool_C[np.nonzero(chosen_bC)[1]]])
            start_K = np.cumsum(count_K) - count_K
            key_M = key_N[self.frozen.image_M]
            texts = np.concatenate(parts) if parts else np.zeros(0, np.int32)
            if not len(texts):
                raise ValueError(
                    f"train.relevancy_above: no listed caption is more relevant than {above:g} to any image"
                )
            return Relevant(key_M, start_K, count_K, texts, self.frozen.text_M)

        return self._once(("relevant", above), make)

    def gallery(self, which: int) -> Gallery | None:
        """The listed captions of a split that are fully relevant to one of its images; None without relevancy."""

        def make() -> Gallery | None:
            relevance, text_C = self.frozen.relevance, self.frozen.text_C
            if relevance is None or text_C is None:
                return None
            listed = np.flatnonzero(relevance.split_C == which)
            left, row_N = np.unique(relevance.key_N[self.split(which).images.cpu().numpy()], return_inverse=True)
            right, column = np.unique(relevance.key_C[listed], return_inverse=True)
            relevancy_JL = relevance.between(left, right)
            kept = np.flatnonzero((relevancy_JL == 1).any(0)[column])
            if not len(kept):
                return None
            return Gallery(self._tensor(text_C[listed[kept]].astype(np.int64)), relevancy_JL, row_N, column[kept])

        return self._once(("gallery", which), make)
