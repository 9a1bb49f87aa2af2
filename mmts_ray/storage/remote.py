"""Objects of a bucket, through pyarrow's filesystems: put, get, list, delete, and problems told in one line.

Credentials are found by the cloud's own libraries (environment, profile, the machine's role); none passes through here.
"""

import io
import os
import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from mmts_ray.storage.address import Address

CHUNK = 16 * 2**20
GS_RETRY_SECONDS = 10
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or the machine's role",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth application-default login`, or the machine's service account",
}


@dataclass(frozen=True)
class Object:
    """Size in bytes and time of writing (Unix, by the storage's clock)."""

    size: int
    time: float


class Remote:
    """The objects below one address, by their names relative to it; OSError while the storage does not answer."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.root = f"{address.bucket}/{address.key}"
        self._fs: Any = None

    @property
    def fs(self) -> Any:
        if self._fs is None:
            self._fs = _filesystem(self.address)
        return self._fs

    def put(self, name: str, content: bytes | Path) -> None:
        """Write an object: readers see the old one or the new one, never half of it."""
        # opened first: a file that has gone in the meantime must not become an empty object
        with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as source:
            block = source.read(CHUNK)
            with self.fs.open_output_stream(f"{self.root}/{name}") as out:
                while block:
                    out.write(block)
                    block = source.read(CHUNK)

    def read(self, name: str) -> bytes | None:
        """An object's content; None when there is none."""
        if self.find(name) is None:
            return None
        try:
            with self.fs.open_input_stream(f"{self.root}/{name}") as source:
                return source.read()
        except FileNotFoundError:
            return None

    def get(self, name: str, path: Path, *, time: float | None = None) -> None:
        """Write an object's content to a file, whole or not at all; `time` becomes the file's."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with self.fs.open_input_stream(f"{self.root}/{name}") as source, temporary.open("wb") as out:
                while block := source.read(CHUNK):
                    out.write(block)
            if time is not None:
                os.utime(temporary, (time, time))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def find(self, name: str) -> Object | None:
        """Size and time of one object.

        Found by listing: who may list only this part of a bucket is told "denied", not "missing", when it asks for an
        object that is not there. For the same reason nothing is ever read or deleted that a listing has not shown.
        """
        return self.listing(name.rpartition("/")[0], recursive=False).get(name)

    def listing(self, under: str = "", *, recursive: bool = True) -> dict[str, Object]:
        """All objects below the address, or below one of its folders."""
        from pyarrow.fs import FileSelector

        selector = FileSelector(f"{self.root}/{under}".rstrip("/"), recursive=recursive, allow_not_found=True)
        return {
            info.path.removeprefix(self.root + "/"): Object(info.size, info.mtime_ns / 1e9)
            for info in self.fs.get_file_info(selector)
            if info.is_file
        }

    def delete(self, name: str) -> None:
        """Delete an object, or all below a name (`name*`: below all that begin so); nothing there is as good."""
        start = name.removesuffix("*")
        near = self.listing(start.rpartition("/")[0])
        for found in near:
            if found == name or found.startswith(start if name.endswith("*") or not name else f"{name}/"):
                try:
                    self.fs.delete_file(f"{self.root}/{found}")
                except FileNotFoundError:
                    continue

    def explain(self, problem: Exception) -> str:
        """One line: which storage, what is wrong with it, what would be right."""
        said, where = str(problem), self.address.text
        if "NO_SUCH_BUCKET" in said or re.search(r"bucket.*(does not exist|not found)", said, re.IGNORECASE):
            return f"{where}: there is no bucket {self.address.bucket!r}; make it first, or choose another --out"
        if re.search(r"ACCESS_DENIED|SIGNATURE|ACCESS_KEY|EXPIRED_TOKEN|UNRECOGNIZED_CLIENT|credential|status 40[13]|"
                     r"PERMISSION_DENIED|UNAUTHENTICATED", said, re.IGNORECASE):  # fmt: skip
            return f"{where}: access is denied; credentials come from {CREDENTIALS[self.address.store]}"
        if "NETWORK_CONNECTION" in said or "Could not" in said:
            at = f" at {self.address.endpoint}" if self.address.endpoint else ""
            return f"{where}: no answer from the storage{at}"
        return f"{where}: {' '.join(said.split())[:200]}"


def _filesystem(address: Address) -> Any:
    from pyarrow import fs

    if address.store == "gs":
        server = {"endpoint_override": address.endpoint, "scheme": address.scheme} if address.endpoint else {}
        # a stand-in for Google's service takes no credentials
        return fs.GcsFileSystem(
            anonymous=bool(address.endpoint), retry_time_limit=timedelta(seconds=GS_RETRY_SECONDS), **server
        )
    options: dict[str, Any] = {}
    if address.endpoint:
        options = {"endpoint_override": address.endpoint, "scheme": address.scheme or "https"}
    region = address.region or ("us-east-1" if address.endpoint else _region(address.bucket))
    # one request for an object of a few MB, instead of three; failures come back soon: our own patience is longer
    retries = fs.AwsStandardS3RetryStrategy(max_attempts=2)
    return fs.S3FileSystem(region=region, allow_delayed_open=True, retry_strategy=retries, **options)


def _region(bucket: str) -> str | None:
    from pyarrow import fs

    try:
        return fs.resolve_s3_region(bucket)
    except OSError as problem:
        if "not found" in str(problem):
            raise
        return None  # not told to everybody: then it is the machine's own
