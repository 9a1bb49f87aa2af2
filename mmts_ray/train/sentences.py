"""A trial that trains a sentence student: batches of a text corpus with batches of captions between them.

Shapes: N images, M caption rows, U unique captions, S sentences of a batch, B batch, L tokens, E hidden, G grounding.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from mmts_ray.config import TrialConfig
from mmts_ray.data.dataset import joined
from mmts_ray.losses import SCHEDULED
from mmts_ray.metrics import sts_scores
from mmts_ray.recipe import Recipe, stream
from mmts_ray.sentences import Sentences
from mmts_ray.student import drawing_from
from mmts_ray.train.data import TRAIN, VALIDATION, TrainData
from mmts_ray.train.pairs import schedule_of
from mmts_ray.train.run import Run, cloned

EVAL_BATCH = 64


@dataclass(frozen=True)
class Batch:
    """`rows` are caption rows of the data, or places in the corpus."""

    captions: bool
    rows: np.ndarray  # (B,)
    last_of_captions: bool = False  # in its epoch: its statistics are kept


class SentenceRun(Run):
    """A trial that trains a sentence encoder; the methods are those of `pairs.Pairs`."""

    def __init__(
        self, *, config: TrialConfig, data: TrainData, recipe: Recipe, group: dist.ProcessGroup | None = None
    ) -> None:
        if group is not None:
            raise ValueError("resources.workers: a sentence student trains on one worker; legal is 1")
        if data.frozen.sentences is None:
            raise ValueError("model.name: sentence_student needs features that were prepared for it")
        self.config, self.data, self.recipe = config, data, recipe
        self.text: Sentences = data.frozen.sentences
        self.state_LE = data.states()
        self.options = config.kwargs("model")
        self.notes: tuple[str, ...] = ()
        self.steps_per_epoch = self.options["epoch_steps"]
        self.schedule = schedule_of(config, self.steps_per_epoch * recipe.epochs, None)
        dims = (data.frozen.image_NI.shape[1], data.frozen.text_UT.shape[1])
        made = config.function("model")(*dims, recipe.seed, **self.options)
        self.model = made.to(data.device)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.learned: dict[str, torch.nn.Parameter] = {}
        if self.schedule.learnable:
            start = torch.tensor(math.log(self.schedule.base(0)), device=data.device)
            self.learned["log_temperature"] = torch.nn.Parameter(start)
        self.parameters += self.learned.values()
        self.optimiser = recipe.optimiser(self.parameters)
        self.teachers: dict[str, Tensor] = {}
        for kind in {"simcse": (), "mcse": ("image",)}.get(config.name("loss"), ("image", "text")):
            self.teachers[kind] = data.teacher(kind, centre=self.options["centre_images"])
        self.loss, self.objective = config.name("loss"), config.function("loss")
        self.objective_kwargs = config.kwargs("loss")
        split = data.split(TRAIN)
        self.caption_rows, self.pair_image = split.rows, split.pair_image.cpu().numpy()
        sentence_M = self.text.caption_U[data.frozen.text_M]
        self.sentence_M = sentence_M
        # caption rows that share an image or say the same are not each other's negatives
        image_M, trained_M = data.frozen.id_N[data.frozen.image_M], sentence_M >= 0
        sizes = {"lefts": int(image_M.max()) + 1, "rights": int(sentence_M.max()) + 1}
        self.id_M = joined(image_M[trained_M], sentence_M[trained_M], **sizes)[0][image_M]
        for count, what in ((self._images(), "captions"), (len(self.text.corpus_C), "sentences")):
            if count < recipe.batch_size:
                raise ValueError(
                    f"train.batch_size: {recipe.batch_size}, but there are {count} {what} to train on; "
                    "legal is at most that"
                )
        self.caption_stats: dict[str, Tensor] = {}

    def batches(self, epoch: int) -> Iterator[Batch]:
        """The batches of an epoch: the same in every trial with this seed, batch size and `caption_every`.

        Step n, 2n, ... of the run takes captions. Corpus and captions are each gone through in random order, again and
        again; a last incomplete batch of such a pass is left out.
        """
        every, first = self.options["caption_every"], epoch * self.steps_per_epoch
        steps = range(first, first + self.steps_per_epoch)
        of_captions = [every is not None and (step + 1) % every == 0 for step in steps]
        last = max((i for i, captions in enumerate(of_captions) if captions), default=-1)
        orders: dict[tuple[bool, int], np.ndarray] = {}
        for place, (step, captions) in enumerate(zip(steps, of_captions)):
            before = (step + 1) // every if every is not None else 0  # caption batches up to here, this one included
            number = before - 1 if captions else step - before
            size = self.recipe.batch_size
            total = self._images() if captions else len(self.text.corpus_C)
            turn, inside = divmod(number, total // size)
            if (captions, turn) not in orders:
                orders[captions, turn] = self._order(captions, turn)
            rows = orders[captions, turn][inside * size : (inside + 1) * size]
            yield Batch(captions, rows, place == last)

    def _images(self) -> int:
        """Samples in a pass over the captions."""
        return len(self.caption_rows) if self.recipe.captions == "all" else len(self.data.split(TRAIN).images)

    def _order(self, captions: bool, turn: int) -> np.ndarray:
        """One pass over captions (of an image one, or all) or corpus."""
        if not captions:
            return stream(self.recipe.seed, "order", turn).permutation(len(self.text.corpus_C))
        random = stream(self.recipe.seed, "captions", turn)
        rows = self.caption_rows
        if self.recipe.captions == "one":
            order = np.lexsort((random.random(len(rows)), self.pair_image))
            rows = rows[order[np.flatnonzero(np.diff(self.pair_image[order], prepend=-1))]]
        return rows[random.permutation(len(rows))]

    def update(
        self, batch: Batch, step: int, dropout: torch.Generator, mix: torch.Generator, *, with_stats: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One optimiser step; what the library's dropout draws follows from seed, epoch and step alone."""
        self.model.train()  # an evaluation, ours or a library's encode(), may have left it in the other mode
        rows_B = batch.rows
        sentence_B = self.sentence_M[rows_B] if batch.captions else self.text.corpus_C[rows_B]
        kind = torch.device(self.data.device).type
        half = torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda" and self.options["precision"] == "bfloat16")
        with drawing_from(dropout, self.data.device), half:
            # both passes in one call: every row of a batch has a mask of its own
            both_SE = self.model.sentences(*self._given(np.concatenate([sentence_B, sentence_B]))).float()
        views = both_SE.split(len(rows_B))
        kwargs: dict[str, Any] = dict(self.objective_kwargs)
        if self.schedule.learnable:
            kwargs[SCHEDULED[self.loss]] = self.learned["log_temperature"].exp()
        else:
            kwargs[SCHEDULED[self.loss]] = self.schedule.base(step) + float(np.asarray(self.schedule.shift_M).flat[0])
        ids_B = self.id_M[rows_B] if batch.captions else sentence_B
        kwargs["ids_B"] = torch.from_numpy(ids_B.astype(np.int64)).to(self.data.device)
        stats_wanted = with_stats or batch.last_of_captions
        kwargs["with_stats"] = stats_wanted
        heads = [self.model.headed("text", view_BE) for view_BE in views]
        if batch.captions and self.loss != "simcse":
            out = self.objective(*heads, *self._grounded(views, rows_B, kwargs), **kwargs)
        else:
            out = self._text_only(heads, kwargs)
        out.loss.backward()
        stats = dict(out.stats)
        if stats_wanted:
            stats["view_cosine"] = torch.nn.functional.cosine_similarity(*views).mean().detach()
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            stats["gradient_norm"] = torch.nn.utils.get_total_norm(gradients)
        if batch.last_of_captions:
            self.caption_stats = {key: torch.as_tensor(value).detach() for key, value in stats.items()}
        if self.recipe.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        if self.schedule.learnable:
            low, high = math.log(self.schedule.low), math.log(self.schedule.high)
            self.learned["log_temperature"].data.clamp_(low, high)
        return out.loss.detach(), {**self.caption_stats, **stats} if with_stats else stats

    def _text_only(self, heads: list[Tensor], kwargs: dict[str, Any]) -> Any:
        """SimCSE, with those of the loss's own options that concern the text."""
        from mmts_ray.losses import simcse

        shared = ("temperature", "ids_B", "with_stats", "text_margin", "angle_edge", "impl")
        return simcse(*heads, **{key: kwargs[key] for key in shared if key in kwargs})

    def _grounded(self, views: tuple[Tensor, ...], rows_B: np.ndarray, kwargs: dict[str, Any]) -> list[Tensor]:
        """Rows in the grounding space: both views, image, and of KDMCSE the caption; its teachers go into `kwargs`."""
        image_B, text_B = (
            torch.from_numpy(index[rows_B].astype(np.int64)).to(self.data.device)
            for index in (self.data.frozen.image_M, self.data.frozen.text_M)
        )
        image_BI = self.teachers["image"][image_B]
        rows = [self.model.headed("grounded", view_BE) for view_BE in views]
        # unit rows times the root of their length: numbers of deviation about 1, whatever the encoder's scale
        rows.append(self.model.headed("image", image_BI * math.sqrt(image_BI.shape[1])))
        if self.loss == "kdmcse":
            text_BT = self.teachers["text"][text_B]
            rows.append(self.model.headed("caption", text_BT * math.sqrt(text_BT.shape[1])))
            kwargs |= {"teacher_image_BE": image_BI, "teacher_text_BE": text_BT}
        return rows

    def _given(self, sentence_S: np.ndarray) -> tuple[Tensor, Tensor]:
        """(states (S, L, E) or token numbers (S, L), mask (S, L)) of sentences, padded to the longest of them."""
        start_S = self.text.start_S1[sentence_S]
        length_S = self.text.start_S1[sentence_S + 1] - start_S
        place_L = np.arange(length_S.max())
        mask_SL = place_L < length_S[:, None]
        at_SL = np.where(mask_SL, start_S[:, None] + place_L, start_S[:, None])
        source = self.text.token_L if self.state_LE is None else self.state_LE
        given = torch.from_numpy(source[at_SL]).to(self.data.device)
        return given.long() if given.ndim == 2 else given, torch.from_numpy(mask_SL.astype(np.int64)).to(given.device)

    def embedded(self, sentence_S: np.ndarray) -> Tensor:
        """Unit rows (S, E) of the pooled states, dropout off, without a head; the model stays in the mode it was in."""
        mode = self.model.training
        self.model.eval()
        lengths = self.text.start_S1[sentence_S + 1] - self.text.start_S1[sentence_S]
        order = np.argsort(lengths, kind="stable")
        rows = []
        try:
            with torch.no_grad():
                for at in range(0, len(order), EVAL_BATCH):
                    rows.append(self.model.sentences(*self._given(sentence_S[order[at : at + EVAL_BATCH]])))
        finally:
            self.model.train(mode)
        back = torch.from_numpy(np.argsort(order)).to(self.data.device)
        return torch.nn.functional.normalize(torch.cat(rows)[back], dim=1)

    def evaluate(self, which: int, *, final: bool) -> dict[str, float]:
        """Semantic similarity: of the validation parts with alignment and uniformity of STS-B, of the test parts."""
        parts = [p for p in self.text.scored if p.split == which]
        if not parts:
            return {}
        sentence_S = np.unique(np.concatenate([rows for p in parts for rows in (p.left_P, p.right_P)]))
        row_SE = self.embedded(sentence_S)
        tasks = {}
        for part in parts:
            left_PE, right_PE = (row_SE[np.searchsorted(sentence_S, rows)] for rows in (part.left_P, part.right_P))
            tasks[part.task] = (left_PE, right_PE, part.gold_P)
        return sts_scores(tasks, spread="stsb" if which == VALIDATION else "")

    def ranks(self, which: int) -> dict[str, np.ndarray]:
        """Nothing: similarity has no queries that are right or wrong."""
        return {}

    def tensors(self) -> dict[str, torch.Tensor]:
        return self.model.tensors()

    def take(self, tensors: dict[str, torch.Tensor]) -> None:
        self.model.take(tensors)

    def memory(self) -> dict[str, Any]:
        return self.caption_stats

    def recall(self, memory: dict[str, Any]) -> None:
        self.caption_stats = cloned(memory)
