"""Token files: written from text, and read as batches, each a pure function of the seed and the
step.

A token file is a flat array of token ids. Of text each byte of UTF-8 is its own token (0-255), and
`END_OF_DOCUMENT` ends a document. Importing this module imports no torch.
"""

from __future__ import annotations

import inspect
import pydoc_data.topics
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from frontrunner.spaces.document import write_bytes

if TYPE_CHECKING:
    import torch

    from frontrunner.evaluators.trainer.job import Job

    Places = NDArray[np.intp]

END_OF_DOCUMENT = 256
BYTE_VOCABULARY = 257
HELD_OUT_FRACTION = 0.05
GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
"""Its fraction, times 2 ** 64."""

# Pure-Python modules of the standard library with much prose in them, by name so that the order
# never changes.
_MODULES = (
    "argparse", "ast", "bdb", "calendar", "cmd", "codecs", "collections", "configparser",
    "contextlib", "csv",
    "dataclasses", "datetime", "decimal", "difflib", "doctest", "email.message", "enum",
    "fractions", "functools",
    "gettext", "heapq", "http.client", "inspect", "ipaddress", "locale", "logging", "mailbox",
    "optparse", "pathlib",
    "pickle", "random", "shutil", "smtplib", "socket", "statistics", "string", "subprocess",
    "tarfile", "textwrap",
    "threading", "tokenize", "traceback", "typing", "unittest.case", "unittest.mock",
    "urllib.request", "uuid",
    "zipfile",
)  # fmt: skip


def builtin_text() -> str:
    """Return text that comes with every Python, the same on every run of one version; NUL separates
    its documents.
    """
    topics = [topic for _, topic in sorted(pydoc_data.topics.topics.items())]
    return "\0".join([*topics, *(inspect.getsource(import_module(name)) for name in _MODULES)])


