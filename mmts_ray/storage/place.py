"""A folder that stands for an address on object storage: what it fetches, what it sends, what it sweeps away."""

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mmts_ray import results
from mmts_ray.storage import lease
from mmts_ray.storage.outbox import Outbox, segment, whole_lines
from mmts_ray.storage.remote import Object, Remote

TRUTH = ("meta.json", "study.yaml")  # the storage's copy counts
ID = ".id"  # a study that was deleted and made anew under the same address is another one
FETCH_SECONDS = 900.0  # a trial that cannot ask for its checkpoint waits: it costs nothing, and loses nothing
FOLLOW_SECONDS = 15.0
# names become files here: whoever wrote them must not lead out of the folder
SEGMENT = re.compile(r"([\w.-]+)\.(\d{12})\.jsonl")
CHECKPOINT = re.compile(r"checkpoints/([\w.-]+)/last\.pt")
RANKS = re.compile(r"ranks/[\w-][\w.-]*\.parquet")


@dataclass
class Place:
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

    def name(self, path: Path) -> str:
        """What a file of the folder is called on the storage."""
        return Path(os.path.abspath(path)).relative_to(self.folder).as_posix()

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """An error of the storage as a ValueError in one line."""
        try:
            yield
        except OSError as problem:
            raise ValueError(self.remote.explain(problem)) from None

    def patiently(self, ask: Callable[[], None]) -> None:
        """Ask until there is an answer."""
        pause, until = 1.0, time.monotonic() + FETCH_SECONDS
        while True:
            try:
                ask()
                return
            except OSError as problem:
                if time.monotonic() > until:
                    raise results.Unwritable(self.remote.explain(problem)) from None
                time.sleep(pause)
                pause = min(2 * pause, 10.0)

    def check_writable(self) -> None:
        probe = f".writable-{os.getpid()}"
        self.remote.put(probe, b"-")
        self.remote.delete(probe)

    def refresh(self) -> None:
        """Fetch what others have written, as far as it is not here."""
        there = self.remote.listing()
        if TRUTH[1] not in there and (self.folder / TRUTH[1]).exists():
            raise ValueError(
                f"{self.remote.address.text}: not a study ({TRUTH[1]} is missing); `mmts-ray search` makes one"
            )
        if ID in there and (self.fetched or {}).get(ID) != there[ID]:
            theirs, mine = self.remote.read(ID) or b"", self.folder / ID
            if not mine.is_file() or mine.read_bytes() != theirs:
                self.set_aside()
                self.folder.mkdir(parents=True)
                mine.write_bytes(theirs)
        before = self.fetched or {}
        wanted = [(name, self.folder / name) for name in TRUTH if name in there and before.get(name) != there[name]]
        wanted += [(name, path) for name, path in self._segments(there) if not path.is_file()]
        ranks = [name for name in there if RANKS.fullmatch(name) and before.get(name) != there[name]]
        wanted += [(name, self.folder / name) for name in ranks if not (self.folder / name).is_file()]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda job: self.remote.get(*job), wanted))
        if lease.NAME not in there:
            (self.folder / lease.NAME).unlink(missing_ok=True)
        elif TRUTH[1] in there and not self.drives and before.get(lease.NAME) != there[lease.NAME]:
            lease.fetch(self.remote, self.folder)
        self.fetched = there

    def set_aside(self) -> None:
        """The copy here is of another study: it is not lost, and must not become part of this one."""
        if self.folder.exists():
            os.rename(self.folder, self.folder.with_name(f"{self.folder.name}.old-{time.time_ns()}"))
        self.fetched = None

    def _segments(self, there: dict[str, Object]) -> Iterator[tuple[str, Path]]:
        """Ledger objects that are not part of a file that was written here."""
        here = {path.name: path.stat().st_size for path in (self.folder / "ledger").glob("*.jsonl")}
        for name, found in there.items():
            base = name.removeprefix("ledger/")
            match = SEGMENT.fullmatch(base)
            if base != name and match and here.get(f"{match[1]}.jsonl", 0) < int(match[2]) + found.size:
                yield name, self.folder / "ledger" / base

    def fetch(self, wanted: str) -> None:
        """The storage's copy of a file, unless the one here is as new."""
        path, there = self.folder / wanted, self.remote.find(wanted)
        if there is not None and (not path.is_file() or path.stat().st_mtime < there.time):
            self.remote.get(wanted, path, time=there.time)

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Fetch what other machines write while the study runs: what follows the ledger here then sees all of it."""
        ended = threading.Event()

        def follow() -> None:
            while not ended.wait(FOLLOW_SECONDS):
                with contextlib.suppress(Exception):  # an outage: the next round fetches more
                    self.refresh()

        thread = threading.Thread(target=follow, name="following", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def send_left_behind(self) -> None:
        """Send whole lines of ledger files whose writers have ended."""
        there: dict[str, int] = {}
        for found, what in self.remote.listing("ledger").items():
            if match := SEGMENT.fullmatch(found.removeprefix("ledger/")):
                writer = f"{match[1]}.jsonl"
                there[writer] = max(there.get(writer, 0), int(match[2]) + what.size)
        mine = results.own_files(self.folder)  # the outbox has these
        for path in sorted((self.folder / "ledger").glob("*.jsonl")):
            if path in mine or SEGMENT.fullmatch(path.name):
                continue
            first = there.get(path.name, 0)
            if lines := whole_lines(path, first):
                self.remote.put(segment(path.name, first), lines)

    def sweep(self) -> None:
        """Delete checkpoints of ended trials: their process was lost between saying so and deleting them."""
        found = {m[1]: m[0] for m in map(CHECKPOINT.fullmatch, self.remote.listing("checkpoints")) if m}
        if found:
            trials = results.trials_of(self.folder)
            for trial in found:
                if trials.get(trial, {}).get("status") in results.FINISHED:
                    self.remote.delete(found[trial])

    def close(self, seconds: float) -> bool:
        """Whether all that this process has written arrives within this time; it sends nothing afterwards."""
        if self.outbox is None:
            return True
        arrived = self.outbox.close(seconds)
        self.outbox = None
        return arrived
