"""What a data set leaves out: every dropped row with its number and reason, and when that is too much."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

SHOWN = 10  # row numbers named in a message


@dataclass
class Drops:
    """Rows left out of `total` rows read from `source`.

    `strict`: one dropped row refuses the data. `max_dropped`: largest share of rows that may be dropped, in [0, 1].
    """

    source: str
    total: int = 0
    strict: bool = False
    max_dropped: float = 1.0
    rows: list[tuple[int, str, str]] = field(default_factory=list)  # (row number, reason, detail)

    def add(self, row: int, reason: str, detail: str = "") -> None:
        """Record that a row is left out; the reason is what drops are counted by, the detail is for messages."""
        self.rows.append((row, reason, detail))

    def counts(self) -> dict[str, int]:
        """Dropped rows by reason, commonest first."""
        return dict(Counter(reason for _, reason, _ in self.rows).most_common())

    def check(self) -> None:
        """Refuse the data when rows were dropped under `strict`, or more than `max_dropped` of them."""
        dropped = len({row for row, _, _ in self.rows})
        if self.strict and dropped:
            named = [
                f"row {row}: {reason}{f' ({detail})' if detail else ''}" for row, reason, detail in sorted(self.rows)
            ]
            more = f"; and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
            raise ValueError(
                f"{self.source}: strict refuses {dropped} of {self.total} rows: {'; '.join(named[:SHOWN])}{more}"
            )
        if dropped > self.max_dropped * self.total:
            raise ValueError(
                f"{self.source}: {dropped} of {self.total} rows ({dropped / self.total:.0%}) cannot be used, more than "
                f"max_dropped={self.max_dropped:g} allows: {self._by_reason()}"
            )
        if dropped and dropped == self.total:
            raise ValueError(f"{self.source}: none of its {self.total} rows can be used: {self._by_reason()}")

    def notes(self) -> tuple[str, ...]:
        """One line that says what was dropped, or nothing."""
        dropped = len({row for row, _, _ in self.rows})
        return (f"{self.source}: {dropped} of {self.total} rows dropped: {self._by_reason()}",) if dropped else ()

    @staticmethod
    def joined(source: str, parts: "Sequence[Drops]") -> "Drops":
        """The drops of several files as of one; rows are counted on through the files, each named with its own."""
        rows, total = [], 0
        for part in parts:
            rows += [
                (total + row, reason, f"{part.source} row {row}{f', {detail}' if detail else ''}")
                for row, reason, detail in part.rows
            ]
            total += part.total
        first = parts[0]
        return Drops(source=source, total=total, strict=first.strict, max_dropped=first.max_dropped, rows=rows)

    def _by_reason(self) -> str:
        parts = []
        for reason, count in self.counts().items():
            matching = sorted((row, detail) for row, why, detail in self.rows if why == reason)
            numbers = ", ".join(str(row) for row, _ in matching[:SHOWN]) + (", ..." if count > SHOWN else "")
            example = f"; {matching[0][1]}" if matching[0][1] else ""
            parts.append(f"{reason} {count} (row{'s' if count > 1 else ''} {numbers}{example})")
        return ", ".join(parts)
