"""The job file: everything the ranks of one training run need to know, as frozen values.

A job travels as JSON from whoever starts the ranks to each rank. Reading is strict: an unknown key, a missing key or a
value of another type raises ValueError with the key's full name, so a job written by another version is refused
instead of being half understood. Only a key with a default may be missing. This module imports neither torch nor numpy.
"""

import dataclasses
import json
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from frontrunner.evaluators.trainer.strict_json import parsed

VERSION = 1

STEP_RANGE = "frontrunner::step"
DATA_RANGE = "frontrunner::data"
WAIT_RANGE = "frontrunner::wait"
"""Names in a profiler's trace: each step, reading its batch, and waiting for a collective from Python."""

Schedule = Literal[
    "none", "gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "interleaved-zero-bubble", "zbv", "dualpipev"
]
Precision = Literal["fp32", "bf16", "fp16"]
OptimizerState = Literal["fp32", "bf16"]
Recompute = Literal["none", "full", "selective"]


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The transformer's shape. `vocabulary` is already padded to what the recipe needs."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn_hidden: int
    vocabulary: int
    positions: Literal["rotary", "learned"]
    activation: Literal["gelu", "swiglu"]
    norm: Literal["layernorm", "rmsnorm"]
    tied_embeddings: bool
    attention: Literal["flash", "math"]

    @property
    def head_width(self) -> int:
        """The width of one attention head: hidden / heads."""
        return self.hidden // self.heads


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Over how many copies of the model each kind of state is spread: parameters <= gradients <= optimizer."""

    parameters: int
    gradients: int
    optimizer: int


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one model is spread over the ranks, and by which engine.

    `context_parallel` counts the ranks that share each sequence of a replica. `virtual_stages` counts the pipeline
    stages that each rank holds. `offload` names what is kept in the host's memory, "nvme" being both on a disk
    instead. `secondary_partition` is the number of neighbouring replicas that hold a second copy of the parameters
    for the backward pass (ZeRO++ hpZ, arXiv 2306.10209); 1 is none. `layers_per_stage` counts each stage's layers along
    the model; empty is as even as possible. `rank_order` numbers the ranks, innermost groups first.
    """

    tensor_parallel: int
    pipeline_parallel: int
    context_parallel: int
    data_parallel: int
    virtual_stages: int
    schedule: Schedule
    micro_batch_seqs: int
    accumulation: int
    sharding: Sharding
    recompute: Recompute
    sequence_parallel: bool
    replication: Literal["replicate", "ddp"]
    compile: bool
    loss_chunks: int
    feed_forward_tiles: int
    optimizer_state: OptimizerState
    activation_offload: bool
    synchronise: Literal["last", "each"]
    engine: Literal["torch", "deepspeed"]
    offload: Literal["none", "optimizer", "optimizer+parameters", "nvme"]
    secondary_partition: int
    layers_per_stage: tuple[int, ...]
    rank_order: Literal["tp-dp-pp", "tp-pp-dp", "dp-tp-pp", "dp-pp-tp", "pp-tp-dp", "pp-dp-tp"] = "tp-dp-pp"

    @property
    def world_size(self) -> int:
        """tensor_parallel * pipeline_parallel * copies: the number of ranks."""
        return self.tensor_parallel * self.pipeline_parallel * self.copies

    @property
    def copies(self) -> int:
        """data_parallel * context_parallel: the ranks that hold the same part of the model."""
        return self.data_parallel * self.context_parallel

    @property
    def stages(self) -> int:
        """pipeline_parallel * virtual_stages: the pipeline stages of the whole model."""
        return self.pipeline_parallel * self.virtual_stages

    @property
    def replica_batch_seqs(self) -> int:
        """micro_batch_seqs * accumulation: the sequences that one replica sees in a step."""
        return self.micro_batch_seqs * self.accumulation

    @property
    def global_batch_seqs(self) -> int:
        """replica_batch_seqs * data_parallel: the sequences in one step of training."""
        return self.replica_batch_seqs * self.data_parallel


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The optimizer and its constants. `gradient_clip_norm` is the largest global 2-norm allowed, or None."""

    name: Literal["adamw", "sgd"]
    learning_rate: float
    weight_decay: float
    beta1: float
    beta2: float
    momentum: float
    gradient_clip_norm: float | None


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Where offload to a disk keeps its files, a folder for this run alone, and the most that they take."""

    folder: str
    needed_bytes: int


@dataclass(frozen=True, kw_only=True)
class Data:
    """A flat file of token ids; a relative path is taken from the run folder."""

    path: str
    dtype: Literal["uint16", "uint32"]


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """When a probe ends before it has taken all its steps; see `evaluators/trainer/steady.py`.

    It ends once at least `min_measured_steps` give the step time to `precision`, half the width of its 95 % interval
    over the median, lie clearly above `best_step_time_s`, the best recipe's at the same number of tokens a step, or
    vary so much that the steps left would not make it known. With those measured, no step is begun that would end later
    than `stop_after_s` after the rank's start.
    """

    min_measured_steps: int
    precision: float
    stop_after_s: float
    best_step_time_s: float | None


@dataclass(frozen=True, kw_only=True)
class Probe:
    """How long a probe trains: warm-up steps are run and timed apart, measured steps count.

    An adaptive probe takes at most so many, and decides by their times how many of them are warm-up.
    """

    warm_up_steps: int
    measured_steps: int
    adaptive: Adaptive | None = None


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a probe is asked to look at after its measured steps.

    `traced_steps` are run under torch's profiler, after one more that warms it up; `sampled_steps` under pyinstrument,
    0 for none.
    """

    traced_steps: int
    sampled_steps: int


@dataclass(frozen=True, kw_only=True)
class Train:
    """How long and how a full training run trains. `steps` counts from the very first start, not from a resume."""

    steps: int
    warm_up_steps: int
    final_learning_rate_fraction: float
    evaluation_every_steps: int
    evaluation_batches: int
    checkpoint_every_steps: int
    keep_checkpoints: int
    metrics: Literal["csv", "tensorboard"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training run, as every rank of it reads it."""

    version: int
    mode: Literal["probe", "train"]
    model: ModelShape
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

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse a job file's text.

        Raises:
            ValueError: the text is not JSON, a key is unknown or missing, a value has another type, the version is
                another one, or the section that the mode needs is null.
        """
        job = parsed(cls, json.loads(text), "job")
        if job.version != VERSION:
            raise ValueError(f"job.version is {job.version}, this trainer reads version {VERSION}")
        if getattr(job, job.mode) is None:
            raise ValueError(f"job.mode is {job.mode!r}, so job.{job.mode} must not be null")
        return typing.cast("Self", job)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Parse the job file at `path`; raises as `from_json` does, and OSError where it cannot be read."""
        return cls.from_json(path.read_text(encoding="utf-8"))

    def to_json(self) -> str:
        """The text that `from_json` reads back as an equal job."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @property
    def data_path(self) -> Path:
        """The token file's path, resolved against the run folder."""
        return Path(self.run_folder) / self.data.path
