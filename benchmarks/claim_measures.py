"""How the claims of papers are measured on studies: differences and levels of arms over fresh seeds, paired by seed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from mmts_ray.analysis import choice, statistics, tables
from mmts_ray.analysis.panels import curves, similarities

KS = (18, 100, 500)
FIXED, PUBLISHED, MATCHED = "fixed at margin 0.2", "TS and ICS as published", "TS and ICS around 0.1"


@dataclass(frozen=True)
class Row:
    """A measured number; `expected` is what the claim says of it: +, -, 0 (parity), >= (no loss), >=99, or nothing."""

    claim: str
    quantity: str
    value: float
    lo: float
    hi: float
    n: int
    unit: str
    expected: str


@dataclass(frozen=True)
class Claim:
    """What a paper says; `measure` gives (quantity, Interval, unit, expected) from a study; None: not testable here."""

    key: str
    paper: str
    says: str
    reports: str
    study: str | None
    measure: Callable[["Arms"], list[tuple[str, statistics.Interval, str, str]]] | None
    note: str = ""


class Arms:
    """Fresh runs of a study by the names of its arms."""

    def __init__(self, folder: Path) -> None:
        self.study = tables.load(folder)
        self.by_name = {c.label: c for c in choice.candidates(self.study)}

    def values(self, name: str, metric: str = "i2t_r1", split: str = "test") -> pd.Series:
        """Values by seed, in percent when they are shares."""
        found = self.by_name[name].values(f"metric.{split}_{metric}")
        return found * (100 if metric.endswith(("r1", "r5", "r10", "accuracy", "map", "ndcg")) else 1)

    def mean(self, names: list[str], metric: str = "i2t_r1") -> pd.Series:
        """Mean over arms, seed by seed."""
        return pd.concat([self.values(name, metric) for name in names], axis=1, join="inner").mean(axis=1)

    def best(self, names: list[str], metric: str = "i2t_r1") -> str:
        """The arm with the best mean on validation: what a user would have chosen."""
        return max(names, key=lambda name: float(self.values(name, metric, "val").mean()))

    def curve(self, start: str) -> list[str]:
        return [name for name in self.by_name if name.startswith(f"{start} at ")]


def minus(a: pd.Series, b: pd.Series) -> statistics.Interval:
    found = statistics.difference(a, b)
    assert found is not None
    assert found.paired, "arms of a study share their seeds"
    return found


def level(values: pd.Series) -> statistics.Interval:
    return statistics.t_interval(values)


def diff(a: str, b: str, expected: str, metric: str = "i2t_r1", unit: str = "points", what: str = "R@1"):
    def measure(arms: Arms):
        return [(f"{what}, {a} minus {b}", minus(arms.values(a, metric), arms.values(b, metric)), unit, expected)]

    return measure


def together(*measures):
    return lambda arms: [row for measure in measures for row in measure(arms)]


def level_of(name: str, metric: str, unit: str, what: str, expected: str = ""):
    return lambda arms: [(f"{what}, {name}", level(arms.values(name, metric)), unit, expected)]


def clusters(arms: Arms):
    """Clusters of captions against clusters of images, the mean over K, seed by seed."""
    rows = []
    for start in ("ICS", "TS and ICS"):
        a, b = ([f"{start} {source} at K {k}" for k in KS] for source in ("captions", "images"))
        rows.append(
            (f"R@1, {start}: captions minus images, mean over K", minus(arms.mean(a), arms.mean(b)), "points", "+")
        )
    return rows


def over_starts(arms: Arms):
    """Mean over the starts that both curves have, paired by seed."""
    rows = []
    for other in ("MM-TS around it", "MM-TS above it", "learnable"):
        starts = [name.removeprefix(other) for name in arms.curve(other)]
        ours, theirs = ([f"{curve}{start}" for start in starts] for curve in (other, "fixed"))
        found = minus(arms.mean(ours), arms.mean(theirs))
        expected = "+" if other.startswith("MM-TS") else ""
        rows.append((f"R@1, mean over {len(starts)} starts, {other} minus fixed", found, "points", expected))
    return rows


def widths(arms: Arms):
    _, points = curves.points_of(arms.study)
    rows = curves.widths(arms.study, points)
    n = min(len(p.arm.done) for p in points)
    return [
        (
            f"share of the starts (0.01 to 0.4, log) within 1.25 seed sd of the best, {row.curve}",
            statistics.Interval(100 * row.share, 100 * row.share_lo, 100 * row.share_hi, n),
            "%",
            "",
        )
        for row in rows.itertuples()
    ]


def wider(arms: Arms):
    """Differences of those shares, from joint draws."""
    _, points = curves.points_of(arms.study)
    share = curves.widths(arms.study, points).set_index("curve")["share"]
    draws = curves.share_draws(arms.study, points)
    n = min(len(p.arm.done) for p in points)
    rows = []
    for curve in ("MM-TS around it", "MM-TS above it", "learnable"):
        lo, hi = np.quantile(draws[curve] - draws["fixed"], [0.025, 0.975])
        found = statistics.Interval(*(100 * float(x) for x in (share[curve] - share["fixed"], lo, hi)), n)
        expected = "+" if curve.startswith("MM-TS") else ""
        rows.append((f"share of the starts near the best, {curve} minus fixed", found, "points", expected))
    for start in (0.01, 0.4):
        names = [f"{curve} at temperature {start}" for curve in ("MM-TS above it", "fixed")]
        rows.append((f"R@1, {names[0]} minus fixed", minus(*map(arms.values, names)), "points", ""))
    return rows


def sizes(arms: Arms):
    rows = []
    for curve in ("range of the schedule", "size of the shift"):
        small, wide = f"{curve} at size 0.02", f"{curve} at size 0.4"
        top = arms.best(arms.curve(curve))
        rows.append((f"R@1, {top} minus fixed 0.03", minus(arms.values(top), arms.values("fixed 0.03")), "points", "+"))
        rows.append((f"R@1, {wide} minus {small}", minus(arms.values(wide), arms.values(small)), "points", "0"))
    return rows


def monotone(mode: str):
    def measure(arms: Arms):
        names = [f"xNCE {mode} at r_mix {r}" for r in (0.01, 0.05, 0.1, 0.25, 0.5)]
        slope = {}
        for metric in ("modality_distance", "i2t_r1"):
            table = pd.concat([arms.values(name, metric) for name in names], axis=1, join="inner")
            slope[metric] = pd.Series(np.polyfit(range(len(names)), table.to_numpy().T, 1)[0], index=table.index)
        return [
            (f"modality distance per step of r_mix (0.01, 0.05, 0.1, 0.25, 0.5), {mode}",
             level(slope["modality_distance"]), "distance", "-"),
            (f"R@1 per step of r_mix, {mode}", level(slope["i2t_r1"]), "points", "-"),
        ]  # fmt: skip

    return measure


def transition(arms: Arms):
    return [
        (f"modality accuracy, {arm} at temperature {t}",
         level(arms.values(f"{arm} at temperature {t}", "modality_accuracy")), "%", "")
        for arm in ("InfoNCE", "xNCE r_mix 0.01") for t in (0.01, 0.03, 0.09, 0.5)
    ]  # fmt: skip


def steepest(arms: Arms):
    """Largest fall of the modality accuracy between neighbouring temperatures, xNCE minus InfoNCE, seed by seed."""
    temperatures = (0.01, 0.03, 0.05, 0.09, 0.2, 0.5)
    falls = {}
    for arm in ("InfoNCE", "xNCE r_mix 0.01"):
        table = pd.concat([arms.values(f"{arm} at temperature {t}", "modality_accuracy") for t in temperatures], axis=1)
        falls[arm] = (-table.diff(axis=1)).max(axis=1)
    found = minus(falls["xNCE r_mix 0.01"], falls["InfoNCE"])
    return [("largest fall of modality accuracy between neighbours, xNCE minus InfoNCE", found, "points", "-")]


def removed(arms: Arms):
    finding = similarities.similarities(arms.study)
    bars, pairs = finding.frames["cosines"], int(finding.numbers["images_compared"])
    rows = []
    for threshold in (0.8, 0.9):
        share = 100 * similarities._above(bars, "captions", threshold)
        rows.append((f"caption pairs with a teacher cosine above {threshold}",
                     statistics.Interval(share, share, share, pairs), "%", ""))  # fmt: skip
    top = finding.frames["ranks"].set_index("arm").loc["no filter"]
    for key, words in (("within_100", "among the first 100"), ("beyond_200", "beyond 200")):
        found = statistics.Interval(*(100 * top[k] for k in (key, f"{key}_lo", f"{key}_hi")), int(top["n"]))
        rows.append((f"test images whose true caption is {words}, no filter", found, "%", ""))
    return rows


def against_tuned(arms: Arms):
    """Schedules and shifts against the fixed margin that validation chose."""
    tuned = arms.best(arms.curve("fixed"), "i2t_map")
    rows = []
    for name in ("TS around 0.1", "ICS 0.06 to 0.19", MATCHED, "TS around 0.2", PUBLISHED):
        found = minus(arms.values(name, "i2t_map"), arms.values(tuned, "i2t_map"))
        rows.append((f"mAP, video to text, {name} minus the tuned margin", found, "points", "+"))
    return rows