def write_token_file(text: str | bytes, path: Path) -> int:
    """Write `text`, whose documents NUL separates, as a uint16 token file and return its number of
    tokens.
    """
    raw = text.encode("utf-8") if isinstance(text, str) else text
    if not raw:
        raise ValueError(f"no text to write to {path}")
    tokens = np.frombuffer(raw, dtype=np.uint8).astype(np.uint16)
    tokens[tokens == 0] = END_OF_DOCUMENT
    tokens = np.append(tokens, np.uint16(END_OF_DOCUMENT))
    write_bytes(path, tokens.astype("<u2").tobytes())
    return len(tokens)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Token ids of shape [sequences, sequence_length]; `targets` are `inputs` shifted by one token.
    int64.
    """

    inputs: torch.Tensor
    targets: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        """Return the same batch on `device`; an accelerator's copy goes on while this process
        does.
        """
        if device.type == "cpu":
            return self
        pinned = self.inputs.pin_memory(), self.targets.pin_memory()
        inputs, targets = (tensor.to(device, non_blocking=True) for tensor in pinned)
        return Batch(inputs=inputs, targets=targets)

    def at(self, positions: slice) -> Batch:
        """Return those positions of every sequence, contiguous in memory."""
        return Batch(
            inputs=self.inputs[:, positions].contiguous(),
            targets=self.targets[:, positions].contiguous(),
        )

    def split(self, sequences: int) -> Iterator[Batch]:
        """Return the batch in micro-batches of `sequences`."""
        for start in range(0, len(self.inputs), sequences):
            part = slice(start, start + sequences)
            yield Batch(inputs=self.inputs[part], targets=self.targets[part])


class Tokens(ABC):
    """Batches of tokens, each a pure function of the seed and its number, whichever part of it a
    rank reads.
    """

    def training_batch(self, step: int, *, sequences: slice, global_batch_seqs: int) -> Batch:
        """Return the part `sequences` of the global batch of `step`: each sequence starts at a
        seeded random place.
        """
        return self._batch(step, sequences, global_batch_seqs, trains=True)

    def evaluation_batch(self, number: int, *, sequences: slice, global_batch_seqs: int) -> Batch:
        """Return the part `sequences` of a held-out batch; the same `number` is the same batch at
        every evaluation.
        """
        return self._batch(number, sequences, global_batch_seqs, trains=False)

    def _batch(self, number: int, sequences: slice, count: int, *, trains: bool) -> Batch:
        import torch

        tokens = torch.from_numpy(
            self.rows(number, np.arange(count)[sequences], count, trains=trains)
        )
        return Batch(inputs=tokens[:, :-1].contiguous(), targets=tokens[:, 1:].contiguous())

    @abstractmethod
    def rows(self, number: int, places: Places, count: int, *, trains: bool) -> NDArray[np.int64]:
        """Return the sequences at `places` of a batch of `count`, each with the token that follows
        it.
        """


class TokenFile(Tokens):
    """A token file, of which the last `held_out_tokens` are for evaluation; mapped into memory, not
    read.

    By default they are the last 5 %.
    """

    def __init__(
        self,
        path: Path,
        *,
        dtype: str,
        sequence_length: int,
        seed: int,
        held_out_tokens: int | None = None,
    ) -> None:
        self._tokens = np.memmap(path, dtype=np.dtype(dtype).newbyteorder("<"), mode="r")
        self._sequence_length = sequence_length
        self._seed = seed
        held_out = (
            int(len(self._tokens) * HELD_OUT_FRACTION)
            if held_out_tokens is None
            else held_out_tokens
        )
        self._held_out_start = len(self._tokens) - held_out
        if min(held_out, self._held_out_start) < sequence_length + 1:
            raise ValueError(
                f"{path} has {len(self._tokens)} tokens, of which {held_out} are held out for"
                f" evaluation; a sequence of {sequence_length} needs {sequence_length + 1} of them,"
                " and of the others"
            )

    def rows(self, number: int, places: Places, count: int, *, trains: bool) -> NDArray[np.int64]:
        """See Tokens."""
        first, end = (
            (0, self._held_out_start) if trains else (self._held_out_start, len(self._tokens))
        )
        generator = np.random.Generator(np.random.PCG64([self._seed, number, first]))
        starts = generator.integers(first, end - self._sequence_length, size=count)[places]
        return np.stack(
            [self._tokens[start : start + self._sequence_length + 1] for start in starts]
        ).astype(np.int64)


class TokenMixture(Tokens):
    """Token files that share the sequences of every batch by their weights.

    Of all sequences from the first step on, the n-th is of the file in whose part of [0, 1) the
    fraction of n x the golden ratio lies: in any run of consecutive sequences each file has its
    share to within a few.
    """

    def __init__(self, files: Sequence[TokenFile], weights: Sequence[float]) -> None:
        self._files, self._ends = files, np.cumsum(weights)[:-1] / np.sum(weights)

    def rows(self, number: int, places: Places, count: int, *, trains: bool) -> NDArray[np.int64]:
        """See Tokens."""
        overall = np.uint64(number * count) + places.astype(np.uint64)
        fractions = (overall * GOLDEN_RATIO >> np.uint64(11)) * 2.0**-53
        chosen = np.searchsorted(self._ends, fractions, side="right")
        drawn = [
            (
                chosen == one,
                self._files[one].rows(number, places[chosen == one], count, trains=trains),
            )
            for one in np.unique(chosen)
        ]
        rows = np.empty((len(places), drawn[0][1].shape[1]), dtype=np.int64)
        for own, part in drawn:
            rows[own] = part
        return rows


def tokens_of(job: Job) -> Tokens:
    """Return the token file of a job, or the mixture of several."""
    named = (job.data, *job.more_data)
    files = [
        TokenFile(
            Path(job.run_folder) / one.path,
            dtype=one.dtype,
            sequence_length=job.sequence_length,
            seed=job.seed,
            held_out_tokens=one.held_out_tokens,
        )
        for one in named
    ]
    return TokenMixture(files, [one.weight for one in named]) if job.more_data else files[0]
