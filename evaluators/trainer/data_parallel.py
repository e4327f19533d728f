"""Data parallelism: how parameters, gradients and optimizer states are spread over the copies of
the model.

The copies are the replicas; with context parallelism each of a replica's context ranks is one.

| kind | parameters between uses | gradients | optimizer states |
|---|---|---|---|
| replicate | whole | whole, all-reduced at the last micro-batch | whole |
| replicate, gradient_sync "each" | whole | whole, all-reduced at every micro-batch | whole |
| zero-1 | gathered once per step | whole, reduce-scattered at the last micro-batch | sharded |
| zero-2 | gathered once per step | reduce-scattered at every micro-batch | sharded |
| zero-3 | gathered for each use | reduce-scattered at every micro-batch | sharded |
| hybrid | as zero-3, in groups | as zero-3, in groups; all-reduced between groups at the last | sharded, in groups |
| levels | as zero-3, in small groups | reduce-scattered in larger groups at every micro-batch | sharded |

Plain replicas reduce gradients in buckets of neighboring parameters (`Bucket`); a recipe may ask
for torch's DistributedDataParallel instead, where there is neither tensor nor pipeline parallelism:
under both, the latter's gradients come out too large by the number of micro-batches.
"""  # noqa: E501

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from frontrunner.evaluators.trainer.job import Precision
from frontrunner.evaluators.trainer.layout import Layout, sharding_kind
from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.evaluators.trainer.optimizer import COMPUTE_TYPES, local
from frontrunner.evaluators.trainer.parts.experts import Experts
from frontrunner.evaluators.trainer.parts.head import TiedHead

BUCKET_BYTES = 25 * 2**20
FIRST_BUCKET_BYTES = 2**20
"""Of fp32 gradients in a message between plain replicas, as in DistributedDataParallel; the first
one starts early.
"""
_GATHERING_FOR_EACH_USE = ("zero-3", "hybrid", "levels")
# Their names up to torch 2.12 are deprecated in 2.13.
_all_gather: Callable[..., Any] = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)
_reduce_scatter: Callable[..., Any] = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)


class Replicas:
    """One model or pipeline stage, what the optimizer trains of it, and when its gradients are
    reduced: here never.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.forward: nn.Module = model

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return what the optimizer trains, with its names in the whole model."""
        return list(self.model.named_parameters())

    def publish(self) -> None:
        """Bring what is trained to where the next forward pass reads it. All ranks call it
        together.
        """

    def before_backward(self, *, last: bool) -> None:
        """Say, before the forward pass, whether the backward pass that follows is the `last` of the
        step.
        """

    def after_backward(self) -> None:
        """Take over gradients that a backward pass left."""

    def finish_step(self) -> None:
        """Hand out the step's gradients, after its last backward pass."""

    def reshard(self) -> None:
        """Free gathered parameters, as after a forward pass that no backward follows."""


class DdpReplicas(Replicas):
    """One whole model under DistributedDataParallel."""

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        super().__init__(model)
        self._reduces_every_micro_batch = layout.recipe.gradient_sync == "each"
        self._wrapped = DistributedDataParallel(
            model, process_group=layout.data_mesh.get_group(), gradient_as_bucket_view=True
        )
        self.forward = self._wrapped

    def before_backward(self, *, last: bool) -> None:
        """See Replicas."""
        self._wrapped.require_backward_grad_sync = last or self._reduces_every_micro_batch


