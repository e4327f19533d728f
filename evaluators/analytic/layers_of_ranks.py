"""How training codes share out layers over a pipeline's ranks, where a table does not say it."""

from __future__ import annotations

import numpy as np

from frontrunner.evaluators.analytic.workload import Rows

Split = tuple[Rows, Rows, Rows]
"""The layers of the first rank, of the fullest between, and of the last; without a pipeline the first has all."""


def even_layers(layers: Rows, ranks: Rows) -> Split:
    """As evenly as possible, the first ranks one more."""
    each, left = np.floor(layers / ranks), layers % ranks
    return each + (left > 0), np.where(ranks > 2, each + (left > 1), 0.0), each


def balanced_layers(layers: Rows, ranks: Rows, heads: Rows) -> Split:
    """Together with a head that costs as much as `heads` layers, as nanotron's `build_model` does (models/base.py).

    A rank takes blocks until their sum, from the first block of the model on, passes its share of the whole.
    """
    columns = np.broadcast_arrays(layers, ranks, heads)
    held = [_taken(int(n), int(p), float(head)) for n, p, head in zip(*columns, strict=True)]
    first, between, last = np.array(held, dtype=np.float64).T
    return first, between, last


def _taken(layers: int, ranks: int, head: float) -> tuple[int, int, int]:
    share, rank, held = (layers + head) / ranks, 0, [0] * ranks
    for layer in range(1, layers + 1):
        held[rank] += 1
        if layer > share * (rank + 1) and rank + 1 < ranks:
            rank += 1
    return held[0], max(held[1:-1], default=0), held[-1]
