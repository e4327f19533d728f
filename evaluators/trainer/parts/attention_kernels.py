"""Causal attention over whole sequences, and the kernels that compute it."""

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

# Compute capabilities on which torch prefers cuDNN's kernel, and the oldest cuDNN for which newer
# versions of torch do so.
_CAPABILITIES_FOR_CUDNN = ((9, 0), (10, 0))
_OLDEST_CUDNN = 91500


def _causal_mask(length: int, window: int | None, device: torch.device) -> Tensor:
    """Return whether each position (row) attends to each other one (column), [S, S].

    A window of `window` positions ends with the row's own position.
    """
    positions = torch.arange(length, device=device)
    distances = positions[:, None] - positions[None, :]
    return distances >= 0 if window is None else (distances >= 0) & (distances < window)


@cache
def _compiled_flex_attention() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False)


class DotProductAttention:
    """One layer's causal attention over whole sequences, without parameters.

    Plain attention is torch's `scaled_dot_product_attention`. Windows, capped scores and sinks are
    computed by FlexAttention on CUDA and HIP devices: it skips the positions outside of a window
    and keeps no scores. On other devices, and for `math` attention, a window is a mask, and capped
    scores and sinks keep S x S scores in fp32.
    """

    def __init__(self, part: GroupedAttention) -> None:
        self._window = part.window
        self._softcap = part.softcap
        self._only_math = part.kernel == "math"
        self._scale = (part.query_scalar or part.head_dim) ** -0.5
        self._block_mask: BlockMask | None = None

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """Return the values that each query attends to, weighted by its scores.

        Args:
            query: [B, H, S, d].
            key: [B, key-value heads, S, d]. H is a multiple of the number of key-value heads.
            value: As `key`.
            sinks: Scores [H] that the softmax of each head counts beside those of the positions.

        Returns:
            [B, H, S, d].
        """
        length, device = query.shape[2], query.device
        window = None if self._window is None or self._window >= length else self._window
        has_plain_scores = self._softcap is None and sinks is None
        if (
            device.type == "cuda"
            and not self._only_math
            and (window is not None or not has_plain_scores)
        ):
            return self._flex_attend(query, key, value, sinks)
        if query.shape[1] != key.shape[1] and (
            not has_plain_scores or needs_whole_groups(query.dtype, device)
        ):
            group_size = query.shape[1] // key.shape[1]
            key, value = (heads.repeat_interleave(group_size, dim=1) for heads in (key, value))
        if not has_plain_scores:
            mask = _causal_mask(length, window, device)
            return self._attend_with_scores(query, key, value, sinks, mask)
        window_mask = None if window is None else _causal_mask(length, window, device)
        with sdpa_kernel(SDPBackend.MATH) if self._only_math else nullcontext():
            return functional.scaled_dot_product_attention(
                query,
                key,
                value,
                window_mask,
                is_causal=window_mask is None,
                scale=self._scale,
                enable_gqa=query.shape[1] != key.shape[1],
            )

    def prepare(self, length: int, device: torch.device) -> None:
        """Make the mask of blocks for sequences of `length` tokens on `device`, if it is missing.

        `torch.compile` takes no function that changes an object, so this is called before a
        compiled layer runs.
        """
        window = length if self._window is None else self._window
        block_mask = self._block_mask
        if (
            block_mask is None
            or block_mask.seq_lengths != (length, length)
            or block_mask.kv_num_blocks.device != device
        ):

            def attends(_batch: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
                return (row >= column) & (row - column < window)

            self._block_mask = create_block_mask(attends, None, None, length, length, device=device)

    def _attend_with_scores(
        self, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, mask: Tensor
    ) -> Tensor:
        scores_dtype = torch.promote_types(query.dtype, torch.float32)
        scores = self._capped((query @ key.transpose(2, 3)).to(scores_dtype) * self._scale)
        scores = scores.masked_fill(~mask, -math.inf)
        if sinks is not None:
            column = sinks.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat((scores, column), dim=-1)
        return scores.softmax(dim=-1)[..., : len(mask)].to(value.dtype) @ value

    def _capped(self, scores: Tensor, *_position: Tensor) -> Tensor:
        """Cap scores; FlexAttention also passes batch, head, row and column of a score."""
        if self._softcap is None:
            return scores
        return self._softcap * torch.tanh(scores / self._softcap)

    def _flex_attend(
        self, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        attend = (
            cast("Callable[..., Any]", flex_attention)
            if torch.compiler.is_compiling()
            else _compiled_flex_attention()
        )
        self.prepare(query.shape[2], query.device)
        score_mod = None if self._softcap is None else self._capped
        options: dict[str, Any] = {
            "block_mask": self._block_mask,
            "scale": self._scale,
            "enable_gqa": query.shape[1] != key.shape[1],
        }
        if sinks is None:
            return cast("Tensor", attend(query, key, value, score_mod, **options))
        mixed, auxiliary = attend(
            query, key, value, score_mod, return_aux=AuxRequest(lse=True), **options
        )
        # With a sink the sum of exponentials is exp(lse) + exp(sink). The kernel has divided by
        # exp(lse) alone, so its output is multiplied by exp(lse) / (exp(lse) + exp(sink)).
        share = torch.sigmoid(auxiliary.lse - sinks.to(auxiliary.lse.dtype)[:, None])
        return cast("Tensor", mixed * share.to(mixed.dtype).unsqueeze(-1))


def attention_order(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which CUDA and HIP devices try attention kernels in a fixed order.

    The `math` kernel comes last. torch's own order differs between versions: from 2.9 on cuDNN
    comes first on compute capability 9.0 and 10.0, in later versions only with cuDNN 9.15 or newer,
    and torch has no cuDNN where it is built for CUDA below 12.9. Other devices keep torch's order.
    """
    if device.type != "cuda":
        return nullcontext()
    order = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    if torch.version.hip is None and torch.backends.cuda.cudnn_sdp_enabled():  # type: ignore[no-untyped-call]
        is_preferred = torch.cuda.get_device_capability(device) in _CAPABILITIES_FOR_CUDNN
        version: int = torch.backends.cudnn.version() or 0  # type: ignore[no-untyped-call]
        is_preferred = is_preferred and version >= _OLDEST_CUDNN
        order.insert(0 if is_preferred else 2, SDPBackend.CUDNN_ATTENTION)
    return sdpa_kernel(order, set_priority=True)


def attention_kernel(job: Job, device: torch.device) -> str | None:
    """Return the kernel that computes the job's attention, as "flash_attention" or "math".

    None means that torch does not say which kernel it chooses.
    """
    attention = job.model.attention
    if attention.kernel == "math":
        return "math"
    if job.model.has_special_attention(job.sequence_length):
        return "flex_attention"
    ranks = job.recipe.tensor_parallel * job.recipe.context_parallel
    dtype = COMPUTE_TYPES[job.precision]
    heads = attention.heads // ranks
    key_value_heads = max(1, attention.kv_heads // ranks)
    if needs_whole_groups(dtype, device):
        key_value_heads = heads
    with suppress(Exception):  # torch's function for the choice is private
        # The values of latent attention are padded to the width of its queries.
        query, key, value = (
            torch.empty(
                (1, count, job.sequence_length, attention.head_dim),
                dtype=dtype,
                device=device,
                requires_grad=True,
            )
            for count in (heads, key_value_heads, key_value_heads)
        )
        is_causal = True
        choice = torch._fused_sdp_choice(
            query, key, value, None, 0.0, is_causal, enable_gqa=heads != key_value_heads
        )
        return str(SDPBackend(choice).name.lower())
    return None


def needs_whole_groups(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether each query head needs its own copy of its group's key and value.

    In fp32 on CUDA no kernel without S x S scores takes groups: flash attention takes 16-bit types
    only, and the efficient kernel takes no groups.
    """
    return dtype == torch.float32 and device.type == "cuda"
