"""What every run has: a folder with a log and a result, a limit of memory, and the steps of one
engine.
"""

import gc
import json
import math
import os
import resource
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from frontrunner.evaluators.trainer.data import Batch, Tokens
from frontrunner.evaluators.trainer.job import DATA_RANGE, STEP_RANGE, Job
from frontrunner.evaluators.trainer.layout import Layout
from frontrunner.evaluators.trainer.parts.attention_kernels import attention_kernel, attention_order
from frontrunner.evaluators.trainer.telemetry import Telemetry, process_bytes
from frontrunner.spaces.document import finite_or_none, write_bytes

RESULT_VERSION = 1
COLLECT_EVERY_STEPS = 50
"""All ranks collect garbage at once, between two steps: one that does so in a step of its own holds
the others up.
"""


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write `document`, whole or not at all; raise ValueError for a number that is not finite."""
    write_bytes(path, json.dumps(document, indent=1, allow_nan=False).encode())


def leave(status: int) -> NoReturn:
    """End this process at once: tearing down the interpreter under torch's threads at times ends a
    finished rank with an abort.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class ProgressLog:
    """`progress.jsonl`: one event per line, on disk as soon as it is written; ranks other than 0
    pass None.
    """

    def __init__(self, path: Path | None, *, append: bool) -> None:
        mode = "a" if append else "w"
        self._file = path.open(mode, encoding="utf-8", buffering=1) if path is not None else None

    def write(self, event: str, **values: float | None) -> None:
        """Append one event."""
        if self._file is not None:
            self._file.write(json.dumps({"event": event, **values}, allow_nan=False) + "\n")


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """Mean loss over the global batch; global gradient norm before clipping, where the job clips.

    `overflowed`: a gradient passed fp16's range, so that the step changed no weight. `loss_scale`
    is the next step's.
    """

    loss: float
    gradient_norm: float | None
    overflowed: bool = False
    loss_scale: float | None = None

    @property
    def is_finite(self) -> bool:
        """Whether training can go on."""
        return math.isfinite(self.loss) and (
            self.gradient_norm is None or math.isfinite(self.gradient_norm)
        )


class Stepper(ABC):
    """Runs steps of training on one rank. Every rank of the job must make the same calls."""

    optimizer: torch.optim.Optimizer
    runs_ahead = False

    def __init__(self, job: Job, layout: Layout, data: Tokens, device: torch.device) -> None:
        self.telemetry = Telemetry(device)  # before anything is built
        self._kernels = (
            ExitStack()
        )  # for as long as this process trains, also in what torch.compile traces
        self._kernels.enter_context(attention_order(device))
        self.telemetry.attention = None if device.type == "cpu" else attention_kernel(job, device)
        self.job = job
        self.recipe = job.recipe
        self.layout = layout
        self.device = device
        self._data = data

    @abstractmethod
    def step(self, number: int) -> StepOutcome:
        """Train on the global batch of step `number`. Returns once this rank's device is done."""

    def begin(self, number: int) -> Callable[[], StepOutcome]:
        """Begin step `number`, and return what waits for it; where `runs_ahead` another may begin
        before.
        """
        outcome = self.step(number)
        return lambda: outcome

    @abstractmethod
    def loss_share(self, batch: Batch) -> Tensor:
        """Return this rank's share of the batch's mean loss, which is the sum of all ranks' shares;
        no gradients.
        """

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return every tensor that training goes on from, by names that mean the same on all
        ranks.
        """

    def layout_of_state(self) -> dict[str, Tensor]:
        """Return what checkpoints hold beside `state`, so that others than training can read that;
        nothing by default.

        Training does not go on from it.
        """
        return {}

    @abstractmethod
    def restore(self, load: Callable[[dict[str, Tensor]], None]) -> None:
        """Go on from stored values, which `load` writes into the tensors that `state` returned."""

    def evaluate(self, batches: int) -> float:
        """Return the mean loss over the first `batches` held-out global batches."""
        total = torch.zeros((), device=self.device)
        for number in range(batches):
            total += self.loss_share(self.read_batch(self._data.evaluation_batch, number))
        dist.all_reduce(total)
        return float(total) / batches

    def training_batch(self, number: int) -> Batch:
        """Return what this rank trains on in step `number`."""
        return self.read_batch(self._data.training_batch, number)

    def read_batch(self, draw: Callable[..., Batch], number: int) -> Batch:
        """Return the positions that this rank holds of its replica's sequences, on its device."""
        with record_function(DATA_RANGE):
            ours, size = self.layout.replica_sequences, self.recipe.global_batch_seqs
            batch = draw(number, sequences=ours, global_batch_seqs=size)
            if self.layout.context is not None:
                batch = batch.at(self.layout.context.positions(self.job.sequence_length))
            return batch.to(self.device)


