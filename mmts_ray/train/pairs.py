"""A trial that trains on image-caption pairs: one optimiser step, the evaluation of a split, a checkpoint.

Shapes: N images, M caption rows (image-caption pairs), U unique captions, B batch, D embedding dim.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from mmts_ray.config import TrialConfig
from mmts_ray.groups import Groups
from mmts_ray.kernels import Shard
from mmts_ray.losses import SCHEDULED, STATE, LossOut, advance
from mmts_ray.metrics import TERCILES, evaluate, multi_instance, probe_accuracy, ranks
from mmts_ray.recipe import Recipe, stream
from mmts_ray.schedules import Schedule
from mmts_ray.train.data import TRAIN, Split, TrainData
from mmts_ray.train.run import Run
from mmts_ray.train.workers import mean_gradients, share_of


def schedule_of(config: TrialConfig, total_steps: int, groups: Groups | None) -> Schedule:
    """The trial's schedule over its whole run; without groups, every sample is in one group."""
    size_M, sizes_G = (groups.size_M, groups.sizes_G) if groups else (np.ones(1, int), np.ones(1, int))
    return config.function("schedule")(total_steps, size_M, sizes_G, **config.kwargs("schedule"))


class Batch(NamedTuple):
    """Samples of one step: the caption row that each stands for (its image, group, id), and the caption it learns."""

    rows_B: torch.Tensor
    text_B: torch.Tensor  # into the unique captions; another than the row's own when any relevant caption will do


