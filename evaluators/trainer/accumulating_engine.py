"""The engine without a pipeline: each rank's micro-batches run one after another."""

import torch
from torch import Tensor, nn

from frontrunner.evaluators.trainer.compilation import training_loss
from frontrunner.evaluators.trainer.data import Batch
from frontrunner.evaluators.trainer.data_parallel import DdpReplicas, Replicas, publish_trained, trained_parameters
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.loss import LossFunction, loss_context, micro_batch_loss
from frontrunner.evaluators.trainer.master_weights import MasterWeights, has_master_weights
from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.evaluators.trainer.precision import LossScale


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
        """The micro-batch's part of the batch's mean loss."""
        chunked = {"targets": micro_batch.targets} if self._recipe.loss_chunks > 1 else {}
        output = forward(micro_batch.inputs, **chunked)
        return loss_of(output, micro_batch.targets) / self._recipe.accumulation
