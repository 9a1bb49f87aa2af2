"""The page's colours: contrast against their grounds, and distance under colour-vision deficiency."""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from mmts_ray.analysis.svg import INK

CSS = (Path(__file__).parents[1] / "analysis" / "report.css").read_text()
# Machado et al. 2009, severity 1, on linear RGB
DEFICIENCIES = {
    "none": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def palette(theme):
    block = (
        CSS.split("@media", 1)[0]
        if theme == "light"
        else re.search(r":root\[data-theme=dark\]{(.*?)}", CSS, re.DOTALL)[1]
    )
    found = dict(re.findall(r"--([a-z]+):(#[0-9a-f]{3,6})", block))
    return {
        name: f"#{''.join(2 * c for c in value[1:])}" if len(value) == 4 else value for name, value in found.items()
    }


def linear(colour):
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(a, b):
    first, second = (float(np.dot([0.2126, 0.7152, 0.0722], linear(c))) + 0.05 for c in (a, b))
    return max(first, second) / min(first, second)


def lab(rgb):
    xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    )
    t = xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


def ciede2000(one, two):
    (l1, a1, b1), (l2, a2, b2) = one, two
    mean_c = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    g = 0.5 * (1 - math.sqrt(mean_c**7 / (mean_c**7 + 25**7)))
    a1, a2 = (1 + g) * a1, (1 + g) * a2
    c1, c2 = math.hypot(a1, b1), math.hypot(a2, b2)
    h1, h2 = math.degrees(math.atan2(b1, a1)) % 360, math.degrees(math.atan2(b2, a2)) % 360
    dh = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    d_h = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(dh / 2))
    mean_l, mean_c = (l1 + l2) / 2, (c1 + c2) / 2
    mean_h = h1 + h2 if c1 * c2 == 0 else (h1 + dh / 2) % 360
    t = (1 - 0.17 * math.cos(math.radians(mean_h - 30)) + 0.24 * math.cos(math.radians(2 * mean_h))
         + 0.32 * math.cos(math.radians(3 * mean_h + 6)) - 0.20 * math.cos(math.radians(4 * mean_h - 63)))  # fmt: skip
    s_l = 1 + 0.015 * (mean_l - 50) ** 2 / math.sqrt(20 + (mean_l - 50) ** 2)
    s_c, s_h = 1 + 0.045 * mean_c, 1 + 0.015 * mean_c * t
    turn = (
        2
        * math.sqrt(mean_c**7 / (mean_c**7 + 25**7))
        * math.sin(math.radians(60 * math.exp(-(((mean_h - 275) / 25) ** 2))))
    )
    x, y, z = (l2 - l1) / s_l, (c2 - c1) / s_c, d_h / s_h
    return math.sqrt(x * x + y * y + z * z - turn * y * z)


def smallest_distance(colours):
    pairs = itertools.product(DEFICIENCIES.values(), itertools.combinations(colours, 2))
    return min(ciede2000(*(lab(np.asarray(m) @ linear(c)) for c in pair)) for m, pair in pairs)


def test_ciede2000_against_published_pairs():
    pairs = [((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425), ((50, 2.5, 0), (73, 25, -18), 27.1492),
             ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644)]  # fmt: skip
    for one, two, expected in pairs:
        assert ciede2000(one, two) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_role_of_a_figure_has_a_colour_in_both_themes(theme):
    assert set(INK) <= set(palette(theme))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast(theme):
    colours = palette(theme)
    for ground in ("card", "page"):
        for role in ("ink", "muted", "link", "changes", "limits", "fail", "win"):
            assert contrast(colours[role], colours[ground]) >= 4.5, (role, ground)
    for role in ("second", "third", "fourth", "dots", "tail", "mid", "head"):
        assert contrast(colours[role], colours["card"]) >= 3, role


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_stay_apart_for_every_eye(theme):
    colours = palette(theme)
    assert smallest_distance([colours[c] for c in ("win", "second", "third", "fourth", "dots")]) >= 13
    assert smallest_distance([colours[c] for c in ("tail", "mid", "head")]) >= 11


def test_the_dark_palette_is_the_same_by_choice_and_by_preference():
    screen = CSS.split("@media print")[0]
    blocks = re.findall(r":root(?:\[data-theme=dark\]|:not\(\[data-theme=light\]\)){(.*?)}", screen, re.DOTALL)
    assert len(blocks) == 2
    assert len({re.sub(r"\s", "", block) for block in blocks}) == 1
