"""Causal attention over whole sequences: the kernels, and which of them a device takes."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)

from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.optimizer import COMPUTE_TYPES
from frontrunner.spaces.model.attention import GroupedAttention

_CUDNN_FIRST, _LEAST_CUDNN = ((9, 0), (10, 0)), 91500


def _allowed(length: int, window: int | None, device: torch.device) -> Tensor:
    """Whether a position (row) attends to another, of a `window` that ends with itself: [S, S]."""
    apart = torch.arange(length, device=device)
    apart = apart[:, None] - apart[None, :]
    return apart >= 0 if window is None else (apart >= 0) & (apart < window)


@cache
def _flex_attention() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False)


class Mixer:
    """One layer's causal attention over whole sequences, without parameters.

    Plain forms are torch's `scaled_dot_product_attention`. Windows, capped scores and sinks are
    FlexAttention's on CUDA and HIP devices, which skips what a window leaves out and keeps no
    scores; elsewhere, and for `math` attention, a window is a mask, and the others keep S x S
    scores, in fp32.
    """

    def __init__(self, part: GroupedAttention) -> None:
        self._window, self._softcap = part.window, part.softcap
        self._only_math = part.kernel == "math"
        self._scale = (part.query_scalar or part.head_dim) ** -0.5
        self._blocks: BlockMask | None = None

    def mix(self, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None) -> Tensor:
        """[B, H, S, d] each, keys and values of fewer heads, and sinks [H] -> [B, H, S, d]."""
        length, device = query.shape[2], query.device
        window = None if self._window is None or self._window >= length else self._window
        has_plain_scores = self._softcap is None and sinks is None
        if (
            device.type == "cuda"
            and not self._only_math
            and (window is not None or not has_plain_scores)
        ):
            return self._in_blocks(query, key, value, sinks)
        if query.shape[1] != key.shape[1] and (
            not has_plain_scores or needs_whole_groups(query.dtype, device)
        ):
            shared_by = query.shape[1] // key.shape[1]
            key, value = (heads.repeat_interleave(shared_by, dim=1) for heads in (key, value))
        if has_plain_scores:
            mask = None if window is None else _allowed(length, window, device)
            form: dict[str, Any] = {
                "enable_gqa": query.shape[1] != key.shape[1],
                "scale": self._scale,
            }
            with sdpa_kernel(SDPBackend.MATH) if self._only_math else nullcontext():
                return functional.scaled_dot_product_attention(
                    query, key, value, mask, is_causal=mask is None, **form
                )
        scores = self._capped(
            (query @ key.transpose(2, 3)).to(torch.promote_types(query.dtype, torch.float32))
            * self._scale
        )
        scores = scores.masked_fill(~_allowed(length, window, device), -math.inf)
        if sinks is not None:
            column = sinks.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat((scores, column), dim=-1)
        return scores.softmax(dim=-1)[..., :length].to(value.dtype) @ value

    def prepare(self, length: int, device: torch.device) -> None:
        """Make what depends on no tensor: `torch.compile` takes no function that changes what lies
        outside it.
        """
        window = length if self._window is None else self._window
        blocks = self._blocks
        if (
            blocks is None
            or blocks.seq_lengths != (length, length)
            or blocks.kv_num_blocks.device != device
        ):

            def allowed(_batch: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
                return (row >= column) & (row - column < window)

            self._blocks = create_block_mask(allowed, None, None, length, length, device=device)

    def _capped(self, scores: Tensor, *_place: Tensor) -> Tensor:
        return (
            scores if self._softcap is None else self._softcap * torch.tanh(scores / self._softcap)
        )

    def _in_blocks(self, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
        attend = (
            cast("Callable[..., Any]", flex_attention)
            if torch.compiler.is_compiling()
            else _flex_attention()
        )
        self.prepare(query.shape[2], query.device)
        capped = None if self._softcap is None else self._capped
        form: dict[str, Any] = {"block_mask": self._blocks, "scale": self._scale}
        form["enable_gqa"] = query.shape[1] != key.shape[1]
        if sinks is None:
            return cast("Tensor", attend(query, key, value, capped, **form))
        mixed, besides = attend(query, key, value, capped, return_aux=AuxRequest(lse=True), **form)
        share = torch.sigmoid(
            besides.lse - sinks.to(besides.lse.dtype)[:, None]
        )  # of a sum that the sink has joined
        return cast("Tensor", mixed * share.to(mixed.dtype).unsqueeze(-1))


def attention_order(device: torch.device) -> AbstractContextManager[Any]:
    """Return the context in which CUDA and HIP devices try the kernels of attention in a stated
    order, math last.

    torch's own order differs between versions: from 2.9 on cuDNN comes first on compute capability
    9.0 and 10.0, in later ones only with cuDNN 9.15 or newer, and without cuDNN where it is built
    for CUDA below 12.9. Other devices keep torch's order.
    """
    if device.type != "cuda":
        return nullcontext()
    order = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    if torch.version.hip is None and torch.backends.cuda.cudnn_sdp_enabled():  # type: ignore[no-untyped-call]
        is_preferred = torch.cuda.get_device_capability(device) in _CUDNN_FIRST
        version: int = torch.backends.cudnn.version() or 0  # type: ignore[no-untyped-call]
        is_preferred = is_preferred and version >= _LEAST_CUDNN
        order.insert(0 if is_preferred else 2, SDPBackend.CUDNN_ATTENTION)
    return sdpa_kernel(order, set_priority=True)


def attention_kernel(job: Job, device: torch.device) -> str | None:
    """Return the kernel that torch chooses for the job's attention, as "flash_attention" or
    "math".
    """
    attention = job.model.attention
    if attention.kernel == "math":
        return "math"
    if job.model.has_special_attention(job.sequence_length):
        return "flex_attention"
    share = job.recipe.tensor_parallel * job.recipe.context_parallel
    heads, dtype = attention.heads // share, COMPUTE_TYPES[job.precision]
    groups = max(1, attention.kv_heads // share)
    if needs_whole_groups(dtype, device):
        groups = heads
    with suppress(Exception):  # torch's name for it is private
        # Latent attention's values are padded to the width of its queries.
        shapes = (
            (1, number, job.sequence_length, attention.head_dim)
            for number in (heads, groups, groups)
        )
        query, key, value = (
            torch.empty(shape, dtype=dtype, device=device, requires_grad=True) for shape in shapes
        )
        causal = True
        choice = torch._fused_sdp_choice(
            query, key, value, None, 0.0, causal, enable_gqa=heads != groups
        )
        return str(SDPBackend(choice).name.lower())
    return None


def needs_whole_groups(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether each query head needs a key of its own for a kernel that holds no S x S
    scores: flash attention takes 16 bits only, and the efficient kernel no groups.
    """
    return dtype == torch.float32 and device.type == "cuda"
