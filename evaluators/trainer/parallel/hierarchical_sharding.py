"""Sharding by levels: parameters, gradients and optimizer states spread over ever larger groups of replicas.

The degrees (p, g, o) are those of arXiv 2501.04266: parameters over p neighboring replicas, gradients over g,
optimizer states over all o. FSDP2 runs the innermost level as ZeRO-3 over p replicas. The other two are here:

| when | what | over |
|---|---|---|
| each use of a parameter | all-gather of the parameters (FSDP2) | p replicas |
| each micro-batch | reduce-scatter of its gradients (FSDP2) | p replicas |
| each micro-batch | reduce-scatter of the outcome, a p-th of the gradients | g / p replicas |
| the last micro-batch | reduce-scatter of the sum, a g-th of the gradients | o / g replicas |
| after the optimizer's step | all-gather of the updated parameters, a g-th of them | o / g replicas |
| then | all-gather of the outcome, a p-th of the parameters | g / p replicas |

Between micro-batches a rank holds a p-th of the parameters in the type they are computed in and a g-th of the
gradients in fp32; the masters, which the optimizer updates, are an o-th of the parameters in fp32.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.nn import functional

from frontrunner.evaluators.trainer.optimizer import local

# Their names up to torch 2.12 are deprecated in 2.13.
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Cut:
    """How tensors are cut along their first dimension over the ranks of a group, in equal parts but for the last.

    The parts are those of `torch.chunk`, and so of a DTensor with the placement Shard(0). What travels is padded to
    equal parts, and all tensors travel together.
    """

    def __init__(self, shapes: Sequence[torch.Size], mesh: DeviceMesh) -> None:
        """Cut tensors of `shapes`, the same on all ranks of the 1-D `mesh`."""
        self._shapes = list(shapes)
        self._group = mesh.get_group()
        self._ranks = mesh.size()
        padded_rows = [-(-shape[0] // self._ranks) for shape in shapes]
        self._padded = [rows * shape[1:].numel() for rows, shape in zip(padded_rows, shapes, strict=True)]
        index = mesh.get_local_rank()
        self.parts = [
            torch.Size((max(0, min(shape[0] - index * rows, rows)), *shape[1:]))
            for rows, shape in zip(padded_rows, shapes, strict=True)
        ]
        """The shapes of this rank's parts."""

    def reduce_scatter(self, wholes: Sequence[Tensor]) -> list[Tensor]:
        """Return this rank's parts of the sums over the group of tensors of the shapes that are cut."""
        if self._ranks == 1:
            return list(wholes)
        rows = [
            functional.pad(whole.flatten(), (0, size * self._ranks - whole.numel())).view(self._ranks, size)
            for whole, size in zip(wholes, self._padded, strict=True)
        ]
        sent = torch.cat(rows, dim=1).flatten()
        received = sent.new_empty(sum(self._padded))
        _reduce_scatter(received, sent, group=self._group)
        pieces = torch.split_with_sizes(received, self._padded)
        return [piece[: shape.numel()].view(shape) for piece, shape in zip(pieces, self.parts, strict=True)]

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
        return [piece.flatten()[: shape.numel()].view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]


