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
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mmts_ray import results
from mmts_ray.storage import lease
from mmts_ray.storage.address import Address, parse
from mmts_ray.storage.outbox import Outbox, segment, whole_lines
from mmts_ray.storage.remote import Object, Remote

TRUTH = ("meta.json", "study.yaml")  # the storage's copy counts
ID = ".id"  # a study that was deleted and made anew under the same address is another one
JOURNAL = "optuna.journal"
SETTLE_SECONDS = 60.0  # an outage of this length delays the next trial; after it, the work goes on and waits to be sent
FETCH_SECONDS = 900.0  # a trial that cannot ask for its checkpoint waits: it costs nothing, and loses nothing
CLOSE_SECONDS = 300.0
FOLLOW_SECONDS = 15.0
HURRIED_SECONDS = 20.0  # after Ctrl-C, or an error
# names become files here: whoever wrote them must not lead out of the folder
SEGMENT = re.compile(r"([\w.-]+)\.(\d{12})\.jsonl")
CHECKPOINT = re.compile(r"checkpoints/([\w.-]+)/last\.pt")
RANKS = re.compile(r"ranks/[\w-][\w.-]*\.parquet")
MARK = ".address"  # beside the folder: which address it stands for


@dataclass
class _Place:
    """A folder that stands for an address, in this process."""

    folder: Path
    remote: Remote
    outbox: Outbox | None = None  # made when this process first has something to send
    fetched: dict[str, Object] | None = None
    drives: bool = False

    @property
    def out(self) -> Outbox:
        if self.outbox is None:
            self.outbox = Outbox(self.folder, self.remote)
        return self.outbox


_places: dict[Path, _Place] = {}


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
    _places.setdefault(local, _Place(local, Remote(address)))


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
        with _explained(place):
            if writes:
                _check_writable(place)
                if place.remote.find(TRUTH[1]) is None:  # deleted there, or never begun
                    _set_aside(place)
            _refresh(place)
    seconds = HURRIED_SECONDS
    try:
        yield late
        seconds = CLOSE_SECONDS
    finally:
        for place in _places.values():
            text = place.remote.address.text
            if place.outbox is not None and not _close(place, seconds):
                late.append(text)
                print(
                    f"mmts-ray: {text}: no answer for {seconds:.0f} s; what it lacks is in {place.folder} and is "
                    f"sent by `mmts-ray resume {text}` on this machine",
                    file=sys.stderr,
                )


def refresh(study_dir: str | Path) -> None:
    """Fetch what others have written: the study's files and the ledger; ValueError when the storage does not answer."""
    if place := _place(study_dir):
        with _explained(place):
            _refresh(place)


def publish(study_dir: str | Path, *names: str) -> None:
    """Send files now, in this order; ValueError in one line when the storage does not take them."""
    if place := _place(study_dir):
        try:
            with _explained(place):
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
                place.out.keep(_name(place, each))


def grow(study_dir: str | Path, path: Path) -> None:
    """Send a file whenever it has changed."""
    if place := _place(study_dir):
        place.out.grow(_name(place, path))


def drop(study_dir: str | Path, path: Path) -> None:
    """Delete a file or folder from the storage."""
    if place := _place(study_dir):
        place.out.drop(_name(place, path))


def fetch(study_dir: str | Path, path: Path) -> None:
    """Have the storage's copy of a file here, unless the one here is as new; an outage is waited for."""
    if place := _place(study_dir):
        wanted = _name(place, path)
        _patiently(place, lambda: _newer(place, wanted, place.remote.find(wanted)))


def catch_up(study_dir: str | Path, folders: Iterable[Path]) -> None:
    """Of trials that another machine has begun, have the records and the folders here; an outage is waited for."""
    place = _place(study_dir)
    if place is None:
        return

    def look() -> None:
        begun = [path for path in folders if place.remote.listing(_name(place, path))]
        for path in begun:
            path.mkdir(parents=True, exist_ok=True)
        if begun:
            _refresh(place)

    _patiently(place, look)


def _patiently(place: _Place, ask: Callable[[], None]) -> None:
    pause, until = 1.0, time.monotonic() + FETCH_SECONDS
    while True:
        try:
            ask()
            return
        except OSError as problem:
            if time.monotonic() > until:
                raise results.Unwritable(place.remote.explain(problem)) from None
            time.sleep(pause)
            pause = min(2 * pause, 10.0)


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
        with _explained(place):
            held.enter_context(lease.hold(place.remote, folder=place.folder))
            place.drives = True
            held.callback(setattr, place, "drives", False)
            _refresh(place)
            _newer(place, JOURNAL, place.remote.find(JOURNAL))
            _send_left_behind(place)
            _sweep(place)
        grow(place.folder, place.folder / JOURNAL)
        held.enter_context(_following(place))
        yield


