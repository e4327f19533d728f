"""One optimizer step, and the loss and gradient norm that every rank then knows."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from frontrunner.evaluators.trainer.data import Batch, TokenFile
from frontrunner.evaluators.trainer.engine import Engine
from frontrunner.evaluators.trainer.gradients import clip, settle, squared_norm_share
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.layout import Layout
from frontrunner.evaluators.trainer.optimizer import build_optimizer, make_states, set_learning_rate


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """Mean loss over the global batch; global gradient norm before clipping, where the job clips."""

    loss: float
    gradient_norm: float | None

    @property
    def is_finite(self) -> bool:
        """Whether training can go on."""
        return math.isfinite(self.loss) and (self.gradient_norm is None or math.isfinite(self.gradient_norm))


class Stepper(Protocol):
    """Runs steps of training on one rank. Every rank of the job must make the same calls."""

    def step(self, number: int) -> StepOutcome:
        """Train on the global batch of step `number`. Returns once this rank's device is done."""
        ...

    def evaluate(self, batches: int) -> float:
        """Mean loss over the first `batches` held-out global batches."""
        ...

    def set_learning_rate(self, learning_rate: float) -> None:
        """Use `learning_rate` from the next step on."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Every tensor that training goes on from, by names that mean the same on all ranks."""
        ...

    def restore(self, load: Callable[[dict[str, Tensor]], None]) -> None:
        """Go on from stored values, which `load` writes into the tensors that `state` returned."""
        ...


class TorchStepper:
    """Runs steps of the torch engine; see `Stepper`."""

    def __init__(self, job: Job, layout: Layout, engine: Engine, data: TokenFile, device: torch.device) -> None:
        self._job = job
        self._layout = layout
        self._data = data
        self._device = device
        self.engine = engine
        self._parameters = [parameter for _, parameter in engine.named_parameters()]
        self.optimizer = build_optimizer(job.optimizer, self._parameters)

    def step(self, number: int) -> StepOutcome:
        """See Stepper."""
        loss = self.engine.forward_backward(self._training_batch(number))
        settle(self._parameters)
        clips_at = self._job.optimizer.gradient_clip_norm
        totals = torch.zeros(2, device=self._device)
        if loss is not None:
            totals[0] = loss / self._holders
        if clips_at is not None:
            totals[1] = squared_norm_share(self._parameters, holders=self._holders)
        dist.all_reduce(totals)
        if clips_at is not None:
            clip(self._parameters, norm=totals[1].sqrt(), largest=clips_at)
        self.optimizer.step()
        self.optimizer.zero_grad()
        synchronise(self._device)
        mean_loss, squared_norm = totals.tolist()
        return StepOutcome(loss=mean_loss, gradient_norm=None if clips_at is None else math.sqrt(squared_norm))

    def evaluate(self, batches: int) -> float:
        """See Stepper."""
        total = torch.zeros(1, device=self._device)
        for number in range(batches):
            batch = self._data.evaluation_batch(
                number,
                sequences=self._layout.replica_sequences,
                global_batch_seqs=self._job.recipe.global_batch_seqs,
            )
            loss = self.engine.evaluate(batch.to(self._device))
            if loss is not None:
                total += loss / self._holders
        dist.all_reduce(total)
        return float(total.item()) / batches

    def set_learning_rate(self, learning_rate: float) -> None:
        """See Stepper."""
        set_learning_rate(self.optimizer, learning_rate)

    def state(self) -> dict[str, Tensor]:
        """See Stepper. Names are those of the whole model, with the optimizer's states beside each parameter."""
        state: dict[str, Tensor] = {}
        for name, parameter in self.engine.named_parameters():
            state[f"model.{name}"] = parameter.detach()
            for key, value in self.optimizer.state[parameter].items():
                if isinstance(value, Tensor):
                    state[f"optimizer.{name}.{key}"] = value
        return state

    def restore(self, load: Callable[[dict[str, Tensor]], None]) -> None:
        """See Stepper."""
        make_states(self.optimizer)
        load(self.state())

    @property
    def _holders(self) -> int:
        """The ranks that hold the same pipeline stage."""
        return self._job.recipe.data_parallel * self._job.recipe.tensor_parallel

    def _training_batch(self, number: int) -> Batch:
        batch = self._data.training_batch(
            number, sequences=self._layout.replica_sequences, global_batch_seqs=self._job.recipe.global_batch_seqs
        )
        return batch.to(self._device)


def synchronise(device: torch.device) -> None:
    """Wait until an accelerator has done all that was asked of it; nothing on a CPU."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
