"""Studies on object storage: a local folder stands for one, and everything else works on that folder.

`folder` gives the local folder of an address; plain folders are their own. Whoever writes into such a folder says so:
`keep` sends a file, `drop` deletes one, `settle` waits until all is in the storage; the ledger is sent by itself.
Whoever reads calls `refresh`, whoever drives the study holds `driving`. For a plain folder all of these do nothing.

On storage: ledger/<writer>.<first byte>.jsonl (whole lines, never changed), study.yaml, meta.json, optuna.journal,
results.parquet, checkpoints/, ranks/, report/, .id (made once), and lease.json while somebody drives the study: who,
and what that driver says of itself.
"""

import argparse
import contextlib
import os
import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from mmts_ray.storage import lease
from mmts_ray.storage.address import Address, parse
from mmts_ray.storage.place import ID, TRUTH, Place
from mmts_ray.storage.remote import Remote

JOURNAL = "optuna.journal"
SETTLE_SECONDS = 60.0  # an outage of this length delays the next trial; after it, the work goes on and waits to be sent
CLOSE_SECONDS = 300.0
HURRIED_SECONDS = 20.0  # after Ctrl-C, or an error
MARK = ".address"  # beside the folder: which address it stands for

_places: dict[Path, Place] = {}


def folder(text: str) -> Path:
    """The local folder of a study; ValueError in one line for an address that cannot be one. Connects to nothing."""
    from mmts_ray.cache import default_cache_dir

    address = parse(text)
    if isinstance(address, Path):
        return address
    local = _key(default_cache_dir() / "studies" / address.folder)
    _register(local, address)
    return local


