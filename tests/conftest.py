"""What tests of several files need: a local Ray, a searched study, a cache of their own, encoders that cost nothing."""

import os
import sys

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def local_ray(tmp_path_factory):
    """One for the whole session, which ends with it and touches no other Ray on the host."""
    ray = pytest.importorskip("ray")
    # Unix socket paths are short: a deep temporary folder would not fit
    folder = tmp_path_factory.mktemp("r", numbered=False)
    ray.init(
        address="local",
        num_cpus=2,
        resources={"trial_slot": 8},
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=str(folder) if len(str(folder)) < 60 else None,
    )
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def random_study(tmp_path_factory):
    """A random search of 120 trials on the simulator, ten configurations of it on five fresh seeds."""
    from ledger_maker import synthetic
    from mmts_ray.analysis import tables

    return tables.load(synthetic(tmp_path_factory.mktemp("sweep") / "s", trials=120, confirm=5, top=9, seed=4))


@pytest.fixture(autouse=True)
def no_place_is_left():
    """A command of a later test in this process would ask for the bucket of an earlier one."""
    yield
    if (storage := sys.modules.get("mmts_ray.storage")) is not None:
        storage._places.clear()


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MMTS_RAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny(monkeypatch):
    """Two encoders that cost nothing, under the names `colour` and `letters`, and what they did."""
    from tiny_encoders import colour_tower, letters_tower

    from mmts_ray.encoders import ENCODERS, Encoder

    did = {"image": [], "text": []}
    for kind, name, tower in (("image", "colour", colour_tower), ("text", "letters", letters_tower)):
        encoder = Encoder(name=name, version="1", load=lambda kind=kind, tower=tower: tower(did[kind]))
        monkeypatch.setitem(ENCODERS[kind], name, lambda encoder=encoder: encoder)
    return did
