"""A pre-norm GPT, whole or one pipeline stage of it, in plain torch modules, and its first weights.

Names of parameters are those of the whole model in both cases (`blocks.7.attention.query.weight`),
so that seeding and checkpoints do not depend on the stages. Shapes below: B sequences, S tokens, H
heads, D hidden width, V vocabulary.

First weights are the same under every parallel form: each parameter is drawn in blocks of rows,
from a generator that is seeded for each by the job's seed, the name and the row, and a rank draws
the blocks that it holds some of. Devices of different kinds draw different values. GPT-2's rule:
normal with deviation 0.02, the projections that add to the residual stream scaled by 1 / sqrt(2 *
layers); norms start at 1, biases and sinks at 0.
"""

import hashlib
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import SAC_IGNORED_OPS, checkpoint, create_selective_checkpoint_contexts

from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.layout import ContextRanks
from frontrunner.evaluators.trainer.optimizer import COMPUTE_TYPES
from frontrunner.spaces.model import Model
from frontrunner.spaces.recipe import Recipe

DEVIATION = 0.02
NEUTRAL = Recipe(micro_batch_seqs=1, accumulation=1, devices=1)
_BLOCK_ELEMENTS = 2**18
_WIDENED_LOGITS = 2**24
_RESIDUAL_PROJECTIONS = (
    "attention.output.weight",
    "feed_forward.down.weight",
    "experts.down.weight",
    "shared.down.weight",
)
_CUDNN_FIRST, _LEAST_CUDNN = ((9, 0), (10, 0)), 91500
# Matrix products and attention are the costly ones; the collectives are kept because recomputing is
# communication. Names, because a build of torch has only the attention kernels of its devices.
_KEPT_BY_SELECTIVE_RECOMPUTE = (
    ("aten", "mm"),
    ("aten", "addmm"),
    ("aten", "_grouped_mm"),
    ("aten", "_scaled_dot_product_flash_attention"),
    ("aten", "_scaled_dot_product_flash_attention_for_cpu"),
    ("aten", "_scaled_dot_product_efficient_attention"),
    ("aten", "_scaled_dot_product_cudnn_attention"),
    ("aten", "_scaled_dot_product_fused_attention_overrideable"),
    ("_c10d_functional", "reduce_scatter_tensor"),
    ("_c10d_functional", "all_to_all_single"),
)

# Where FSDP2 runs a module within a layer again it opens more ranges for torch's profiler than the
# first time.
SAC_IGNORED_OPS.update(
    (
        torch.ops.profiler._record_function_enter_new.default,
        torch.ops.profiler._record_function_exit._RecordFunction,
    )
)

Transform = Callable[[Tensor], Tensor]


def recomputed(function: Callable[..., Tensor], *inputs: Tensor, **options: Any) -> Tensor:
    """Return `function(*inputs)`, of which only the inputs are kept: the backward pass calls the
    function again.
    """
    return cast(
        "Tensor",
        checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False, **options),
    )


@cache
def _kept_operators() -> tuple[torch._ops.OpOverload, ...]:
    """Return the operators whose results selective recompute keeps, of those that torch has."""
    packets = [
        getattr(getattr(torch.ops, space), name, None)
        for space, name in _KEPT_BY_SELECTIVE_RECOMPUTE
    ]
    return tuple(packet.default for packet in packets if packet is not None)


def _recomputing(recompute: str) -> Callable[[Transform, Tensor], Tensor] | None:
    """Return how to run a block so that it keeps only what `recompute` says; None keeps
    everything.
    """
    if recompute != "selective":
        return None if recompute == "none" else recomputed
    kept = list(_kept_operators())
    return partial(recomputed, context_fn=partial(create_selective_checkpoint_contexts, kept))


class _Moved:
    """A storage that a layer has saved: on the host, and on the device until it is there and again
    for its use.
    """

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.device: Tensor | None = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(
            storage
        )
        pinned = storage.device.type != "cpu"
        self.host = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=pinned)


@dataclass(frozen=True)
class _Saved:
    """A tensor that autograd keeps: a view of what its layer has moved."""

    layer: "_Layer"
    moved: _Moved
    dtype: torch.dtype
    place: tuple[int | torch.SymInt, torch.Size, tuple[int, ...]]


class _Layer:
    """What one call of one layer has saved. Autograd's nodes keep it, and what it moved, as long as
    they need them.
    """

    def __init__(self, previous: "_Layer | None") -> None:
        self.previous: Callable[[], _Layer | None] = (
            (lambda: None) if previous is None else weakref.ref(previous)
        )
        self.leaving: dict[
            tuple[int, int], _Moved
        ] = {}  # not to be freed on the device before the copies are made
        self.moved: list[weakref.ref[_Moved]] = []
        self.copied: Any = None  # events; None on a CPU
        self.fetched: Any = None
        self.is_fetched = False


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)