def synchronize(device: torch.device) -> None:
    """Wait until an accelerator has done all its work; nothing on a CPU."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """One rank of a job, built and ready to step. `build_time_s` is from the rank's start to
    here.
    """

    job: Job
    rank: int
    stepper: Stepper
    log: ProgressLog
    build_time_s: float

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.job.run_folder)

    @property
    def tokens_per_step(self) -> int:
        """The tokens of a global batch: its sequences * their length."""
        return self.job.recipe.global_batch_seqs * self.job.sequence_length

    def timed_step(self, number: int) -> tuple[StepOutcome, float]:
        """Train on step `number` (counted from 1), log it, and return the outcome and its
        seconds.
        """
        start = time.monotonic()
        with record_function(STEP_RANGE):
            outcome = self.stepper.step(number)
        seconds = time.monotonic() - start
        self.note_step(number, outcome, seconds)
        return outcome, seconds

    def note_step(self, number: int, outcome: StepOutcome, seconds: float) -> None:
        """Log a step that is over; collect garbage at times."""
        self.log.write(
            "step",
            step=number,
            time_s=seconds,
            loss=finite_or_none(outcome.loss),
            gradient_norm=finite_or_none(outcome.gradient_norm),
            tokens=self.tokens_per_step,
            **({} if outcome.loss_scale is None else {"loss_scale": outcome.loss_scale}),
        )
        if number % COLLECT_EVERY_STEPS == 0:
            gc.collect()

    def write_result(self, status: str, **values: Any) -> None:
        """Write `result.json` on rank 0. Every rank must call it."""
        result = {
            "version": RESULT_VERSION,
            "status": status,
            **values,
            "build_time_s": self.build_time_s,
        }
        result |= self.stepper.telemetry.describe()
        if self.rank == 0:
            write_json(self.folder / "result.json", result)


def limit_memory(device: torch.device, limit_bytes: int) -> None:
    """Make allocations fail that would take this rank above `limit_bytes`; a MemoryError where it
    is above already.

    RLIMIT_DATA bounds a process's private writable memory; what else it has resident is taken off.
    """
    if device.type != "cpu":
        raise ValueError(f"a memory limit cannot be enforced on device {device.type!r}")
    held = process_bytes()
    shared = held["RssFile"] + held["RssShmem"]
    if limit_bytes - shared < held["VmData"]:
        raise MemoryError(
            f"out of memory: the limit is {_gib(limit_bytes)} a rank, but this rank uses "
            f"{_gib(held['VmData'] + shared)} before it has built anything"
        )
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes - shared, hard))


def as_memory_error(error: Exception) -> Exception:
    """Return a MemoryError for a thread's stack beyond the limit, which the kernel calls "try
    again"; others as is.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit == resource.RLIM_INFINITY or "Resource temporarily unavailable" not in str(error):
        return error
    return MemoryError(
        f"out of memory: the limit of {_gib(limit)} is too low even to start a thread ({error})"
    )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.3g} GiB"
