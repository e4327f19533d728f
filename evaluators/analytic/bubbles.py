"""What is left of the bubble where a schedule runs the gradients of weights apart, in what would be waiting.

Closed forms over equal stages, in seconds of the slowest rank: one of its chunks takes `forward`, `backward` for the
gradients of its input and `weights` for those of its weights; p ranks, m micro-batches. They were found by simulating
the orders of operations that torch's schedules run, over ratios of the three, and are held to them by a test
(tests/unit/test_analytic_bubbles.py). The schedules are those of arXiv 2401.10241 and of DeepSeek's DualPipeV.

The others need no such form: 1F1B, GPipe and their interleaved kin wait exactly (p - 1) (forward + backward + weights).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from frontrunner.evaluators.analytic.workload import Flags, Rows


def plain(p: Rows, *, forward: Rows, backward: Rows, weights: Rows) -> Rows:
    """(p - 1) (forward + backward + weights): the bubble of schedules that run the backward pass in one piece."""
    return (p - 1) * (forward + backward + weights)


def interleaved(p: Rows, *, forward: Rows, backward: Rows, weights: Rows) -> Rows:
    """(p - 1) max(forward, backward, forward + backward - weights); exact for m of at least p."""
    return (p - 1) * np.maximum(np.maximum(forward, backward), forward + backward - weights)


def v_shaped(p: Rows, m: Rows, *, forward: Rows, backward: Rows, weights: Rows) -> Rows:
    """(p - 1) max(forward, backward, 2 (backward - weights)), and with fewer than 2 p micro-batches what they leave.

    Exact for m of at least 2 p where backward is at least forward, else within a tenth; a quarter with fewer.
    """
    steady = (p - 1) * np.maximum(np.maximum(forward, backward), 2 * (backward - weights))
    starved = 2 * p * (forward + backward) - 2 * m * forward - 2 * backward
    return np.where(m < 2 * p, np.maximum(steady, starved), steady)


def dual(p: Rows, *, forward: Rows, backward: Rows, weights: Rows) -> Rows:
    """The larger of (p - 1) max(forward, forward + backward - weights) and (p - 1) (2 backward - weights) - forward.

    Exact for m of at least 2 p, which DualPipeV needs.
    """
    filling = (p - 1) * np.maximum(forward, forward + backward - weights)
    return np.maximum(filling, (p - 1) * (2 * backward - weights) - forward)


def share_left(p: Rows, m: Rows, parts: Mapping[str, Rows], *, is_v_shaped: Flags, is_dual: Flags) -> Rows:
    """The bubble of a schedule that splits the backward pass, over that of one that does not; 1 without a pipeline.

    `parts` are the seconds named forward, backward and weights.
    """
    split = np.where(is_dual, dual(p, **parts), np.where(is_v_shaped, v_shaped(p, m, **parts), interleaved(p, **parts)))
    whole = plain(p, **parts)
    return np.divide(split, whole, out=np.ones(np.broadcast(split, whole).shape), where=whole > 0)
