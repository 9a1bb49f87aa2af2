"""How far each parameter may drift from the winner: widths by the model behind a gate, and measured rings."""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from .. import commands
from ..choice import FRESH_NEEDED, choose
from ..finding import Finding, Refusal, Setting, check
from ..model import WEAK, Model, model_of
from ..page import Axis, Column, bar, notes, table
from ..statistics import Interval, Width, near_levels, plateau
from ..tables import Metric, Parameter, Study, default_value
from ..wording import amount, change, count, fixed, listing, percent, points, setting, significant
from .bounds import failing_ends
from .importance import lacking
from .rings import ring_runs

NAME = "Plateau"
TOLD = ("width", "width and interval")


@lru_cache(maxsize=4)  # the verdict, the isolation panel and the table of settings ask too
def plateau_of(study: Study) -> Finding:
    """Per parameter the range around the winner within delta of its score, and what rings measured; adds a column."""
    model, winner = model_of(study), choose(study).winner
    refused = lacking(study, model)
    n = 0 if winner is None else len(winner.values(study.objective.column))
    if refused is None and n < FRESH_NEEDED:
        needs = f"Needs {FRESH_NEEDED} fresh seeds of the winner: widths are measured from its level; it has {n}:"
        refused = Refusal(needs, commands.confirm(study))
    if refused is None and model.winner is None:
        needs = "The winner is not a point of the searched space. Rings of single reruns around it fill this panel:"
        refused = Refusal(needs, commands.plan(study))
    if refused is None and model.quality < WEAK:
        needs = (
            f"The model predicts left-out configurations poorly (rank correlation {fixed(model.quality, 2)}, {WEAK} "
            "needed). More trials, or rings of single reruns around the winner, fill it:"
        )
        refused = Refusal(needs, commands.plan(study))
    rings = ring_runs(study)
    if refused is not None:
        return Finding(NAME, f"{count(len(model.frame), 'configuration')}, {count(len(rings), 'ring setting')}",
                       refusal=refused)  # fmt: skip
    delta, strict = model.deltas
    rows = [_row(model, place, delta, strict, rings) for place in range(len(model.parameters))]
    frame = pd.DataFrame(rows)
    metric = study.objective
    frames = {"widths": frame} | ({"rings": rings} if len(rings) else {})
    worst = _worst(rings, metric)
    return Finding(
        title=_title(study, rows, delta),
        used=f"{count(len(model.frame), 'configuration')}, {count(len(rings), 'ring setting')}, label “model”",
        frames=frames,
        numbers={
            "delta": delta,
            "strict": strict,
            "seed_sd": model.seed_sd[0],
            "seed_sd_df": model.seed_sd[1],
            "adaptive": model.steered,
            "volume": dict(zip(("share", "lo", "hi"), model.volume(delta))),
            "worst_drop": None if worst is None else worst["drop"],
        },
        sentences=tuple(_sentences(study, model, delta, strict, rings, worst)),
        checks=(
            check(
                "no ring setting drops by more than the plateau allows", "limits",
                worst is not None and worst["hi"] < -delta,
                "Moving <code>{name}</code> to {value} costs {size_}.",
                "Measured on shared seeds, with a bound for {looks}: stay inside the safe range.",
                name="" if worst is None else study.named(worst["path"]), looks=count(len(rings), "look"),
                value="" if worst is None else worst["setting"],
                size_="" if worst is None else amount(-worst["drop"], metric),
                size=0.0 if worst is None else -worst["drop"],
            ),
        ),
        settings=(_setting(study, model, rows),),
    )  # fmt: skip


def draw(study: Study, finding: Finding) -> Markup:
    by_path, metric = {p.path: p for p in study.space}, study.objective
    columns = [
        Column("path", "Parameter", lambda row: study.named(row["path"]), False),
        Column("width", "Safe range (model)", lambda row: _cell(study, by_path[row["path"]], row), False, "wide"),
        Column("gate", "How sure", _sure, False),
        Column("ring", "Measured beside it", lambda row: row["ring"] or "no ring", False),
        Column("strict_gate", "At the strict delta", lambda row: _strict(row), False),
    ]
    drawn = table("plateau.widths", finding.frames["widths"], columns, label="Plateau widths", wide=True)
    if "rings" in finding.frames:
        looks = [
            Column("path", "Parameter", lambda row: study.named(row["path"]), False),
            Column("setting", "Moved to", lambda row: row["setting"]),
            Column("step", "Step, % of range", lambda row: "choice" if row["step"] is None else _step(row["step"])),
            Column("n", "Seeds", lambda row: str(row["n"])),
            Column("drop", f"Change{',' if metric.share else ''}{points(metric)}",
                   lambda row: change(Interval(row["drop"], row["lo"], row["hi"], row["n"]), metric)),
        ]  # fmt: skip
        drawn += table("plateau.rings", finding.frames["rings"], looks, label="Rings around the winner")
    return drawn + notes(finding.sentences)


