"""Arithmetic in less than fp32: torch's types for it, the scaled loss of fp16, and fp32 master weights of one model.

fp16 keeps magnitudes down to 6e-8 only, so small gradients would become zero. The loss is multiplied by a factor
before the backward pass and gradients are divided by it afterwards (arXiv 1710.03740). A step in which any gradient
of any rank is not finite changes no weight and halves the factor; a long run without one doubles it.

FSDP2 keeps master weights for sharded and replicated models. For one model on one rank its hooks and copies would be
most of the trainer's cost, so that `MasterWeights` does it there.
"""

from typing import cast

import torch
from torch import Tensor, nn

from frontrunner.evaluators.trainer.job import Precision
from frontrunner.spaces.recipe import Recipe

COMPUTE_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""In what type each precision computes and passes activations between stages; master weights are fp32 in all."""

# The constants of torch.amp.GradScaler.
FIRST_FACTOR = 2.0**16
STEPS_BEFORE_GROWTH = 2000


class LossScale:
    """The loss's factor, the same on every rank as long as every rank updates it alike; 1 for other precisions."""

    def __init__(self, precision: Precision, device: torch.device) -> None:
        self.device = device
        self.is_active = precision == "fp16"
        self._factor = torch.tensor([FIRST_FACTOR if self.is_active else 1.0], device=device)
        self._steps_since_change = torch.zeros(1, dtype=torch.int64, device=device)

    @property
    def factor(self) -> float:
        """What the loss is multiplied by: a power of two, so that scaling rounds nothing."""
        return float(self._factor.item())

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the scalar to run the backward pass from."""
        return loss * self._factor.squeeze() if self.is_active else loss

    def unscaled(self, loss: Tensor) -> Tensor:
        """Return the loss that `scaled` was given."""
        return loss / self._factor.squeeze() if self.is_active else loss

    @torch.no_grad()
    def unscale_gradients(self, gradients: list[Tensor]) -> Tensor:
        """Divide this rank's local `gradients` by the factor, in place; returns 1 where one is not finite, else 0."""
        found = torch.zeros(1, device=gradients[0].device)
        inverse = self._factor.reciprocal().to(gradients[0].device)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
        return found.squeeze()

    @torch.no_grad()
    def update(self, *, overflowed: bool) -> None:
        """Set the factor of the next step. Every rank must pass the same."""
        if overflowed:
            self._factor /= 2
            self._steps_since_change.zero_()
            return
        self._steps_since_change += 1
        if self._steps_since_change.item() >= STEPS_BEFORE_GROWTH:
            self._factor *= 2
            self._steps_since_change.zero_()

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a continued run must find again; empty where there is no scaling."""
        if not self.is_active:
            return {}
        return {"factor": self._factor, "steps_since_change": self._steps_since_change}


def has_master_weights(recipe: Recipe, precision: Precision) -> bool:
    """Return whether a rank holds the whole model and nothing else would make its low-precision weights."""
    return recipe.devices == 1 and precision != "fp32" and recipe.offload == "none"


class MasterWeights:
    """The fp32 weights of a model, which computes in another type from then on; both stay on the model's device."""

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        """Take over the weights of the materialized and initialized `model`."""
        self._named = [(name, nn.Parameter(weight.detach())) for name, weight in model.named_parameters()]
        model.to(COMPUTE_TYPES[precision])
        self._masters: list[Tensor] = [master for _, master in self._named]
        self._weights: list[Tensor] = list(model.parameters())

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return the fp32 weights with the names of the model's."""
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
