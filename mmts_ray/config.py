"""From YAML and the command line to one checked configuration; every refusal message lives here.

A configuration is a flat mapping of dotted paths, `section.parameter`, to plain values. `section.name` chooses a
function from that section's table; its signature says which other keys are legal, in which domain, with which default.
"""

import hashlib
import json
import re
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mmts_ray.data import DATASETS, READY
from mmts_ray.groups import GROUPS
from mmts_ray.losses import LOSSES, SCHEDULED, SENTENCE_LOSSES, STATE
from mmts_ray.metrics import head_tail
from mmts_ray.models import MODELS
from mmts_ray.recipe import recipe
from mmts_ray.schedules import SCHEDULES, from_shifts
from mmts_ray.space import REQUIRED, Choice, Parameter, declared, did_you_mean, parse_at

Function = Callable[..., Any]
NAMED: dict[str, tuple[Mapping[str, Function], str]] = {
    "data": (DATASETS, "openmoji"),
    "model": (MODELS, "frozen_heads"),
    "groups": (GROUPS, "captions"),
    "schedule": (SCHEDULES, "constant"),
    "loss": (ChainMap(SENTENCE_LOSSES, LOSSES), "info_nce"),
}
SINGLE: dict[str, Function] = {"train": recipe, "eval": head_tail}
SECTIONS = (*NAMED, *SINGLE)
SEED = "train.seed"
SHIFTS = ("schedule.shift_min", "schedule.shift_max")  # the paper's names, accepted in place of tau_min and spread
# one study has one set of features and of inputs; these decide them
ENCODING = (
    "data.",
    *(f"model.{key}" for key in ("name", "image_encoder", "text_encoder", "weights", "prompts", "zeroshot")),
    *(f"model.{key}" for key in ("student", "trained_layers", "max_length", "corpus", "sts")),
)


