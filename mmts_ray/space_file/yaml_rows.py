"""YAML with the row of every key, so that a refusal can say where."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any


def read_yaml(text: str, path: Path, legal: Iterable[str]) -> tuple[Any, dict[str, int]]:
    """The plain contents (safe loader) and the row of every key and dotted path; a key given twice is refused."""
    import yaml

    rows: dict[str, int] = {}

    def walk(node: Any, prefix: tuple[str, ...]) -> None:
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key_node, value_node in node.value:
                key = str(key_node.value)
                row = key_node.start_mark.line + 1
                if key in seen:
                    raise ValueError(f"{path}:{row}: {key}: given twice")
                seen.add(key)
                keys = (*prefix, key)
                for start in range(len(keys)):
                    rows.setdefault(".".join(keys[start:]), row)
                walk(value_node, keys)
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:  # a baseline's keys are found under its name
                pairs = item.value if isinstance(item, yaml.MappingNode) else []
                name = next((str(v.value) for k, v in pairs if k.value == "name"), "")
                walk(item, (*prefix, f"<{name}>"))

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            raise ValueError(f"{path}: the file is empty; legal keys are {', '.join(legal)}")
        walk(root, ())
        return yaml.safe_load(text), rows
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        raise ValueError(f"{path}{where}: not YAML: {getattr(problem, 'problem', None) or problem}") from None
