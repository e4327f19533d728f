"""Dry run of one rank: its real training step over fake tensors, its memory and FLOPs.

`python -P -m frontrunner.evaluators.trainer.dry_run RANK MICRO_BATCHES`, a job on stdin, the trace
on stdout. The engine which probes train with runs over a fake process group of the recipe's full
size: tensors have no data, collectives return at once. A ledger sees each operator through a mode
of torch's dispatcher.

What is changed in torch is made for 2.13, without a pipeline also for 2.11, and stays for the life
of the process, which traces one rank and ends.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate, islice
from types import SimpleNamespace
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineSchedule
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from frontrunner.evaluators.trainer import expert_parallel, torch_engine
from frontrunner.evaluators.trainer.data import Batch, Tokens
from frontrunner.evaluators.trainer.device_checks import check_job
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.layout import make_layout
from frontrunner.evaluators.trainer.optimizer import COMPUTE_TYPES, LossScale, local, make_states
from frontrunner.evaluators.trainer.parts import attention_kernels, experts
from frontrunner.evaluators.trainer.torch_engine import make_stepper

_CPU = torch.device("cpu")
_MESH_METHODS = (
    "__init__",
    "_concatenate",
    "_flatten",
    "_unflatten",
    "__getitem__",
    "_get_root_mesh",
    "mesh",
)
_FLASH_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_GROUPED_PRODUCTS = getattr(torch.ops.aten, "_grouped_mm", None)
_FUSED_NORMS = ("_fused_rms_norm", "_fused_rms_norm_backward")
_WAIT = torch.ops._c10d_functional.wait_tensor.default
_READ_SCALAR = torch.ops.aten._local_scalar_dense.default


class Category(StrEnum):
    """Purpose of a storage.

    `GRADIENTS` are the parameters', wherever they lie, and those of activations on their way to
    another stage. `ACTIVATIONS` are what a forward pass leaves behind, one that is run again
    included, and the batch's tokens. `PIPELINE_BUFFERS` receive from other stages: torch keeps one
    for each micro-batch of a step. `TEMPORARY` is what goes before the pass that made it ends.
    """

    PARAMETERS = "parameters"
    GATHERED_PARAMETERS = "gathered parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATES = "optimizer states"
    ACTIVATIONS = "activations"
    PIPELINE_BUFFERS = "pipeline buffers"
    TEMPORARY = "temporary"


class Phase(StrEnum):
    """Phase of the engine. `RECOMPUTE` is a forward pass within a backward pass."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"


@dataclass(slots=True)
class _Run:
    """One run of a phase: its backward pass of autograd (-1: none), and the change at which it
    ended.
    """

    phase: Phase
    task: int
    end: int | None = None


@dataclass(slots=True, eq=False)
class _Entry:
    made_in: _Run | None
    category: Category | None
    size: int = 0
    freed_at: int | None = None
    reference: weakref.ref[torch.UntypedStorage] | None = None


class Ledger:
    """Storages of the tensors that it is shown. Used by one thread."""

    def __init__(self) -> None:
        self._live: dict[int, _Entry] = {}  # by the storage's address
        self._changes: list[
            tuple[_Entry, int]
        ] = []  # bytes more or fewer, in the order in which they came
        self._start = 0
        self._runs: list[_Run] = []  # the run that goes on, above the one that it interrupts

    @property
    def phase(self) -> Phase | None:
        """Current phase; None outside forward and backward passes."""
        return self._runs[-1].phase if self._runs else None

    def see(self, tensor: Tensor, category: Category | None) -> None:
        """Record the tensor's storage if it is new; `category` None leaves its purpose open."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._live:
            return
        entry = self._live[address] = _Entry(self._runs[-1] if self._runs else None, category)
        entry.reference = weakref.ref(storage, lambda _: self._free(address))
        self.resized(storage)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Record a storage's new size."""
        entry = self._live.get(storage._cdata)
        if entry is not None:
            self._resize(entry, storage.nbytes())

    def label(self, tensors: Iterable[Tensor] | None, category: Category) -> None:
        """Label the storages of these tensors, or of all that live, that have no category yet."""
        addresses = (
            self._live
            if tensors is None
            else [local(tensor).untyped_storage()._cdata for tensor in tensors]
        )
        for entry in map(self._live.get, addresses):
            if entry is not None and entry.category is None:
                entry.category = category

    def enter(self, phase: Phase | None, task: int = -1) -> None:
        """Switch to a phase of the backward pass `task`, which recomputation interrupts and does
        not end.
        """

        def goes_on(run: _Run) -> bool:
            interrupted = run.phase is Phase.BACKWARD and phase is Phase.RECOMPUTE
            return run.task == task and (run.phase is phase or interrupted)

        while self._runs and not goes_on(self._runs[-1]):
            self._runs.pop().end = len(self._changes)
        if phase is not None and self.phase is not phase:
            self._runs.append(_Run(phase, task))

    def start(self) -> None:
        """Start looking for the peak."""
        self._start = len(self._changes)

    def peak(self) -> dict[Category, int]:
        """Return the bytes by category at the peak since `start`."""
        sizes = list(accumulate((change for _, change in self._changes), initial=0))
        # The size before the first change counts too, and of equal peaks the first.
        place = max(range(self._start, len(sizes)), key=lambda at: (sizes[at], -at))
        found = dict.fromkeys(Category, 0)
        for entry, change in islice(self._changes, place):
            found[self._category(entry)] += change
        return found

    def _category(self, entry: _Entry) -> Category:
        if entry.category is not None:
            return entry.category
        if entry.made_in is None:
            return Category.TEMPORARY
        end, freed_at = entry.made_in.end, entry.freed_at
        if freed_at is not None and (end is None or freed_at <= end):
            return Category.TEMPORARY
        return Category.GRADIENTS if entry.made_in.phase is Phase.BACKWARD else Category.ACTIVATIONS

    def _free(self, address: int) -> None:
        entry = self._live.pop(address)
        self._resize(entry, 0)
        entry.freed_at = len(self._changes)

    def _resize(self, entry: _Entry, size: int) -> None:
        if size != entry.size:
            self._changes.append((entry, size - entry.size))
            entry.size = size


