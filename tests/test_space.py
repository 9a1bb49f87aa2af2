"""Domains, declarations, distributions."""

from typing import Annotated

import numpy as np
import pytest

from mmts_ray.space import (
    REQUIRED,
    Choice,
    Float,
    Int,
    Parameter,
    Searched,
    Text,
    declared,
    grid_values,
    parse_distribution,
    sample,
)


def toy(
    x_BD: "np.ndarray",
    *,
    generator: "np.random.Generator | None" = None,
    lr: Annotated[float, Float(1e-4, 1.0, log=True, doc="rate")] = 1e-2,
    k: Annotated[int, Int(1, 100)] = 5,
    mode: Annotated[str, Choice(("a", "b"))] = "a",
    path: Annotated[str, Text()],
) -> None:
    """Has four declared parameters; the tensor and the generator are not declared."""


def test_declared_reads_keyword_arguments_with_a_domain_only():
    found = declared(toy)
    assert list(found) == ["lr", "k", "mode", "path"]
    assert found["lr"].default == 1e-2
    assert found["path"].default is REQUIRED


@pytest.mark.parametrize(
    ("domain", "value"),
    [
        (Float(0, 1), 0),
        (Float(0, 1), 1.0),
        (Float(0, 1), 1 + 1e-12),
        (Float(0, 1, none="off"), None),
        (Int(1, 3), 3),
        (Int(1, 3), 2.0),
        (Choice((1, 2)), 2),
        (Choice((True, False)), False),
        (Choice(("a", None)), None),
        (Text(), "x"),
    ],
)
def test_legal_values_are_taken(domain, value):
    parsed = domain.parse(value)
    assert parsed == value or parsed == pytest.approx(value)


@pytest.mark.parametrize(
    ("domain", "value", "words"),
    [
        (Float(0, 1), 1.5, ["1.5", "out of range", "[0, 1]"]),
        (Float(0, 1), float("nan"), ["nan", "[0, 1]"]),
        (Float(0, 1), float("inf"), ["inf", "[0, 1]"]),
        (Float(0, 1), True, ["True", "not a number"]),
        (Float(0, 1), "1e-3", ["YAML reads 1e-3 as a string", "1.0e-3"]),
        (Float(0, 1), "2e5", ["write 2.0e+5"]),
        (Float(0, 1), "0.5", ["write 0.5 without quotes"]),
        (Float(0, 1), "half", ["'half' is not a number"]),
        (Float(0, 1), None, ["None is not a number"]),
        (Int(1, 3), 2.5, ["2.5", "not a whole number"]),
        (Int(1, 3), 4, ["4", "[1, 3]"]),
        (Choice(("info_nce", "siglip")), "info_nec", ["did you mean info_nce?", "one of info_nce, siglip"]),
        (Choice((1, 2)), True, ["True"]),
        (Text(), 3, ["3 is not text"]),
    ],
)
def test_illegal_values_are_refused_in_one_line_with_what_is_legal(domain, value, words):
    with pytest.raises(ValueError, match="legal is") as caught:
        domain.parse(value)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_empty_ranges_are_refused():
    with pytest.raises(ValueError, match="above upper end"):
        Float(2, 1)
    with pytest.raises(ValueError, match="above 0"):
        Float(0, 1, log=True)


RATE = Parameter("lr", Float(1e-4, 1.0, log=True), 1e-2)
COUNT = Parameter("k", Int(1, 100), 5)
MODE = Parameter("mode", Choice(("a", "b")), "a")
PATH = Parameter("path", Text(), "x")


@pytest.mark.parametrize(
    ("parameter", "spec", "domain"),
    [
        (RATE, {"loguniform": [1e-3, 0.1]}, Float(1e-3, 0.1, log=True)),
        (RATE, {"uniform": [1e-3, 0.1]}, Float(1e-3, 0.1)),
        (COUNT, {"logint": [2, 50]}, Int(2, 50, log=True)),
        (COUNT, {"choice": [2, 50]}, Choice((2, 50))),
        (MODE, "declared", Choice(("a", "b"))),
        (PATH, {"choice": ["p", "q"]}, Choice(("p", "q"))),
    ],
)
def test_distributions_are_read(parameter, spec, domain):
    assert parse_distribution("s.x", spec, parameter).domain == domain


@pytest.mark.parametrize(
    ("parameter", "spec", "words"),
    [
        (RATE, {"loguniform": [1e-5, 0.1]}, "out of range"),
        (RATE, {"loguniform": ["1e-3", 0.1]}, "YAML reads 1e-3 as a string"),
        (RATE, {"loguniform": [0.1, 0.01]}, "above upper end"),
        (RATE, {"loguniform": [0.1]}, "two ends"),
        (RATE, {"int": [1, 2]}, "uniform or loguniform"),
        (COUNT, {"uniform": [1, 2]}, "int or logint"),
        (COUNT, {"lognit": [1, 2]}, "did you mean logint"),
        (MODE, {"uniform": [1, 2]}, "choice"),
        (MODE, {"choice": ["a", "c"]}, "one of a, b"),
        (MODE, {"choice": ["a", "a"]}, "twice"),
        (MODE, {"choice": []}, "list of values"),
        (PATH, "declared", "choice"),
        (RATE, 0.1, "to fix a value, use fixed"),
        (RATE, {"uniform": [0.1, 0.2], "choice": [1]}, "one needed"),
    ],
)
def test_wrong_distributions_are_refused_with_the_path(parameter, spec, words):
    with pytest.raises(ValueError, match=r"^s\.x: ") as caught:
        parse_distribution("s.x", spec, parameter)
    assert words in str(caught.value)


def test_samples_stay_inside_and_follow_their_scale_and_condition():
    searched = [
        Searched("mode", Choice(("a", "b"))),
        Searched("lr", Float(1e-4, 1.0, log=True)),
        Searched("k", Int(1, 3)),
        Searched("only_b", Float(0, 1), when=(("mode", ("b",)),)),
    ]
    rng = np.random.default_rng(0)
    points = [sample(searched, rng) for _ in range(4000)]
    assert {p["k"] for p in points} == {1, 2, 3}
    assert all(1e-4 <= p["lr"] <= 1 for p in points)
    assert np.mean([p["lr"] < 1e-2 for p in points]) == pytest.approx(0.5, abs=0.03)  # the middle of a log range
    assert all(("only_b" in p) == (p["mode"] == "b") for p in points)
    assert [sample(searched, np.random.default_rng(1))] == [sample(searched, np.random.default_rng(1))]


def test_log_integers_reach_both_ends():
    rng = np.random.default_rng(0)
    drawn = {sample([Searched("k", Int(1, 4, log=True))], rng)["k"] for _ in range(500)}
    assert drawn == {1, 2, 3, 4}


def test_grid_values_follow_the_scale():
    assert grid_values(Float(0, 1), 3) == [0, 0.5, 1]
    assert grid_values(Float(0.01, 1, log=True), 3) == pytest.approx([0.01, 0.1, 1])
    assert grid_values(Int(1, 3), 5) == [1, 2, 3]
    assert grid_values(Choice(("a", "b")), 5) == ["a", "b"]
    assert grid_values(Float(0.2, 1), 1) == [0.2]
