"""Trace of one rank's training step over fake tensors."""

import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from frontrunner.evaluators.trainer.checks import check_job
from frontrunner.evaluators.trainer.data import Batch
from frontrunner.evaluators.trainer.dry_run.fakes import join_fake_group, prepare_torch
from frontrunner.evaluators.trainer.dry_run.ledger import Category, Phase, Watch
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.layout import Layout, make_layout
from frontrunner.evaluators.trainer.optimizer import make_states
from frontrunner.evaluators.trainer.precision import LossScale
from frontrunner.evaluators.trainer.torch_engine import build_engine
from frontrunner.evaluators.trainer.train_step import TorchStepper

_CPU = torch.device("cpu")


def trace(job: Job, *, rank: int, micro_batches: int) -> dict[str, Any]:
    """Trace a step of `rank`, of `micro_batches` instead of all, and return its memory and FLOPs as plain JSON.

    `memory_bytes` is what lives at the peak of the step, by category; `flops` those of all micro-batches, by
    phase.
    """
    start = time.monotonic()
    check_job(job, world_size=job.recipe.devices)
    all_micro_batches = job.recipe.accumulation
    watch = Watch()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    prepare_torch(job, watch, mode)
    join_fake_group(rank=rank, world_size=job.recipe.devices)
    traced = replace(job, device="cpu", recipe=replace(job.recipe, accumulation=micro_batches))
    layout = make_layout(traced.recipe, device_type="cpu")
    with mode, watch:
        stepper = _build(traced, layout, watch, sequences=_replica_batch(job))
        if job.device != "cpu":
            _fuse(stepper.optimizer)
        make_states(stepper.optimizer)
        watch.ledger.label(_states(stepper.optimizer), Category.OPTIMIZER_STATES)
        watch.begin()
        stepper.step(1)
    return {
        "rank": rank,
        "memory_bytes": {str(category): size for category, size in watch.ledger.peak().items()},
        "flops": {str(phase): watch.flops[phase] * all_micro_batches // micro_batches for phase in Phase},
        "trace_time_s": time.monotonic() - start,
    }


class _FakeTokens:
    """Batches of fake tokens in place of a `TokenFile`; they occupy what a whole step's batch does."""

    def __init__(self, watch: Watch, *, sequences: int, used: int, sequence_length: int) -> None:
        self._watch = watch
        self._whole = (sequences, sequence_length)
        self._used = used

    def training_batch(self, _step: int, **_: Any) -> Batch:
        """Return the sequences that are traced, of a batch that holds all."""
        with self._watch.purpose(Category.ACTIVATIONS):
            inputs, targets = (torch.empty(self._whole, dtype=torch.int64)[: self._used] for _ in range(2))
        return Batch(inputs=inputs, targets=targets)


def _build(job: Job, layout: Layout, watch: Watch, *, sequences: int) -> TorchStepper:
    engine = build_engine(job, layout, _CPU, LossScale(job.precision, _CPU))
    watch.ledger.label_all(Category.PARAMETERS)
    tokens = _FakeTokens(watch, sequences=sequences, used=_replica_batch(job), sequence_length=job.sequence_length)
    # The stepper is told of no scale: whether a gradient overflowed stands in no fake tensor.
    return TorchStepper(job, layout, engine, tokens, LossScale("fp32", _CPU))  # type: ignore[arg-type]


def _fuse(optimizer: torch.optim.Optimizer) -> None:
    """Make AdamW fused, as `build_optimizer` does on an accelerator."""
    if isinstance(optimizer, torch.optim.AdamW):
        for group in optimizer.param_groups:
            group["fused"] = True


def _states(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


def _replica_batch(job: Job) -> int:
    return job.recipe.micro_batch_seqs * job.recipe.accumulation
