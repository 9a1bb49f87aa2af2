"""The content-addressed cache: entries that appear whole or not at all, and what another process finds of them.

Shapes: N rows of an entry, I numbers a row.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mmts_ray.cache import locked, sync
from mmts_ray.encoders import file_hash
from mmts_ray.features.pool import encoding_pool

if TYPE_CHECKING:
    from mmts_ray.encoders import Encoder, Tower

SCHEMA = 1
ARRAY, MANIFEST = "features.npy", "manifest.json"
log = logging.getLogger(__name__)

Failed = dict[int, str]  # picture -> why it has no features
Fill = Callable[["Tower", ThreadPoolExecutor, np.ndarray], Failed]


@dataclass(frozen=True)
class Kept:
    """An array of the cache that is too large to hand around: processes open it by its name, and share its pages."""

    entry: str
    shape: tuple[int, ...]
    dtype: str
    rows_N: np.ndarray | None = None  # which rows of the file, when some were dropped

    @classmethod
    def of(cls, entry: str, array: np.ndarray, keep_N: np.ndarray | None = None) -> "Kept":
        """An entry of the cache, without the rows that are not kept."""
        rows_N = None if keep_N is None or keep_N.all() else np.flatnonzero(keep_N)
        return cls(entry, array.shape, str(array.dtype), rows_N)

    def open(self, cache_dir: Path) -> np.ndarray | None:
        """The whole file, memory-mapped; None when this machine does not have it."""
        path = cache_dir / self.entry / ARRAY
        if not path.is_file():
            return None
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        whole = array.shape == self.shape and str(array.dtype) == self.dtype
        return np.asarray(array) if whole else None


def entry(folder: Path, encoder: "Encoder", rows: int, fill: Fill, verify: bool) -> tuple[np.ndarray, Failed]:
    """The features of a cache entry, made first if it is not there or not whole."""
    found = _read_entry(folder, rows, verify)
    if found is not None:
        return found
    try:
        with locked(folder.parent / f"{folder.name}.lock"):
            found = _read_entry(folder, rows, verify)  # another process may have made it while we waited
            if found is None:
                _write_entry(folder, encoder, rows, fill)
                found = _read_entry(folder, rows, verify=False)
    except OSError as problem:
        raise ValueError(
            f"{folder.parent}: cannot keep features there ({problem.strerror or problem}); "
            "set MMTS_RAY_CACHE to a folder with space that is writable"
        ) from problem
    assert found is not None
    return found


def _read_entry(folder: Path, rows: int, verify: bool) -> tuple[np.ndarray, Failed] | None:
    """The entry's features, memory-mapped and read-only; None when it is not there or anything about it is wrong."""
    if not folder.is_dir():
        return None
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf8"))
        path = folder / ARRAY
        if manifest["schema"] != SCHEMA or path.stat().st_size != manifest["bytes"]:
            raise ValueError("its size is not that in its manifest")
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        known = list(array.shape) == manifest["shape"] and str(array.dtype) == manifest.get("dtype", "float32")
        if not known or len(array) != rows:
            raise ValueError(f"its shape {array.shape} is not that in its manifest")
        if verify and file_hash(path) != manifest["sha256"]:
            raise ValueError("its SHA-256 is not that in its manifest")
        failed = {int(index): str(why) for index, why in manifest["failed"].items()}
    except Exception as problem:  # parsing a damaged header or manifest raises anything
        log.warning("%s: damaged (%s); encoding it again", folder, problem)
        return None
    return np.asarray(array), failed  # a plain view of the mapped file: np.memmap would pickle as itself


def _write_entry(folder: Path, encoder: "Encoder", rows: int, fill: Fill) -> None:
    for left in folder.parent.glob(f".{folder.name}.*"):  # of a process that was killed: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    temporary = folder.parent / f".{folder.name}.{os.getpid()}"
    temporary.mkdir()
    try:
        path = temporary / ARRAY
        with encoding_pool() as pool:
            tower = encoder.load()
            array = np.lib.format.open_memmap(path, mode="w+", dtype=tower.dtype, shape=(rows, tower.dim))
            _reserve(path)
            failed = fill(tower, pool, array)
        array.flush()
        shape, dtype = list(array.shape), str(array.dtype)
        del array
        manifest = {
            "schema": SCHEMA,
            "encoder": encoder.name,
            "version": encoder.version,
            "shape": shape,
            "dtype": dtype,
            "bytes": path.stat().st_size,
            "sha256": file_hash(path),
            "failed": {str(index): why for index, why in failed.items()},
        }
        with (temporary / MANIFEST).open("w", encoding="utf8") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        for synced in (path, temporary):
            sync(synced)
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(temporary, folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _reserve(path: Path) -> None:
    """Take the disk space now: a full disk is an error here, but would kill the process at a write to mapped memory."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
