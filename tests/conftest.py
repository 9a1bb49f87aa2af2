"""One local Ray for the tests that need one; it ends with the session and touches no other Ray on the host.

Of the processes of `pytest -n 2 --dist loadgroup` one runs the tests that start Ray, the other takes the rest.
"""

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


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("ray"):  # one after another: two clusters would share ports and cores
            item.add_marker(pytest.mark.xdist_group("ray"))
