"""Finds where an English sentence counts one thing as many, or many as one."""

import re

NOUNS = {
    "study": "studies", "query": "queries",
    **{word: f"{word}s" for word in (
        *("trial", "run", "seed", "setting", "configuration", "parameter", "change", "step", "look", "baseline"),
        *("duplicate", "check", "note", "warning", "evaluation", "pair", "cluster", "curve", "image", "caption", "row"),
        *("degree", "rerun", "score", "metric", "comparison", "survivor", "winner", "point", "epoch", "day", "hour"),
        *("minute", "second", "set", "value", "choice", "loss", "other", "visit", "anchor", "control", "entry"),
    )},
}  # fmt: skip
VERBS = {
    "was": "were", "is": "are", "has": "have", "lacks": "lack", "does": "do", "loses": "lose", "gains": "gain",
    "moves": "move", "shows": "show", "interacts": "interact", "closes": "close", "widens": "widen", "agrees": "agree",
}  # fmt: skip
START = r"(?<!of )(?<![\w.,:/×@\d\u202f+−])"  # no part of a decimal, a date or a larger number
ADJECTIVES = r"((?:[a-z-]+ ){0,2}?)"
ONE = re.compile(rf"{START}1 {ADJECTIVES}({'|'.join({*NOUNS.values(), *VERBS.values()} - NOUNS.keys())})\b")
MANY = re.compile(
    rf"{START}(?:0|[2-9]|\d\d+) {ADJECTIVES}({'|'.join({*NOUNS, *VERBS} - {*NOUNS.values()})})\b(?! [a-z]+s\b)"
)
OF = re.compile(rf"{START}(\d+) of (\d+) {ADJECTIVES}({'|'.join({*NOUNS, *NOUNS.values()})})\b(?: (\w+))?")
ENDS = {
    "of",
    "to",
    "and",
    "or",
    "with",
    "from",
    "in",
    "at",
    "on",
    "by",
    "for",
    "per",
    "a",
    "that",
    "each",
    "than",
    "the",
    "more",
}


def faults(text: str) -> list[str]:
    """The places, as they stand in the text."""
    text = re.sub(r"\s+", " ", text.replace("\u00a0", " "))
    words = ENDS | {*NOUNS, *NOUNS.values(), *VERBS, *VERBS.values()}
    found = [m[0] for rule in (ONE, MANY) for m in rule.finditer(text) if not words & set(m[1].split())]
    for m in OF.finditer(text):
        some, all_, noun, verb = int(m[1]), int(m[2]), m[4], m[5]
        wrong = (noun in NOUNS.values()) == (all_ == 1)
        wrong |= verb in (VERBS.values() if some == 1 else VERBS.keys())
        if wrong and not words & set(m[3].split()):
            found.append(m[0])
    return found
