"""The torch engine: one rank's part of the model, ready to run forward and backward over its replica's batch.

`build_engine` makes it in the order that keeps memory low and weights independent of the parallel form: modules on
the meta device, tensor parallelism, data parallelism, then storage for the local shards only, then seeded values.
"""

from functools import partial
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from frontrunner.evaluators.trainer.activations import checkpointed
from frontrunner.evaluators.trainer.data import Batch
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.layout import Layout
from frontrunner.evaluators.trainer.loss import LossFunction, compiled, loss_context, micro_batch_loss, training_loss
from frontrunner.evaluators.trainer.model import Gpt, Levers, initialize
from frontrunner.evaluators.trainer.parallel.data import (
    DdpReplicas,
    LeveledReplicas,
    Replicas,
    apply_data_parallel,
    publish_trained,
    trained_parameters,
)
from frontrunner.evaluators.trainer.parallel.pipeline import build_schedule, stage_layers, stages_of_rank
from frontrunner.evaluators.trainer.parallel.tensor import apply_tensor_parallel
from frontrunner.evaluators.trainer.precision import COMPUTE_TYPES, LossScale, MasterWeights, has_master_weights
from frontrunner.spaces.stages import rank_of_stage


class AccumulatingEngine:
    """The whole model on each tensor-parallel group: micro-batches run one after another."""

    def __init__(
        self, job: Job, model: Gpt, replicas: Replicas | DdpReplicas | None, scale: LossScale, *, forward: nn.Module
    ) -> None:
        """`forward` is the model, or what it is wrapped in: what micro-batches are run through."""
        self._recipe = job.recipe
        self._model = model
        self._forward = forward
        self._replicas = replicas
        self._scale = scale
        self._loss_of = training_loss(job)
        self._masters = MasterWeights(model, job.precision) if has_master_weights(job.recipe, job.precision) else None

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """See Engine."""
        if self._masters is not None:
            return self._masters.named_parameters()
        return trained_parameters(self._model, self._replicas)

    def publish(self) -> None:
        """See Engine."""
        if self._masters is not None:
            self._masters.publish()
        publish_trained(self._replicas)

    def forward_backward(self, batch: Batch) -> Tensor:
        """See Engine."""
        total = torch.zeros((), device=batch.inputs.device)
        last = self._recipe.accumulation - 1
        with loss_context(tensor_parallel=self._recipe.tensor_parallel):
            for number, micro_batch in enumerate(batch.split(self._recipe.micro_batch_seqs)):
                if self._replicas is not None:
                    self._replicas.before_backward(last=number == last)
                loss = self._loss(self._forward, micro_batch, self._loss_of)
                torch.autograd.backward(self._scale.scaled(loss))
                total += loss.detach()
                if self._masters is not None:
                    self._masters.collect_gradients()
        return total

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor:
        """See Engine."""
        total = torch.zeros((), device=batch.inputs.device)
        with loss_context(tensor_parallel=self._recipe.tensor_parallel):
            for micro_batch in batch.split(self._recipe.micro_batch_seqs):
                total += self._loss(self._model, micro_batch, micro_batch_loss)
        if self._replicas is not None:
            self._replicas.reshard()
        return total

    def _loss(self, forward: nn.Module, micro_batch: Batch, loss_of: LossFunction) -> Tensor:
        """Return the micro-batch's part of the batch's mean loss."""
        chunked = {"targets": micro_batch.targets} if self._recipe.loss_chunks > 1 else {}
        output = forward(micro_batch.inputs, **chunked)
        return loss_of(output, micro_batch.targets) / self._recipe.accumulation


