"""Performance profiles: what share of the runs reaches a score, each set against what was tuned on its data."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from .. import commands, pictures
from ..choice import FRESH_NEEDED, choose
from ..finding import Alt, Finding, Refusal
from ..page import Column, beside, figure, table
from ..statistics import Profile, generator, profiles
from ..tables import Study
from ..wording import NBSP, count, fixed, listing, number, percent
from .studies import Several, scores, winner_of
from .transfer import single

NAME = "Performance profile"
NEEDED = 5  # data sets; below, a share of them is told better by naming each
TUNED, DEFAULT = "tuned on each", "default"
NEAR = 0.95  # of the tuned score: nearly as good
TOLD = (0.8, 0.9, NEAR, 1.0, 1.05)
POINTS = 101


def profile(several: Several) -> Finding:
    """Of the tuned setting of each data set, its default and the best single setting: shares of runs by score."""
    studies = _one_a_data_set(several)
    used = count(len(studies), "data set")
    if len(studies) < NEEDED:
        data = f"{len(studies)} {'is' if len(studies) == 1 else 'are'} at hand"
        needs = (
            f"Needs {NEEDED} data sets, as below that a profile is a stair of a few steps; {data}. A study of the same "
            "space on other data fills it:"
        )
        return Finding(NAME, used, refusal=Refusal(needs, commands.elsewhere(several.studies[0])))
    blocks = {label: _block(several, study) for label, study in studies}
    short = [(label, study) for label, study in studies if len(blocks[label]) < FRESH_NEEDED]
    if short:
        who = listing([label for label, _ in short])
        needs = Markup("Needs {} fresh seeds that winner and default share on each data set; {} {} fewer:").format(
            FRESH_NEEDED, who, "has" if len(short) == 1 else "have"
        )
        run = "\n".join(commands.confirm(study) for _, study in short)
        return Finding(NAME, used, refusal=Refusal(needs, run))
    one, carried = single(several, [label for label, _ in studies])
    for label in blocks if one is not None else ():
        blocks[label] = blocks[label].join(carried[label].rename(f"{one} on all"), how="inner")
    if min(float(block.min().min()) for block in blocks.values()) <= 0:
        needs = (
            "Scores are set against the tuned one by division, so all have to be positive; some are not. Other data:"
        )
        return Finding(NAME, used, refusal=Refusal(needs, commands.elsewhere(several.studies[0])))
    metric = several.metric
    runs = [{arm: block[arm].to_numpy(dtype=float) for arm in block} for block in blocks.values()]
    thresholds = _thresholds(runs, metric.better)
    rng = generator(0, "several.profiles")
    found = profiles(runs, TUNED, thresholds, rng, metric.better)
    frame = pd.DataFrame([row for arm, own in found.items() for row in _rows(arm, thresholds, own)])
    told = frame[frame["threshold"].isin(TOLD)].sort_values(["threshold", "name"], kind="stable", ignore_index=True)
    fewest = min(len(block) for block in blocks.values())
    return Finding(
        title=_title(told, len(blocks), metric.label),
        used=f"{used}, {count(fewest, 'fresh seed')} or more each, {metric.split or 'reported'} split",
        frames={"profiles": frame, "told": told},
        numbers={
            "data_sets": len(blocks),
            "seeds": fewest,
            "tuned_means": {k: b[TUNED].mean() for k, b in blocks.items()},
        },
        sentences=tuple(_sentences(several, len(studies), one)),
        alts={"profiles": _alt(told, thresholds, len(blocks))},
    )


def draw(several: Several, finding: Finding) -> Markup:
    frame, told = finding.frames["profiles"], finding.frames["told"]
    drawing = pictures.profile(frame, x_label="score over that of the tuned setting", y_label="runs, %", mark=NEAR)
    columns = [
        Column("threshold", "Reaching, of the tuned score", lambda row: _percent(row["threshold"])),
        Column("name", "Setting", lambda row: row["name"], False),
        Column("share", "Share of runs", _share),
    ]
    drawn = beside(figure(drawing, "profiles-0", finding.alts["profiles"]), finding.sentences)
    return drawn + table("profiles.told", told, columns, label=NAME)


def _one_a_data_set(several: Several) -> list[tuple[str, Study]]:
    """Of the studies of one data set, that whose winner is the best on validation."""
    found: dict[Any, tuple[float, str, Study]] = {}
    for label, study in several.each():
        winner = winner_of(study)
        values = winner.values(study.objective.column) if winner is not None else pd.Series(dtype=float)
        level = -several.metric.better * float(values.mean()) if len(values) else math.inf
        key = (study.meta.get("data") or {}).get("key") or study.path
        if key not in found or level < found[key][0]:
            found[key] = (level, label, study)
    return [(label, study) for _, label, study in found.values()]


def _block(several: Several, study: Study) -> pd.DataFrame:
    """Scores of winner and default by the seeds that both ran on."""
    chosen, metric = choose(study), several.metric
    arms = {TUNED: scores(chosen.winner, metric), DEFAULT: scores(chosen.default, metric)}
    return pd.DataFrame(arms).dropna() if all(len(own) for own in arms.values()) else pd.DataFrame()


def _thresholds(runs: list[dict[str, np.ndarray]], better: int) -> np.ndarray:
    """From below the worst to above the best relative score, with the told ones among them."""
    relative = [(own / block[TUNED].mean()) ** (1 if better > 0 else -1) for block in runs for own in block.values()]
    every = np.concatenate(relative)
    low, high = float(every.min()), float(every.max())
    pad = 0.05 * (high - low) or 0.01
    grid = np.linspace(low - pad, high + pad, POINTS)
    return np.unique(np.r_[grid, [t for t in TOLD if t == NEAR or grid[0] <= t <= grid[-1]]])


def _rows(arm: str, thresholds: np.ndarray, own: Profile) -> list[dict[str, Any]]:
    return [
        {"name": arm, "threshold": float(t), "share": float(s), "lo": float(lo), "hi": float(hi)}
        for t, s, lo, hi in zip(thresholds, own.share, own.lo, own.hi)
    ]


def _title(told: pd.DataFrame, sets: int, label: str) -> Markup:
    near = {row["name"]: row for row in told[told["threshold"] == NEAR].to_dict(orient="records")}
    shares = [Markup("{} of the {}").format(_share(near[arm]), words)
              for arm, words in ((DEFAULT, "default’s runs"), (TUNED, "tuned ones"))]  # fmt: skip
    return Markup("Over {}, {} reach {} of the tuned {}, {}").format(
        count(sets, "data set"), shares[0], _percent(NEAR), label, shares[1]
    )


def _sentences(several: Several, sets: int, one: str | None) -> list[Markup | str]:
    said: list[Markup | str] = [
        "The share of the runs, every data set counting the same, whose score is at least so much of the mean of the "
        "setting tuned there. A line that lies above another has more runs at every score.",
        f"Bands: stratified bootstrap over the seeds of each data set, 95 % at each score by itself; they speak of "
        f"these {sets} data sets, not of others.",
    ]
    if one is not None:
        said.append(Markup("“{} on all”: the single setting that loses least on average.").format(one))
    if len(several.studies) > sets:
        said.append("Of studies on the same data, the one whose winner is the best on validation.")
    return said


def _alt(told: pd.DataFrame, thresholds: np.ndarray, sets: int) -> Alt:
    parts = [
        f"x: score over that of the tuned setting, {fixed(thresholds[0], 2)} to {fixed(thresholds[-1], 2)}, linear; "
        f"y: share of runs over {count(sets, 'data set')}, bands of 95 %."
    ]
    near = told[told["threshold"] == NEAR].to_dict(orient="records")
    shown = [f"{row['name']} {_share(row).striptags()}" for row in near]
    parts.append(f"At {_percent(NEAR)}: {', '.join(shown)}.")
    return Alt("Runs above each score", " ".join(parts))


def _percent(share: float) -> str:
    return f"{fixed(100 * share, 0)}{NBSP}%"


def _share(row: Mapping[str, Any]) -> Markup:
    text = number(row["share"], percent(row["share"]))
    ends = f"[{fixed(100 * row['lo'], 0)},{NBSP}{fixed(100 * row['hi'], 0)}]"
    return Markup('{} <span class="ci">{}</span>').format(text, ends)
