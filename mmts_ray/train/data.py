"""What trials train on, kept between them: features on a device, groups, splits.

Shapes: N images, M caption rows (image-caption pairs), U unique captions, I and T feature dims.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmts_ray.features import Frozen
from mmts_ray.groups import Groups, cached

TRAIN, VALIDATION, TEST = 0, 1, 2


@dataclass(frozen=True)
class Split:
    """The pairs of one split, renumbered: images and unique captions count from 0."""

    images: torch.Tensor  # (N',) rows of the feature matrix
    texts: torch.Tensor  # (U',)
    pair_image: torch.Tensor  # (M',) into images
    pair_text: torch.Tensor  # (M',) into texts
    rows: np.ndarray  # (M',) caption rows of the data


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
            train_NI = image_NI[self._tensor(self.frozen.split_N == TRAIN)]
            deviation_I = train_NI.std(dim=0, correction=0)
            # a constant feature (deviation 0) carries nothing: leave it at 0 instead of dividing by 0
            return (image_NI - train_NI.mean(dim=0)) / torch.where(deviation_I > 1e-6, deviation_I, torch.inf)

        return self._once(("images", standardise), make)

    def texts(self) -> torch.Tensor:
        """Text features of the unique captions (U, T)."""
        return self._once("texts", lambda: self._tensor(self.frozen.text_UT))

    def teacher(self, kind: str) -> torch.Tensor:
        """Unit rows of the frozen encoder that gives soft labels: text (U, T) or image (N, I)."""

        def make() -> torch.Tensor:
            features = self.texts() if kind == "text" else self.images(standardise=False)
            return torch.nn.functional.normalize(features, dim=1)

        return self._once(("teacher", kind), make)

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