def flops(
    operator: Any, arguments: tuple[Any, ...], options: dict[str, Any], output: Any
) -> tuple[int, int]:
    """Return (FLOPs, those that compute something again) of one call of an operator; a multiply-add
    is two.

    Attention is counted over the whole sequence, without credit for the causal mask. The backward
    pass of flash attention computes the scores a second time: one of its five matrix products
    (arXiv 2205.14135, algorithm 4).
    """
    packet = operator._overloadpacket
    if packet is _FLASH_FORWARD:
        return _attention(*arguments[:3]), 0
    if packet is _FLASH_BACKWARD:
        products = _attention(*arguments[1:4]) // 2
        return 5 * products, products
    if (
        packet is _GROUPED_PRODUCTS
    ):  # rows sorted by group, or a matrix for each group, or both the other way round
        first, second = arguments[:2]
        return (
            2
            * (
                first.numel() * second.shape[-1]
                if first.dim() == 2
                else second.numel() * first.shape[-2]
            ),
            0,
        )
    formula: Callable[..., int] | None = flop_registry.get(packet)
    return (0, 0) if formula is None else (formula(*arguments, **options, out_val=output), 0)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    # torch 2.11's `sdpa_flop_count` takes no grouped heads.
    return 2 * query.shape[:-1].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that sees every operator on fake tensors, also DTensor's local ones."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger = Ledger()
        self.flops: Counter[Phase] = Counter()
        self._purpose: Category | Literal["nothing"] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            # A wrapper, as a DTensor is: what it does locally comes here by itself
            return NotImplemented
        options = kwargs or {}
        if func is _READ_SCALAR and isinstance(args[0], FakeTensor):
            return 1  # no fake tensor has a value, and this is one that a count of steps can have
        if self._purpose == "nothing":
            return func(*args, **options)
        phase = self._enter_phase()
        # What waiting returns is what it was given; for fakes torch makes another tensor.
        output = args[0] if func is _WAIT else func(*args, **options)
        for tensor in tree_leaves(output):
            if isinstance(tensor, FakeTensor):
                self.ledger.see(tensor, self._purpose)
        done, again = flops(func, args, options, output)
        if done and phase is not None:
            self.flops[phase] += done - again
            self.flops[Phase.RECOMPUTE] += again
        return output

    def begin(self) -> None:
        """Start looking for the peak and counting FLOPs."""
        self.ledger.start()
        self.flops.clear()

    @contextmanager
    def purpose(self, category: Category | Literal["nothing"]) -> Iterator[None]:
        """Label what is created inside with `category`, or ignore it and what is done."""
        before, self._purpose = self._purpose, category
        try:
            yield
        finally:
            self._purpose = before

    def _enter_phase(self) -> Phase | None:
        task = torch._C._current_graph_task_id()
        in_backward = task != -1
        phase: Phase | None = None
        if torch.is_grad_enabled():
            phase = Phase.RECOMPUTE if in_backward else Phase.FORWARD
        elif in_backward:
            phase = Phase.BACKWARD
        elif self.ledger.phase is Phase.FORWARD:
            return None  # FSDP2's own work between the layers of a forward pass, which goes on
        self.ledger.enter(phase, task)
        return phase


