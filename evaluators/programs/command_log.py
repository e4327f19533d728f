"""The log of a command or a rank: written within limits, and read while it grows.

A trainer may print more than a disk holds and more than the driver can search. Two limits keep the
log useful, whatever is printed:

* Each stream (stdout and stderr of each process) has a rate limit. Lines beyond it wait for a
  while, and are left out if more of them come. So a flood on one stream hides nothing on another
  one, and the lines that follow a flood are written as usual.
* The file has a largest size. A file that reaches it loses its middle.

A line in the log says how much was left out, wherever something was.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from frontrunner.evaluators.runs.files import LineReader

MAX_LINE_BYTES = 2**16
"""A longer line is cut into lines of at most this size."""
READ_BYTES = 2**21
"""Read at once. Searching this much takes 0.03 to 0.4 s, by the length of lines and the patterns
(measured with those of the ready-made trainers).
"""
REFILL_S = 0.1
"""A stream may write more only so often, so that few lines say that others were left out."""
LEFT_OUT = b"[frontrunner left out "
"""Beginning of each line that says that output was left out."""
MIDDLE = b"\n- " + LEFT_OUT + b"%15d bytes of this log here]\n"
"""Stands where the middle of a file was. No output looks like this: each line of it begins with a
number.
"""
MIDDLE_LENGTH = len(MIDDLE % 0)
STAMP_BYTES = len(b"0.000000 ") + 1
"""Counted for each line besides its content: the time of arrival, about, and the newline."""
_MIDDLE = re.compile(rb"\n- " + re.escape(LEFT_OUT) + rb" *(\d+) bytes of this log here\]\n")


@dataclass(frozen=True, kw_only=True)
class LogLimits:
    """Limits of one log.

    A stream may write `burst_bytes` at once, and `bytes_per_s` in the long run. Its last
    `waiting_bytes` beyond that are kept in memory until they may be written.
    """

    file_bytes: float = 64 * 2**20
    """Room on the disk, including the second file that exists for a moment when the middle is left
    out.
    """
    burst_bytes: float = 4 * 2**20
    bytes_per_s: float = 256 * 2**10
    waiting_bytes: int = 256 * 2**10

    @property
    def largest_bytes(self) -> float:
        """Return the size at which a file loses its middle: 5/8 of the room."""
        return self.file_bytes * 5 / 8

    @property
    def head_bytes(self) -> int:
        """Return the length of the beginning that is kept: 1/4 of the room."""
        return int(self.file_bytes) // 4

    @property
    def tail_bytes(self) -> int:
        """Return the length of the end that is kept at least: 1/8 of the room."""
        return int(self.file_bytes) // 8


LIMITS = LogLimits()
UNLIMITED = LogLimits(file_bytes=math.inf, burst_bytes=math.inf, bytes_per_s=0.0)


class _Line(NamedTuple):
    """A line of output, without its newline."""

    arrival_s: float
    content: bytes


class _Stream:
    """The stdout or stderr of one process: its unfinished line, and the lines that wait to be
    written.
    """

    def __init__(self, name: str, limits: LogLimits, now_s: float) -> None:
        self._name, self._limits = name, limits
        self._unfinished = b""
        self._waiting = deque[_Line]()
        self._waiting_bytes = 0
        self._allowed_bytes = limits.burst_bytes
        self._refilled_s = now_s
        self._left_out_lines = self._left_out_bytes = 0

    def add(self, data: bytes, now_s: float) -> None:
        """Add output; a line ends with a newline, or with the carriage return of a progress bar."""
        *lines, unfinished = (self._unfinished + data).replace(b"\r", b"\n").split(b"\n")
        for content in lines:
            for begin in range(0, max(1, len(content)), MAX_LINE_BYTES):
                self._wait(now_s, content[begin : begin + MAX_LINE_BYTES])
        while len(unfinished) >= MAX_LINE_BYTES:
            self._wait(now_s, unfinished[:MAX_LINE_BYTES])
            unfinished = unfinished[MAX_LINE_BYTES:]
        self._unfinished = unfinished

    def _wait(self, now_s: float, content: bytes) -> None:
        self._waiting.append(_Line(now_s, content))
        self._waiting_bytes += len(content) + STAMP_BYTES

    def due(self, now_s: float) -> list[_Line]:
        """Remove and return the lines that may be written now; leave out those for which there is
        no room to wait.
        """
        waited_s = now_s - self._refilled_s
        if waited_s >= REFILL_S:
            refilled_bytes = self._allowed_bytes + waited_s * self._limits.bytes_per_s
            self._allowed_bytes = min(self._limits.burst_bytes, refilled_bytes)
            self._refilled_s = now_s
        lines: list[_Line] = []
        while self._waiting:
            size = len(self._waiting[0].content) + STAMP_BYTES
            if size > self._allowed_bytes:
                break
            self._allowed_bytes -= size
            lines += self._next()
        while self._waiting_bytes > self._limits.waiting_bytes:
            self._left_out_bytes += len(self._remove().content)
            self._left_out_lines += 1
        return lines

    def end(self, now_s: float) -> list[_Line]:
        """Remove and return all lines that are left, the unfinished one included."""
        if self._unfinished:
            self.add(b"\n", now_s)
        lines = self.due(now_s)
        while self._waiting:
            lines += self._next()
        return lines

    def _next(self) -> list[_Line]:
        """Remove and return the line that has waited longest, after a line that says what was left
        out before it.
        """
        line = self._remove()
        if not self._left_out_lines:
            return [line]
        what = (
            f"{self._left_out_lines} lines ({self._left_out_bytes} bytes) of {self._name} here:"
            f" rate limit {self._limits.bytes_per_s:g} bytes/s]"
        )
        self._left_out_lines = self._left_out_bytes = 0
        return [_Line(line.arrival_s, LEFT_OUT + what.encode()), line]

    def _remove(self) -> _Line:
        line = self._waiting.popleft()
        self._waiting_bytes -= len(line.content) + STAMP_BYTES
        return line


class Log:
    """The log of a command or a rank, while it is written. With `has_times` each line comes after
    the second of its arrival.
    """

    def __init__(
        self,
        path: Path,
        limits: LogLimits = LIMITS,
        *,
        has_times: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._limits, self._clock = path, limits, clock
        self._has_times = has_times
        self._began_s = clock()
        self._streams: dict[str, _Stream] = {}
        self._size = 0
        self._left_out_bytes = 0  # of the middle
        path.write_bytes(b"")

    @property
    def seconds(self) -> float:
        """Return the time since the start."""
        return self._clock() - self._began_s

    def write(self, data: bytes, stream: str = "stdout") -> None:
        """Write the lines that these bytes complete, as far as the stream's rate limit allows."""
        now_s = self.seconds
        if stream not in self._streams:
            self._streams[stream] = _Stream(stream, self._limits, now_s)
        self._streams[stream].add(data, now_s)
        self._append(self._streams[stream].due(now_s))

    def write_waiting(self) -> None:
        """Write the lines that have waited long enough."""
        for stream in self._streams.values():
            self._append(stream.due(self.seconds))

    def close(self) -> None:
        """Write what is left, in the order of arrival."""
        ends = [stream.end(self.seconds) for stream in self._streams.values()]
        self._append(sorted(itertools.chain(*ends), key=lambda line: line.arrival_s))

    def _append(self, lines: list[_Line]) -> None:
        if not lines:
            return
        if self._has_times:
            text = b"".join(b"%.6f %b\n" % line for line in lines)
        else:
            text = b"".join(b"%b\n" % line.content for line in lines)
        if self._size + len(text) > self._limits.largest_bytes:
            self._leave_out_middle()
        # Closed at once: a network file system shows what was closed.
        with self._path.open("ab") as file:
            file.write(text)
        self._size += len(text)

    def _leave_out_middle(self) -> None:
        """Replace the file by one that has only its beginning and its end.

        It is replaced and not changed, so that whoever reads it sees one or the other.
        """
        head_bytes, tail_bytes = self._limits.head_bytes, self._limits.tail_bytes
        if self._size <= head_bytes + MIDDLE_LENGTH + tail_bytes:
            return
        shorter = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with self._path.open("rb") as file, shorter.open("wb") as written:
            written.write(file.read(head_bytes))
            file.seek(self._size - tail_bytes)
            file.readline()  # the rest of a line
            tail = file.read()
            removed = self._size - head_bytes - len(tail)
            if self._left_out_bytes:
                removed -= MIDDLE_LENGTH
            self._left_out_bytes += removed
            written.write(MIDDLE % self._left_out_bytes)
            written.write(tail)
        shorter.replace(self._path)
        self._size = head_bytes + MIDDLE_LENGTH + len(tail)


