"""Documents of text, JSONL and Parquet files, in the files' order; mistakes name the file and the
line.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from frontrunner.spaces.errors import InvalidInput, NotFound, holds, require_extra, shown

PIECE_CHARACTERS = 2**20
"""Longer documents are tokenized in pieces of about this many characters, cut at ends of lines."""
JSON_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A document's text, or a part of it; `read_bytes` of its file are read by then, compressed as
    they are.
    """

    text: str
    ends_document: bool
    read_bytes: int


def check_files(paths: tuple[Path, ...]) -> int:
    """Return the files' bytes in all; raise `NotFound` or `InvalidInput` for one that cannot be
    read.
    """
    for path in paths:
        if not holds(path.is_file):
            why = (
                "it is a folder; name its files" if holds(path.is_dir) else "there is no such file"
            )
            raise NotFound(f"no text at {path}: {why}")
        if path.suffix == ".parquet":
            require_extra("pyarrow", "parquet", f"reading {path}")
        if path.suffix == ".json":
            raise InvalidInput(
                f"{path}: expected a text, .parquet, or .jsonl file with an object on each line",
                hint="if it has one on each line, name it .jsonl",
            )
    return sum(path.stat().st_size for path in paths)


def read_pieces(path: Path, *, text_key: str) -> Iterator[Piece]:
    """Yield a file's documents in pieces, by its suffix: text of `text_key` in .jsonl and .parquet,
    else its own text.

    `.gz` after the suffix is decompressed. In a text file NUL separates documents.
    """
    if path.suffix == ".parquet":
        yield from _of_parquet(path, text_key)
        return
    is_packed = path.suffix == ".gz"
    kind = path.with_suffix("").suffix if is_packed else path.suffix
    read = _of_json_lines if kind in (*JSON_LINES, ".json") else _of_text
    try:
        with path.open("rb") as raw:
            lines: Any = gzip.GzipFile(fileobj=raw) if is_packed else raw
            yield from read(path, lines, raw, text_key)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None


def _of_text(path: Path, lines: IO[bytes], raw: IO[bytes], _text_key: str) -> Iterator[Piece]:
    held: list[str] = []
    size = 0
    for number, line in enumerate(lines, start=1):
        *ended, rest = _decoded(line, path, number).split("\0")
        for part in ended:
            yield Piece(text="".join([*held, part]), ends_document=True, read_bytes=raw.tell())
            held, size = [], 0
        held.append(rest)
        size += len(rest)
        if size >= PIECE_CHARACTERS:
            yield Piece(text="".join(held), ends_document=False, read_bytes=raw.tell())
            held, size = [], 0
    yield Piece(text="".join(held), ends_document=True, read_bytes=raw.tell())


def _of_json_lines(path: Path, lines: IO[bytes], raw: IO[bytes], text_key: str) -> Iterator[Piece]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(_decoded(line, path, number))
        except (ValueError, RecursionError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"{path}:{number} is not JSON: {error}") from None
        if not isinstance(record, dict):
            raise InvalidInput(
                f"{path}:{number} is {shown(record)}: expected an object with the key {text_key!r}"
            )
        yield from _cut(_text_of(record, text_key, f"{path}:{number}"), raw.tell())


def _of_parquet(path: Path, text_key: str) -> Iterator[Piece]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            if text_key not in file.schema_arrow.names:
                known = ", ".join(file.schema_arrow.names)
                raise InvalidInput(
                    f"{path} has no column {text_key!r}", hint=f"--text-key names one of: {known}"
                )
            size_bytes, row, rows = path.stat().st_size, 0, max(1, file.metadata.num_rows)
            for batch in file.iter_batches(batch_size=1024, columns=[text_key]):
                for record in batch.to_pylist():
                    row += 1
                    text = _text_of(record, text_key, f"{path}, row {row}")
                    yield from _cut(text, size_bytes * row // rows)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(
            f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}"
        ) from None


def _text_of(record: dict[str, Any], key: str, where: str) -> str:
    if key not in record:
        known = ", ".join(map(shown, list(record)[:8])) or "none"
        raise InvalidInput(
            f"{where} has no key {key!r}",
            hint=f"--text-key names the text; the keys there: {known}",
        )
    text = record[key]
    if not isinstance(text, str):
        raise InvalidInput(f"{where}: {key} = {shown(text)}: expected text")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidInput(
            f"{where}: {key} holds half a surrogate pair: expected valid Unicode text"
        )
    return text


def _decoded(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path}:{number} is not UTF-8: byte {error.start + 1} of the line"
        ) from None


def _cut(text: str, read_bytes: int) -> Iterator[Piece]:
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        end = text.find("\n", start + PIECE_CHARACTERS) + 1
        if end in (0, len(text)):
            break
        yield Piece(text=text[start:end], ends_document=False, read_bytes=read_bytes)
        start = end
    yield Piece(text=text[start:], ends_document=True, read_bytes=read_bytes)
