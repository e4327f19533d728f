"""Text files to one token file, with a part held out for evaluation at its end, the tokenizer and a
description.

The outcome depends on the files, the tokenizer and the seed, not on threads: pieces are tokenized
in parallel and written in order. Files get their names when all is written, the token file last.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from frontrunner.evaluators.text.documents import Piece, check_files, read_pieces
from frontrunner.evaluators.text.token_file import (
    VERSION,
    Description,
    description_path,
    dtype_for,
    tokenizer_path,
)
from frontrunner.spaces.document import write_bytes
from frontrunner.spaces.errors import (
    InvalidInput,
    bad_value,
    holds,
    require_at_least,
    require_extra,
    shown,
    writing,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ENDS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001
)
"""Tokens that end a document in published tokenizers: GPT-2's and Qwen's, Llama 3's, Llama 2's,
Gemma's, DeepSeek's.
"""
LEAST_VOCABULARY = 257
"""Of a trained BPE: the bytes, and the end of a document."""
_BATCH_CHARACTERS, _BATCH_PIECES = 2**22, 4096
_AHEAD = 3
_COPIED_TOKENS = 2**24

OnRead = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class PrepareSettings:
    """What becomes of the text: one of `tokenizer`, a file, and `train_vocabulary`, the size of a
    BPE to train on it.

    `validation` is the share of tokens that is held out.
    """

    out: Path
    tokenizer: Path | None = None
    train_vocabulary: int | None = None
    text_key: str = "text"
    end_of_document: str | None = None
    validation: float = 0.005
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        if (self.tokenizer is None) == (self.train_vocabulary is None):
            raise InvalidInput(
                "expected one of --tokenizer and --train-vocabulary",
                hint=(
                    "--tokenizer takes a model's tokenizer.json; --train-vocabulary 32000 trains"
                    " one on the text"
                ),
            )
        if self.out.suffix != ".bin":
            raise bad_value(
                "--out",
                str(self.out),
                "a name that ends with .bin, which [data] path reads as tokens",
            )
        if not 0 < self.validation < 0.5:
            raise bad_value(
                "--validation", self.validation, "a share of the tokens above 0 and below 0.5"
            )
        if (
            self.train_vocabulary is not None
            and not LEAST_VOCABULARY <= self.train_vocabulary <= 2**24
        ):
            expected = (
                f"at least {LEAST_VOCABULARY}, the bytes and the end of a document, and at most"
                f" {2**24}"
            )
            raise bad_value("--train-vocabulary", self.train_vocabulary, expected)
        if self.threads is not None:
            require_at_least("prepare", 1, threads=self.threads)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A prepared token file: `path` for [data], with the numbers of its description."""

    path: Path
    tokenizer: Path
    description: Description
    empty_documents: int


def prepare(
    paths: tuple[Path, ...], settings: PrepareSettings, on_read: OnRead | None = None
) -> Prepared:
    """Write the token file of all documents; `on_read` gets the bytes read so far and in all, per
    pass over the files.

    Raises `InvalidInput` or `NotFound` naming file and line, with nothing left at `settings.out`.
    """
    require_extra("tokenizers", "data", "tokenizing")
    if settings.threads is not None:  # read by the library's pool of threads at its first use
        os.environ["RAYON_NUM_THREADS"] = str(settings.threads)
    size_bytes, out = check_files(paths), settings.out
    if holds(out.exists):
        raise InvalidInput(
            f"{out} is there already", hint="name another file by --out, or remove it first"
        )

    def pieces() -> Iterator[Piece]:
        before = 0
        for path in paths:
            for piece in read_pieces(path, text_key=settings.text_key):
                if on_read is not None:
                    on_read(before + piece.read_bytes, size_bytes)
                yield piece
            before += path.stat().st_size

    with writing(out), ExitStack() as cleaning:
        for unfinished in out.parent.glob(f".{out.name}.*"):  # of a run that was killed
            unfinished.unlink(missing_ok=True)
        in_order, split = (out.with_name(f".{out.name}.{part}") for part in ("tokens", "split"))
        for temporary in (in_order, split):
            cleaning.callback(temporary.unlink, missing_ok=True)
        in_order.touch()  # before the text is read: a place that cannot be written is an error now
        return _written(settings, pieces, in_order, split)


