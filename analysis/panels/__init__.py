"""Panels by the question they answer; to add one, write its two functions and its line in that file's PANELS."""

from ..finding import Panel
from . import cost, real, sensitive, trust

QUESTIONS: dict[str, dict[str, Panel]] = {
    "Is it real?": real.PANELS,
    "How sensitive is it?": sensitive.PANELS,
    "What does it cost?": cost.PANELS,
    "Can I trust the runs?": trust.PANELS,
}
