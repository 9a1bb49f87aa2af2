"""Several studies on one page: verdict, settings of each, and one panel a question, in table SEVERAL."""

from ..finding import Panel
from . import agreement, better, curves, profiles, transfer

SEVERAL: dict[str, dict[str, Panel]] = {
    "Is it real?": {
        "curves": Panel(curves.NAME, curves.curves, curves.draw, open=True),
        "better": Panel(better.NAME, better.better, better.draw, open=True),
        "profiles": Panel(profiles.NAME, profiles.profile, profiles.draw, open=True),
        "transfer": Panel(transfer.NAME, transfer.transfer, transfer.draw, open=True),
        "agreement": Panel(agreement.NAME, agreement.agreement, agreement.draw),
    },
}
