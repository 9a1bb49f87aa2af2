"""A plan as YAML for `extend --plan`, and in a line per role for the terminal."""

import math
import shlex
from pathlib import Path
from typing import Any

from mmts_ray import results

from .plan import Plan, plan
from .plan_entry import Entry
from .tables import Study
from .wording import count, duration, significant


def write(study: Study, path: str | Path) -> Plan:
    """Write the plan of a study as YAML, whole or not at all."""
    made = plan(study)
    results.write_whole(Path(path), yaml_text(made))
    return made


def yaml_text(made: Plan) -> str:
    """The plan as `extend --plan` reads it."""
    import yaml

    runs = []
    for entry in made.entries:
        item: dict[str, Any] = {"name": entry.name, "kind": entry.kind}
        if entry.start is not None:
            item["from"] = entry.start
        if entry.changes:
            item["set"] = dict(entry.changes)
        item |= {"seeds": list(entry.seeds), "reason": entry.reason}
        if math.isfinite(entry.hours):
            item |= {"device_hours": float(f"{entry.hours:.3g}"), "estimate": entry.basis}
        runs.append(item)
    head = [f"# {line}" for line in (total(made), *made.notes)]
    body = yaml.safe_dump(
        {"study": made.study.name, "runs": runs},
        sort_keys=False,
        allow_unicode=True,
        width=118,
        default_flow_style=None,
    )
    return "\n".join([*head, body])


def total(made: Plan) -> str:
    if not made.entries:
        return "Nothing is missing."
    if not math.isfinite(made.hours):
        return f"{count(made.runs, 'run')}, at an unknown cost: nothing has finished"
    return f"{count(made.runs, 'run')}, about {significant(made.hours)} device-hours ({duration(made.hours * 3600)})"


def text(made: Plan, study_dir: str | Path, path: str | Path) -> str:
    """The plan of a folder in a line per role, for the terminal, and the command that runs it."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in made.entries:
        groups.setdefault((_role(entry), entry.reason), []).append(entry)
    lines = [total(made)]
    for (role, reason), entries in groups.items():
        hours, runs = sum(e.hours for e in entries), sum(len(e.seeds) for e in entries)
        guess = ", extrapolated" if any(e.basis.startswith("extrapolated") for e in entries) else ""
        cost = f"{significant(hours)} h{guess}" if math.isfinite(hours) else "cost unknown"
        lines.append(f"{runs:5d}  {role}: {reason} ({cost})")
    lines += made.notes
    if made.entries:
        lines.append(f"next: mmts-ray extend {shlex.quote(str(study_dir))} --plan {shlex.quote(str(path))}")
    return "\n".join(lines)


def _role(entry: Entry) -> str:
    """What the terminal calls a group of entries."""
    if entry.kind == "confirm":
        return f"fresh seeds, {entry.name}"
    words = entry.name.split(" ")
    return f"{words[0]} {words[1]}" if words[0] in ("ring", "bound", "inert") else words[0]
