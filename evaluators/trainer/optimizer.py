"""Gradients' scale, global norm and clipping, and optimizers, for parameters that may live on
different meshes.

fp16 keeps magnitudes down to 6e-8 only: the loss is multiplied by a factor before the backward pass
and gradients are divided by it afterwards (arXiv 1710.03740). A step in which a gradient is not
finite changes no weight and halves the factor; a long run without one doubles it.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from frontrunner.evaluators.trainer import job

COMPUTE_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""In what type each precision computes and passes activations between stages; master weights are
fp32 in all.
"""
FIRST_FACTOR = 2.0**16
STEPS_BEFORE_GROWTH = 2000
PART_ELEMENTS = 2**22
"""How many elements' states `NarrowStateOptimizer` widens at a time: 16 MiB for each state in
fp32.
"""


class LossScale:
    """The loss's factor, the same on every rank as long as every rank updates it alike; 1 for other
    precisions.
    """

    def __init__(self, precision: job.Precision, device: torch.device) -> None:
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
        """Divide this rank's local `gradients` by the factor, in place; returns 1 where one is not
        finite, else 0.
        """
        found = torch.zeros(1, device=gradients[0].device)
        inverse = self._factor.reciprocal().to(gradients[0].device)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
        return found.squeeze()

    @torch.no_grad()
    def update(self, *, overflowed: bool) -> None:
        """Set the factor of the next step. Every rank must pass the same."""
        self._steps_since_change += 1
        if overflowed or self._steps_since_change.item() >= STEPS_BEFORE_GROWTH:
            self._factor *= 0.5 if overflowed else 2.0
            self._steps_since_change.zero_()

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a continued run must find again; empty where there is no
        scaling.
        """
        if not self.is_active:
            return {}
        return {"factor": self._factor, "steps_since_change": self._steps_since_change}


@torch.no_grad()
def settle(parameters: Sequence[nn.Parameter]) -> None:
    """Bring each gradient into its parameter's placements, which sums what tensor parallelism left
    as parts.
    """
    for parameter in parameters:
        gradient, placements = parameter.grad, getattr(parameter, "placements", None)
        if isinstance(gradient, DTensor) and gradient.placements != placements:
            parameter.grad = gradient.redistribute(placements=placements)


@torch.no_grad()
def squared_norm_share(parameters: Sequence[nn.Parameter], *, holders: int) -> Tensor:
    """Return this rank's share of the squared global norm: summed over all ranks, the shares give
    the whole.

    Of `holders` ranks with the same pipeline stage holders / n hold each of the n shards of a
    parameter.
    """
    # A few kernels for all parameters together: one and more a parameter would leave an accelerator
    # waiting.
    gradients: dict[int, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            shards = 1
            if isinstance(parameter, DTensor):
                sizes, placements = parameter.device_mesh.shape, parameter.placements
                shards = math.prod(
                    size for size, one in zip(sizes, placements, strict=True) if hasattr(one, "dim")
                )
            gradients.setdefault(shards, []).append(local(parameter.grad))
    shares = [
        torch.stack(torch._foreach_norm(held, dtype=torch.float32)).square().sum()
        * (shards / holders)
        for shards, held in gradients.items()
    ]
    return torch.stack(shares).sum()


@torch.no_grad()
def clip(parameters: Sequence[nn.Parameter], *, norm: Tensor, largest: float) -> None:
    """Scale all gradients by min(1, largest / norm), as `torch.nn.utils.clip_grad_norm_` does."""
    factor = (largest / (norm + 1e-6)).clamp(max=1.0)
    gradients = local_gradients(parameters)
    # Gradients may lie in the host's memory.
    torch._foreach_mul_(gradients, factor.to(gradients[0].device))


def local_gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return this rank's parts of the gradients; writing into them writes into the gradients."""
    return [local(parameter.grad) for parameter in parameters if parameter.grad is not None]


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def build_optimizer(
    options: job.Optimizer, parameters: Sequence[nn.Parameter], *, state: str = "fp32"
) -> torch.optim.Optimizer:
    """AdamW or SGD over `parameters`, with its states kept in the type `state`."""
    # One group for each mesh: the optimizers' multi-tensor kernels take no mixture of meshes.
    by_mesh: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        by_mesh.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    groups = [{"params": group} for group in by_mesh.values()]
    if state == "bf16":
        return NarrowStateOptimizer(groups, options)
    common: dict[str, Any] = {"lr": options.learning_rate, "weight_decay": options.weight_decay}
    if options.name == "sgd":
        return torch.optim.SGD(groups, momentum=options.momentum, **common)
    # One pass over each weight instead of one for each of the update's operations. SGD has none
    # over DTensors.
    common |= {"betas": (options.beta1, options.beta2), "eps": options.epsilon}
    return torch.optim.AdamW(groups, fused=True, **common)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Use `learning_rate` for every parameter from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def make_states(optimizer: torch.optim.Optimizer) -> None:
    """Have the optimizer make the states that it makes at its first step: a step of rate 0 changes
    no weight.
    """
    rate = optimizer.param_groups[0]["lr"]
    set_learning_rate(optimizer, 0.0)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    set_learning_rate(optimizer, rate)


