"""Arithmetic of spans of time. A list of spans is sorted, and its spans are disjoint and not empty."""

from __future__ import annotations

import math
from collections.abc import Iterable

Span = tuple[float, float]
"""Start and end, in any one unit."""


def merged(spans: Iterable[Span]) -> list[Span]:
    """The time that any of the spans covers."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def intersection(one: list[Span], other: list[Span]) -> list[Span]:
    """The time that is in both."""
    found: list[Span] = []
    i = j = 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            found.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


def difference(one: list[Span], other: list[Span]) -> list[Span]:
    """The time that is in `one` and not in `other`."""
    edges = [-math.inf, *(edge for span in other for edge in span), math.inf]
    return intersection(one, list(zip(edges[::2], edges[1::2], strict=True)))


def total(spans: Iterable[Span]) -> float:
    """The sum of the lengths."""
    return sum(end - start for start, end in spans)