def safe_ranges(study: Study) -> list[tuple[str, float, str, str]]:
    """(name, share of the range, from where to where, size) of the widths that passed the gate, widest first."""
    finding = plateau_of(study)
    if finding.refusal is not None:
        return []
    rows = finding.frames["widths"].to_dict(orient="records")
    told = [row for row in rows if row["gate"] in TOLD and row["kind"] != "choice"]
    by_path = {p.path: p for p in study.space}
    found = [(study.named(r["path"]), float(r["width"]), *_words(by_path[r["path"]], r)) for r in told]
    return sorted(found, key=lambda item: (-item[1], item[0]))


def _row(model: Model, place: int, delta: float, strict: float, rings: pd.DataFrame) -> dict[str, Any]:
    parameter, cut = model.parameters[place], model.widths[place]
    own = rings[rings["path"] == parameter.path]
    head: dict[str, Any] = {"path": parameter.path, "kind": parameter.kind, "ring": _ring_words(own, delta)}
    here = float(cut.grid[cut.centre])
    reach = [_reach(own, side, delta) for side in (-1, 1)]
    head |= {f"ring_{end}": here + step if len(own) else math.nan for end, step in zip(("lo", "hi"), reach)}
    nothing = {key: math.nan for key in ("left", "right", "width", "lo", "hi")}
    winner = model.winner
    assert winner is not None  # else the panel has refused
    same = model.frame["u"].map(lambda u: np.array_equal(u, winner)).to_numpy(dtype=bool)
    used = model.active[model.frame.index.to_numpy()[same], place]
    if len(used) and not used[0]:
        return {**head, **nothing, "gate": "not used", "strict_gate": "not used", "levels": ""}
    if parameter.kind == "choice":
        chances = near_levels(cut, delta)
        shown = [f"{setting(parameter.values[int(level)], parameter)}: {round(100 * chance)} of 100"
                 for level, chance in zip(cut.grid, chances) if level >= 0 and level != here]  # fmt: skip
        return {**head, **nothing, "gate": "choice", "strict_gate": "choice", "levels": ", ".join(shown)}
    wide, narrow = plateau(cut, delta), plateau(cut, strict)
    ringed = bool((own["step"] < 0).any() and (own["step"] > 0).any()) or bool(len(own) and (here < 0.1 or here > 0.9))
    gate, strict_gate = (_gate(model, w, ringed) for w in (wide, narrow))
    found = {key: getattr(wide, key) for key in nothing}
    return {
        **head,
        **{k: round(v, 6) for k, v in found.items()},
        "gate": gate,
        "strict_gate": strict_gate,
        "levels": "",
    }


def _gate(model: Model, width: Width, ringed: bool) -> str:
    """What may be printed: a width goes without its interval only when it has a ring around it and no sampler chose the
    trials; with neither it is the interval alone.
    """
    if width.gate not in TOLD or (ringed and not model.steered):
        return width.gate
    return TOLD[1] if ringed or not model.steered else "interval"


def _reach(own: pd.DataFrame, side: int, delta: float) -> float:
    """The farthest step on one side up to which every rerun's mean stays within delta."""
    steps = own[own["step"] * side > 0].sort_values("step", key=abs)
    lost = (steps["drop"] < -delta).to_numpy()
    good = int(np.argmax(lost)) if lost.any() else len(steps)
    return float(steps["step"].iloc[good - 1]) if good else 0.0


def _ring_words(own: pd.DataFrame, delta: float) -> str:
    if own.empty:
        return ""
    lost = int((own["hi"] < -delta).sum())
    parts = [f"{int((own['drop'] >= -delta).sum())} of {len(own)} means within delta"]
    return ", ".join(parts + ([f"{lost} surely beyond"] if lost else []))


def _worst(rings: pd.DataFrame, metric: Metric) -> dict[str, Any] | None:
    return None if rings.empty else rings.loc[rings["drop"].idxmin()].to_dict()


def _title(study: Study, rows: list[dict[str, Any]], delta: float) -> Markup:
    metric = study.objective
    size = amount(delta, metric)
    told = [row for row in rows if row["gate"] in TOLD]
    if not told:
        return Markup("No width within {} of the winner is resolved").format(size)
    by_path = {p.path: p for p in study.space}
    ranked = sorted(told, key=lambda row: row["width"])
    names = [f"{study.named(r['path'])} {_words(by_path[r['path']], r)[1]}" for r in ranked]
    return Markup("Within {} of the winner: {}").format(size, listing(names, most=3))


