"""The bubble of a pipeline: how long its slowest rank waits in a step.

Closed forms over equal stages, in seconds of the slowest rank. One of its chunks takes `forward`,
`backward` for the gradients of its input and `weights` for those of its weights; p ranks, m
micro-batches. They were found by simulating the orders of operations that torch's schedules run,
and a test holds them to those orders (tests/unit/test_analytic_schedules.py). The schedules are
those of arXiv 2401.10241 and of DeepSeek's DualPipeV. 1F1B, GPipe and their interleaved variants
wait exactly (p - 1) (forward + backward + weights).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from frontrunner.evaluators.analytic.arrays import Flags, Rows
from frontrunner.evaluators.analytic.workload import Workload


def bubble_s(work: Workload, *, slowest: Rows, through: Rows, left: Rows | float = 1.0) -> Rows:
    """Return the time that the slowest rank waits; a micro-batch takes it `slowest`, and all ranks
    in turn `through`.

    Virtual stages divide it (arXiv 2104.04473, section 2.2); `left` is the share left where the
    backward pass is split.
    """
    return np.where(
        work.degrees.pipeline > 1, (through - slowest) * left / work.schedule.virtual_stages, 0.0
    )


def interleaved(p: Rows, *, forward: Rows, backward: Rows, weights: Rows) -> Rows:
    """Return (p - 1) max(forward, backward, forward + backward - weights); exact for m of at least
    p.
    """
    return (p - 1) * np.maximum(np.maximum(forward, backward), forward + backward - weights)


def v_shaped(p: Rows, m: Rows, *, forward: Rows, backward: Rows, weights: Rows) -> Rows:
    """Return (p - 1) max(forward, backward, 2 (backward - weights)), and what fewer than 2 p
    micro-batches leave.

    Exact for m of at least 2 p where backward is at least forward, else within a tenth; a quarter
    with fewer.
    """
    steady = (p - 1) * np.maximum(np.maximum(forward, backward), 2 * (backward - weights))
    starved = 2 * p * (forward + backward) - 2 * m * forward - 2 * backward
    return np.where(m < 2 * p, np.maximum(steady, starved), steady)


def dual(p: Rows, *, forward: Rows, backward: Rows, weights: Rows) -> Rows:
    """Return max((p - 1) max(forward, forward + backward - weights), (p - 1) (2 backward - weights)
    - forward).

    Exact for m of at least 2 p, which DualPipeV needs.
    """
    filling = (p - 1) * np.maximum(forward, forward + backward - weights)
    return np.maximum(filling, (p - 1) * (2 * backward - weights) - forward)


def share_left(
    p: Rows, m: Rows, parts: Mapping[str, Rows], *, is_v_shaped: Flags, is_dual: Flags
) -> Rows:
    """Return the bubble of a schedule that splits the backward pass over that of one that does not;
    1 for one rank.

    `parts` are the seconds named forward, backward and weights.
    """
    split = np.where(
        is_dual,
        dual(p, **parts),
        np.where(is_v_shaped, v_shaped(p, m, **parts), interleaved(p, **parts)),
    )
    whole = (p - 1) * (parts["forward"] + parts["backward"] + parts["weights"])
    return np.divide(split, whole, out=np.ones(np.broadcast(split, whole).shape), where=whole > 0)
