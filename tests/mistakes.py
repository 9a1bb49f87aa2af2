"""A mistake planted in a file: a value replaced, added or dropped."""

import copy
from typing import Any


class _Drop:
    """A key that is taken out."""

    def __repr__(self) -> str:  # test names must not hold an address: processes that share the tests compare them
        return "dropped"


DROP = _Drop()


def put(tree: Any, path: str, value: Any) -> Any:
    """A copy with the value at `path` (keys and indices, by dots) replaced, or dropped."""
    tree = copy.deepcopy(tree)
    *way, last = (int(part) if part.isdigit() else part.replace("~", ".") for part in path.split("."))
    inner = tree
    for part in way:
        inner = inner[part]
    if value is DROP:
        del inner[last]
    elif isinstance(inner, list) and last == len(inner):
        inner.append(value)
    else:
        inner[last] = value
    return tree
