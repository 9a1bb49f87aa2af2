"""What the papers claim and what the default data show: writes docs/claims.csv and, from it, docs/claims.md.

    python benchmarks/claims.py STUDIES      # a folder with studies of search_spaces/studies; others keep their rows
    python benchmarks/claims.py              # only docs/claims.md, from the docs/claims.csv that is there

Every number of the page is a row of the table, except what the papers report. A difference is paired by seed (same
initialisation, data order and dropout) on the test split, with a 95 % t interval over fresh seeds.
"""

import argparse
import csv
from dataclasses import fields
from pathlib import Path

from claim_measures import Arms, Row
from claim_texts import CLAIMS
from mmts_ray.analysis.wording import fixed, signed

DOCS = Path(__file__).parents[1] / "docs"
PARITY = 2.0  # points: parity is shown when the interval lies inside, no loss when it ends above the lower end
UNITS = {"points": ("points", 1), "%": ("%", 1), "distance": ("", 2), "fold": ("fold", 1)}


INTRODUCTION = """\
# What the papers claim, and what this data show

The default data (drawings and names of emoji, frozen encoders, trained heads, 10 epochs, learning rate 0.001), image to
text, test split. Differences are paired by seed: same initialisation, data order and dropout; 95 % t intervals over
fresh seeds. ✓: the interval is on the side that the claim expects; for parity it lies inside ±{parity} points, for “no
loss” above −{parity}. Where it is not (✗), the claim is not reproduced *here*: on small data with frozen encoders,
which the papers do not speak about, and with the seeds given, which may be too few to see a small effect. All rest on
the same few hundred test images, so their errors are not independent, and nothing is corrected for looking at many.

Written by `python benchmarks/claims.py studies`, from `docs/claims.csv`, after each study was run with the command in
the head of its file in [search_spaces/studies](../search_spaces/studies). The figures are in each study's report, under
“Studied quantity”, “Similarities” and “Trade-offs”.

The section on EPIC-KITCHENS-100 rests on its annotations and official test, 9,668 clips against 3,842 captions, with
*stand-in* clip features: an embedding of each clip's own narration plus noise, no video; linear heads, 28 thousand
training clips."""


def measured(folder: Path) -> list[Row]:
    """The table from the studies' folders."""
    arms: dict[str, Arms] = {}
    rows = []
    for claim in CLAIMS:
        if claim.study is None or claim.measure is None or not (folder / claim.study).is_dir():
            continue
        found = arms.setdefault(claim.study, Arms(folder / claim.study))
        for quantity, interval, unit, expected in claim.measure(found):
            numbers = (float(f"{x:.6g}") for x in (interval.mean, interval.lo, interval.hi))
            rows.append(Row(claim.key, quantity, *numbers, interval.n, unit, expected))
    return rows


def write_table(rows: list[Row], path: Path) -> None:
    with path.open("w", newline="", encoding="utf8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([f.name for f in fields(Row)])
        table.writerows([getattr(row, f.name) for f in fields(Row)] for row in rows)


def read_table(path: Path) -> list[Row]:
    with path.open(encoding="utf8") as file:
        return [
            Row(**{**r, **{k: float(r[k]) for k in ("value", "lo", "hi")}, "n": int(r["n"])})  # type: ignore[arg-type]
            for r in csv.DictReader(file)
        ]


def verdict(rows: list[Row]) -> str:
    """In words, from the intervals of what the claim expects."""
    judged = [_holds(row) for row in rows if row.expected]
    if not judged:
        return "described"
    if all(judged):
        return "reproduced"
    wide = all(row.expected == "0" and row.lo < 0 < row.hi for row in rows if row.expected)
    return "partly reproduced" if any(judged) else f"not reproduced{' (too few seeds to tell)' if wide else ''}"


def _holds(row: Row) -> bool:
    if row.expected.startswith(">="):
        return row.lo >= float(row.expected.removeprefix(">=") or -PARITY)
    if row.expected == "0":
        return row.lo > -PARITY and row.hi < PARITY
    return row.lo > 0 if row.expected == "+" else row.hi < 0


def _says(row: Row) -> str:
    unit, digits = UNITS[row.unit]
    difference = " minus " in row.quantity or " per step " in row.quantity
    show = signed if difference else fixed
    ends = f" [{show(row.lo, digits)}, {show(row.hi, digits)}]" if row.lo != row.hi else ""
    judged = "" if not row.expected else " ✓" if _holds(row) else " ✗"
    return f"{row.quantity}: {show(row.value, digits)}{' ' + unit if unit else ''}{ends}{judged}"


def page(rows: list[Row]) -> str:
    """docs/claims.md."""
    lines = [INTRODUCTION.format(parity=f"{PARITY:g}")]
    by_claim: dict[str, list[Row]] = {}
    for row in rows:
        by_claim.setdefault(row.claim, []).append(row)
    for paper in dict.fromkeys(claim.paper for claim in CLAIMS):
        lines += [
            "",
            f"## {paper}",
            "",
            "| claim | the paper | here | verdict | study |",
            "| --- | --- | --- | --- | --- |",
        ]
        for claim in (c for c in CLAIMS if c.paper == paper):
            own = by_claim.get(claim.key, [])
            here = "<br>".join([*(_says(row) for row in own), *([f"*{claim.note}*"] if claim.note else [])])
            n = f" (n = {min(row.n for row in own if row.unit)})" if own else ""
            study = f"`{claim.study}`{n}" if claim.study else ""
            found = verdict(own) if own else "not measured yet" if claim.study else "not testable here"
            lines.append(f"| {claim.says} | {claim.reports} | {here} | **{found}** | {study} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="?", type=Path)
    args = parser.parse_args()
    table = DOCS / "claims.csv"
    if args.studies is not None:
        rows = measured(args.studies)
        new = {row.claim for row in rows}
        rows += [row for row in read_table(table) if row.claim not in new]
        order = [claim.key for claim in CLAIMS]
        write_table(sorted(rows, key=lambda row: order.index(row.claim)), table)
    (DOCS / "claims.md").write_text(page(read_table(table)), encoding="utf8")
    print(DOCS / "claims.md")


if __name__ == "__main__":
    main()
