"""What every mode needs around its steps: who this rank is, its clock, its files, and gathering at the end."""

import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import record_function

from frontrunner.evaluators.trainer.files import ProgressLog
from frontrunner.evaluators.trainer.job import STEP_RANGE, Job
from frontrunner.evaluators.trainer.memory import PeakMemory, peak_memory
from frontrunner.evaluators.trainer.train_step import StepOutcome, Stepper

RESULT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """One rank of a job, built and ready to step. `build_time_s` is from the rank's start to here."""

    job: Job
    rank: int
    device: torch.device
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
        """Train on step `number` (counted from 1), log it, and return the outcome and its seconds."""
        start = time.monotonic()
        with record_function(STEP_RANGE):
            outcome = self.stepper.step(number)
        seconds = time.monotonic() - start
        self.log.write(
            "step",
            step=number,
            time_s=seconds,
            loss=finite_or_none(outcome.loss),
            gradient_norm=finite_or_none(outcome.gradient_norm),
            tokens=self.tokens_per_step,
            **({} if outcome.loss_scale is None else {"loss_scale": outcome.loss_scale}),
        )
        return outcome, seconds


def finite_or_none(value: float | None) -> float | None:
    """Return the value, or None where JSON has no word for it."""
    return value if value is not None and abs(value) < float("inf") else None


def gather_peak_memory(device: torch.device) -> list[PeakMemory]:
    """Return the peak memory of every rank, in rank order, on every rank."""
    own = peak_memory(device)
    unknown = -1
    sizes = [own.allocated_bytes, own.reserved_bytes, own.device_used_bytes]
    row = torch.tensor([unknown if size is None else size for size in sizes], dtype=torch.int64, device=device)
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, row)
    return [_peak_of_row(row.tolist(), unknown) for row in rows]


def describe_memory(peaks: list[PeakMemory]) -> dict[str, Any]:
    """Return a result's keys about the ranks' memory; lists in rank order, or None where not known."""
    known = all(peak.reserved_bytes is not None for peak in peaks)
    return {
        "peak_memory_bytes": [peak.allocated_bytes for peak in peaks],
        "peak_reserved_bytes": [peak.reserved_bytes for peak in peaks] if known else None,
        "device_used_bytes": [peak.device_used_bytes for peak in peaks] if known else None,
    }


def describe_software(device: torch.device) -> dict[str, Any]:
    """Return a result's keys about the device and the versions."""
    name = platform.machine() if device.type == "cpu" else torch.get_device_module(device).get_device_name(device)
    return {
        "device_name": name,
        "versions": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "cuda": torch.version.cuda,
        },
    }


def _peak_of_row(row: list[int], unknown: int) -> PeakMemory:
    allocated, reserved, used = row
    return PeakMemory(
        allocated_bytes=allocated,
        reserved_bytes=None if reserved == unknown else reserved,
        device_used_bytes=None if used == unknown else used,
    )
