"""What is in a large file, found once and kept in the cache beside the features.

An entry is a JSON file that appears whole, by one rename. Its key covers what kind of index it is and the file's name,
size and time of change; of two processes that make the same entry the later one wins, with the same content.
"""

import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmts_ray.cache import default_cache_dir, sync
from mmts_ray.data.dataset import digest

log = logging.getLogger(__name__)


def indexed(path: Path, kind: str, make: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """`make(path)` from the cache, made first when it is not there or the file has changed.

    `kind` names the maker and its version. Raises ValueError, one line, when the cache cannot be written.
    """
    status = path.stat()
    key = digest(kind, str(path.resolve()), str(status.st_size), str(status.st_mtime_ns))[:32]
    kept = default_cache_dir() / f"index-{key}.json"
    try:
        found = json.loads(kept.read_bytes())
        if isinstance(found, dict):
            return found
    except OSError:
        pass
    except ValueError as problem:
        log.warning("%s: damaged (%s); indexing %s again", kept, problem, path)
    found = make(path)
    temporary = kept.with_name(f".{kept.name}.{os.getpid()}")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf8") as file:
            json.dump(found, file, ensure_ascii=True)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, kept)
        sync(kept.parent)
    except OSError as problem:
        with suppress(OSError):
            temporary.unlink()
        raise ValueError(
            f"{kept.parent}: cannot keep the index of {path.name} there ({problem.strerror or problem}); "
            "set MMTS_RAY_CACHE to a folder with space that is writable"
        ) from problem
    return found
