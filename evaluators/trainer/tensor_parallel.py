"""Tensor parallelism, with or without sequence parallelism.

Weights are split as in Megatron-LM (arXiv 1909.08053): query, key, value and the feed-forward's
first matrices by columns, the matrices after them by rows, embedding and head by the vocabulary.
Without sequence parallelism the activations between the parts of a block are whole on every rank;
with it (arXiv 2205.05198) each rank holds S / t neighboring positions there.

Weights are DTensors; all that lies before the last norm computes on plain tensors, since an
operator on DTensors takes the host several times as long (docs/measurements.md). Last norm and head
are torch's DTensor plans; logits stay split over the vocabulary, and the loss is computed under
`loss_parallel`.

Shapes below: B sequences, S tokens, D hidden width, t tensor-parallel ranks.
"""

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
    parallel,
)
from torch.nn import functional

from frontrunner.evaluators.trainer.layout import exchanged
from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.evaluators.trainer.parts.block import Block
from frontrunner.evaluators.trainer.parts.head import TiedHead
from frontrunner.evaluators.trainer.parts.mixture import MixtureModule
from frontrunner.evaluators.trainer.parts.router import wide_product
from frontrunner.spaces.model.model import Model


class TensorRanks:
    """The ranks that share a layer."""

    def __init__(self, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
        self.mesh = mesh
        self.size = mesh.size()
        self.number = int(mesh.get_local_rank())
        self._group_name: str = mesh.get_group().group_name
        self._sequence_parallel = sequence_parallel
        self.gradients_between: tuple[Placement, ...] = (Partial(),) if sequence_parallel else ()

    def enter(self, x: Tensor) -> Tensor:
        """[B, S or S / t, D] between parts -> [B, S, D] for a part; backward the sum of the ranks'
        gradients.
        """
        return exchanged(x, self._whole, self._summed)

    def leave(self, x: Tensor) -> Tensor:
        """[B, S, D], each rank's summand -> their sum, [B, S or S / t, D]."""
        return exchanged(x, self._summed, self._whole)

    # Chunks that are joined along S, and the other way round, are what `overlap_when_compiled`
    # finds.
    def _whole(self, x: Tensor) -> Tensor:
        if not self._sequence_parallel:
            return x.view_as(x)
        operator = torch.ops._c10d_functional.all_gather_into_tensor
        parts = _waited(operator(x.contiguous(), self.size, self._group_name))
        return torch.cat(parts.chunk(self.size), dim=1)

    def _summed(self, x: Tensor) -> Tensor:
        if not self._sequence_parallel:
            return _waited(
                torch.ops._c10d_functional.all_reduce(x.contiguous(), "sum", self._group_name)
            )
        parts = torch.cat(x.chunk(self.size, dim=1))
        return _waited(
            torch.ops._c10d_functional.reduce_scatter_tensor(
                parts, "sum", self.size, self._group_name
            )
        )


def _waited(tensor: Tensor) -> Tensor:
    return cast("Tensor", torch.ops._c10d_functional.wait_tensor(tensor))


class OnLocalWeight(nn.Module):
    """A module with a weight and perhaps a bias, with this rank's parts of which it computes."""

    def __init__(
        self, whole: nn.Module, ranks: TensorRanks, weight: Placement, bias: Placement | None = None
    ) -> None:
        super().__init__()
        self._ranks = ranks
        self.product: Callable[..., Tensor] = functional.linear
        for name, placement in (("weight", weight), ("bias", bias or weight)):
            tensor = cast("Tensor | None", getattr(whole, name, None))
            placed = (
                None
                if tensor is None
                else nn.Parameter(distribute_tensor(tensor, ranks.mesh, [placement]))
            )
            self.register_parameter(name, placed)

    def _local_weight(self, *gradients: Placement) -> Tensor:
        """Return this rank's part; `gradients` says what its gradient is, if not a part like the
        weight's.
        """
        return _local(cast("nn.Parameter", self.weight), gradients)

    def _local_bias(self, *gradients: Placement) -> Tensor | None:
        """Return this rank's part of the bias, likewise, or None."""
        return None if self.bias is None else _local(cast("nn.Parameter", self.bias), gradients)

    def make_plain(self) -> list[nn.Parameter]:
        """Hold this rank's parts as plain tensors from now on, and return those that are not the
        whole.
        """
        split = []
        for name, parameter in list(self.named_parameters()):
            plain = nn.Parameter(cast("DTensor", parameter).to_local().detach())
            split += [] if plain.shape == parameter.shape else [plain]
            setattr(self, name, plain)
        return split


def _local(parameter: nn.Parameter, gradients: tuple[Placement, ...]) -> Tensor:
    return (
        parameter.to_local(grad_placements=gradients or None)
        if isinstance(parameter, DTensor)
        else parameter
    )


class SplitLinear(OnLocalWeight):
    """A linear layer of which this rank has some of the outputs."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out / t]."""
        return self.product(x, self._local_weight(), self._local_bias())


class SplitSinks(OnLocalWeight):
    """The sinks of this rank's heads."""

    def forward(self) -> Tensor:
        """Return [H / t]."""
        return self._local_weight()


class SummedLinear(OnLocalWeight):
    """A linear layer of which this rank has some of the inputs, and the end of a split part."""

    def __init__(self, whole: nn.Module, ranks: TensorRanks) -> None:
        super().__init__(whole, ranks, Shard(1), Replicate())

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, in / t] -> [B, S or S / t, out]."""
        out = self._ranks.leave(self.product(x, self._local_weight()))
        if self.bias is None:
            return out
        # Added after the sum, so once; over this rank's positions its gradient is a part of a sum
        # over the ranks.
        return out + cast("Tensor", self._local_bias(*self._ranks.gradients_between))


class SplitEmbedding(OnLocalWeight):
    """A table of which this rank has some of the rows."""

    def __init__(self, whole: nn.Embedding, ranks: TensorRanks) -> None:
        super().__init__(whole, ranks, Shard(0))
        rows_of_others = -(
            -whole.num_embeddings // ranks.size
        )  # the last ranks may have fewer, or none
        self._first_row = ranks.number * rows_of_others

    def forward(self, rows: Tensor) -> Tensor:
        """Numbers of rows [B, S] -> [B, S or S / t, D]."""
        weight = self._local_weight()
        numbers = rows - self._first_row
        if (
            weight.shape[0] == 0
        ):  # a short table over many ranks; the sum keeps the weight in the graph
            return self._ranks.leave(
                rows.new_zeros((*rows.shape, weight.shape[1]), dtype=weight.dtype) + weight.sum()
            )
        elsewhere = (numbers < 0) | (numbers >= weight.shape[0])
        found = functional.embedding(numbers.masked_fill(elsewhere, 0), weight)
        return self._ranks.leave(found.masked_fill(elsewhere.unsqueeze(-1), 0.0))


class ReplicatedHeads(OnLocalWeight):
    """A key or value projection for more tensor-parallel ranks than key-value heads.

    Every rank keeps the whole weight and computes the one head that its query heads use, so that
    each rank's gradients, of the weight and of the input, are parts of a sum over the ranks.
    """

    def __init__(self, whole: nn.Module, ranks: TensorRanks, head_rows: slice) -> None:
        super().__init__(whole, ranks, Replicate())
        self._head_rows = head_rows

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> this rank's head [B, S, head width]."""
        bias = self._local_bias(Partial())
        return self.product(
            x,
            self._local_weight(Partial())[self._head_rows],
            None if bias is None else bias[self._head_rows],
        )


