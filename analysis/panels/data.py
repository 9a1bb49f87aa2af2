"""What the runs were trained and scored on, what was dropped, and whom to credit."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from ..finding import Check, Finding, check
from ..page import Column, notes, table
from ..tables import Study
from ..wording import count, listing, number, percent, significant, whole

MANY_REPEATS = 0.01  # of the pairs in a batch
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
    health = meta.get("health") or {}
    batch = float(study.trials["global_batch"].dropna().median()) if len(study.trials) else math.nan
    said = [str(note) for note in meta.get("notes") or []]
    remarks = [check("no note on the data", "record", True, "{note}", note=note) for note in said]
    return Finding(
        title=title,
        used="meta.json",
        frames={"rows": pd.DataFrame([*rows, *_repeats(health)], columns=["item", "n"]), "groups": _groups(health)},
        numbers={**kept, "dropped": lost, "batch": batch, **_chances(health, batch)},
        sentences=(
            *_told(health, batch),
            *(f"{label}: {meta[key]}." for key, label in FACTS.items() if meta.get(key)),
            *(f"Credit: {credit}" for credit in meta.get("credits") or []),
        ),
        checks=(
            check("no row of the data was dropped", "record", lost, "{rows} of the data dropped.",
                  "Reasons: {reasons}.", rows=count(lost, "row"), reasons=listing(list(dropped))),
            *(remarks or [Check("no note on the data")]),
            check(
                "few pairs in a batch are false negatives", "limits", health.get("false_negatives", 0) > MANY_REPEATS,
                "{share} of the pairs in a batch are false negatives.",
                "They show or say the same thing and are pushed apart. Give them one id, or filter by a teacher.",
                share=percent(health.get("false_negatives", 0), 1000), size=health.get("false_negatives", 0),
            ),
        ),
    )  # fmt: skip


def draw(study: Study, finding: Finding) -> Markup:
    rows, groups = finding.frames["rows"], finding.frames["groups"]
    columns = [
        Column("item", "What", lambda row: row["item"], False),
        Column("n", "Count", lambda row: whole(int(row["n"]))),
    ]
    drawn = table("data.rows", rows, columns, label="Data") if len(rows) else Markup("")
    if len(groups):
        sizes = [
            Column("part", "Part", lambda row: row["part"], False),
            Column("groups", "Groups", lambda row: whole(int(row["groups"]))),
            Column("pairs", "Training pairs", lambda row: whole(int(row["pairs"]))),
            Column("smallest", "Smallest group", lambda row: whole(int(row["smallest"]))),
            Column("largest", "Largest group", lambda row: whole(int(row["largest"]))),
        ]
        drawn += table("data.groups", groups, sizes, label="Sizes of groups")
    return drawn + notes(finding.sentences)


def _repeats(health: Mapping[str, Any]) -> list[tuple[str, int]]:
    names = {"repeated_images": "training images that repeat an earlier one",
             "repeated_captions": "training captions that an earlier image carries too"}  # fmt: skip
    return [(words, int(health[key])) for key, words in names.items() if key in health]


def _groups(health: Mapping[str, Any]) -> pd.DataFrame:
    groups, columns = health.get("groups") or {}, ["part", "groups", "pairs", "smallest", "largest"]
    parts = {"head": "head", "mid": "middle", "tail": "tail"}
    rows = [(word, *(groups[key][c] for c in columns[1:])) for key, word in parts.items() if key in groups]
    return pd.DataFrame(rows, columns=columns)


def _chances(health: Mapping[str, Any], batch: float) -> dict[str, float]:
    if "false_negatives" not in health:
        return {}
    expected = {"false_negatives": health["false_negatives"], "same_id": health["same_id"]}
    return {**expected, "false_negatives_per_anchor": (batch - 1) * health["false_negatives"]}


def _told(health: Mapping[str, Any], batch: float) -> list[Markup | str]:
    found: list[Markup | str] = []
    if "false_negatives" in health and math.isfinite(batch):
        n = (batch - 1) * health["false_negatives"]
        text = "An anchor meets {} false negatives in a batch of {}: pairs that show or say the same without one id."
        found.append(Markup(text).format(number(n, significant(n, 2)), whole(int(batch))))
    groups = health.get("groups") or {}
    if groups.get("source"):
        k = f", {count(groups['k'], 'cluster')}" if "k" in groups else ""
        found.append(f"Head, middle and tail are thirds of the groups by {groups['source']}{k}, by training pairs.")
    return found
