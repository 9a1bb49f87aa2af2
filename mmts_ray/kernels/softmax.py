"""The softmax objective in tiles: online log-sum-exp forward, tiles kept or formed again backward.

A tile of cosines serves the anchors of its rows and those of its columns. Where nothing tells (i, j) from (j, i), only
half of the matrix is walked, and all that belongs to a tile's place is formed once for every product there: image by
text both ways, and with r_mix image by image and text by text. On W workers each walks its own rows against all: what
is summed over own rows is reduced, and only the texts travel (with r_mix, both modalities).

Shapes: B batch of all workers, b rows of this worker, D embedding, E teacher features, R and C a tile's rows and
columns, A its anchors: slices of the whole batch. Modality and direction share a number: 1 images (anchor), 0 texts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from mmts_ray.kernels.angles import pair_cosines, turn_
from mmts_ray.kernels.masks import FLOOR, LOG2E, picks
from mmts_ray.kernels.tiles import Workspace, diagonal, rectangle, triangle
from mmts_ray.kernels.workers import Shard

IMAGE, TEXT = 1, 0


@dataclass
class Case:
    """What one call asks for, beside what has a gradient. Tensors hold the whole batch."""

    shard: Shard
    directions: tuple[int, ...]
    cached: bool
    inter_weight: float = 1.0
    intra_weight: float = 0.0
    pick_chance: float = 0.0
    codes_22B: Tensor | None = None
    margin: float = 0.0
    gate: float | None = None
    teacher: tuple[Tensor, Tensor] | None = None
    threshold: float | None = None
    filter_teacher: tuple[Tensor, Tensor] | None = None
    ids_B: Tensor | None = None  # floats: small whole numbers, quicker to compare
    counts: dict[str, Tensor] | None = None  # filled by forward when statistics are wanted

    @property
    def symmetric(self) -> bool:
        """Whether what changes the cosines of (i, j) changes those of (j, i) alike."""
        pairs = (self.teacher, self.filter_teacher)
        return all(pair is None or pair[0] is pair[1] for pair in pairs)

    @property
    def folded(self) -> bool:
        """Whether half of the matrix is walked, each tile standing for its transpose too."""
        shares = self.intra_weight > 0 or self.margin > 0 or self.threshold is not None
        return self.symmetric and self.shard.group is None and shares

    def travels(self, modality: int) -> bool:
        """Whether each worker needs the rows of all: texts are columns, images only of themselves."""
        return modality == TEXT or self.intra_weight > 0

    def tiles(self, device: torch.device) -> Iterator[tuple[slice, slice]]:
        return (
            triangle(self.shard.batch, device) if self.folded else rectangle(self.shard.own, self.shard.batch, device)
        )


@dataclass(frozen=True)
class Product:
    """Cosines of rows of one modality and columns of one; anchors are rows (over=1), columns (over=0) or both."""

    rows: int
    columns: int
    weight: float
    overs: tuple[int, ...]

    @property
    def within(self) -> bool:
        return self.rows == self.columns

    def anchor(self, over: int) -> int:
        return self.rows if over else self.columns


def products(case: Case, R: slice, C: slice) -> list[Product]:
    """What is multiplied at one place."""
    twice = case.folded and R != C
    pairs = [(IMAGE, TEXT), (TEXT, IMAGE)] if twice else [(IMAGE, TEXT)]
    found = [Product(rows, columns, case.inter_weight, (1, 0)) for rows, columns in pairs if case.inter_weight > 0]
    if case.intra_weight > 0:
        found += [Product(own, own, case.intra_weight, (1, 0) if twice else (1,)) for own in case.directions]
    return [
        Product(one.rows, one.columns, one.weight, tuple(o for o in one.overs if one.anchor(o) in case.directions))
        for one in found
    ]


class Tiles:
    """Forms tiles, in memory that is used again from place to place."""

    def __init__(self, case: Case, own: dict[int, Tensor], everyone: dict[int, Tensor]) -> None:
        """`own` has this worker's rows by modality, `everyone` the rows of all."""
        self.case, self.own, self.everyone = case, own, everyone
        self.work = Workspace(own[IMAGE])

    def rows(self, modality: int, R: slice) -> Tensor:
        start = self.case.shard.start
        return self.own[modality][R.start - start : R.stop - start]

    def columns(self, modality: int, C: slice) -> Tensor:
        return self.everyone[modality][C]

    def place(
        self, R: slice, C: slice, *, transposed: bool, counts: dict[str, Tensor] | None = None
    ) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None]:
        """Which pairs drop out (1, or 2 when both teacher and ids say so), and cos and sin of the angles they move by.

        `transposed`: rows are texts, so teachers of rows and columns change places.
        """
        case, size = self.case, (R.stop - R.start, C.stop - C.start)
        drop_RC = turn = None
        # a tile of the half that is walked stands for two
        times = 2 if case.folded and R != C else 1
        q_RC = None
        if case.margin > 0:
            assert case.teacher is not None
            q_RC = self._similar(case.teacher, "teacher", R, C, transposed=transposed)
        if case.threshold is not None:
            assert case.filter_teacher is not None
            out_RC = self.work("drop", *size)
            if q_RC is None or case.filter_teacher is not case.teacher:
                similar_RC = self._similar(case.filter_teacher, "drop", R, C, transposed=transposed)
            else:
                similar_RC = q_RC
            drop_RC = torch.gt(similar_RC, case.threshold, out=out_RC)
            if counts is not None:
                counts["filtered"] += times * _off_diagonal(drop_RC, R, C)
        if case.ids_B is not None:
            same_RC = torch.eq(case.ids_B[R, None], case.ids_B[None, C], out=self.work("same", *size))
            drop_RC = same_RC if drop_RC is None else drop_RC.add_(same_RC)
        if counts is not None and drop_RC is not None:
            counts["dropped"] += times * _off_diagonal(drop_RC > 0, R, C)
        if q_RC is not None:
            angle_RC = q_RC.neg_().add_(1).abs_().mul_(case.margin)
            turn = torch.cos(angle_RC, out=self.work("cos", *size)), angle_RC.sin_()
        return drop_RC, turn

    def _similar(self, teacher: tuple[Tensor, Tensor], name: str, R: slice, C: slice, *, transposed: bool) -> Tensor:
        rows_BE, columns_BE = teacher[::-1] if transposed else teacher
        return torch.mm(rows_BE[R], columns_BE[C].T, out=self.work(name, R.stop - R.start, C.stop - C.start))

    def walk(
        self, *, sloped: bool, counts: dict[str, Tensor] | None = None
    ) -> Iterator[tuple[slice, slice, Product, Tensor, Tensor | None]]:
        """Each place and product, with its cosines, moved and floored, and (`sloped`) the slope of the move."""
        case = self.case
        for R, C in case.tiles(self.own[IMAGE].device):
            place: Any = None
            for number, product in enumerate(products(case, R, C)):
                transposed = product.rows == TEXT
                if place is None or not case.symmetric:
                    place = self.place(R, C, transposed=transposed, counts=None if number else counts)
                yield R, C, product, *self._form(product, R, C, *place, sloped=sloped)

    def _form(
        self,
        product: Product,
        R: slice,
        C: slice,
        drop_RC: Tensor | None,
        turn: tuple[Tensor, Tensor] | None,
        *,
        sloped: bool,
    ) -> tuple[Tensor, Tensor | None]:
        size, keep = (R.stop - R.start, C.stop - C.start), self.case.cached
        f_RC = self.work("f", *size, keep=keep)
        torch.mm(self.rows(product.rows, R), self.columns(product.columns, C).T, out=f_RC)
        slope_RC = None
        if turn is not None:
            slope_RC = self.work("slope", *size, keep=keep) if sloped else None
            turn_(f_RC, *turn, self.case.gate, slope_RC, (self.work("e", *size), self.work("spare", *size)))
        if drop_RC is not None:
            f_RC.add_(drop_RC, alpha=FLOOR)
        self_A = diagonal(f_RC, R, C)
        if self_A is not None:
            self_A.fill_(FLOOR)
        return f_RC, slope_RC

    def candidates(self, f_RC: Tensor, product: Product, over: int, R: slice, C: slice) -> Tensor:
        """f where the pick of this direction leaves it a candidate, else FLOOR."""
        case = self.case
        if case.codes_22B is None:
            return f_RC
        anchor_B, candidate_B = case.codes_22B[1 - product.anchor(over)]
        rows_B, columns_B = (anchor_B, candidate_B) if over else (candidate_B, anchor_B)
        spare_RC = self.work("spare", *f_RC.shape) if f_RC.dtype == torch.float32 else None
        out_RC = picks(rows_B[R], columns_B[C], case.pick_chance, self.work("e", *f_RC.shape), spare_RC)
        if product.within:
            out_RC.neg_().add_(1)
        return out_RC.mul_(FLOOR).add_(f_RC)


