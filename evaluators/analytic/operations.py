"""Operations: what a device does in a layer, and the tensors that it keeps for the backward pass.

A part of a model (`parts/`) yields the operations of its forward pass, for one micro-batch on one
rank, and states what the backward pass of each takes. `pricing` turns operations into seconds and
`memory` into bytes; neither knows which part asked for them, and their order does not matter. Every
array has an entry for each recipe, or one where all recipes agree.

Recipes may recompute some parts of a layer (`workload.NAMED_PARTS`). `again` names the parts whose
recomputation runs an operation's forward pass again, `dropped_by` those which drop a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from frontrunner.evaluators.analytic.arrays import Flags, Rows
from frontrunner.evaluators.analytic.kernels import ElementwiseKernel

Parts = frozenset[str]
NONE: Parts = frozenset()


@dataclass(frozen=True, kw_only=True)
class Product:
    """Linear layers that read the same input and run as one matrix product.

    Its factors are [rows, inputs] and [inputs, sum of `outputs`]. The backward pass has two more
    of the same size, for the gradients of the input and of the weights. `count` products of this
    size run together, each with rows and weights of its own, as those of experts.
    """

    rows: Rows
    inputs: Rows | float
    outputs: tuple[Rows | float, ...]
    count: Rows | float = 1.0
    is_wide: bool = False
    """In fp32 whatever the recipe's precision."""
    may_be_narrow: bool = True
    """In 8 bits where the recipe has such products."""
    repeated: Flags | bool = False
    """Recipes whose backward pass runs the product forward once more, whatever they recompute."""
    kept_values: tuple[Rows, ...] = ()
    """Values of each output that stay where selective recompute keeps products; by default rows *
    output.
    """
    is_last: bool = False
    """Only a residual reads the result, so that compiled code does not keep it."""
    dropped_by_alternate: tuple[bool, ...] = ()
    """The outputs that are dropped by code whose selective recompute keeps every second product; by
    default none.
    """
    again: Parts = NONE

    @property
    def width(self) -> Rows | float:
        """The sum of `outputs`."""
        return sum(self.outputs[1:], start=self.outputs[0])

    @property
    def values(self) -> tuple[Rows, ...]:
        """`kept_values`, or their default."""
        return self.kept_values or tuple(self.rows * width for width in self.outputs)


@dataclass(frozen=True, kw_only=True)
class Elementwise:
    """Kernel limited by memory bandwidth, whose bytes per value are in `kernels.KERNELS`.

    It handles `values` on the rank that takes longest. What it keeps is of `kept_values`, by
    default the same. `saved_bytes` of that are not kept, because the product that reads the result
    keeps it in 8 bits.
    """

    kernel: ElementwiseKernel
    values: Rows
    kept_values: Rows | None = None
    saved_bytes: Rows | float = 0.0
    again: Parts = NONE
    dropped_by: Parts = NONE
    drops_result: bool = False
    """Where the kernel runs again, its result is not kept."""


@dataclass(frozen=True, kw_only=True)
class MemoryPass:
    """Further kernels limited by memory bandwidth, by the bytes that each pass moves."""

    forward_bytes: Rows
    backward_bytes: Rows
    repeated: Flags | bool = False
    """As of `Product`."""
    again: Parts = NONE


@dataclass(frozen=True, kw_only=True)
class AttentionCore:
    """Scores of queries and keys, softmax, and the product with the values.

    `pairs` are tokens of the micro-batch * sequence length / tensor-parallel ranks, for one head.
    `attended_share` is the mean share that windows leave of a layer's pairs; the causal mask leaves
    half of them. Widths are those of all heads together.
    """

    pairs: Rows
    attended_share: Rows
    query_width: float
    value_width: float
    heads: float
    """Heads of the whole model: each has scores of all pairs."""
    eager_softmax: Flags
    """Recipes in which the code's own unfused softmax does not run, but an eager one."""
    result_values: Rows
    """Values of the result on the rank."""
    again: Parts = NONE


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Tensors that stay until the backward pass."""

    bytes: Rows
    dropped_by: Parts = NONE


@dataclass(frozen=True, kw_only=True)
class TensorReduction:
    """Sum of a block's results over the tensor-parallel ranks, which is a reduce-scatter and an
    all-gather under sequence parallelism. The backward pass has one of the same size, and
    `more_backward` further ones.
    """

    bytes: Rows
    more_backward: Rows | float = 0.0
    again: Parts = NONE


@dataclass(frozen=True, kw_only=True)
class ContextExchange:
    """All-to-alls around attention between the ranks that share a sequence: of queries, keys and
    values, and of the result (arXiv 2309.14509). The backward pass runs both once.
    """

    inward_bytes: Rows
    outward_bytes: Rows


@dataclass(frozen=True, kw_only=True)
class ExpertDispatch:
    """All-to-alls of a rank's tokens to their experts, and back. The backward pass runs both once.

    A token has `experts_per_token` of `experts`, which are in `groups_kept` of `groups` of experts.
    """

    copy_bytes: Rows
    """Bytes of one copy of each token of the fullest rank."""
    experts: int
    experts_per_token: int
    groups: int = 1
    groups_kept: int = 1
    received_values: Rows | float = 0.0
    """Values that arrive, where selective recompute keeps messages besides products."""
    again: Parts = NONE


@dataclass(frozen=True, kw_only=True)
class HostWork:
    """What the host does to start a layer's kernels, compared with a plain layer.

    Factors multiply a plain layer's work. Shares are further kernels over a plain layer's, and
    `collectives` are started besides, in each pass.
    """

    factor: Rows | float = 1.0
    forward_share: Rows | float = 0.0
    backward_share: Rows | float = 0.0
    collectives: Rows | float = 0.0


Timed = Product | Elementwise | MemoryPass | AttentionCore
"""Operations that compute."""
Operation = Timed | Kept | TensorReduction | ContextExchange | ExpertDispatch | HostWork


def recomputed_as(part: str, operations: Iterable[Operation]) -> Iterator[Operation]:
    """Yield operations that all run again, and tensors that are all dropped, where a part is
    recomputed.
    """
    for operation in operations:
        changes = {
            name: getattr(operation, name) | {part}
            for name in ("again", "dropped_by")
            if hasattr(operation, name)
        }
        yield replace(operation, **changes)
