"""Bars of parts laid end to end, as shapes to draw: where a step's time goes, and a rank's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, ROW_HEIGHT, ROW_GAP, LABEL_HEIGHT = 1120.0, 30.0, 10.0, 18.0
ROOM_A_CHARACTER = 7.5
FILLS = {
    "compute": 0,
    "TP traffic": 1,
    "optimizer": 2,
    "recompute": 3,
    "CP traffic": 4,
    "PP transfer": 5,
    "DP traffic": 6,
    "bubble": 7,
    "host transfer": 8,
    "parameters": 0,
    "gradients": 1,
    "activations": 3,
    "logits": 4,
    "working": 5,
    "runtime": 7,
}
"""The fill of each part of a step and of a memory, by which the style sheet knows it, `part-0` and on: a part has the
same colour on every recipe's page."""
OTHER = 8
"""The fill of a part that is not listed."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a bar; `fill` numbers its colour, as `FILLS` says."""

    name: str
    amount: float
    share: float
    x: float
    width: float
    fill: int
    words: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """One bar with what stands above it."""

    label: str
    y: float
    total: float
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Bars under one another on one scale; `limit_x` is where a limit lies, None without one."""

    width: float
    height: float
    row_height: float
    label_height: float
    rows: tuple[Row, ...]
    limit_x: float | None


def stack(rows: Sequence[tuple[str, Mapping[str, float]]], *, limit: float | None = None) -> Stack:
    """Bars of (label, part -> amount), with one scale that also holds the limit; parts of 0 are left out."""
    longest = max([sum(parts.values()) for _, parts in rows] + ([limit] if limit is not None else []))
    scale = WIDTH / longest if longest > 0 else 0.0
    step = LABEL_HEIGHT + ROW_HEIGHT + ROW_GAP
    return Stack(
        width=WIDTH,
        height=step * len(rows),
        row_height=ROW_HEIGHT,
        label_height=LABEL_HEIGHT,
        rows=tuple(_row(label, parts, number * step, scale) for number, (label, parts) in enumerate(rows)),
        limit_x=None if limit is None else limit * scale,
    )


def _row(label: str, parts: Mapping[str, float], y: float, scale: float) -> Row:
    total, x, found = sum(parts.values()), 0.0, []
    for name, amount in parts.items():
        if amount > 0:
            width = amount * scale
            words = name if width >= ROOM_A_CHARACTER * (len(name) + 2) else ""
            share = amount / total
            fill = FILLS.get(name, OTHER)
            found.append(Part(name=name, amount=amount, share=share, x=x, width=width, fill=fill, words=words))
            x += width
    return Row(label=label, y=y, total=total, parts=tuple(found))
