"""Tensor parallelism, with or without sequence parallelism.

Weights are split as in Megatron-LM (arXiv 1909.08053): query, key, value and the feed-forward's first matrices by
columns, the matrices after them by rows, embedding and head by the vocabulary. Without sequence parallelism the
activations between blocks are whole on every rank; with it (arXiv 2205.05198) they are split along the sequence.
All that lies before the last norm computes on plain tensors: see `tensor_layers`. Last norm and head, which run once a
micro-batch, are torch's DTensor plans; logits stay split over the vocabulary, and the loss is computed under
`loss_parallel`.
"""

from typing import Any, cast

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    SequenceParallel,
    parallelize_module,
)

from frontrunner.evaluators.trainer.blocks import Attention, Block
from frontrunner.evaluators.trainer.model import Gpt, TiedHead
from frontrunner.evaluators.trainer.tensor_layers import (
    ReplicatedHeads,
    SequenceNorm,
    SplitEmbedding,
    SplitLinear,
    SummedLinear,
)
from frontrunner.evaluators.trainer.tensor_ranks import TensorRanks
from frontrunner.spaces.model import Model


def apply_tensor_parallel(model: Gpt, shape: Model, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Split `model`, in place, over the ranks of the 1-D `mesh`."""
    ranks = TensorRanks(mesh, sequence_parallel=sequence_parallel)
    for block in model.blocks.values():
        _split_block(cast("Block", block), shape, ranks, sequence_parallel=sequence_parallel)
    if model.embedding is not None:
        model.embedding.tokens = cast("Any", SplitEmbedding(model.embedding.tokens, ranks))
        if model.embedding.positions is not None:
            model.embedding.positions = cast("Any", SplitEmbedding(model.embedding.positions, ranks))
    if model.head is not None:
        parallelize_module(model, mesh, _head_plan(model, Shard(1) if sequence_parallel else Replicate()))


def _split_block(block: Block, shape: Model, ranks: TensorRanks, *, sequence_parallel: bool) -> None:
    _replace(block.attention, SplitLinear, ranks, Shard(0), names=("query",))
    if shape.kv_heads < ranks.size:
        _replicate_key_value(block.attention, shape, ranks)
    else:
        _replace(block.attention, SplitLinear, ranks, Shard(0), names=("key", "value"))
    _replace(block.attention, SummedLinear, ranks, Shard(1), names=("output",))
    _replace(block.feed_forward, SplitLinear, ranks, Shard(0), names=("gate", "up"))
    _replace(block.feed_forward, SummedLinear, ranks, Shard(1), names=("down",))

    def enter(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (ranks.enter(inputs[0]),)

    # At the part's input and not in each layer, so that the gradients of its several uses are summed once.
    block.attention.register_forward_pre_hook(enter)
    block.feed_forward.register_forward_pre_hook(enter)
    if sequence_parallel:
        block.attention_norm = SequenceNorm(cast("Any", block.attention_norm), ranks)
        block.feed_forward_norm = SequenceNorm(cast("Any", block.feed_forward_norm), ranks)


def _replace(
    part: nn.Module, layer: type[SplitLinear], ranks: TensorRanks, placement: Placement, *, names: tuple[str, ...]
) -> None:
    for name in names:
        if hasattr(part, name):
            setattr(part, name, layer(getattr(part, name), ranks, placement))


def _replicate_key_value(attention: Attention, shape: Model, ranks: TensorRanks) -> None:
    head = ranks.number * shape.kv_heads // ranks.size
    rows = slice(head * shape.head_dim, (head + 1) * shape.head_dim)
    for name in ("key", "value"):
        setattr(attention, name, ReplicatedHeads(getattr(attention, name), ranks, rows))


def _head_plan(model: Gpt, between_blocks: Placement) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {"norm": SequenceParallel()} if between_blocks.is_shard() else {}
    if isinstance(model.head, TiedHead):
        plan["head"] = PrepareModuleInput(input_layouts=(between_blocks,), desired_input_layouts=(Replicate(),))
    else:
        plan["head"] = ColwiseParallel(input_layouts=between_blocks, output_layouts=Shard(-1), use_local_output=False)
    return plan
