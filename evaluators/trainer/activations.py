"""Memory of activations: computed again in the backward pass, or kept in the host's memory."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

Checkpointed = Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]

# Matrix products and attention are the costly ones; the collectives are kept because recomputing is communication.
# Names, because a build of torch has only the attention kernels of its devices.
_KEPT_OPERATORS = (
    ("aten", "mm"),
    ("aten", "_scaled_dot_product_flash_attention"),
    ("aten", "_scaled_dot_product_flash_attention_for_cpu"),
    ("aten", "_scaled_dot_product_efficient_attention"),
    ("aten", "_scaled_dot_product_cudnn_attention"),
    ("aten", "_scaled_dot_product_fused_attention_overrideable"),
    ("_c10d_functional", "reduce_scatter_tensor"),
    ("_c10d_functional", "all_to_all_single"),
)


def checkpointed(recompute: str) -> Checkpointed | None:
    """Return how a block is to be run so that it keeps only what `recompute` says; None keeps everything."""
    if recompute == "none":
        return None
    if recompute == "full":
        return recomputed
    return partial(_selective, kept=_kept_operators())


def recomputed(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`function(*inputs)`, of which only the inputs are kept: the backward pass calls the function again."""
    return cast("Tensor", checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False))


def _selective(function: Callable[[Tensor], Tensor], x: Tensor, *, kept: frozenset[Any]) -> Tensor:
    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        pair = create_selective_checkpoint_contexts(partial(_policy, kept=kept))  # type: ignore[no-untyped-call]
        return cast("tuple[AbstractContextManager[Any], AbstractContextManager[Any]]", pair)

    return cast("Tensor", checkpoint(function, x, use_reentrant=False, preserve_rng_state=False, context_fn=contexts))


def _policy(_context: Any, operator: Any, *_args: Any, kept: frozenset[Any], **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE


def _kept_operators() -> frozenset[Any]:
    found = set()
    for namespace, name in _KEPT_OPERATORS:
        packet = getattr(getattr(torch.ops, namespace), name, None)
        if packet is not None:
            found.add(packet.default)
    return frozenset(found)


def activations_on_host(parameters: Iterable[nn.Parameter]) -> saved_tensors_hooks:
    """Return where a forward pass must run so that what it keeps for the backward pass lies in the host's memory.

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
