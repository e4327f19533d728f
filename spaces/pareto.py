"""Pareto front of several objectives."""

from __future__ import annotations

from collections.abc import Sequence

OBJECTIVES = ("tokens", "memory", "nodes")
"""What a front and a search can weigh."""
RATES = ("tokens", "tokens_per_device", "tokens_per_cost")
"""What a search can seek alone: tokens/s, by device, or for the price of the nodes
(`Problem.divisor`).
"""


def pareto_front(points: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices, rising, of the points that no other point dominates; larger is better in
    each coordinate.

    Of equal points the first is returned. Takes O(n log n) for two coordinates.
    """
    front: list[int] = []
    # From the largest down, no point is dominated by one after it; in two coordinates only the last
    # kept can dominate.
    for index in sorted(range(len(points)), key=lambda at: tuple(points[at]), reverse=True):
        point = points[index]
        rivals = front[-1:] if len(point) == 2 else front
        if not any(
            all(a >= b for a, b in zip(points[rival], point, strict=True)) for rival in rivals
        ):
            front.append(index)
    return sorted(front)
