"""Pictures as the bytes of a file."""

import io

import numpy as np


def png(colour="red", size=(8, 8), mode="RGB", **save) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new(mode, size, colour).save(out, format="PNG", **save)
    return out.getvalue()


def jpeg(mode="RGB", colour=(200, 10, 10), size=(64, 64), **save) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new(mode, size, colour).save(out, format="JPEG", **save)
    return out.getvalue()


def truncated_jpeg() -> bytes:
    from PIL import Image

    out = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, size=(64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(out, format="JPEG")
    return out.getvalue()[: len(out.getvalue()) * 2 // 3]
