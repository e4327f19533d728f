"""Arithmetic in less than fp32: torch's types for it, and the scaled loss that fp16 needs.

fp16 keeps magnitudes down to 6e-8 only, so small gradients would become zero. The loss is multiplied by a factor
before the backward pass and gradients are divided by it afterwards (arXiv 1710.03740). A step in which any gradient
of any rank is not finite changes no weight and halves the factor; a long run without one doubles it.
"""

import torch
from torch import Tensor

from frontrunner.evaluators.trainer.job import Precision

COMPUTE_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""In what type each precision computes and passes activations between stages; master weights are fp32 in all."""

# The constants of torch.amp.GradScaler.
FIRST_FACTOR = 2.0**16
STEPS_BEFORE_GROWTH = 2000


class LossScale:
    """The loss's factor, the same on every rank as long as every rank tells it the same; 1 for other precisions."""

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
        """The scalar to run the backward pass from."""
        return loss * self._factor.squeeze() if self.is_active else loss

    def unscaled(self, loss: Tensor) -> Tensor:
        """The loss that `scaled` was given."""
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
        """The tensors that a continued run must find again; empty where there is no scaling."""
        if not self.is_active:
            return {}
        return {"factor": self._factor, "steps_since_change": self._steps_since_change}
