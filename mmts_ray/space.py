"""Domains of parameters: declared once, in the signature of the function that uses them.

A tunable argument is keyword-only and annotated with its domain::

    def xent(z_BD, *, r_mix: Annotated[float, Float(0, 1, doc="share of intra-modal negatives")] = 0.0): ...

`declared(xent)` reads that back. The same domain classes, narrowed, are what a search-space file asks for.
"""

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_origin

import numpy as np

REQUIRED = inspect.Parameter.empty
RELATIVE_TOLERANCE = 1e-9  # log sampling computes exp(log(x)) and may pass an end by one ulp


@dataclass(frozen=True, kw_only=True)
class _Described:
    doc: str = ""
    unit: str = ""  # "" = dimensionless
    source: str = ""  # the paper or code the parameter or its default comes from
    none: str = ""  # what None means; "" = None is not legal


@dataclass(frozen=True)
class _Range(_Described):
    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"lower end {self.low} is above upper end {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"a logarithmic range needs a lower end above 0, not {self.low}")

    def _within(self, value: float) -> bool:
        low, high = self.low - RELATIVE_TOLERANCE * abs(self.low), self.high + RELATIVE_TOLERANCE * abs(self.high)
        return low <= value <= high

    def within(self, outer: "Domain") -> bool:
        """Whether every value of this domain is legal in `outer`."""
        return isinstance(outer, _Range) and outer._within(self.low) and outer._within(self.high)


@dataclass(frozen=True)
class Float(_Range):
    """A real number in [low, high], both ends included; `log` if it is searched on a logarithmic scale."""

    def parse(self, value: Any) -> float | None:
        if value is None and self.none:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise ValueError(f"{value!r} is not a number{_number_hint(value)}; legal is {self}")
        if not math.isfinite(value) or not self._within(float(value)):
            raise ValueError(f"{value} is out of range; legal is {self}")
        return float(min(max(value, self.low), self.high))

    def __str__(self) -> str:
        return f"a number in [{self.low:g}, {self.high:g}]" + (f" or null ({self.none})" if self.none else "")


@dataclass(frozen=True)
class Int(_Range):
    """A whole number in [low, high], both ends included."""

    low: int
    high: int

    def parse(self, value: Any) -> int | None:
        if value is None and self.none:
            return None
        whole = isinstance(value, (int, np.integer)) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole:
            raise ValueError(f"{value!r} is not a whole number{_number_hint(value)}; legal is {self}")
        if not self.low <= int(value) <= self.high:
            raise ValueError(f"{value} is out of range; legal is {self}")
        return int(value)

    def __str__(self) -> str:
        return f"a whole number in [{self.low}, {self.high}]" + (f" or null ({self.none})" if self.none else "")


