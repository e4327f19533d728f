"""Bars of parts laid end to end, as shapes to draw: where a step's time goes, and a rank's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, ROW_HEIGHT, ROW_GAP, LABEL_HEIGHT = 1120.0, 30.0, 10.0, 18.0
ROOM_A_CHARACTER = 7.5
COLOURS = 8
"""Fills that the style sheet knows, `part-0` and on."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a bar; `fill` numbers its colour, which is the same for parts of one name in all bars."""

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
    names = [name for name in dict.fromkeys(name for _, parts in rows for name in parts) if _is_there(name, rows)]
    fills = {name: place % COLOURS for place, name in enumerate(names)}
    longest = max([sum(parts.values()) for _, parts in rows] + ([limit] if limit is not None else []))
    scale = WIDTH / longest if longest > 0 else 0.0
    step = LABEL_HEIGHT + ROW_HEIGHT + ROW_GAP
    return Stack(
        width=WIDTH,
        height=step * len(rows),
        row_height=ROW_HEIGHT,
        label_height=LABEL_HEIGHT,
        rows=tuple(_row(label, parts, number * step, scale, fills) for number, (label, parts) in enumerate(rows)),
        limit_x=None if limit is None else limit * scale,
    )


def _is_there(name: str, rows: Sequence[tuple[str, Mapping[str, float]]]) -> bool:
    return any(parts.get(name, 0.0) > 0 for _, parts in rows)


def _row(label: str, parts: Mapping[str, float], y: float, scale: float, fills: Mapping[str, int]) -> Row:
    total, x, found = sum(parts.values()), 0.0, []
    for name, amount in parts.items():
        if amount > 0:
            width = amount * scale
            words = name if width >= ROOM_A_CHARACTER * (len(name) + 2) else ""
            share = amount / total
            found.append(Part(name=name, amount=amount, share=share, x=x, width=width, fill=fills[name], words=words))
            x += width
    return Row(label=label, y=y, total=total, parts=tuple(found))
