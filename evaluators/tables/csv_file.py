"""Tables as CSV files, read within limits."""

from __future__ import annotations

import stat
from io import BytesIO
from pathlib import Path

import pandas as pd

from frontrunner.spaces.errors import InvalidInput, NotFound, shown_key

MOST_BYTES = 200_000_000
MOST_COLUMNS = 1_000
LONGEST_CELL = 10_000
"""Characters of a word; what a person or a script notes beside a measurement is shorter."""
LONGEST_LINE = 4 * MOST_COLUMNS * (LONGEST_CELL + 1)
"""Bytes, of which a character has at most four. Parsing takes several times as many."""


def csv_bytes(path: Path) -> bytes:
    """The file's content. Raises `NotFound` where there is none, `InvalidInput` for one that cannot be read.

    Pipes and devices are refused: whoever opens a pipe waits until somebody writes to it.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InvalidInput(f"{path} cannot be read: it is no regular file")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"no table at {path}: there is no such file") from None
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:  # ValueError for a path with a NUL
        raise InvalidInput(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > MOST_BYTES:
        raise InvalidInput(f"{path} is too long: a table has at most {MOST_BYTES:,} bytes")
    return content


def csv_table(path: Path, content: bytes, *, as_text: bool = False) -> pd.DataFrame:
    """The table in a CSV file's content, numbers as numbers or all `as_text`.

    Raises `InvalidInput`, naming the file, for what is none, and for one of more columns or longer cells than a person
    would write.
    """
    lines = content.splitlines() or [b""]
    if max(map(len, lines)) > LONGEST_LINE:
        raise InvalidInput(f"{path} is not a CSV table: a row has at most {LONGEST_LINE:,} bytes")
    columns = max(line.count(b",") for line in lines) + 1  # a row may be longer than the header
    if columns > MOST_COLUMNS:
        raise InvalidInput(f"{path} has {columns:,} columns: a table has at most {MOST_COLUMNS:,}")
    try:
        table = pd.read_csv(
            BytesIO(content), dtype=str if as_text else None, encoding="utf-8-sig", skipinitialspace=as_text
        )
    except (ValueError, OverflowError, RuntimeError) as error:  # of which pandas' own errors are
        raise InvalidInput(f"{path} is not a CSV table: {str(error).strip()}"[:300]) from None
    if not isinstance(table.index, pd.RangeIndex):
        raise InvalidInput(f"{path} is not a CSV table: its rows have more cells than its header")
    for name, cells in table.items():
        if max((len(cell) for cell in cells if isinstance(cell, str)), default=0) > LONGEST_CELL:
            raise InvalidInput(f"{path}: a cell of {shown_key(str(name))} has more than {LONGEST_CELL:,} characters")
    return table
