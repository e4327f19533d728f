"""Gradients' global norm and clipping, and optimizers, for parameters that may live on different meshes."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from frontrunner.evaluators.trainer import job


@torch.no_grad()
def settle(parameters: Sequence[nn.Parameter]) -> None:
    """Bring each gradient into its parameter's placements, which sums what tensor parallelism left as parts."""
    for parameter in parameters:
        gradient = parameter.grad
        if not isinstance(parameter, DTensor) or not isinstance(gradient, DTensor):
            continue
        if gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)


@torch.no_grad()
def squared_norm_share(parameters: Sequence[nn.Parameter], *, holders: int) -> Tensor:
    """Return this rank's share of the squared global norm: summed over all ranks, the shares give the whole.

    Args:
        parameters: with settled gradients.
        holders: the ranks that hold the same pipeline stage, copies * tensor_parallel. A parameter that is
            cut into n distinct shards is held holders / n times, and each holder counts that fraction of it.
    """
    # A few kernels for all parameters together: one and more a parameter would leave an accelerator waiting.
    gradients: dict[int, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            gradients.setdefault(_distinct_shards(parameter), []).append(local(parameter.grad))
    shares = [
        torch.stack(torch._foreach_norm(held, dtype=torch.float32)).square().sum() * (shards / holders)
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


def _distinct_shards(parameter: nn.Parameter) -> int:
    if not isinstance(parameter, DTensor):
        return 1
    placements = enumerate(parameter.placements)
    return math.prod(parameter.device_mesh.size(dim) for dim, place in placements if hasattr(place, "dim"))


ADAM_EPSILON = 1e-8
"""The default of torch.optim.AdamW."""
PART_ELEMENTS = 2**22
"""How many elements' states `NarrowStateOptimizer` widens at a time: 16 MiB for each state in fp32."""


def build_optimizer(
    options: job.Optimizer, parameters: Sequence[nn.Parameter], *, state: str = "fp32"
) -> torch.optim.Optimizer:
    """AdamW or SGD over `parameters`, with its states kept in the type `state`."""
    groups = _groups_by_mesh(parameters)
    if state == "bf16":
        return NarrowStateOptimizer(groups, options)
    if options.name == "sgd":
        return torch.optim.SGD(
            groups, lr=options.learning_rate, momentum=options.momentum, weight_decay=options.weight_decay
        )
    betas = (options.beta1, options.beta2)
    # One pass over each weight instead of one for each of the update's operations, which is all that an accelerator's
    # time there depends on. None is torch's own choice.
    fused = all(local(parameter).device.type != "cpu" for parameter in parameters) or None
    return torch.optim.AdamW(
        groups, lr=options.learning_rate, betas=betas, weight_decay=options.weight_decay, fused=fused
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Use `learning_rate` for every parameter from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def make_states(optimizer: torch.optim.Optimizer) -> None:
    """Have the optimizer make the states that it makes at its first step: a step of rate 0 changes no weight."""
    rates = [group["lr"] for group in optimizer.param_groups]
    set_learning_rate(optimizer, 0.0)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _groups_by_mesh(parameters: Sequence[nn.Parameter]) -> list[dict[str, Any]]:
    """Return one group for each mesh: the optimizers' multi-tensor kernels take no mixture of meshes."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    return [{"params": group} for group in groups.values()]


class NarrowStateOptimizer(torch.optim.Optimizer):
    """AdamW or SGD with momentum whose states are kept in bf16, half of fp32's bytes; a step computes in fp32.

    The states of a few parameters at a time are widened, so that a step needs no second copy of them all. The update
    is that of `torch.optim.AdamW` (arXiv 1711.05101) and `torch.optim.SGD`, but for the rounding of what is kept.
    """

    def __init__(self, groups: list[dict[str, Any]], options: job.Optimizer) -> None:
        super().__init__(groups, {"lr": options.learning_rate})
        self._options = options

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; a closure is not taken."""
        if closure is not None:
            raise ValueError("this optimizer takes no closure")
        update = self._adamw if self._options.name == "adamw" else self._sgd
        for group in self.param_groups:
            for parameters in _parts([parameter for parameter in group["params"] if parameter.grad is not None]):
                update(parameters, group["lr"])

    def _adamw(self, parameters: list[nn.Parameter], rate: float) -> None:
        options = self._options
        states = [self._state_of(parameter, "exp_avg", "exp_avg_sq") for parameter in parameters]
        weights, gradients = _local(parameters), local_gradients(parameters)
        steps = [int(state["step"].add_(1).item()) for state in states]
        kept_means, kept_squares = (_local([state[name] for state in states]) for name in ("exp_avg", "exp_avg_sq"))
        means, squares = _widened(kept_means), _widened(kept_squares)
        torch._foreach_lerp_(means, gradients, 1 - options.beta1)
        torch._foreach_mul_(squares, options.beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - options.beta2)
        torch._foreach_mul_(weights, 1 - rate * options.weight_decay)
        torch._foreach_copy_(kept_squares, squares)
        torch._foreach_div_(squares, [1 - options.beta2**step for step in steps])
        torch._foreach_sqrt_(squares)
        torch._foreach_add_(squares, ADAM_EPSILON)
        torch._foreach_addcdiv_(weights, means, squares, [-rate / (1 - options.beta1**step) for step in steps])
        torch._foreach_copy_(kept_means, means)

    def _sgd(self, parameters: list[nn.Parameter], rate: float) -> None:
        options = self._options
        states = [self._state_of(parameter, "momentum_buffer") for parameter in parameters]
        weights, kept = _local(parameters), _local([state["momentum_buffer"] for state in states])
        gradients = torch._foreach_add(local_gradients(parameters), weights, alpha=options.weight_decay)
        momenta = _widened(kept)
        torch._foreach_mul_(momenta, options.momentum)
        torch._foreach_add_(momenta, gradients)
        torch._foreach_add_(weights, momenta, alpha=-rate)
        torch._foreach_copy_(kept, momenta)

    def _state_of(self, parameter: nn.Parameter, *names: str) -> dict[str, Tensor]:
        """Return the parameter's states, zero before its first step."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state |= {name: torch.zeros_like(parameter, dtype=torch.bfloat16) for name in names}
        return state


def _parts(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield the parameters in lists of up to `PART_ELEMENTS` elements on this rank, a larger one by itself."""
    part: list[nn.Parameter] = []
    elements = 0
    for parameter in parameters:
        size = local(parameter).numel()
        if part and elements + size > PART_ELEMENTS:
            yield part
            part, elements = [], 0
        part.append(parameter)
        elements += size
    if part:
        yield part


def _local(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [local(tensor) for tensor in tensors]


def _widened(tensors: list[Tensor]) -> list[Tensor]:
    """fp32 copies."""
    wide = [torch.empty_like(tensor, dtype=torch.float32) for tensor in tensors]
    torch._foreach_copy_(wide, tensors)
    return wide
