"""When each probe ran, and beside which others, as shapes to draw: a row for each probe at a time.

Stretches in which nothing ran are cut out, and marked. Lengths are in SVG's user units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from frontrunner.text import seconds

WIDTH, LANE_HEIGHT, LANE_GAP, AXIS_HEIGHT = 1120.0, 18.0, 4.0, 24.0
MOST_SPANS = 160
"""Of the newest; more would be thinner than can be seen."""
LONGEST_PAUSE_S = 20.0
"""A longer stretch without a probe is cut out."""
LEAST_WIDTH = 2.0
MOST_TICKS = 8
STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800)


@dataclass(frozen=True, kw_only=True)
class Span:
    """One attempt: when it ran, how it ended (a failure's kind, `measured` or `running`), and what to say of it."""

    started_at: datetime
    ended_at: datetime
    outcome: str
    words: str
    recipe_id: str


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A span as a rectangle."""

    x: float
    y: float
    width: float
    span: Span


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A mark on the axis of time."""

    x: float
    words: str


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The drawing; `cuts` are where time without probes was cut out, `left_out` the older spans that are not shown."""

    width: float
    height: float
    bar_height: float
    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    cuts: tuple[float, ...]
    lanes: int
    left_out: int

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The outcomes that occur, for a legend, in the order of their first."""
        return tuple(dict.fromkeys(bar.span.outcome for bar in self.bars))


def timeline(spans: Sequence[Span], *, left_out: int = 0) -> Timeline | None:
    """The spans in lanes; None without any. `left_out` older ones are there, and not given."""
    shown = sorted(spans, key=lambda span: (span.started_at, span.ended_at))
    if not shown:
        return None
    pauses = _pauses(shown)
    moments = _Moments(shown[0].started_at, pauses)
    total = max(moments.at(max(span.ended_at for span in shown)), 1e-9)
    lanes: list[datetime] = []
    bars = []
    for span in shown:
        lane = _free_lane(lanes, span)
        begin, end = (WIDTH * moments.at(moment) / total for moment in (span.started_at, span.ended_at))
        y = lane * (LANE_HEIGHT + LANE_GAP)
        bars.append(Bar(x=begin, y=y, width=max(end - begin, LEAST_WIDTH), span=span))
    return Timeline(
        width=WIDTH,
        height=len(lanes) * (LANE_HEIGHT + LANE_GAP) + AXIS_HEIGHT,
        bar_height=LANE_HEIGHT,
        bars=tuple(bars),
        ticks=_ticks(total),
        cuts=tuple(WIDTH * moments.at(begin) / total for begin, _ in pauses),
        lanes=len(lanes),
        left_out=left_out,
    )


def _free_lane(lanes: list[datetime], span: Span) -> int:
    """The first lane whose last span has ended, which this one then takes; a new one where none has."""
    for number, ends_at in enumerate(lanes):
        if ends_at <= span.started_at:
            lanes[number] = span.ended_at
            return number
    lanes.append(span.ended_at)
    return len(lanes) - 1


def _pauses(spans: Sequence[Span]) -> list[tuple[datetime, datetime]]:
    """The long stretches in which no span runs; spans are in the order of their beginnings."""
    found, last = [], spans[0].ended_at
    for span in spans:
        if (span.started_at - last).total_seconds() > LONGEST_PAUSE_S:
            found.append((last, span.started_at))
        last = max(last, span.ended_at)
    return found


class _Moments:
    """Turns moments into seconds since the beginning, pauses left out."""

    def __init__(self, beginning: datetime, pauses: Sequence[tuple[datetime, datetime]]) -> None:
        self._beginning, self._pauses = beginning, pauses

    def at(self, moment: datetime) -> float:
        paused = sum((min(end, moment) - begin).total_seconds() for begin, end in self._pauses if begin < moment)
        return (moment - self._beginning).total_seconds() - paused


def _ticks(total_s: float) -> tuple[Tick, ...]:
    step = next((step for step in STEPS_S if total_s / step <= MOST_TICKS), STEPS_S[-1])
    count = min(int(total_s / step), 10 * MOST_TICKS)
    return tuple(Tick(x=WIDTH * step * n / total_s, words=seconds(step * n) if n else "0") for n in range(count + 1))