@contextlib.contextmanager
def _following(place: _Place) -> Iterator[None]:
    """Fetch what other machines write while the study runs: what follows the ledger here then sees all of it."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(FOLLOW_SECONDS):
            with contextlib.suppress(Exception):  # an outage: the next round fetches more
                _refresh(place)

    thread = threading.Thread(target=follow, name="following", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def send_left_behind(study_dir: str | Path) -> None:
    """Send what processes of this machine wrote and could not send before they ended."""
    place = _place(study_dir)
    until = time.monotonic() + SETTLE_SECONDS
    while place is not None:
        try:
            _send_left_behind(place)
            return
        except OSError as problem:
            if time.monotonic() > until:
                print(f"mmts-ray: {place.remote.explain(problem)}; what it lacks is in {place.folder}", file=sys.stderr)
                return
            time.sleep(2.0)


def _place(study_dir: str | Path) -> _Place | None:
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


def _name(place: _Place, path: Path) -> str:
    return _key(path).relative_to(place.folder).as_posix()


def _mark(local: Path) -> Path:
    return local.with_name(local.name + MARK)


@contextlib.contextmanager
def _explained(place: _Place) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise ValueError(place.remote.explain(problem)) from None


def _check_writable(place: _Place) -> None:
    probe = f".writable-{os.getpid()}"
    place.remote.put(probe, b"-")
    place.remote.delete(probe)


def _set_aside(place: _Place) -> None:
    """The copy here is of another study: it is not lost, and must not become part of this one."""
    if place.folder.exists():
        os.rename(place.folder, place.folder.with_name(f"{place.folder.name}.old-{time.time_ns()}"))
    place.fetched = None


def _refresh(place: _Place) -> None:
    there = place.remote.listing()
    if TRUTH[1] not in there and (place.folder / TRUTH[1]).exists():
        raise ValueError(
            f"{place.remote.address.text}: not a study ({TRUTH[1]} is missing); `mmts-ray search` makes one"
        )
    if ID in there and (place.fetched or {}).get(ID) != there[ID]:
        theirs, mine = place.remote.read(ID) or b"", place.folder / ID
        if not mine.is_file() or mine.read_bytes() != theirs:
            _set_aside(place)
            place.folder.mkdir(parents=True)
            mine.write_bytes(theirs)
    before = place.fetched or {}
    wanted = [(name, place.folder / name) for name in TRUTH if name in there and before.get(name) != there[name]]
    wanted += [(name, path) for name, path in _segments(place, there) if not path.is_file()]
    ranks = [name for name in there if RANKS.fullmatch(name) and before.get(name) != there[name]]
    wanted += [(name, place.folder / name) for name in ranks if not (place.folder / name).is_file()]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda job: place.remote.get(*job), wanted))
    if lease.NAME not in there:
        (place.folder / lease.NAME).unlink(missing_ok=True)
    elif TRUTH[1] in there and not place.drives and before.get(lease.NAME) != there[lease.NAME]:
        lease.fetch(place.remote, place.folder)
    place.fetched = there


def _segments(place: _Place, there: dict[str, Object]) -> Iterator[tuple[str, Path]]:
    """Ledger objects that are not part of a file that was written here."""
    here = {path.name: path.stat().st_size for path in (place.folder / "ledger").glob("*.jsonl")}
    for name, found in there.items():
        base = name.removeprefix("ledger/")
        match = SEGMENT.fullmatch(base)
        if base != name and match and here.get(f"{match[1]}.jsonl", 0) < int(match[2]) + found.size:
            yield name, place.folder / "ledger" / base


def _newer(place: _Place, wanted: str, there: Object | None) -> None:
    path = place.folder / wanted
    if there is not None and (not path.is_file() or path.stat().st_mtime < there.time):
        place.remote.get(wanted, path, time=there.time)


def _send_left_behind(place: _Place) -> None:
    there: dict[str, int] = {}
    for found, what in place.remote.listing("ledger").items():
        if match := SEGMENT.fullmatch(found.removeprefix("ledger/")):
            writer = f"{match[1]}.jsonl"
            there[writer] = max(there.get(writer, 0), int(match[2]) + what.size)
    mine = results.own_files(place.folder)  # the outbox has these
    for path in sorted((place.folder / "ledger").glob("*.jsonl")):
        if path in mine or SEGMENT.fullmatch(path.name):
            continue
        first = there.get(path.name, 0)
        if lines := whole_lines(path, first):
            place.remote.put(segment(path.name, first), lines)


def _sweep(place: _Place) -> None:
    """Delete the checkpoints of trials that have ended: their process was lost between saying so and deleting them."""
    found = {m[1]: m[0] for m in map(CHECKPOINT.fullmatch, place.remote.listing("checkpoints")) if m}
    if found:
        trials = results.trials_of(place.folder)
        for trial in found:
            if trials.get(trial, {}).get("status") in results.FINISHED:
                place.remote.delete(found[trial])


def _close(place: _Place, seconds: float) -> bool:
    assert place.outbox is not None
    arrived = place.outbox.close(seconds)
    place.outbox = None
    return arrived
