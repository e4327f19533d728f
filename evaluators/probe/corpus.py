"""The tokens that probes and replays train on: a user's token file, a user's text, or the text of Python itself."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frontrunner.evaluators.probe.settings import DataSettings
from frontrunner.evaluators.trainer.corpus import BYTE_VOCABULARY, builtin_text, write_token_file
from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.problem import Problem

UINT16_VOCABULARY = 65_536
FEWEST_SEQUENCES = 40
"""A corpus holds at least this many sequences: a twentieth of it is held out for evaluation."""


@dataclass(frozen=True)
class Corpus:
    """A flat file of token ids; `dtype` is uint16 or uint32, little-endian."""

    path: Path
    dtype: str


def corpus(data: DataSettings, work_folder: Path, problem: Problem) -> Corpus:
    """The token file for a campaign, made in `work_folder` where the data is text.

    A `.bin` file is taken as it is: uint16, or uint32 where the model's vocabulary needs it. Any other file
    is read as bytes, one token a byte. Raises `InvalidInput` if a token is outside the model's vocabulary,
    or if there are too few tokens for the sequence length.
    """
    if _is_token_file(data):
        found = _token_file(data, problem)
    else:
        found = Corpus(_byte_tokens(data, work_folder, problem), "uint16")
    _check(found, data, problem)
    return found


def check_data(data: DataSettings, problem: Problem) -> None:
    """Raise what `corpus` would raise for data that cannot be used; writes nothing."""
    if _is_token_file(data):
        _check(_token_file(data, problem), data, problem)
        return
    _check_vocabulary(problem)
    size_bytes = len(builtin_text().encode()) if data.path is None else _size_bytes(Path(data.path))
    _check_length(size_bytes + 1, data, problem)  # a byte a token, and the end of the document


def _is_token_file(data: DataSettings) -> bool:
    return data.path is not None and data.path.endswith(".bin")


def _token_file(data: DataSettings, problem: Problem) -> Corpus:
    return Corpus(Path(str(data.path)), "uint16" if problem.model.vocabulary <= UINT16_VOCABULARY else "uint32")


def _size_bytes(path: Path) -> int:
    """The size of a data file; raises `InvalidInput` where there is no file, or none that may be read."""
    try:
        with path.open("rb") as file:
            return file.seek(0, os.SEEK_END)
    except OSError as error:
        raise bad_value("data.path", str(path), f"a file that can be read: {error.strerror}") from None


def _check_vocabulary(problem: Problem) -> None:
    if problem.model.vocabulary < BYTE_VOCABULARY:
        raise bad_value(
            "model.vocabulary", problem.model.vocabulary, f"at least {BYTE_VOCABULARY}: text is read a byte a token"
        )


def _byte_tokens(data: DataSettings, work_folder: Path, problem: Problem) -> Path:
    _check_vocabulary(problem)
    if data.path is None:
        path = work_folder / f"builtin-{platform.python_version()}.bin"
        if not path.exists():
            write_token_file(builtin_text(), path)
        return path
    try:
        text = Path(data.path).read_bytes()
    except OSError as error:
        raise bad_value("data.path", data.path, f"a file that can be read: {error.strerror}") from None
    if not text:
        raise bad_value("data.path", data.path, "a file that is not empty")
    path = work_folder / f"text-{hashlib.sha256(text).hexdigest()[:12]}.bin"
    if not path.exists():
        write_token_file(text, path)
    return path


def _check(found: Corpus, data: DataSettings, problem: Problem) -> None:
    size_bytes, width = _size_bytes(found.path), np.dtype(found.dtype).itemsize
    if size_bytes % width:
        raise bad_value("data.path", data.path, f"tokens of {width} bytes each; the file has {size_bytes:,} bytes")
    _check_length(size_bytes // width, data, problem)
    highest = int(np.memmap(found.path, dtype=found.dtype, mode="r").max())
    if highest >= problem.model.vocabulary:
        raise bad_value(
            "data.path", data.path, f"tokens below model.vocabulary = {problem.model.vocabulary}; it has {highest}"
        )


def _check_length(count: int, data: DataSettings, problem: Problem) -> None:
    fewest = FEWEST_SEQUENCES * (problem.sequence_length + 1)
    if count >= fewest:
        return
    needed = f"at least {fewest:,} tokens, {FEWEST_SEQUENCES} sequences of {problem.sequence_length}"
    if data.path is None:
        raise bad_value("data.path", None, f"a text of {needed}; the built-in one has {count:,}")
    raise bad_value("data.path", data.path, f"{needed}; it has {count:,}")