class LeveledUnit:
    """The parameters that FSDP2 gathers and reduces together, and the levels beyond FSDP2's."""

    def __init__(self, module: FSDPModule, parameters: Mapping[str, nn.Parameter], levels: DeviceMesh) -> None:
        """Take over the gradients of `module`'s own materialized `parameters`, given with their names in the model.

        Args:
            module: what `fully_shard` was called on, over the dimension "parameters" of `levels`.
            parameters: its parameters without those of nested FSDP2 modules.
            levels: [tensor, parameters, gradients, optimizer].
        """
        self._levels = levels
        self._master_mesh = _without_single_ranks(levels)
        self._parameters = parameters
        self._gradient_cut = Cut([local(parameter).shape for parameter in parameters.values()], levels["gradients"])
        self._master_cut = Cut(self._gradient_cut.parts, levels["optimizer"])
        self.masters = dict(zip(parameters, self._empty_masters(), strict=True))
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
        shards = self._gradient_cut.all_gather(self._master_cut.all_gather(parts))
        torch._foreach_copy_(parameters, shards)

    def _take_reduced(self, reduced: Tensor) -> None:
        """Keep what FSDP2 has reduced over p replicas: one buffer for all gradients, in fp32."""
        self._reduced = reduced
        if reduced.device.type != "cpu":
            # The buffer is another stream's, and is not held until the end of the backward pass as FSDP2 would.
            reduced.record_stream(torch.get_device_module(reduced.device).current_stream(reduced.device))

    def _take_gradient(self, _: Tensor) -> None:
        """Reduce further, once FSDP2 has handed out all gradients."""
        parameters = self._parameters.values()
        handed_out = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
        if len(handed_out) < len(parameters):
            return
        # What is handed out lies where it lay in the buffer, but in the parameters' type.
        gradients = [
            self._reduced[gradient.storage_offset() :][: gradient.numel()].view(gradient.shape)
            for gradient in handed_out
        ]
        for parameter in parameters:
            parameter.grad = None
        self._reduce(gradients)
        self._reduced = torch.empty(0)

    def _reduce(self, gradients: Sequence[Tensor]) -> None:
        parts = self._gradient_cut.reduce_scatter(gradients)
        if self._held is None:
            self._held = parts
        else:
            torch._foreach_add_(self._held, parts)
        if self.is_last_micro_batch:
            self._hand_to_masters(self._master_cut.reduce_scatter(self._held))
            self._held = None

    def _hand_to_masters(self, sums: list[Tensor]) -> None:
        # FSDP2 has averaged over the innermost level.
        torch._foreach_div_(sums, float(self._levels["gradients"].size() * self._levels["optimizer"].size()))
        for master, total in zip(self.masters.values(), sums, strict=True):
            master.grad = self._as_part(total, like=master)

    def _empty_masters(self) -> Iterable[nn.Parameter]:
        for parameter, shape in zip(self._parameters.values(), self._master_cut.parts, strict=True):
            part = torch.empty(shape, dtype=torch.float32, device=parameter.device)
            yield nn.Parameter(self._as_part(part, like=parameter))

    def _as_part(self, part: Tensor, *, like: nn.Parameter) -> DTensor:
        mesh = self._master_mesh
        names = mesh.mesh_dim_names or ()
        placements = [_tensor_placement(like) if name == "tensor" else Shard(0) for name in names]
        return DTensor.from_local(part, mesh, placements, run_check=False, shape=like.shape, stride=like.stride())


def leveled_units(model: nn.Module, levels: DeviceMesh) -> list[LeveledUnit]:
    """Return a unit for each FSDP2 module in `model`, whose parameters must be materialized."""
    left = dict(model.named_parameters())
    units = []
    # The other way round a module comes after those within it, which have taken their parameters by then.
    for path, module in reversed(list(model.named_modules())):
        if isinstance(module, FSDPModule):
            prefix = f"{path}." if path else ""
            own = {name: left.pop(name) for name in list(left) if name.startswith(prefix)}
            if own:  # a pipeline stage between the first and the last has parameters in its blocks only
                units.append(LeveledUnit(module, own, levels))
    return units


def _without_single_ranks(levels: DeviceMesh) -> DeviceMesh:
    """Return the dimensions of more than one rank; there are some, since states are spread over all copies.

    At a rank's first step DTensor weighs up every placement of an operator's tensors on every dimension. Over four
    dimensions that takes seconds, over three a tenth of them.
    """
    names = levels.mesh_dim_names or ()
    return levels[tuple(name for name in names if levels[name].size() > 1)]


def _tensor_placement(parameter: nn.Parameter) -> Placement:
    """Return how tensor parallelism has placed a parameter of FSDP2's, or its master."""
    if isinstance(parameter, DTensor):
        names = parameter.device_mesh.mesh_dim_names or ()
        if "tensor" in names:
            return parameter.placements[names.index("tensor")]
    return Replicate()