def _off_diagonal(mask_RC: Tensor, R: slice, C: slice) -> Tensor:
    itself_A = diagonal(mask_RC, R, C)
    return mask_RC.sum() if itself_A is None else mask_RC.sum() - itself_A.sum()


class Softmax(Function):
    """The mean over directions and anchors of -log(share of the positive); see `dense._AnchoredCrossEntropy`.

    The positive is kept apart from the candidates, which makes its gradient exact when they weigh little.
    """

    @staticmethod
    def forward(ctx: Any, image_bD: Tensor, text_bD: Tensor, temperature_b: Tensor, case: Case) -> Tensor:
        shard = case.shard
        own = {IMAGE: image_bD, TEXT: text_bD}
        everyone = {m: shard.gather(own[m]) if case.travels(m) else own[m] for m in own}
        own_positive_b = pair_cosines(image_bD, text_bD)
        temperature_B, positive_B = shard.gather(torch.stack([temperature_b, own_positive_b], dim=1)).T.contiguous()
        scale_B = temperature_B.reciprocal()
        top_2B = positive_B.repeat(2, 1)
        mass_2B = torch.zeros_like(top_2B)
        tiles = Tiles(case, own, everyone)
        kept: list[Tensor] = []
        for R, C, product, f_RC, slope_RC in tiles.walk(sloped=case.cached, counts=case.counts):
            for over in product.overs:
                direction, A = product.anchor(over), R if over else C
                z_RC = tiles.candidates(f_RC, product, over, R, C)
                if case.counts is not None and product.within:
                    case.counts["intra"] += (z_RC > 0.5 * FLOOR).sum()
                old_A, scale_A = top_2B[direction, A], scale_B[A]
                top_A = torch.maximum(old_A, z_RC.amax(over))
                e_RC = torch.sub(z_RC, top_A.unsqueeze(over), out=tiles.work("e", *z_RC.shape))
                e_RC.mul_((LOG2E * scale_A).unsqueeze(over)).exp2_()
                old_mass_A = mass_2B[direction, A] * ((old_A - top_A) * scale_A).exp_()
                mass_2B[direction, A] = old_mass_A.add_(e_RC.sum(over), alpha=product.weight)
                top_2B[direction, A] = top_A
            if case.cached:
                kept += [f_RC] if slope_RC is None else [f_RC, slope_RC]
        if shard.group is not None and TEXT in case.directions:
            top_B = shard.largest(top_2B[TEXT].clone())
            mass_2B[TEXT] = shard.sum(mass_2B[TEXT] * ((top_2B[TEXT] - top_B) * scale_B).exp_())
            top_2B[TEXT] = top_B
        lead_2B = (positive_B - top_2B) * scale_B
        total_2B = lead_2B.exp() + mass_2B
        loss_2B = total_2B.log() - lead_2B
        ctx.case = case
        ctx.save_for_backward(
            image_bD, text_bD, everyone[IMAGE], everyone[TEXT], scale_B, positive_B, top_2B, mass_2B, total_2B, *kept
        )
        anchors = len(case.directions) * shard.batch
        return shard.sum(loss_2B[list(case.directions), shard.own].sum()) / anchors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        image_bD, text_bD, image_BD, text_BD, scale_B, positive_B, top_2B, mass_2B, total_2B, *kept = ctx.saved_tensors
        case: Case = ctx.case
        shard = case.shard
        needs = {IMAGE: ctx.needs_input_grad[0], TEXT: ctx.needs_input_grad[1]}
        # dL/df of a candidate of weight w is w share 2^((f - top) scale LOG2E)
        share_2B = scale_B / (len(case.directions) * shard.batch * total_2B)
        shift_by_weight = {
            weight: top_2B - (weight * share_2B).log() / scale_B
            for weight in (case.inter_weight, case.intra_weight)
            if weight > 0
        }
        tiles = Tiles(case, {IMAGE: image_bD, TEXT: text_bD}, {IMAGE: image_BD, TEXT: text_BD})
        grads = {m: torch.zeros_like(tiles.everyone[m]) if needs[m] else None for m in needs}
        slope_B = torch.zeros_like(scale_B) if ctx.needs_input_grad[2] else None
        # a tile formed again is the same bit for bit (same shapes and alignment): no pair changes sides of the filter
        walk = _replay(case, kept, image_bD.device) if case.cached else tiles.walk(sloped=True)
        for R, C, product, f_RC, slope_RC in walk:
            g_RC: Tensor | None = None
            for over in product.overs:
                direction, A = product.anchor(over), R if over else C
                z_RC = tiles.candidates(f_RC, product, over, R, C)
                e_RC = tiles.work("g" if g_RC is None else "e", *f_RC.shape)
                torch.sub(z_RC, shift_by_weight[product.weight][direction, A].unsqueeze(over), out=e_RC)
                e_RC.mul_((LOG2E * scale_B[A]).unsqueeze(over)).exp2_()
                if slope_B is not None:
                    lead_RC = torch.sub(f_RC, positive_B[A].unsqueeze(over), out=tiles.work("spare", *f_RC.shape))
                    slope_B[A] += lead_RC.mul_(e_RC).sum(over)
                g_RC = e_RC if g_RC is None else g_RC.add_(e_RC)
            assert g_RC is not None
            if slope_RC is not None:
                g_RC.mul_(slope_RC)
            _pull(tiles, grads, product, R, C, g_RC)
        positive_b = (mass_2B * share_2B)[list(case.directions), shard.own].sum(0).neg_().unsqueeze(1)
        grad = grad * shard.workers
        for m, other_bD in ((IMAGE, text_bD), (TEXT, image_bD)):
            total = grads[m]
            if total is not None:
                home_bD = shard.scatter_sum(total) if case.travels(m) else total
                grads[m] = home_bD.addcmul_(positive_b, other_bD).mul_(grad)
        if slope_B is not None:
            slope_B = shard.scatter_sum(slope_B.mul_(scale_B)).mul_(-grad)
        return grads[IMAGE], grads[TEXT], slope_B, None