def _around(owner: Any, *names: str) -> Callable[[Callable[..., Any]], None]:
    """Have the decorated function called in place of the owner's, with the plain one as its first
    argument.
    """

    def change(function: Callable[..., Any]) -> None:
        for name in names:
            found = inspect.getattr_static(
                owner, name, None
            )  # versions of torch do not all have the same
            plain = getattr(found, "__func__", None) or getattr(found, "fget", found)
            if plain is not None:
                wrapped = functools.wraps(plain)(
                    lambda *args, _of=plain, **options: function(_of, *args, **options)
                )
                is_plain = not isinstance(found, staticmethod | classmethod | property)
                setattr(owner, name, wrapped if is_plain else type(found)(wrapped))

    return change


def _even_shares(_plain: Any, counts: Tensor, *, rows: int) -> list[Any]:
    """Give each expert, and each rank that holds some, its share of the tokens, wherever they would
    really go.
    """
    size, remainder = divmod(rows, counts.shape[-1])
    shares = [size + (place < remainder) for place in range(counts.shape[-1])]
    return [shares] * counts.shape[0] if counts.dim() > 1 else shares


def prepare_torch(job: Job, watch: Watch, mode: FakeTensorMode) -> None:  # noqa: C901 - a list of changes
    """Change torch for a trace under `mode` of `job`, whose recipe is the real one, with all of its
    micro-batches.
    """

    @_around(torch_engine, "initialize")
    def _(*_: Any, **_options: Any) -> None:
        """Draw no values, which a fake tensor would not keep."""

    # A DeviceMesh reads its tensor of ranks: it needs values, which a fake tensor does not have.
    @_around(DeviceMesh, *_MESH_METHODS)
    def _(plain: Any, *args: Any, **options: Any) -> Any:
        with unset_fake_temporarily():
            return plain(*args, **options)

    # `Module.to_empty` swaps tensors although the mode's memo holds weak references to them.
    @_around(torch.utils, "swap_tensors")
    def _(plain: Any, first: Tensor, second: Tensor) -> None:
        mode.fake_tensor_converter.meta_converter.tensor_memo.clear()
        plain(first, second)

    for module in (experts, expert_parallel):
        _around(module, "counts_on_host")(_even_shares)

    # DTensor infers shapes by running operators on fakes of global shape, as no rank ever does.
    @_around(ShardingPropagator, "_propagate_tensor_meta_non_cached")
    def _(plain: Any, *args: Any, **options: Any) -> Any:
        with watch.purpose("nothing"):
            return plain(*args, **options)

    # Only FSDP2 knows which of its buffers hold gathered parameters, and which gradients.
    @_around(FSDPParamGroup, "unshard", "wait_for_unshard")
    def _(plain: Any, *args: Any, **options: Any) -> Any:
        with watch.purpose(Category.GATHERED_PARAMETERS):
            return plain(*args, **options)

    @_around(FSDPParamGroup, "post_backward")
    def _(plain: Any, group: FSDPParamGroup, *args: Any) -> Any:
        whole = (getattr(parameter, "_unsharded_param", None) for parameter in group.fsdp_params)
        gradients = [
            parameter.grad
            for parameter in whole
            if parameter is not None and parameter.grad is not None
        ]
        watch.ledger.label(gradients, Category.GRADIENTS)
        with watch.purpose(Category.GRADIENTS):
            return plain(group, *args)

    # FSDP2 frees and allocates by resizing storages, which a dispatch mode does not see.
    @_around(torch.UntypedStorage, "resize_")
    def _(plain: Any, storage: torch.UntypedStorage, size: int) -> None:
        plain(storage, size)
        watch.ledger.resized(storage)

    if job.device != "cpu":
        _run_as_on(torch.device(job.device))
    if job.recipe.pipeline_parallel > 1:
        _prepare_pipelines(job, watch)


def _run_as_on(device: torch.device) -> None:
    """Have operators keep what they keep on an accelerator: an RMS norm its input and a number per
    row.

    Where a device has a kernel torch records one operation, else those of a decomposition, which
    keeps three fp32 copies: registering any kernel for the CPU is enough, and of fake tensors torch
    asks only for shapes.
    """
    for name in _FUSED_NORMS:
        packet = getattr(torch.ops.aten, name, None)
        if packet is not None:
            torch.library.impl(f"aten::{name}", "CPU", decomposition_table[packet.default])

    def chosen_for_device(plain: Any, dtype: torch.dtype, _cpu: torch.device) -> Any:
        return plain(dtype, device)

    _around(attention_kernels, "needs_whole_groups")(chosen_for_device)
    _around(experts, "has_grouped_products")(chosen_for_device)


