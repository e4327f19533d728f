"""Steps through a pipeline: DeepSpeed's 1F1B with ZeRO 0 or 1, tensor parallelism by layers of our own."""

from collections.abc import Iterator
from typing import Any, cast

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor

from frontrunner.evaluators.trainer.blocks import Levers
from frontrunner.evaluators.trainer.data import Batch
from frontrunner.evaluators.trainer.deepspeed_engine.configuration import configuration
from frontrunner.evaluators.trainer.deepspeed_engine.tensor_layers import split_blocks
from frontrunner.evaluators.trainer.initialise import initialise
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.layout import Layout
from frontrunner.evaluators.trainer.loss import mean_cross_entropy
from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.evaluators.trainer.optimizer import build_optimizer
from frontrunner.evaluators.trainer.pipeline import stage_layers
from frontrunner.evaluators.trainer.recompute import checkpointed
from frontrunner.evaluators.trainer.tensor_ranks import TensorRanks


class StagedModel:
    """One pipeline stage of the model, or a tensor-parallel share of it."""

    def __init__(self, job: Job, layout: Layout, device: torch.device) -> None:
        recipe = job.recipe
        self._micro_batch_seqs = recipe.micro_batch_seqs
        # A stage is one layer to DeepSpeed, so that stages hold the same layers as those of the torch engine.
        module = PipelineModule(
            layers=[
                LayerSpec(_Stage, job, layout, layers, device) for layers in stage_layers(job.model.layers, recipe)
            ],
            topology=PipeModelDataParallelTopology(
                num_pp=recipe.pipeline_parallel, num_mp=recipe.tensor_parallel, num_dp=recipe.data_parallel
            ),
            loss_fn=mean_cross_entropy,
            partition_method="uniform",
        )
        count = sum(parameter.numel() for parameter in module.parameters())
        self.engine, self.optimizer, _, _ = deepspeed.initialize(
            model=module,
            config=configuration(job, parameters=count),
            optimizer=build_optimizer(job.optimizer, list(module.parameters())),
        )

    def train(self, batch: Batch) -> Tensor:
        """See DeepSpeedModel."""
        return self._mean(self.engine.train_batch(data_iter=self._micro_batches(batch)))

    def evaluate(self, batch: Batch) -> Tensor:
        """See DeepSpeedModel."""
        return self._mean(self.engine.eval_batch(data_iter=self._micro_batches(batch)))

    @staticmethod
    def _mean(loss: Tensor) -> Tensor:
        return loss.detach().clone().reshape(())  # DeepSpeed keeps the tensor, and tells evaluations as [1]

    def _micro_batches(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        return ((part.inputs, part.targets) for part in batch.split(self._micro_batch_seqs))


class _Stage(Gpt):
    """A stage on its device, with its first weights and, where the recipe says, cut over the tensor-parallel ranks."""

    def __init__(self, job: Job, layout: Layout, layers: range, device: torch.device) -> None:
        with torch.device("meta"):
            super().__init__(
                job.model,
                sequence_length=job.sequence_length,
                layers=layers,
                levers=Levers(checkpointed=checkpointed(job.recipe.recompute)),
            )
        self.to_empty(device=device)
        initialise(self.named_parameters(), seed=job.seed, layers=job.model.layers)
        if job.recipe.tensor_parallel > 1:
            split_blocks(self, TensorRanks(layout.tensor_mesh, sequence_parallel=False))
        if layout.pipeline_rank > 0 and layout.tensor_mesh.get_local_rank() == 0:
            _count_in_gradient_norm(self)


def _count_in_gradient_norm(stage: Gpt) -> None:
    """Have DeepSpeed count this rank's parameters when it clips without ZeRO.

    There it takes all ranks of a replica for ranks of tensor parallelism, and counts what is not marked as cut over
    them on the first only: the norm would be that of the first stage.
    """
    for parameter in stage.parameters():
        cast("Any", parameter).model_parallel = True
