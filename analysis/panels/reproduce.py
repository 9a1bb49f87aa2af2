"""How to get the same numbers again: commands, configuration, versions, hashes."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup

from .. import commands
from ..choice import best_config
from ..finding import Exact, Finding, check
from ..page import code, notes
from ..tables import Study
from ..wording import listing, short_hash

YAML_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")


def reproduce(study: Study) -> Finding:
    """Everything meta.json knows about how the runs were made."""
    trial, config = best_config(study)
    meta = study.meta
    git, versions = meta.get("git") or {}, meta.get("versions") or {}
    first = str(meta.get("command") or f"mmts-ray search SPACE.yaml --out {shlex.quote(study.folder)}")
    listed = [f"{name} {version}" for name, version in sorted(versions.items()) if name in ("mmts_ray", "ray", "torch")]
    commit = short_hash(str(git.get("commit") or "unknown")) + (" with uncommitted changes" if git.get("dirty") else "")
    return Finding(
        title=Markup("Made with {}, commit {}").format(listing(listed) if listed else "unknown versions", commit),
        used="meta.json",
        numbers={
            "commands": [first, commands.confirm(study), commands.report(study)],
            "trial": trial,
            "config": Exact(sorted(config.items())),
            "versions": dict(sorted(versions.items())),
            "git": dict(git),
            "hardware": dict(meta.get("hardware") or {}),
            "data_key": (meta.get("data") or {}).get("key"),
            "strategy": meta.get("strategy"),
            "seed": meta.get("seed"),
            "ledger_hash": study.ledger_hash,
        },
        sentences=tuple(_facts(study)),
        checks=(
            check("the code had no uncommitted changes", "record", git.get("dirty"),
                  "The code had uncommitted changes.", "The commit alone does not reproduce these runs."),
        ),
    )  # fmt: skip


def draw(study: Study, finding: Finding) -> Markup:
    numbers = finding.numbers
    body = code("\n".join(numbers["commands"]))
    if numbers["config"]:
        text = "<h4>Configuration of {}, as a file for mmts-ray train</h4>"
        body += Markup(text).format(numbers["trial"]) + code(as_yaml(numbers["config"]))
    return body + notes(finding.sentences)


def as_yaml(config: Mapping[str, Any]) -> str:
    """`fixed:` of a space file that searches nothing; keys are dotted paths."""
    return "fixed:\n" + "\n".join(f"  {path}: {_scalar(value)}" for path, value in config.items())


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        text = repr(value)
        # YAML reads 1e-05 as text: the mantissa needs a point
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./-]*", value) and value.lower() not in YAML_WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


def _facts(study: Study) -> Iterator[str]:
    meta = study.meta
    versions, hardware, git = (meta.get(key) or {} for key in ("versions", "hardware", "git"))
    if versions:
        yield f"Versions: {', '.join(f'{name} {version}' for name, version in sorted(versions.items()))}."
    if git.get("commit"):
        yield f"Commit {git['commit']}."
    if hardware:
        gpus = hardware.get("gpus") or ["no GPU"]
        parts = [f"{hardware.get('cpus')} CPUs", hardware.get("cpu"), f"{hardware.get('memory_gib')} GiB", *gpus]
        yield f"Hardware: {', '.join(str(part) for part in [*parts, hardware.get('platform')] if part)}."
    seeds = sorted({int(s) for s in study.trials.loc[study.trials["kind"] == "confirm", "seed"].dropna()})
    if seeds:
        whole = len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1
        yield f"Fresh seeds: {f'{seeds[0]} to {seeds[-1]}' if whole else listing(seeds, most=len(seeds))}."
    if (meta.get("data") or {}).get("key"):
        yield f"Data key {meta['data']['key']}."
    yield f"Ledger hash {study.ledger_hash}."