class WholeReplicas(Replicas):
    """Whole fp32 weights on every copy, or on the only one; gradients are summed and reduced in
    fp32, in buckets.

    A model that computes in less has weights of its own, rounded from these. Every parameter must
    get a gradient in each backward pass. Between passes a rank holds the sums and no other
    gradients; while a bucket takes gradients, its own a second time.
    """

    def __init__(
        self,
        model: nn.Module,
        precision: Precision,
        copies: dist.ProcessGroup | None,
        *,
        sync: str = "last",
        experts: "ExpertReplicas | None" = None,
    ) -> None:
        super().__init__(model)
        self._named = [
            (name, nn.Parameter(weight.detach())) for name, weight in model.named_parameters()
        ]
        model.to(COMPUTE_TYPES[precision])
        self._reduces_every_micro_batch = sync == "each"
        self._reduces = True
        pairs = [
            (weight, master)
            for weight, (_, master) in zip(model.parameters(), self._named, strict=True)
        ]
        spread = set[int]() if experts is None else set(map(id, experts.weights))
        # Gradients become ready from the last layer to the first.
        whole = (pair for pair in reversed(pairs) if id(pair[0]) not in spread)
        self._buckets = [Bucket(bucket, copies) for bucket in _in_buckets(whole)]
        if experts is not None:
            of_experts = _in_buckets(pair for pair in reversed(pairs) if id(pair[0]) in spread)
            self._buckets += [
                Bucket(bucket, experts.group, scale=experts.scale) for bucket in of_experts
            ]
        for bucket in self._buckets:
            for weight in bucket.weights:
                weight.register_post_accumulate_grad_hook(partial(self._count, bucket))

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """See Replicas."""
        return self._named

    @torch.no_grad()
    def publish(self) -> None:
        """See Replicas."""
        for bucket in self._buckets:
            bucket.publish()

    def before_backward(self, *, last: bool) -> None:
        """See Replicas."""
        self._reduces = last or self._reduces_every_micro_batch

    def _count(self, bucket: "Bucket", _: Tensor) -> None:
        bucket.missing -= 1
        if bucket.missing == 0:
            bucket.take(reduce=self._reduces)

    def after_backward(self) -> None:
        """See Replicas: a pass over weights alone, of a schedule that splits the backward pass,
        calls no hooks.
        """
        for bucket in self._buckets:
            if bucket.weights[0].grad is not None:
                bucket.take(reduce=self._reduces)

    def finish_step(self) -> None:
        """See Replicas."""
        for bucket in self._buckets:
            bucket.hand_out()


class Bucket:
    """Neighboring parameters, whose gradients one fp32 tensor holds and one message averages, times
    `scale`.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[nn.Parameter, nn.Parameter]],
        copies: dist.ProcessGroup | None,
        *,
        scale: float = 1.0,
    ) -> None:
        self.weights, self._masters = zip(*pairs, strict=True)
        self.missing = len(pairs)
        self._copies = copies
        self._scale = scale
        self._placements: list[Sequence[Placement]] = []
        self._sums: Tensor | None = None
        self._parts: list[Tensor] = []  # of the sums, as views
        self._reduction: dist.Work | None = None

    def publish(self) -> None:
        """Round the masters into the weights, where these are others."""
        if self.weights[0].dtype != torch.float32:
            weights, masters = (
                list(map(local, tensors)) for tensors in (self.weights, self._masters)
            )
            torch._foreach_copy_(weights, masters)

    @torch.no_grad()
    def take(self, *, reduce: bool) -> None:
        """Add the weights' gradients to the sums, and start to average these over the copies if
        told so.
        """
        self.missing = len(self.weights)
        gradients = [cast("Tensor", weight.grad) for weight in self.weights]
        parts = [local(gradient) for gradient in gradients]
        self._wait()
        if self._sums is None:
            self._sums = _joined(parts).float()
            sizes = [part.numel() for part in parts]
            self._parts = [
                one.view(part.shape)
                for one, part in zip(torch.split(self._sums, sizes), parts, strict=True)
            ]
            self._placements = [getattr(gradient, "placements", ()) for gradient in gradients]
        elif parts[0].dtype == torch.float32:
            torch._foreach_add_(self._parts, parts)
        else:
            self._sums.add_(
                _joined(parts)
            )  # with two types a foreach is a kernel for each parameter
        for weight in self.weights:
            weight.grad = None
        if reduce and self._copies is not None:
            self._reduction = dist.all_reduce(
                self._sums, dist.ReduceOp.AVG, self._copies, async_op=True
            )

    def hand_out(self) -> None:
        """Give the sums to the masters as their gradients, and forget them."""
        if self._sums is None or self.missing != len(self.weights):
            raise RuntimeError("a parameter got no gradient in one of the step's backward passes")
        self._wait()
        if self._scale != 1:
            self._sums.mul_(self._scale)
        for master, part, placements in zip(
            self._masters, self._parts, self._placements, strict=True
        ):
            gradient = part
            if isinstance(master, DTensor):
                options: dict[str, Any] = {
                    "shape": master.shape,
                    "stride": master.stride(),
                    "run_check": False,
                }
                gradient = DTensor.from_local(part, master.device_mesh, placements, **options)
            master.grad = gradient
        self._sums, self._parts = None, []

    def _wait(self) -> None:
        if self._reduction is not None:
            self._reduction.wait()
            self._reduction = None


def _in_buckets(
    pairs: Iterable[tuple[nn.Parameter, nn.Parameter]],
) -> Iterator[list[tuple[nn.Parameter, nn.Parameter]]]:
    """Yield the pairs of weights and masters in neighboring lists of about as many bytes as a
    bucket should have.
    """
    bucket, size, wanted = [], 0, FIRST_BUCKET_BYTES
    for pair in pairs:
        bucket.append(pair)
        size += local(pair[1]).nbytes
        if size >= wanted:
            yield bucket
            bucket, size, wanted = [], 0, BUCKET_BYTES
    if bucket:
        yield bucket


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return (
        tensors[0].flatten()
        if len(tensors) == 1
        else torch.cat([tensor.flatten() for tensor in tensors])
    )


class FsdpReplicas(Replicas):
    """A model as FSDP2 holds it."""

    def __init__(
        self, model: nn.Module, kind: str, layout: Layout, experts: "ExpertReplicas | None" = None
    ) -> None:
        super().__init__(model)
        self._module = cast("FSDPModule", model)
        self._experts = experts
        self._all_reduces_every_micro_batch = layout.recipe.gradient_sync == "each"
        self._reduces_every_micro_batch = kind != "zero-1"
        self._reshards_every_micro_batch = kind in _GATHERING_FOR_EACH_USE

    def before_backward(self, *, last: bool) -> None:
        """See Replicas."""
        self._module.set_is_last_backward(last)
        self._module.set_requires_gradient_sync(last or self._reduces_every_micro_batch)
        # Hybrid: partial sums stay in the sharding group until the step's end.
        self._module.set_requires_all_reduce(last or self._all_reduces_every_micro_batch)
        self._module.set_reshard_after_backward(last or self._reshards_every_micro_batch)

    @torch.no_grad()
    def finish_step(self) -> None:
        """See Replicas."""
        if self._experts is not None:
            self._experts.scale_gradients()

    def reshard(self) -> None:
        """See Replicas."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


