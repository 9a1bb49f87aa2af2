"""The sentences of the verdict, chosen by case; one metric, one interval and one n in the first."""

from typing import TYPE_CHECKING

from markupsafe import Markup

from .. import commands
from ..choice import FRESH_NEEDED, best_of_search
from ..statistics import seeds_to_resolve
from ..tables import why_failed
from ..wording import (
    amount,
    change,
    count,
    digits_of,
    duration,
    fixed,
    in_words,
    limits,
    named,
    number,
    points,
    single,
    unit,
)
from . import flat

if TYPE_CHECKING:
    from .verdict import Facts


def title(facts: "Facts") -> Markup:
    """The verdict in one sentence."""
    winner, metric, level, gain = facts.chosen.winner, facts.metric, facts.level, facts.gain
    if facts.case == "refused" or winner is None:
        return _refused(facts)
    if facts.case == "any setting":
        return Markup("Any setting will do: {}.").format(flat.claim(facts.study))
    digits = digits_of(level, metric)
    who = Markup("The tuned setting {}" if winner.source == "search" else "The baseline “{}”").format(winner.label)
    reaches = Markup("{} reaches {} {}").format(
        who, named(level.mean, metric, digits, "b"), limits(level, metric, digits)
    )
    if gain is None:
        seeds = count(level.n, "fresh seed")
        return Markup("{} on {}; the study has no default to compare with.").format(reaches, seeds)
    each, digits = f"{gain.n} fresh seeds each", digits_of(gain, metric)
    shown = fixed(abs(gain.mean) * metric.scale, digits)
    size = number(gain.mean, f"{shown}{points(metric, shown)}", "b")
    apart = Markup("{} {} {}").format(
        size, limits(gain, metric, digits, flip=gain.mean < 0), "above" if gain.mean > 0 else "below"
    )
    if facts.case == "established":
        return Markup("{}, {} the default, on {}.").format(reaches, apart, each)
    if facts.case == "worse":
        if winner.source == "baseline":
            text = "The default is better: the best of the others, the baseline “{}”, is {} it, on {}."
            return Markup(text).format(winner.label, apart, each)
        return Markup("The default is better: tuning chose a setting {} it, on {}.").format(apart, each)
    return Markup("No setting beats the default by more than noise: {} differs by {}, on {}.").format(
        winner.label, change(gain, metric, with_unit=True), each
    )


def more(facts: "Facts") -> list[Markup]:
    """The second paragraph: what was resolvable, how often the winner wins, the runner-up, the queries."""
    metric, gain, lead = facts.metric, facts.gain, facts.lead
    found: list[Markup] = []
    if facts.case == "refused":
        return found
    if facts.case == "any setting":
        return [*_against_default(facts), *flat.support(facts.study), *_queries(facts)]
    if facts.any_setting:
        found.append(Markup("Of the searched settings any will do: {}.").format(flat.claim(facts.study)))
    if facts.case == "not established" and gain is not None and gain.sd > 0:
        seeds = seeds_to_resolve(gain.sd, gain.half / 2)
        text = "{} seeds resolve differences of {}; to resolve half of that, {} seeds each are needed."
        half = amount(gain.half, metric)
        found.append(Markup(text).format(in_words(gain.n), half, number(seeds, seeds)))
    if facts.better is not None and gain is not None and facts.case != "not established":
        chance, how = facts.better, "paired reruns" if gain.paired else "reruns"
        lo, hi = fixed(100 * chance.lo, 0), fixed(100 * chance.hi, 0)
        limits_ = Markup('<span class="ci">[{}, {}]</span>').format(lo, hi)
        share = number(chance.mean, fixed(100 * chance.mean, 0))
        found.append(Markup("It would beat the default in {} of 100 {} {}.").format(share, how, limits_))
    if lead is not None and facts.chosen.runner_up is not None:
        text = "The difference to the runner-up, {}, is not established: {}."
        if lead.established:
            text = "The difference to the runner-up, {}, is {}."
        found.append(Markup(text).format(facts.chosen.runner_up.label, change(lead, metric, with_unit=True)))
    return [*found, *_queries(facts)]


def _against_default(facts: "Facts") -> list[Markup]:
    """How the best setting does against the default, where any setting will do."""
    gain, winner = facts.gain, facts.chosen.winner
    if gain is None or winner is None:
        return []
    text = "The best on fresh seeds, {}, differs from the default by {}, on {} fresh seeds each: not established."
    return [Markup(text).format(winner.label, change(gain, facts.metric, with_unit=True), gain.n)]


def _queries(facts: "Facts") -> list[Markup]:
    """What other queries would add, where the runs say how many there were."""
    if not facts.queries:
        return []
    text = "Intervals speak about these {} test images: others would add a standard error of {}."
    return [Markup(text).format(number(facts.queries, facts.queries), amount(facts.query_error, facts.metric))]


def needs(facts: "Facts") -> Markup:
    """What a refused verdict is missing, and what filling it costs."""
    study, objective = facts.study, facts.study.objective
    if study.trials.empty:
        return Markup("The ledger holds no run yet; this continues the study:")
    if study.finished.empty:
        text = "None of {} ended with a finite score. {} More trials, or the same with another --space:"
        return Markup(text).format(count(len(study.trials), "run"), why_failed(study))
    best, found = best_of_search(study), Markup("")
    if best is not None:
        text = " The best of the search, {}, scored {}{} on {}, {}: a maximum of noise."
        value = single(best["score"], objective)
        found = Markup(text).format(
            best["trial"], value, unit(objective), objective.split or objective.label, study.behind
        )
    runs, seconds = commands.fresh_runs(study), study.finished["device_seconds"].dropna()
    cost = f", about {duration(float(seconds.median()) * runs)} of device time" if len(seconds) else ""
    text = "Needs at least {} fresh seeds of the default and of the best settings.{} {} runs{} would fill it:"
    return Markup(text).format(FRESH_NEEDED, found, runs, cost)


def _refused(facts: "Facts") -> Markup:
    if facts.study.finished.empty:
        return Markup("No verdict: no feasible trial.")
    if facts.chosen.winner is None:
        return Markup("No verdict yet: no tuned setting has a fresh seed, {} are needed.").format(FRESH_NEEDED)
    who, n = "winner", facts.level.n
    if n >= FRESH_NEEDED:
        default = facts.chosen.default
        who, n = "default", len(default.values(facts.metric.column)) if default else 0
    return Markup("No verdict yet: the {} has {}, {} are needed.").format(who, count(n, "fresh seed"), FRESH_NEEDED)
