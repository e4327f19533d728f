"""Activations in the host's memory: moved there after the forward pass, brought back for the backward pass."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor


def activations_on_host(parameters: Iterable[nn.Parameter]) -> saved_tensors_hooks:
    """Where a forward pass must run so that what it keeps for the backward pass lies in the host's memory.

    The `parameters` that the forward pass uses, and views of them, stay where they are: they need no second copy.
    Under FSDP2 they must be the gathered ones, as they are inside a module's forward.
    """
    weights = {_storage(parameter) for parameter in parameters}

    def to_host(tensor: Tensor) -> tuple[Tensor, torch.device | None]:
        if _storage(tensor) in weights:
            return tensor, None
        host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.device.type != "cpu")
        return host.copy_(tensor, non_blocking=True), tensor.device

    def to_device(kept: tuple[Tensor, torch.device | None]) -> Any:
        tensor, device = kept
        return tensor if device is None else tensor.to(device, non_blocking=True)

    return saved_tensors_hooks(to_host, to_device)


def _storage(tensor: Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage().data_ptr()
