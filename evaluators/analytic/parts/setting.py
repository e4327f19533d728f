"""What a part needs to know besides itself: the recipes, and the training code that runs it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frontrunner.evaluators.analytic.arrays import Flags, Rows
from frontrunner.evaluators.analytic.operations import Kept
from frontrunner.evaluators.analytic.training_code import TrainingCode
from frontrunner.evaluators.analytic.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Recipes of one problem under one training code.

    `rank_imbalance` is what the cluster states of the fullest rank's tokens for its experts, over
    the mean of the ranks; None: what routers of published models dealt.
    """

    work: Workload
    code: TrainingCode
    rank_imbalance: float | None = None

    @property
    def hidden_values(self) -> Rows:
        """Values of one micro-batch between the blocks, on one rank."""
        return self.work.tokens * self.work.model.hidden / self.work.sequence_shards

    @property
    def keeps_8_bit_inputs(self) -> Flags:
        """Recipes whose products keep their inputs in 8 bits."""
        return (self.work.choices.fp8 > 0) & self.code.products.transformer_engine

    @property
    def tiles_feed_forward(self) -> Flags:
        """Recipes that run the feed-forward part a tile of the sequence at a time.

        It then keeps nothing, and the backward pass runs it forward once more.
        """
        return self.work.choices.feed_forward_tiles > 1

    def block_input(self) -> Kept:
        """Return the normalized input of a block, which its first product keeps."""
        work = self.work
        shards = 1.0 if self.code.activations.keeps_gathered else work.sequence_shards
        values = work.tokens * work.model.hidden / shards
        bytes_per_value = np.where(
            self.keeps_8_bit_inputs, work.bytes_per_value / 2, work.bytes_per_value
        )
        return Kept(bytes=values * bytes_per_value, dropped_by=frozenset({"norms"}))

    def block_result_bytes(self) -> Rows:
        """Return the bytes of a block's result before tensor-parallel ranks sum it."""
        work = self.work
        return work.tokens * work.model.hidden * work.bytes_per_value
