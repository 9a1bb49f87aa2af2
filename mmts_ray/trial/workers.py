"""A trial of several workers: a driver without CPUs leads a Ray Train group, which stays from trial to trial.

    Tune -> WorkersActor (one `trial_slot`) -> TorchTrainer -> `work` on every worker
                  |__________ Bridge: commands down, answers of the first worker up ___|

The workers take a command at a time, so that no step is trained before the scheduler has decided on the last one, and
the state that a paused trial saves is that of the row it was judged by.
"""

import asyncio
import contextlib
import fcntl
import re
import threading
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray.exceptions import RayError
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_list, _internal_kv_put
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2._internal.exceptions import RayTrainError
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from mmts_ray import results, storage
from mmts_ray.trial import shared
from mmts_ray.trial.checkpoints import OwnCheckpoints
from mmts_ray.trial.group import GroupRun, group_run, interrupted
from mmts_ray.trial.pulse import Pulse

POLL_SECONDS = 1.0
END_SECONDS = 30.0
NAMESPACE = b"mmts-ray-workers"


class Bridge:
    """Between a driver and its workers: one queue of commands for each worker, one of the first worker's answers."""

    def __init__(self, workers: int) -> None:
        self.commands: list[asyncio.Queue[dict[str, Any]]] = [asyncio.Queue() for _ in range(workers)]
        self.answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def tell(self, command: dict[str, Any]) -> None:
        for queue in self.commands:
            queue.put_nowait(command)

    async def take(self, rank: int) -> dict[str, Any]:
        return await self.commands[rank].get()

    async def answer(self, answer: dict[str, Any]) -> None:
        self.answers.put_nowait(answer)

    async def next(self, seconds: float) -> dict[str, Any] | None:
        try:
            return await asyncio.wait_for(self.answers.get(), seconds)
        except TimeoutError:
            return None


class WorkersActor(OwnCheckpoints):
    """Tune's class trainable for trials of several workers; it trains nothing itself."""

    def setup(  # type: ignore[override]
        self, config: dict[str, Any], *, frozen: Any, study_dir: str, options: dict[str, Any]
    ) -> None:
        """`frozen` is a list that holds the reference to the features: the workers fetch them, the driver need not."""
        self.frozen, self.options = frozen, options
        self.study_dir = storage.attach(study_dir, options["storage"])
        # held while this process lives: a resumed driver waits until the trials of the killed one have ended
        self.alive = (self.study_dir / "actors.lock").open("a")
        fcntl.flock(self.alive, fcntl.LOCK_SH)
        self.fit: threading.Thread | None = None
        self.problem: BaseException | None = None
        free_orphans()
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._begin(new_config)
        return True

    def _begin(self, task: dict[str, Any]) -> None:
        self.task, self.begun = task, False

    def step(self) -> dict[str, Any]:
        if self.fit is None or not self.fit.is_alive():
            self._start_workers()
        if not self.begun:
            self._tell({"do": "begin", "task": self.task})
            self.begun = True
        self._tell({"do": "step"})
        return self._answer()

    def keep(self) -> None:
        if self.begun and self.fit is not None and self.fit.is_alive():
            self._tell({"do": "save"})
            self._answer()

    def cleanup(self) -> None:
        if self.fit is not None and self.fit.is_alive():
            self._tell({"do": "end"})
            self.fit.join(END_SECONDS)
        free_group(self.key)
        self.alive.close()

    @property
    def key(self) -> bytes:
        """Under which the cluster's key-value store keeps the placement group of this driver."""
        return str(ray.get_runtime_context().get_actor_id()).encode()

    def _start_workers(self) -> None:
        options = self.options
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        bridge_class: Any = ray.remote(Bridge)
        # every worker waits inside it for its next command
        bridge_options = {"num_cpus": 0, "max_concurrency": options["workers"] + 10, "scheduling_strategy": here}
        self.bridge = bridge_class.options(**bridge_options).remote(options["workers"])
        self.problem, self.begun = None, False
        per_worker = {"CPU": options["cpus"] / options["workers"]}
        if options["gpus"]:
            per_worker["GPU"] = options["gpus"] / options["workers"]
        settings = {
            "bridge": self.bridge,
            "frozen": self.frozen,
            "study_dir": str(self.study_dir),
            "options": options,
            "key": self.key,
        }
        trainer = TorchTrainer(
            work,
            train_loop_config=settings,
            scaling_config=ray.train.ScalingConfig(
                num_workers=options["workers"], use_gpu=bool(options["gpus"]), resources_per_worker=per_worker
            ),
            torch_config=TorchConfig(backend="nccl" if options["gpus"] else "gloo"),
            # one way to go on after a death, for every kind of trial: Tune starts the trial again
            run_config=ray.train.RunConfig(
                name=f"workers-{time.time_ns()}",
                storage_path=str(self.study_dir.absolute() / "ray"),
                failure_config=ray.train.FailureConfig(max_failures=0),
            ),
        )
        self.fit = threading.Thread(target=self._run, args=(trainer,), daemon=True)
        self.fit.start()

    def _run(self, trainer: TorchTrainer) -> None:
        try:
            trainer.fit()
        except BaseException as problem:
            self.problem = problem

    def _tell(self, command: dict[str, Any]) -> None:
        ray.get(self.bridge.tell.remote(command))

    def _answer(self) -> dict[str, Any]:
        """The first worker's answer, or the end of the trial when a worker has raised; raises when one has died."""
        assert self.fit is not None
        while True:
            ended = not self.fit.is_alive()
            answer = ray.get(self.bridge.next.remote(POLL_SECONDS))
            if answer is not None:
                return answer
            if ended:
                raised = what_a_worker_raised(self.problem)
                if isinstance(raised, results.Unwritable):
                    return interrupted(raised)
                ledger = results.Ledger(self.study_dir)
                with contextlib.closing(ledger):
                    run = group_run(self.task, None, ledger=ledger, study_dir=self.study_dir, options=self.options)
                    return run.fail(raised)


