"""Will any searched setting do? How far settings drawn at random spread against the seed, and what nearly all lose."""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from .. import commands
from ..choice import FRESH_NEEDED, choose
from ..finding import Finding, Refusal
from ..model import RANDOM_ALONE, Model, model_of
from ..page import Axis, Column, bar, notes, table
from ..statistics import LEVEL, WORST, Flatness, Interval, flatness, residual
from ..tables import Metric, Study
from ..wording import amount, count, digits_of, fixed, limits, listing, number, points, significant
from .budget import random_part
from .variance import block

NAME = "Any setting?"
LEVEL_OF_TEST = round(1 - LEVEL, 10)
SURE = 12  # degrees of freedom of the noise of the seed below which nothing is compared with it
NEARLY_ALL = f"{round((1 - WORST) * 20)} of 20 settings"
ROWS = {
    "spread": "scores of the settings, standard deviation",
    "noise": "the seed between settings, standard deviation",
    "effect": "what the settings do, standard deviation (model)",
    "loss": "lost by a setting drawn at random (model)",
    "most": f"lost at most by {NEARLY_ALL} (model)",
}


@lru_cache(maxsize=4)  # the verdict and the table of settings ask too
def flat(study: Study) -> Finding:
    """Spread of random settings, noise of the seed, and the loss of nearly all settings; `numbers["any"]` is the claim.

    It is made when no parameter shows evidence, no setting drawn at random failed, the scores spread by no more than
    the noise does, and the upper limit of what nearly all lose is at most delta.
    """
    model = model_of(study)
    drawn = _drawn(study, model)
    refused = _lacking(study, model, len(drawn))
    if refused is not None:
        return Finding(NAME, f"{count(len(drawn), 'setting')} drawn at random", refusal=refused)
    metric, delta = study.objective, model.deltas[0]
    sd, df, shared = _noise(study)
    found = flatness(
        np.array(drawn["u"].tolist()),
        metric.better * drawn["score"].to_numpy(dtype=float),
        [p.kind == "choice" for p in model.parameters],
        np.array(drawn["active"].tolist()).astype(bool),
        (sd / math.sqrt(_seeds(study)), df),
        model.stream("flat"),
    )
    ended = random_part(study)
    ended = ended[ended["kind"] == "control"] if commands.stops(study) else ended
    lost = int(ended["state"].isin(["infeasible", "failed"]).sum())
    proven = [study.named(p.path) for p, (_, holm) in zip(model.parameters, model.evidence) if holm <= LEVEL_OF_TEST]
    frame = pd.DataFrame([_row(key, getattr(found, key)) for key in ROWS])
    any_ = found.within(delta) and not lost and not proven
    return Finding(
        title=_title(found, delta, lost, proven, len(drawn), metric),
        used=f"{count(len(drawn), 'setting')} drawn at random",
        frames={"measures": frame},
        numbers={
            "any": any_,
            "settings": len(drawn),
            "failed": lost,
            "evidence": len(proven),
            "least_p": min((holm for _, holm in model.evidence), default=math.nan),
            "delta": delta,
            "p_spread": found.p,
            "most": found.most.hi,
            "shared_seed": shared,
        },
        sentences=tuple(_sentences(model, found, delta, metric, shared)),
    )


def draw(study: Study, finding: Finding) -> Markup:
    frame, metric, delta = finding.frames["measures"], study.objective, finding.numbers["delta"]
    axis = Axis(0, metric.scale * max(frame["hi"].max(), delta))

    def place(row: Mapping[str, Any]) -> Markup:
        shown = {key: axis(row[key] * metric.scale) for key in ("mean", "lo", "hi")}
        role = "default" if row["what"] == "noise" else "winner"
        high = significant(axis.high, 3)
        return bar("interval", **shown, role=role, dashed=axis(delta * metric.scale), low="0", high=high)

    unit = points(metric)
    columns = [
        Column("words", "What", lambda row: row["words"], False),
        Column("lo", f"{unit.strip().capitalize() or metric.axis}; dashed: delta", place, False, "wide"),
        Column("mean", f"Size{',' if metric.share else ''}{unit}", lambda row: _size(row, metric)),
        Column("n", "From", lambda row: f"{row['n']} df" if row["what"] == "noise" else str(row["n"])),
    ]
    drawn = table("flat.measures", frame, columns, label=NAME, sort=False, wide=True)
    return drawn + notes(finding.sentences)


