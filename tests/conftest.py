"""One local Ray for the tests that need one; it ends with the session and touches no other Ray on the host."""

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def local_ray(tmp_path_factory):
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