def _written(
    settings: PrepareSettings, pieces: Callable[[], Iterator[Piece]], in_order: Path, split: Path
) -> Prepared:
    out, tokenizer = settings.out, _tokenizer(settings, pieces)
    end = _end_of_document(tokenizer, settings)
    vocabulary = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())
    stored = dtype_for(vocabulary)
    dtype = np.dtype(stored).newbyteorder("<")
    with in_order.open("wb") as file:
        lengths, empty = _write_in_order(file, tokenizer, pieces(), end, dtype)
    if not len(lengths):
        raise InvalidInput("no document has any text, so there is nothing to prepare")
    held_out, digest = _write_split(in_order, split, lengths, settings, dtype)
    description = Description(
        version=VERSION,
        dtype=stored,
        tokens=int(lengths.sum()),
        held_out_tokens=held_out,
        documents=len(lengths),
        vocabulary=vocabulary,
        end_of_document=end,
        tokenizer=tokenizer_path(out).name,
        sha256=digest,
    )
    given = None if settings.tokenizer is None else settings.tokenizer.read_bytes()
    write_bytes(tokenizer_path(out), given or tokenizer.to_str(pretty=True).encode())
    write_bytes(description_path(out), description.to_json())
    split.replace(out)
    return Prepared(
        path=out, tokenizer=tokenizer_path(out), description=description, empty_documents=empty
    )


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json, which neither truncates nor pads, and adds no
    tokens of its own.
    """
    from tokenizers import Tokenizer

    if not holds(path.is_file):
        raise InvalidInput(
            f"no tokenizer at {path}", hint="take tokenizer.json from the model's folder"
        )
    try:
        found = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more exact
        raise InvalidInput(
            f"{path} is not a tokenizer.json that tokenizers can read: {error}"
        ) from None
    found.no_truncation()
    found.no_padding()
    found.encode_special_tokens = True  # a document that quotes a special token has no end there
    return found


def _tokenizer(settings: PrepareSettings, pieces: Callable[[], Iterator[Piece]]) -> Tokenizer:
    if settings.train_vocabulary is None:
        return load_tokenizer(cast("Path", settings.tokenizer))
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.train_vocabulary,
        special_tokens=[settings.end_of_document or ENDS[0]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator((piece.text for piece in pieces()), trainer)
    trained.encode_special_tokens = True
    return trained


def _end_of_document(tokenizer: Tokenizer, settings: PrepareSettings) -> int:
    names = (settings.end_of_document,) if settings.end_of_document is not None else ENDS
    found = [token for name in names if (token := tokenizer.token_to_id(name)) is not None]
    if found:
        return found[0]
    if settings.end_of_document is not None:
        raise bad_value(
            "--end-of-document", settings.end_of_document, f"a token of {settings.tokenizer}"
        )
    special = [
        shown(token.content)
        for token in tokenizer.get_added_tokens_decoder().values()
        if token.special
    ]
    raise InvalidInput(
        f"{settings.tokenizer} has none of {', '.join(map(shown, ENDS))}, to end documents",
        hint=(
            "--end-of-document TOKEN names one; its special tokens:"
            f" {', '.join(special[:8]) or 'none'}"
        ),
    )


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= _BATCH_CHARACTERS or len(batch) >= _BATCH_PIECES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _write_in_order(
    file: BinaryIO, tokenizer: Tokenizer, pieces: Iterable[Piece], end: int, dtype: np.dtype[Any]
) -> tuple[NDArray[np.int64], int]:
    """Write all documents as they come; return their tokens, each with its end, and how many had no
    text.
    """
    lengths, empty, held = array("q"), 0, 0
    ending = np.array([end], dtype=dtype)

    def encoded(batch: list[Piece]) -> list[NDArray[Any]]:
        found = tokenizer.encode_batch_fast(
            [piece.text for piece in batch], add_special_tokens=False
        )
        return [np.array(one.ids, dtype=dtype) for one in found]

    def write(batch: list[Piece], parts: list[NDArray[Any]]) -> None:
        nonlocal held, empty
        written: list[NDArray[Any]] = []
        for piece, tokens in zip(batch, parts, strict=True):
            written.append(tokens)
            held += len(tokens)
            if piece.ends_document and held:
                written.append(ending)
                lengths.append(held + 1)
            elif piece.ends_document:
                empty += 1
            held = 0 if piece.ends_document else held
        file.write(np.concatenate(written).tobytes())

    with ThreadPoolExecutor(max_workers=_AHEAD - 1) as pool:
        waiting: deque[tuple[list[Piece], Any]] = deque()
        try:
            for batch in _batches(pieces):
                waiting.append((batch, pool.submit(encoded, batch)))
                if len(waiting) == _AHEAD:
                    first, future = waiting.popleft()
                    write(first, future.result())
            for batch, future in waiting:
                write(batch, future.result())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return np.frombuffer(lengths, dtype=np.int64), empty


def held_out_documents(lengths: NDArray[np.int64], *, share: float, seed: int) -> NDArray[np.bool_]:
    """Return which documents are held out: as drawn by the seed, until they have that share of the
    tokens.

    None where the documents are so few and long that this would be over twice the share.
    """
    wanted = int(np.ceil(share * lengths.sum()))
    drawn = np.random.Generator(np.random.PCG64(seed)).permutation(len(lengths))
    sums = lengths[drawn].cumsum()
    count = int(np.searchsorted(sums, wanted)) + 1
    found = np.zeros(len(lengths), dtype=np.bool_)
    if sums[count - 1] <= 2 * wanted:
        found[drawn[:count]] = True
    return found


def _write_split(
    source: Path,
    target: Path,
    lengths: NDArray[np.int64],
    settings: PrepareSettings,
    dtype: np.dtype[Any],
) -> tuple[int, str]:
    """Write the documents for training, then those held out; return the latter's tokens and the
    file's SHA-256.

    Where none can be held out whole, the last tokens are.
    """
    tokens = np.memmap(source, dtype=dtype, mode="r")
    is_held_out = held_out_documents(lengths, share=settings.validation, seed=settings.seed)
    held_out = int(lengths[is_held_out].sum()) or int(np.ceil(settings.validation * len(tokens)))
    starts = np.concatenate([[0], lengths.cumsum()])
    changes = np.flatnonzero(np.diff(is_held_out)) + 1
    runs = list(pairwise([0, *changes.tolist(), len(lengths)]))  # of neighbors that belong together
    digest = hashlib.sha256()
    with target.open("wb") as file:
        for wanted in (False, True):
            for first, end in runs:
                if bool(is_held_out[first]) == wanted:
                    for start in range(int(starts[first]), int(starts[end]), _COPIED_TOKENS):
                        part = tokens[
                            start : min(start + _COPIED_TOKENS, int(starts[end]))
                        ].tobytes()
                        digest.update(part)
                        file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return held_out, digest.hexdigest()
