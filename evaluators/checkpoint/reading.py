"""A replay's distributed checkpoint, read by one process, tensor by tensor, whatever parallel
layout wrote it.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from frontrunner.evaluators.checkpoint.weights import shapes_of
from frontrunner.evaluators.text.token_file import Description, described
from frontrunner.evaluators.trainer.flat_state import LAYOUT, StateLayout, StatePart
from frontrunner.evaluators.trainer.job import Job, complete_steps
from frontrunner.spaces.errors import InvalidInput, NotFound, read_bytes

_MOST_JOB_BYTES = 2**20


class _Reader(FileSystemReader):
    """A reader that opens the list of all shards once, though tensors are read one after
    another.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._metadata: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return what the checkpoint holds."""
        if self._metadata is None:
            self._metadata = super().read_metadata(*args, **kwargs)
        return self._metadata


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint of the replay whose job is `job`."""

    job: Job
    step: int
    path: Path

    @cached_property
    def _reader(self) -> _Reader:
        return _Reader(self.path)

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        """The shapes of its tensors, by the names that mean the same under every layout."""
        return {name: tensor.size for name, tensor in self._tensors.items()}

    @property
    def _tensors(self) -> dict[str, TensorStorageMetadata]:
        entries = self._reader.read_metadata().state_dict_metadata
        return {
            name: entry
            for name, entry in entries.items()
            if isinstance(entry, TensorStorageMetadata)
        }

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return these tensors whole, in fp32; raise `InvalidInput` if the files cannot be read."""
        return self._read({name: torch.empty(self.shapes[name]) for name in names})

    def _read(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        if not found:
            return found
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this is one process
            try:
                load(found, storage_reader=self._reader, no_dist=True)
            except CheckpointException as error:  # which is no Exception
                why = str(next(iter(error.failures.values()))[0]).partition(". ")[0]
                raise InvalidInput(
                    f"{self.path} cannot be read: {why}",
                    hint="choose another of the replay's checkpoints with --step",
                ) from None
        return found

    def require(self, shapes: dict[str, torch.Size]) -> None:
        """Raise `InvalidInput` unless it holds tensors of these shapes."""
        for name, shape in shapes.items():
            if self.shapes.get(name) != shape:
                held = (
                    f"has the shape {list(self.shapes[name])}"
                    if name in self.shapes
                    else "is missing"
                )
                raise InvalidInput(
                    f"{self.path}: {name} {held}, expected {list(shape)} of the job beside it"
                )

    @cached_property
    def _data(self) -> Description | None:
        with suppress(OSError, InvalidInput):
            return described(self.job.data_path)
        return None

    @property
    def tokenizer(self) -> Path | None:
        """The tokenizer of the replay's data, where that was prepared and still is where it was."""
        return None if self._data is None else self.job.data_path.parent / self._data.tokenizer

    @property
    def end_of_document(self) -> int | None:
        """The token between two documents of the replay's data; None as for `tokenizer`."""
        return None if self._data is None else self._data.end_of_document


class FlatCheckpoint(Checkpoint):
    """One of the DeepSpeed engine, whose tensors are flat parts of the weights; all weights are in
    memory at once.
    """

    @cached_property
    def _parts(self) -> dict[str, dict[int, list[tuple[str, StatePart]]]]:
        """The parts of each parameter by tensor-parallel rank, with the names of the tensors that
        they are in.
        """
        layouts = {
            name: torch.empty(one.size, dtype=torch.uint8)
            for name, one in self._tensors.items()
            if name.endswith(LAYOUT)
        }
        if not layouts:
            raise InvalidInput(
                f"{self.path} was written by a version of the DeepSpeed engine that did not name"
                " its weights",
                hint="continue the replay with a larger --steps: its next checkpoint does",
            )
        found: dict[str, dict[int, list[tuple[str, StatePart]]]] = {}
        for name, text in self._read(layouts).items():
            layout = StateLayout.from_json(text.numpy().tobytes())
            for part in layout.parts:
                tensor = f"{name.removesuffix(LAYOUT)}.{part.number}.weights"
                by_rank = found.setdefault(f"model.{part.name}", {})
                by_rank.setdefault(layout.tensor_rank, []).append((tensor, part))
        return found

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        """See Checkpoint."""
        wanted = shapes_of(self.job.model, sequence_length=self.job.sequence_length)
        found = {}
        for name, by_rank in self._parts.items():
            shape = list(by_rank[0][0][1].shape)
            if (cut := _cut(shape, wanted.get(name))) is not None:
                shape[cut] *= len(by_rank)
            found[name] = torch.Size(shape)
        return found

    @cached_property
    def _flat(self) -> dict[str, Tensor]:
        names = {
            tensor
            for by_rank in self._parts.values()
            for parts in by_rank.values()
            for tensor, _ in parts
        }
        return self._read({name: torch.empty(self._tensors[name].size) for name in names})

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """See Checkpoint."""
        return {name: self._whole(name) for name in names}

    def _whole(self, name: str) -> Tensor:
        shares = []
        for _, parts in sorted(self._parts[name].items()):
            shape = parts[0][1].shape
            if sum(part.elements for _, part in parts) != math.prod(shape):
                raise InvalidInput(f"{self.path}: {name} is not whole")
            share = torch.empty(math.prod(shape))
            for tensor, part in parts:
                values = self._flat[tensor].flatten()[part.place : part.place + part.elements]
                share[part.first : part.first + part.elements] = values
            shares.append(share.view(shape))
        cut = _cut(list(shares[0].shape), self.shapes[name])
        return shares[0] if cut is None else torch.cat(shares, dim=cut)


def _cut(share: list[int], whole: Sequence[int] | None) -> int | None:
    """Return the dimension along which tensor-parallel ranks share a parameter, or None."""
    return next(
        (place for place, size in enumerate(whole or ()) if share[place : place + 1] != [size]),
        None,
    )


def open_checkpoint(folder: Path, step: int | None = None) -> Checkpoint:
    """Return a replay's newest checkpoint, or that of `step`; raise `NotFound` or `InvalidInput` if
    there is none.
    """
    hint = "name the folder that `frontrunner replay` printed, in which job.json lies"
    try:
        text = read_bytes(
            folder / "job.json", "job of a replay", hint, most=_MOST_JOB_BYTES
        ).decode()
        job = Job.from_json(text)
    except (ValueError, json.JSONDecodeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(
            f"{folder / 'job.json'} is not a job of this version: {error}", hint=hint
        ) from None
    steps = complete_steps(folder / "checkpoints")
    if not steps or (step is not None and step not in steps):
        known = f"; it has those of steps {', '.join(map(str, steps))}" if steps else ""
        wanted = "complete checkpoint" if step is None else f"complete checkpoint of step {step}"
        raise NotFound(
            f"{folder} has no {wanted}{known}",
            hint="a replay writes one at its end, and every tenth of it",
        )
    chosen = steps[-1] if step is None else step
    kind = FlatCheckpoint if job.recipe.engine == "deepspeed" else Checkpoint
    return kind(job, chosen, folder / "checkpoints" / f"step-{chosen:08d}")
