"""A command under a pseudo-terminal, and a small terminal that shows what a person would have
seen.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from support.campaigns import command, environment

CONTROL = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])")


class Screen:
    """A terminal of so many columns and rows; `lines` holds what has scrolled off, too.

    It knows what a redrawn panel uses: line breaks, carriage returns, cursor up, clearing a line or
    what follows. Text beyond the last column wraps, as on a real terminal; `wraps` counts how
    often.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines = [""]
        self.row = self.column = self.wraps = 0

    def feed(self, text: str) -> None:
        place = 0
        for found in CONTROL.finditer(text):
            self._write(text[place : found.start()])
            self._control(found[1], found[2])
            place = found.end()
        self._write(text[place:])

    def _control(self, argument: str, letter: str) -> None:
        if letter == "A":  # no terminal moves into what has scrolled off
            top = max(0, len(self.lines) - self.rows)
            self.row = max(top, self.row - int(argument or 1))
        elif letter == "K":
            self.lines[self.row] = "" if argument == "2" else self.lines[self.row][: self.column]
        elif letter == "J":
            del self.lines[self.row + 1 :]
            self.lines[self.row] = self.lines[self.row][: self.column]
        else:
            assert letter in "mhl", (
                f"a control sequence that this terminal does not know: {argument}{letter}"
            )

    def _write(self, text: str) -> None:
        for character in text:
            if character == "\n":
                self.row += 1
                if self.row == len(self.lines):
                    self.lines.append("")
            elif character == "\r":
                self.column = 0
            else:
                self._put(character)

    def _put(self, character: str) -> None:
        if self.column == self.columns:
            self.wraps += 1
            self._write("\r\n")
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
        self.column += 1


def run_on_terminal(folder: Path, *arguments: str, columns: int, rows: int) -> tuple[Screen, int]:
    """Run a command line in `folder` on a terminal of that size to its end: what is shown then, and
    its exit status.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    with subprocess.Popen(
        command(*arguments),
        cwd=folder,
        env=environment()
        | {"TERM": "xterm", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        screen = Screen(columns, rows)
        screen.feed(_everything(ours).decode())
    os.close(ours)
    return screen, process.returncode


def _everything(descriptor: int) -> bytes:
    """All that is written until the terminal's other end is closed, which Linux tells by an
    error.
    """
    data = b""
    while True:
        try:
            data += os.read(descriptor, 1 << 16)
        except OSError:
            return data
