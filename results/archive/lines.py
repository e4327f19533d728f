"""The lines of an archive.

The first is the header, each after it holds one row of a table, and the last counts the rows. Each carries the SHA-256
of its content after the hash of the line before, so a changed, missing, doubled or added line is found where it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from frontrunner.spaces.document import canonical_json
from frontrunner.spaces.errors import InvalidInput, NotFound

FORMAT = "frontrunner-archive"
VERSION = 1
HEADER = "header"
END = "end"
MAX_LINE_BYTES = 16 * 2**20
"""No row is as long: the longest holds a log's tail."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One verified line: where it stands, what it is of, and what it says."""

    number: int
    kind: str
    content: dict[str, Any]
    sha256: str


class Chain:
    """The hash of everything up to the line that was last added."""

    def __init__(self) -> None:
        self.sha256 = ""

    def add(self, kind: str, content: dict[str, Any]) -> str:
        """The hash of the next line."""
        said = f"{self.sha256}\n{canonical_json([kind, content])}"
        self.sha256 = hashlib.sha256(said.encode()).hexdigest()
        return self.sha256


def write_line(file: IO[str], chain: Chain, kind: str, content: dict[str, Any]) -> None:
    """Add one line."""
    file.write(canonical_json({"kind": kind, "content": content, "sha256": chain.add(kind, content)}) + "\n")


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of an archive, the header first and the end last, each verified before it is given out.

    Raises `NotFound` where there is no file, and `InvalidInput` where it cannot be read, and, naming the line, for the
    first that is not as written.
    """
    if not path.is_file():
        raise NotFound(f"there is no archive at {path}")
    chain, number, kind = Chain(), 0, ""
    with _opened(path) as file:
        while raw := _next(path, file):
            number += 1
            if kind == END:
                raise broken(path, number, "it comes after the end of the archive")
            line = _verified(path, number, raw, chain)
            kind = line.kind
            if (kind == HEADER) != (number == 1):
                raise broken(path, number, "it is out of place" if number > 1 else "this is no frontrunner archive")
            yield line
    if kind != END:
        raise broken(path, number + 1, "the file ends before its end: it was cut short")


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from None


def _next(path: Path, file: IO[bytes]) -> bytes:
    """The next line, or a byte more of it than a line may have."""
    try:
        return file.readline(MAX_LINE_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> InvalidInput:
    return InvalidInput(f"{path} cannot be read: {error.strerror}", hint="nothing was written")


def broken(path: Path, number: int, why: str) -> InvalidInput:
    """The error for a line that cannot be used."""
    return InvalidInput(f"{path}, line {number}: {why}", hint="nothing was written; get the archive again")


def _verified(path: Path, number: int, raw: bytes, chain: Chain) -> Line:
    if len(raw) > MAX_LINE_BYTES:
        raise broken(path, number, f"it is longer than {MAX_LINE_BYTES:,} bytes")
    if not raw.endswith(b"\n"):
        raise broken(path, number, "it is cut short")
    try:
        said = json.loads(raw, parse_constant=_refuse)
        kind, content, sha256 = _parts(said)
        if chain.add(kind, content) != sha256:
            raise broken(path, number, "it, or a line before it, was changed: its hash is another")
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise broken(path, number, f"this is no line of a frontrunner archive: {str(error)[:80]}") from error
    return Line(number=number, kind=kind, content=content, sha256=chain.sha256)


def _parts(said: object) -> tuple[str, dict[str, Any], object]:
    """A line's kind, content and hash; raises ValueError where it has others."""
    match said:
        case {"kind": str(kind), "content": dict(content), "sha256": sha256, **rest} if not rest:
            return kind, content, sha256
    raise ValueError("expected an object with kind, content and sha256")


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is no number")
