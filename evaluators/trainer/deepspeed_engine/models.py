"""One rank's part of the model in a DeepSpeed engine: without a pipeline, or with one.

Without: ZeRO 0 to 3 over the replicas, tensor parallelism by AutoTP. With: DeepSpeed's 1F1B with ZeRO 0 or 1, and our
own column- and row-parallel layers (Megatron-LM, arXiv 1909.08053), since AutoTP forms its groups over all ranks as if
there were no pipeline. Either way attention and feed-forward are split; embedding, norms and head are whole on every
rank.
"""

from collections.abc import Iterator
from typing import Any, cast

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor, nn
from torch.nn import functional

from frontrunner.evaluators.trainer.activations import checkpointed
from frontrunner.evaluators.trainer.data import Batch
from frontrunner.evaluators.trainer.deepspeed_engine.configuration import configuration, zero_stage
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.layout import Layout
from frontrunner.evaluators.trainer.loss import mean_cross_entropy
from frontrunner.evaluators.trainer.model import Block, Gpt, Levers, initialize
from frontrunner.evaluators.trainer.optimizer import build_optimizer
from frontrunner.evaluators.trainer.parallel.pipeline import stage_layers
from frontrunner.evaluators.trainer.parallel.tensor import TensorRanks

_COLUMN_PARALLEL = (("attention", ("query", "key", "value")), ("feed_forward", ("gate", "up")))
_ROW_PARALLEL = (("attention", "output"), ("feed_forward", "down"))


class _Share(nn.Module):
    """This rank's share of a linear layer without bias."""

    def __init__(self, whole: nn.Linear, ranks: TensorRanks, *, dim: int) -> None:
        super().__init__()
        self._ranks = ranks
        share = whole.weight.detach().chunk(ranks.size, dim)[ranks.number]
        self.weight = nn.Parameter(share.clone())
        # DeepSpeed counts parameters without this mark once, and those with it on every rank, in the gradient norm.
        cast("Any", self.weight).model_parallel = True


class ColumnParallel(_Share):
    """Holds some of the outputs."""

    def __init__(self, whole: nn.Linear, ranks: TensorRanks) -> None:
        super().__init__(whole, ranks, dim=0)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in], the same on all ranks -> [..., out / ranks]."""
        return functional.linear(self._ranks.enter(x), self.weight)


class RowParallel(_Share):
    """Holds some of the inputs."""

    def __init__(self, whole: nn.Linear, ranks: TensorRanks) -> None:
        super().__init__(whole, ranks, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in / ranks] -> [..., out], the same on all ranks."""
        return self._ranks.leave(functional.linear(x, self.weight))


def split_blocks(model: Gpt, ranks: TensorRanks) -> None:
    """Keep, in place, this rank's share of the blocks' whole and initialized weights."""
    for block in model.blocks.values():
        for part, names in _COLUMN_PARALLEL:
            module = getattr(cast("Block", block), part)
            for name in names:
                if hasattr(module, name):
                    setattr(module, name, ColumnParallel(getattr(module, name), ranks))
        for part, name in _ROW_PARALLEL:
            module = getattr(cast("Block", block), part)
            setattr(module, name, RowParallel(getattr(module, name), ranks))


class WholeModel:
    """The whole model on each tensor-parallel group; micro-batches run one after another."""

    def __init__(self, job: Job, device: torch.device) -> None:
        self._job = job
        model = _build(job, device)
        count = sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in model.parameters())
        self.engine, self.optimizer, _, _ = deepspeed.initialize(
            model=model,
            config=configuration(job, parameters=count),
            optimizer=build_optimizer(job.optimizer, list(model.parameters())),
        )

    def train(self, batch: Batch) -> Tensor:
        """Return one optimizer step on the replica's batch; its mean loss."""
        total = torch.zeros((), device=batch.inputs.device)
        for micro_batch in batch.split(self._job.recipe.micro_batch_seqs):
            loss = mean_cross_entropy(self.engine(micro_batch.inputs), micro_batch.targets)
            self.engine.backward(loss)
            self.engine.step()
            total += loss.detach()
        return total / self._job.recipe.accumulation

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor:
        """Return the replica's mean loss; no gradients."""
        total = torch.zeros((), device=batch.inputs.device)
        for micro_batch in batch.split(self._job.recipe.micro_batch_seqs):
            total += mean_cross_entropy(self.engine(micro_batch.inputs), micro_batch.targets)
        return total / self._job.recipe.accumulation


def _build(job: Job, device: torch.device) -> nn.Module:
    """Return the model with its first weights."""
    if zero_stage(job) == 3 and job.recipe.tensor_parallel == 1:
        return _build_sharded(job)
    with torch.device("meta"):
        model = _model(job)
    model.to_empty(device=device)
    initialize(model.named_parameters(), seed=job.seed, layers=job.model.layers)
    return model


def _build_sharded(job: Job) -> nn.Module:
    """Return the model under ZeRO-3; each parameter is sharded as soon as it is made: no rank ever holds all."""
    with deepspeed.zero.Init(config_dict_or_path=configuration(job, parameters=0)):
        model = _model(job)
    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            if dist.get_rank() == 0:
                initialize([(name, parameter)], seed=job.seed, layers=job.model.layers)
    return model


def _model(job: Job) -> Gpt:
    return Gpt(
        job.model,
        sequence_length=job.sequence_length,
        layers=range(job.model.layers),
        levers=Levers(checkpointed=checkpointed(job.recipe.recompute)),
    )


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
        return loss.detach().clone().reshape(())  # DeepSpeed keeps the tensor, and returns evaluations as [1]

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
        initialize(self.named_parameters(), seed=job.seed, layers=job.model.layers)
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
