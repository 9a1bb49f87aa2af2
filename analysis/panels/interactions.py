"""Which pairs of parameters only work together: products beyond their own effects, by pair, and pictures of two."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from .. import commands
from ..finding import Finding, Refusal
from ..model import WEAK, Model, model_of
from ..page import Column, beside, more, notes, table
from ..statistics import Interval
from ..tables import Metric, Study
from ..wording import NBSP, change, count, fixed, listing, number, percent, points, significant
from . import surfaces
from .importance import lacking, p_text

NAME = "Interactions"
PER_PARAMETER = 10  # configurations per parameter below which main effects eat the data
SHOWN = 10
MOST_MAPPED = 8  # parameters in the map, the most important
FEW = 3  # configurations in a quarter of the two ranges below which a product is a guess about a corner
TAU = ("schedule.value", "schedule.tau_min", "schedule.init")
MARGINS = ("loss.angular_margin",)
THRESHOLDS = (
    "loss.filter_threshold", "loss.filter_threshold_image", "loss.text_threshold", "loss.image_threshold",
)  # fmt: skip
# the pairs that the papers speak of: amplitude and shift (MM-TS), temperature and batch, share of intra-modal negatives
# and temperature (xNCE), margin and filter (AdapACSE)
PAPERS = (
    (("schedule.alpha",), ("schedule.spread",)),
    (TAU, ("train.batch_size",)),
    (("loss.r_mix",), TAU),
    (MARGINS, THRESHOLDS),
)


def interactions(study: Study) -> Finding:
    """Every testable pair: its share, its effect with limits, whether they exclude 0; a map, and up to two surfaces."""
    model = model_of(study)
    n, wanted = len(model.paired), PER_PARAMETER * len(model.parameters)
    refused = lacking(study, model)
    if refused is None and len(model.parameters) < 2:
        refused = Refusal("Needs two searched parameters; this study has one. A wider space fills it:",
                          commands.widen(study))  # fmt: skip
    if refused is None and n < wanted:
        ran = "1 ran to its end" if n == 1 else f"{n} ran to their end"
        needs = f"Needs {wanted} configurations, {PER_PARAMETER} per parameter; {ran}. More fill it:"
        refused = Refusal(needs, commands.extend(study))
        if model.steered:
            needs = (
                f"Needs {wanted} configurations drawn at random, {PER_PARAMETER} per parameter; {n} "
                f"{'was' if n == 1 else 'were'}. Where a sampler followed the scores, pairs are invented three times "
                "too often."
            )
            words, command = commands.controls(study, wanted)
            refused = Refusal(f"{needs} {words}", command)
    if refused is None and model.pairs is None:
        needs = "The configurations cannot tell products from single effects (too few distinct values). More fill it:"
        refused = Refusal(needs, commands.extend(study))
    if refused is not None or model.pairs is None:
        return Finding(NAME, count(n, "configuration"), refusal=refused)
    frame = _pairs(study, model)
    drawn = _pictured(frame) if model.quality >= WEAK else []
    made = {pair["pair"]: found for pair in drawn if (found := surfaces.surface(model, pair)) is not None}
    frames = {"pairs": frame, "map": _map(model, frame)}
    if made:
        frames["surface"] = pd.concat([cells for cells, _ in made.values()], ignore_index=True)
        frames["surface_trials"] = pd.concat([dots for _, dots in made.values()], ignore_index=True)
    return Finding(
        title=_title(frame),
        used=f"{count(n, 'configuration')}{' drawn at random' if model.steered else ''}",
        frames=frames,
        numbers={"configurations": n, "pairs": len(frame), "selected": int(frame["selected"].sum())},
        sentences=tuple(_sentences(model, frame, list(made))),
        alts={
            pair["pair"]: surfaces.alt(study, model, pair, made[pair["pair"]][0])
            for pair in drawn
            if pair["pair"] in made
        },
    )


def draw(study: Study, finding: Finding) -> Markup:
    frame, metric = finding.frames["pairs"], study.objective
    columns = [
        Column("pair", "Pair", lambda row: row["pair"], False),
        Column("selected", "Together?", _verdict, False),
        Column("share", "Share of the variance", _share),
        Column(
            "effect", f"Effect, sd{' in' if metric.share else ''}{points(metric)}", lambda row: _effect(row, metric)
        ),
        Column("p", "P, this pair", lambda row: p_text(row["p"], 0.0)),
        Column("fewest", "Fewest in a quarter", lambda row: str(row["fewest"])),
    ]
    listed = table("interactions.pairs", frame, columns, label="Pairs of parameters")
    if len(frame) > SHOWN:
        listed = more(f"All {len(frame)} pairs", listed)
    mapped = _drawn_map(study, finding.frames["map"], frame)
    pictures = Markup("")
    for place, (name, alt) in enumerate(finding.alts.items()):
        own = frame[frame["pair"] == name].iloc[0]
        cells, trials = (f[f["pair"] == name] for f in (finding.frames["surface"], finding.frames["surface_trials"]))
        pictures += surfaces.picture(study, own, cells, trials, place, alt)
    if pictures:
        return mapped + beside(pictures, finding.sentences) + listed
    return mapped + notes(finding.sentences) + listed


def _pairs(study: Study, model: Model) -> pd.DataFrame:
    """The papers' pairs first, then those that are established, then by p."""
    assert model.pairs is not None
    paths = [p.path for p in model.parameters]
    variance = float(np.var(model.paired["score"].to_numpy(dtype=float)))
    rows = []
    for pair in model.pairs:
        first, second = paths[pair.first], paths[pair.second]
        few = pair.fewest < FEW or not math.isfinite(pair.effect)
        sizes = (pair.effect, pair.lo, pair.hi, pair.null) if not few else (math.nan,) * 4
        share, low, high, null = np.minimum(1.0, np.square(sizes) / variance).tolist()
        rows.append(
            {
                "first": first,
                "second": second,
                "pair": f"{study.named(first)} × {study.named(second)}",
                **{"share": share, "share_lo": low, "share_hi": high, "null": null},
                **{"effect": sizes[0], "lo": sizes[1], "hi": sizes[2]},
                "p": pair.p,
                "fewest": pair.fewest,
                "few": few,
                "selected": not few and pair.lo > 0,
                "together": study.objective.better * pair.slope > 0,
                "paper": paper(first, second),
            }
        )
    frame = pd.DataFrame(rows)
    order = ["paper", "selected", "p", "pair"]
    return frame.sort_values(order, ascending=[True, False, True, True], ignore_index=True)


