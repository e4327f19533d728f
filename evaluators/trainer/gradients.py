"""The global gradient norm and clipping, right for every mixture of sharded and replicated parameters."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


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
    """This rank's share of the squared global norm: summed over all ranks, the shares give the whole.

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
    """This rank's parts of the gradients; writing into them writes into the gradients."""
    return [local(parameter.grad) for parameter in parameters if parameter.grad is not None]


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _distinct_shards(parameter: nn.Parameter) -> int:
    if not isinstance(parameter, DTensor):
        return 1
    placements = enumerate(parameter.placements)
    return math.prod(parameter.device_mesh.size(dim) for dim, place in placements if hasattr(place, "dim"))