def what_a_worker_raised(problem: BaseException | None) -> Exception:
    """The exception of a trial's own code behind a group's failure; RuntimeError when a worker died or was lost."""
    raised = list(getattr(problem, "worker_failures", {}).values())
    # a worker whose partner dies raises in the middle of an exchange: that is the death's doing, not the trial's
    lost = [e for e in raised if isinstance(e, RayError | RayTrainError) or re.search("gloo|nccl", str(e), re.I)]
    if lost or not raised:
        told = str(lost[0] if lost else problem).strip().splitlines()
        raise RuntimeError(f"a worker of the trial died: {told[-1] if told else 'no reason given'}")
    found = raised[0]
    assert isinstance(found, Exception)
    return found


def work(settings: dict[str, Any]) -> None:
    """What each worker of a group does: one trial after another, as the driver says."""
    import torch
    import torch.distributed as dist
    from ray.train.torch import get_device

    from mmts_ray.train import TrainData

    options, bridge = settings["options"], settings["bridge"]
    rank = ray.train.get_context().get_world_rank()
    torch.set_num_threads(max(1, int(options["cpus"] / options["workers"])))
    if rank == 0:
        place = ray.util.get_current_placement_group()
        assert place is not None
        _internal_kv_put(settings["key"], place.id.binary(), namespace=NAMESPACE)
    device = get_device()
    (frozen,) = settings["frozen"]
    data = TrainData(ray.get(frozen), device=str(device), cache_dir=Path(options["cache_dir"]))
    run: GroupRun | None = None
    study_dir = storage.attach(settings["study_dir"], options["storage"])
    if refusal := shared.refused_here(study_dir, options["token"]):
        raise results.Unwritable(refusal)
    with (study_dir / "actors.lock").open("a") as alive:
        fcntl.flock(alive, fcntl.LOCK_SH)
        with contextlib.closing(results.Ledger(study_dir)) as ledger:
            while True:
                command = ray.get(bridge.take.remote(rank))
                if command["do"] == "end":
                    storage.settle(study_dir)
                    return
                if command["do"] == "begin":
                    if device.type == "cuda":
                        torch.cuda.empty_cache()
                    pulse = Pulse(options["run"], command["task"]["trial"], every=options["pulse_seconds"])
                    run = group_run(
                        command["task"],
                        data,
                        ledger=ledger,
                        study_dir=study_dir,
                        options=options,
                        workers=dist.group.WORLD,
                        beat=pulse.beat,
                    )
                    continue
                assert run is not None
                answer = run.step() if command["do"] == "step" else run.save()
                if rank == 0:
                    ray.get(bridge.answer.remote(answer))


def free_group(key: bytes) -> None:
    """Give back the machines of a driver's workers, if they still hold any."""
    kept = _internal_kv_get(key, namespace=NAMESPACE)
    if kept:
        with contextlib.suppress(Exception):  # gone with its workers already
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(kept)))
        _internal_kv_del(key, namespace=NAMESPACE)


def free_orphans() -> None:
    """The same for drivers that were killed: Ray keeps the places of their workers until the whole job ends."""
    from ray._private.state import actors

    for key in _internal_kv_list(b"", namespace=NAMESPACE):
        if actors(key.decode()).get("State") == "DEAD":
            free_group(key)