def paper(first: str, second: str) -> int:
    """Place of a pair among those of the papers; behind them all when it is none of theirs."""
    for place, (some, others) in enumerate(PAPERS):
        if (first in some and second in others) or (second in some and first in others):
            return place
    return len(PAPERS)


def _pictured(frame: pd.DataFrame) -> list[pd.Series]:
    """The clearest established pair, and the first of the papers' pairs that the study searched."""
    clear = frame[frame["selected"]].sort_values("p", kind="stable")
    told = frame[(frame["paper"] < len(PAPERS)) & ~frame["few"]]
    rows = [part.iloc[0] for part in (clear, told) if len(part)]
    return list({row["pair"]: row for row in rows}.values())


def _map(model: Model, frame: pd.DataFrame) -> pd.DataFrame:
    """Shares as an upper triangle, the parameters with the clearest evidence first."""
    held = set(frame["first"]) | set(frame["second"])
    ranked = sorted(range(len(model.parameters)), key=lambda j: (model.evidence[j][1], model.evidence[j][0].p, j))
    paths = [path for j in ranked if (path := model.parameters[j].path) in held][:MOST_MAPPED]
    shares = {frozenset(pair): share for *pair, share in frame[["first", "second", "share"]].itertuples(index=False)}
    rows = [
        {"path": a, **{b: shares.get(frozenset((a, b)), math.nan) if i < j else math.nan for j, b in enumerate(paths)}}
        for i, a in enumerate(paths[:-1])
    ]
    return pd.DataFrame(rows, columns=["path", *paths[1:]])


def _drawn_map(study: Study, shares: pd.DataFrame, frame: pd.DataFrame) -> Markup:
    pairs = {frozenset((row["first"], row["second"])): row for row in frame.to_dict(orient="records")}
    order = list(shares["path"])

    def cell(path: str) -> Any:
        def show(row: Mapping[str, Any]) -> Markup:
            pair = pairs.get(frozenset((row["path"], path)))
            if path in order[: order.index(row["path"]) + 1]:
                return Markup("")
            if pair is None:
                return Markup('<span class="heat few">not looked for</span>')
            if pair["few"]:
                return Markup('<span class="heat hatched">few</span>')
            text = _share(pair)
            if not pair["selected"]:
                return Markup('<span class="heat few">{}</span>').format(text)
            step = int(np.searchsorted((0.02, 0.05, 0.15), pair["share"])) + 1
            return Markup('<span class="heat heat{}"><b>{}</b></span>').format(step, text)

        return show

    columns = [Column("path", "Share of the variance", lambda row: study.named(row["path"]), False)]
    columns += [Column(path, f"× {study.named(path)}", cell(path)) for path in shares.columns[1:]]
    return table("interactions.map", shares, columns, label="Share of each pair", sort=False)


