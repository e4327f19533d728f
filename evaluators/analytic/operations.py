"""Operations: what a device does in a layer, and the tensors that it keeps for the backward pass.

A part of a model (`parts/`) yields the operations of its forward pass, in order, for one
micro-batch on one rank. Each states what its backward pass takes. `pricing` turns operations into
seconds and `memory` into bytes; neither knows which part asked for them. Every array has an entry
for each recipe.

Recipes may recompute some parts of a layer (`workload.NAMED_PARTS`). `again` names the parts whose
recomputation runs an operation's forward pass again, `dropped_by` those which drop a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from frontrunner.evaluators.analytic.arrays import Flags, Rows
from frontrunner.evaluators.analytic.kernels import Operation as Kernel

Parts = frozenset[str]
NONE: Parts = frozenset()


@dataclass(frozen=True, kw_only=True)
class Product:
    """Linear layers that read the same [rows, inputs] and run as one product.

    The result is [rows, sum of `outputs`]. The backward pass has two products of the same size, for
    the gradients of the input and of the weights. Of `count` such products each is of other rows
    and weights, as those of experts.
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
    """Recipes whose backward pass runs the product forward once more."""
    kept_values: tuple[Rows, ...] = ()
    """Values of each output on the rank; by default rows * output."""
    is_last: bool = False
    """Only a residual reads the result, so that compiled code does not keep it."""
    dropped_by_alternate: tuple[bool, ...] = ()
    """The outputs that code which keeps every second product drops; by default none."""
    again: Parts = NONE

    @property
    def width(self) -> Rows | float:
        """The sum of `outputs`."""
        return sum(self.outputs[1:], start=self.outputs[0])

    @property
    def values(self) -> tuple[Rows, ...]:
        """Values of each output."""
        return self.kept_values or tuple(self.rows * width for width in self.outputs)


@dataclass(frozen=True, kw_only=True)
class Elementwise:
    """Kernel limited by memory bandwidth; `kernels.KERNELS` has its bytes per value.

    `values` are those of the rank that takes longest, `kept_values` (by default the same) those
    whose tensors stay until the backward pass. `saved_bytes` are kept less, because the product
    after it keeps its input in 8 bits. Where the kernel runs `again`, it drops its result if
    `drops_result`.
    """

    kernel: Kernel
    values: Rows
    kept_values: Rows | None = None
    saved_bytes: Rows | float = 0.0
    again: Parts = NONE
    dropped_by: Parts = NONE
    drops_result: bool = False


@dataclass(frozen=True, kw_only=True)
class MemoryPass:
    """Further kernels limited by memory bandwidth, by the bytes that each pass moves."""

    forward_bytes: Rows
    backward_bytes: Rows
    repeated: Flags | bool = False
    """Recipes whose backward pass runs the forward kernels once more."""
    again: Parts = NONE


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Scores of queries and keys, softmax, and the product with the values.

    `pairs` are pairs of a token and a position, the whole sequence for each token, and
    `attended_share` is what windows leave of them. The causal mask leaves half of that. Widths are
    those of all heads together; `pairs` and `heads` are a tensor-parallel rank's share.
    """

    pairs: Rows
    attended_share: float
    query_width: float
    value_width: float
    heads: float
    eager_softmax: Flags
    """Where the code's own softmax does not run."""
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
    """Sum of a block's results over the tensor-parallel ranks, or its two halves under sequence
    parallelism. The backward pass has one of the same size, and `more_backward` further ones.
    """

    bytes: Rows
    more_backward: Rows | float = 0.0
    again: Parts = NONE


@dataclass(frozen=True, kw_only=True)
class ContextExchange:
    """All-to-alls around attention between the ranks that share a sequence: of queries, keys and
    values, and of the result (arXiv 2309.14509).
    """

    inward_bytes: Rows
    outward_bytes: Rows


@dataclass(frozen=True, kw_only=True)
class ExpertDispatch:
    """All-to-alls of a rank's tokens to their experts, and back.

    A token has `experts_per_token` of `experts`, from `groups_kept` of `groups` of neighbors.
    """

    row_bytes: Rows
    """Bytes of one copy of all tokens of the fullest rank."""
    experts: int
    experts_per_token: int
    groups: int = 1
    groups_kept: int = 1
    received_values: Rows | float = 0.0
    """What code that keeps products and these messages keeps of them."""
    again: Parts = NONE


@dataclass(frozen=True, kw_only=True)
class HostWork:
    """Kernels that the host starts besides a plain layer's.

    `factor` multiplies the whole layer's. The shares are of the plain layer's, forward and
    backward.
    """

    factor: Rows | float = 1.0
    forward_share: Rows | float = 0.0
    backward_share: Rows | float = 0.0
    collectives: Rows | float = 0.0


Operation = (
    Product
    | Elementwise
    | MemoryPass
    | Attention
    | Kept
    | TensorReduction
    | ContextExchange
    | ExpertDispatch
    | HostWork
)


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