@dataclass(frozen=True)
class TrialConfig:
    """Everything that decides a trial's numbers: sorted (path, value) pairs, complete and checked."""

    items: tuple[tuple[str, Any], ...]

    def flat(self) -> dict[str, Any]:
        return dict(self.items)

    def name(self, section: str) -> str:
        return self.flat()[f"{section}.name"]

    def kwargs(self, section: str) -> dict[str, Any]:
        """Arguments of the section's function."""
        start = section + "."
        return {k[len(start) :]: v for k, v in self.items if k.startswith(start) and k != start + "name"}

    def function(self, section: str) -> Function:
        return NAMED[section][0][self.name(section)] if section in NAMED else SINGLE[section]

    @property
    def seed(self) -> int:
        return self.flat()[SEED]

    @property
    def hash(self) -> str:
        """Identity of the configuration without its seed: 12 hex digits."""
        text = json.dumps([item for item in self.items if item[0] != SEED], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def with_seed(self, seed: int) -> "TrialConfig":
        return from_flat({**self.flat(), SEED: seed})


def legal(flat: Mapping[str, Any]) -> dict[str, Parameter]:
    """Every path that may be set under the names chosen in `flat`, with its declaration."""
    found: dict[str, Parameter] = {}
    for section, (table, default) in NAMED.items():
        names = Choice(tuple(table), doc=f"which function of {section} is used")
        path = f"{section}.name"
        found[path] = Parameter(name="name", domain=names, default=default)
        name = parse_at(path, names, flat.get(path, default))
        found.update({f"{section}.{p.name}": p for p in declared(table[name]).values()})
    for section, function in SINGLE.items():
        found.update({f"{section}.{p.name}": p for p in declared(function).values()})
    return found


def from_flat(flat: Mapping[str, Any]) -> TrialConfig:
    """Check a flat mapping and fill in the defaults; ValueError in one line: what is wrong, where, what is legal."""
    flat = with_shifts(flat)
    known = legal(flat)
    for path in flat:
        if path not in known:
            raise ValueError(unknown_path(path, flat, known))
    values: dict[str, Any] = {}
    for path, parameter in known.items():
        if path not in flat and parameter.default is REQUIRED:
            raise ValueError(f"{path}: missing; legal is {parameter.domain}")
        values[path] = parse_at(path, parameter.domain, flat.get(path, parameter.default))
    _check_together(values)
    return TrialConfig(items=tuple(sorted(values.items())))


def unknown_path(path: str, flat: Mapping[str, Any], known: Mapping[str, Parameter]) -> str:
    """The refusal of a path: misspelt, another function's parameter, or no such section."""
    section, _, key = path.partition(".")
    if section not in SECTIONS:
        return f"{path}: no section {section!r}{did_you_mean(section, SECTIONS)}; legal are {', '.join(SECTIONS)}"
    here = [p.removeprefix(section + ".") for p in known if p.startswith(section + ".")]
    hint = did_you_mean(key, here)
    if section in NAMED and not hint:
        table, default = NAMED[section]
        name = flat.get(f"{section}.name", default)
        owners = [other for other, function in table.items() if key in declared(function)]
        if owners:
            verb = "belongs to" if len(owners) == 1 else "belong to"
            return (
                f"{path}: not a parameter of {section} {name} ({key} {verb} {', '.join(owners)}); "
                f"legal are {', '.join(here)}"
            )
    return f"{path}: unknown{hint}; legal are {', '.join(here)}"


def with_shifts(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Replace shift_min and shift_max, the paper's names, by tau_min and spread."""
    given = [path for path in SHIFTS if path in flat]
    if not given:
        return dict(flat)
    clash = [p for p in ("schedule.tau_min", "schedule.spread") if p in flat]
    if len(given) < len(SHIFTS) or "schedule.alpha" not in flat or clash:
        raise ValueError(
            f"{given[0]}: give schedule.shift_min, schedule.shift_max and schedule.alpha together, without "
            "schedule.tau_min and schedule.spread (tau_min = shift_min - alpha/2, spread = shift_max - shift_min)"
        )
    numbers = {}
    for path in (*SHIFTS, "schedule.alpha"):
        value = flat[path]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{path}: {value!r} is not a number; legal is a number above 0")
        numbers[path.partition(".")[2]] = float(value)
    try:
        converted = from_shifts(**numbers)
    except ValueError as problem:
        raise ValueError(f"{given[0]}: {problem}") from None
    return {**{k: v for k, v in flat.items() if k not in SHIFTS}, **{f"schedule.{k}": v for k, v in converted.items()}}


def _check_together(values: Mapping[str, Any]) -> None:
    """Rules that span sections."""
    loss, schedule = values["loss.name"], values["schedule.name"]
    if schedule == "learnable":
        if SCHEDULED[loss] != "temperature":
            raise ValueError(
                f"schedule.name: learnable does not fit loss {loss} (a learned margin shrinks to nothing); "
                f"legal are {', '.join(n for n in SCHEDULES if n != 'learnable')}"
            )
        if loss in STATE:
            raise ValueError(
                f"schedule.name: learnable does not fit loss {loss} (it learns a temperature per sample itself); "
                f"legal are {', '.join(n for n in SCHEDULES if n != 'learnable')}, for where they start"
            )
        low, init, high = (values[f"schedule.{k}"] for k in ("low", "init", "high"))
        if not low <= init <= high:
            raise ValueError(f"schedule.init: {init} is outside [low, high] = [{low}, {high}]")
    _check_sentences(values)
    _check_features(values)
    if values["model.name"] == "twins" and values["data.name"] not in READY:
        raise ValueError(
            f"model.name: twins need two like sides, not {values['data.name']}; legal are {', '.join(READY)}"
        )
    encoders = [values.get(f"model.{side}_encoder") for side in ("image", "text")]
    if values.get("loss.soft_labels") == "paper" and values["data.name"] not in READY and encoders[0] != encoders[1]:
        raise ValueError(
            f"loss.soft_labels: paper compares captions with images, and {encoders[0]} and {encoders[1]} share no "
            "space; legal are text, image, code, or one open_clip model as both encoders"
        )


def _check_features(values: Mapping[str, Any]) -> None:
    """What needs features of a side for which no encoder runs."""
    if values["model.name"] not in ("frozen_heads", "open_clip") or values["data.name"] in READY:
        return
    sides = {"captions": "text", "images": "image"}
    wanted = [(path, sides.get(values[path], "")) for path in ("groups.name", "eval.source")]
    if values["model.name"] == "frozen_heads":
        wanted += [("model.name", "image"), ("model.name", "text")]
    thresholds = (values.get(f"loss.filter_threshold{of}") for of in ("", "_image"))
    if values.get("loss.angular_margin") or any(threshold is not None for threshold in thresholds):
        soft = values["loss.soft_labels"]
        wanted += [("loss.soft_labels", side) for side in ((soft,) if soft in ("image", "text") else ("image", "text"))]
    for path, side in wanted:
        if side and values[f"model.{side}_encoder"] == "none":
            raise ValueError(
                f"{path}: {values[path]} needs {side} features, and model.{side}_encoder is none; legal is an encoder"
            )


def _check_sentences(values: Mapping[str, Any]) -> None:
    """Rules between a sentence student and what it can be trained with."""
    loss, model = values["loss.name"], values["model.name"]
    if (loss in SENTENCE_LOSSES) != (model == "sentence_student"):
        reads = "reads sentences" if loss in SENTENCE_LOSSES else "compares images with texts"
        fitting = SENTENCE_LOSSES if model == "sentence_student" else LOSSES
        raise ValueError(f"loss.name: {loss} {reads}, which model {model} does not; legal are {', '.join(fitting)}")
    if model != "sentence_student":
        return
    trained, fresh = values["model.trained_layers"], values["model.reinit_layers"]
    if trained is not None and fresh > trained:
        raise ValueError(f"model.reinit_layers: {fresh}, but {trained} are trained; legal are 0 to {trained}")
    if values["model.caption_every"] is None and loss != "simcse":
        raise ValueError(f"model.caption_every: null (no captions) leaves {loss} nothing to ground; legal is 1 or more")
    for kind in {"simcse": (), "mcse": ("image",)}.get(loss, ("image", "text")):
        if values[f"model.{kind}_encoder"] == "none" and values["data.name"] != "features":
            raise ValueError(f"model.{kind}_encoder: none, but {loss} needs its features; legal is an encoder")
    if values.get("schedule.spread", 0) > 0:
        raise ValueError(
            f"schedule.spread: {values['schedule.spread']:g}, but sentences of a corpus are in no group; legal is 0"
        )
    shared = values["data.name"] == "features" or values["model.image_encoder"] == values["model.text_encoder"]
    if loss == "kdmcse" and not shared:
        apart = f"{values['model.image_encoder']} and {values['model.text_encoder']} share no space"
        for path, value in (("image_threshold", None), ("soft_label_source", "code"), ("filter_source", "paper")):
            if values[f"loss.{path}"] != value:
                raise ValueError(
                    f"loss.{path}: {values[f'loss.{path}']} compares captions with images, and {apart}; legal is "
                    f"{'null' if value is None else value}, or one open_clip model as both teachers"
                )


def set_path(text: str) -> tuple[str, Any]:
    """Read a command-line override, `path=value`; the value is YAML, and 1e-3 is a number here."""
    import yaml

    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise ValueError(f"{text!r} is not an override; legal is path=value, as in train.lr=0.001 or trials=8")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        raise ValueError(f"{text!r} is not an override: {value!r} is not YAML; quote it") from None
    if isinstance(parsed, str) and re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+", parsed):
        parsed = float(parsed)
    return path.strip(), parsed
