"""Panels by the question they answer: one file each, with a data function and a drawing function.

To add one: write its file, add its line to PANELS. Its warnings and its column of the settings table come along in its
`Finding`.
"""

from ..finding import Panel
from . import bounds, data, fresh, gap, groups, history, isolation, ledger, metrics, reproduce

PANELS: dict[str, dict[str, Panel]] = {
    "Is it real?": {
        "fresh": Panel("Fresh seeds", fresh.fresh, fresh.draw, open=True),
        "history": Panel("Search history", history.history, history.draw),
    },
    "How sensitive is it?": {
        "isolation": Panel("Isolation", isolation.isolation, isolation.draw, open=True),
        "bounds": Panel("Bounds", bounds.bounds, bounds.draw),
    },
    "What does it cost?": {
        "groups": Panel(groups.NAME, groups.groups, groups.draw, open=True),
        "gap": Panel("Modality gap", gap.gap, gap.draw),
        "metrics": Panel("All metrics", metrics.metrics, metrics.draw),
    },
    "Can I trust the runs?": {
        "ledger": Panel("Ledger", ledger.ledger, ledger.draw),
        "data": Panel("Data", data.data, data.draw),
        "reproduce": Panel("Reproduce", reproduce.reproduce, reproduce.draw),
    },
}