class LeveledReplicas(FsdpReplicas):
    """A model sharded by levels (arXiv 2501.04266): see
    docs/decisions/0008-three-levels-on-fsdp2.md.

    Between micro-batches a rank holds a p-th of the parameters in the type they are computed in and
    a g-th of the gradients in fp32; the masters, which the optimizer updates, are an o-th of the
    parameters in fp32.
    """

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        super().__init__(model, "levels", layout)
        levels = cast("DeviceMesh", layout.levels)["tensor", "parameters", "gradients", "optimizer"]
        left = dict(model.named_parameters())
        units: dict[Any, tuple[FSDPModule, dict[str, nn.Parameter]]] = {}
        # The other way round a module comes after those within it, which have taken their
        # parameters by then.
        for path, module in reversed(list(model.named_modules())):
            if isinstance(module, FSDPModule):
                prefix = f"{path}." if path else ""
                _, own = units.setdefault(
                    module._get_fsdp_state(), (module, {})
                )  # several modules may be one unit
                own |= {name: left.pop(name) for name in list(left) if name.startswith(prefix)}
        # A pipeline stage between the first and the last has parameters in its blocks only.
        self._units = [LeveledUnit(module, own, levels) for module, own in units.values() if own]

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """See Replicas: the masters."""
        return [named for unit in self._units for named in unit.masters.items()]

    def before_backward(self, *, last: bool) -> None:
        """See Replicas."""
        super().before_backward(last=last)
        for unit in self._units:
            unit.is_last_micro_batch = last

    def publish(self) -> None:
        """See Replicas."""
        for unit in self._units:
            unit.publish()


