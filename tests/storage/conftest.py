"""A study on an S3 server of the tests' own."""

import object_store
import pytest
from object_store import URI

from mmts_ray import storage
from mmts_ray.storage import address, remote


@pytest.fixture(scope="module")
def server():
    with object_store.serving() as door:
        yield door


@pytest.fixture
def door(server, monkeypatch, own_cache):
    """A fresh address on the server, and a cache of this test's own."""
    for name, value in object_store.environment(server).items():
        monkeypatch.setenv(name, value)
    storage._places.clear()
    remote.Remote(address.parse(URI)).delete("")
    yield server
    for place in storage._places.values():
        if place.outbox is not None:
            place.outbox.close(0.0)
    if server.listener is None:
        server.open()


@pytest.fixture
def study(door):
    """The folder that stands for a study which is on the storage."""
    local = storage.folder(URI)
    local.mkdir(parents=True)
    for name in storage.TRUTH:
        (local / name).write_text(f"{name}\n")
    storage.publish(local, *storage.TRUTH)
    return local
