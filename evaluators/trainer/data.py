"""Batches from a memory-mapped token file, each a pure function of the seed and the step."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

HELD_OUT_FRACTION = 0.05


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Token ids of shape [sequences, sequence_length]; `targets` are `inputs` shifted by one token. int64."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def to(self, device: torch.device) -> "Batch":
        """Return the same batch on `device`; an accelerator's copy goes on while this process does."""
        if device.type == "cpu":
            return self
        pinned = self.inputs.pin_memory(), self.targets.pin_memory()
        inputs, targets = (tensor.to(device, non_blocking=True) for tensor in pinned)
        return Batch(inputs=inputs, targets=targets)

    def at(self, positions: slice) -> "Batch":
        """Return those positions of every sequence, contiguous in memory."""
        return Batch(inputs=self.inputs[:, positions].contiguous(), targets=self.targets[:, positions].contiguous())

    def split(self, sequences: int) -> Iterator["Batch"]:
        """Return the batch in micro-batches of `sequences`."""
        parts = torch.split(self.inputs, sequences), torch.split(self.targets, sequences)
        for inputs, targets in zip(*parts, strict=True):
            yield Batch(inputs=inputs, targets=targets)


class TokenFile:
    """A token file, split into a part for training and its last 5 % for evaluation.

    The file is mapped, not read: only the pages that batches touch are ever resident.

    Raises:
        ValueError: the file is too short to hold a sequence in each part.
    """

    def __init__(self, path: Path, *, dtype: str, sequence_length: int, seed: int) -> None:
        self._tokens = np.memmap(path, dtype=np.dtype(dtype).newbyteorder("<"), mode="r")
        self._sequence_length = sequence_length
        self._seed = seed
        self._held_out_start = len(self._tokens) - int(len(self._tokens) * HELD_OUT_FRACTION)
        shortest = len(self._tokens) - self._held_out_start
        if shortest < sequence_length + 1:
            raise ValueError(
                f"{path} has {len(self._tokens)} tokens, of which {shortest} are held out for evaluation; "
                f"a sequence of {sequence_length} needs {sequence_length + 1} there"
            )

    def training_batch(self, step: int, *, sequences: slice, global_batch_seqs: int) -> Batch:
        """Return the part `sequences` of the global batch of `step`: each sequence starts at a seeded random place."""
        starts = self._draw(step, 0, self._held_out_start, global_batch_seqs)
        return self._batch(starts[sequences])

    def evaluation_batch(self, number: int, *, sequences: slice, global_batch_seqs: int) -> Batch:
        """Return the part `sequences` of a held-out batch; the same `number` is the same batch at every evaluation."""
        starts = self._draw(number, self._held_out_start, len(self._tokens), global_batch_seqs)
        return self._batch(starts[sequences])

    def _draw(self, number: int, first: int, end: int, count: int) -> np.ndarray:
        generator = np.random.Generator(np.random.PCG64([self._seed, number, first]))
        return generator.integers(first, end - self._sequence_length, size=count)

    def _batch(self, starts: np.ndarray) -> Batch:
        width = self._sequence_length + 1
        rows = np.stack([self._tokens[start : start + width] for start in starts]).astype(np.int64)
        tokens = torch.from_numpy(rows)
        return Batch(inputs=tokens[:, :-1].contiguous(), targets=tokens[:, 1:].contiguous())
