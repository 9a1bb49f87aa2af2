"""Tuned on one data set, scored on another: where the same configuration was run on both."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from mmts_ray import results

from .. import commands
from ..arms import values, winner_config
from ..finding import Finding, Refusal
from ..page import Column, notes, table
from ..statistics import Difference, Interval, difference, mean_over_given
from ..tables import Study
from ..wording import change, count, points
from .studies import DATA, ENCODERS, Several, carried

NAME = "Transfer"
NEEDED = 2


def transfer(several: Several) -> Finding:
    """Rows: tuned on; columns: scored on; cells: score there minus that of the setting tuned there, paired by seed."""
    if several.same_data:
        needs = (
            "The studies share their data: nothing is carried over. A study of the same space on other data fills it:"
        )
        return Finding(NAME, "one data set", refusal=Refusal(needs, commands.elsewhere(several.studies[0])))
    cells, missing = _cells(several)
    frame = pd.DataFrame(
        [(a, b, d.mean, d.lo, d.hi, d.n) for (a, b), d in cells.items()],
        columns=["tuned_on", "scored_on", "loss", "lo", "hi", "n"],
    )
    across = frame[frame["tuned_on"] != frame["scored_on"]]
    if across.empty:
        needs = "Needs the winner of one study run on the data of another, on its fresh seeds. These run them:"
        run = "\n".join(_command(several, target) for target in _lacking(several, missing))
        return Finding(NAME, "0 settings on two data sets", refusal=Refusal(needs, run or commands.confirm(
            several.studies[0])))  # fmt: skip
    metric = several.metric
    clear = across[(across["hi"] < 0) if metric.better > 0 else (across["lo"] > 0)]
    worst = across.loc[(metric.better * across["loss"]).idxmin()]
    title = Markup("No setting is established to lose when it is carried to other data")
    if len(clear):
        lost = Interval(worst["loss"], worst["lo"], worst["hi"], int(worst["n"]))
        title = Markup("{} of {} {}; the most, {} on {}: {}").format(
            len(clear),
            count(len(across), "carried setting"),
            "loses" if len(clear) == 1 else "lose",
            worst["tuned_on"],
            worst["scored_on"],
            change(lost, metric, with_unit=True),
        )
    overall = _sensitivity(several, cells)
    said: list[Markup | str] = [
        "Cells: the setting tuned on the row's data, scored on the column's, minus the setting tuned there; paired by "
        "seed where seeds are shared. 0: no loss; bold: the interval excludes 0."
    ]
    if overall is not None:
        text = "Sensitivity: tuning on each data set gains {} over the best single setting of all, on these {}."
        text += " It says nothing about other data." if several.data_sets < 3 else ""
        shown = change(overall, metric, with_unit=True)
        said.append(Markup(text).format(shown, count(overall.n, "data set")))
    return Finding(
        title=title,
        used=f"{count(len(across), 'carried setting')}, {count(several.data_sets, 'data set')}",
        frames={"cells": frame},
        numbers={
            "missing": [f"{a} on {b}" for a, b in missing],
            "sensitivity": None if overall is None else {"mean": overall.mean, "lo": overall.lo, "hi": overall.hi},
        },
        sentences=tuple(said),
    )


def draw(several: Several, finding: Finding) -> Markup:
    metric, frame = several.metric, finding.frames["cells"]
    rows = []
    for a in several.labels:
        row: dict[str, Any] = {"tuned_on": a}
        for place, b in enumerate(several.labels):
            own = frame[(frame["tuned_on"] == a) & (frame["scored_on"] == b)]
            row[f"on{place}"] = own.iloc[0].to_dict() if len(own) else None
        rows.append(row)

    def cell(place: int) -> Any:
        def show(row: Any) -> Markup | str:
            got = row[f"on{place}"]
            if row["tuned_on"] == several.labels[place]:
                return Markup('<span class="heat own">its own</span>')
            if got is None:
                return Markup('<span class="heat few">not run</span>')
            text = change(Interval(got["loss"], got["lo"], got["hi"], int(got["n"])), metric)
            return Markup("<b>{}</b>").format(text) if got["lo"] > 0 or got["hi"] < 0 else text

        return show

    unit = f", {points(metric).strip()}" if metric.share else ""
    columns = [Column("tuned_on", "Tuned on", lambda row: row["tuned_on"], False)]
    columns += [Column(f"on{p}", f"On {b}{unit}", cell(p)) for p, b in enumerate(several.labels)]
    matrix = pd.DataFrame(rows).astype(object)
    return table("transfer.matrix", matrix, columns, label=NAME, sort=False) + notes(finding.sentences)


def write_plans(several: Several, folder: Path) -> None:
    """For each study that lacks carried settings, the plan file that its refusal names."""
    if several.same_data:
        return
    _, missing = _cells(several)
    for target in _lacking(several, missing):
        wanted = [a for a, b in missing if several.studies[several.labels.index(b)] is target]
        sources = [(a, several.studies[several.labels.index(a)]) for a in wanted]
        results.write_whole(folder / _plan_name(several, target), _plan(target, sources))


def _cells(several: Several) -> tuple[dict[tuple[str, str], Difference], list[tuple[str, str]]]:
    metric, cells, missing = several.metric, {}, []
    for b, target in several.each():
        own = values(target, winner_config(target), metric.column)
        for a, source in several.each():
            if a == b:
                continue
            d = difference(carried(source, target, metric.column), own)
            if d is None or d.n < NEEDED:
                missing.append((a, b))
            else:
                cells[a, b] = d
    return cells, missing


def _lacking(several: Several, missing: list[tuple[str, str]]) -> list[Study]:
    return [study for label, study in several.each() if any(b == label for _, b in missing) and winner_config(study)]


def single(several: Several, labels: list[str]) -> tuple[str | None, dict[str, pd.Series]]:
    """(study, its winner's scores on the data of each of these studies) of the setting that loses least on average.

    Of those that ran on the data of all; (None, nothing) without one.
    """
    cells, _ = _cells(several)
    best = _best_single(several, cells, labels)
    if best is None:
        return None, {}
    source = several.studies[several.labels.index(best)]
    return best, {label: _scores_on(several, source, label) for label in labels}


def _scores_on(several: Several, source: Study, label: str) -> pd.Series:
    target, column = several.studies[several.labels.index(label)], several.metric.column
    return values(target, winner_config(target), column) if source is target else carried(source, target, column)


def _best_single(several: Several, cells: dict[tuple[str, str], Difference], labels: Sequence[str]) -> str | None:
    """Of the winners that ran on the data of all of these studies, the one that loses least on average."""
    totals = {}
    for a in labels:
        others = [cells.get((a, b)) for b in labels if b != a]
        if all(d is not None for d in others):
            totals[a] = sum(several.metric.better * d.mean for d in others if d is not None)
    return max(totals, key=lambda a: totals[a]) if totals else None


def _sensitivity(several: Several, cells: dict[tuple[str, str], Difference]) -> Interval | None:
    """Own tuning minus the best single setting: of the winners run everywhere, the one that loses least on average."""
    best = _best_single(several, cells, several.labels)
    if best is None:
        return None
    lost = [cells[best, b] for b in several.labels if b != best]
    mean = mean_over_given(lost)
    if mean is None:
        return None
    share = len(lost) / len(several.labels)  # at home the single setting loses nothing
    return Interval(-mean.mean * share, -mean.hi * share, -mean.lo * share, len(several.labels))


def _plan_name(several: Several, target: Study) -> str:
    return f"transfer-{several.studies.index(target)}.yaml"


def _command(several: Several, target: Study) -> str:
    here = Path(several.studies[0].folder) / "report" / _plan_name(several, target)
    return f"mmts-ray extend {target.folder} --plan {here}"


def _plan(target: Study, sources: list[tuple[str, Study]]) -> str:
    """What `extend --plan` reads: each foreign winner as a probe on the seeds of the target's own winner."""
    import yaml

    fresh = target.trials[target.trials["kind"] == "confirm"]
    seeds = sorted({int(seed) for seed in fresh["seed"].dropna()})
    runs = []
    for label, source in sources:
        config = winner_config(source)
        if config and seeds:
            kept = {
                k: v for k, v in config.items() if not k.startswith(DATA) and k not in ENCODERS and k != "train.seed"
            }
            reason = f"how does the setting tuned in {label} do here?"
            runs.append({"name": f"transfer {label}", "kind": "probe", "set": kept, "seeds": seeds, "reason": reason})
    return yaml.safe_dump({"study": target.name, "runs": runs}, sort_keys=False, allow_unicode=True, width=118)
