"""The torch engine: steps of training over one rank's part of the model.

A part is made in the order that keeps memory low and weights independent of the parallel form:
modules on the meta device, tensor parallelism, data parallelism, then storage for the local shards
only, then seeded values.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    get_schedule_class,
)
from torch.distributed.tensor.parallel import loss_parallel

from frontrunner.evaluators.trainer import optimizer
from frontrunner.evaluators.trainer.data import Batch, Tokens
from frontrunner.evaluators.trainer.data_parallel import FsdpReplicas, Replicas, spread
from frontrunner.evaluators.trainer.expert_parallel import ExpertLoads, apply_expert_parallel
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.layout import Layout, stage_layers, stages_of_rank
from frontrunner.evaluators.trainer.model import Gpt, initialize
from frontrunner.evaluators.trainer.parts.block import Block
from frontrunner.evaluators.trainer.parts.feed_forward import FeedForwardModule
from frontrunner.evaluators.trainer.parts.head import mean_cross_entropy
from frontrunner.evaluators.trainer.parts.mixture import Balance
from frontrunner.evaluators.trainer.run import StepOutcome, Stepper, synchronize
from frontrunner.evaluators.trainer.tensor_parallel import (
    OnLocalWeight,
    apply_tensor_parallel,
    overlap_when_compiled,
)
from frontrunner.spaces.legality import FP8_MULTIPLES
from frontrunner.spaces.recipe import LOOPED_SCHEDULES, SPLIT_BACKWARD_SCHEDULES
from frontrunner.spaces.stages import rank_of_stage

LossFunction = Callable[[Tensor, Tensor], Tensor]


def compiled(function: Callable[..., Tensor], device_type: str) -> Callable[..., Tensor]:
    """Return `function`, compiled whole, or it raises, at its first call for each kind of input."""
    if device_type == "cpu":
        from torch._inductor import config

        # Ranks share the machine's cores, and a pool of compiling processes would outlive a rank
        # that is killed.
        config.compile_threads = 1
    return torch.compile(function, fullgraph=True)


def compiled_graphs() -> int:
    """Return how many graphs this process has compiled so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def micro_batch_loss(output: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of one micro-batch from the last stage's output: logits, or the loss where it
    was chunked.
    """
    return mean_cross_entropy(output, targets) if output.dim() > 0 else output


def multiply_in_8_bits(module: Gpt, scaling: str, *, emulate: bool = False) -> None:
    """Have the blocks' linear layers, but routers and experts, multiply factors that torchao scales
    to 8 bits.

    `emulate` multiplies in fp32 what was rounded to 8 bits, for a look at the numbers on a device
    without.
    """
    convert, product = (_by_blocks if scaling == "mxfp8" else _by_tensor_or_row)(
        scaling, emulate=emulate
    )
    for block in cast("Iterable[Block]", module.blocks.values()):
        for part in (
            block.attention,
            *(one for one in block.modules() if isinstance(one, FeedForwardModule)),
        ):
            convert(part)
            for split in part.modules():
                if isinstance(split, OnLocalWeight):
                    split.product = product


def _by_tensor_or_row(
    scaling: str, *, emulate: bool
) -> tuple[Callable[[nn.Module], object], Callable[..., Tensor]]:
    """Return what converts the linear layers of a module, and the product of an input and a
    weight.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.float8_linear import Float8Linear, matmul_with_hp_or_float8_args

    config, least = (
        replace(Float8LinearConfig.from_recipe_name(scaling), emulate=emulate),
        FP8_MULTIPLES[scaling],
    )

    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        out: Tensor = matmul_with_hp_or_float8_args.apply(
            x, weight.t(), like.linear_mm_config, config
        )
        return out if bias is None else out + bias

    with torch.device("meta"):
        like = Float8Linear(least, least, config=config)
    return partial(convert_to_float8_training, config=config), product


def _by_blocks(
    _: str, *, emulate: bool
) -> tuple[Callable[[nn.Module], object], Callable[..., Tensor]]:
    """Return the same for factors that are scaled by blocks of 32 values, whose scales are powers
    of two.
    """
    from torchao.prototype.moe_training.mxfp8_linear import MXFP8Linear, _to_mxfp8_then_scaled_mm
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

    kernels = KernelPreference.EMULATED if emulate else KernelPreference.AUTO

    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        out: Tensor = _to_mxfp8_then_scaled_mm(x, weight, kernels, ScaleCalculationMode.RCEIL)
        return out if bias is None else out + bias

    def convert(part: nn.Module) -> None:
        for parent in part.modules():
            for name, child in parent.named_children():
                if type(child) is nn.Linear:
                    shape = (child.in_features, child.out_features)
                    with torch.device("meta"):
                        made = MXFP8Linear(*shape, bias=False, kernel_preference=kernels)
                    made.weight, made.bias = child.weight, child.bias
                    parent.register_module(name, made)

    return convert, product


def _build_part(job: Job, layout: Layout, layers: range, device: torch.device) -> Replicas:
    recipe = job.recipe
    with torch.device("meta"):
        length = job.sequence_length
        module = Gpt(
            job.model, sequence_length=length, layers=layers, recipe=recipe, context=layout.context
        )
    if recipe.tensor_parallel > 1:
        apply_tensor_parallel(
            module, job.model, layout.mesh["tensor"], sequence_parallel=recipe.sequence_parallel
        )
    if recipe.fp8 != "none":
        multiply_in_8_bits(module, recipe.fp8)
    if layout.experts is not None:
        apply_expert_parallel(module, layout.experts["experts", "expert_tensor"])
    for mixture in module.mixtures.values():
        if recipe.sequence_parallel:
            mixture.sequence_groups.append(layout.mesh["tensor"].get_group())
            mixture.summed_ranks = recipe.tensor_parallel
        if layout.context is not None:
            mixture.sequence_groups.append(layout.context.group)
    part = spread(module, layout, job.precision, device)
    if recipe.async_tensor_parallel:
        overlap_when_compiled(layout.mesh["tensor"])
    if recipe.compile:
        module.compile_blocks(partial(compiled, device_type=job.device), device)
    initialize(part.named_parameters(), seed=job.seed, layers=len(job.model.layers), device=device)
    part.publish()
    return part


class TorchStepper(Stepper):
    """Steps of the torch engine; gradients come out multiplied by `scale`."""

    def __init__(self, job: Job, layout: Layout, data: Tokens, device: torch.device) -> None:
        super().__init__(job, layout, data, device)
        self.scale = optimizer.LossScale(job.precision, device)
        self.runs_ahead = job.mode == "train" and device.type != "cpu" and not self.scale.is_active
        recipe, ranges = job.recipe, stage_layers(len(job.model.layers), job.recipe)
        self._parts = {
            stage: _build_part(job, layout, ranges[stage], device)
            for stage in stages_of_rank(recipe, layout.pipeline_rank)
        }
        self._balances: dict[str, Balance] = {}
        for name, mixture in (
            one for part in self._parts.values() for one in cast("Gpt", part.model).mixtures.items()
        ):
            mixture.scale_loss = lambda loss: self.scale.scaled(loss / recipe.accumulation)
            if mixture.balance is not None:
                self._balances[name] = mixture.balance.on(device)
        self._named = [named for part in self._parts.values() for named in part.named_parameters()]
        self._parameters = [parameter for _, parameter in self._named]
        self.optimizer = optimizer.build_optimizer(
            job.optimizer, self._parameters, state=recipe.optimizer_state
        )
        self._holders = (
            recipe.copies * recipe.tensor_parallel
        )  # the ranks that hold the same pipeline stage
        if job.model.mixture and job.mode == "probe":
            models = [part.model for part in self._parts.values()]
            self.telemetry.experts = ExpertLoads(models, job.model, ranks_of_stage=self._holders)
        self._pipeline = layout.mesh["pipeline"].get_group()
        self._holds_last_stage = recipe.stages - 1 in self._parts
        self._kept = torch.empty(0)
        self._ahead: tuple[int, Batch] | None = None
        self._loss_of: LossFunction = micro_batch_loss
        # Compiled, the loss's fp32 copies of the logits are never written to memory. Not where the
        # logits are split over the vocabulary: that loss is torch's own for DTensors.
        if recipe.compile and recipe.loss_chunks == 1 and recipe.tensor_parallel == 1:
            self._loss_of = compiled(micro_batch_loss, device_type=job.device)

    @abstractmethod
    def _forward_backward(self, batch: Batch) -> Tensor:
        """Accumulate gradients of the batch's mean loss; return the loss where the last layer is, 0
        elsewhere.
        """

    def _forward(self, batch: Batch) -> Tensor:
        """Return the batch's mean loss where the last layer is, 0 elsewhere."""
        total = torch.zeros((), device=self.device)
        for micro_batch in batch.split(self.recipe.micro_batch_seqs):
            options = self._for_chunks(micro_batch) if self._holds_last_stage else {}
            for stage, part in self._parts.items():
                x = (
                    micro_batch.inputs
                    if stage == 0
                    else self._receive(stage - 1, micro_batch.inputs)
                )
                output = cast("Tensor", part.model(x, **options))
                if stage < self.recipe.stages - 1:
                    self._send(stage + 1, output)
                else:
                    total += (
                        micro_batch_loss(output, micro_batch.targets) / self.recipe.accumulation
                    )
        return total

    def _receive(self, source_stage: int, tokens: Tensor) -> Tensor:
        source = rank_of_stage(self.recipe, source_stage)
        if source == self.layout.pipeline_rank:
            return self._kept
        sequence = tokens.shape[1]
        if self.recipe.sequence_parallel:
            sequence //= self.recipe.tensor_parallel
        dtype = optimizer.COMPUTE_TYPES[self.job.precision]
        x = torch.empty(
            tokens.shape[0], sequence, self.job.model.hidden, dtype=dtype, device=self.device
        )
        self._exchange(dist.P2POp(dist.irecv, x, group=self._pipeline, group_peer=source))
        return x

    def _send(self, target_stage: int, output: Tensor) -> None:
        target = rank_of_stage(self.recipe, target_stage)
        if target == self.layout.pipeline_rank:
            self._kept = output
            return
        self._exchange(
            dist.P2POp(dist.isend, output.contiguous(), group=self._pipeline, group_peer=target)
        )

    @staticmethod
    def _exchange(message: dist.P2POp) -> None:
        """Send or receive on the schedule's own communicator: alone, NCCL would make another one
        for each pair.
        """
        for work in dist.batch_isend_irecv([message]):
            work.wait()

    def step(self, number: int) -> StepOutcome:
        """See Stepper."""
        finish = self.begin(number)
        synchronize(self.device)
        return finish()

    def begin(self, number: int) -> Callable[[], StepOutcome]:
        """See Stepper."""
        ahead, self._ahead = self._ahead, None
        batch = (
            ahead[1] if ahead is not None and ahead[0] == number else self.training_batch(number)
        )
        totals = self._totals(self._forward_backward(batch))
        clips_at = self.job.optimizer.gradient_clip_norm
        overflowed = False
        if self.scale.is_active:
            overflowed = bool(totals[2].item())
            self.scale.update(overflowed=overflowed)
        if not overflowed:
            if clips_at is not None:
                optimizer.clip(self._parameters, norm=totals[1].sqrt(), largest=clips_at)
            self.optimizer.step()
            self._publish()
        self._move_balances()
        self.optimizer.zero_grad()
        if self.device.type != "cpu":
            self._ahead = (
                number + 1,
                self.training_batch(number + 1),
            )  # while the device is busy with this step
        factor = self.scale.factor if self.scale.is_active else None
        if self.runs_ahead:
            totals = torch.empty(3, pin_memory=True).copy_(totals, non_blocking=True)
            done = torch.Event(device=self.device)
            done.record()

        def finish() -> StepOutcome:
            if self.runs_ahead:
                done.synchronize()
            mean_loss, squared_norm, _ = totals.tolist()
            norm = None if clips_at is None or overflowed else math.sqrt(squared_norm)
            return StepOutcome(
                loss=mean_loss, gradient_norm=norm, overflowed=overflowed, loss_scale=factor
            )

        return finish

    def _totals(self, loss: Tensor) -> Tensor:
        """Settle the gradients and take their scale off; sum loss, squared norm and overflows over
        all ranks.
        """
        for part in self._parts.values():
            part.finish_step()
        optimizer.settle(self._parameters)
        totals = torch.zeros(3, device=self.device)
        totals[0] = loss / self._holders
        if self.scale.is_active:
            totals[2] = self.scale.unscale_gradients(optimizer.local_gradients(self._parameters))
        if self.job.optimizer.gradient_clip_norm is not None:
            totals[1] = optimizer.squared_norm_share(self._parameters, holders=self._holders)
        dist.all_reduce(totals)
        return totals

    @torch.no_grad()
    def loss_share(self, batch: Batch) -> Tensor:
        """See Stepper."""
        with self._loss_context():
            loss = self._forward(batch)
        for part in self._parts.values():
            part.reshard()
        return loss / self._holders

    def state(self) -> dict[str, Tensor]:
        """See Stepper. Names are those of the whole model, with the optimizer's states next to each
        parameter.
        """
        state = {f"loss_scale.{key}": value for key, value in self.scale.state().items()}
        state |= {f"balance.{name}": balance.bias for name, balance in self._balances.items()}
        for name, parameter in self._named:
            state[f"model.{name}"] = parameter.detach()
            for key, value in self.optimizer.state[parameter].items():
                if isinstance(value, Tensor):
                    state[f"optimizer.{name}.{key}"] = value
        return state

    def restore(self, load: Callable[[dict[str, Tensor]], None]) -> None:
        """See Stepper."""
        optimizer.make_states(self.optimizer)
        load(self.state())
        self._publish()

    def _publish(self) -> None:
        for part in self._parts.values():
            part.publish()

    def _move_balances(self) -> None:
        """Move the biases that balance experts by the step's tokens, of which each rank of a stage
        has some.
        """
        if not self._balances:
            return
        passes = self.recipe.accumulation * self.recipe.feed_forward_tiles
        tokens = torch.stack([balance.counted(passes) for balance in self._balances.values()])
        for dimension in ("replicate", "shard", "tensor"):
            if self.layout.mesh[dimension].size() > 1:
                dist.all_reduce(tokens, group=self.layout.mesh[dimension].get_group())
        for balance, of_layer in zip(self._balances.values(), tokens, strict=True):
            balance.move(of_layer)

    def _loss_context(self) -> AbstractContextManager[Any]:
        """Return where the loss and every backward pass must run."""
        split = self.recipe.tensor_parallel > 1
        return cast("AbstractContextManager[Any]", loss_parallel()) if split else nullcontext()

    def _for_chunks(self, batch: Batch) -> dict[str, Tensor]:
        """Return the targets with which the last stage computes a chunked loss; other stages ignore
        them.
        """
        return {"targets": batch.targets} if self.recipe.loss_chunks > 1 else {}


class WholeStepper(TorchStepper):
    """The whole model on each tensor-parallel group: micro-batches run one after another."""

    def _forward_backward(self, batch: Batch) -> Tensor:
        (part,) = self._parts.values()
        total = torch.zeros((), device=self.device)
        with self._loss_context():
            for number, one in enumerate(batch.split(self.recipe.micro_batch_seqs), start=1):
                part.before_backward(last=number == self.recipe.accumulation)
                # No name holds the logits, which would keep them through the backward pass.
                loss = self._loss_of(part.forward(one.inputs, **self._for_chunks(one)), one.targets)
                loss = loss / self.recipe.accumulation
                torch.autograd.backward(self.scale.scaled(loss))
                total += loss.detach()
        return total


class PipelineStepper(TorchStepper):
    """Some stages of the model: a schedule runs the micro-batches through the ranks of the
    pipeline.
    """

    def __init__(self, job: Job, layout: Layout, data: Tokens, device: torch.device) -> None:
        super().__init__(job, layout, data, device)
        self._schedule = build_schedule(self._parts, layout, self._scaled_loss, device)

    def _scaled_loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return self.scale.scaled(self._loss_of(output, targets) / self.recipe.accumulation)

    def _forward_backward(self, batch: Batch) -> Tensor:
        losses: list[Tensor] = []
        inputs = (batch.inputs,) if 0 in self._parts else ()
        targets: dict[str, Any] = {}
        if self._holds_last_stage:
            targets = {"target": batch.targets, "losses": losses, **self._for_chunks(batch)}
        with self._loss_context():
            self._schedule.step(*inputs, return_outputs=False, **targets)
        if not losses:
            return torch.zeros((), device=self.device)
        return self.scale.unscaled(torch.stack(losses).sum().detach())


class _Opaque(nn.Module):
    """Hides an FSDP2 root from torch's schedules, which would otherwise decide when it gathers and
    reduces.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, **options: Tensor) -> Tensor:
        return cast("Tensor", self.inner(x, **options))


class Stage(PipelineStage):
    """A stage whose rank may hold its neighbor too: torch 2.11 has them greet by a message to
    itself; gloo has none.
    """

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        return [
            op for op in super()._get_init_p2p_neighbors_ops() if op.group_peer != self.group_rank
        ]


class ReplicatedStage(Stage):
    """A stage whose gradients are reduced as its `Replicas` say.

    torch's own stage reduces once, after the last pass, for every sharding: ZeRO-2 and ZeRO-3 would
    be ZeRO-1.
    """

    def __init__(self, replicas: Replicas, **options: Any) -> None:
        super().__init__(_Opaque(replicas.model), **options)
        self._replicas = replicas

    def backward_maybe_with_nosync(
        self,
        backward_type: str,
        bwd_kwargs: dict[str, Any],
        last_backward: bool = False,  # noqa: FBT001, FBT002
    ) -> Any:
        """Tell the replicas whether this backward pass is the step's last one, and run it."""
        self._replicas.before_backward(last=last_backward)
        outcome = super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        self._replicas.after_backward()
        return outcome


def build_schedule(
    parts: Mapping[int, Replicas], layout: Layout, loss: Any, device: torch.device
) -> PipelineScheduleSingle | PipelineScheduleMulti:
    """Return the schedule over this rank's stages, in ascending order; `loss` divides by the
    micro-batches.
    """
    recipe = layout.recipe
    stages: list[PipelineStage] = []
    for number, replicas in parts.items():
        options: dict[str, Any] = {
            "stage_index": number,
            "num_stages": recipe.stages,
            "device": device,
            "group": layout.mesh["pipeline"].get_group(),
        }
        # Where the backward pass is split, torch's own stage calls FSDP2 after the weights' half.
        if isinstance(replicas, FsdpReplicas) and recipe.schedule in SPLIT_BACKWARD_SCHEDULES:
            stages.append(Stage(replicas.model, **options))
        else:
            stages.append(ReplicatedStage(replicas, **options))
    names = {"zbv": "ZBVZeroBubble"}  # of the others torch's names are ours without hyphens
    kind = get_schedule_class(names.get(recipe.schedule, recipe.schedule.replace("-", "")))
    local = stages if recipe.schedule in LOOPED_SCHEDULES else stages[0]
    schedule = kind(local, n_microbatches=recipe.accumulation, loss_fn=loss, scale_grads=False)
    return cast("PipelineScheduleSingle | PipelineScheduleMulti", schedule)


def make_stepper(job: Job, layout: Layout, data: Tokens, device: torch.device) -> TorchStepper:
    """Return the steps of this rank."""
    kind = WholeStepper if job.recipe.pipeline_parallel == 1 else PipelineStepper
    return kind(job, layout, data, device)
