"""Tensor parallelism as DTensor plans, with or without sequence parallelism.

Weights are split as in Megatron-LM (arXiv 1909.08053): query, key, value and the feed-forward's first matrices by
columns, the matrices after them by rows, embedding and head by the vocabulary. Without sequence parallelism the
activations between blocks are whole on every rank; with it (arXiv 2205.05198) they are split along the sequence.
Logits stay split over the vocabulary, and the loss is computed under `loss_parallel`.
"""

from typing import cast

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

from frontrunner.evaluators.trainer.job import ModelShape
from frontrunner.evaluators.trainer.model import Attention, Block, Gpt, TiedHead


class ReplicatedHeads(nn.Module):
    """A key or value projection for more tensor-parallel ranks than key-value heads.

    Every rank keeps the whole weight and computes the one head that its query heads use. Each rank's gradients, of
    the weight and of the input, are therefore parts of a sum over the ranks, and are declared so.
    """

    def __init__(self, linear: nn.Linear, mesh: DeviceMesh, head_rows: slice) -> None:
        super().__init__()
        self._head_rows = head_rows
        self.weight = nn.Parameter(distribute_tensor(linear.weight, mesh, [Replicate()]))

    def forward(self, x: DTensor) -> Tensor:
        """Replicated [B, S, D] -> this rank's head [B, S, head width], a plain tensor."""
        weight = cast("DTensor", self.weight).to_local(grad_placements=[Partial()])
        return functional.linear(x.to_local(grad_placements=[Partial()]), weight[self._head_rows])


def apply_tensor_parallel(model: Gpt, shape: ModelShape, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Split `model`, in place, over the ranks of the 1-D `mesh`."""
    between_blocks: Placement = Shard(1) if sequence_parallel else Replicate()
    for block in model.blocks.values():
        block = cast("Block", block)
        if shape.kv_heads < mesh.size():
            _replicate_key_value(block.attention, shape, mesh)
        parallelize_module(block, mesh, _block_plan(block, between_blocks))
    outer = _outer_plan(model, between_blocks)
    if outer:
        parallelize_module(model, mesh, outer)


def _block_plan(block: Block, between_blocks: Placement) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {
        "attention": _gather_input(between_blocks),
        "attention.query": ColwiseParallel(),
        "attention.output": RowwiseParallel(output_layouts=between_blocks),
        "feed_forward": _gather_input(between_blocks),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(output_layouts=between_blocks),
    }
    if not isinstance(block.attention.key, ReplicatedHeads):
        plan |= {"attention.key": ColwiseParallel(), "attention.value": ColwiseParallel()}
    if hasattr(block.feed_forward, "gate"):
        plan["feed_forward.gate"] = ColwiseParallel()
    if between_blocks.is_shard():
        plan |= {"attention_norm": SequenceParallel(), "feed_forward_norm": SequenceParallel()}
    return plan


def _outer_plan(model: Gpt, between_blocks: Placement) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {}
    if model.embedding is not None:
        style = RowwiseParallel(input_layouts=Replicate(), output_layouts=between_blocks)
        plan["embedding.tokens"] = style
        if model.embedding.positions is not None:
            plan["embedding.positions"] = style
    if model.head is None:
        return plan
    if between_blocks.is_shard():
        plan["norm"] = SequenceParallel()
    if isinstance(model.head, TiedHead):
        plan["head"] = _gather_input(between_blocks)
    else:
        plan["head"] = ColwiseParallel(input_layouts=between_blocks, output_layouts=Shard(-1), use_local_output=False)
    return plan


def _gather_input(between_blocks: Placement) -> PrepareModuleInput:
    """Make the input a whole DTensor once, so that the gradients of its several uses are summed once."""
    return PrepareModuleInput(input_layouts=(between_blocks,), desired_input_layouts=(Replicate(),))


def _replicate_key_value(attention: Attention, shape: ModelShape, mesh: DeviceMesh) -> None:
    head = mesh.get_local_rank() * shape.kv_heads // mesh.size()
    rows = slice(head * shape.head_width, (head + 1) * shape.head_width)
    for name in ("key", "value"):
        setattr(attention, name, ReplicatedHeads(getattr(attention, name), mesh, rows))
