"""Training data: the token files of a campaign, made of text where they are text, and whether they
are still what a recipe was trained on.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from frontrunner.evaluators.runs.settings import DataFile, DataSettings
from frontrunner.evaluators.text.token_file import described, dtype_for
from frontrunner.evaluators.trainer.data import BYTE_VOCABULARY, builtin_text, write_token_file
from frontrunner.evaluators.trainer.job import Data
from frontrunner.results.provenance import TrainingData
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.problem import Problem

_OF_BYTES = ("builtin-", "text-")
HEAD_BYTES = 2**20
"""Of data that may be terabytes, the beginning and the size are compared."""
BY_DATA = "name the data to train on: --data FILE, or --data built-in"
MIN_SEQUENCES = 40
"""A corpus holds at least this many sequences: a twentieth of it is held out for evaluation."""


def corpus(data: DataSettings, work_folder: Path, problem: Problem) -> tuple[Data, ...]:
    """Return the token files of a campaign, created in `work_folder` from text; raises as
    `check_data` does.
    """
    check_data(data, problem)
    return tuple(
        replace(_tokens(path, work_folder, problem), weight=weight) for path, weight in data.named
    )


def _tokens(named: str | None, work_folder: Path, problem: Problem) -> Data:
    if (tokens := _token_file(named, problem)) is not None:
        return tokens
    text = builtin_text() if named is None else Path(named).read_bytes()
    name = f"{_OF_BYTES[0]}{platform.python_version()}"
    if isinstance(text, bytes):
        name = f"{_OF_BYTES[1]}{hashlib.sha256(text).hexdigest()[:12]}"
    path = work_folder / f"{name}.bin"
    if not path.exists():
        for unfinished in work_folder.glob(f".{path.name}.*"):  # of a driver that was killed
            unfinished.unlink(missing_ok=True)
        write_token_file(text, path)
    return Data(path=str(path), dtype="uint16")


def holds_bytes(token_file: Path) -> bool:
    """Return whether `corpus` has made this file of text, one token per byte."""
    return token_file.name.startswith(_OF_BYTES)


def check_data(data: DataSettings, problem: Problem) -> None:
    """Raise what `corpus` raises for unusable data; write nothing."""
    tokenizers: dict[str, str] = {}
    for path, _ in data.named:
        with _reading(data, path):
            _check_file(path, problem, _key(data))
            if path is not None and (tokenizer := _tokenizer(Path(path))) is not None:
                tokenizers.setdefault(tokenizer, path)
    if len(tokenizers) > 1:
        first, other = list(tokenizers.values())[:2]
        expected = f"tokens of the tokenizer of {first}; of text each byte is a token"
        raise bad_value(
            _key(data), other, expected, hint="prepare both with one tokenizer: frontrunner prepare"
        )


def _key(data: DataSettings) -> str:
    return "data.files.path" if data.files else "data.path"


@contextmanager
def _reading(data: DataSettings, path: str | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise bad_value(_key(data), path, f"a file that can be read: {error.strerror}") from None


def _check_file(path: str | None, problem: Problem, key: str) -> None:
    vocabulary = problem.model.embedding.vocabulary
    if (tokens := _token_file(path, problem)) is not None:
        count = _checked_tokens(tokens, problem, key)
    elif vocabulary < BYTE_VOCABULARY:
        expected = f"at least {BYTE_VOCABULARY}: text is read as one token per byte"
        raise bad_value("model.vocabulary", vocabulary, expected)
    else:  # one token per byte, and the end of the document
        size_bytes = len(builtin_text().encode()) if path is None else _size_bytes(Path(path))
        count = size_bytes + 1
    fewest = MIN_SEQUENCES * (problem.sequence_length + 1)
    if count < fewest:
        expected = (
            f"at least {fewest:,} tokens, {MIN_SEQUENCES} sequences of {problem.sequence_length}"
        )
        expected = f"a text of {expected}; the built-in one" if path is None else f"{expected}; it"
        raise bad_value(key, path, f"{expected} has {count:,}")


def _tokenizer(path: Path) -> str | None:
    """Return what two files of the same tokenizer have in common; None where it is not known."""
    if path.suffix != ".bin":
        return "bytes"
    if (found := described(path)) is None:
        return None
    return _sha256(path.parent / found.tokenizer)


def _sha256(file: Path) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def training_data(data: DataSettings) -> tuple[TrainingData, ...]:
    """Return which data these are; raises `InvalidInput` for a file that cannot be read."""
    found = []
    for path, weight in data.named:
        with _reading(data, path):
            found.append(replace(_stated(path), weight=weight))
    return tuple(found)


def _stated(named: str | None) -> TrainingData:
    if named is None:
        head = text = builtin_text().encode()
        size_bytes = len(text)
    else:
        path = Path(named)
        with path.open("rb") as file:
            head, size_bytes = file.read(HEAD_BYTES), path.stat().st_size
    stated = TrainingData(
        path=named, size_bytes=size_bytes, head_sha256=hashlib.sha256(head[:HEAD_BYTES]).hexdigest()
    )
    if named is None or path.suffix != ".bin" or (found := described(path)) is None:
        return stated
    return replace(
        stated,
        tokenizer=found.tokenizer,
        tokenizer_sha256=_sha256(path.parent / found.tokenizer),  # training does not need it
        held_out_tokens=found.held_out_tokens,
    )


def data_of(stated: Sequence[TrainingData]) -> DataSettings:
    """Return the settings of data that are stated, with at least one file."""
    if len(stated) == 1:
        return DataSettings(path=stated[0].path)
    return DataSettings(
        files=tuple(DataFile(path=str(one.path), weight=one.weight) for one in stated)
    )


def require_same_data(stated: Sequence[TrainingData], *, remedy: str = BY_DATA) -> None:
    """Raise `InvalidInput`, with the remedy as its hint, unless the data are here as they were."""
    try:
        all_found = training_data(data_of(stated))
    except InvalidInput as error:
        raise InvalidInput(
            f"the data that the recipe was trained on are not here: {error.message}", hint=remedy
        ) from None
    for one, found in zip(stated, all_found, strict=True):
        if replace(found, weight=one.weight) == one:
            continue
        named = "the built-in text of this Python" if one.path is None else one.path
        differs = "another content"
        if found.size_bytes != one.size_bytes:
            differs = f"{found.size_bytes:,} bytes, not {one.size_bytes:,}"
        elif found.head_sha256 == one.head_sha256:
            differs = "another tokenizer or held-out part"
        raise InvalidInput(
            f"{named} is not what the recipe was trained on: it has {differs}", hint=remedy
        )


def _token_file(named: str | None, problem: Problem) -> Data | None:
    if named is None or not named.endswith(".bin"):
        return None
    path = Path(named)
    if (prepared := described(path)) is not None:
        return Data(path=named, dtype=prepared.dtype, held_out_tokens=prepared.held_out_tokens)
    return Data(path=named, dtype=dtype_for(problem.model.embedding.vocabulary))


def _size_bytes(path: Path) -> int:
    with path.open("rb"):  # or the file cannot be read
        return path.stat().st_size


def _checked_tokens(file: Data, problem: Problem, key: str) -> int:
    path, vocabulary = Path(file.path), problem.model.embedding.vocabulary
    prepared = described(path)
    if prepared is not None:
        if prepared.vocabulary > vocabulary:
            expected = (
                f"at least {prepared.vocabulary}, the vocabulary of"
                f" {path.parent / prepared.tokenizer}"
            )
            raise bad_value("model.vocabulary", vocabulary, expected)
        least, held_out = problem.sequence_length + 1, prepared.held_out_tokens
        if held_out < least:
            expected = (
                f"at least {least:,} tokens held out for evaluation, a sequence; it has"
                f" {held_out:,}"
            )
            raise bad_value(
                key, file.path, expected, hint="prepare it again with a larger --validation"
            )
        return prepared.tokens
    size_bytes, width = _size_bytes(path), np.dtype(file.dtype).itemsize
    if size_bytes % width:
        expected = f"tokens of {width} bytes each; the file has {size_bytes:,} bytes"
        raise bad_value(key, file.path, expected)
    highest = int(np.memmap(path, dtype=file.dtype, mode="r").max()) if size_bytes else 0
    if highest >= vocabulary:
        expected = f"tokens below model.vocabulary = {vocabulary}; it has {highest}"
        raise bad_value(key, file.path, expected)
    return size_bytes // width
