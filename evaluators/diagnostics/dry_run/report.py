"""What a dry run found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from frontrunner.spaces.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class TracedRank:
    """One rank's training step, as it was traced.

    `memory_bytes` is what lives at the peak, by category. FLOPs are those of one step on this rank, a multiply-add
    counted as two: `recomputed_flops` are those of what is computed a second time, within flash attention's backward
    pass too. `model_flops_by_formula` are those of `Model.model_flops_per_token` for the rank's layers and head.
    """

    rank: int
    pipeline_rank: int
    layers: int
    memory_bytes: Mapping[str, int]
    forward_flops: int
    backward_flops: int
    recomputed_flops: int
    model_flops_by_formula: float
    trace_time_s: float

    @property
    def peak_bytes(self) -> int:
        """The sum of `memory_bytes`: the most that lives at any moment of the step."""
        return sum(self.memory_bytes.values())

    @property
    def model_flops_per_step(self) -> int:
        """forward_flops + backward_flops."""
        return self.forward_flops + self.backward_flops

    @property
    def hardware_flops_per_step(self) -> int:
        """model_flops_per_step + recomputed_flops: what the device executes."""
        return self.model_flops_per_step + self.recomputed_flops


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """A recipe's training step, traced without a device.

    `ranks` are the traced ones, the one that needs most memory first. `micro_batches` of the recipe's accumulation were
    traced; where `extrapolated`, and twice as many, and the memory is what a line through both gives.
    """

    recipe_id: str
    recipe: Recipe
    device: str
    device_memory_bytes: int
    ranks: tuple[TracedRank, ...]
    micro_batches: int
    extrapolated: bool
    wall_time_s: float

    @property
    def worst(self) -> TracedRank:
        """Of the traced ranks the one that needs most memory."""
        return self.ranks[0]

    @property
    def peak_bytes(self) -> int:
        """The peak of the worst rank."""
        return self.worst.peak_bytes

    @property
    def fits(self) -> bool:
        """Whether the worst rank's peak is within the device's memory."""
        return self.margin_bytes >= 0

    @property
    def margin_bytes(self) -> int:
        """device_memory_bytes - peak_bytes: what is left for all that is not in a dry run; negative if too little."""
        return self.device_memory_bytes - self.peak_bytes
