"""What every run has, whatever it trains on: parameters under an optimiser, and a checkpoint of them."""

from typing import Any

import torch
import torch.distributed as dist

from mmts_ray.config import TrialConfig
from mmts_ray.recipe import Recipe
from mmts_ray.train.data import TrainData


class Run:
    """Model, optimiser and the learnable part of the objective of one trial; who inherits makes them.

    `Pairs` and `SentenceRun` say what a batch, a step and an evaluation are.
    """

    config: TrialConfig
    data: TrainData
    recipe: Recipe
    group: dist.ProcessGroup | None
    model: Any
    parameters: list[torch.nn.Parameter]
    learned: dict[str, torch.nn.Parameter]  # of the objective: temperature, bias
    optimiser: torch.optim.Optimizer

    def set_lr(self, lr: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = lr

    def finite(self) -> bool:
        """Whether every parameter is a finite number."""
        return all(bool(torch.isfinite(p).all()) for p in self.parameters)

    def tensors(self) -> dict[str, torch.Tensor]:
        """What the model has learned, by name."""
        return self.model.state_dict()

    def take(self, tensors: dict[str, torch.Tensor]) -> None:
        """Set what the model has learned."""
        self.model.load_state_dict(tensors)

    def memory(self) -> dict[str, Any]:
        """What else moves with the steps, for the checkpoint."""
        return {}

    def recall(self, memory: dict[str, Any]) -> None:
        """Take over what `memory` gave."""

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        """A checkpoint: tensors and plain values only, so that it loads with `weights_only`."""
        return {
            "epoch": epoch,
            "step": step,
            **self._identity(),
            "model": cloned(self.tensors()),
            "learned": {k: v.detach().clone() for k, v in self.learned.items()},
            "memory": cloned(self.memory()),
            "optimiser": cloned(self.optimiser.state_dict()),
        }

    def restore(self, state: dict[str, Any]) -> tuple[int, int]:
        """Take over a checkpoint; refused when it belongs to another configuration, seed or data set."""
        for key, value in self._identity().items():
            if state[key] != value:
                raise ValueError(f"checkpoint of another trial: its {key} is {state[key]}, this trial's is {value}")
        self.take(state["model"])
        for name, parameter in self.learned.items():
            parameter.data.copy_(state["learned"][name])
        self.recall(state["memory"])
        decays = [group["weight_decay"] for group in self.optimiser.param_groups]
        self.optimiser.load_state_dict(cloned(state["optimiser"]))
        for group, decay in zip(self.optimiser.param_groups, decays, strict=True):
            group["weight_decay"] = decay  # a trial that goes on from another's checkpoint keeps its own parameters
        return int(state["epoch"]), int(state["step"])

    def _identity(self) -> dict[str, Any]:
        return {"config_hash": self.config.hash, "seed": self.recipe.seed, "data": self.data.frozen.key}


def cloned(tree: Any) -> Any:
    """Optimiser states alias the live tensors; a checkpoint must not move with them."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        return {k: cloned(v) for k, v in tree.items()}
    if isinstance(tree, list):
        return [cloned(v) for v in tree]
    return tree
