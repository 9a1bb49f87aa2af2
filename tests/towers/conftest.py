"""Drawn pictures with captions, and the smallest tower that reads them."""

import pictures
import pytest
from tower_trials import frozen_of

from mmts_ray.train import TrainData


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("towers")


@pytest.fixture(scope="module")
def drawn(place):
    """(flat configuration, its data)."""
    flat = pictures.flat(pictures.table(place / "drawn"), pictures.config(place))
    _, frozen = frozen_of(flat, place / "cache")
    return flat, TrainData(frozen, cache_dir=place / "cache")
