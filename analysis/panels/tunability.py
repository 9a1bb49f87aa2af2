"""What is worth tuning: each change alone from the default, and what the winner loses without it."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from .. import arms, commands
from ..choice import choose
from ..finding import Finding, Refusal, Setting
from ..page import Axis, Column, bar, notes, table
from ..probes import reacts
from ..statistics import Difference, Interval, difference
from ..steps import path_between, taking
from ..tables import Metric, Study
from ..wording import amount, change, count, listing, points, significant

NAME = "Tunability"
YES, NO, INERT, OPEN = "Yes", "No, leave default", "No, inert", "Not established"


def tunability(study: Study) -> Finding:
    """One row per difference between default and winner; also adds two columns to the settings."""
    metric, chosen = study.reported, choose(study)
    default, winner = arms.default_config(study), arms.winner_config(study)
    if not default or not winner or chosen.default is None or chosen.winner is None:
        needs = "Needs fresh runs of a default and of a tuned setting:"
        return Finding(NAME, "0 parameters", refusal=Refusal(needs, commands.confirm(study)))
    blocks = [block for block, _ in path_between(study, default, winner)]
    if not blocks:
        needs = "The winner is the default, so nothing was tuned. More trials may find another:"
        return Finding(NAME, "0 parameters", refusal=Refusal(needs, commands.extend(study)))
    low, high = (arms.values(study, config, metric.column) for config in (default, winner))
    delta = arms.indifference(study, metric.column)
    rows = []
    for block in blocks:
        alone = arms.values(study, taking(default, winner, block), metric.column)
        reset = arms.values(study, taking(winner, default, block), metric.column)
        gain = difference(alone, low, comparisons=len(blocks))
        loss = difference(high, reset, comparisons=len(blocks))
        rows.append(_row(study, block, gain, loss, metric, delta, winner))
    frame = pd.DataFrame(rows)
    known = int(frame["loss"].notna().sum())
    joint = difference(high, low)
    if not known:
        needs = (
            f"Needs the winner without each of {count(len(blocks), 'change')}, and the default with each, on its "
            "seeds; no such run is there. This plans them:"
        )
        return Finding(NAME, f"0 of {count(len(blocks), 'change')}", refusal=Refusal(needs, commands.plan(study)))
    said: list[Markup | str] = []
    if joint is not None:
        text = "All changes together: {}."
        said.append(Markup(text).format(change(joint, metric, with_unit=True)))
    text = (
        "Gain alone: the default with this one change. Loss without: the winner with the default's value. Both are "
        "paired by seed and widened for {} (Bonferroni). “{}” means that losing it costs less than {}: the larger of "
        "1.25 seed standard deviations and 1 % of the winner."
    )
    said.append(Markup(text).format(count(len(blocks), "look"), NO, amount(delta, metric)))
    return Finding(
        title=_title(frame),
        used=f"{known} of {count(len(blocks), 'change')}, fresh seeds",
        frames={"changes": frame},
        numbers={"delta": delta, "joint": joint.mean if joint else math.nan, "metric": metric.key},
        sentences=tuple(said),
        settings=_settings(study, frame, metric),
    )


def draw(study: Study, finding: Finding) -> Markup:
    metric = study.reported

    def moved(key: str) -> Any:
        def show(row: Mapping[str, Any]) -> Markup:
            return _change(row, key, metric)

        return show

    frame, scale = finding.frames["changes"], metric.scale * (metric.better or 1)
    ends = pd.concat([frame[key] for key in ("loss", "loss_lo", "loss_hi")]).dropna() * scale
    pad = 0.05 * max(abs(ends)) or 0.01
    axis = Axis(min(0.0, ends.min()) - pad, max(0.0, ends.max()) + pad)

    def place(row: Mapping[str, Any]) -> Markup | str:
        if row["loss"] is None:
            return "not measured"
        lo, hi = sorted((axis(row["loss_lo"] * scale), axis(row["loss_hi"] * scale)))
        role = "winner" if row["verdict"] == YES else "baseline"
        low, high = (significant(end) for end in (axis.low, axis.high))
        return bar("interval", mean=axis(row["loss"] * scale), lo=lo, hi=hi, role=role, dashed=axis(0.0), low=low,
                   high=high)  # fmt: skip

    unit = f"{',' if metric.share else ''}{points(metric)}"
    columns = [
        Column("what", "Change", lambda row: row["what"], False),
        Column("loss_lo", "Lost without it; dashed: nothing", place, False, "wide"),
        Column("gain", f"Gain alone{unit}", moved("gain")),
        Column("loss", f"Loss without{unit}", moved("loss")),
        Column("n", "Seeds", lambda row: str(row["n"])),
        Column("verdict", "Worth tuning?", lambda row: Markup("<b>{}</b>").format(row["verdict"]), False),
    ]
    drawn = table("tunability.changes", frame, columns, label=NAME, wide=True)
    return drawn + notes(finding.sentences)


def _row(
    study: Study,
    block: str,
    gain: Difference | None,
    loss: Difference | None,
    metric: Metric,
    delta: float,
    winner: Mapping[str, Any],
) -> dict[str, Any]:
    """`gain` and `loss` are in the metric; `verdict` looks at the loss in the better direction."""
    verdict = "not measured"
    if loss is not None:
        lo, hi = sorted((metric.better * loss.lo, metric.better * loss.hi))
        verdict = NO if hi < delta else YES if lo > 0 else OPEN
    if not block.endswith(".*") and reacts(study, block, winner) is False:
        verdict = INERT
    out: dict[str, Any] = {"block": block, "what": block.removesuffix(".*")}
    if not block.endswith(".*"):
        out["what"] = study.named(block)
    for key, d in (("gain", gain), ("loss", loss)):
        mean, lo, hi = (d.mean, d.lo, d.hi) if d is not None else (math.nan,) * 3
        out |= {key: mean, f"{key}_lo": lo, f"{key}_hi": hi}
    return {**out, "n": loss.n if loss is not None else 0, "verdict": verdict}


def _change(row: Mapping[str, Any], key: str, metric: Metric) -> Markup:
    if row[key] is None or not math.isfinite(row[key]):
        return Markup("not measured")
    return change(Interval(row[key], row[f"{key}_lo"], row[f"{key}_hi"], row["n"]), metric)


def _title(frame: pd.DataFrame) -> Markup:
    needed = [str(w) for w in frame.loc[frame["verdict"] == YES, "what"]]
    spared = [str(w) for w in frame.loc[frame["verdict"].isin([NO, INERT]), "what"]]
    if needed:
        rest = Markup("; the default does for {}").format(listing(spared)) if spared else ""
        return Markup("Worth tuning: {}{}").format(listing(needed), rest)
    if spared:
        return Markup("The default does for {}; no change is established as worth tuning").format(listing(spared))
    return Markup("No change is established as worth tuning")


def _settings(study: Study, frame: pd.DataFrame, metric: Metric) -> tuple[Setting, ...]:
    """A searched parameter shares the row of its block."""
    gains: dict[str, Markup | str] = {}
    words: dict[str, Markup | str] = {}
    values: dict[str, Any] = {}
    for parameter in study.space:
        section = f"{parameter.path.partition('.')[0]}.*"
        own = frame[(frame["block"] == parameter.path) | (frame["block"] == section)]
        if own.empty:
            gains[parameter.path] = words[parameter.path] = "as the default"
            continue
        row = own.iloc[0].to_dict()
        shared = row["block"].endswith(".*")
        text = _change(row, "loss", metric)
        gains[parameter.path] = Markup("with {}: {}").format(section, text) if shared else text
        words[parameter.path] = row["verdict"]
        values[parameter.path] = row["loss"]
    head = f"Gain{', points' if metric.share else ''}"
    note = "Gain: what the winner loses with the default's value, fresh seeds."
    return (
        Setting("gain", head, gains, values, True, note=note),
        Setting("worth", "Worth tuning?", words, {}),
    )