class HostActivations:
    """Moves what layers save for the backward pass into the host's memory, each storage once, and
    back.

    Copies run on streams of their own beside the computation: those of a layer while the next one
    runs, in the forward pass until its end at the latest, so that the device holds two layers'
    activations at most. Tensors that are given to `layer` or `leave` stay on the device, and so do
    views of them: parameters, and what outlives the layer.
    """

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._out: Any = None
        self._back: Any = None
        self._last: _Layer | None = None
        self._staying: set[int] = set()  # addresses of the current layer's
        self._pack: Any = None  # the current layer's

    @contextmanager
    def layer(self, device: torch.device, staying: Iterable[Tensor]) -> Iterator[None]:
        """Run a layer's forward pass on `device` inside."""
        module = torch.get_device_module(device)
        if self._out is None:
            self._device, self._out, self._back = device, module.Stream(), module.Stream()
        layer, before = _Layer(self._last), self._last

        def pack(tensor: Tensor) -> Tensor | _Saved:
            if (
                isinstance(tensor, DTensor)
                or tensor.device != device
                or tensor.untyped_storage().data_ptr() in self._staying
            ):
                return tensor
            storage = tensor.untyped_storage()
            key = storage.data_ptr(), tensor._version
            if key not in layer.leaving:
                moved = layer.leaving[key] = _Moved(storage)
                layer.moved.append(weakref.ref(moved))
                self._out.wait_stream(module.current_stream())
                with module.stream(self._out):
                    _copy(moved.host, cast("Tensor", moved.device))
            place = tensor.storage_offset(), tensor.shape, tensor.stride()
            return _Saved(layer, layer.leaving[key], tensor.dtype, place)

        self._pack = pack
        with self.leave(staying), saved_tensors_hooks(pack, self._unpack):
            yield
        layer.copied, self._last = self._out.record_event(), layer
        if before is not None and before.leaving:
            module.current_stream().wait_event(before.copied)
            for moved in before.leaving.values():
                moved.device = None
            before.leaving.clear()

    @contextmanager
    def leave(self, staying: Iterable[Tensor]) -> Iterator[None]:
        """Leave these tensors of the layer on the device inside.

        FSDP gathers a nested unit's parameters for that unit's forward pass and frees them behind
        it, so that only the unit can name them, and another tensor may get their address later.
        """
        there = {
            (tensor.to_local() if isinstance(tensor, DTensor) else tensor)
            .untyped_storage()
            .data_ptr()
            for tensor in staying
        }
        before, self._staying = self._staying, self._staying | there
        try:
            yield
        finally:
            self._staying = before

    def selective_contexts(self) -> tuple[TorchDispatchMode, TorchDispatchMode]:
        """Return the contexts of a layer's forward pass and of its recomputation under selective
        recompute.

        As torch's `create_selective_checkpoint_contexts`, whose cache no hook sees, but results are
        kept where everything goes that the layer saves.
        """
        kept = deque[tuple[torch._ops.OpOverload, Any]]()
        return _KeepingMode(kept, self._pack), _ReturningMode(kept, self._unpack)

    def _unpack(self, saved: Tensor | _Saved) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        layer, stream = saved.layer, torch.get_device_module(self._device).current_stream()
        self._fetch(layer)
        stream.wait_event(layer.fetched)
        # What has not left the device yet stays there, and is freed after its use
        layer.leaving.clear()
        if (previous := layer.previous()) is not None:
            self._fetch(previous)
        storage = cast("Tensor", saved.moved.device).untyped_storage()
        return torch.empty(0, dtype=saved.dtype, device=self._device).set_(storage, *saved.place)

    def _fetch(self, layer: _Layer) -> None:
        """Start to bring back what a layer has moved, if that has not been done."""
        if layer.is_fetched:
            return
        module = torch.get_device_module(self._device)
        # The memory is the computation's, which has waited for what has left: the copies wait for
        # what it used there.
        missing = [
            moved for one in layer.moved if (moved := one()) is not None and moved.device is None
        ]
        for moved in missing:
            moved.device = torch.empty_like(moved.host, device=self._device)
        self._back.wait_stream(module.current_stream())
        with module.stream(self._back):
            for moved in missing:
                _copy(cast("Tensor", moved.device), moved.host)
        layer.fetched, layer.is_fetched = self._back.record_event(), True


