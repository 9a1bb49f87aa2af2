"""What the processes of test_distributed.py run: towers under DistributedDataParallel, and every objective on them."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel

from mmts_ray import kernels, losses

BATCH = 11
# one uneven share per worker, the last the smallest, as at the end of an epoch
SIZES = {1: (11,), 2: (7, 4), 4: (4, 3, 3, 1)}


class Towers(nn.Module):
    """Two linear towers and all that an objective may learn; every output takes part, so that DDP sees each used."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.image = nn.Linear(6, 5)
        self.text = nn.Linear(7, 5)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.log_temperature = nn.Parameter(torch.tensor(math.log(0.3)))
        self.bias = nn.Parameter(torch.tensor(-1.0))
        self.sample_temperature = nn.Parameter(torch.linspace(0.2, 0.5, BATCH))

    def forward(self, image_BI, text_BT, own_B):
        return (
            normalize(self.image(image_BI), dim=1),
            normalize(self.text(text_BT), dim=1),
            self.log_temperature.exp(),
            self.bias,
            self.sample_temperature[own_B],
        )


def inputs(dtype, device="cpu"):
    """The whole batch: features, ids with repeats, teacher rows, margins, relevances."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        name: value.to(device=device, dtype=dtype) if value.is_floating_point() else value.to(device)
        for name, value in {
            "image": draw(BATCH, 6),
            "text": draw(BATCH, 7),
            "teacher": normalize(draw(BATCH, 3), dim=1),
            "teacher_text": normalize(draw(BATCH, 3), dim=1),
            "margin": torch.linspace(0.1, 0.6, BATCH, dtype=torch.float64),
            "relevance": torch.linspace(0.4, 1, BATCH, dtype=torch.float64),
            "ids": torch.tensor([0, 1, 2, 3, 0, 4, 5, 1, 6, 0, 7]),
            "place": torch.arange(BATCH),
        }.items()
    }


def generator(device, group):
    """Workers whose generators are in different states: the first one's draw is everyone's."""
    rank = 0 if group is None else dist.get_rank(group)
    return torch.Generator(device).manual_seed(3 + rank)


def softmax(temperature="learned", **options):
    """A case: the softmax kernel with these options, each tensor named by its input and sharded."""

    def run(image, text, learned, bias, sampled, share, group, impl):
        chosen = {"learned": learned.expand(len(image)), "sampled": sampled, "fixed": torch.full_like(sampled, 0.1)}
        given = dict(options)
        for name, source in (("teacher_BE", "teacher"), ("ids_B", "ids")):
            if given.pop(name, None):
                given[name] = share[source]
        if given.pop("two_teachers", None):
            given["teacher_BE"] = given["filter_teacher"] = (share["teacher"], share["teacher_text"])
        if given.pop("drawn", None):
            given["generator"] = generator(image.device, group)
        loss, stats = kernels.softmax_loss(
            image, text, chosen[temperature], **given, with_stats=True, impl=impl, group=group
        )
        return loss, stats

    return run


def hinge(ids=None):
    def run(image, text, learned, bias, sampled, share, group, impl):
        loss, active = kernels.hinge_loss(
            image, text, share["margin"], ids_B=ids and share["ids"], impl=impl, group=group
        )
        return loss, {"active": active}

    return run


def sigmoid(temperature, ids=None):
    def run(image, text, learned, bias, sampled, share, group, impl):
        value = learned if temperature == "learned" else sampled
        return kernels.sigmoid_loss(image, text, value, bias, ids_B=ids and share["ids"], impl=impl, group=group), {}

    return run


def potential(cross, ids=None):
    def run(image, text, learned, bias, sampled, share, group, impl):
        other = text if cross else None
        return kernels.potential_loss(image, other, ids_B=ids and share["ids"], impl=impl, group=group), {}

    return run


KERNELS = {
    "plain": softmax(),
    "fixed temperature": softmax("fixed"),
    "temperature per sample": softmax("sampled", ids_B=True),
    "images anchor": softmax("sampled", directions="image_to_text", r_mix=0.3),
    "texts anchor": softmax("sampled", directions="text_to_image", r_mix=0.3, drawn=True),
    "weighted": softmax("sampled", r_mix=0.4, ids_B=True),
    "only within": softmax(r_mix=1.0),
    "replaced": softmax(r_mix=0.4, drawn=True),
    "angle": softmax(angular_margin=0.5, teacher_BE=True),
    "angle floor": softmax("sampled", angular_margin=0.5, angle_edge="floor", teacher_BE=True),
    "filter": softmax(filter_threshold=0.3, teacher_BE=True),
    "two teachers": softmax("sampled", r_mix=0.3, angular_margin=0.5, filter_threshold=0.3, two_teachers=True),
    "all weighted": softmax(
        "sampled", r_mix=0.3, angular_margin=0.5, filter_threshold=0.3, teacher_BE=True, ids_B=True
    ),
    "all replaced": softmax(
        "sampled", r_mix=0.3, drawn=True, angular_margin=0.5, filter_threshold=0.3, teacher_BE=True, ids_B=True
    ),
    "hinge": hinge(),
    "hinge ids": hinge(ids=True),
    "sigmoid": sigmoid("learned"),
    "sigmoid per sample": sigmoid("sampled", ids=True),
    "potential within": potential(cross=False),
    "potential within ids": potential(cross=False, ids=True),
    "potential across": potential(cross=True, ids=True),
}


def scheduled(name):
    """The loss of this name in LOSSES at all options that several workers must agree on."""

    def run(image, text, learned, bias, sampled, share, group, impl):
        function = losses.LOSSES[name]
        given = {"ids_B": share["ids"], "group": group, losses.SCHEDULED[name]: sampled}
        if losses.SCHEDULED[name] == "margin":
            given["margin"] = share["margin"]
        if name == "info_nce":
            given |= {"r_mix": 0.3, "generator": generator(image.device, group)}
            given |= {"angular_margin": 0.3, "teacher_BE": share["teacher"]}
        if name == "max_margin":
            given["relevance_B"] = share["relevance"]
        if name == "siglip":
            given["bias"] = bias
        if name in losses.STATE:
            state = losses.STATE[name](BATCH, BATCH, image.device)
            given |= {"temperature": 0.01, "image_B": share["place"], "text_B": share["place"]}
            # the second step, so that what the first one left behind takes part
            first = function(image.detach(), text.detach(), state=state, **given)
            losses.advance(state, first.changes)
            given["state"] = state
        out = function(image, text, **given)
        if name in losses.STATE:
            losses.advance(given["state"], out.changes)
            return out.loss, {key: value.sum() for key, value in given["state"].items()}
        return out.loss, out.stats

    return run


def sentence(name):
    """A loss of views and heads, which are here the towers' outputs in several roles."""

    def run(image, text, learned, bias, sampled, share, group, impl):
        given = {"ids_B": share["ids"], "group": group}
        if name == "n_pair":
            out = losses.n_pair(2 * image, 3 * text, **given)
        elif name == "simcse":
            out = losses.simcse(image, text, temperature=learned, text_margin=0.15, **given)
        elif name == "mcse":
            out = losses.mcse(image, text, text, image, image, temperature=learned, grounding_weight=0.5, **given)
        else:
            teachers = {"teacher_image_BE": share["teacher"], "teacher_text_BE": share["teacher_text"]}
            views = (image, text, text, image, image, text)
            out = losses.kdmcse(*views, temperature=learned, grounding_weight=0.5, **teachers, **given)
        return out.loss, {}

    return run


