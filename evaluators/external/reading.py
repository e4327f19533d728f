"""A trainer's log as steps, peaks and statements, read while it grows."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path

from frontrunner.evaluators.external.keeper import ARRIVALS, LOG
from frontrunner.evaluators.external.patterns import COUNTS, PEAKS, RATES, STATEMENTS, TIMES, Pattern, in_base_units

COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
CHUNK_BYTES = 2**20
"""As much is read at a time; a line that is longer is taken for several."""
LONGEST_LINE = 8_000
"""Bytes of a line that are looked at: twice what patterns search, for colours are taken out first."""


@dataclass(kw_only=True)
class LoggedStep:
    """What the log tells of one step, or of the steps since the one logged before, in means.

    `number` is the trainer's; `arrival_s` when the line came, since the trainer was started. `rates` are by their
    group's name, `loss` is not finite where the log says so. Of lines that repeat a number, as ranks do, the first
    counts.
    """

    number: int
    arrival_s: float
    time_s: float | None = None
    loss: float | None = None
    rates: dict[str, float] = field(default_factory=dict)
    skipped_steps: int = 0
    nan_steps: int = 0

    def learn(self, figures: dict[str, float]) -> None:
        """Take what a line tells, where it was not known."""
        if self.time_s is None:
            self.time_s = next(in_base_units(figures, TIMES), None)
        if self.loss is None:
            self.loss = figures.get("loss")
        self.rates = {name: figures[name] for name in RATES if name in figures} | self.rates
        self.skipped_steps = max(self.skipped_steps, int(figures.get(COUNTS[0], 0)))
        self.nan_steps = max(self.nan_steps, int(figures.get(COUNTS[1], 0)))


@dataclass(frozen=True)
class Statement:
    """What a source says of the configuration: a figure of `STATEMENTS`, its value, and where that stands."""

    figure: str
    value: float
    source: str


class LogReader:
    """Follows `command.log` of a run folder. `steps` are in the order in which they came."""

    def __init__(self, folder: Path, patterns: tuple[Pattern, ...]) -> None:
        self._log = folder / LOG
        self._arrivals = Arrivals(folder / ARRIVALS)
        self._patterns = patterns
        self._unread = b""
        self._offset = 0
        self._by_number: dict[int, LoggedStep] = {}
        self._stated: dict[tuple[str, float], Statement] = {}
        self.peak_memory_bytes = 0

    @property
    def steps(self) -> list[LoggedStep]:
        """The steps logged so far."""
        return list(self._by_number.values())

    @property
    def statements(self) -> tuple[Statement, ...]:
        """Each value that the log states of the configuration, once."""
        return tuple(self._stated.values())

    def advance(self, *, to_the_end: bool = False) -> bool:
        """Read what is new, `to_the_end` a last line without an end too; whether there was anything."""
        self._arrivals.advance()
        anything = False
        while new := self._next():
            anything = True
            self._unread += new
            self._take(self._last_end() or (len(self._unread) if len(self._unread) >= CHUNK_BYTES else 0))
        if to_the_end:
            self._take(len(self._unread))
        return anything

    def _next(self) -> bytes:
        """What has come and was not read yet, at most a chunk of it; what came later has no moment yet."""
        read = self._offset + len(self._unread)
        try:
            with self._log.open("rb") as file:
                file.seek(read)
                return file.read(max(0, min(CHUNK_BYTES, self._arrivals.end - read)))
        except FileNotFoundError:
            return b""

    def _take(self, size: int) -> None:
        """Read the lines in the first `size` bytes."""
        for line in self._unread[:size].replace(b"\r", b"\n").splitlines(keepends=True):  # progress bars return
            self._offset += len(line)
            self._read(COLOURS.sub("", line[:LONGEST_LINE].decode("utf-8", errors="replace").rstrip("\n")))
        self._unread = self._unread[size:]

    def _last_end(self) -> int:
        return max(self._unread.rfind(b"\n"), self._unread.rfind(b"\r")) + 1

    def _read(self, line: str) -> None:
        for pattern in self._patterns:
            figures = pattern.found(line)
            if figures is not None:
                self._take_in(figures, line, marks=pattern.marks_a_step)

    def _take_in(self, figures: dict[str, float], line: str, *, marks: bool) -> None:
        self.peak_memory_bytes = max([self.peak_memory_bytes, *map(int, in_base_units(figures, PEAKS))])
        for name in STATEMENTS:
            if name in figures:
                self._stated.setdefault((name, figures[name]), Statement(name, figures[name], line.strip()))
        if marks and figures:
            number = int(figures.get("step", max(self._by_number, default=0) + 1))
            step = self._by_number.get(number)
            if step is None:
                step = LoggedStep(number=number, arrival_s=self._arrivals.of(self._offset))
                self._by_number[number] = step
            step.learn(figures)
        elif self._by_number:  # a loss, say, on a line of its own: of the step logged last
            next(reversed(self._by_number.values())).learn(figures)


class Arrivals:
    """When each part of a log came, in seconds since the trainer was started."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._ends: list[int] = []
        self._seconds: list[float] = []

    def advance(self) -> None:
        """Read what is new."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            try:
                end, seconds = line.split(b" ")
                at = int(end), float(seconds)
            except ValueError:
                continue  # cut short by a full disk, and gone on with: the next line tells of its part of the log
            if at[0] >= self.end:  # nothing goes back
                self._ends.append(at[0])
                self._seconds.append(at[1])

    @property
    def end(self) -> int:
        """How much of the log has come, in bytes."""
        return self._ends[-1] if self._ends else 0

    def of(self, offset: int) -> float:
        """When the log's byte before `offset` came; `offset` is at most `end`."""
        return self._seconds[bisect_left(self._ends, offset)]
