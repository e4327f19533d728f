"""Steps without a pipeline: ZeRO 0 to 3 over the replicas, tensor parallelism by AutoTP."""

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

from frontrunner.evaluators.trainer.blocks import Levers
from frontrunner.evaluators.trainer.data import Batch
from frontrunner.evaluators.trainer.deepspeed_engine.configuration import configuration, zero_stage
from frontrunner.evaluators.trainer.initialise import initialise
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.loss import mean_cross_entropy
from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.evaluators.trainer.optimizer import build_optimizer
from frontrunner.evaluators.trainer.recompute import checkpointed


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
        """One optimizer step on the replica's batch; its mean loss."""
        total = torch.zeros((), device=batch.inputs.device)
        for micro_batch in batch.split(self._job.recipe.micro_batch_seqs):
            loss = mean_cross_entropy(self.engine(micro_batch.inputs), micro_batch.targets)
            self.engine.backward(loss)
            self.engine.step()
            total += loss.detach()
        return total / self._job.recipe.accumulation

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor:
        """The replica's mean loss; no gradients."""
        total = torch.zeros((), device=batch.inputs.device)
        for micro_batch in batch.split(self._job.recipe.micro_batch_seqs):
            total += mean_cross_entropy(self.engine(micro_batch.inputs), micro_batch.targets)
        return total / self._job.recipe.accumulation


def _build(job: Job, device: torch.device) -> nn.Module:
    """The model with its first weights."""
    if zero_stage(job) == 3 and job.recipe.tensor_parallel == 1:
        return _build_sharded(job)
    with torch.device("meta"):
        model = _model(job)
    model.to_empty(device=device)
    initialise(model.named_parameters(), seed=job.seed, layers=job.model.layers)
    return model


def _build_sharded(job: Job) -> nn.Module:
    """The model under ZeRO-3: each parameter is sharded as soon as it is made, so that no rank ever holds all."""
    with deepspeed.zero.Init(config_dict_or_path=configuration(job, parameters=0)):
        model = _model(job)
    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            if dist.get_rank() == 0:
                initialise([(name, parameter)], seed=job.seed, layers=job.model.layers)
    return model


def _model(job: Job) -> Gpt:
    return Gpt(
        job.model,
        sequence_length=job.sequence_length,
        layers=range(job.model.layers),
        levers=Levers(checkpointed=checkpointed(job.recipe.recompute)),
    )
