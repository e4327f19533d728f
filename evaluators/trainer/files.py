"""The files a run leaves in its folder: JSON written whole or not at all, and a log of one JSON line per step."""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write `document` to a temporary name, force it to disk and rename it to `path`.

    Nothing is left under the temporary name if the disk is full.

    Raises:
        ValueError: a number is not finite: JSON has no word for it, write null instead.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class ProgressLog:
    """`progress.jsonl`: one event per line, on disk for other processes to read as soon as it is written.

    Ranks other than 0 pass None and write nothing.
    """

    def __init__(self, path: Path | None, *, append: bool) -> None:
        self._file = path.open("a" if append else "w", encoding="utf-8") if path is not None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, event: str, **values: float | None) -> None:
        """Append one event."""
        if self._file is None:
            return
        self._file.write(json.dumps({"event": event, **values}, allow_nan=False) + "\n")
        self._file.flush()