def _prepare_pipelines(job: Job, watch: Watch) -> None:
    from torch.distributed.pipelining._utils import (  # not in torch 2.11
        InferenceMode,
        _StageBackwardMeta,
        _StageForwardMeta,
        extract_tensor_meta,
    )

    # Stages send each other the shapes of what they will send, after a vote in tensors whose values
    # are read.
    @_around(_PipelineSchedule, "_warmup_p2p")
    def _(_plain: Any, _schedule: _PipelineSchedule, stages: list[PipelineStage], *_: Any) -> None:
        for stage in stages:
            stage._inference_mode = InferenceMode.DYNAMIC

    @_around(PipelineStage, "_recv_meta")
    def _(_plain: Any, stage: PipelineStage, source: int) -> _StageForwardMeta | _StageBackwardMeta:
        recipe = job.recipe
        shards = recipe.context_parallel * (
            recipe.tensor_parallel if recipe.sequence_parallel else 1
        )
        shape = recipe.micro_batch_seqs, job.sequence_length // shards, job.model.hidden
        example = torch.empty(shape, dtype=COMPUTE_TYPES[job.precision], device=stage.device)
        if source < stage.stage_index:
            return _StageForwardMeta(forward_metas=(extract_tensor_meta(example.requires_grad_()),))
        return _StageBackwardMeta(backward_metas=(extract_tensor_meta(example),))

    @_around(PipelineStage, "_send_meta")
    def _(*_: Any) -> None:
        pass

    # Buffers to receive in are made for every micro-batch of a real step, however few are traced.
    @_around(PipelineStage, "_setup_forward_recv_info", "_setup_backward_recv_info")
    def _(plain: Any, stage: PipelineStage, _traced: int, *args: Any) -> None:
        with watch.purpose(Category.PIPELINE_BUFFERS):
            plain(stage, job.recipe.accumulation, *args)

    # Until here a schedule's first step infers shapes, which no later step does.
    @_around(_PipelineSchedule, "_initialize_pp_stages")
    def _(plain: Any, *args: Any, **options: Any) -> Any:
        outcome = plain(*args, **options)
        watch.begin()
        return outcome


def trace(job: Job, *, rank: int, micro_batches: int) -> dict[str, Any]:
    """Trace a step of `rank`, of `micro_batches` instead of all.

    Return what lives at the step's peak by category, and the FLOPs of all micro-batches by phase,
    as plain JSON.
    """
    start = time.monotonic()
    check_job(job, world_size=job.recipe.devices)
    all_micro_batches = job.recipe.accumulation
    watch = Watch()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    prepare_torch(job, watch, mode)
    # Its collectives return at once and leave their outputs as they are.
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=job.recipe.devices)
    traced = replace(job, device="cpu", recipe=replace(job.recipe, accumulation=micro_batches))
    layout = make_layout(traced.recipe, device_type="cpu")

    def fake_batch(_step: int, **_: Any) -> Batch:
        """Return the sequences that are traced, of a batch that occupies what a whole step's
        does.
        """
        whole, used = (
            job.recipe.micro_batch_seqs * count for count in (all_micro_batches, micro_batches)
        )
        with watch.purpose(Category.ACTIVATIONS):
            inputs, targets = (
                torch.empty(whole, job.sequence_length, dtype=torch.int64)[:used] for _ in range(2)
            )
        return Batch(inputs=inputs, targets=targets)

    with mode, watch:
        data = cast("Tokens", SimpleNamespace(training_batch=fake_batch))
        stepper = make_stepper(traced, layout, data, _CPU)
        stepper.scale = LossScale(
            "fp32", _CPU
        )  # whether a gradient overflowed stands in no fake tensor
        watch.ledger.label(None, Category.PARAMETERS)
        make_states(stepper.optimizer)
        kept = (value for state in stepper.optimizer.state.values() for value in state.values())
        states = [value for value in kept if isinstance(value, Tensor)]
        watch.ledger.label(states, Category.OPTIMIZER_STATES)
        watch.begin()
        stepper.step(1)
    return {
        "rank": rank,
        "memory_bytes": {str(category): size for category, size in watch.ledger.peak().items()},
        "flops": {
            str(phase): watch.flops[phase] * all_micro_batches // micro_batches for phase in Phase
        },
        "trace_time_s": time.monotonic() - start,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    seen = trace(
        Job.from_json(sys.stdin.read()), rank=int(sys.argv[1]), micro_batches=int(sys.argv[2])
    )
    sys.stdout.write(json.dumps(seen) + "\n")
