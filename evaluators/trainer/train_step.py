"""One optimizer step, and the loss and gradient norm that every rank then knows."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from frontrunner.evaluators.trainer.data import Batch, TokenFile
from frontrunner.evaluators.trainer.job import DATA_RANGE, Job
from frontrunner.evaluators.trainer.layout import Layout
from frontrunner.evaluators.trainer.optimizer import (
    build_optimizer,
    clip,
    local_gradients,
    make_states,
    set_learning_rate,
    settle,
    squared_norm_share,
)
from frontrunner.evaluators.trainer.precision import LossScale
from frontrunner.evaluators.trainer.torch_engine import Engine


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """Mean loss over the global batch; global gradient norm before clipping, where the job clips.

    `overflowed`: a gradient passed fp16's range, so that the step changed no weight; it has no norm then.
    `loss_scale`: the factor of the next step's loss, where losses are scaled.
    """

    loss: float
    gradient_norm: float | None
    overflowed: bool = False
    loss_scale: float | None = None

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
        """Return every tensor that training goes on from, by names that mean the same on all ranks."""
        ...

    def restore(self, load: Callable[[dict[str, Tensor]], None]) -> None:
        """Go on from stored values, which `load` writes into the tensors that `state` returned."""
        ...


class TorchStepper:
    """Runs steps of the torch engine; see `Stepper`."""

    def __init__(self, job: Job, layout: Layout, engine: Engine, data: TokenFile, scale: LossScale) -> None:
        self._job = job
        self._layout = layout
        self._data = data
        self._device = scale.device
        self.scale = scale
        self.engine = engine
        self._ahead: tuple[int, Batch] | None = None
        self._parameters = [parameter for _, parameter in engine.named_parameters()]
        self.optimizer = build_optimizer(job.optimizer, self._parameters, state=job.recipe.optimizer_state)

    def step(self, number: int) -> StepOutcome:
        """See Stepper."""
        loss = self.engine.forward_backward(self._training_batch(number))
        totals = self._totals(loss)
        clips_at = self._job.optimizer.gradient_clip_norm
        overflowed = False
        if self.scale.is_active:
            overflowed = bool(totals[2].item())
            self.scale.update(overflowed=overflowed)
        if not overflowed:
            if clips_at is not None:
                clip(self._parameters, norm=totals[1].sqrt(), largest=clips_at)
            self.optimizer.step()
            self.engine.publish()
        self.optimizer.zero_grad()
        if self._device.type != "cpu":
            self._ahead = number + 1, self._read_batch(number + 1)  # while the device is busy with this step
        synchronize(self._device)
        mean_loss, squared_norm, _ = totals.tolist()
        norm = None if clips_at is None or overflowed else math.sqrt(squared_norm)
        factor = self.scale.factor if self.scale.is_active else None
        return StepOutcome(loss=mean_loss, gradient_norm=norm, overflowed=overflowed, loss_scale=factor)

    def _totals(self, loss: Tensor | None) -> Tensor:
        """Settle the gradients and take their scale off; sum loss, squared norm and overflows over all ranks."""
        settle(self._parameters)
        totals = torch.zeros(3, device=self._device)
        if loss is not None:
            totals[0] = loss / self._holders
        if self.scale.is_active:
            totals[2] = self.scale.unscale_gradients(local_gradients(self._parameters))
        if self._job.optimizer.gradient_clip_norm is not None:
            totals[1] = squared_norm_share(self._parameters, holders=self._holders)
        dist.all_reduce(totals)
        return totals

    def evaluate(self, batches: int) -> float:
        """See Stepper."""
        total = torch.zeros(1, device=self._device)
        for number in range(batches):
            batch = self._data.evaluation_batch(
                number,
                sequences=self._layout.replica_sequences,
                global_batch_seqs=self._job.recipe.global_batch_seqs,
            )
            loss = self.engine.evaluate(self._own_part(batch).to(self._device))
            if loss is not None:
                total += loss / self._holders
        dist.all_reduce(total)
        return float(total.item()) / batches

    def set_learning_rate(self, learning_rate: float) -> None:
        """See Stepper."""
        set_learning_rate(self.optimizer, learning_rate)

    def state(self) -> dict[str, Tensor]:
        """See Stepper. Names are those of the whole model, with the optimizer's states next to each parameter."""
        state = {f"loss_scale.{key}": value for key, value in self.scale.state().items()}
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
        self.engine.publish()

    @property
    def _holders(self) -> int:
        """The ranks that hold the same pipeline stage."""
        return self._job.recipe.copies * self._job.recipe.tensor_parallel

    def _training_batch(self, number: int) -> Batch:
        ahead, self._ahead = self._ahead, None
        return ahead[1] if ahead is not None and ahead[0] == number else self._read_batch(number)

    def _read_batch(self, number: int) -> Batch:
        with record_function(DATA_RANGE):
            batch = self._data.training_batch(
                number, sequences=self._layout.replica_sequences, global_batch_seqs=self._job.recipe.global_batch_seqs
            )
            return self._own_part(batch).to(self._device)

    def _own_part(self, batch: Batch) -> Batch:
        """Return the positions of the replica's batch that this rank holds."""
        context = self._layout.context
        return batch if context is None else batch.at(context.positions(self._job.sequence_length))


def synchronize(device: torch.device) -> None:
    """Wait until an accelerator has done all its work; nothing on a CPU."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