LOSSES = {name: scheduled(name) for name in losses.LOSSES}
LOSSES |= {name: sentence(name) for name in ("n_pair", "simcse", "mcse", "kdmcse")}

CASES = [(name, impl) for name in KERNELS for impl in ("dense", "cached", "stream")]
CASES += [(name, "auto") for name in LOSSES]


def measure(towers, batch, own, name, impl, group):
    """Loss, statistics and every gradient of one case on rows `own`."""
    towers.zero_grad(set_to_none=True)
    share = {key: value[own] for key, value in batch.items()}
    outputs = towers(share["image"], share["text"], own)
    loss, stats = {**KERNELS, **LOSSES}[name](*outputs, share, group, impl)
    # a factor, as gradient accumulation has; a zero for what this objective does not learn
    (1.5 * loss + 0 * sum(x.sum() for x in outputs)).backward()
    module = getattr(towers, "module", towers)
    grads = {key: parameter.grad.cpu().clone() for key, parameter in module.named_parameters()}
    return {"loss": loss.item(), "stats": {k: float(v) for k, v in stats.items()}, "grads": grads}


def alone(dtype, device="cpu"):
    """All cases in one process with the whole batch."""
    towers, batch = Towers().to(device=device, dtype=dtype), inputs(dtype, device)
    own = torch.arange(BATCH, device=device)
    return {case: measure(towers, batch, own, *case, None) for case in CASES}