class NarrowStateOptimizer(torch.optim.Optimizer):
    """AdamW or SGD with momentum whose states are in bf16; torch's update runs on a few at a time,
    in fp32.
    """

    def __init__(self, groups: list[dict[str, Any]], options: job.Optimizer) -> None:
        super().__init__(groups, {"lr": options.learning_rate})
        self._options = options
        self._kept = ("exp_avg", "exp_avg_sq") if options.name == "adamw" else ("momentum_buffer",)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 - torch's signature
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parts = list(
                _parts([parameter for parameter in group["params"] if parameter.grad is not None])
            )
            # The same room for every part: on a host, touching fresh memory takes longer than the
            # update.
            most = max((_elements(part) for part in parts), default=0)
            room = [
                torch.empty(most, dtype=torch.float32, device=local(group["params"][0]).device)
                for _ in self._kept
            ]
            for parameters in parts:
                self._update(parameters, group["lr"], room)

    def _update(self, parameters: list[nn.Parameter], rate: float, room: list[Tensor]) -> None:
        states = [self._state_of(parameter) for parameter in parameters]
        weights, gradients = (
            [local(parameter) for parameter in parameters],
            local_gradients(parameters),
        )
        steps: list[Tensor] = [state["step"] for state in states]
        narrow = [[local(state[name]) for state in states] for name in self._kept]
        sizes = [weight.numel() for weight in weights]
        flat = [torch.split_with_sizes(one[: sum(sizes)], sizes) for one in room]
        wide = [
            [piece.view_as(weight) for piece, weight in zip(one, weights, strict=True)]
            for one in flat
        ]
        for target, source in zip(wide, narrow, strict=True):
            torch._foreach_copy_(target, source)
        options = self._options
        common: dict[str, Any] = {
            "lr": rate,
            "weight_decay": options.weight_decay,
            "maximize": False,
            "fused": True,
        }
        if options.name == "adamw":
            common |= {
                "beta1": options.beta1,
                "beta2": options.beta2,
                "eps": options.epsilon,
                "amsgrad": False,
            }
            adamw(weights, gradients, wide[0], wide[1], [], steps, **common)
        else:
            common |= {"momentum": options.momentum, "dampening": 0.0, "nesterov": False}
            sgd(weights, gradients, list[Tensor | None](wide[0]), **common)
        for target, source in zip(narrow, wide, strict=True):
            torch._foreach_copy_(target, source)

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=local(parameter).device)
            state |= {
                name: torch.zeros_like(parameter, dtype=torch.bfloat16) for name in self._kept
            }
        return state


def _elements(parameters: Sequence[nn.Parameter]) -> int:
    return sum(local(parameter).numel() for parameter in parameters)


def _parts(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield the parameters in lists of about `PART_ELEMENTS` elements on this rank."""
    ends = accumulate(local(parameter).numel() for parameter in parameters)
    for _, part in groupby(
        zip(parameters, ends, strict=True), key=lambda pair: pair[1] // PART_ELEMENTS
    ):
        yield [parameter for parameter, _ in part]