def _share(row: Mapping[str, Any]) -> Markup:
    share = row["share"]
    if share is None or not math.isfinite(share):
        return Markup('<span class="few">few</span>')
    small = f"< 0.1{NBSP}%" if share < 0.001 else f"{significant(100 * share)}{NBSP}%"
    return number(share, percent(share) if share >= 0.0995 else small)


def _title(frame: pd.DataFrame) -> Markup:
    chosen = frame[frame["selected"]].sort_values("p", kind="stable")
    if chosen.empty:
        return Markup("No pair of parameters is shown to work together")
    if len(chosen) == 1:
        row = chosen.iloc[0]
        return Markup("{} interact: {}").format(row["pair"], _words(row["together"]))
    return Markup("{} interact").format(listing(list(chosen["pair"])))


def _sentences(model: Model, frame: pd.DataFrame, drawn: list[str]) -> list[Markup]:
    study, chosen = model.study, frame[frame["selected"]]
    text = (
        "Looked for: the product of two parameters beyond what each does alone (cubic). Share: of the variance of the "
        "scores, noise included. Bold: the limits, widened for all pairs that were left, exclude 0, which chance does "
        "in about 1 of 20 studies without any such pair; the others are faint. The strongest is taken, then the rest "
        "are tested again with it in the model, three times at most. Effect: standard deviation over the searched box."
    )
    found = [Markup(text)]
    needed = frame.loc[~frame["few"], "null"]
    if chosen.empty and len(needed):
        told = number(needed.median(), percent(needed.median()))
        found.append(
            Markup("A pair below {} of the variance would not be found with these configurations.").format(told)
        )
    for place, name in enumerate(drawn):
        row = frame[frame["pair"] == name].iloc[0]
        where = "Surface" if len(drawn) == 1 else f"Surface {place + 1}"
        said = "established" if row["selected"] else "not established"
        whose = ", a pair of the papers" if row["paper"] < len(PAPERS) else ""
        text = "{}: {}{}, {}; the other parameters as the winner or the best trial has them, by the model."
        found.append(Markup(text).format(where, name, whose, said))
    if not drawn and model.quality < WEAK and (len(chosen) or (frame["paper"] < len(PAPERS)).any()):
        text = "No surface: the model predicts left-out configurations with a rank correlation of {}, {} is needed."
        found.append(Markup(text).format(number(model.quality, fixed(model.quality, 2)), WEAK))
    few = frame[frame["few"]]
    if len(few):
        text = "Few: fewer than {} configurations in a quarter of the two ranges, in {}."
        found.append(Markup(text).format(FEW, listing(list(few["pair"]))))
    hidden = len(set(frame["first"]) | set(frame["second"])) - MOST_MAPPED
    if hidden > 0:
        found.append(Markup("Not in the map: {} with less evidence.").format(count(hidden, "parameter")))
    left_out = [p for p in model.parameters if p.kind == "choice" and len(p.values) > 2]
    if left_out:
        names = listing([study.named(p.path) for p in left_out])
        found.append(Markup("Not looked for: pairs with {}, choices of more than two values.").format(names))
    return found


def _words(together: bool) -> str:
    return "they rise together" if together else "one high, the other low"


def _verdict(row: Mapping[str, Any]) -> Markup | str:
    whose = " (the papers’)" if row["paper"] < len(PAPERS) else ""
    if row["few"]:
        return f"few{whose}"
    if not row["selected"]:
        return f"not established{whose}"
    words = "rise together" if row["together"] else "trade off: one high, the other low"
    return Markup("<b>{}</b>{}").format(words, whose)


def _effect(row: Mapping[str, Any], metric: Metric) -> Markup | str:
    if row["effect"] is None:
        return Markup('<span class="few">few</span>')
    text = str(change(Interval(row["effect"], row["lo"], row["hi"], 2), metric)).replace("+", "")
    return Markup(text)