class LeveledUnit:
    """The parameters of one FSDP2 module that no nested one has, and the levels beyond FSDP2's."""

    def __init__(
        self, module: FSDPModule, parameters: Mapping[str, nn.Parameter], levels: DeviceMesh
    ) -> None:
        # At a rank's first step DTensor weighs up every placement of an operator's tensors on every
        # dimension. Over four dimensions that takes seconds, over three a tenth of them: those of
        # one rank are left out.
        names = levels.mesh_dim_names or ()
        self._master_mesh = levels[tuple(name for name in names if levels[name].size() > 1)]
        self._averaged_over = float(levels["gradients"].size() * levels["optimizer"].size())
        self._parameters = parameters
        self._gradient_cut = Cut(
            [local(parameter).shape for parameter in parameters.values()], levels["gradients"]
        )
        self._master_cut = Cut(self._gradient_cut.parts, levels["optimizer"])
        self.masters: dict[str, nn.Parameter] = {}
        for (name, parameter), shape in zip(
            parameters.items(), self._master_cut.parts, strict=True
        ):
            part = torch.empty(shape, dtype=torch.float32, device=parameter.device)
            self.masters[name] = nn.Parameter(self._as_part(part, like=parameter))
        self._reduced = torch.empty(0)
        self._held: list[Tensor] | None = None
        self.is_last_micro_batch = True
        module.set_all_reduce_hook(self._take_reduced)
        for parameter in parameters.values():
            parameter.register_post_accumulate_grad_hook(self._take_gradient)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def publish(self) -> None:
        """Bring the masters' values into the parameters."""
        parameters = [local(parameter) for parameter in self._parameters.values()]
        parts = [
            local(master).to(parameter.dtype)
            for master, parameter in zip(self.masters.values(), parameters, strict=True)
        ]
        torch._foreach_copy_(
            parameters, self._gradient_cut.all_gather(self._master_cut.all_gather(parts))
        )

    def _take_reduced(self, reduced: Tensor) -> None:
        self._reduced = reduced
        if reduced.device.type != "cpu":
            # The buffer is another stream's, and is not held until the end of the backward pass as
            # FSDP2 would.
            reduced.record_stream(
                torch.get_device_module(reduced.device).current_stream(reduced.device)
            )

    def _take_gradient(self, _: Tensor) -> None:
        parameters = self._parameters.values()
        handed_out = [
            local(parameter.grad) for parameter in parameters if parameter.grad is not None
        ]
        if len(handed_out) < len(parameters):
            return
        # What is handed out lies where it lay in the buffer, but in the parameters' type.
        gradients = [
            self._reduced[gradient.storage_offset() :][: gradient.numel()].view(gradient.shape)
            for gradient in handed_out
        ]
        for parameter in parameters:
            parameter.grad = None
        parts = self._gradient_cut.reduce_scatter(gradients)
        if self._held is None:
            self._held = parts
        else:
            torch._foreach_add_(self._held, parts)
        if self.is_last_micro_batch:
            sums = self._master_cut.reduce_scatter(self._held)
            torch._foreach_div_(
                sums, self._averaged_over
            )  # FSDP2 has averaged over the innermost level
            for master, total in zip(self.masters.values(), sums, strict=True):
                master.grad = self._as_part(total, like=master)
            self._held = None
        self._reduced = torch.empty(0)

    def _as_part(self, part: Tensor, *, like: nn.Parameter) -> DTensor:
        """Return a DTensor of the masters' mesh, placed on the tensor-parallel ranks as `like`
        is.
        """
        on_tensor_ranks: Placement = Replicate()
        if isinstance(like, DTensor) and "tensor" in (
            names := like.device_mesh.mesh_dim_names or ()
        ):
            on_tensor_ranks = like.placements[names.index("tensor")]
        mesh = self._master_mesh
        placements = [
            on_tensor_ranks if name == "tensor" else Shard(0) for name in mesh.mesh_dim_names or ()
        ]
        return DTensor.from_local(
            part, mesh, placements, run_check=False, shape=like.shape, stride=like.stride()
        )


