"""Optimizers over parameters that may live on different meshes."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from frontrunner.evaluators.trainer import job
from frontrunner.evaluators.trainer.gradients import local

ADAM_EPSILON = 1e-8
"""The default of torch.optim.AdamW."""


def build_optimizer(
    options: job.Optimizer, parameters: Sequence[nn.Parameter], *, state: job.OptimizerState = "fp32"
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
    """One group for each mesh: the optimizers' multi-tensor kernels take no mixture of meshes."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    return [{"params": group} for group in groups.values()]


class NarrowStateOptimizer(torch.optim.Optimizer):
    """AdamW or SGD with momentum whose states are kept in bf16, half of fp32's bytes; a step computes in fp32.

    One parameter's states at a time are widened, so that a step needs no second copy of them all. The update is that
    of `torch.optim.AdamW` (arXiv 1711.05101) and `torch.optim.SGD`, but for the rounding of what is kept.
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
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update(parameter, group["lr"])

    def _adamw(self, parameter: nn.Parameter, rate: float) -> None:
        options, state = self._options, self._state_of(parameter, "exp_avg", "exp_avg_sq")
        weight, gradient = local(parameter), local(cast("Tensor", parameter.grad))
        steps = int(state["step"].add_(1).item())
        mean, square = local(state["exp_avg"]).float(), local(state["exp_avg_sq"]).float()
        mean.lerp_(gradient, 1 - options.beta1)
        square.mul_(options.beta2).addcmul_(gradient, gradient, value=1 - options.beta2)
        weight.mul_(1 - rate * options.weight_decay)
        denominator = (square / (1 - options.beta2**steps)).sqrt_().add_(ADAM_EPSILON)
        weight.addcdiv_(mean, denominator, value=-rate / (1 - options.beta1**steps))
        local(state["exp_avg"]).copy_(mean)
        local(state["exp_avg_sq"]).copy_(square)

    def _sgd(self, parameter: nn.Parameter, rate: float) -> None:
        options, state = self._options, self._state_of(parameter, "momentum_buffer")
        weight, gradient = local(parameter), local(cast("Tensor", parameter.grad))
        gradient = gradient.add(weight, alpha=options.weight_decay)
        momentum = local(state["momentum_buffer"]).float().mul_(options.momentum).add_(gradient)
        weight.add_(momentum, alpha=-rate)
        local(state["momentum_buffer"]).copy_(momentum)

    def _state_of(self, parameter: nn.Parameter, *names: str) -> dict[str, Tensor]:
        """The parameter's states, zero before its first step."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state |= {name: torch.zeros_like(parameter, dtype=torch.bfloat16) for name in names}
        return state
