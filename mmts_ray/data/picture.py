"""Opening pictures: whatever was stored, an upright RGB image on white comes out, or what is wrong with it."""

import io
import os.path
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

Source = Path | bytes
SUFFIXES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "avif")
BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"P4", b"P5", b"P6")


def begins_as_picture(head: bytes) -> bool:
    """Whether the first 16 bytes of a file are those of a kind in `SUFFIXES`, whatever its name says."""
    return head.startswith(BEGINNINGS) or head[8:12] == b"WEBP" or head[4:8] == b"ftyp"


def flaw(source: Source) -> str:
    """Why a picture cannot be used, as far as its header shows; empty when nothing is wrong. Nothing is decoded."""
    from PIL import Image

    if isinstance(source, Path):
        if not os.path.isfile(source):  # False, not an error, for names that no file system takes
            return "image file not found"
        if source.stat().st_size == 0:
            return "image is empty (0 bytes)"
    try:
        with Image.open(source if isinstance(source, Path) else io.BytesIO(source)):
            return ""
    except Image.DecompressionBombError:
        return "image is too large"
    except PermissionError:
        return "image file not readable"
    except Exception:  # decoders raise anything on hostile bytes
        return "not an image"


def read_rgb(source: Source) -> "Image":
    """Decode a picture whole: CMYK, palettes and 16 bits to RGB, transparency onto white, turned as its EXIF data says.

    Raises OSError for a file that is truncated or gone.
    """
    from PIL import Image, ImageOps

    with Image.open(source if isinstance(source, Path) else io.BytesIO(source)) as opened:
        opened.load()
        picture = ImageOps.exif_transpose(opened)
    if picture.mode.startswith("I;16"):
        import numpy as np

        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))  # convert() would clip to white
    if picture.has_transparency_data:
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture.convert("RGBA"))
    return picture.convert("RGB")
