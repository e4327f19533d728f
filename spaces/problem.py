"""The problem: what a recipe must solve."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from frontrunner.spaces.cluster import PRECISIONS, Cluster
from frontrunner.spaces.errors import (
    bad_value,
    require_above_zero,
    require_at_least,
    require_one_of,
)
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.recipe import Recipe

TOLERANCES = ("rounding", "quantized")


@dataclass(frozen=True, kw_only=True)
class GlobalBatch:
    """Sequences of one optimizer step over all replicas: fixed (minimum == maximum) or a range."""

    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        require_at_least("problem", 1, global_batch=self.minimum)
        if self.maximum < self.minimum:
            raise bad_value(
                "problem.global_batch",
                [self.minimum, self.maximum],
                "[minimum, maximum] in rising order",
            )

    @property
    def is_fixed(self) -> bool:
        """Whether recipes compare at equal mathematics: minimum == maximum."""
        return self.minimum == self.maximum

    def __contains__(self, sequences: object) -> bool:
        return isinstance(sequences, int) and self.minimum <= sequences <= self.maximum

    def __str__(self) -> str:
        return str(self.minimum) if self.is_fixed else f"{self.minimum}-{self.maximum}"


@dataclass(frozen=True, kw_only=True)
class SoftwareSettings:
    """What estimates assume of the training code; None where the code itself, or the campaign,
    decides.
    """

    code: str | None = None
    """A known training code, whose kernels and communication are those of its source, or `unknown`,
    which widens the intervals. By default the project's own, or that of `command.trainer`, else of
    `command.log`; `unknown` for `deepspeed`, other commands and plug-ins.
    """
    attention: Literal["flash-1", "flash-2", "flash-3", "fused-softmax", "math", "eager"] | None = (
        None
    )
    """One kernel, FlashAttention by its version, or one each for products and softmax: fused,
    torch's `math`, or eager in fp32. By default as `model.attention`.
    """
    norm: Literal["fused", "eager"] | None = None
    """Norms: in one kernel, or in torch's own operations, in fp32."""
    activation: Literal["fused", "eager"] | None = None
    """The gate of a feed-forward part of three matrices: in one kernel or two."""
    rotary: Literal["fused", "eager", "fp32"] | None = None
    """The rotation of queries and keys: in one kernel, or in torch's own operations, which may be
    in fp32.
    """
    cross_entropy: Literal["fused", "16-bit", "eager"] | None = None
    """The loss: in one kernel, in several on 16-bit logits, or on an fp32 copy of them."""
    dropout: bool | None = None
    """Whether residuals and scores are dropped out."""
    permutation: Literal["fused", "eager"] | None = None
    """The sorting of tokens by expert: in one kernel each way, or in torch's own operations."""
    dispatcher: Literal["alltoall", "deepep"] | None = None
    """How tokens reach experts on other ranks: a copy for each expert, or one for each node and
    rank, as DeepEP and HybridEP send them.
    """
    dispatch_overlap: bool | None = None
    """Whether another micro-batch is computed while tokens travel to their experts and back."""
    tensor_overlap: bool | None = None
    """Whether sequence-parallel gathers and sums of dense layers run beside matrix products."""
    cuda_graphs: Literal["none", "layers", "step"] | None = None
    """What the host starts as one CUDA graph: nothing, parts of each layer, or the whole step."""
    gradients: Literal["fp32", "fp32-reduced", "16-bit"] | None = None
    """Type in which gradients are kept and reduced; `fp32-reduced` ones are kept in 16 bits."""
    selective: Literal["attention", "products", "alternate"] | None = None
    """What selective recompute runs again: attention that is not fused, or all but matrix products
    and attention, or every second product as well.
    """
    reduction: Literal["scattered", "whole"] | None = None
    """How gradients are reduced where the optimizer is sharded: each rank's share, or whole as
    without sharding.
    """
    overlap: Literal["all", "sharded", "unsharded", "none"] | None = None
    """The gradients that are reduced while the backward pass goes on, by whether the optimizer is
    sharded.
    """

    def describe(self) -> str:
        """Return the code and its traits in words: `nanotron, attention flash-2, norm fused`."""
        plain = {True: "yes", False: "no"}
        stated = (
            (key.replace("_", "-"), value) for key, value in vars(self).items() if key != "code"
        )
        words = [f"{key} {plain.get(value, value)}" for key, value in stated if value is not None]
        if self.code == "unknown":
            words.append(
                "else any that known codes have; [software] in the campaign file states what is"
                " known"
            )
        return ", ".join([self.code or "the project's own", *words])