def argument(text: str) -> Path:
    """`folder` as argparse wants it."""
    try:
        return folder(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def attach(study_dir: str | Path, uri: str | None) -> Path:
    """Let a local folder stand for an address, in this process too; without an address it is a plain one."""
    local = _key(Path(study_dir))
    address = parse(uri) if uri else None
    if isinstance(address, Address):
        local.mkdir(parents=True, exist_ok=True)
        _register(local, address)
    return local


def _register(local: Path, address: Address) -> None:
    local.parent.mkdir(parents=True, exist_ok=True)
    _mark(local).write_text(address.uri + "\n", encoding="utf8")
    _places.setdefault(local, Place(local, Remote(address)))


def uri(study_dir: str | Path) -> str | None:
    """The address that a folder stands for, complete enough for another machine."""
    place = _place(study_dir)
    return place.remote.address.uri if place else None


def name(study_dir: str | Path) -> str:
    """What a study is called towards people: its address, or its folder."""
    place = _place(study_dir)
    return place.remote.address.text if place else str(study_dir)


def told(text: str) -> str:
    """A message with addresses in place of the folders that stand for them."""
    for place in _places.values():
        text = text.replace(str(place.folder), place.remote.address.text)
    return text


@contextlib.contextmanager
def opened(*, writes: bool) -> Iterator[list[str]]:
    """Around a command: its studies are fetched first (and must be writable), what it wrote is sent at the end.

    Yields a list that names, afterwards, the studies whose storage did not take everything.
    """
    late: list[str] = []
    for place in list(_places.values()):
        with place.explained():
            if writes:
                place.check_writable()
                if place.remote.find(TRUTH[1]) is None:  # deleted there, or never begun
                    place.set_aside()
            place.refresh()
    seconds = HURRIED_SECONDS
    try:
        yield late
        seconds = CLOSE_SECONDS
    finally:
        for place in _places.values():
            text = place.remote.address.text
            if not place.close(seconds):
                late.append(text)
                print(
                    f"mmts-ray: {text}: no answer for {seconds:.0f} s; what it lacks is in {place.folder} and is "
                    f"sent by `mmts-ray resume {text}` on this machine",
                    file=sys.stderr,
                )


def refresh(study_dir: str | Path) -> None:
    """Fetch what others have written: the study's files and the ledger; ValueError when the storage does not answer."""
    if place := _place(study_dir):
        with place.explained():
            place.refresh()


def publish(study_dir: str | Path, *names: str) -> None:
    """Send files now, in this order; ValueError in one line when the storage does not take them."""
    if place := _place(study_dir):
        try:
            with place.explained():
                if not (place.folder / ID).is_file():
                    (place.folder / ID).write_text(secrets.token_hex(8))
                    place.remote.put(ID, place.folder / ID)
                for each in names:
                    place.remote.put(each, Path(study_dir) / each)
        except ValueError:
            for each in names:  # what the storage does not have was never said
                (Path(study_dir) / each).unlink(missing_ok=True)
            raise


def keep(study_dir: str | Path, path: Path) -> None:
    """Send a file, or all files of a folder, soon."""
    if place := _place(study_dir):
        for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if each.is_file():
                place.out.keep(place.name(each))


def grow(study_dir: str | Path, path: Path) -> None:
    """Send a file whenever it has changed."""
    if place := _place(study_dir):
        place.out.grow(place.name(path))


def drop(study_dir: str | Path, path: Path) -> None:
    """Delete a file or folder from the storage."""
    if place := _place(study_dir):
        place.out.drop(place.name(path))


def fetch(study_dir: str | Path, path: Path) -> None:
    """Have the storage's copy of a file here, unless the one here is as new; an outage is waited for."""
    if place := _place(study_dir):
        place.patiently(lambda: place.fetch(place.name(path)))


def catch_up(study_dir: str | Path, folders: Iterable[Path]) -> None:
    """Of trials that another machine has begun, have the records and the folders here; an outage is waited for."""
    place = _place(study_dir)
    if place is None:
        return

    def look() -> None:
        begun = [path for path in folders if place.remote.listing(place.name(path))]
        for path in begun:
            path.mkdir(parents=True, exist_ok=True)
        if begun:
            place.refresh()

    place.patiently(look)


def settle(study_dir: str | Path, seconds: float = SETTLE_SECONDS) -> bool:
    """Whether all that this process has written is in the storage, within this time."""
    place = _place(study_dir)
    return place is None or place.out.settle(seconds)


@contextlib.contextmanager
def driving(study_dir: str | Path) -> Iterator[None]:
    """The right to drive a study on object storage, from any machine; afterwards all that this machine wrote is there.

    The caller holds this machine's own lock, so that no other process here writes or has left writers.
    """
    place = _place(study_dir)
    if place is None:
        yield
        return
    with contextlib.ExitStack() as held:
        with place.explained():
            held.enter_context(lease.hold(place.remote, folder=place.folder))
            place.drives = True
            held.callback(setattr, place, "drives", False)
            place.refresh()
            place.fetch(JOURNAL)
            place.send_left_behind()
            place.sweep()
        grow(place.folder, place.folder / JOURNAL)
        held.enter_context(place.following())
        yield


def send_left_behind(study_dir: str | Path) -> None:
    """Send what processes of this machine wrote and could not send before they ended."""
    place = _place(study_dir)
    until = time.monotonic() + SETTLE_SECONDS
    while place is not None:
        try:
            place.send_left_behind()
            return
        except OSError as problem:
            if time.monotonic() > until:
                print(f"mmts-ray: {place.remote.explain(problem)}; what it lacks is in {place.folder}", file=sys.stderr)
                return
            time.sleep(2.0)


def _place(study_dir: str | Path) -> Place | None:
    key = _key(Path(study_dir))
    if key not in _places and _mark(key).is_file():
        from mmts_ray.cache import default_cache_dir

        # only in our own cache: a folder that came from somebody else must not name a server to connect to
        address = parse(_mark(key).read_text(encoding="utf8").strip())
        if key.parent == _key(default_cache_dir() / "studies") and isinstance(address, Address):
            _register(key, address)
    return _places.get(key)


def _key(local: Path) -> Path:
    return Path(os.path.abspath(local))


def _mark(local: Path) -> Path:
    return local.with_name(local.name + MARK)