@dataclass(frozen=True)
class Choice(_Described):
    """One of a few values (strings, numbers or booleans)."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a choice needs at least one value")

    def parse(self, value: Any) -> Any:
        for legal in self.values:
            # True == 1 in Python, so compare types of booleans too
            if legal == value and isinstance(legal, bool) == isinstance(value, bool):
                return legal
        raise ValueError(f"{value!r} is not legal{did_you_mean(value, self.values)}; legal is {self}")

    def within(self, outer: "Domain") -> bool:
        try:
            for value in self.values:
                outer.parse(value)
        except ValueError:
            return False
        return True

    def __str__(self) -> str:
        return "one of " + ", ".join("null" if v is None else str(v) for v in self.values)


@dataclass(frozen=True)
class Text(_Described):
    """Free text: a path, a column, a model name. It can be set, or searched as a choice.

    `path`: what exists under this name in the working directory is meant, and study files name it in full.
    """

    path: bool = False

    def parse(self, value: Any) -> str | None:
        if value is None and self.none:
            return None
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is not text; legal is {self}")
        return value

    def within(self, outer: "Domain") -> bool:
        return isinstance(outer, Text)

    def __str__(self) -> str:
        return "text" + (f" or null ({self.none})" if self.none else "")


Domain = Float | Int | Choice | Text


@dataclass(frozen=True)
class Parameter:
    """A declared argument: its domain and default (`REQUIRED` when it has none)."""

    name: str
    domain: Domain
    default: Any


def declared(function: Callable[..., Any]) -> dict[str, Parameter]:
    """The parameters that a function's signature declares, in order.

    Every keyword-only argument annotated with a domain is one; others (tensors, generators) are not.
    """
    found: dict[str, Parameter] = {}
    for name, argument in inspect.signature(function).parameters.items():
        if get_origin(argument.annotation) is Annotated:
            domains = [m for m in argument.annotation.__metadata__ if isinstance(m, (Float, Int, Choice, Text))]
            if domains:
                found[name] = Parameter(name=name, domain=domains[0], default=argument.default)
    return found


@dataclass(frozen=True)
class Searched:
    """A parameter that a space file searches: where, over what, and on which condition."""

    path: str
    domain: Domain
    when: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # (path, legal values): all must hold

    def active(self, values: Mapping[str, Any]) -> bool:
        return all(path in values and values[path] in legal for path, legal in self.when)


DISTRIBUTIONS = ("uniform", "loguniform", "int", "logint", "choice")


def parse_distribution(path: str, spec: Any, parameter: Parameter) -> Searched:
    """Read one entry of `search:` and hold it against the declaration.

    `declared`, or a mapping with one of uniform, loguniform, int, logint ([low, high], ends included) or
    choice ([...]), and optionally `when: {path: value or [values]}`. Raises ValueError, one line, legal set named.
    """
    if spec == "declared":
        spec = {"declared": True}
    if not isinstance(spec, Mapping):
        kinds = ", ".join(f"{{{d}: ...}}" for d in DISTRIBUTIONS)
        raise ValueError(
            f"{path}: {spec!r} is not a distribution; legal is {kinds} or declared (to fix a value, use fixed:)"
        )
    kinds_given = [key for key in spec if key != "when"]
    legal_kinds = (*DISTRIBUTIONS, "declared")
    if len(kinds_given) != 1 or kinds_given[0] not in legal_kinds:
        wrong = next((key for key in kinds_given if key not in legal_kinds), None)
        problem = (
            f"{wrong!r} is not a distribution{did_you_mean(wrong, legal_kinds)}"
            if wrong
            else f"{len(kinds_given)} distributions given, one needed"
        )
        raise ValueError(f"{path}: {problem}; legal is one of {', '.join(legal_kinds)}")
    kind = kinds_given[0]
    domain: Domain
    outer = parameter.domain
    if kind == "declared":
        if isinstance(outer, Text):
            raise ValueError(f"{path}: declared as free text, so list what to try with {{choice: [...]}}")
        domain = outer
    elif kind == "choice":
        values = spec[kind]
        if not isinstance(values, list) or not values:
            raise ValueError(f"{path}: choice needs a list of values, not {values!r}")
        domain = Choice(tuple(parse_at(path, outer, value) for value in values))
        if len(set(map(repr, domain.values))) != len(domain.values):
            raise ValueError(f"{path}: choice lists a value twice: {values}")
    else:
        domain = _parse_range(path, kind, spec[kind], outer)
    return Searched(
        path=path,
        domain=replace(domain, none="") if isinstance(domain, _Range) else domain,
        when=_parse_when(path, spec.get("when", {})),
    )


def _parse_range(path: str, kind: str, ends: Any, outer: Domain) -> Domain:
    if not isinstance(ends, list) or len(ends) != 2:
        raise ValueError(f"{path}: {kind} needs two ends, [low, high], not {ends!r}")
    if not isinstance(outer, _Range):
        raise ValueError(f"{path}: {kind} does not fit; legal is {outer}, so use {{choice: [...]}}")
    whole = kind in ("int", "logint")
    if whole != isinstance(outer, Int):
        fitting = "int or logint" if isinstance(outer, Int) else "uniform or loguniform"
        raise ValueError(f"{path}: {kind} does not fit {outer}; use {fitting}")
    low, high = (parse_at(path, outer, end) for end in ends)
    try:
        return (Int if whole else Float)(low, high, log=kind.startswith("log"))
    except ValueError as problem:
        raise ValueError(f"{path}: {problem}") from None


def _parse_when(path: str, when: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    if not isinstance(when, Mapping):
        raise ValueError(f"{path}: when needs a mapping of path to value, not {when!r}")
    return tuple((key, tuple(value) if isinstance(value, list) else (value,)) for key, value in when.items())


def parse_at(path: str, domain: Domain, value: Any) -> Any:
    """`domain.parse`, the refusal headed by the path."""
    try:
        return domain.parse(value)
    except ValueError as problem:
        raise ValueError(f"{path}: {problem}") from None


def sample(
    searched: Iterable[Searched], rng: np.random.Generator, fixed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Draw one point, each parameter independently from its own scale; inactive parameters are left out."""
    point: dict[str, Any] = {}
    for entry in searched:
        if not entry.active({**(fixed or {}), **point}):
            continue
        point[entry.path] = _draw(entry.domain, rng)
    return point


def _draw(domain: Domain, rng: np.random.Generator) -> Any:
    if isinstance(domain, Choice):
        return domain.values[int(rng.integers(len(domain.values)))]
    if isinstance(domain, Text):
        raise ValueError("free text cannot be drawn")
    if isinstance(domain, Int):
        if domain.log:
            return min(domain.high, int(math.exp(rng.uniform(math.log(domain.low), math.log(domain.high + 1)))))
        return int(rng.integers(domain.low, domain.high + 1))
    if domain.log:
        return domain.parse(math.exp(rng.uniform(math.log(domain.low), math.log(domain.high))))
    return float(rng.uniform(domain.low, domain.high))


def grid_values(domain: Domain, count: int) -> list[Any]:
    """At most `count` values spread evenly over a domain on its own scale, ends included; a choice gives all."""
    if isinstance(domain, Choice):
        return list(domain.values)
    if isinstance(domain, Text):
        raise ValueError("free text has no grid")
    scale = np.geomspace if domain.log else np.linspace
    values = scale(domain.low, domain.high, count) if count > 1 else np.array([domain.low])
    if isinstance(domain, Int):
        return sorted({round(v) for v in values.tolist()})
    return [domain.parse(v) for v in values.tolist()]


def did_you_mean(word: Any, legal: Iterable[Any]) -> str:
    """A hint for a misspelt word, or nothing."""
    close = difflib.get_close_matches(str(word), [str(x) for x in legal], n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def _number_hint(value: Any) -> str:
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return ""
        if "e" in value.lower() and "." not in value:
            mantissa, exponent = value.lower().split("e")
            sign = "" if exponent.startswith(("+", "-")) else "+"
            return f" but text: YAML reads {value} as a string, write {mantissa}.0e{sign}{exponent}"
        return f" but text: write {number:g} without quotes"
    return ""
