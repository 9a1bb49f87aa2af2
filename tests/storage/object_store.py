"""An S3 server on loopback behind a door that can be shut: an outage, after which everything in it is still there."""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator

from mmts_ray import storage

BUCKET = "bucket"
URI = f"s3://{BUCKET}/studies/demo"
SECRET = "8f2c-secret-of-these-tests-77aa"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1"}


class Door:
    """Passes connections on to a port of this machine while it is open."""

    def __init__(self, behind: int) -> None:
        self.behind = behind
        self.listener: socket.socket | None = None
        self.connections: set[socket.socket] = set()
        self.port = 0
        self.open()

    def open(self) -> None:
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", self.port))
        self.listener.listen(64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, args=[self.listener], daemon=True).start()

    def shut(self) -> None:
        """Refuse connections, and break those that there are, wherever they are in a request."""
        listener, self.listener = self.listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for each in list(self.connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def shut_for(self, seconds: float) -> None:
        self.shut()
        time.sleep(seconds)
        self.open()

    def _accept(self, listener: socket.socket) -> None:
        while self.listener is listener:
            try:
                outside, _ = listener.accept()
                inside = socket.create_connection(("127.0.0.1", self.behind))
            except OSError:
                continue
            self.connections |= {outside, inside}
            for source, sink in ((outside, inside), (inside, outside)):
                threading.Thread(target=self._pass_on, args=[source, sink], daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(1 << 16):
                sink.sendall(block)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.connections.discard(source)


@contextlib.contextmanager
def serving() -> Iterator[Door]:
    """The door of a new server that holds one empty bucket."""
    from moto.server import ThreadedMotoServer
    from pyarrow import fs

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    door = Door(port)
    try:
        maker = fs.S3FileSystem(
            access_key="testing", secret_key="testing", region="us-east-1", scheme="http",
            endpoint_override=f"127.0.0.1:{port}", allow_bucket_creation=True,
        )  # fmt: skip
        maker.create_dir(BUCKET)
        yield door
    finally:
        door.shut()
        server.stop()


def environment(door: Door) -> dict[str, str]:
    """What a process needs to find the server."""
    return {
        **KEYS,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{door.port}",
        "AWS_EC2_METADATA_DISABLED": "true",
        "no_proxy": "127.0.0.1",
    }


def elsewhere(tmp_path, monkeypatch):
    """The same study as a machine sees it that has never had it."""
    monkeypatch.setenv("MMTS_RAY_CACHE", str(tmp_path / "other"))
    storage._places.clear()
    local = storage.folder(URI)
    storage.refresh(local)
    return local
