"""Optimizers over parameters that may live on different meshes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from frontrunner.evaluators.trainer import job


def build_optimizer(options: job.Optimizer, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW or SGD over `parameters`."""
    groups = _groups_by_mesh(parameters)
    if options.name == "sgd":
        return torch.optim.SGD(
            groups, lr=options.learning_rate, momentum=options.momentum, weight_decay=options.weight_decay
        )
    betas = (options.beta1, options.beta2)
    return torch.optim.AdamW(groups, lr=options.learning_rate, betas=betas, weight_decay=options.weight_decay)


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