class LogLines(LineReader):
    """Reads the lines that are added to a command's log, a bounded piece at a time.

    Offsets count all bytes that were written, so that they stay the same when the file loses its
    middle. `has_gap` once lines were left out before they were read; `is_behind` while the file has
    more than was read.
    """

    def __init__(self, path: Path, limits: LogLimits = LIMITS) -> None:
        super().__init__(path)
        self._head_bytes = limits.head_bytes
        self.has_gap = self.is_behind = False

    def new_lines(self) -> list[bytes]:
        """Return the completed lines of the next piece."""
        self.is_behind = False
        return super().new_lines()

    def _read(self, file: IO[bytes]) -> bytes:
        text = self._next_piece(file)
        position, end = file.tell(), file.seek(0, os.SEEK_END)
        self.is_behind = position < end and b"\n" in text
        return text

    def _next_piece(self, file: IO[bytes]) -> bytes:
        file.seek(self._head_bytes)
        middle = _MIDDLE.match(file.read(MIDDLE_LENGTH))
        if middle is None:
            file.seek(self._offset)
            return file.read(READ_BYTES)
        left_out_bytes = int(middle[1])
        if self._offset < self._head_bytes:
            file.seek(self._offset)
            text = file.read(min(READ_BYTES, self._head_bytes - self._offset))
            if b"\n" in text:
                return text
        if self._offset < self._head_bytes + left_out_bytes:
            self._offset = self._head_bytes + left_out_bytes
            self.has_gap = True
        file.seek(self._offset - left_out_bytes + MIDDLE_LENGTH)
        return file.read(READ_BYTES)
