"""What the papers claim and what the default data show: writes docs/claims.csv and, from it, docs/claims.md.

    python benchmarks/claims.py STUDIES      # a folder with studies of search_spaces/studies; others keep their rows
    python benchmarks/claims.py              # only docs/claims.md, from the docs/claims.csv that is there

Every number of the page is a row of the table, except what the papers report. A difference is paired by seed (same
initialisation, data order and dropout) on the test split, with a 95 % t interval over fresh seeds.
"""

import argparse
import csv
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pandas as pd
from mmts_ray.analysis import choice, statistics, tables
from mmts_ray.analysis.panels import curves, similarities
from mmts_ray.analysis.wording import fixed, signed

DOCS = Path(__file__).parents[1] / "docs"
PARITY = 2.0  # points: parity is shown when the interval lies inside, no loss when it ends above the lower end
UNITS = {"points": ("points", 1), "%": ("%", 1), "distance": ("", 2), "fold": ("fold", 1)}
KS = (18, 100, 500)


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


def _diff(a: str, b: str, expected: str, metric: str = "i2t_r1", unit: str = "points", what: str = "R@1"):
    def measure(arms: Arms):
        return [(f"{what}, {a} minus {b}", minus(arms.values(a, metric), arms.values(b, metric)), unit, expected)]

    return measure


def _together(*measures):
    return lambda arms: [row for measure in measures for row in measure(arms)]


def _level(name: str, metric: str, unit: str, what: str, expected: str = ""):
    return lambda arms: [(f"{what}, {name}", level(arms.values(name, metric)), unit, expected)]


def _clusters(arms: Arms):
    """Clusters of captions against clusters of images, the mean over K, seed by seed."""
    rows = []
    for start in ("ICS", "TS and ICS"):
        a, b = ([f"{start} {source} at K {k}" for k in KS] for source in ("captions", "images"))
        rows.append(
            (f"R@1, {start}: captions minus images, mean over K", minus(arms.mean(a), arms.mean(b)), "points", "+")
        )
    return rows


def _over_starts(arms: Arms):
    """Mean over the starts that both curves have, paired by seed."""
    rows = []
    for other in ("MM-TS around it", "MM-TS above it", "learnable"):
        starts = [name.removeprefix(other) for name in arms.curve(other)]
        ours, theirs = ([f"{curve}{start}" for start in starts] for curve in (other, "fixed"))
        found = minus(arms.mean(ours), arms.mean(theirs))
        expected = "+" if other.startswith("MM-TS") else ""
        rows.append((f"R@1, mean over {len(starts)} starts, {other} minus fixed", found, "points", expected))
    return rows


def _widths(arms: Arms):
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


def _wider(arms: Arms):
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


def _sizes(arms: Arms):
    rows = []
    for curve in ("range of the schedule", "size of the shift"):
        small, wide = f"{curve} at size 0.02", f"{curve} at size 0.4"
        top = arms.best(arms.curve(curve))
        rows.append((f"R@1, {top} minus fixed 0.03", minus(arms.values(top), arms.values("fixed 0.03")), "points", "+"))
        rows.append((f"R@1, {wide} minus {small}", minus(arms.values(wide), arms.values(small)), "points", "0"))
    return rows


def _monotone(mode: str):
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


def _transition(arms: Arms):
    return [
        (f"modality accuracy, {arm} at temperature {t}",
         level(arms.values(f"{arm} at temperature {t}", "modality_accuracy")), "%", "")
        for arm in ("InfoNCE", "xNCE r_mix 0.01") for t in (0.01, 0.03, 0.09, 0.5)
    ]  # fmt: skip


def _steepest(arms: Arms):
    """Largest fall of the modality accuracy between neighbouring temperatures, xNCE minus InfoNCE, seed by seed."""
    temperatures = (0.01, 0.03, 0.05, 0.09, 0.2, 0.5)
    falls = {}
    for arm in ("InfoNCE", "xNCE r_mix 0.01"):
        table = pd.concat([arms.values(f"{arm} at temperature {t}", "modality_accuracy") for t in temperatures], axis=1)
        falls[arm] = (-table.diff(axis=1)).max(axis=1)
    found = minus(falls["xNCE r_mix 0.01"], falls["InfoNCE"])
    return [("largest fall of modality accuracy between neighbours, xNCE minus InfoNCE", found, "points", "-")]


def _removed(arms: Arms):
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


