"""A transformer layer: two blocks, with norms and residuals around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from frontrunner.evaluators.analytic.arrays import Rows
from frontrunner.evaluators.analytic.operations import Elementwise, Operation
from frontrunner.evaluators.analytic.parts import attention, feed_forward, latent_attention, mixture
from frontrunner.evaluators.analytic.parts.setting import Setting
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.spaces.model.attention import GroupedAttention, LatentAttention
from frontrunner.spaces.model.feed_forward import DenseFeedForward, MixtureOfExperts
from frontrunner.spaces.model.layer import Layer

MODULES: Mapping[type, ModuleType] = {
    GroupedAttention: attention,
    LatentAttention: latent_attention,
    DenseFeedForward: feed_forward,
    MixtureOfExperts: mixture,
}
"""The module with `operations` and `weights` of each kind of part."""


def operations(layer: Layer, setting: Setting) -> Iterator[Operation]:
    """Yield the operations of a layer's forward pass."""
    for part in (layer.attention, layer.feed_forward):
        yield from MODULES[type(part)].operations(part, setting)
    yield from _between_blocks(layer, setting)


def _between_blocks(layer: Layer, setting: Setting) -> Iterator[Elementwise]:
    values = setting.hidden_values
    norms = layer.norms
    shares_input = layer.parallel_residual and setting.code.kernels.norm == "fused"
    yield Elementwise(
        kernel="norm",
        values=norms * values,
        kept_values=(norms - 1 if shares_input else norms) * values,
        again=frozenset({"norms"}),
    )
    yield Elementwise(kernel="residual", values=2 * values)


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """Parameters of a layer's matrices, before any sharding over replicas."""

    shared: Rows
    """Those of one tensor-parallel rank besides the experts."""
    experts: int
    """Those of all experts together."""

    def on_rank(self, work: Workload) -> Rows:
        """Return what a rank holds."""
        return self.shared + self.experts / work.degrees.expert_ranks

    def sharded(self, work: Workload, degree: Rows) -> Rows:
        """Return what a rank holds, times `degree`, where each parameter is sharded over so many
        copies.

        Experts then are sharded over all ranks of the stage that hold the same ones.
        """
        return self.shared + self.experts_sharded(work, degree)

    def experts_sharded(self, work: Workload, degree: Rows) -> Rows:
        """Return the experts' part of `sharded`."""
        return self.experts / np.where(degree > 1, work.degrees.tensor, work.degrees.expert_ranks)


def weights(layer: Layer, work: Workload) -> LayerWeights:
    """Return the parameters of a layer's matrices."""
    attending, feeding = (
        MODULES[type(part)].weights(part, work) for part in (layer.attention, layer.feed_forward)
    )
    experts = mixture.expert_weights(layer.mixture) if layer.mixture else 0
    return LayerWeights(shared=attending + feeding, experts=experts)


def weights_of_kinds(work: Workload) -> Sequence[LayerWeights]:
    """Return the parameters of each kind of the model's layers."""
    return [weights(layer, work) for _, layer in work.model.kinds]