class SequenceLinear(OnLocalWeight):
    """A whole linear layer, over this rank's positions or for its heads; its gradient is a part of
    the ranks' sum.
    """

    def __init__(self, whole: nn.Module, ranks: TensorRanks) -> None:
        super().__init__(whole, ranks, Replicate())

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return functional.linear(x, self._local_weight(Partial()), self._local_bias(Partial()))


class SequenceRouter(SequenceLinear):
    """A router over this rank's positions."""

    def forward(self, x: Tensor) -> Tensor:
        """[N, D] -> [N, E] in fp32."""
        return wide_product(x, self._local_weight(Partial()), self._local_bias(Partial()))


class SequenceNorm(OnLocalWeight):
    """A norm over this rank's positions or heads; its gradients are parts of a sum over the
    ranks.
    """

    def __init__(self, whole: nn.RMSNorm | nn.LayerNorm, ranks: TensorRanks) -> None:
        super().__init__(whole, ranks, Replicate())
        self._shape = list(whole.normalized_shape)
        self._epsilon = whole.eps
        self._centers = isinstance(whole, nn.LayerNorm)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S / t, D] or [B, S, H / t, head width] -> the same shape."""
        weight = self._local_weight(Partial())
        if self._centers:
            bias = self._local_bias(Partial())
            return functional.layer_norm(x, self._shape, weight, bias, cast("float", self._epsilon))
        return functional.rms_norm(x, self._shape, weight, self._epsilon)


def apply_tensor_parallel(
    model: Gpt, shape: Model, mesh: DeviceMesh, *, sequence_parallel: bool
) -> None:
    """Split `model`, in place, over the ranks of the 1-D `mesh`."""
    ranks = split_blocks(model, shape, mesh, sequence_parallel=sequence_parallel)
    if model.embedding is not None:
        model.embedding.tokens = cast("Any", SplitEmbedding(model.embedding.tokens, ranks))
        if model.embedding.positions is not None:
            model.embedding.positions = cast(
                "Any", SplitEmbedding(model.embedding.positions, ranks)
            )
    if model.head is None:
        return
    between: Placement = Shard(1) if sequence_parallel else Replicate()
    head: parallel.ParallelStyle = parallel.ColwiseParallel(
        input_layouts=between, output_layouts=Shard(-1), use_local_output=False
    )
    if isinstance(model.head, TiedHead):
        head = parallel.PrepareModuleInput(
            input_layouts=(between,), desired_input_layouts=(Replicate(),)
        )
    plan = {"head": head} | ({"norm": parallel.SequenceParallel()} if sequence_parallel else {})
    parallel.parallelize_module(model, mesh, plan)


def overlap_when_compiled(mesh: DeviceMesh) -> None:
    """Have torch.compile overlap gathers and sums over `mesh` with the products beside them from
    now on.
    """
    from torch._inductor import config
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    config._micro_pipeline_tp = True
    enable_symm_mem_for_group(mesh.get_group().group_name)


def split_blocks(
    model: Gpt, shape: Model, mesh: DeviceMesh, *, sequence_parallel: bool
) -> TensorRanks:
    """Split the blocks of `model`, in place, and leave embedding, last norm and head whole."""
    ranks = TensorRanks(mesh, sequence_parallel=sequence_parallel)

    def enter(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (ranks.enter(inputs[0]),)

    for block in cast("Iterable[Block]", model.blocks.values()):
        parts = [block.attention, block.feed_forward]
        if isinstance(
            mixture := block.feed_forward, MixtureModule
        ):  # a rank's own positions go through whole experts
            mixture.router = cast("Any", SequenceRouter(mixture.router, ranks))
            parts = [block.attention, *([] if mixture.shared is None else [mixture.shared])]
        for part in parts:
            for name, whole in list(part.named_children()):
                setattr(part, name, _split(name, whole, shape, ranks))
            # At the part's input and not in each layer, so that the gradients of its several uses
            # are summed once.
            part.register_forward_pre_hook(enter)
        if sequence_parallel:
            for name, norm in list(block.named_children()):
                if name.endswith("_norm"):
                    setattr(block, name, SequenceNorm(cast("Any", norm), ranks))
    return ranks


def _split(name: str, whole: nn.Module, shape: Model, ranks: TensorRanks) -> OnLocalWeight:
    if name in ("output", "down"):
        return SummedLinear(whole, ranks)
    if name == "sinks":
        return SplitSinks(whole, ranks, Shard(0))
    if name.endswith("_norm"):
        return SequenceNorm(cast("Any", whole), ranks)
    if name.endswith(
        "_down"
    ):  # each rank has the latent vectors whole, and gradients of its own heads
        return SequenceLinear(whole, ranks)
    kv_heads, width = shape.attention.kv_heads, shape.attention.head_dim
    if name in ("key", "value") and kv_heads < ranks.size:
        head = ranks.number * kv_heads // ranks.size
        return ReplicatedHeads(whole, ranks, slice(head * width, (head + 1) * width))
    return SplitLinear(whole, ranks, Shard(0))
