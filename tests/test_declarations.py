"""Every function in a table declares its tunable arguments completely, and every declaration is enforced."""

import inspect
import re
from typing import Annotated, get_origin

import pytest

from mmts_ray.config import NAMED, SINGLE, from_flat, legal
from mmts_ray.space import REQUIRED, Choice, Float, Int, Text, declared

FUNCTIONS = {f"{section}.{name}": f for section, (table, _) in NAMED.items() for name, f in table.items()}
FUNCTIONS |= {f"{section}.": f for section, f in SINGLE.items()}
PARAMETERS = [
    pytest.param(path, p, id=path + p.name if path.endswith(".") else f"{path}({p.name})")
    for path, f in FUNCTIONS.items()
    for p in declared(f).values()
]


@pytest.mark.parametrize("path", FUNCTIONS)
def test_a_function_in_a_table_says_what_it_does_and_declares_keyword_arguments_only(path):
    function = FUNCTIONS[path]
    assert inspect.getdoc(function), path
    assert re.match(r"\w.*[.:]", inspect.getdoc(function).splitlines()[0]), path
    for argument in inspect.signature(function).parameters.values():
        if get_origin(argument.annotation) is Annotated:
            assert argument.kind is inspect.Parameter.KEYWORD_ONLY, (path, argument.name)


@pytest.mark.parametrize(("path", "parameter"), PARAMETERS)
def test_a_parameter_has_a_meaning_and_a_legal_default(path, parameter):
    assert len(parameter.domain.doc) > 5
    if parameter.default is not REQUIRED:
        assert parameter.domain.parse(parameter.default) == parameter.default


@pytest.mark.parametrize(("path", "parameter"), PARAMETERS)
def test_what_lies_outside_the_declaration_is_refused_with_path_and_legal_set(path, parameter):
    section, name = path.split(".")
    chosen = {f"{section}.name": name} if name else {}
    needed = [p.name for p in declared(FUNCTIONS[path]).values() if p.default is REQUIRED]
    chosen |= {f"{section}.{n}": "somewhere" for n in needed}
    full = f"{section}.{parameter.name}"
    outside = {Float: ["text", True, float("nan")], Int: ["text", True, 1.5], Choice: ["no such choice"], Text: [3]}
    values = list(outside[type(parameter.domain)])
    if isinstance(parameter.domain, (Float, Int)):
        span = parameter.domain.high - parameter.domain.low
        values += [parameter.domain.low - 1, parameter.domain.high + span + 1]
    for value in values:
        with pytest.raises(ValueError, match=rf"^{re.escape(full)}: .*legal is") as caught:
            from_flat({**chosen, full: value})
        assert "\n" not in str(caught.value)
    assert full in legal(chosen)