def _words(parameter: Parameter, row: Mapping[str, Any]) -> tuple[str, str]:
    """("0.021 to 0.13", "×6.2") of a width."""
    ends = [parameter.at(min(1.0, max(0.0, row[key]))) for key in ("left", "right")]
    if parameter.kind == "int":
        ends = [math.ceil(ends[0] - 1e-9), math.floor(ends[1] + 1e-9)]
    text = f"{setting(ends[0], parameter)} to {setting(ends[1], parameter)}"
    size = f"×{significant(ends[1] / ends[0])}" if parameter.log and ends[0] > 0 else percent(row["width"])
    return text, size


def _cell(study: Study, parameter: Parameter, row: Mapping[str, Any]) -> Markup | str:
    if row["gate"] == "choice":
        return f"within delta, chance: {row['levels']}" if row["levels"] else "one value tried"
    if row["gate"] == "not used":
        return "not used by the winner"
    if row["gate"] == "not resolved":
        return "not resolved: run the ring"
    if row["gate"] not in TOLD:
        return f"between {percent(row['lo'])} and {percent(row['hi'])} of the range"
    axis, (text, size) = Axis(0, 1), _words(parameter, row)
    below, above = failing_ends(study, parameter)
    default = float(parameter.position([default_value(study, parameter)[0]])[0])

    def placed(position: float | None) -> float | None:
        known = position is not None and math.isfinite(position) and -0.02 <= position <= 1.02
        return axis(position) if known and position is not None else None

    return bar(
        "range", low=axis(row["left"]), high=axis(row["right"]), best=placed(_position(study, parameter)),
        default=placed(default), fail_low=placed(below), fail_high=placed(above), scale=parameter.scale,
        first=setting(parameter.low, parameter), last=setting(parameter.high, parameter), text=text, size=size,
        ring_low=placed(row["ring_lo"]), ring_high=placed(row["ring_hi"]),
    )  # fmt: skip


def _position(study: Study, parameter: Parameter) -> float:
    winner = choose(study).winner
    config = study.configs.get(str(winner.runs["trial"].iloc[0]), {}) if winner is not None else {}
    return float(parameter.position([config.get(parameter.path)])[0])


def _sure(row: Mapping[str, Any]) -> Markup | str:
    if row["gate"] == "width":
        return "± 15 %"
    if row["gate"] == "width and interval":
        text = f"[{percent(row['lo'])}, {percent(row['hi'])}] of the range"
        return Markup('<span class="ci">{}</span>').format(text)
    return {"interval": "interval only", "choice": "per value"}.get(row["gate"], row["gate"])


def _strict(row: Mapping[str, Any]) -> str:
    return {"width": "resolved", "width and interval": "resolved, with interval"}.get(
        row["strict_gate"], row["strict_gate"]
    )


def _step(step: float) -> str:
    return f"{'+' if step > 0 else '−'}{fixed(abs(100 * step), 0)}"


def _sentences(
    study: Study, model: Model, delta: float, strict: float, rings: pd.DataFrame, worst: dict[str, Any] | None
) -> list[Markup]:
    metric = study.objective
    text = (
        "Safe range: moving this parameter alone keeps the predicted score within delta = {} of the winner's: the "
        "largest of 1 % of it, its standard error and 1.25 seed standard deviations. The strict delta, without "
        "the last, is {}: mostly too small to be resolved."
    )
    found = [
        Markup(text).format(amount(delta, metric), amount(strict, metric)),
        Markup(
            "All widths are of a model. Told with ± 15 % when its interval is short, with the interval when longer, "
            "the interval alone beyond that; a straight slope is seldom resolved."
        ),
    ]
    text = "A width without a ring of reruns on both sides is never told without its interval."
    if model.steered:
        text = (
            "As a sampler chose where to look, a width with a ring of reruns has its interval, one without is it alone."
        )
    found.append(Markup(text))
    share, lo, hi = (percent(v) for v in model.volume(delta))
    found.append(Markup("Of the searched volume, {} [{}, {}] is predicted within delta.").format(share, lo, hi))
    if worst is not None:
        text = "Worst of {}: {} at {}, {}, limits widened for {}."
        level = change(Interval(worst["drop"], worst["lo"], worst["hi"], int(worst["n"])), metric, with_unit=True)
        moved, looks = count(len(rings), "moved setting"), count(len(rings), "look")
        found.append(Markup(text).format(moved, study.named(worst["path"]), worst["setting"], level, looks))
    return found


def _setting(study: Study, model: Model, rows: list[dict[str, Any]]) -> Setting:
    by_path = {p.path: p for p in study.space}
    cells: dict[str, Markup | str] = {p.path: "cannot vary" for p in study.space}
    cells |= {row["path"]: _cell(study, by_path[row["path"]], row) for row in rows}
    values = {row["path"]: row["width"] for row in rows}
    drawn = any(row["gate"] in TOLD for row in rows)
    note = "Safe range: this parameter alone, others as set; by the model where outlined, measured where solid."
    return Setting("safe_range", "Safe range", cells, values, note=note, legend=bar("plateau_legend") if drawn else "")