class _KeepingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Forward pass that keeps what the costly operators return, as `pack` makes it."""

    def __init__(
        self,
        kept: deque[tuple[torch._ops.OpOverload, Any]],
        pack: Callable[[Tensor], Tensor | _Saved],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept, self._pack = kept, pack

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _kept_operators():
            if func.namespace == "_c10d_functional":  # a copy does not wait for a collective
                result = torch.ops._c10d_functional.wait_tensor(result)
            self._kept.append((func, tree_map_only(Tensor, self._packed, result)))
        return result

    def _packed(self, tensor: Tensor) -> Tensor | _Saved:
        return self._pack(tensor.detach())


class _ReturningMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Recomputation that takes what the costly operators returned from `kept`, in their order."""

    def __init__(
        self,
        kept: deque[tuple[torch._ops.OpOverload, Any]],
        unpack: Callable[[Tensor | _Saved], Tensor],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept, self._unpack = kept, unpack

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func not in _kept_operators():
            return func(*args, **(kwargs or {}))
        then, result = self._kept.popleft()
        if then is not func:
            raise RuntimeError(f"the recomputation runs {func}, the forward pass {then}")
        return tree_map_only((Tensor, _Saved), self._unpack, result)


class _RowsCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy, of which no more than the logits and their gradient in the same type are
    held at a time.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(logits, targets)
        rows = max(1, _WIDENED_LOGITS // logits.shape[1])
        pieces = zip(torch.split(logits, rows), torch.split(targets, rows), strict=True)
        sums = [
            functional.cross_entropy(piece.float(), target, reduction="sum")
            for piece, target in pieces
        ]
        return torch.stack(sums).sum() / len(targets)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        logits, targets = ctx.saved_tensors
        found, rows = torch.empty_like(logits), max(1, _WIDENED_LOGITS // logits.shape[1])
        scale = gradients[0] / len(targets)
        split = (torch.split(one, rows) for one in (logits, targets, found))
        for piece, target, out in zip(*split, strict=True):
            wide = torch.softmax(piece, dim=-1, dtype=torch.float32)
            wide.scatter_add_(1, target[:, None], wide.new_full((len(target), 1), -1.0))
            out.copy_(wide.mul_(scale))
        return found, None


def mean_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all tokens, in fp32, of logits [B, S, V] against token ids [B, S].

    Logits that are split over the vocabulary need `loss_parallel`, here and in the backward pass.
    Many of them are widened some rows at a time, unless the loss is compiled.
    """
    is_special = isinstance(logits, DTensor) or torch.compiler.is_compiling()
    if logits.numel() > _WIDENED_LOGITS and not is_special:
        return cast("Tensor", _RowsCrossEntropy.apply(logits.flatten(0, 1), targets.flatten()))  # type: ignore[no-untyped-call]
    loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))
    return loss.full_tensor() if isinstance(loss, DTensor) else loss


class RotaryTable:
    """Cosines and sines of rotary position embedding (arXiv 2104.09864); no module, which wrappers
    would store.
    """

    def __init__(self, shape: Model, *, sequence_length: int) -> None:
        self._shape = shape
        self._width = shape.rotary_width or shape.head_dim
        self._sequence_length = sequence_length
        self._table: tuple[Tensor, Tensor] | None = None

    def rotate(self, heads: Tensor, *, start: int = 0) -> Tensor:
        """Rotate the halves of each head of [B, H, S, head width], or of its first part, in fp32.

        By its position, from `start` on.
        """
        cosines, sines = (table[start : start + heads.shape[2]] for table in self.on(heads.device))
        first, second = heads[..., : self._width].float().chunk(2, dim=-1)
        rotated = torch.cat(
            (first * cosines - second * sines, second * cosines + first * sines), dim=-1
        )
        if self._width == heads.shape[-1]:
            return rotated.to(heads.dtype)
        return torch.cat((rotated.to(heads.dtype), heads[..., self._width :]), dim=-1)

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines [S, rotary width / 2] on `device`, built at the first call."""
        if self._table is None or self._table[0].device != device:
            positions = torch.arange(self._sequence_length, device=device, dtype=torch.float32)
            angles = positions[:, None] * self._frequencies(device)[None, :]
            scaling = self._shape.rotary_scaling
            by = 1.0 if scaling is None else scaling.magnitude
            self._table = by * angles.cos(), by * angles.sin()
        return self._table

    def _frequencies(self, device: torch.device) -> Tensor:
        """Radians per position [rotary width / 2]."""
        width, scaling = self._width, self._shape.rotary_scaling
        pairs = torch.arange(0, width, 2, device=device, dtype=torch.float32)
        frequencies = 1.0 / self._shape.rotary_theta ** (pairs / width)
        if scaling is None:
            return frequencies
        # Turns over the original positions: few are slowed down by the factor, many are kept.
        positions, kept = scaling.original_positions, torch.zeros_like(frequencies)
        if scaling.kind == "llama3":
            low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
            turns = frequencies * (positions / (2 * math.pi))
            kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
        elif scaling.kind == "yarn":
            base = 2 * math.log(self._shape.rotary_theta)
            ends = [
                width * math.log(positions / (2 * math.pi * turns)) / base
                for turns in (scaling.beta_fast, scaling.beta_slow)
            ]
            low, high = (math.floor(ends[0]), math.ceil(ends[1])) if scaling.truncate else ends
            low, high = max(low, 0), min(high, width - 1)
            kept = 1 - ((pairs / 2 - low) / max(high - low, 1e-3)).clamp(0.0, 1.0)
        return frequencies * (kept + (1 - kept) / scaling.factor)


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

    def __init__(self, shape: Model, *, window: int | None) -> None:
        self._window, self._softcap = window, shape.attention_softcap
        self._only_math = shape.attention == "math"
        self._scale = (shape.query_scalar or shape.head_dim) ** -0.5
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
        scores = self._capped((query @ key.transpose(2, 3)).to(_wide(query)) * self._scale)
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


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


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
    if job.model.attention == "math":
        return "math"
    if job.model.has_special_attention(job.sequence_length):
        return "flex_attention"
    share = job.recipe.tensor_parallel * job.recipe.context_parallel
    heads, dtype = job.model.heads // share, COMPUTE_TYPES[job.precision]
    groups = max(1, job.model.kv_heads // share)
    if needs_whole_groups(dtype, device):
        groups = heads
    with suppress(Exception):  # torch's name for it is private
        # Latent attention's values are padded to the width of its queries.
        shapes = (
            (1, number, job.sequence_length, job.model.head_dim)
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


class Attention(nn.Module):
    """Causal self-attention with grouped key-value heads, of which a tensor-parallel rank holds
    some.
    """

    def __init__(
        self,
        shape: Model,
        rotary: RotaryTable | None,
        context: ContextRanks | None,
        window: int | None,
    ) -> None:
        super().__init__()
        self._head_width = shape.head_dim
        self._rotary = rotary
        self._context = context
        self.mixer = Mixer(shape, window=window)
        has_biases = shape.biases != "none"
        self.query = nn.Linear(shape.hidden, shape.q_hidden, bias=has_biases)
        self.key = nn.Linear(shape.hidden, shape.kv_hidden, bias=has_biases)
        self.value = nn.Linear(shape.hidden, shape.kv_hidden, bias=has_biases)
        self.query_norm = make_norm(shape, shape.head_dim) if shape.qk_norm else None
        self.key_norm = make_norm(shape, shape.head_dim) if shape.qk_norm else None
        self.sinks = Sinks(shape.heads) if shape.attention_sinks else None
        self.output = nn.Linear(shape.q_hidden, shape.hidden, bias=shape.biases == "all")

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        sinks = None if self.sinks is None else self.sinks()
        projected = (project(x) for project in (self.query, self.key, self.value))
        query, key, value = (
            heads.view(x.shape[0], heads.shape[1], -1, self._head_width) for heads in projected
        )
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if self._context is not None:
            query, key, value = self._context.whole_sequences(query, key, value)
            sinks = None if sinks is None else self._context.own_heads(sinks)
        query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))
        if self._rotary is not None:
            query, key = self._rotary.rotate(query), self._rotary.rotate(key)
        mixed = self.mixer.mix(query, key, value, sinks).transpose(1, 2)
        if self._context is not None:
            mixed = self._context.own_positions(mixed)
        return cast("Tensor", self.output(mixed.flatten(2)))


class Sinks(nn.Module):
    """A score of each head that its softmax counts beside those of positions."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads))

    def forward(self) -> Tensor:
        """Return the scores [H]."""
        return self.weight


def activated(activation: str, up: Tensor, gate: Tensor | None) -> Tensor:
    """Return the activation of the first product, gated by the second where there is one.

    The clamped form is gpt-oss's, with the figures of its code (github.com/openai/gpt-oss,
    gpt_oss/torch/model.py).
    """
    if activation == "relu":
        return functional.relu(up)
    if activation == "relu2":
        return functional.relu(up).square()
    if gate is None:
        return functional.gelu(up, approximate="tanh" if activation == "gelu_tanh" else "none")
    if activation == "geglu":
        return functional.gelu(gate, approximate="tanh") * up
    if activation == "swiglu_clamped":
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)
    return functional.silu(gate) * up


class LatentAttention(nn.Module):
    """Causal self-attention whose keys and values come from one narrow vector per position (arXiv
    2405.04434).

    Queries may come from another one. A part of each query is rotated, and so is the part of the
    keys that all heads share. Flash attention takes values of the queries' width only: they are
    padded for it.
    """

    def __init__(
        self,
        shape: Model,
        rotary: RotaryTable,
        context: ContextRanks | None,
        *,
        first_position: int,
    ) -> None:
        super().__init__()
        self._rotary, self._context, self._start = rotary, context, first_position
        self._rotated, self._value = shape.rotary_width, shape.value_dim
        self._plain = shape.head_dim - self._rotated
        self._rank = cast("int", shape.key_value_rank)
        factor = 1.0 if shape.rotary_scaling is None else shape.rotary_scaling.score_factor
        self._scale = factor * shape.head_dim**-0.5
        self._only_math = shape.attention == "math"
        linear = partial(nn.Linear, bias=False)
        self.query_down = linear(shape.hidden, shape.query_rank) if shape.query_rank else None
        self.query_norm = make_norm(shape, shape.query_rank) if shape.query_rank else None
        self.query = linear(shape.query_rank or shape.hidden, shape.q_hidden)
        self.key_value_down = linear(shape.hidden, self._rank + self._rotated)
        self.key_value_norm = make_norm(shape, self._rank)
        self.key_value = linear(self._rank, shape.heads * (self._plain + self._value))
        self.output = linear(shape.mixed_hidden, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        latent = x
        if self.query_down is not None and self.query_norm is not None:
            latent = self.query_norm(self.query_down(x))
        query = self.query(latent).unflatten(2, (-1, self._plain + self._rotated))
        latent, shared = self.key_value_down(x).split_with_sizes((self._rank, self._rotated), dim=2)
        heads = self.key_value(self.key_value_norm(latent)).unflatten(
            2, (-1, self._plain + self._value)
        )
        key, value = heads.split_with_sizes((self._plain, self._value), dim=3)
        query, rotated = query.split_with_sizes((self._plain, self._rotated), dim=3)
        query = torch.cat((query, self._rotate(rotated)), dim=3)
        key = torch.cat(
            (key, self._rotate(shared.unsqueeze(2)).expand(-1, -1, key.shape[2], -1)), dim=3
        )
        if self._context is not None or not self._only_math:
            value = functional.pad(value, (0, query.shape[3] - self._value))
        if self._context is not None:
            query, key, value = self._context.whole_sequences(query, key, value)
        query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))
        with sdpa_kernel(SDPBackend.MATH) if self._only_math else nullcontext():
            mixed = functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=self._scale
            )
        mixed = mixed.transpose(1, 2)[..., : self._value]
        if self._context is not None:
            mixed = self._context.own_positions(mixed)
        return cast("Tensor", self.output(mixed.flatten(2)))

    def _rotate(self, heads: Tensor) -> Tensor:
        return self._rotary.rotate(heads.transpose(1, 2), start=self._start).transpose(1, 2)


class FeedForward(nn.Module):
    """D -> ffn -> GELU -> D; or D -> ffn, twice, one gating the other -> D (as in SwiGLU, arXiv
    2002.05202).
    """

    def __init__(self, shape: Model, width: int) -> None:
        super().__init__()
        has_biases = shape.biases == "all"
        self._activation, self._is_gated = shape.activation, shape.ffn_matrices == 3
        if self._is_gated:
            self.gate = nn.Linear(shape.hidden, width, bias=has_biases)
        self.up = nn.Linear(shape.hidden, width, bias=has_biases)
        self.down = nn.Linear(width, shape.hidden, bias=has_biases)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        gate = self.gate(x) if self._is_gated else None
        return cast("Tensor", self.down(activated(self._activation, self.up(x), gate)))


class Experts(nn.Module):
    """Feed-forward parts, of which each row goes through one.

    The matrices of all lie below one another, [E * D, F]: `gate` and `up` lead from D to F, `down`
    back. Where ranks share each expert, they hold equal columns of all, and the outcomes are to be
    added up. Biases are [E, F], of `down` [E, D].
    """

    def __init__(self, shape: Model, on_host: HostActivations | None = None) -> None:
        super().__init__()
        self._on_host = on_host
        self._activation, self._is_gated = shape.activation, shape.ffn_matrices == 3
        for part in ("gate", "up", "down") if self._is_gated else ("up", "down"):
            matrices = nn.Linear(shape.ffn_hidden, shape.experts * shape.hidden, bias=False)
            if shape.biases == "all":
                width = shape.hidden if part == "down" else shape.ffn_hidden
                matrices.bias = nn.Parameter(torch.empty(shape.experts, width))
            self.add_module(part, matrices)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """[N, D] -> [N, D] for rows sorted by expert, of which each expert that is held here has
        `counts`.
        """
        staying = nullcontext() if self._on_host is None else self._on_host.leave(self.parameters())
        lengths = None
        if not has_grouped_products(rows.dtype, rows.device):
            lengths = on_host(counts, rows=len(rows))
        with staying:
            gate = self._products(rows, "gate", counts, lengths) if self._is_gated else None
            up = self._products(rows, "up", counts, lengths)
            inner = activated(self._activation, up, gate)
            return self._products(inner, "down", counts, lengths)

    def _products(
        self, rows: Tensor, part: str, counts: Tensor, lengths: list[int] | None
    ) -> Tensor:
        """Return rows [N, in] through their experts' matrices: [N, out]. Without `lengths`, the
        counts as numbers, they are one kernel.
        """
        matrices = cast("nn.Linear", self.get_submodule(part))
        held = (
            matrices.weight.to_local() if isinstance(matrices.weight, DTensor) else matrices.weight
        )
        weight = held.view(len(counts), -1, held.shape[1])
        weight = weight.transpose(1, 2) if part == "down" else weight
        if lengths is not None:
            parts = zip(torch.split_with_sizes(rows, lengths), weight.unbind(), strict=True)
            found = torch.cat([own @ matrix for own, matrix in parts])
        elif len(rows) == 0:  # which torch's grouped product does not take
            found = rows @ weight[0]
        else:
            ends = counts.cumsum(0).to(torch.int32)
            weight = cast("Tensor", _ZeroWithoutRows.apply(weight, counts))  # type: ignore[no-untyped-call]
            found = functional.grouped_mm(rows, weight, offs=ends)
        if matrices.bias is None:
            return found
        biases = matrices.bias.to_local() if isinstance(matrices.bias, DTensor) else matrices.bias
        return found + biases.repeat_interleave(counts, dim=0, output_size=len(rows))


class _ZeroWithoutRows(torch.autograd.Function):
    """Experts' weights [E, in, out] as they are, of which those without rows have the gradient 0.

    torch's grouped product leaves their gradients unwritten on some devices (github.com/pytorch/
    pytorch/issues/172439 on B200, 174314 on ROCm).
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, counts: Tensor) -> Tensor:
        ctx.save_for_backward(counts)
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        (counts,) = ctx.saved_tensors
        # In place: the product has just made it, and nothing else holds it.
        return gradients[0].masked_fill_((counts == 0).view(-1, 1, 1), 0.0), None