class Pairs(Run):
    """Model, optimiser and the learnable part of the objective of one trial."""

    def __init__(
        self,
        *,
        config: TrialConfig,
        data: TrainData,
        recipe: Recipe,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.config, self.data, self.recipe, self.group = config, data, recipe, group
        groups = data.groups(config.name("groups"), config.kwargs("groups"))
        self.notes = groups.notes
        split = data.split(TRAIN)
        if len(split.rows) < 2:
            raise ValueError(f"the training split has {len(split.rows)} pairs; at least 2 are needed")
        samples = len(split.rows) if recipe.captions == "all" else len(split.images)
        self.steps_per_epoch = recipe.steps_per_epoch(samples)
        schedule = schedule_of(config, self.steps_per_epoch * recipe.epochs, groups)
        self.schedule = schedule
        model = config.kwargs("model")
        self.image_NI, self.text_UT = self._inputs()
        dims = (self.image_NI.shape[1], self.text_UT.shape[1])
        self.model = config.function("model")(*dims, recipe.seed, **model).to(data.device)
        self.objective = config.function("loss")
        self.objective_kwargs = config.kwargs("loss")
        self.scheduled = SCHEDULED[config.name("loss")]
        accepted = inspect.signature(self.objective).parameters
        self.image_M = torch.from_numpy(data.frozen.image_M.astype(np.int64)).to(data.device)
        self.text_M = torch.from_numpy(data.frozen.text_M.astype(np.int64)).to(data.device)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.learned: dict[str, torch.nn.Parameter] = {}
        if schedule.learnable:
            start = torch.tensor(math.log(schedule.base(0)), device=data.device)
            self.learned["log_temperature"] = torch.nn.Parameter(start)
            if "bias" in self.objective_kwargs:  # SigLIP learns its bias together with its temperature
                bias = torch.tensor(float(self.objective_kwargs.pop("bias")), device=data.device)
                self.learned["bias"] = torch.nn.Parameter(bias)
        self.parameters += self.learned.values()
        shift = schedule.shift_M
        varies = isinstance(shift, np.ndarray) and np.ptp(shift) > 0
        self.shift_M = torch.from_numpy(np.asarray(shift, dtype=np.float32)).to(data.device) if varies else None
        self.shift = 0.0 if varies else float(np.asarray(shift).flat[0])
        self.optimiser = recipe.optimiser(self.parameters)
        self.takes_generator = "generator" in accepted
        # ids cost a mask per step: only where two samples of the training split can show the same thing
        id_N = data.frozen.id_N[data.frozen.split_N == TRAIN]
        repeats = recipe.captions == "all" or len(np.unique(id_N)) < len(id_N)
        self.takes_ids = "ids_B" in accepted and repeats
        self.id_N = torch.from_numpy(data.frozen.id_N.astype(np.int64)).to(data.device)
        # what the objective knows about every image and caption; it moves with the steps
        fresh = STATE.get(config.name("loss"))
        self.remembered = fresh(len(self.image_NI), len(self.text_UT), data.device) if fresh else {}
        self.teachers: list[tuple[torch.Tensor, str]] = []  # rows, of images or of captions
        thresholds = (self.objective_kwargs.get(f"filter_threshold{of}") for of in ("", "_image"))
        if self.objective_kwargs.get("angular_margin") or any(t is not None for t in thresholds):
            soft_labels = self.objective_kwargs["soft_labels"]
            kinds = (soft_labels,) if soft_labels in ("image", "text") else ("image", "text")
            self.teachers = [(data.teacher(kind), kind) for kind in kinds]

    def _inputs(self) -> tuple[Any, Any]:
        """What the model reads, a row per image and per unique caption."""
        return self.data.images(standardise=self.config.kwargs("model").get("standardise", False)), self.data.texts()

    def batches(self, epoch: int) -> Iterator[Batch]:
        """The batches of an epoch, the same for every configuration with this seed and batch size."""
        split, recipe = self.data.split(TRAIN), self.recipe
        rows = split.rows
        draw = stream(recipe.seed, "captions", epoch)
        if recipe.captions != "all" and len(rows) > len(split.images):
            # a random caption per image: sort by (image, noise), take the first row of each image
            noise = draw.random(len(rows))
            pair_image = split.pair_image.cpu().numpy()
            ordered = np.lexsort((noise, pair_image))
            first = np.flatnonzero(np.diff(pair_image[ordered], prepend=-1))
            rows = rows[ordered[first]]
        order = stream(recipe.seed, "order", epoch).permutation(len(rows))
        rows_N = self._on_device(rows[order])
        if recipe.captions == "relevant":
            text_N = self._on_device(self.data.relevant(recipe.relevancy_above).draw(rows, draw)[order])
        else:
            text_N = self.text_M[rows_N]
        for number in range(recipe.steps_per_epoch(len(rows_N))):
            part = slice(number * recipe.batch_size, (number + 1) * recipe.batch_size)
            yield Batch(rows_N[part], text_N[part])

    def _on_device(self, index: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(index.astype(np.int64)).to(self.data.device)

    def update(
        self, batch: Batch, step: int, dropout: torch.Generator, mix: torch.Generator, *, with_stats: bool
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """One optimiser step on the whole batch; returns the detached loss and its statistics."""
        shard = share_of(len(batch.rows_B), self.group)
        rows_B, text_B = (part_B[shard.own] for part_B in batch)
        image_B = self.image_M[rows_B]
        value: Any
        kwargs: dict[str, Any] = dict(self.objective_kwargs)
        if self.group is not None:
            kwargs["group"] = self.group
        if self.schedule.learnable:
            value = self.learned["log_temperature"].exp()
            if "bias" in self.learned:
                kwargs["bias"] = self.learned["bias"]
        else:
            base = self.schedule.base(step)
            value = base + self.shift if self.shift_M is None else base + self.shift_M[rows_B]
        kwargs[self.scheduled] = value
        if self.takes_ids:
            kwargs["ids_B"] = self.id_N[image_B]
        if self.takes_generator:
            kwargs["generator"] = mix
        if self.teachers:
            rows = tuple(teacher[image_B if kind == "image" else text_B] for teacher, kind in self.teachers)
            kwargs["teacher_BE"] = rows if len(rows) > 1 else rows[0]
        if self.remembered:
            kwargs |= {"state": self.remembered, "image_B": image_B, "text_B": text_B}
        objective = partial(self.objective, with_stats=with_stats, **kwargs)
        out = self._backward(image_B, text_B, dropout, shard, objective)
        if self.group is not None:
            mean_gradients(self.parameters, self.group)
        stats: dict[str, Any] = dict(out.stats)
        if with_stats:
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            stats["gradient_norm"] = torch.nn.utils.get_total_norm(gradients)
        if self.recipe.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        if self.remembered:
            advance(self.remembered, out.changes)
        if self.schedule.learnable:
            low, high = math.log(self.schedule.low), math.log(self.schedule.high)
            self.learned["log_temperature"].data.clamp_(low, high)
        return out.loss.detach(), stats

    def _backward(
        self,
        image_B: torch.Tensor,
        text_B: torch.Tensor,
        dropout: torch.Generator,
        shard: Shard,
        objective: Callable[..., LossOut],
    ) -> LossOut:
        """The objective of this worker's rows, with its gradients."""
        # index_select: three times as fast as indexing with a tensor
        image_BD = self.model.image(self.image_NI.index_select(0, image_B), dropout, shard)
        text_BD = self.model.text(self.text_UT.index_select(0, text_B), dropout, shard)
        out = objective(image_BD, text_BD)
        out.loss.backward()
        return out

    def memory(self) -> dict[str, Any]:
        return self.remembered

    def recall(self, memory: dict[str, Any]) -> None:
        for name, value in self.remembered.items():
            value.copy_(memory[name])

    @torch.no_grad()
    def evaluate(self, which: int, *, final: bool) -> dict[str, float]:
        """Metrics of one split, over its unique captions."""
        split = self.data.split(which)
        if len(split.images) < 2:
            return {}
        image_ND, text_UD = self._embedded(split)
        groups = self._eval_groups()
        out = evaluate(
            image_ND,
            text_UD,
            split.pair_image,
            split.pair_text,
            tercile_P=groups.tercile_M[split.rows],
            final=final,
            seed=self.recipe.seed,
        )
        gallery = self.data.gallery(which)
        if gallery is not None:
            first_N = split.rows[np.unique(split.pair_image.cpu().numpy(), return_index=True)[1]]
            out |= multi_instance(
                image_ND,
                self.model.text(self.text_UT[gallery.texts]),
                gallery.relevancy_JL,
                gallery.row_N,
                gallery.column_C,
                size_N=groups.size_M[first_N],
                tercile_N=groups.tercile_M[first_N],
            )
        if final and self.config.kwargs("eval")["probe"]:
            out["probe_accuracy"] = self._probe(split, image_ND)
        return out

    def _probe(self, split: Split, image_ND: torch.Tensor) -> float:
        """`probe_accuracy` of a split's images, with the probe trained on the training images."""
        class_N, training = self.data.frozen.class_N, self.data.split(TRAIN)
        if class_N is None:
            raise ValueError(f"eval.probe: needs classes, which {self.data.frozen.names['data']} lacks; legal is false")
        train_ND = self._images(training.images)
        classes = (class_N[part.images.cpu().numpy()] for part in (training, split))
        return probe_accuracy(train_ND, next(classes), image_ND, next(classes))

    def ranks(self, which: int) -> dict[str, np.ndarray]:
        """What each image of a split scored as a query: its row, the rank of its first right caption, its groups.

        `image` int32 rows of the data; `i2t` int32, wrong captions before the best right one; `tail`, `mid`, `head`
        bool, whether a caption of the image is in such a group. Empty when the split has fewer than two images.
        """
        split = self.data.split(which)
        if len(split.images) < 2:
            return {}
        with torch.no_grad():
            i2t_N = ranks(*self._embedded(split), split.pair_image, split.pair_text)
        pair_image, tercile_P = split.pair_image.cpu().numpy(), self._eval_groups().tercile_M[split.rows]
        out = {"image": split.images.cpu().numpy().astype(np.int32), "i2t": i2t_N.cpu().numpy().astype(np.int32)}
        for place, name in enumerate(TERCILES):
            out[name] = np.zeros(len(i2t_N), dtype=bool)
            out[name][pair_image[tercile_P == place]] = True
        return out

    def _embedded(self, split: Split) -> tuple[torch.Tensor, torch.Tensor]:
        """Unit rows of a split's images and unique captions."""
        self.model.eval()
        return self.model.image(self.image_NI[split.images]), self.model.text(self.text_UT[split.texts])

    def _images(self, images: torch.Tensor) -> torch.Tensor:
        """Unit rows of images, by their rows of the data."""
        with torch.no_grad():
            return self.model.image(self.image_NI[images])

    def _eval_groups(self) -> Groups:
        """One fixed grouping for head, middle and tail, so that trials that search `groups.*` compare."""
        return self.data.groups(*self.config.function("eval")(**self.config.kwargs("eval")))
