"""What the runs were trained and scored on, what was dropped, and whom to credit."""

import pandas as pd
from markupsafe import Markup

from ..finding import Check, Finding, check
from ..page import Column, notes, table
from ..tables import Study
from ..wording import count, listing, number, percent, whole

SPLITS = ("train", "validation", "test")
FACTS = {"data": "Data set", "image_encoder": "Image encoder", "text_encoder": "Text encoder", "key": "Data key"}


def data(study: Study) -> Finding:
    """Sizes, drops by reason, encoders, notes and credits, as meta.json recorded them."""
    meta = study.meta.get("data") or {}
    dropped = {str(reason): int(n) for reason, n in sorted((meta.get("dropped") or {}).items())}
    kept = {split: meta[split] for split in SPLITS if isinstance(meta.get(split), int)}
    rows = [(f"{split} rows", n) for split, n in kept.items()]
    rows += [(f"dropped: {reason}", n) for reason, n in dropped.items()]
    lost, total = sum(dropped.values()), sum(kept.values()) + sum(dropped.values())
    title = Markup("The study recorded no data sizes")
    if kept:
        shown = number(lost, f"{whole(lost)} ({percent(lost / total, total)})") if lost else "none"
        title = Markup("{} kept, {} dropped").format(count(total - lost, "row"), shown)
    said = [str(note) for note in meta.get("notes") or []]
    remarks = [check("no note on the data", "record", True, "{note}", note=note) for note in said]
    return Finding(
        title=title,
        used="meta.json",
        frames={"rows": pd.DataFrame(rows, columns=["item", "n"])},
        numbers={**kept, "dropped": lost},
        sentences=(
            *(f"{label}: {meta[key]}." for key, label in FACTS.items() if meta.get(key)),
            *(f"Credit: {credit}" for credit in meta.get("credits") or []),
        ),
        checks=(
            check("no row of the data was dropped", "record", lost, "{rows} of the data dropped.",
                  "Reasons: {reasons}.", rows=count(lost, "row"), reasons=listing(list(dropped))),
            *(remarks or [Check("no note on the data")]),
        ),
    )  # fmt: skip


def draw(study: Study, finding: Finding) -> Markup:
    frame = finding.frames["rows"]
    columns = [
        Column("item", "What", lambda row: row["item"], False),
        Column("n", "Rows", lambda row: whole(int(row["n"]))),
    ]
    return (table("data.rows", frame, columns, label="Data") if len(frame) else Markup("")) + notes(finding.sentences)