def support(study: Study) -> list[Markup]:
    """What the claim that any setting will do rests on, in three sentences for the verdict."""
    found, metric = flat(study), study.objective
    rows = {row["what"]: row for row in found.frames["measures"].to_dict(orient="records")}
    n, delta = found.numbers["settings"], found.numbers["delta"]
    spread, noise = (
        Markup("{}{} {}").format(
            number(rows[key]["mean"], fixed(rows[key]["mean"] * metric.scale, _digits(rows[key], metric))),
            points(metric) if key == "spread" else "",
            limits(_interval(rows[key]), metric, _digits(rows[key], metric)),
        )
        for key in ("spread", "noise")
    )
    total = len(model_of(study).parameters)
    who = "The searched parameter shows no" if total == 1 else f"None of the {total} searched parameters shows"
    text = "On validation the scores of {} drawn at random spread by {} (standard deviation), the seed alone by {}."
    worth = "A loss below {}, 1.25 seed standard deviations or more, is not worth a choice."
    return [
        Markup("{} evidence of an effect.").format(who),
        Markup(text).format(count(n, "setting"), spread, noise),
        Markup(worth).format(amount(delta, metric)),
    ]


def claim(study: Study) -> Markup:
    """The claim in one sentence."""
    found = flat(study)
    metric, most = study.objective, found.numbers["most"]
    return Markup("{} drawn at random lose at most {} against the best of {}").format(
        NEARLY_ALL, amount(most, metric, "b"), found.numbers["settings"]
    )


def _drawn(study: Study, model: Model) -> pd.DataFrame:
    """Configurations drawn at random with their score in the search: u, active, score. Fresh runs are left out.

    Where trials are stopped early those that ran to their end were chosen by their scores: only controls count.
    """
    frame = model.frame[model.frame["drawn"]]
    if commands.stops(study):
        frame = frame[frame["kinds"].map(lambda kinds: "control" in kinds).astype(bool)]
    ran = study.searched
    scores = ran["score"].groupby(ran["config_hash"].fillna(ran["trial"])).mean()
    drawn = frame.assign(score=frame["key"].map(scores))
    return drawn[drawn["score"].notna()].reset_index(drop=True)


def _lacking(study: Study, model: Model, n: int) -> Refusal | None:
    if not model.parameters:
        return Refusal("Needs a searched parameter; trials of a space with a search section fill it:",
                       commands.widen(study))  # fmt: skip
    if n < RANDOM_ALONE:
        needs = f"Needs {RANDOM_ALONE} settings drawn at random that ran to their end; {n} did."
        words, command = commands.controls(study, RANDOM_ALONE)
        return Refusal(f"{needs} {words}", command)
    winner = choose(study).winner
    seeds = 0 if winner is None else len(winner.values(study.objective.column))
    if seeds < FRESH_NEEDED or not math.isfinite(model.deltas[0]):
        needs = f"Needs {FRESH_NEEDED} fresh seeds of the winner: the noise of the seed is measured there; it has "
        return Refusal(f"{needs}{seeds or 'none'}:", commands.confirm(study))
    _, df, _ = _noise(study)
    if df < SURE:
        needs = (
            f"Needs {SURE} degrees of freedom to measure the noise of the seed, as four settings with five fresh "
            f"seeds have; {df} {'is' if df == 1 else 'are'} there:"
        )
        return Refusal(needs, commands.confirm(study))
    if np.ptp(study.searched["score"]) == 0:
        return Refusal(
            "All settings have the same score, so nothing can be told from the seed:", commands.extend(study)
        )
    return None


