"""Pictures of every kind, read as red, green and blue on white."""

import io

import numpy as np
import pytest
from image_files import jpeg, png, truncated_jpeg

from mmts_ray.data.picture import flaw, read_rgb


def test_pictures_of_every_kind_become_rgb_on_white(tmp_path):
    from PIL import Image

    cases = {
        "cmyk.jpg": (jpeg("CMYK", (0, 255, 255, 0)), (255, 0, 0), 12),
        "clear.png": (png((0, 0, 0, 0), mode="RGBA"), (255, 255, 255), 0),
        "half.png": (png((0, 0, 0, 128), mode="RGBA"), (127, 127, 127), 1),
        "grey.png": (png(100, mode="L"), (100, 100, 100), 0),
        "palette.png": (png(0, mode="P", transparency=0), (255, 255, 255), 0),
        "la.png": (png((10, 0), mode="LA"), (255, 255, 255), 0),
    }
    wide = io.BytesIO()
    Image.fromarray(np.full((8, 8), 128 * 256, dtype=np.uint16)).save(wide, format="PNG")
    cases["sixteen bits.png"] = (wide.getvalue(), (128, 128, 128), 0)
    for name, (raw, expected, tolerance) in cases.items():
        path = tmp_path / name
        path.write_bytes(raw)
        for source in (path, raw):
            assert flaw(source) == ""
            picture = read_rgb(source)
            assert picture.mode == "RGB", name
            assert np.abs(np.subtract(picture.getpixel((4, 4)), expected)).max() <= tolerance, name


def test_a_picture_is_turned_upright():
    from PIL import Image

    picture = Image.new("RGB", (20, 10), "red")
    exif = picture.getexif()
    exif[274] = 6  # rotate a quarter turn
    out = io.BytesIO()
    picture.save(out, format="JPEG", exif=exif)
    assert read_rgb(out.getvalue()).size == (10, 20)


def test_flaws_are_named(tmp_path):
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("not a picture")
    assert flaw(tmp_path / "none.png") == "image file not found"
    assert flaw(tmp_path) == "image file not found"
    assert flaw(tmp_path / ("x" * 5000)) == "image file not found"
    assert flaw(tmp_path / "empty.png") == "image is empty (0 bytes)"
    assert flaw(tmp_path / "text.png") == "not an image"
    with pytest.raises(OSError, match="truncated"):
        read_rgb(truncated_jpeg())