def together(rank, workers, device):
    """All cases on this worker's rows."""
    found = {}
    start = sum(SIZES[workers][:rank])
    own = torch.arange(start, start + SIZES[workers][rank], device=device)
    for dtype in (torch.float64, torch.float32):
        towers = DistributedDataParallel(Towers().to(device=device, dtype=dtype))
        batch = inputs(dtype, device)
        for case in CASES:
            found[str(dtype), *case] = measure(towers, batch, own, *case, dist.group.WORLD)
    found["content"] = content(rank, workers, device)
    found["subgroup"] = subgroup(rank, workers, device)
    found["idle"] = idle(rank, workers, device)
    found["mean"] = mean_of_rows(rank, workers, device)
    return found


def content(rank, workers, device):
    """Losses of perfect pairs, each worker holding rows in an order of its own."""
    rows_BD = torch.eye(BATCH, dtype=torch.float64, device=device)
    order_B = torch.randperm(BATCH, generator=torch.Generator().manual_seed(7)).to(device)
    own = order_B.split(SIZES[workers])[rank]
    image = rows_BD[own]
    found = []
    for impl in ("dense", "cached", "stream"):
        temperature = torch.full((len(own),), 0.02, dtype=torch.float64, device=device)
        for text in (image, image.roll(1, dims=1)):
            loss, _ = kernels.softmax_loss(image, text, temperature, impl=impl, group=dist.group.WORLD)
            found.append(loss.item())
    return found


def subgroup(rank, workers, device):
    """The loss over the last two of four workers, who are not ranks 0 and 1 of the world."""
    if workers != 4:
        return None
    group = dist.new_group([2, 3])
    if rank < 2:
        return None
    batch = inputs(torch.float64, device)
    image, text = normalize(batch["image"][:, :5], dim=1), normalize(batch["text"][:, :5], dim=1)
    own = slice(0, 2) if rank == 2 else slice(2, 7)
    temperature = torch.full((7,), 0.2, dtype=torch.float64, device=device)
    options = {"r_mix": 0.5, "impl": "stream"}
    ours, _ = kernels.softmax_loss(image[own], text[own], temperature[own], group=group, **options)
    whole, _ = kernels.softmax_loss(image[:7], text[:7], temperature, **options)
    return ours.item(), whole.item()


def idle(rank, workers, device):
    """Loss and gradients when only the first two of four workers have rows; beside them, those of one process."""
    if workers != 4:
        return None
    batch = inputs(torch.float64, device)
    sizes = (7, 4, 0, 0)
    own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    results = []
    for rows, group in ((own, dist.group.WORLD), (slice(None), None)):
        pair = [normalize(batch[name][rows, :5], dim=1).requires_grad_() for name in ("image", "text")]
        temperature = torch.full((len(pair[0]),), 0.2, dtype=torch.float64, device=device, requires_grad=True)
        options = {"r_mix": 0.3, "impl": "stream", "group": group}
        total = kernels.softmax_loss(*pair, temperature, ids_B=batch["ids"][rows], **options)[0]
        total = total + kernels.softmax_loss(*pair, temperature, impl="cached", group=group)[0]
        total = total + kernels.hinge_loss(*pair, batch["margin"][rows], impl="stream", group=group)[0]
        total = total + kernels.sigmoid_loss(*pair, temperature, -1.0, impl="stream", group=group)
        total = total + kernels.potential_loss(pair[0], impl="stream", group=group)
        total.backward()
        grads = [leaf.grad.cpu() for leaf in (*pair, temperature)]
        results.append((total.item(), grads if group is None else [grad / workers for grad in grads]))
    (ours, shares), (whole, grads) = results
    return ours, whole, shares, [grad[own] for grad in grads]


def mean_of_rows(rank, workers, device):
    values_B = torch.arange(BATCH, dtype=torch.float64, device=device)
    own_b = values_B.split(SIZES[workers])[rank].clone().requires_grad_()
    mean = kernels.mean_rows(own_b, dist.group.WORLD)
    mean.backward()
    return mean.item(), own_b.grad.unique().tolist()
