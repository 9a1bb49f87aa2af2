"""Features of video clips as people have them, matched to clips by name or by order; stand-ins where there are none.

Shapes: N clips, I and E feature dimensions, F frames or seconds.
"""

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

KINDS = "a .npy, .npz, .parquet or .h5 file, or a folder with one .npy per clip"
STAND_IN = "stand-in"
STAND_IN_DIM = 512
NO_FEATURES = "no features of this clip"
NOT_FINITE = "features are not finite"
PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".bin")

Segment = tuple[str, float, float]  # video, start and end in seconds


def clip_features(
    where: Path, keys: Sequence[str], *, ordered: Sequence[str], segments: Sequence[Segment] = ()
) -> tuple[np.ndarray, dict[int, str]]:
    """(features of the wanted clips (N, I), float32; why a clip has none, by its place).

    `.npy`: rows in the order of `ordered`, all clips of the annotation file, or of the names in STEM.ids.txt (a line
    each) or STEM.ids.json beside it. `.npz`, `.h5`: arrays `ids` and `features`; h5 also one data set per clip.
    `.parquet`: columns `id` (or narration_id, clip_id) and `features`, a list. A folder: KEY.npy, or VIDEO.npy with a
    row per second, of which a clip takes its segment. Rows of frames, (N, F, I) or (F, I) a clip, are averaged. A clip
    without features, or with features that are no finite float32 numbers, is told in the second part; its row is 0.
    Raises ValueError, one line: unreadable file, rows that do not fit, a name twice, another kind of names, pickles.
    """
    if where.is_dir():
        found = _from_folder(where, keys, segments)
    else:
        ids, rows = _read(where, ordered)
        found = _matched(where, keys, ids, rows)
    dims = {row.shape for row in found.values()}
    if not found:
        raise ValueError(f"{where}: has features of none of the {len(keys)} clips, the first of which is {keys[0]!r}")
    if len(dims) > 1:
        raise ValueError(f"{where}: features of different shapes, {' and '.join(map(str, sorted(dims)[:2]))}")
    out_NI = np.zeros((len(keys), *dims.pop()), dtype=np.float32)
    problems: dict[int, str] = {}
    for place in range(len(keys)):
        if place not in found:
            problems[place] = NO_FEATURES
        elif not np.isfinite(found[place]).all():
            problems[place] = NOT_FINITE
        else:
            out_NI[place] = found[place]
    return out_NI, problems


def stand_in(own_NE: np.ndarray, *, sigma: float, parts: Sequence[int], place_N: np.ndarray) -> np.ndarray:
    """Stand-in features (N, 512), float32: x W + noise, x the unit text features of each clip's own narration.

    W is a fixed random Gaussian matrix that keeps lengths on average, the noise Gaussian of total length about sigma,
    drawn once per clip. `parts` says how many clips each file has, `place_N` which of them (counted through) a row is,
    so that what other files hold, and which clips are used, changes no clip's noise. No video goes in.
    """
    unit_NE = own_NE / np.maximum(np.linalg.norm(own_NE, axis=1, keepdims=True), 1e-12)
    scale = STAND_IN_DIM**-0.5
    weight_EI = np.random.default_rng([0, 0]).normal(scale=scale, size=(own_NE.shape[1], STAND_IN_DIM))
    noise = [
        np.random.default_rng([0, number]).normal(scale=scale, size=(count, STAND_IN_DIM)).astype(np.float32)
        for number, count in enumerate(parts, start=1)
    ]
    return (unit_NE @ weight_EI.astype(np.float32) + np.float32(sigma) * np.concatenate(noise)[place_N]).astype(
        np.float32
    )


def _matched(where: Path, keys: Sequence[str], ids: Sequence[str], rows: np.ndarray) -> dict[int, np.ndarray]:
    position: dict[str, int] = {}
    for row, name in enumerate(ids):
        if name and position.setdefault(name, row) != row:
            raise ValueError(f"{where}: {name!r} is in rows {position[name]} and {row}; a clip has one row")
    if keys and not any(key in position for key in keys):
        raise ValueError(f"{where}: its names are like {ids[0]!r}, the clips' like {keys[0]!r}; both must be the same")
    return {place: _flat(rows[position[key]]) for place, key in enumerate(keys) if key in position}