def _noise(study: Study) -> tuple[float, int, bool]:
    """(standard deviation of one run when its setting is kept, degrees of freedom, whether the search shared a seed).

    Settings that ran on one seed have its luck in common: then only what a seed does to each by itself counts.
    """
    searched = study.trials[study.trials["kind"].isin(["search", "control"])]
    own = searched.groupby(searched["config_hash"].fillna(searched["trial"]))["seed"].agg(lambda s: tuple(sorted(s)))
    shared = own.nunique() == 1
    found, seeds, balanced = block(study)
    if shared and balanced and len(found) > 1:
        y = np.array([c.values(study.objective.column)[seeds].to_numpy() for c in found])
        return (*residual(y), True)
    sd, df = model_of(study).seed_sd
    return sd, df, False


def _seeds(study: Study) -> float:
    """Runs behind the score of a searched setting."""
    searched = study.trials[study.trials["kind"].isin(["search", "control"]) & (study.trials["state"] == "done")]
    return float(searched.groupby(searched["config_hash"].fillna(searched["trial"])).size().median())


def _row(key: str, interval: Interval) -> dict[str, Any]:
    return {"what": key, "words": ROWS[key], "mean": interval.mean, "lo": interval.lo, "hi": interval.hi,
            "n": interval.n}  # fmt: skip


def _interval(row: Mapping[str, Any]) -> Interval:
    return Interval(row["mean"], row["lo"], row["hi"], int(row["n"]))


def _digits(row: Mapping[str, Any], metric: Metric) -> int:
    return digits_of(_interval(row), metric)


def _size(row: Mapping[str, Any], metric: Metric) -> Markup:
    digits = _digits(row, metric)
    value = number(row["mean"], fixed(row["mean"] * metric.scale, digits))
    return Markup("{} {}").format(value, limits(_interval(row), metric, digits))


def _title(found: Flatness, delta: float, lost: int, proven: list[str], n: int, metric: Metric) -> Markup:
    most = amount(found.most.hi, metric)
    if proven:
        return Markup("The setting matters: {} {} evidence of an effect").format(
            listing(proven), "shows" if len(proven) == 1 else "show"
        )
    if lost:
        return Markup("Not every setting will do: {} of {} drawn at random failed").format(lost, n + lost)
    if found.within(delta):
        return Markup("Any setting will do: {} lose at most {}").format(NEARLY_ALL, most)
    if found.p <= LEVEL_OF_TEST:
        return Markup("Scores of settings spread by more than the seed explains, though no parameter shows evidence")
    return Markup("Not shown that any setting will do: {} may lose up to {}").format(NEARLY_ALL, most)


def _sentences(model: Model, found: Flatness, delta: float, metric: Metric, shared: bool) -> list[Markup]:
    text = (
        "Any setting will do when no searched parameter shows evidence, no setting drawn at random failed, the scores "
        "spread by no more than the seed explains, and the upper limit of what {} lose is at most delta = {}: the "
        "largest of 1.25 seed standard deviations, 1 % of the winner and its standard error."
    )
    said = [Markup(text).format(NEARLY_ALL, amount(delta, metric))]
    text = (
        "The seed alone would spread scores as far in {} of 100 studies. Losses are against the best of these settings."
    )
    often = number(found.p, fixed(100 * found.p, 0) if found.p >= 0.01 else "fewer than 1")
    said.append(Markup(text).format(often))
    if shared:
        text = "All settings ran on the same seeds, so their common luck is taken out of the noise of the seed."
        said.append(Markup(text))
    text = (
        "Model: cubic effects of each parameter and products of two; a narrow peak that no trial hit is beyond it. "
        "Settings that a sampler chose are left out: it goes where scores are high."
    )
    return [*said, Markup(text)]
