"""Which parameters of a two-tower network are trained, decided by their names, for every kind of tower alike."""

import re
from collections.abc import Iterable

# a repeated block: resblocks.3 (open_clip), encoder.layer.3 (BERT), blocks.5.3 and stages.3.blocks.1 (timm), layer4.0
BLOCK = re.compile(
    r"(?:^|\.)(?:(?:resblocks|blocks|block|layers|layer|stages|h)\.(\d+)(?:\.(?:blocks\.)?(\d+)(?=\.))?"
    r"|layer([1-4])\.(\d+))(?=\.)"
)
PROJECTION = re.compile(
    r"^(?:visual\.(?:proj|head|attnpool)(?:\.|$)|visual\.trunk\.(?:head|classifier|fc)\."
    r"|(?:text\.)?text_projection(?:\.|$)|text\.proj(?:\.|$))"
)
INPUT = re.compile(r"embed|cls_token|cls_emb|pos_emb")  # tables before the first block, wherever a network lists them
UNTRAINED = ("logit_scale", "logit_bias")  # the schedule owns the temperature


def side_of(name: str) -> str:
    """Whether a parameter belongs to the image or the text tower; "" for what belongs to neither."""
    return "" if name in UNTRAINED else "image" if name.startswith("visual.") else "text"


def trained_names(
    names: Iterable[str],
    *,
    image_blocks: int | None,
    text_blocks: int | None,
    image_projection: bool,
    text_projection: bool,
) -> set[str]:
    """The parameters to train, out of all names in the order of the network.

    Of each tower: everything (blocks None), or its last so many blocks and what comes after them (the final norm);
    0 is nothing of it. The projection into the joint space is its own switch. `logit_scale` is never trained.
    ValueError when a tower has fewer blocks than are asked for, or nothing at all would be trained.
    """
    names = list(names)
    chosen: set[str] = set()
    for side, blocks, projection in (
        ("image", image_blocks, image_projection),
        ("text", text_blocks, text_projection),
    ):
        own = [name for name in names if side_of(name) == side]
        of_projection = {name for name in own if PROJECTION.search(name)}
        chosen |= of_projection if projection else set()
        body = [name for name in own if name not in of_projection]
        if blocks is None:
            chosen |= set(body)
        elif blocks:
            chosen |= _last(body, blocks, side)
    if not chosen:
        raise ValueError(
            "model.image_blocks: nothing is trained; legal is a block or a projection of at least one tower"
        )
    return chosen


def _last(body: list[str], blocks: int, side: str) -> set[str]:
    """Names from the first parameter of the last `blocks` blocks on, in the order of the network."""
    block_of = {name: _block(name) for name in body}
    found = list(dict.fromkeys(block for block in block_of.values() if block is not None))
    if blocks > len(found):
        raise ValueError(
            f"model.{side}_blocks: {blocks}; the tower has {len(found)} blocks; legal is at most that, or null for all"
        )
    first = next(i for i, name in enumerate(body) if block_of[name] == found[-blocks])
    return {name for name in body[first:] if block_of[name] is not None or not INPUT.search(name)}


def _block(name: str) -> tuple[int, int] | None:
    """(stage, block) of a parameter; what opens a stage, as a down-sampling does, belongs to its first block."""
    match = BLOCK.search(name.removeprefix("visual.trunk.").removeprefix("visual."))
    if match is None:
        return None
    stage, inner, layer, number = match.groups()
    return (int(layer), int(number)) if layer else (int(stage), int(inner or 0))
