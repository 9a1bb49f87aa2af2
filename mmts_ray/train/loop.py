"""Training as a generator: `train(config, data, state)` yields a row per evaluation; callers print, report or stop.

What a batch is, a step and an evaluation, is the run's business (`RUNS`, by model); here is what all runs share.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from mmts_ray.config import TrialConfig
from mmts_ray.recipe import Recipe, torch_stream
from mmts_ray.train.data import TEST, VALIDATION, TrainData
from mmts_ray.train.pairs import Pairs
from mmts_ray.train.sentences import SentenceRun
from mmts_ray.train.towers import Towers
from mmts_ray.train.workers import agreed

# by `model.name`
RUNS: dict[str, Any] = {"frozen_heads": Pairs, "open_clip": Towers, "sentence_student": SentenceRun, "twins": Pairs}

Pulse = Callable[[int, int, Callable[[], dict[str, Any]]], None]  # step, finished epochs, how to make a checkpoint


@dataclass(frozen=True)
class Row:
    """One evaluation: `metrics` by name; `state()` is a checkpoint; `infeasible` says why the trial must end."""

    step: int
    epoch: int
    metrics: dict[str, float]
    notes: tuple[str, ...]
    state: Callable[[], dict[str, Any]]
    infeasible: str = ""
    ranks: Callable[[], dict[str, np.ndarray]] | None = None  # with the test metrics: what each query scored


def train(
    config: TrialConfig,
    data: TrainData,
    state: dict[str, Any] | None = None,
    *,
    test: bool = False,
    pulse: Pulse | None = None,
    group: dist.ProcessGroup | None = None,
) -> Iterator[Row]:
    """Train one configuration; from a checkpoint it repeats the straight run bit for bit.

    Yields a `Row` after every `eval_every` epochs and after the last; with `test`, the last row has test metrics too.
    A non-finite loss or parameter ends the run with a row whose `infeasible` names the step. `pulse` is called between
    rows too, after every step: an epoch can be long, and a checkpoint of any moment continues from that very step.

    With a `group` this process is one worker of several, each with all the data on its own device: every global batch
    is split in rank order, losses and gradients are those of the whole batch, and initialisation, order, dropout and
    mixing are those of one process, whatever the number of workers. Every worker yields the same rows; RuntimeError
    when they come to differ.
    """
    recipe: Recipe = config.function("train")(**config.kwargs("train"))
    run = RUNS[config.name("model")](config=config, data=data, recipe=recipe, group=group)
    total_steps = run.steps_per_epoch * recipe.epochs
    epoch = step = 0
    within: dict[str, torch.Tensor] = {}  # of a checkpoint from the middle of an epoch
    if state is not None:
        epoch, step = run.restore(state)
        within = state.get("within", {})
    while epoch < recipe.epochs:
        problem = ""
        losses: list[torch.Tensor] = []
        stats: dict[str, torch.Tensor] = {}
        batches = list(run.batches(epoch))
        dropout = torch_stream(recipe.seed, "dropout", epoch, data.device)
        mix = torch_stream(recipe.seed, "mix", epoch, data.device)
        if within:
            losses = list(within["losses"].to(data.device))
            dropout.set_state(within["dropout"].cpu())
            mix.set_state(within["mix"].cpu())
            within = {}
        run.model.train()
        for number, batch in enumerate(batches[len(losses) :], len(losses)):
            run.set_lr(recipe.lr_at(step, total_steps))
            loss, stats = run.update(batch, step, dropout, mix, with_stats=number == len(batches) - 1)
            losses.append(loss)
            step += 1
            if pulse is not None and number < len(batches) - 1:
                pulse(step, epoch, lambda: {**run.state(epoch, step), "within": _within(losses, dropout, mix)})  # noqa: B023
        epoch += 1
        losses_S = torch.stack(losses)
        if not bool(torch.isfinite(losses_S).all()):
            first = int(torch.nonzero(~torch.isfinite(losses_S))[0]) + step - run.steps_per_epoch
            problem = f"non-finite loss at step {first}"
        elif not run.finite():
            problem = f"non-finite parameter at step {step - 1}"
        if not problem and epoch % recipe.eval_every and epoch < recipe.epochs:
            if pulse is not None:
                pulse(step, epoch, lambda: run.state(epoch, step))  # noqa: B023
            continue
        metrics = {"train_loss": float(losses_S.mean())}
        last = epoch == recipe.epochs
        if not problem:
            metrics |= {f"train_{name}": float(value) for name, value in stats.items()}
            metrics |= {f"val_{k}": v for k, v in run.evaluate(VALIDATION, final=last).items()}
            if last and test:
                metrics |= {f"test_{k}": v for k, v in run.evaluate(TEST, final=True).items()}
        # a split without, say, tail queries has no tail recall: only what was computed must be finite
        metrics = {k: v for k, v in metrics.items() if math.isfinite(v)}
        if group is not None:
            metrics = agreed(metrics, group, data.device)
        yield Row(
            step=step,
            epoch=epoch,
            metrics=metrics,
            notes=run.notes + data.frozen.notes,
            state=lambda epoch=epoch, step=step: run.state(epoch, step),  # type: ignore[misc]
            infeasible=problem,
            ranks=(lambda: run.ranks(TEST)) if last and test and not problem else None,
        )
        if problem:
            return


def _within(losses: list[torch.Tensor], dropout: torch.Generator, mix: torch.Generator) -> dict[str, torch.Tensor]:
    """What a checkpoint inside an epoch needs besides the model: the losses of the batches done, and the streams."""
    return {"losses": torch.stack(losses), "dropout": dropout.get_state(), "mix": mix.get_state()}