class Cut:
    """How tensors are cut along their first dimension over a group's ranks, as by `torch.chunk` and
    Shard(0).
    """

    def __init__(self, shapes: Sequence[torch.Size], mesh: DeviceMesh) -> None:
        self._shapes = list(shapes)
        self._group = mesh.get_group()
        self._ranks, index = mesh.size(), mesh.get_local_rank()
        self._padded: list[int] = []
        self.parts: list[torch.Size] = []
        for shape in shapes:
            rows = -(-shape[0] // self._ranks)
            self._padded.append(rows * shape[1:].numel())
            self.parts.append(torch.Size((max(0, min(shape[0] - index * rows, rows)), *shape[1:])))

    def reduce_scatter(self, wholes: Sequence[Tensor]) -> list[Tensor]:
        """Return this rank's parts of the sums over the group of `wholes`."""
        if self._ranks == 1:
            return list(wholes)
        rows = [
            functional.pad(whole.flatten(), (0, size * self._ranks - whole.numel())).view(
                self._ranks, size
            )
            for whole, size in zip(wholes, self._padded, strict=True)
        ]
        sent = torch.cat(rows, dim=1).flatten()
        received = sent.new_empty(sum(self._padded))
        _reduce_scatter(received, sent, group=self._group)
        pieces = torch.split_with_sizes(received, self._padded)
        return [
            piece[: shape.numel()].view(shape)
            for piece, shape in zip(pieces, self.parts, strict=True)
        ]

    def all_gather(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return the whole tensors, of which each rank of the group gives its parts."""
        if self._ranks == 1:
            return list(parts)
        padded = [
            functional.pad(part.flatten(), (0, size - part.numel()))
            for part, size in zip(parts, self._padded, strict=True)
        ]
        sent = torch.cat(padded)
        received = sent.new_empty(self._ranks * sent.numel())
        _all_gather(received, sent, group=self._group)
        pieces = torch.split_with_sizes(received.view(self._ranks, -1), self._padded, dim=1)
        return [
            piece.flatten()[: shape.numel()].view(shape)
            for piece, shape in zip(pieces, self._shapes, strict=True)
        ]


def spread(model: Gpt, layout: Layout, precision: Precision, device: torch.device) -> Replicas:
    """Spread `model`, on the meta device, over its copies, in place, and give it storage without
    values on `device`.
    """
    recipe = layout.recipe
    offloads = recipe.offload != "none"
    # One copy that offloads is sharded over itself: its parameters too come to the device for each
    # use only.
    kind = "zero-3" if offloads and recipe.copies == 1 else sharding_kind(recipe)
    experts = None if layout.experts is None else ExpertReplicas(model, layout)
    if kind == "replicate":
        model.to_empty(device=device)
        if recipe.replication == "ddp":
            return DdpReplicas(model, layout)
        if (
            recipe.copies == 1
            and precision == "fp32"
            and (experts is None or experts.group is None)
        ):
            return Replicas(model)
        copies = layout.data_mesh.get_group() if recipe.copies > 1 else None
        return WholeReplicas(model, precision, copies, sync=recipe.gradient_sync, experts=experts)
    options: dict[str, Any] = {"mesh": layout.data_mesh, "mp_policy": MixedPrecisionPolicy()}
    if precision != "fp32":  # master parameters and the reduction of gradients stay fp32
        options["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=COMPUTE_TYPES[precision], reduce_dtype=torch.float32
        )
    options["reshard_after_forward"] = kind in _GATHERING_FOR_EACH_USE
    if offloads:
        options["offload_policy"] = CPUOffloadPolicy(
            pin_memory=layout.data_mesh.device_type != "cpu"
        )
    if kind == "levels":
        model.to(
            COMPUTE_TYPES[precision]
        )  # the masters are fp32; what is gathered for each use need not be
    if experts is not None:
        experts.shard(options)
    _shard(model, options, loss_chunks=recipe.loss_chunks)
    model.to_empty(device="cpu" if offloads else device)
    return (
        LeveledReplicas(model, layout)
        if kind == "levels"
        else FsdpReplicas(model, kind, layout, experts)
    )


class ExpertReplicas:
    """The ranks that hold the same experts, where expert parallelism spreads these.

    A rank's experts get the gradients of all tokens that come to them, where other parameters get
    those of one copy's: averages over the ranks are multiplied by `scale`.
    """

    def __init__(self, model: Gpt, layout: Layout) -> None:
        self.mesh = cast("DeviceMesh", layout.experts)["expert_replicas"]
        self.group = self.mesh.get_group() if self.mesh.size() > 1 else None
        self.scale = self.mesh.size() / layout.recipe.copies
        self._modules = [part for part in model.modules() if isinstance(part, Experts)]

    @property
    def weights(self) -> list[nn.Parameter]:
        """The experts' weights, as they are now."""
        return [weight for module in self._modules for weight in module.parameters()]

    def shard(self, options: dict[str, Any]) -> None:
        """Shard the experts over their replicas, each layer's by themselves."""
        for module in self._modules:
            fully_shard(module, **options | {"mesh": self.mesh})

    def scale_gradients(self) -> None:
        """Multiply the averaged gradients."""
        if gradients := [
            local(cast("Tensor", weight.grad)) for weight in self.weights
        ]:  # none in layers without
            torch._foreach_mul_(gradients, self.scale)


def _shard(model: Gpt, options: dict[str, Any], *, loss_chunks: int) -> None:
    """Shard each part of the model that is gathered, and reduced, by itself.

    Last norm and head are gathered once per micro-batch, since their backward pass follows their
    forward pass. Where they run in several chunks, or share the embedding's weight, they are the
    root's: FSDP2 would take the end of each chunk's backward pass for the end of theirs.
    """
    until_backward = options | {"reshard_after_forward": False}
    for block in model.blocks.values():
        fully_shard(block, **options)
    if not isinstance(model.head, TiedHead):
        if model.embedding is not None:
            embedding = fully_shard(model.embedding, **options)
            embedding.set_unshard_in_backward(unshard_in_backward=False)
            # Itself, so nothing. By default the previous micro-batch's head, for which no backward
            # pass is to come.
            embedding.set_modules_to_backward_prefetch([embedding])
        if model.head is not None and loss_chunks == 1:
            fully_shard([cast("nn.Module", model.norm), model.head], **until_backward)
    fully_shard(model, **until_backward)
