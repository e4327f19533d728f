"""The engine of a pipeline: a rank's stages of the model, between those of other ranks."""

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from frontrunner.evaluators.trainer.compilation import training_loss
from frontrunner.evaluators.trainer.data import Batch
from frontrunner.evaluators.trainer.data_parallel import Replicas, publish_trained, trained_parameters
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.layout import Layout
from frontrunner.evaluators.trainer.loss import loss_context, micro_batch_loss
from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.evaluators.trainer.pipeline import build_schedule, rank_of_stage, stages_of_rank
from frontrunner.evaluators.trainer.precision import COMPUTE_TYPES, LossScale


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
        """What the rank's stages are given so that the last one can compute a chunked loss; the others ignore it."""
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
