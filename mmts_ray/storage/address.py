"""What a study on object storage is called: `s3://bucket/path`, `gs://bucket/path`, and what is refused in it."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

OBJECT_STORES = ("s3", "gs")
LEGAL = "legal are a folder, file:///folder, s3://bucket/path and gs://bucket/path"
OPTIONS = ("endpoint_override", "region", "scheme")
# `s3:/bucket` is what is left of `s3://bucket` once it has been a file path
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/(?:/(?!/)|(?!/)|//)")


@dataclass(frozen=True)
class Address:
    """A folder of a bucket, and the server that has it when that is not the cloud's own."""

    store: str  # s3 or gs
    bucket: str
    key: str
    endpoint: str = ""  # host:port
    scheme: str = ""  # http or https, with an endpoint
    region: str = ""

    @property
    def text(self) -> str:
        """What people read and write."""
        return f"{self.store}://{self.bucket}/{self.key}"

    @property
    def uri(self) -> str:
        """The same with everything that another machine needs to find it; never a credential."""
        options = {"endpoint_override": self.endpoint, "region": self.region, "scheme": self.scheme}
        query = urlencode({k: v for k, v in options.items() if v})
        return self.text + (f"?{query}" if query else "")

    @property
    def folder(self) -> str:
        """The name of the local folder that stands for it: one per bucket, path and server."""
        digest = hashlib.sha256(f"{self.text} {self.endpoint}".encode()).hexdigest()[:12]
        return f"{self.key.rpartition('/')[2]}-{digest}"


def parse(text: str) -> Address | Path:
    """A plain folder, or the address on object storage; ValueError in one line, which never repeats a credential."""
    match = _URI.match(text)
    if match is None:
        return Path(text)
    store, rest = match[1].lower(), text[match.end() :]
    if store == "file":
        return Path("/" + unquote(rest).lstrip("/"))
    if store not in OBJECT_STORES:
        raise ValueError(f"{store}://: no storage for studies; {LEGAL}")
    parts = urlsplit(f"{store}://{rest}")
    if "@" in parts.netloc:
        raise ValueError(
            f"{store}://: the address holds a key or password, which logs and process lists would show; legal is "
            f"{store}://bucket/path with the credentials in the environment, a profile or the machine's role"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = [key for key in options if key not in OPTIONS]
    if unknown:
        raise ValueError(f"{store}://{parts.netloc}: {unknown[0]!r} is no option; legal are {', '.join(OPTIONS)}")
    key = parts.path.strip("/")
    steps = key.split("/")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", parts.netloc) or not key or {"", ".", ".."} & set(steps):
        raise ValueError(f"{store}://{parts.netloc}{parts.path}: no folder of a bucket; {LEGAL}")
    if parts.fragment or re.search(r"[^\w./=+-]", key):
        raise ValueError(f"{store}://{parts.netloc}/{key}: legal in a path are letters, digits and _ . - / = +")
    endpoint, scheme = options.get("endpoint_override", ""), options.get("scheme", "")
    if not endpoint:
        endpoint, scheme = _endpoint(store)
    if scheme not in ("", "http", "https") or "@" in endpoint or "/" in endpoint:
        raise ValueError(f"{store}://{parts.netloc}: legal are endpoint_override=HOST:PORT and scheme=http or https")
    region = options.get("region", "") or (_region() if store == "s3" else "")
    return Address(store, parts.netloc, key, endpoint=endpoint, scheme=scheme, region=region)


def _endpoint(store: str) -> tuple[str, str]:
    """(host:port, scheme) of an S3-compatible server, or of a stand-in for Google's, from the environment."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL") if store == "s3" else ("STORAGE_EMULATOR_HOST",)
    for name in names:
        if url := os.environ.get(name, ""):
            parts = urlsplit(url if "://" in url else f"http://{url}")
            if "@" in parts.netloc or not parts.hostname or parts.scheme not in ("http", "https"):
                raise ValueError(f"{name}: legal is http://HOST:PORT or https://HOST:PORT, without a name or password")
            return parts.netloc, parts.scheme
    return "", ""


def _region() -> str:
    return os.environ.get("AWS_REGION", "") or os.environ.get("AWS_DEFAULT_REGION", "")