@dataclass(frozen=True, kw_only=True)
class Training:
    """What the whole training takes at one rate; `price` is None where the cluster states none of a
    node-hour.
    """

    days: float
    node_hours: float
    price: float | None

    @classmethod
    def of(
        cls,
        billion_tokens: float,
        tokens_per_s: float,
        nodes: int,
        price_per_node_hour: float | None,
    ) -> Training:
        """Return what so many tokens take at one rate on these nodes."""
        hours = 1e9 * billion_tokens / tokens_per_s / 3600
        price = None if price_per_node_hour is None else price_per_node_hour * nodes * hours
        return cls(days=hours / 24, node_hours=nodes * hours, price=price)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Model, cluster, sequence length in tokens, global batch in sequences, and precision of the
    arithmetic.

    `tolerance` is how far recipes may differ in their results: by `rounding`, or by messages and
    factors of products that are `quantized` too. `software` is for estimates alone: problems that
    differ in it are equal, as are those that differ in `billion_tokens`, of the whole training.
    `trainer` is the ready-made trainer whose rules say which recipes are legal; None: the built-in.
    """

    model: Model
    cluster: Cluster
    sequence_length: int
    global_batch: GlobalBatch
    precision: str = "bf16"
    tolerance: str = "rounding"
    software: SoftwareSettings = field(default=SoftwareSettings(), compare=False)
    billion_tokens: float | None = field(default=None, compare=False)
    trainer: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        require_at_least("problem", 2, sequence_length=self.sequence_length)
        require_one_of("problem", "precision", self.precision, PRECISIONS)
        require_above_zero(
            "problem.billion_tokens", self.billion_tokens, "a number above 0, or no entry"
        )
        require_one_of("problem", "tolerance", self.tolerance, TOLERANCES)
        limit = self.model.embedding.max_positions
        if self.model.embedding.positions == "learned" and limit is None:
            raise bad_value("model.max_positions", None, "the number of learned positions")
        if (
            self.model.embedding.positions == "learned"
            and limit is not None
            and self.sequence_length > limit
        ):
            raise bad_value(
                "problem.sequence_length",
                self.sequence_length,
                f"at most model.max_positions = {limit}",
            )

    def training(self, recipe: Recipe, tokens_per_s: float | None) -> Training | None:
        """Return what `billion_tokens` take on a recipe's nodes; None where either number is not
        known.
        """
        if self.billion_tokens is None or not tokens_per_s:
            return None
        nodes = math.ceil(recipe.devices / self.cluster.devices_per_node)
        price = self.cluster.price_per_node_hour
        return Training.of(self.billion_tokens, tokens_per_s, nodes, price)

    def divisor(self, rate: str, recipe: Recipe) -> float:
        """Return what tokens/s are divided by for one of `pareto.RATES`: 1, the devices, or the
        price of their nodes.

        The price is that of a second of whole nodes, so that a rate is tokens for one unit of it.
        """
        if rate == "tokens_per_device":
            return recipe.devices
        price = self.cluster.price_per_node_hour
        if rate == "tokens" or price is None:
            return 1.0
        return math.ceil(recipe.devices / self.cluster.devices_per_node) * price / 3600

    @property
    def has_fused_attention(self) -> bool:
        """Whether attention is one kernel: as `software.attention` states, else as the model
        does.
        """
        stated = self.software.attention
        return (
            self.model.attention.kernel == "flash" if stated is None else stated.startswith("flash")
        )