def _flat(row: np.ndarray) -> np.ndarray:
    """One row of a clip, float32; several are averaged. What does not fit in float32 becomes infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        row = np.asarray(row, dtype=np.float32)
        return row.reshape(-1, row.shape[-1]).mean(axis=0) if row.ndim > 1 else row


def _read(where: Path, ordered: Sequence[str]) -> tuple[Sequence[str], np.ndarray]:
    """(a name per row, rows) of a file of any kind but pickles."""
    kind = where.suffix.lower()
    if kind in PICKLES:
        raise ValueError(
            f"{where}: a pickle runs what it holds when it is opened; where it is trusted, write its array with "
            f"numpy.save (TBN's train.pkl: numpy.save('train.npy', d['RGB'].mean(1))); legal is {KINDS}"
        )
    if not where.is_file():
        raise ValueError(f"{where}: no such file; legal is {KINDS}, or {STAND_IN!r}")
    ids: Sequence[str]
    try:
        if kind == ".npy":
            beside = _names_beside(where)
            ids, rows = ordered if beside is None else beside, np.load(where, mmap_mode="r", allow_pickle=False)
        elif kind == ".npz":
            with np.load(where, allow_pickle=False) as archive:
                _need(where, archive.files)
                ids, rows = archive["ids"].astype(str).tolist(), archive["features"]
        elif kind == ".parquet":
            ids, rows = _from_parquet(where)
        elif kind in (".h5", ".hdf5"):
            ids, rows = _from_h5(where)
        else:
            raise ValueError(f"{where}: unknown kind of features; legal is {KINDS}")
    except (OSError, EOFError, zipfile.BadZipFile) as problem:
        raise ValueError(f"{where}: cannot be read ({str(problem).splitlines()[0]})") from None
    except ValueError as problem:
        if "pickle" not in str(problem).lower():
            raise
        raise ValueError(f"{where}: holds Python objects; save numbers and plain text arrays only") from None
    if rows.ndim not in (2, 3) or rows.dtype.kind not in "fiu":
        raise ValueError(
            f"{where}: features of shape {rows.shape} and type {rows.dtype}; legal are numbers of shape "
            "(clips, dimension) or (clips, frames, dimension)"
        )
    if len(ids) != len(rows):
        raise ValueError(
            f"{where}: {len(rows)} rows for {len(ids)} clips; without names ({where.stem}.ids.txt) there must be one "
            "row per row of the annotation file, in its order"
        )
    return ids, rows


def _need(where: Path, names: Sequence[str]) -> None:
    for name in ("ids", "features"):
        if name not in names:
            raise ValueError(f"{where}: no array {name!r}; it has {', '.join(sorted(names)[:10])}")


def _names_beside(where: Path) -> list[str] | None:
    text, listed = where.with_suffix(".ids.txt"), where.with_suffix(".ids.json")
    if text.is_file():
        return text.read_text(encoding="utf-8").split()
    if not listed.is_file():
        return None
    try:
        names = json.loads(listed.read_text(encoding="utf-8"))
    except ValueError:
        names = None
    if not isinstance(names, list):
        raise ValueError(f"{listed}: not a JSON list of names")
    return [str(name) for name in names]


def _from_parquet(where: Path) -> tuple[list[str], np.ndarray]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        columns = pq.read_schema(where).names
        named = [name for name in ("id", "narration_id", "clip_id") if name in columns]
        if not named or "features" not in columns:
            raise ValueError(f"{where}: needs columns id and features; it has {', '.join(columns[:10])}")
        table = pq.read_table(where, columns=[named[0], "features"])
    except (pa.ArrowException, OSError) as problem:
        raise ValueError(f"{where}: not a readable parquet file ({str(problem).splitlines()[0]})") from None
    rows = table["features"].to_pylist()
    if len({len(row) if isinstance(row, list) else -1 for row in rows}) > 1:
        raise ValueError(f"{where}: features have rows of different lengths")
    return [str(name) for name in table[named[0]].to_pylist()], np.array(rows)


def _from_h5(where: Path) -> tuple[list[str], np.ndarray]:
    try:
        import h5py
    except ImportError:
        raise ValueError(f"{where}: reading .h5 needs h5py (pip install h5py); or write it as .npz") from None
    with h5py.File(where, "r") as file:
        if "features" in file:
            _need(where, list(file))
            names = [name.decode() if isinstance(name, bytes) else str(name) for name in file["ids"][:].tolist()]
            return names, file["features"][:]
        names = sorted(name for name in file if isinstance(file[name], h5py.Dataset))
        if not names:
            raise ValueError(f"{where}: no data set in it; legal are ids and features, or one data set per clip")
        rows = [_flat(file[name][()]) for name in names]
        if len({row.shape for row in rows}) > 1:
            raise ValueError(f"{where}: features of different lengths")
        return names, np.stack(rows)


def _from_folder(where: Path, keys: Sequence[str], segments: Sequence[Segment]) -> dict[int, np.ndarray]:
    found: dict[int, np.ndarray] = {}
    videos: dict[str, np.ndarray | None] = {}

    def load(name: str) -> np.ndarray | None:
        path = where / f"{name}.npy"
        try:
            return np.load(path, allow_pickle=False) if path.is_file() else None
        except (OSError, EOFError, ValueError) as problem:
            raise ValueError(f"{path}: cannot be read ({str(problem).splitlines()[0]})") from None

    for place, key in enumerate(keys):
        row = load(key)
        if row is None and segments:
            video, start, end = segments[place]
            if video not in videos:
                videos = {video: load(video)}  # the clips of a video follow each other
            seconds_FI = videos[video]
            if seconds_FI is not None and seconds_FI.ndim == 2:
                row = seconds_FI[int(start) : max(int(end), int(start) + 1)]
        if row is not None and row.size:
            found[place] = _flat(row)
    return found
