"""Bytes that kernels outside matrix products move and keep, for each way to write an operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

ElementwiseKernel = Literal[
    "norm",
    "rotary",
    "other rotary",
    "gate",
    "clamped gate",
    "gelu",
    "residual",
    "reshape",
    "permutation",
    "sorting",
    "expert bias",
    "weighted expert bias",
    "wide weighted expert bias",
]
Form = Literal["fused", "eager", "fp32"]
"""How an operation is written: as one kernel, as torch's operations, or as those in fp32."""


class Bytes(NamedTuple):
    """Bytes per 16-bit value: moved in the forward and the backward pass, and kept in between.

    Values of 32 bits take twice as many. An operation reads its inputs from memory and writes its
    result there.
    """

    forward: float
    backward: float
    kept: float


KERNELS: Mapping[ElementwiseKernel, Mapping[str, Bytes]] = {
    # A fused kernel reads and writes once. Its backward pass reads input and gradient and writes
    # one, and reads both again for the gradient of the norm's weight. An eager RMSNorm casts to
    # fp32 (2 + 4), squares (8), averages (4), multiplies (8), casts back (6) and multiplies by the
    # weight (4). Backward these take 12, 6, 24, 16, 12 for the sum of both gradients, and 6. It
    # keeps the fp32 copy and the normalized value.
    "norm": {"fused": Bytes(4, 10, 2), "eager": Bytes(36, 76, 6)},
    # An eager rotation negates a half and joins the halves (6), multiplies by cosine and sine (8)
    # and adds (6). Backward there are also two slices (8) and the sums of three gradients (12).
    # `fp32` is the project's own.
    "rotary": {"fused": Bytes(4, 4, 0), "eager": Bytes(20, 30, 0), "fp32": Bytes(48, 48, 2)},
    # `silu(x) * gate` in two kernels writes, reads and keeps what lies between them.
    "gate": {"fused": Bytes(6, 10, 6), "eager": Bytes(10, 18, 8)},
    # gpt-oss's gate clamps both halves (8), multiplies (4), takes the sigmoid (4), multiplies by it
    # (6), adds 1 (4) and multiplies (6). Clamped before a fused kernel, both halves are clamped (8)
    # and joined (8), and in the backward pass clamped (12) and joined (8).
    "clamped gate": {
        "fused": Bytes(6, 10, 6),
        "clamped before": Bytes(22, 30, 10),
        "eager": Bytes(32, 52, 14),
    },
    "gelu": {"fused": Bytes(4, 8, 4), "eager": Bytes(4, 8, 4)},
    # A gradient that two branches share is added (6).
    "residual": {"plain": Bytes(6, 6, 0), "dropout": Bytes(7, 13, 1)},
    "reshape": {"eager": Bytes(4, 8, 0)},
    # Each of a token's experts gathers its row (4), puts its result back in order (4), weighs it
    # (4) and adds it (2). It keeps the row and the result. Where the gate has weighed the result
    # before, it is added to what is there (6), backward too, and not kept. Fused, a token's row is
    # read once and written for each expert, and the results, weighed with the gate, are read for
    # each expert and written once.
    "permutation": {
        "fused": Bytes(4, 4, 2),
        "weighed before": Bytes(10, 10, 2),
        "eager": Bytes(14, 20, 4),
    },
    # Received rows are sorted by expert, and back.
    "sorting": {"fused": Bytes(8, 8, 0)},
    # An expert's bias is repeated for its rows (2) and added (6), and its gradient summed (4).
    "expert bias": {"eager": Bytes(8, 4, 0)},
    # A bias of the last product that the router's weight multiplies is repeated (2), multiplied,
    # added (6) and joined with those of other experts (4). Backward its gradient and that of the
    # weight are multiplied and summed (6 each), and those of the rows joined (4). With weights in
    # fp32 these are 4, 10 and 8, and 6 to convert; backward 12 each, 4, and 12 to convert.
    "weighted expert bias": {"eager": Bytes(12, 16, 0)},
    "wide weighted expert bias": {"eager": Bytes(28, 40, 0)},
}
SOFTMAX: Mapping[str, Bytes] = {
    # The product writes the scores, softmax reads and writes them, the next product reads them. An
    # eager softmax casts to fp32 (6), masks (9), normalizes (8), casts back (6), and keeps both.
    "fused": Bytes(8, 14, 2),
    "math": Bytes(8, 14, 4),
    "eager": Bytes(33, 41, 6),
}
"""Bytes per score of attention that is not one kernel."""
DROPPED_SCORE = Bytes(5, 5, 3)
"""Further bytes per score where scores are dropped out."""

FLASH_SPEED = {1: 0.53, 2: 1.0, 3: 1.75}
"""FlashAttention's rate by version: 25-40 % of an A100's peak against 50-73 % (arXiv 2307.08691,
abstract), and 1.5 to 2 times that of version 2 on H100 (2407.08608, abstract).
"""