def has_grouped_products(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether the products of all experts are one kernel."""
    return device.type == "cuda" and dtype == torch.bfloat16


def on_host(counts: Tensor, *, rows: int) -> list[Any]:  # noqa: ARG001 - a dry run shares them out
    """Return counts as numbers; `rows` is what those of the last dimension add up to where routing
    is uniform.
    """
    return counts.tolist()


class Balance:
    """Biases that the choice of experts sees: each step moves those with more tokens than the mean
    down, others up.

    Without an auxiliary loss (arXiv 2408.15664). No buffer, which would be rounded with the model.
    """

    def __init__(self, shape: Model) -> None:
        self._rate = shape.balancing_weight
        self.bias = torch.zeros(shape.experts, device="cpu")
        self._tokens: list[Tensor] = []

    def on(self, device: torch.device) -> "Balance":
        """Return itself, with its biases on `device`."""
        self.bias = self.bias.to(device)
        return self

    def count(self, tokens: Tensor) -> None:
        """Count each expert's `tokens` of one forward pass, unless none trains or a backward pass
        runs it again.
        """
        if torch.is_grad_enabled() and torch._C._current_graph_task_id() < 0:
            self._tokens.append(tokens)

    def counted(self, passes: int) -> Tensor:
        """Return each expert's tokens in the step's `passes`, the last ones: torch's pipelines
        begin with another.
        """
        tokens, self._tokens = torch.stack(self._tokens[-passes:]).sum(dim=0), []
        return tokens

    def move(self, tokens: Tensor) -> None:
        """Move the biases by each expert's `tokens` of a whole step."""
        self.bias += self._rate * torch.sign(tokens.float().mean() - tokens)


class _WithLoss(torch.autograd.Function):
    """Adds a loss to the model's: what passes through stays as it is, and backward the loss has the
    gradient 1.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.like = loss
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor]:
        return gradients[0], torch.ones_like(ctx.like)


class _NarrowGradients(torch.autograd.Function):
    """Gives the outputs of a linear layer in fp32 their gradients, of narrower inputs: these alone
    are kept.
    """

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient: Tensor = gradients[0]
        of_x = (gradient @ weight.float()).to(x.dtype)
        of_weight = (gradient.t() @ x.float()).to(weight.dtype)
        of_bias = gradient.sum(dim=0).to(weight.dtype) if ctx.has_bias else None
        return None, of_x, of_weight, of_bias


def wide_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[N, in] -> [N, out] in fp32 at least, whatever the type of the tokens and the weight.

    A router computes so: in 16 bits near ties between experts would be decided by rounding
    (`transformers`' DeepSeek-V3, Megatron-LM's `--moe-router-dtype fp32`). The weight is what mixed
    precision makes of the trained one, as theirs.
    """
    if x.dtype == _wide(x):
        return functional.linear(x, weight, bias)
    wide_bias = None if bias is None else bias.detach().float()
    outputs = functional.linear(x.detach().float(), weight.detach().float(), wide_bias)
    return cast("Tensor", _NarrowGradients.apply(outputs, x, weight, bias))  # type: ignore[no-untyped-call]


class Router(nn.Linear):
    """The linear layer whose outputs rank a token's experts."""

    def forward(self, x: Tensor) -> Tensor:
        """[N, D] -> [N, E] in fp32."""
        return wide_product(x, self.weight, self.bias)


class MixtureOfExperts(nn.Module):
    """Experts and a router: each token goes through those of the highest probability, whatever the
    others get.

    Under uniform routing tokens are dealt to the experts in turn instead. `ranks` share the
    experts, where there are several (`expert_parallel.ExpertRanks`). `loads`, where they are
    recorded (`expert_parallel.ExpertLoads`), get the rows that this rank's positions send to each
    expert, and those that come to each of its own, of every forward pass. The groups in `parts`
    share the positions of a sequence, `summed` of these ranks with summed gradients. `weigh` scales
    the balancing loss as the model's.
    """

    def __init__(self, shape: Model, on_host: HostActivations | None = None) -> None:
        super().__init__()
        self._shape = shape
        self._count, self._each = shape.experts, shape.experts_per_token
        self.router = Router(shape.hidden, shape.experts, bias=shape.biases == "all")
        self._deals = shape.routing == "uniform"
        self.experts = Experts(shape, on_host)
        self.shared = (
            FeedForward(shape, shape.shared_experts * shape.ffn_hidden)
            if shape.shared_experts
            else None
        )
        self.balance = Balance(shape) if shape.balancing == "bias" else None
        self.ranks: Any = None
        self.loads: list[tuple[Tensor, Tensor]] | None = None
        self.parts: list[Any] = []
        self.summed = 1
        self.weigh: Transform = lambda loss: loss

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        tokens = x.flatten(0, 1)
        outputs = self.router(tokens)
        scores = outputs.softmax(dim=-1) if self._shape.router == "softmax" else outputs.sigmoid()
        if self._deals:
            turns = torch.arange(len(tokens) * self._each, device=x.device)
            chosen = turns.remainder(self._count).view(-1, self._each)
        else:
            chosen = self._choice(scores).topk(self._each, dim=-1).indices
        weights = scores.gather(1, chosen)
        if self._shape.renormalized_experts:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        if self._shape.routed_scale != 1:
            weights = weights * self._shape.routed_scale
        # Rows are sorted by expert, and back by the inverse order: sums of fixed order, the same in
        # every run.
        order = chosen.flatten().argsort(stable=True)
        # Not by `bincount`, for whose length a device's host would wait.
        counts = order.new_zeros(self._count).index_add_(
            0, chosen.flatten(), torch.ones_like(order)
        )
        if self._shape.balancing == "loss":
            loss = self.weigh(self._loss(scores, chosen, len(x)))
            weights = cast("Tensor", _WithLoss.apply(weights, loss))  # type: ignore[no-untyped-call]
        if self.balance is not None:
            self.balance.count(counts)
        rows, held = tokens[order // self._each], counts
        if self.ranks is None:
            found = self.experts(rows, counts)
        else:
            dispatched = self.ranks.dispatch(rows, counts)
            held = dispatched.counts
            found = dispatched.back(self.experts(dispatched.rows, held))
        if self.loads is not None:
            self.loads.append((counts, held))
        found = found[order.argsort()].view(*weights.shape, -1)
        mixed: Tensor = (found * weights.to(x.dtype).unsqueeze(-1)).sum(dim=1).view_as(x)
        return mixed if self.shared is None else mixed + self.shared(x)

    def _choice(self, scores: Tensor) -> Tensor:
        """Return what the choice of experts goes by: [N, E] with the biases, and without groups
        that are not kept.
        """
        choice = scores.detach()
        if self.balance is not None:
            choice = choice + self.balance.on(choice.device).bias
        if self._shape.router_groups == 1:
            return choice
        groups = choice.view(len(choice), self._shape.router_groups, -1)
        is_softmax = self._shape.router == "softmax"
        best = groups.amax(dim=2) if is_softmax else groups.topk(2, dim=2).values.sum(dim=2)
        kept = best.topk(self._shape.router_groups_kept, dim=1).indices
        left_out = torch.ones_like(best, dtype=torch.bool).scatter(1, kept, value=False)
        return groups.masked_fill(left_out.unsqueeze(2), -math.inf).flatten(1)

    def _loss(self, scores: Tensor, chosen: Tensor, sequences: int) -> Tensor:
        """Return weight * E * the sum over experts of their share of tokens times their mean
        probability.

        As in the Switch Transformer (arXiv 2101.03961, section 2.2) and `transformers`' Mixtral,
        but for each layer and each sequence by itself (arXiv 2412.19437, section 2.1.2), and their
        mean: the batch may be cut as one likes.
        """
        chosen = chosen.view(sequences, -1)
        tokens = torch.zeros(sequences, self._count, dtype=scores.dtype, device=scores.device)
        tokens.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=scores.dtype))
        positions = chosen.shape[1] // self._each
        for group in self.parts:
            summed = torch.ops._c10d_functional.all_reduce(tokens, "sum", group.group_name)
            tokens = torch.ops._c10d_functional.wait_tensor(summed)
            positions *= group.size()
        probabilities = scores / scores.sum(dim=-1, keepdim=True)
        means = probabilities.view(sequences, -1, self._count).mean(dim=1) / self.summed
        balanced: Tensor = (tokens / positions * means).sum() / sequences
        return self._shape.balancing_weight * self._count * balanced


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and added to its input, one after the other or
    both at once.
    """

    def __init__(  # noqa: PLR0913 - what the whole model shares, and where the layer lies
        self,
        shape: Model,
        rotary: RotaryTable | None,
        recipe: Recipe,
        context: ContextRanks | None,
        on_host: HostActivations | None,
        window: int | None,
        *,
        first_position: int = 0,
    ) -> None:
        super().__init__()
        self._recomputing = _recomputing(recipe.recompute)
        self._on_host, self._rotary = on_host, rotary
        self._moves_kept = on_host is not None and recipe.recompute == "selective"
        self._tiles, self._is_parallel = recipe.feed_forward_tiles, shape.parallel_residual
        self.run: Transform = self._run_recomputing
        self.attend: Transform = self._attend
        self.attention_norm = make_norm(shape, shape.hidden)
        if shape.key_value_rank is not None and rotary is not None:
            self.attention: nn.Module = LatentAttention(
                shape, rotary, context, first_position=first_position
            )
        else:
            self.attention = Attention(shape, rotary, context, window)
        self.attention_output_norm = make_norm(shape, shape.hidden) if shape.post_norms else None
        self.feed_forward_norm = make_norm(shape, shape.hidden)
        self.feed_forward = (
            MixtureOfExperts(shape, on_host)
            if shape.experts
            else FeedForward(shape, shape.ffn_hidden)
        )
        self.feed_forward_output_norm = make_norm(shape, shape.hidden) if shape.post_norms else None

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D], recomputing in the backward pass what the recipe says."""
        if self._on_host is not None and torch.is_grad_enabled():
            tables = () if self._rotary is None else self._rotary.on(x.device)
            with self._on_host.layer(x.device, (*self.parameters(), *tables)):
                return self.run(x)
        return self.run(x)

    def _run_recomputing(self, x: Tensor) -> Tensor:
        if self._recomputing is None or not torch.is_grad_enabled():
            return self._transform(x)
        # A compiled layer hands what it keeps to its backward pass, where hooks see it.
        if self._moves_kept and not torch.compiler.is_compiling():
            on_host = cast("HostActivations", self._on_host)
            return recomputed(self._transform, x, context_fn=on_host.selective_contexts)
        return self._recomputing(self._transform, x)

    def _transform(self, x: Tensor) -> Tensor:
        after = self.attend(x)
        x = x if self._is_parallel else after
        if self._tiles == 1:
            return after + self._normed_feed_forward(x)
        tiles = [
            recomputed(self._normed_feed_forward, tile) for tile in x.chunk(self._tiles, dim=1)
        ]
        return after + torch.cat(tiles, dim=1)

    def _attend(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.attention(self.attention_norm(x))
        return x + (
            mixed if self.attention_output_norm is None else self.attention_output_norm(mixed)
        )

    def _normed_feed_forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.feed_forward(self.feed_forward_norm(x))
        return (
            found if self.feed_forward_output_norm is None else self.feed_forward_output_norm(found)
        )


def make_norm(shape: Model, width: int) -> nn.Module:
    """Return a norm of the model's kind over the last dimension."""
    if shape.norm == "rmsnorm":
        return nn.RMSNorm(width, eps=shape.norm_epsilon)
    return nn.LayerNorm(width, eps=shape.norm_epsilon, bias=shape.biases == "all")


class Embedding(nn.Module):
    """Token embedding, plus learned positions where the model has them, from `first_position`
    on.
    """

    def __init__(self, shape: Model, *, sequence_length: int, first_position: int) -> None:
        super().__init__()
        self._first_position = first_position
        self._scale = math.sqrt(shape.hidden) if shape.scaled_embedding else None
        self.tokens = nn.Embedding(shape.padded_vocabulary, shape.hidden)
        self.positions = (
            nn.Embedding(sequence_length, shape.hidden) if shape.positions == "learned" else None
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids [B, S] -> [B, S, D]."""
        x = self.tokens(tokens)
        if self._scale is not None:
            x = x * self._scale
        if self.positions is not None:
            numbers = self._first_position + torch.arange(tokens.shape[1], device=tokens.device)
            if isinstance(self.positions.weight, DTensor):
                numbers = numbers.expand_as(
                    tokens
                )  # a tensor-parallel embedding shards its output along S
            x = x + self.positions(numbers)
        return cast("Tensor", x)


class TiedHead(nn.Module):
    """The output projection that uses the token embedding's weight; it owns no parameter itself."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        # In a tuple, so that the embedding is not registered twice and its weight keeps one name.
        self._embedding = (embedding,)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> logits [B, S, V]."""
        return functional.linear(x, self._embedding[0].tokens.weight)


class Gpt(nn.Module):
    """The blocks `layers`, with the embedding before the first layer and the norm and head after
    the last.
    """

    def __init__(
        self,
        shape: Model,
        *,
        sequence_length: int,
        layers: range,
        recipe: Recipe = NEUTRAL,
        context: ContextRanks | None = None,
    ) -> None:
        super().__init__()
        self._loss_chunks = recipe.loss_chunks
        self._sequence_shards = recipe.tensor_parallel if recipe.sequence_parallel else 1
        first, last = layers.start == 0, layers.stop == shape.layers
        if shape.tied_embeddings and not (first and last):
            raise ValueError(
                "tied embeddings need the first and the last layer in the same pipeline stage"
            )
        self._sequence_length, self._softcap = sequence_length, shape.logits_softcap
        everywhere: RotaryTable | None = None
        in_windows: RotaryTable | None = None
        if shape.positions == "rotary":
            everywhere = in_windows = RotaryTable(shape, sequence_length=sequence_length)
            if shape.window_rotary_theta is not None:
                local = replace(shape, rotary_theta=shape.window_rotary_theta, rotary_scaling=None)
                in_windows = RotaryTable(local, sequence_length=sequence_length)
        self._tables = {table for table in (everywhere, in_windows) if table is not None}
        start = 0 if context is None else context.positions(sequence_length).start
        self.embedding = (
            Embedding(shape, sequence_length=sequence_length, first_position=start)
            if first
            else None
        )
        on_host = HostActivations() if recipe.activation_offload else None
        self.blocks = nn.ModuleDict(
            {
                str(layer): Block(
                    shape.kind_of(layer),
                    everywhere if window is None else in_windows,
                    recipe,
                    context,
                    on_host,
                    window,
                    first_position=start,
                )
                for layer, window in ((layer, shape.window_of(layer)) for layer in layers)
            }
        )
        self.norm = make_norm(shape, shape.hidden) if last else None
        self.head: nn.Module | None = None
        if shape.tied_embeddings and self.embedding is not None:
            self.head = TiedHead(self.embedding)
        elif last:
            self.head = nn.Linear(shape.hidden, shape.padded_vocabulary, bias=False)

    @property
    def mixtures(self) -> dict[str, MixtureOfExperts]:
        """The mixtures of experts, by their blocks' names."""
        parts = {
            f"blocks.{layer}": cast("Block", block).feed_forward
            for layer, block in self.blocks.items()
        }
        return {name: part for name, part in parts.items() if isinstance(part, MixtureOfExperts)}

    def compile_blocks(
        self, compiled: Callable[[Transform], Transform], device: torch.device
    ) -> None:
        """Run each block, of one with experts its attention, as `compiled` makes it from now on, on
        `device`.
        """
        for table in self._tables:
            table.on(device)  # torch.compile takes no function that changes what lies outside it
        # What is to be computed again is compiled with the rest: around a compiled function torch's
        # checkpoint fails.
        for block in cast("Iterable[Block]", self.blocks.values()):
            if device.type == "cuda" and isinstance(block.attention, Attention):
                block.attention.mixer.prepare(self._sequence_length, device)
            if isinstance(
                block.feed_forward, MixtureOfExperts
            ):  # whose shapes change with every micro-batch
                block.attend = compiled(block.attend)
            else:
                block.run = compiled(block.run)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Token ids [B, S], or the previous stage's [B, S, D] -> [B, S, D], or logits [B, S, V] in
        the last stage.

        Given `targets`, token ids [B, S], the last stage computes its loss in pieces instead, a
        scalar.
        """
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        if self.head is None:
            return x
        return self._logits(x) if targets is None else self._chunked_loss(x, targets)

    def _logits(self, x: Tensor) -> Tensor:
        logits: Tensor = cast("nn.Module", self.head)(cast("nn.Module", self.norm)(x))
        return (
            logits if self._softcap is None else self._softcap * torch.tanh(logits / self._softcap)
        )

    def _chunked_loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over equal pieces of x [B, S / shards, D], each run again in the backward
        pass.
        """
        # Gathering piece i of every shard puts those pieces side by side, which are apart in the
        # sequence.
        pieces = targets.view(targets.shape[0], self._sequence_shards, self._loss_chunks, -1)
        losses = [
            recomputed(self._piece_loss, part, pieces[:, :, number].flatten(1))
            for number, part in enumerate(x.chunk(self._loss_chunks, dim=1))
        ]
        return torch.stack(losses).mean()

    def _piece_loss(self, x: Tensor, targets: Tensor) -> Tensor:
        return mean_cross_entropy(self._logits(x), targets)


@torch.no_grad()
def initialize(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    seed: int,
    layers: int,
    device: torch.device | None = None,
) -> None:
    """Fill the materialized `parameters`, given with their names in the whole model of `layers`
    layers.

    Values are drawn on `device`, which is where a parameter lies unless stated.
    """
    for name, parameter in parameters:
        is_bias = name.endswith((".bias", "sinks.weight"))
        if is_bias or "norm" in name.rsplit(".", 2)[-2]:
            parameter.fill_(0.0 if is_bias else 1.0)
            continue
        deviation = (
            DEVIATION / (2 * layers) ** 0.5 if name.endswith(_RESIDUAL_PROJECTIONS) else DEVIATION
        )
        generator = torch.Generator(device or parameter.device)
        (held, columns), (height, width) = _held(parameter), parameter.shape
        part = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        rows = max(1, _BLOCK_ELEMENTS // width)
        drawn = torch.empty(min(rows, height), width, device=generator.device)
        for start in range(held.start - held.start % rows, held.stop, rows):
            digest = hashlib.sha256(f"{seed}:{name}:{start}".encode()).digest()
            generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            block = drawn[: height - start].normal_(0.0, deviation, generator=generator)
            ours = range(max(start, held.start), min(start + rows, held.stop))
            part[ours.start - held.start : ours.stop - held.start] = block[
                ours.start - start : ours.stop - start, columns.start : columns.stop
            ]


def _held(parameter: nn.Parameter) -> list[range]:
    """Return, for each dimension of the whole parameter, what this rank holds of it."""
    held = [range(size) for size in parameter.shape]
    if isinstance(parameter, DTensor):
        # Mesh dimensions split from the outermost to the innermost, but for strided ones, which
        # split what those have left: tensor parallelism is applied before FSDP2 shards, and stands
        # further in.
        mesh, placements = parameter.device_mesh, parameter.placements
        for number in sorted(
            range(mesh.ndim), key=lambda number: hasattr(placements[number], "split_factor")
        ):
            along = getattr(placements[number], "dim", None)
            if along is not None:  # as torch.chunk splits
                size, index = -(-len(held[along]) // mesh.size(number)), mesh.get_local_rank(number)
                held[along] = held[along][index * size : (index + 1) * size]
    return held
