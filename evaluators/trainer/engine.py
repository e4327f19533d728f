"""One rank's part of the model, ready to run forward and backward over its replica's batch.

`build_engine` makes it in the order that keeps memory low and weights independent of the parallel form: modules on
the meta device, tensor parallelism, data parallelism, then storage for the local shards only, then seeded values.
"""

from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from frontrunner.evaluators.trainer.accumulating_engine import AccumulatingEngine
from frontrunner.evaluators.trainer.blocks import Levers
from frontrunner.evaluators.trainer.compilation import compiled
from frontrunner.evaluators.trainer.data import Batch
from frontrunner.evaluators.trainer.data_parallel import (
    DdpReplicas,
    LeveledReplicas,
    apply_data_parallel,
    publish_trained,
    trained_parameters,
)
from frontrunner.evaluators.trainer.initialise import initialise
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.layout import Layout
from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.evaluators.trainer.pipeline import stage_layers, stages_of_rank
from frontrunner.evaluators.trainer.pipeline_engine import PipelineEngine
from frontrunner.evaluators.trainer.precision import LossScale
from frontrunner.evaluators.trainer.recompute import checkpointed
from frontrunner.evaluators.trainer.tensor_parallel import apply_tensor_parallel


class Engine(Protocol):
    """One rank's part of the model. Batches are those of the rank's replica, or a context rank's slice of them."""

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """What the optimizer trains on this rank, with its names in the whole model."""
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
        """The batch's mean loss, where the last layer is; no gradients."""
        ...


def build_engine(job: Job, layout: Layout, device: torch.device, scale: LossScale) -> Engine:
    """Build, materialise and initialise this rank's part of the model; gradients come out multiplied by `scale`."""
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
        initialise(trained_parameters(module, replicas[-1]), seed=job.seed, layers=job.model.layers)
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
