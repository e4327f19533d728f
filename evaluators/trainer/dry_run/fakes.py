"""Changes to torch that let a whole rank run over fake tensors, each with its reason.

Made for torch 2.13. The changes stay for the life of the process, which traces one rank and ends: a second trace would
find process groups of the first in DTensor's caches.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._utils import (
    InferenceMode,
    _StageBackwardMeta,
    _StageForwardMeta,
    extract_tensor_meta,
)
from torch.distributed.pipelining.schedules import _PipelineSchedule
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore

from frontrunner.evaluators.trainer.dry_run.ledger import Category, Watch
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.precision import COMPUTE_TYPES

_MESH_METHODS = ("__init__", "_concatenate", "_flatten", "_unflatten", "__getitem__", "_get_root_mesh")


def join_fake_group(*, rank: int, world_size: int) -> None:
    """Join, as `rank`, a process group whose collectives return at once and leave their outputs as they are."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)


def prepare_torch(job: Job, watch: Watch, mode: FakeTensorMode) -> None:
    """Change torch for a trace under `mode` of `job`, whose recipe is the real one, with all of its micro-batches."""
    _keep_meshes_real()
    _let_parameters_move(mode)
    _leave_out_global_shapes(watch)
    _follow_fsdp(watch)
    _follow_storages(watch)
    _answer_for_other_stages(job, watch)
    _begin_after_set_up(watch)


def _keep_meshes_real() -> None:
    """Let a DeviceMesh read its tensor of ranks: it needs values, which a fake tensor does not have."""
    for name in _MESH_METHODS:
        method = DeviceMesh.__dict__.get(name)
        if isinstance(method, staticmethod | classmethod):
            setattr(DeviceMesh, name, type(method)(_without_fakes(method.__func__)))
        elif method is not None:
            setattr(DeviceMesh, name, _without_fakes(method))
    DeviceMesh.mesh = property(_without_fakes(DeviceMesh.mesh.fget))  # type: ignore[assignment, attr-defined]


def _without_fakes(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return wrapped


def _let_parameters_move(mode: FakeTensorMode) -> None:
    """Let `Module.to_empty` swap tensors although the mode's memo holds weak references to them."""
    plain = torch.utils.swap_tensors

    def swap(first: torch.Tensor, second: torch.Tensor) -> None:
        mode.fake_tensor_converter.meta_converter.tensor_memo.clear()
        plain(first, second)  # type: ignore[no-untyped-call]

    torch.utils.swap_tensors = swap


def _leave_out_global_shapes(watch: Watch) -> None:
    """Hide DTensor's shape inference, which runs operators on fakes of global shape, as no rank ever does."""
    plain = ShardingPropagator._propagate_tensor_meta_non_cached

    def propagate(self: ShardingPropagator, *args: Any, **kwargs: Any) -> Any:
        with watch.paused():
            return plain(self, *args, **kwargs)

    ShardingPropagator._propagate_tensor_meta_non_cached = propagate  # type: ignore[method-assign]


def _follow_fsdp(watch: Watch) -> None:
    """Label FSDP2's buffers: only it knows which hold gathered parameters, and which gradients."""
    for name in ("unshard", "wait_for_unshard"):
        _wrap(FSDPParamGroup, name, watch, Category.GATHERED_PARAMETERS)
    plain = FSDPParamGroup.post_backward

    def post_backward(self: FSDPParamGroup, *args: Any) -> Any:
        whole = (getattr(parameter, "_unsharded_param", None) for parameter in self.fsdp_params)
        gradients = [parameter.grad for parameter in whole if parameter is not None and parameter.grad is not None]
        watch.ledger.label(gradients, Category.GRADIENTS)
        with watch.purpose(Category.GRADIENTS):
            return plain(self, *args)

    FSDPParamGroup.post_backward = post_backward  # type: ignore[method-assign]


def _wrap(owner: type, name: str, watch: Watch, category: Category) -> None:
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with watch.purpose(category):
            return plain(*args, **kwargs)

    setattr(owner, name, wrapped)


def _follow_storages(watch: Watch) -> None:
    """Record that FSDP2 frees and allocates by resizing storages, which a dispatch mode does not see."""
    plain = torch.UntypedStorage.resize_

    def resize(self: torch.UntypedStorage, size: int) -> None:
        plain(self, size)
        watch.ledger.resized(self)

    torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]


def _answer_for_other_stages(job: Job, watch: Watch) -> None:
    """Give each stage the shapes of what it receives, which real ranks send to one another.

    Buffers to receive in are made for every micro-batch of a real step, however few are traced.
    """

    # Asked by vote, in tensors whose values are read.
    def agree(_self: _PipelineSchedule, stages: list[PipelineStage], *_: Any) -> None:
        for stage in stages:
            stage._inference_mode = InferenceMode.DYNAMIC

    def receive(self: PipelineStage, source: int) -> _StageForwardMeta | _StageBackwardMeta:
        example = torch.empty(_between_stages(job), dtype=COMPUTE_TYPES[job.precision], device=self.device)
        if source < self.stage_index:
            return _StageForwardMeta(forward_metas=(extract_tensor_meta(example.requires_grad_()),))
        return _StageBackwardMeta(backward_metas=(extract_tensor_meta(example),))

    _PipelineSchedule._warmup_p2p = agree  # type: ignore[method-assign, assignment]
    PipelineStage._recv_meta = receive  # type: ignore[method-assign, assignment]
    PipelineStage._send_meta = lambda *_: None  # type: ignore[method-assign]
    for name in ("_setup_forward_recv_info", "_setup_backward_recv_info"):
        _wrap_buffers(name, watch, job.recipe.accumulation)


def _begin_after_set_up(watch: Watch) -> None:
    """Skip the pass of a schedule's first step that infers shapes, which no later step has."""
    plain = _PipelineSchedule._initialize_pp_stages

    def set_up(self: _PipelineSchedule, *args: Any, **kwargs: Any) -> Any:
        outcome = plain(self, *args, **kwargs)
        watch.begin()
        return outcome

    _PipelineSchedule._initialize_pp_stages = set_up  # type: ignore[method-assign]


def _wrap_buffers(name: str, watch: Watch, accumulation: int) -> None:
    plain = getattr(PipelineStage, name)

    def set_up(self: PipelineStage, _traced: int, *args: Any) -> None:
        with watch.purpose(Category.PIPELINE_BUFFERS):
            plain(self, accumulation, *args)

    setattr(PipelineStage, name, set_up)


def _between_stages(job: Job) -> tuple[int, int, int]:
    """Return the shape of what a stage sends to the next: [micro_batch_seqs, tokens that a rank holds, hidden]."""
    recipe = job.recipe
    shards = recipe.context_parallel * (recipe.tensor_parallel if recipe.sequence_parallel else 1)
    return recipe.micro_batch_seqs, job.sequence_length // shards, job.model.hidden
