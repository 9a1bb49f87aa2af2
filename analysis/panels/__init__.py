"""Panels by the question they answer: one file each, with a data function and a drawing function.

To add one: write its file, add its line to PANELS. Its warnings and its column of the settings table come along in its
`Finding`.
"""

from ..finding import Panel
from . import (
    ablation,
    bounds,
    budget,
    curves,
    data,
    fidelity,
    flat,
    fresh,
    gap,
    groups,
    history,
    importance,
    inert,
    interactions,
    isolation,
    ledger,
    metrics,
    plateau,
    reproduce,
    similarities,
    traces,
    tradeoffs,
    tunability,
    variance,
)

PANELS: dict[str, dict[str, Panel]] = {
    "Is it real?": {
        "budget": Panel(budget.NAME, budget.budget, budget.draw, open=True),
        "fresh": Panel("Fresh seeds", fresh.fresh, fresh.draw, open=True),
        "variance": Panel(variance.NAME, variance.variance, variance.draw, open=True),
        "fidelity": Panel(fidelity.NAME, fidelity.fidelity, fidelity.draw),
        "history": Panel("Search history", history.history, history.draw),
    },
    "How sensitive is it?": {
        "curves": Panel(curves.NAME, curves.curves, curves.draw),
        "flat": Panel(flat.NAME, flat.flat, flat.draw),
        "isolation": Panel("Isolation", isolation.isolation, isolation.draw, open=True),
        "bounds": Panel("Bounds", bounds.bounds, bounds.draw),
        "importance": Panel("Importance", importance.importance, importance.draw),
        "inert": Panel(inert.NAME, inert.inert, inert.draw),
        "interactions": Panel(interactions.NAME, interactions.interactions, interactions.draw),
        "plateau": Panel(plateau.NAME, plateau.plateau_of, plateau.draw),
        "tunability": Panel(tunability.NAME, tunability.tunability, tunability.draw),
        "ablation": Panel(ablation.NAME, ablation.ablation, ablation.draw),
    },
    "What does it cost?": {
        "groups": Panel(groups.NAME, groups.groups, groups.draw, open=True),
        "tradeoffs": Panel(tradeoffs.NAME, tradeoffs.tradeoffs, tradeoffs.draw, open=True),
        "gap": Panel(gap.NAME, gap.gap, gap.draw),
        "metrics": Panel("All metrics", metrics.metrics, metrics.draw),
    },
    "What happened in training?": {
        "similarities": Panel(similarities.NAME, similarities.similarities, similarities.draw),
        "traces": Panel(traces.NAME, traces.traces, traces.draw),
    },
    "Can I trust the runs?": {
        "ledger": Panel("Ledger", ledger.ledger, ledger.draw),
        "data": Panel("Data", data.data, data.draw),
        "reproduce": Panel("Reproduce", reproduce.reproduce, reproduce.draw),
    },
}
