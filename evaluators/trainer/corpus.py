"""Token files: text as byte-level tokens, and the text that comes with Python.

A token file is a flat array of unsigned 16-bit token ids: each byte of UTF-8 is its own token (0-255), and
`END_OF_DOCUMENT` ends a document. This module imports neither torch nor the rest of the trainer.
"""

import inspect
import os
import pydoc_data.topics
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np

END_OF_DOCUMENT = 256
BYTE_VOCABULARY = 257

# Pure-Python modules of the standard library with much prose in them, by name so that the order never changes.
_MODULES = (
    "argparse", "ast", "bdb", "calendar", "cmd", "codecs", "collections", "configparser", "contextlib", "csv",
    "dataclasses", "datetime", "decimal", "difflib", "doctest", "email.message", "enum", "fractions", "functools",
    "gettext", "heapq", "http.client", "inspect", "ipaddress", "locale", "logging", "mailbox", "optparse", "pathlib",
    "pickle", "random", "shutil", "smtplib", "socket", "statistics", "string", "subprocess", "tarfile", "textwrap",
    "threading", "tokenize", "traceback", "typing", "unittest.case", "unittest.mock", "urllib.request", "uuid",
    "zipfile",
)  # fmt: skip


def builtin_text() -> str:
    """Text that comes with every Python: the language reference's topics, then sources of the standard library.

    Documents are joined by NUL characters, in an order that is the same on every run of one Python version.
    """
    return "\0".join(_documents())


def _documents() -> Iterator[str]:
    for _, topic in sorted(pydoc_data.topics.topics.items()):
        yield topic
    for name in _MODULES:
        yield inspect.getsource(import_module(name))


def write_token_file(text: str | bytes, path: Path) -> int:
    """Write `text` as a uint16 token file and return its number of tokens.

    NUL characters end a document, as the end of the text does. The file appears at `path` whole or not at all.

    Raises:
        ValueError: the text is empty.
    """
    raw = text.encode("utf-8") if isinstance(text, str) else text
    if not raw:
        raise ValueError(f"no text to write to {path}")
    tokens = np.frombuffer(raw, dtype=np.uint8).astype(np.uint16)
    tokens[tokens == 0] = END_OF_DOCUMENT
    tokens = np.append(tokens, np.uint16(END_OF_DOCUMENT))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(tokens.astype("<u2").tobytes())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return len(tokens)
