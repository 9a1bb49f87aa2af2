"""HyperBand's bookkeeping, without Ray: who shares a bracket with whom, and who of them goes on.

A rung is decided once every trial of a bracket that is full (or gets no more) has reached it or has ended, and the
decision depends on their scores alone, not on the moments at which they came. A ledger told from its beginning
therefore leads to the decisions of the processes that wrote it, and to those that they would have come to.
Reference: arXiv:1603.06560.
"""

import math
from dataclasses import dataclass, field


@dataclass
class Member:
    """A trial of a bracket: its scores by epoch, and whether it takes no further part."""

    scores: dict[int, float] = field(default_factory=dict)
    ended: bool = False

    def at(self, rung: int) -> float | None:
        """The score of the first evaluation at or after an epoch."""
        epochs = [epoch for epoch in self.scores if epoch >= rung]
        return self.scores[min(epochs)] if epochs else None


@dataclass
class Bracket:
    """Up to `size` trials, of which the best 1 in `reduction` go on at each of the `rungs` (epochs).

    So many rungs are `decided`; `closed` says that no trial enters any more.
    """

    size: int
    rungs: list[int]
    reduction: int
    members: dict[str, Member] = field(default_factory=dict)
    decided: int = 0
    closed: bool = False

    @property
    def open(self) -> bool:
        return not self.closed and len(self.members) < self.size

    def waits(self, trial: str) -> bool:
        """Whether a trial stands at a rung that is not decided."""
        member = self.members[trial]
        return not member.ended and self.decided < len(self.rungs) and member.at(self.rungs[self.decided]) is not None

    def reach(self, trial: str, epoch: int, score: float) -> None:
        # it has gone on from a rung: an earlier process had seen the last trial of this bracket enter
        self.closed |= self.waits(trial) and epoch > max(self.members[trial].scores)
        self.members[trial].scores[epoch] = score

    def end(self, trial: str, *, stopped: bool) -> None:
        self.closed |= stopped and self.waits(trial)
        self.members[trial].ended = True

    def decide(self) -> list[str]:
        """The trials that stop now: those that are not among the best at the rungs that can be decided."""
        stopped: list[str] = []
        while not self.open and self.decided < len(self.rungs):
            rung = self.rungs[self.decided]
            there = {trial: score for trial, m in self.members.items() if (score := m.at(rung)) is not None}
            if not there or any(not m.ended for trial, m in self.members.items() if trial not in there):
                break
            best = sorted(there, key=lambda t: -there[t])  # of equals the one that entered first goes on
            self.decided += 1
            losers = [t for t in best[self._places() :] if not self.members[t].ended]
            for trial in losers:
                self.members[trial].ended = True
            stopped += losers
        return stopped

    def _places(self) -> int:
        """How many go on from the last decided rung; those that failed on the way count as if they were there."""
        places = len(self.members)
        for _ in range(self.decided):
            places = math.ceil(places / self.reduction)
        return places


class Brackets:
    """All brackets of a study: as many trials and such rungs as `shapes` says, one after the other, then again."""

    def __init__(self, shapes: list[tuple[int, list[int]]], reduction: int) -> None:
        self.shapes, self.reduction = shapes, reduction
        self.all: list[Bracket] = []
        self.of: dict[str, Bracket] = {}

    def enter(self, trial: str) -> None:
        """Give a trial the next place, unless it has one."""
        if trial in self.of:
            return
        if not self.all or not self.all[-1].open:
            size, rungs = self.shapes[len(self.all) % len(self.shapes)]
            self.all.append(Bracket(size, rungs, self.reduction))
        self.of[trial] = self.all[-1]
        self.of[trial].members[trial] = Member()

    def reach(self, trial: str, epoch: int, score: float) -> None:
        """An evaluation; a greater score is better."""
        self.of[trial].reach(trial, epoch, score)

    def waits(self, trial: str) -> bool:
        """Whether a trial has to wait for others before it goes on or stops."""
        return self.of[trial].waits(trial)

    def end(self, trial: str, *, stopped: bool = False) -> None:
        """A trial runs no further: it is done, has failed, or was `stopped` at a rung."""
        self.of[trial].end(trial, stopped=stopped)

    def decide(self, *, last: bool = False) -> list[str]:
        """The trials that stop now; `last`: none enters any more, so that the bracket at the end need not be full."""
        if last and self.all:
            self.all[-1].closed = True
        return [trial for bracket in self.all for trial in bracket.decide()]
