"""Data parallelism: how parameters, gradients and optimizer states are spread over the copies of the model.

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

Plain replication is the composable `replicate`; a recipe may ask for DistributedDataParallel instead, where there is
neither tensor nor pipeline parallelism: under both, the latter's gradients come out too large by the number of
micro-batches. What FSDP2 does not do for levels is in `levels.py`.
"""

from typing import Any, cast

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from frontrunner.evaluators.trainer.job import Precision
from frontrunner.evaluators.trainer.layout import Layout, ShardingKind, sharding_kind
from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.evaluators.trainer.parallel.hierarchical_sharding import LeveledUnit, leveled_units
from frontrunner.evaluators.trainer.precision import COMPUTE_TYPES, has_master_weights
from frontrunner.spaces.recipe import Recipe

_GATHERING_FOR_EACH_USE = ("zero-3", "hybrid", "levels")


class Replicas:
    """One model (or pipeline stage) as FSDP2 holds it, and when its gradients are reduced."""

    def __init__(self, module: FSDPModule, kind: ShardingKind, recipe: Recipe) -> None:
        self._module = module
        self._all_reduces_every_micro_batch = recipe.gradient_sync == "each"
        self._reduces_every_micro_batch = kind not in ("replicate", "zero-1") or recipe.gradient_sync == "each"
        self._reshards_every_micro_batch = kind in _GATHERING_FOR_EACH_USE

    def before_backward(self, *, last: bool) -> None:
        """Say whether the backward pass that follows is the `last` of the step. Every backward needs this call."""
        self._module.set_is_last_backward(last)
        self._module.set_requires_gradient_sync(last or self._reduces_every_micro_batch)
        # Hybrid: partial sums stay in the sharding group until the step's end.
        self._module.set_requires_all_reduce(last or self._all_reduces_every_micro_batch)
        self._module.set_reshard_after_backward(last or self._reshards_every_micro_batch)

    def reshard(self) -> None:
        """Free gathered parameters, as after a forward pass that no backward follows."""
        for module in cast("nn.Module", self._module).modules():
            if isinstance(module, FSDPModule):
                module.reshard()


class LeveledReplicas(Replicas):
    """One model (or pipeline stage) whose states are sharded by levels: the optimizer trains masters of its own."""

    def __init__(self, module: FSDPModule, layout: Layout) -> None:
        super().__init__(module, "levels", layout.recipe)
        self._levels = layout.levels
        self._units: list[LeveledUnit] = []

    @property
    def masters(self) -> list[tuple[str, nn.Parameter]]:
        """What the optimizer trains, with its names in the whole model; empty before `make_masters`."""
        return [named for unit in self._units for named in unit.masters.items()]

    def make_masters(self) -> None:
        """Make the masters, without values, for the module's materialized parameters."""
        if self._levels is None:
            raise RuntimeError("sharding by levels needs a layout with levels")
        levels = self._levels["tensor", "parameters", "gradients", "optimizer"]
        self._units = leveled_units(cast("nn.Module", self._module), levels)

    def before_backward(self, *, last: bool) -> None:
        """See Replicas."""
        super().before_backward(last=last)
        for unit in self._units:
            unit.is_last_micro_batch = last

    def publish(self) -> None:
        """Bring the masters' values into the module's parameters."""
        for unit in self._units:
            unit.publish()


class DdpReplicas:
    """One whole model under DistributedDataParallel, and when its gradients are reduced."""

    def __init__(self, model: Gpt, layout: Layout) -> None:
        """Wrap the materialized and initialized `model`."""
        self._reduces_every_micro_batch = layout.recipe.gradient_sync == "each"
        self.wrapped = DistributedDataParallel(
            model, process_group=layout.data_mesh.get_group(), gradient_as_bucket_view=True
        )

    def before_backward(self, *, last: bool) -> None:
        """Say whether the backward pass that follows is the `last` of the step; call it before the forward pass."""
        self.wrapped.require_backward_grad_sync = last or self._reduces_every_micro_batch

    def reshard(self) -> None:
        """Nothing is ever gathered."""


def apply_data_parallel(model: Gpt, layout: Layout, precision: Precision) -> Replicas | None:
    """Wrap each block of `model` and the whole, in place; None where there is nothing to spread.

    The one copy of a model on one rank keeps its own fp32 weights where it computes in less: see `MasterWeights`.
    """
    recipe = layout.recipe
    offloads = recipe.offload != "none"
    if recipe.replication == "ddp" or has_master_weights(recipe, precision):
        return None
    if recipe.copies == 1 and precision == "fp32" and not offloads:
        return None
    # One copy that offloads is sharded over itself: its parameters too come to the device for each use only.
    kind = "zero-3" if offloads and recipe.copies == 1 else sharding_kind(recipe)
    options: dict[str, Any] = {"mesh": layout.data_mesh, "mp_policy": _mixed_precision(precision)}
    if kind != "replicate":
        options["reshard_after_forward"] = kind in _GATHERING_FOR_EACH_USE
    if offloads:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=layout.data_mesh.device_type != "cpu")
    if kind == "levels":
        model.to(COMPUTE_TYPES[precision])  # the masters are fp32; what is gathered for each use need not be
    wrap = replicate if kind == "replicate" else fully_shard
    for block in model.blocks.values():
        wrap(block, **options)
    wrap(model, **options)
    module = cast("FSDPModule", model)
    return LeveledReplicas(module, layout) if kind == "levels" else Replicas(module, kind, recipe)


def trained_parameters(model: Gpt, replicas: Replicas | DdpReplicas | None) -> list[tuple[str, nn.Parameter]]:
    """Return what the optimizer trains of `model`, with its names in the whole model."""
    return replicas.masters if isinstance(replicas, LeveledReplicas) else list(model.named_parameters())


def publish_trained(replicas: Replicas | DdpReplicas | None) -> None:
    """Bring what the optimizer has trained to where the next forward pass reads it, if that is elsewhere."""
    if isinstance(replicas, LeveledReplicas):
        replicas.publish()


def _mixed_precision(precision: Precision) -> MixedPrecisionPolicy:
    """Compute in `precision`; master parameters and the reduction of gradients stay fp32."""
    if precision == "fp32":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=COMPUTE_TYPES[precision], reduce_dtype=torch.float32)
