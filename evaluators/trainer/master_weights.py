"""One whole model that computes in less than fp32: low-precision weights to compute with, fp32 ones to train.

FSDP2 does the same for sharded and replicated models. For one model on one rank its hooks and copies would be most of
what the trainer costs beside the model itself.
"""

from typing import cast

import torch
from torch import Tensor, nn

from frontrunner.evaluators.trainer.job import Precision
from frontrunner.evaluators.trainer.precision import COMPUTE_TYPES
from frontrunner.spaces.recipe import Recipe


def has_master_weights(recipe: Recipe, precision: Precision) -> bool:
    """Whether a rank holds the whole model and nothing else would make its low-precision weights."""
    return recipe.devices == 1 and precision != "fp32" and recipe.offload == "none"


class MasterWeights:
    """The fp32 weights of a model, which computes in another type from then on; both stay on the model's device."""

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        """Take over the weights of the materialised and initialised `model`."""
        self._named = [(name, nn.Parameter(weight.detach())) for name, weight in model.named_parameters()]
        model.to(COMPUTE_TYPES[precision])
        self._masters: list[Tensor] = [master for _, master in self._named]
        self._weights: list[Tensor] = list(model.parameters())

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The fp32 weights with the names of the model's."""
        return list(self._named)

    @torch.no_grad()
    def publish(self) -> None:
        """Round the fp32 weights to those that the model computes with."""
        torch._foreach_copy_(self._weights, self._masters)

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Add the gradients of one backward pass to those of the fp32 weights, in fp32."""
        gradients = [cast("Tensor", weight.grad) for weight in self._weights]
        if self._masters[0].grad is None:
            wide = [torch.empty_like(master) for master in self._masters]
            torch._foreach_copy_(wide, gradients)
            for master, gradient in zip(self._masters, wide, strict=True):
                master.grad = gradient
        else:
            for master, gradient in zip(self._masters, gradients, strict=True):
                cast("Tensor", master.grad).add_(gradient)
        for weight in self._weights:
            weight.grad = None