def _replay(
    case: Case, kept: list[Tensor], device: torch.device
) -> Iterator[tuple[slice, slice, Product, Tensor, Tensor | None]]:
    """The walk again, from kept tiles."""
    tiles = iter(kept)
    for R, C in case.tiles(device):
        for product in products(case, R, C):
            yield R, C, product, next(tiles), next(tiles) if case.margin > 0 else None


def _pull(tiles: Tiles, grads: dict[int, Tensor | None], product: Product, R: slice, C: slice, g_RC: Tensor) -> None:
    """Add what the cosines' gradient g means for rows and columns."""
    grad_rows, grad_columns = grads[product.rows], grads[product.columns]
    if product.within and R == C and tiles.case.folded:
        if grad_rows is not None:
            # x x^T: both orders of each pair are in this tile
            both_RC = torch.add(g_RC, g_RC.T, out=tiles.work("e", *g_RC.shape))
            grad_rows[R].addmm_(both_RC, tiles.columns(product.columns, C))
        return
    if grad_rows is not None:
        # the gradient of rows that did not travel holds this worker's only
        start = 0 if tiles.case.travels(product.rows) else tiles.case.shard.start
        grad_rows[R.start - start : R.stop - start].addmm_(g_RC, tiles.columns(product.columns, C))
    if grad_columns is not None:
        grad_columns[C].addmm_(g_RC.T, tiles.rows(product.rows, R))
