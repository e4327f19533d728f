"""The job: everything that the ranks of one training run need to know, as frozen values.

The driver constructs it, from a recipe that it has found to be legal, and writes it to the run
folder; each rank reads it. Reading is strict: an unknown key, a missing key or a value of another
type raises ValueError with the key's full name. Importing this module imports neither torch nor
numpy.
"""

import json
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from frontrunner.spaces.document import as_table, read_plain
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.recipe import Recipe

VERSION = 2

STOP = "stop"
"""A file in the run folder: once it is not empty, a full training run stores a checkpoint and
ends.
"""
STEP_RANGE = "frontrunner::step"
DATA_RANGE = "frontrunner::data"
WAIT_RANGE = "frontrunner::wait"
"""Names in a profiler's trace: each step, reading its batch, and waiting for a collective from
Python.
"""

Precision = Literal["fp32", "bf16", "fp16"]
Metrics = Literal["csv", "tensorboard", "wandb"]
"""Where a full training run writes its losses and rates."""


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The optimizer and its constants. `gradient_clip_norm` is the largest global 2-norm allowed,
    or None.
    """

    name: Literal["adamw", "sgd"]
    learning_rate: float
    weight_decay: float
    beta1: float
    beta2: float
    momentum: float
    gradient_clip_norm: float | None
    epsilon: float = 1e-8


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Where offload to a disk keeps its files, a folder for this run alone, and the most that they
    take.
    """

    folder: str
    needed_bytes: int


@dataclass(frozen=True, kw_only=True)
class Data:
    """A flat file of token ids of `dtype`, little-endian; `held_out_tokens`, at its end, are for
    evaluation, and None leaves that to the trainer. A relative path is taken from the run folder.

    Among several files, a file's share of the sequences is its weight over the sum of all.
    """

    path: str
    dtype: Literal["uint16", "uint32"]
    held_out_tokens: int | None = None
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """When a probe ends early: see `step_time_stats.ending`; `stop_after_s` is from the rank's
    start.
    """

    min_measured_steps: int
    precision: float
    stop_after_s: float
    best_step_time_s: float | None


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Steps of a probe: warm-up, timed apart, and measured; an adaptive one takes at most that
    many.
    """

    warm_up_steps: int
    measured_steps: int
    adaptive: Adaptive | None = None


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Steps after a probe's, under torch's profiler (one more warms it up) and under pyinstrument
    (0 for none).
    """

    traced_steps: int
    sampled_steps: int


@dataclass(frozen=True, kw_only=True)
class Train:
    """How long and how a full training run trains. `steps` counts from the very first start, not
    from a resume.
    """

    steps: int
    warm_up_steps: int
    final_learning_rate_fraction: float
    evaluation_every_steps: int
    evaluation_batches: int
    checkpoint_every_steps: int
    keep_checkpoints: int
    metrics: Metrics


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training run, as every rank of it reads it; of several token files the first is
    `data`.
    """

    mode: Literal["probe", "train"]
    model: Model
    sequence_length: int
    precision: Precision
    recipe: Recipe
    optimizer: Optimizer
    data: Data
    seed: int
    device: Literal["cpu", "cuda", "xpu"]
    memory_limit_bytes_per_rank: int | None
    collective_timeout_s: float
    run_folder: str
    probe: Probe | None
    train: Train | None
    profile: Profile | None = None
    disk: Disk | None = None
    more_data: tuple[Data, ...] = ()
    version: int = VERSION

    def to_json(self) -> str:
        """Return the text of the job file."""
        return json.dumps(as_table(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse a job file's text; raise ValueError for what cannot be a job of this version."""
        table = json.loads(text)
        version = table.get("version") if isinstance(table, dict) else None
        if version != VERSION:
            raise ValueError(f"job.version is {version}, this trainer reads version {VERSION}")
        job = typing.cast("Self", read_plain(cls, table, "job"))
        if flags := [one.name for one in job.recipe.custom if one.flag is not None]:
            raise ValueError(
                f"custom knob {flags[0]} is an argument of another trainer: this one takes none"
            )
        if further := job.model.prediction.layers:
            raise ValueError(
                f"job.model.mtp_layers is {further}, expected 0: this trainer predicts no further"
                " tokens"
            )
        if getattr(job, job.mode) is None:
            raise ValueError(f"job.mode is {job.mode!r}, so job.{job.mode} must not be null")
        return job

    @property
    def data_path(self) -> Path:
        """The first token file's path, resolved against the run folder."""
        return Path(self.run_folder) / self.data.path


def complete_steps(folder: Path) -> list[int]:
    """Return the steps of the complete checkpoints in a folder of checkpoints, in ascending
    order.
    """
    # What torch writes last, under another name first.
    return sorted(
        int(path.parent.name.removeprefix("step-")) for path in folder.glob("step-*/.metadata")
    )