def _against_tuned(arms: Arms):
    """Schedules and shifts against the fixed margin that validation chose."""
    tuned = arms.best(arms.curve("fixed"), "i2t_map")
    rows = []
    for name in ("TS around 0.1", "ICS 0.06 to 0.19", MATCHED, "TS around 0.2", PUBLISHED):
        found = minus(arms.values(name, "i2t_map"), arms.values(tuned, "i2t_map"))
        rows.append((f"mAP, video to text, {name} minus the tuned margin", found, "points", "+"))
    return rows


LOW, MIXED, HALF = "InfoNCE at r_mix 0", "xNCE replace at r_mix 0.01", "xNCE replace at r_mix 0.5"
MMTS, XNCE, KDMCSE = "MM-TS, arXiv:2603.08202", "xNCE, arXiv:2607.10698", "KDMCSE and AdapACSE, arXiv:2403.17486"
VIDEO = "MM-TS on EPIC-KITCHENS-100, with stand-in clip features"
DRAFT = "A draft of this project"
FIXED, PUBLISHED, MATCHED = "fixed at margin 0.2", "TS and ICS as published", "TS and ICS around 0.1"
OWN, OWN_BOTH = "own narration fixed at margin 0.2", "own narration TS and ICS as published"
BOTH = "TS and ICS captions at K 100"
INTRODUCTION = """\
# What the papers claim, and what this data show

The default data (drawings and names of emoji, frozen encoders, trained heads, 10 epochs, learning rate 0.001), image to
text, test split. Differences are paired by seed: same initialisation, data order and dropout; 95 % t intervals over
fresh seeds. ✓: the interval is on the side that the claim expects; for parity it lies inside ±{parity} points, for “no
loss” above −{parity}. Where it is not (✗), the claim is not reproduced *here*: on small data with frozen encoders,
which the papers do not speak about, and with the seeds given, which may be too few to see a small effect. All rest on
the same few hundred test images, so their errors are not independent, and nothing is corrected for looking at many.

Written by `python benchmarks/claims.py studies`, from `docs/claims.csv`, after each study was run with the command in
the head of its file in [search_spaces/studies](../search_spaces/studies); for want of an idle machine, part of the runs
behind this table went through the platform's trial code without Ray, which trains the same numbers. The figures are in
each study's report, under “Studied quantity”, “Similarities” and “Trade-offs”.

The section on EPIC-KITCHENS-100 rests on its annotations and official test, 9,668 clips against 3,842 captions, with
*stand-in* clip features: an embedding of each clip's own narration plus noise, no video; linear heads, 28 thousand
training clips."""
CLAIMS = (
    Claim(
        "schedule",
        MMTS,
        "The temporal schedule alone helps InfoNCE",
        "helps (numbers not recovered)",
        "mmts_ablation",
        _together(_diff("TS", "fixed 0.05", "+"), _diff("TS", "fixed 0.1", "+")),
    ),
    Claim(
        "shift",
        MMTS,
        "The cluster shift alone helps",
        "helps (numbers not recovered)",
        "mmts_ablation",
        _together(_diff("ICS captions at K 100", "fixed 0.05", "+"), _diff("ICS captions at K 100", "fixed 0.1", "+")),
    ),
    Claim(
        "both",
        MMTS,
        "Together they are best",
        "Flickr30K text R@1 50.9 to 54.3, COCO 26.9 to 28.4",
        "mmts_ablation",
        _together(
            _diff(BOTH, "fixed 0.05", "+"),
            _diff(BOTH, "fixed 0.1", "+"),
            _diff(BOTH, "TS", "+"),
            _diff(BOTH, "ICS captions at K 100", "+"),
        ),
    ),
    Claim(
        "tail",
        MMTS,
        "The tail gains",
        "not recovered for the tail",
        "mmts_ablation",
        _together(
            _diff(BOTH, "fixed 0.05", "+", "tail_r1", what="tail R@1"),
            _diff(BOTH, "fixed 0.05", "", "head_r1", what="head R@1"),
        ),
    ),
    Claim(
        "text clusters",
        MMTS,
        "Clusters of text are better than clusters of pictures",
        "text better (numbers not recovered)",
        "mmts_ablation",
        _clusters,
    ),
    Claim(
        "number of clusters",
        MMTS,
        "The number of clusters matters little",
        "robust (numbers not recovered)",
        "mmts_ablation",
        _diff("TS and ICS captions at K 500", "TS and ICS captions at K 18", "0"),
    ),
    Claim(
        "tuned",
        MMTS,
        "A tuned MM-TS beats a tuned temperature, fixed or learned",
        "its baselines have one temperature",
        "tuned_temperature",
        _together(
            _diff("MM-TS 0.025 to 0.075", "fixed 0.05", "+"),
            _diff("MM-TS 0.05 to 0.15", "fixed 0.1", "+"),
            _diff("MM-TS 0.05 to 0.15", "learnable from 0.1", "+"),
        ),
        "The two best starts of start_temperature by validation, each with MM-TS from half to one and a half times it; "
        "one learning rate.",
    ),
    Claim(
        "range",
        MMTS,
        "MM-TS is robust to the temperature range",
        "robust (numbers not recovered)",
        "start_temperature",
        _together(_widths, _over_starts),
        "“around it” spans half to one and a half times the start; “above it” adds up to 0.2, so that its lowest "
        "starts are not low at all.",
    ),
    Claim(
        "sizes",
        MMTS,
        "A schedule or a shift of a fitting size helps, and its size matters little",
        "robust (numbers not recovered)",
        "temperature_range",
        _sizes,
    ),
    Claim(
        "video margins",
        VIDEO,
        "The published margins beat a fixed margin of 0.2",
        "EK-100 mAP 52.0 to 53.9, nDCG 66.5 to 67.3",
        "epic100_margins",
        _together(
            _diff(PUBLISHED, FIXED, "+", "i2t_map", what="mAP, video to text"),
            _diff(PUBLISHED, FIXED, "+", "t2i_map", what="mAP, text to video"),
            _diff(PUBLISHED, FIXED, "+", "ndcg", what="nDCG, both ways"),
            _diff("TS around 0.2", FIXED, "", "i2t_map", what="mAP, video to text"),
            _diff("ICS 0.17 to 0.30", FIXED, "", "i2t_map", what="mAP, video to text"),
        ),
    ),
    Claim(
        "video tuned",
        VIDEO,
        "... and one that was tuned, by any of its parts",
        "its baseline has one margin",
        "epic100_margins",
        _against_tuned,
        "The fixed margin is the best of five by validation mAP; the parts have their mean margin near 0.1 or 0.2.",
    ),
    Claim(
        "video tail",
        VIDEO,
        "Rare nouns gain",
        "not recovered for the tail",
        "epic100_margins",
        _together(
            _diff(PUBLISHED, FIXED, "+", "rare_map", what="mAP of the rare third of the clips"),
            _diff(PUBLISHED, FIXED, "", "medium_map", what="mAP of the medium third of the clips"),
            _diff(PUBLISHED, FIXED, "", "common_map", what="mAP of the common third of the clips"),
            _diff(MATCHED, "fixed at margin 0.1", "+", "rare_map", what="mAP of the rare third of the clips"),
            _diff(MATCHED, "fixed at margin 0.1", "", "common_map", what="mAP of the common third of the clips"),
            _diff(PUBLISHED, FIXED, "", "tail_map", what="mAP of the tail third of the nouns"),
        ),
    ),
    Claim(
        "video captions",
        VIDEO,
        "Which caption a clip is trained with",
        "a random relevant one",
        "epic100_margins",
        _together(
            _diff(OWN, FIXED, "", "i2t_map", what="mAP, video to text"),
            _diff(OWN, FIXED, "", "i2t_ndcg", what="nDCG, video to text"),
            _diff(OWN_BOTH, OWN, "", "i2t_map", what="mAP, video to text"),
        ),
    ),
    Claim(
        "video",
        MMTS,
        "EK-100 mAP 52.0 to 53.9, YouCook2 R@1 50.4 to 53.0",
        "as said",
        None,
        None,
        "Needs the videos and their backbones.",
    ),
    Claim(
        "separation",
        XNCE,
        "InfoNCE at temperature 0.01 separates the modalities completely",
        "MNIST: distance 0.75, accuracy 100 %",
        "r_mix",
        _together(
            _level(LOW, "modality_distance", "distance", "modality distance"),
            _level(LOW, "modality_accuracy", "%", "modality accuracy", ">=99"),
        ),
    ),
    Claim(
        "gap closes",
        XNCE,
        "One percent of intra-modal negatives closes the gap",
        "COCO 0.88 to 0.12, MNIST 0.75 to 0.09",
        "r_mix",
        _together(
            _diff(MIXED, LOW, "-", "modality_distance", "distance", "modality distance"),
            _diff("xNCE weighted at r_mix 0.01", LOW, "-", "modality_distance", "distance", "modality distance"),
        ),
    ),
    Claim(
        "retrieval kept",
        XNCE,
        "... at R@5 and R@10 on par and a marginal drop of R@1",
        "parity",
        "r_mix",
        _together(
            _diff(MIXED, LOW, ">=", "i2t_r5", what="R@5"),
            _diff(MIXED, LOW, ">=", "i2t_r10", what="R@10"),
            _diff(MIXED, LOW, "", "i2t_r1"),
        ),
    ),
    Claim(
        "more mixing",
        XNCE,
        "Raising r_mix lowers the gap and the retrieval steadily",
        "both monotone",
        "r_mix",
        _together(_monotone("replace"), _monotone("weighted")),
    ),
    Claim(
        "learnable",
        XNCE,
        "InfoNCE with a learned temperature has the best R@1",
        "best of all, distance 0.88",
        "r_mix",
        _together(
            _diff("InfoNCE learnable temperature", MIXED, "+"),
            _diff("InfoNCE learnable temperature", HALF, "+"),
            _level("InfoNCE learnable temperature", "modality_distance", "distance", "modality distance"),
        ),
    ),
    Claim(
        "high temperature",
        XNCE,
        "A high temperature closes the gap and ruins R@1",
        "R@1 about 15 %",
        "r_mix",
        _together(
            _diff("InfoNCE high temperature", LOW, "-", "modality_distance", "distance", "modality distance"),
            _diff("InfoNCE high temperature", LOW, "-"),
        ),
    ),
    Claim(
        "regularized",
        XNCE,
        "Regularized InfoNCE closes the gap as well",
        "COCO distance 0.12",
        "r_mix",
        _together(
            _diff("regularized InfoNCE", LOW, "-", "modality_distance", "distance", "modality distance"),
            _diff("regularized InfoNCE", MIXED, ""),
        ),
    ),
    Claim(
        "transition",
        XNCE,
        "InfoNCE's overlap changes sharply near temperature 0.09, xNCE's gradually",
        "sharp near 0.09 on MNIST",
        "temperature",
        _together(_steepest, _transition),
    ),
    Claim(
        "probe",
        XNCE,
        "Linear probe and zero-shot improve",
        "zero-shot better on four sets",
        None,
        None,
        "Needs labelled classification sets; the default data have none.",
    ),
    Claim(
        "margin",
        KDMCSE,
        "An angular margin of 0.125 is best, less and more are worse",
        "peak at 0.125",
        "angular_margin",
        _together(
            _diff("AdapACSE at margin 0.125", "AdapACSE at margin 0", "+"),
            _diff("AdapACSE at margin 0.225", "AdapACSE at margin 0.125", "-"),
        ),
    ),
    Claim(
        "filter",
        KDMCSE,
        "The filter of false negatives helps slightly",
        "a slight loss without it",
        "filter_threshold",
        _together(
            _diff("filter at threshold 0.9", "no filter", "+"), _diff("filter at threshold 0.8", "no filter", "+")
        ),
    ),
    Claim(
        "few above",
        KDMCSE,
        "Few pairs lie above 0.8; most true captions rank in the first 100, some beyond 200",
        "histogram",
        "filter_threshold",
        _removed,
        "The teacher's own caption rank needs encoders that share a space; the ranks are those of the trained model.",
    ),
    Claim(
        "sentences",
        KDMCSE,
        "STS average 77.3 to 78.6",
        "as said",
        None,
        None,
        "Needs a sentence encoder trained on Wiki1M.",
    ),
    Claim(
        "draft, equal",
        DRAFT,
        "MM-TS equals a well-tuned fixed temperature within noise",
        "suspected on the default data",
        "tuned_temperature",
        _together(
            _diff("MM-TS 0.025 to 0.075", "fixed 0.05", "0"),
            _diff("MM-TS 0.05 to 0.15", "fixed 0.1", "0"),
        ),
    ),
    Claim(
        "draft, start",
        DRAFT,
        "... but is far less sensitive to where the temperature starts",
        "suspected on the default data",
        "start_temperature",
        _wider,
    ),
)


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
