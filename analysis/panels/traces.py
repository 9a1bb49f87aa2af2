"""What happened in training: temperature or margin, filter, hinge, alignment, uniformity, gradients over the epochs."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from .. import commands, plots
from ..choice import best_config, choose
from ..finding import Alt, Check, Finding, Refusal, check
from ..page import Column, bar, beside, figure, notes, table
from ..tables import Metric, Study
from ..wording import count, number, percent, significant

NAME = "Training traces"
# quantity -> what the table calls it; others of `train_` follow by name
NAMES = {
    "train_loss": "loss",
    "train_temperature_mean": "temperature, mean",
    "train_temperature_min": "temperature, smallest",
    "train_temperature_max": "temperature, largest",
    "train_margin_mean": "margin, mean",
    "train_margin_min": "margin, smallest",
    "train_margin_max": "margin, largest",
    "train_filtered_share": "share of negatives filtered",
    "train_same_id_share": "share of pairs with one id",
    "train_active_hinge_share": "share of active hinge terms",
    "train_intra_count": "intra-modal negatives an anchor",
    "train_gradient_norm": "gradient norm",
    "val_alignment": "alignment (lower: closer pairs)",
    "val_uniformity": "uniformity (lower: more even)",
    "val_modality_distance": "modality distance",
}
SCHEDULED = ("train_temperature", "train_margin")
MOST_FILTERED, FEW_ACTIVE, JUMP = 0.5, 0.01, 100.0
SAME = 1e-5  # of the mean: float32 rounding over a batch


def traces(study: Study) -> Finding:
    """Mean over the runs of the winner and of the default at each evaluation, for every quantity that was kept."""
    runs = _runs(study)
    frame = pd.concat([_curves(study, role, trials) for role, trials in runs.items()], ignore_index=True)
    frame = frame[~frame["quantity"].isin(_same_as_mean(frame))]
    if frame.empty or frame.groupby(["quantity", "role"]).size().max() < 2:
        needs = "Needs a finished run that was evaluated twice or more. More epochs, or more trials, fill it:"
        return Finding(NAME, "0 evaluations", refusal=Refusal(needs, commands.extend(study)))
    rows = pd.DataFrame([_row(quantity, own) for quantity, own in frame.groupby("quantity", sort=False)])
    scheduled = next((s for s in SCHEDULED if f"{s}_mean" in set(frame["quantity"])), None)
    used = ", ".join(f"{role}: {count(len(trials), 'run')}" for role, trials in runs.items() if trials)
    return Finding(
        title=_title(rows, scheduled),
        used=used,
        frames={"quantities": rows, "traces": frame},
        numbers={"scheduled": scheduled},
        sentences=(
            "Statistics of the objective and gradient norms are those of the last batch before an evaluation; "
            "alignment, uniformity and modality distance are of the validation split. Means over the runs of a "
            "setting; the line is the winner's, the dashes are the default's.",
        ),
        alts={"scheduled": _alt(frame, scheduled)} if scheduled else {},
        checks=tuple(_checks(rows)),
    )


def draw(study: Study, finding: Finding) -> Markup:
    rows, frame, scheduled = finding.frames["quantities"], finding.frames["traces"], finding.numbers["scheduled"]

    def spark(row: Mapping[str, Any]) -> Markup:
        return _spark(frame[frame["quantity"] == row["quantity"]])

    def value(key: str) -> Any:
        return lambda row: Markup("none") if row[key] is None else number(row[key], significant(row[key], 3))

    columns = [
        Column("name", "Quantity", lambda row: row["name"], False),
        Column("start", "First", value("start")),
        Column("points", "Over training", spark, False),
        Column("end", "Last", value("end")),
        Column("low", "Lowest", value("low")),
        Column("high", "Highest", value("high")),
        Column("default", "Default, last", value("default")),
    ]
    drawn = table("traces.quantities", rows, columns, label=NAME)
    if scheduled is None:
        return drawn + notes(finding.sentences)
    drawing = plots.scheduled(_scheduled(frame, scheduled), name=_word(scheduled))
    return beside(figure(drawing, "traces-0", finding.alts["scheduled"]), finding.sentences) + drawn


def _runs(study: Study) -> dict[str, list[str]]:
    """Trials behind each line: fresh runs where there are some, else the one run of the search."""
    chosen, found = choose(study), {}
    for role, candidate in (("winner", chosen.winner), ("default", chosen.default)):
        found[role] = [str(t) for t in candidate.done["trial"]] if candidate is not None else []
    if not found["winner"]:
        trial, _ = best_config(study)
        found["winner"] = [trial] if trial is not None else []
    if not found["default"]:
        known = study.finished[(study.finished["kind"] == "baseline") & (study.finished["name"] == study.default)]
        found["default"] = [str(t) for t in known["trial"][:1]]
    return found


def _curves(study: Study, role: str, trials: list[str]) -> pd.DataFrame:
    columns = ["quantity", "role", "epoch", "value", "n"]
    if study.steps.empty or not trials:
        return pd.DataFrame(columns=columns)
    own = study.steps[study.steps["trial"].isin(trials)]
    known = {f"metric.{key}": key for key in NAMES}
    others = sorted(c for c in own if str(c).startswith("metric.train_") and c not in known)
    parts = []
    for name in [*known, *others]:
        if name not in own:
            continue
        values = pd.to_numeric(own[name], errors="coerce").dropna()
        if values.empty:
            continue
        by_epoch = values.groupby(own.loc[values.index, "epoch"].astype(float)).agg(["mean", "size"])
        quantity = name.removeprefix("metric.")
        part = {"quantity": quantity, "role": role, "epoch": by_epoch.index, "value": by_epoch["mean"]}
        parts.append(pd.DataFrame({**part, "n": by_epoch["size"]}).reset_index(drop=True))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def _same_as_mean(frame: pd.DataFrame) -> list[str]:
    """The smallest and largest of a scheduled value that does not vary over the samples: the mean says it all."""
    found = []
    for scheduled in SCHEDULED:
        parts = {p: frame[frame["quantity"] == f"{scheduled}_{p}"]["value"].to_numpy() for p in ("min", "mean", "max")}
        if len(parts["mean"]) and len({len(own) for own in parts.values()}) == 1:
            apart = np.max(parts["max"] - parts["min"])
            if apart <= SAME * np.abs(parts["mean"]).max():
                found += [f"{scheduled}_min", f"{scheduled}_max"]
    return found


def _row(quantity: str, own: pd.DataFrame) -> dict[str, Any]:
    winner, default = (own[own["role"] == role]["value"].to_numpy() for role in ("winner", "default"))
    seen = winner if len(winner) else default
    return {
        "quantity": quantity,
        "name": NAMES.get(quantity, Metric(quantity, 0, False).label.removeprefix("train ")),
        "points": len(seen),
        "start": winner[0] if len(winner) else math.nan,
        "end": winner[-1] if len(winner) else math.nan,
        "low": winner.min() if len(winner) else math.nan,
        "high": winner.max() if len(winner) else math.nan,
        "median": float(np.median(winner)) if len(winner) else math.nan,
        "default": default[-1] if len(default) else math.nan,
    }


def _spark(own: pd.DataFrame) -> Markup:
    """Winner and default in one box: both axes are shared."""
    low, high = own["value"].min(), own["value"].max()
    first, last = own["epoch"].min(), own["epoch"].max()

    def line(role: str) -> str:
        part = own[own["role"] == role].sort_values("epoch")
        x = 2 + 96 * (part["epoch"] - first) / ((last - first) or 1)
        y = 25 - 22 * (part["value"] - low) / ((high - low) or 1)
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y))

    return bar("spark", winner=line("winner"), default=line("default"))


def _word(scheduled: str) -> str:
    return scheduled.removeprefix("train_")


def _scheduled(frame: pd.DataFrame, scheduled: str) -> pd.DataFrame:
    """The scheduled value, one column per line: epoch, role, part (min, mean, max), value."""
    own = frame[frame["quantity"].isin([f"{scheduled}_{part}" for part in ("min", "mean", "max")])]
    return own.assign(part=own["quantity"].str.rpartition("_")[2])


def _title(rows: pd.DataFrame, scheduled: str | None) -> Markup:
    by = rows.set_index("quantity")
    if scheduled is not None:
        key = f"{scheduled}_mean"
        low, high = (by.loc[f"{scheduled}_{p}", q] if f"{scheduled}_{p}" in by.index else by.loc[key, q]
                     for p, q in (("min", "low"), ("max", "high")))  # fmt: skip
        word = _word(scheduled)
        if math.isfinite(low) and high > low * (1 + 1e-6):
            return Markup("The winner's {} runs between {} and {}").format(
                word, number(low, significant(low, 3)), number(high, significant(high, 3))
            )
        return Markup("The winner's {} stays at {}").format(
            word, number(by.loc[key, "end"], significant(by.loc[key, "end"], 3))
        )
    first = rows.iloc[0]
    if first["low"] == first["high"]:
        return Markup("The winner's {} stays at {}").format(
            first["name"], number(first["end"], significant(first["end"], 3))
        )
    return Markup("The winner's {} goes from {} to {}").format(
        first["name"], *(number(first[key], significant(first[key], 3)) for key in ("start", "end"))
    )


def _alt(frame: pd.DataFrame, scheduled: str) -> Alt:
    own, word = _scheduled(frame, scheduled), _word(scheduled)
    parts = [f"x: epoch, {own['epoch'].min():g} to {own['epoch'].max():g}; y: {word}, from 0, last batch of the epoch."]
    for role in ("winner", "default"):
        mean = own[(own["role"] == role) & (own["part"] == "mean")]["value"].to_numpy()
        if len(mean):
            parts.append(f"{role.capitalize()}: mean from {significant(mean[0], 3)} to {significant(mean[-1], 3)}.")
    spread = own[(own["role"] == "winner") & own["part"].isin(["min", "max"])]["value"]
    if len(spread):
        parts.append(f"Over samples and epochs {significant(spread.min(), 3)} to {significant(spread.max(), 3)}.")
    return Alt(f"{word.capitalize()} over training", " ".join(parts))


def _checks(rows: pd.DataFrame) -> list[Check]:
    by = rows.set_index("quantity")

    def get(quantity: str, key: str) -> float:
        return float(by.loc[quantity, key]) if quantity in by.index else math.nan

    filtered, active = get("train_filtered_share", "high"), get("train_active_hinge_share", "end")
    jump = get("train_gradient_norm", "high") / max(get("train_gradient_norm", "median"), 1e-30)
    return [
        check(
            "the filter leaves most negatives", "limits", filtered > MOST_FILTERED,
            "The filter removes {share} of the winner's negatives.",
            "What remains is a smaller batch: compare with one, and look at the threshold.",
            share=percent(filtered if math.isfinite(filtered) else 0.0), size=filtered,
        ),
        check(
            "the margin still teaches at the end", "record", active < FEW_ACTIVE,
            "{share} of the winner's hinge terms are active at the end.",
            "The margin is satisfied: further epochs change little.",
            share=percent(active if math.isfinite(active) else 0.0), size=1,
        ),
        check(
            "gradient norms stay in one range", "record", jump > JUMP,
            "The winner's gradient norm reaches {times} times its median.",
            "A step that large may be luck: look at the learning rate and warm-up.",
            times=significant(jump) if math.isfinite(jump) else "0", size=jump,
        ),
    ]  # fmt: skip
