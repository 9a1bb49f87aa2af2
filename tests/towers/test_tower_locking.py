"""Which parameters of whole towers move, from which start."""

import pictures
import pytest
import torch
from tower_trials import ALL, generator

from mmts_ray.towers.clip import Clip
from mmts_ray.towers.locking import trained_names
from mmts_ray.towers.weights import build, find

torch.set_num_threads(1)
pytest.importorskip("open_clip")


def source_of(kind, folder):
    content = {"resnet": pictures.RESNET, "timm": pictures.TIMM, "vit": pictures.TINY}.get(kind)
    return find(str(pictures.config(folder, content or pictures.bert(folder / "bert"))))


def moved(source, **lock):
    """Names of the parameters that one step moves."""
    model = Clip(source, 0, crop=1.0, batch_norm="stored", precision="float32", **{**ALL, **lock})
    for module in model.modules():  # some start at 0, so that nothing below them would move in the first step
        if isinstance(module, torch.nn.BatchNorm2d):
            module.weight.data.fill_(1.0)
    before = {name: p.detach().clone() for name, p in model.network.named_parameters()}
    trained = [p for p in model.parameters() if p.requires_grad]
    pixels = torch.randint(0, 256, (4, 3 * model.image_size**2), dtype=torch.uint8, generator=generator())
    tokens = torch.randint(1, 99, (4, 16), generator=generator())
    image, text = model.image(pixels), model.text(tokens)
    (image @ text.T * torch.randn(4, 4, generator=generator())).sum().backward()
    for parameter in trained:
        if parameter.grad is not None:  # a step by the sign: what has a gradient moves
            parameter.data.sub_(0.1 * parameter.grad.sign())
    return {name for name, p in model.network.named_parameters() if not torch.equal(p, before[name])}, set(before)


def starting(names, *prefixes):
    return {name for name in names if name.startswith(prefixes)}


IMAGE_LAST = {
    "vit": ("visual.transformer.resblocks.2.", "visual.ln_post."),
    "resnet": ("visual.layer4.0.",),
    "timm": ("visual.trunk.blocks.6.0.", "visual.trunk.conv_head.", "visual.trunk.bn2."),
    "bert": ("visual.transformer.resblocks.2.", "visual.ln_post."),
}
IMAGE_PROJECTION = {"vit": "visual.proj", "resnet": "visual.attnpool.", "timm": "visual.head.", "bert": "visual.proj"}
TEXT_LAST = {"bert": ("text.transformer.encoder.layer.2.",)}
PLAIN_LAST = ("transformer.resblocks.2.", "ln_final.")
IDLE = {"bert": {"text.transformer.pooler.dense.weight", "text.transformer.pooler.dense.bias"}}  # mean pooling


@pytest.mark.parametrize("kind", ["vit", "resnet", "timm", "bert"])
def test_exactly_the_chosen_parameters_move(kind, tmp_path):
    source = source_of(kind, tmp_path)
    image, text = IMAGE_PROJECTION[kind], "text.proj." if kind == "bert" else "text_projection"
    full, names = moved(source)
    still = {"logit_scale"} | IDLE.get(kind, set())
    flat = {n for n in names - full - still if "k_proj.bias" in n or "key.bias" in n}  # softmax ignores a shift of keys
    assert full == names - still - flat
    projections, _ = moved(source, image_blocks=0, text_blocks=0)
    assert projections == starting(names, image, text) - flat
    last, _ = moved(source, image_blocks=1, text_blocks=1)
    expected = starting(names, image, text, *IMAGE_LAST[kind], *TEXT_LAST.get(kind, PLAIN_LAST))
    assert last == expected - flat
    locked, _ = moved(source, image_blocks=0, image_projection=False)  # a locked image tower, as LiT has it
    assert locked == {name for name in full if not name.startswith("visual.")}
    with pytest.raises(ValueError, match=r"model\.image_blocks: 99; the tower has \d+ blocks; legal is at most that"):
        moved(source, image_blocks=99)
    with pytest.raises(ValueError, match=r"model\.image_blocks: nothing is trained"):
        moved(source, image_blocks=0, text_blocks=0, image_projection=False, text_projection=False)


def test_blocks_of_other_towers_are_counted_through_their_stages():
    names = [
        "visual.trunk.stem.0.weight",
        *(
            f"visual.trunk.stages.{s}.{part}.weight"
            for s in (0, 1)
            for part in ("downsample.0", "blocks.0.conv", "blocks.1.conv")
        ),
        "visual.trunk.norm.weight",
        "text.proj.0.weight",
    ]
    chosen = trained_names(names, image_blocks=2, text_blocks=0, image_projection=True, text_projection=False)
    assert chosen == {
        "visual.trunk.stages.1.downsample.0.weight",
        "visual.trunk.stages.1.blocks.0.conv.weight",
        "visual.trunk.stages.1.blocks.1.conv.weight",
        "visual.trunk.norm.weight",
    }


def test_the_same_seed_starts_equal_whatever_was_drawn_before(tmp_path):
    source = source_of("vit", tmp_path)
    first = build(source, 3).state_dict()
    torch.rand(7)
    state = torch.get_rng_state()
    again = build(source, 3).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not torch.equal(build(source, 4).state_dict()["visual.proj"], first["visual.proj"])
