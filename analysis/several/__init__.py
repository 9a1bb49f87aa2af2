"""Several studies on one page: verdict, settings of each, and one panel a question, in table SEVERAL."""

from ..finding import Panel
from . import agreement, better, curves, transfer

SEVERAL: dict[str, dict[str, Panel]] = {
    "Is it real?": {
        "curves": Panel(curves.NAME, curves.curves, curves.draw, open=True),
        "better": Panel(better.NAME, better.better, better.draw, open=True),
        "agreement": Panel(agreement.NAME, agreement.agreement, agreement.draw),
        "transfer": Panel(transfer.NAME, transfer.transfer, transfer.draw, open=True),
    },
}