class PipelineEngine:
    """Some stages of the model: a schedule runs the micro-batches through the ranks of the pipeline."""

    def __init__(
        self,
        job: Job,
        layout: Layout,
        modules: list[Gpt],
        replicas: list[Replicas | None],
        scale: LossScale,
    ) -> None:
        self._job = job
        self._layout = layout
        self._device = scale.device
        self._scale = scale
        self._modules = dict(zip(stages_of_rank(job.recipe, layout.pipeline_rank), modules, strict=True))
        self._replicas = replicas
        self._loss_of = training_loss(job)
        self._kept = torch.empty(0)
        self._schedule: PipelineScheduleSingle | PipelineScheduleMulti = build_schedule(
            modules, replicas, layout, self._scaled_loss, self._device
        )

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """See Engine."""
        parts = zip(self._modules.values(), self._replicas, strict=True)
        return [named for module, replicas in parts for named in trained_parameters(module, replicas)]

    def publish(self) -> None:
        """See Engine."""
        for replicas in self._replicas:
            publish_trained(replicas)

    def forward_backward(self, batch: Batch) -> Tensor | None:
        """See Engine."""
        losses: list[Tensor] = []
        inputs = (batch.inputs,) if 0 in self._modules else ()
        targets: dict[str, Any] = {"target": batch.targets, "losses": losses} if self._holds_last_stage else {}
        targets |= self._for_chunks(batch)
        with loss_context(tensor_parallel=self._job.recipe.tensor_parallel):
            self._schedule.step(*inputs, return_outputs=False, **targets)
        return self._scale.unscaled(torch.stack(losses).sum().detach()) if self._holds_last_stage else None

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor | None:
        """See Engine. The micro-batches go through the stages one after another, outside the training schedule."""
        total = torch.zeros((), device=self._device)
        with loss_context(tensor_parallel=self._job.recipe.tensor_parallel):
            for micro_batch in batch.split(self._job.recipe.micro_batch_seqs):
                for stage in self._modules:
                    output = self._run_stage(stage, micro_batch)
                    if stage == self._job.recipe.stages - 1:
                        total += micro_batch_loss(output, micro_batch.targets) / self._job.recipe.accumulation
        for replicas in self._replicas:
            if replicas is not None:
                replicas.reshard()
        return total if self._holds_last_stage else None

    def _scaled_loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return self._scale.scaled(self._loss_of(output, targets) / self._job.recipe.accumulation)

    def _for_chunks(self, batch: Batch) -> dict[str, Tensor]:
        """Return the targets with which the last stage computes a chunked loss; other stages ignore them."""
        return {"targets": batch.targets} if self._holds_last_stage and self._job.recipe.loss_chunks > 1 else {}

    @property
    def _holds_last_stage(self) -> bool:
        return self._job.recipe.stages - 1 in self._modules

    def _run_stage(self, stage: int, batch: Batch) -> Tensor:
        """Take the stage's input from the stage before it, run it, hand its output to the stage after it."""
        x = batch.inputs if stage == 0 else self._receive(stage - 1, batch.inputs)
        output = cast("Tensor", self._modules[stage](x, **self._for_chunks(batch)))
        if stage < self._job.recipe.stages - 1:
            self._send(stage + 1, output)
        return output

    def _receive(self, source_stage: int, tokens: Tensor) -> Tensor:
        source = rank_of_stage(self._job.recipe, source_stage)
        if source == self._layout.pipeline_rank:
            return self._kept
        sequence = tokens.shape[1]
        if self._job.recipe.sequence_parallel:
            sequence //= self._job.recipe.tensor_parallel
        dtype = COMPUTE_TYPES[self._job.precision]
        x = torch.empty(tokens.shape[0], sequence, self._job.model.hidden, dtype=dtype, device=self._device)
        dist.recv(x, group=self._layout.pipeline_mesh.get_group(), group_src=source)
        return x

    def _send(self, target_stage: int, output: Tensor) -> None:
        target = rank_of_stage(self._job.recipe, target_stage)
        if target == self._layout.pipeline_rank:
            self._kept = output
            return
        dist.send(output.contiguous(), group=self._layout.pipeline_mesh.get_group(), group_dst=target)


class Engine(Protocol):
    """One rank's part of the model. Batches are those of the rank's replica, or a context rank's slice of them."""

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return what the optimizer trains on this rank, with its names in the whole model."""
        ...

    def publish(self) -> None:
        """Have the next forward pass see what was written into `named_parameters`. All ranks call it together."""
        ...

    def forward_backward(self, batch: Batch) -> Tensor | None:
        """Accumulate gradients of the batch's mean loss, averaged over the copies of the model.

        Returns the loss where the last layer is.
        """
        ...

    def evaluate(self, batch: Batch) -> Tensor | None:
        """Return the batch's mean loss, where the last layer is; no gradients."""
        ...


def build_engine(job: Job, layout: Layout, device: torch.device, scale: LossScale) -> Engine:
    """Build, materialize and initialize this rank's part of the model; gradients come out multiplied by `scale`."""
    recipe = job.recipe
    ranges = stage_layers(job.model.layers, recipe)
    modules = []
    replicas = []
    for stage in stages_of_rank(recipe, layout.pipeline_rank):
        module = _build_stage(job, layout, ranges[stage])
        replicas.append(apply_data_parallel(module, layout, job.precision))
        if recipe.compile:
            module.compile_blocks(partial(compiled, device_type=job.device), device)
        module.to_empty(device=device if recipe.offload == "none" else "cpu")
        if isinstance(replicas[-1], LeveledReplicas):
            replicas[-1].make_masters()
        initialize(trained_parameters(module, replicas[-1]), seed=job.seed, layers=job.model.layers)
        publish_trained(replicas[-1])
        modules.append(module)
    if recipe.replication == "ddp":
        ddp = DdpReplicas(modules[0], layout)
        return AccumulatingEngine(job, modules[0], ddp, scale, forward=ddp.wrapped)
    if recipe.pipeline_parallel == 1:
        return AccumulatingEngine(job, modules[0], replicas[0], scale, forward=modules[0])
    return PipelineEngine(job, layout, modules, replicas, scale)


def _build_stage(job: Job, layout: Layout, layers: range) -> Gpt:
    with torch.device("meta"):
        module = Gpt(
            job.model,
            sequence_length=job.sequence_length,
            layers=layers,
            levers=_levers(layout),
        )
    if job.recipe.tensor_parallel > 1:
        apply_tensor_parallel(module, job.model, layout.tensor_mesh, sequence_parallel=job.recipe.sequence_parallel)
    return module


def _levers(layout: Layout) -> Levers:
    recipe = layout.recipe
    return Levers(
        checkpointed=checkpointed(recipe.recompute),
        feed_forward_tiles=recipe.feed_forward_tiles,
        loss_chunks=recipe.loss_chunks,
        activation_offload=recipe.activation_offload,
        sequence_shards=recipe.tensor_parallel if recipe.sequence_parallel else 1,
        context=layout.context,
    )
