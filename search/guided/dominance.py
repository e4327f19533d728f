"""Which recipes need at least as much memory as another, whatever formulas say."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from frontrunner.search.guided.features import NAMES
from frontrunner.spaces.recipe import RANK_ORDERS

Rows = npt.NDArray[np.float64]

MORE = ("micro_batch_seqs",)
"""More of it needs more memory."""
LESS = (
    "sharding_parameters",
    "sharding_gradients",
    "sharding_optimizer",
    "recompute",
    "sequence_parallel",
    "loss_chunks",
    "feed_forward_tiles",
    "optimizer_state",
    "activation_offload",
    "offload",
)
"""Less of it needs more memory."""
_MORE = [NAMES.index(name) for name in MORE]
_LESS = [NAMES.index(name) for name in LESS]
_BATCH = [NAMES.index("micro_batch_seqs"), NAMES.index("accumulation")]
_ACCUMULATION = NAMES.index("accumulation")
_SAME = [place for place, name in enumerate(NAMES) if name not in (*MORE, *LESS, "accumulation", *RANK_ORDERS)]


def needs_as_much(rows: Rows, failed: Rows) -> npt.NDArray[np.bool_]:
    """Of rows of `features`, those that need at least the memory of the one row `failed`.

    They are cut over the devices as it is, by the same schedule, and hold no fewer sequences at once: a rank holds as
    many micro-batches as its depth or all there are, so that larger micro-batches that are as many sequences in all
    never need less. A single micro-batch may, where the failed recipe has several: its activations are going when
    gradients come, while later ones are held beside the gradients of those before.
    """
    same = (rows[:, _SAME] == failed[_SAME]).all(axis=1)
    more = (rows[:, _MORE] >= failed[_MORE]).all(axis=1) & (rows[:, _LESS] <= failed[_LESS]).all(axis=1)
    sequences = rows[:, _BATCH].sum(axis=1) >= failed[_BATCH].sum() - 1e-9
    beside_gradients = (rows[:, _ACCUMULATION] > 0) | (failed[_ACCUMULATION] == 0)
    found: npt.NDArray[np.bool_] = same & more & sequences & beside_gradients
    return found
