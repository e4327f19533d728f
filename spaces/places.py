"""Places that a person names to be written to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from frontrunner.spaces.errors import InvalidInput


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise `InvalidInput`, naming the file, where the system refuses to have it written: a full disk tells no name."""
    try:
        yield
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be written: {error.strerror or error}", hint="free some space, or name another place"
        ) from error
