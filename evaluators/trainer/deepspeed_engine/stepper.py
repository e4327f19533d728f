"""The trainer's steps by DeepSpeed, with the same data, losses and outcomes as the torch engine's."""

import math
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from frontrunner.evaluators.trainer.data import Batch, TokenFile
from frontrunner.evaluators.trainer.deepspeed_engine.disk import check_written, tensors_on_disk
from frontrunner.evaluators.trainer.deepspeed_engine.operators import load
from frontrunner.evaluators.trainer.job import DATA_RANGE, Job
from frontrunner.evaluators.trainer.layout import Layout
from frontrunner.evaluators.trainer.optimizer import set_learning_rate
from frontrunner.evaluators.trainer.train_step import StepOutcome, synchronize

# Imported inside `deepspeed.initialize` or at the first step, and slow: 3 s of a cold start.
_LATE_IMPORTS = (
    "deepspeed.pipe",
    "deepspeed.runtime.bf16_optimizer",
    "deepspeed.runtime.pipe.engine",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.zero.stage_1_and_2",
    "torch._dynamo",
    "torch._dynamo.aot_compile",
    "torch._inductor.compile_fx",
)


def preload() -> None:
    """Import what ranks of this engine use, for a fork server to pay for once.

    Starts no process group and touches no accelerator where DS_ACCELERATOR names one, so that deepspeed need not look.
    """
    import_module("deepspeed")
    for name in _LATE_IMPORTS:
        import_module(name)


def prepare(device_type: str, *, rank: int, world_size: int) -> None:
    """Import deepspeed so that it takes `device_type` for its accelerator and compiles nothing on a CPU."""
    os.environ.setdefault("DS_ACCELERATOR", device_type)
    # What its launcher would have set; deepspeed reads them even where the process group exists already.
    os.environ.setdefault("RANK", str(rank))
    os.environ.setdefault("LOCAL_RANK", str(rank))
    os.environ.setdefault("WORLD_SIZE", str(world_size))
    operators = import_module("deepspeed.ops")
    if device_type == "cpu":
        # Its shared-memory collectives would be compiled at the first use of the process group, for 23 s and more.
        operators.__compatible_ops__["deepspeed_shm_comm"] = False


class DeepSpeedModel(Protocol):
    """One rank's part of the model in a DeepSpeed engine.

    Both methods take the batch of the rank's replica, the same on all its ranks, and return a loss whose mean over
    all ranks is that of the global batch.
    """

    engine: Any
    optimizer: Any

    def train(self, batch: Batch) -> Tensor:
        """Return one optimizer step; the mean loss before it."""
        ...

    def evaluate(self, batch: Batch) -> Tensor:
        """Return the mean loss; no gradients."""
        ...


class DeepSpeedStepper:
    """Runs steps of training on one rank; see `Stepper`."""

    def __init__(self, job: Job, layout: Layout, data: TokenFile, device: torch.device) -> None:
        self._job = job
        self._layout = layout
        self._data = data
        self._device = device
        self._model = _build_model(job, layout, device)
        self._check_disk()

    def step(self, number: int) -> StepOutcome:
        """See Stepper. Without ZeRO in fp32 DeepSpeed clips and does not report the norm, which is then None."""
        loss = self._model.train(self._batch(number, training=True))
        dist.all_reduce(loss)
        synchronize(self._device)
        if number == 1:
            self._check_disk()
        applied = self._model.engine.was_step_applied()
        norm = self._gradient_norm() if applied else math.nan  # it skips a step whose gradients are not finite
        return StepOutcome(loss=float(loss) / dist.get_world_size(), gradient_norm=norm)

    def evaluate(self, batches: int) -> float:
        """See Stepper."""
        total = torch.zeros((), device=self._device)
        self._model.engine.eval()
        for number in range(batches):
            total += self._model.evaluate(self._batch(number, training=False))
        self._model.engine.train()
        dist.all_reduce(total)
        return float(total) / dist.get_world_size() / batches

    def set_learning_rate(self, learning_rate: float) -> None:
        """See Stepper."""
        set_learning_rate(self._model.optimizer, learning_rate)

    def state(self) -> dict[str, Tensor]:
        """See Stepper. The weights and states that the optimizer updates, as DeepSpeed has laid them out."""
        names = self._layout.mesh.get_coordinate() if self._shards else (self._layout.pipeline_rank, self._tensor_rank)
        owner = "-".join(map(str, names or ()))
        on_disk = tensors_on_disk(self._model.optimizer)
        state: dict[str, Tensor] = {}
        for number, (weights, values) in enumerate(self._model.engine.basic_optimizer.state.items()):
            state[f"{owner}.{number}.weights"] = on_disk.get(id(weights), weights.detach())
            for key, value in values.items():
                if isinstance(value, Tensor):
                    state[f"{owner}.{number}.{key}"] = on_disk.get(id(value), value)
        return state

    def restore(self, load: Callable[[dict[str, Tensor]], None]) -> None:
        """See Stepper.

        The weights that the model computes with are copies of those that the optimizer updates, made at the end of
        each step. So values are loaded, copied by a step of rate 0, and loaded again, since that step has changed the
        optimizer's states; a first step of rate 0 makes those states.
        """
        for _ in range(2):
            self.set_learning_rate(0.0)
            self.step(1)
            load(self.state())

    @property
    def _shards(self) -> bool:
        return self._job.recipe.sharding.optimizer > 1

    @property
    def _tensor_rank(self) -> int:
        return int(self._layout.tensor_mesh.get_local_rank())

    def _check_disk(self) -> None:
        if self._job.recipe.offload == "nvme":
            check_written(self._job)

    def _gradient_norm(self) -> float | None:
        norm = self._model.engine.get_global_grad_norm()
        if norm is None or self._job.optimizer.gradient_clip_norm is None:
            return None
        return float(norm) if norm >= 0 else math.nan  # -1 is its word for a norm that is not finite

    def _batch(self, number: int, *, training: bool) -> Batch:
        draw = self._data.training_batch if training else self._data.evaluation_batch
        with record_function(DATA_RANGE):
            batch = draw(
                number, sequences=self._layout.replica_sequences, global_batch_seqs=self._job.recipe.global_batch_seqs
            )
            return batch.to(self._device)


def _build_model(job: Job, layout: Layout, device: torch.device) -> DeepSpeedModel:
    prepare(job.device, rank=dist.get_rank(), world_size=dist.get_world_size())
    # What follows imports deepspeed, which must not happen before.
    import deepspeed

    if job.recipe.offload == "nvme":
        load(job.device)
    deepspeed.init_distributed()  # takes over the process group that there is
    if job.recipe.pipeline_parallel > 1:
        from frontrunner.evaluators.trainer.deepspeed_engine.models import StagedModel

        return StagedModel(job, layout, device)
    from frontrunner.evaluators.trainer.deepspeed_engine.models import WholeModel

    return WholeModel(job, device)
