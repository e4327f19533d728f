"""A replay's distributed checkpoint, read by one process, tensor by tensor, whatever parallel layout wrote it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
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

from frontrunner.evaluators.text.token_file import described
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.training_run import complete_steps
from frontrunner.spaces.errors import InvalidInput, NotFound, read_bytes

_MOST_JOB_BYTES = 2**20


class _Reader(FileSystemReader):
    """A reader that opens the list of all shards once, though tensors are read one after another."""

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
        entries = self._reader.read_metadata().state_dict_metadata
        return {name: entry.size for name, entry in entries.items() if isinstance(entry, TensorStorageMetadata)}

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return these tensors whole, in fp32; raise `InvalidInput` if the files cannot be read."""
        found = {name: torch.empty(self.shapes[name]) for name in names}
        if not found:
            return found
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this is one process
            try:
                load(found, storage_reader=self._reader, no_dist=True)
            except CheckpointException as error:  # which is no Exception
                why = str(next(iter(error.failures.values()))[0]).partition(". ")[0]
                raise InvalidInput(
                    f"{self.path} cannot be read: {why}", hint="choose another of the replay's checkpoints with --step"
                ) from None
        return found

    def require(self, shapes: dict[str, torch.Size]) -> None:
        """Raise `InvalidInput` unless it holds tensors of these shapes."""
        for name, shape in shapes.items():
            if self.shapes.get(name) != shape:
                held = f"has the shape {list(self.shapes[name])}" if name in self.shapes else "is missing"
                raise InvalidInput(f"{self.path}: {name} {held}, expected {list(shape)} of the job beside it")

    @property
    def tokenizer(self) -> Path | None:
        """The tokenizer of the replay's data, where that was prepared and still is where it was."""
        data = self.job.data_path
        try:
            about = described(data)
        except (OSError, InvalidInput):
            return None
        return None if about is None else data.parent / about.tokenizer


def open_checkpoint(folder: Path, step: int | None = None) -> Checkpoint:
    """Return a replay's newest checkpoint, or that of `step`; raise `NotFound` or `InvalidInput` if there is none."""
    hint = "name the folder that `frontrunner replay` printed, in which job.json lies"
    try:
        text = read_bytes(folder / "job.json", "job of a replay", hint, most=_MOST_JOB_BYTES).decode()
        job = Job.from_json(text)
    except (ValueError, json.JSONDecodeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{folder / 'job.json'} is not a job of this version: {error}", hint=hint) from None
    steps = complete_steps(folder / "checkpoints")
    if not steps or (step is not None and step not in steps):
        known = f"; it has those of steps {', '.join(map(str, steps))}" if steps else ""
        wanted = "complete checkpoint" if step is None else f"complete checkpoint of step {step}"
        raise NotFound(f"{folder} has no {wanted}{known}", hint="a replay writes one at its end, and every tenth of it")
    if job.recipe.engine == "deepspeed":
        raise InvalidInput(
            f"{folder} was trained by the DeepSpeed engine, whose checkpoints hold flattened shards without names",
            hint="replay a recipe with engine = torch to have a model that can be exported",
        )
    chosen = steps[-1] if step is None else step
    return Checkpoint(job, chosen, folder / "checkpoints" / f"step-{chosen:08d}")
