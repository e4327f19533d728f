"""The problem: what a recipe must solve."""

from __future__ import annotations

from dataclasses import dataclass

from frontrunner.spaces.cluster import PRECISIONS, Cluster
from frontrunner.spaces.errors import bad_value, require_at_least, require_one_of
from frontrunner.spaces.model import Model

TOLERANCES = ("rounding", "quantized")


@dataclass(frozen=True, kw_only=True)
class GlobalBatch:
    """Sequences of one optimizer step over all replicas: fixed (minimum == maximum) or a range."""

    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        require_at_least("problem", 1, global_batch=self.minimum)
        if self.maximum < self.minimum:
            raise bad_value("problem.global_batch", [self.minimum, self.maximum], "[minimum, maximum] in rising order")

    @property
    def is_fixed(self) -> bool:
        """Whether recipes compare at equal mathematics: minimum == maximum."""
        return self.minimum == self.maximum

    def __contains__(self, sequences: object) -> bool:
        return isinstance(sequences, int) and self.minimum <= sequences <= self.maximum

    def __str__(self) -> str:
        return str(self.minimum) if self.is_fixed else f"{self.minimum}-{self.maximum}"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Model, cluster, sequence length in tokens, global batch in sequences, and precision of the arithmetic.

    `tolerance` is how far recipes may differ in their results: by `rounding`, or by messages that are `quantized` too.
    """

    model: Model
    cluster: Cluster
    sequence_length: int
    global_batch: GlobalBatch
    precision: str = "bf16"
    tolerance: str = "rounding"

    def __post_init__(self) -> None:
        require_at_least("problem", 2, sequence_length=self.sequence_length)
        require_one_of("problem", "precision", self.precision, PRECISIONS)
        require_one_of("problem", "tolerance", self.tolerance, TOLERANCES)
        limit = self.model.max_positions
        if self.model.positions == "learned" and limit is None:
            raise bad_value("model.max_positions", None, "the number of learned positions")
        if self.model.positions == "learned" and limit is not None and self.sequence_length > limit:
            raise bad_value("problem.sequence_length", self.sequence_length, f"at most model.max_positions = {limit}")
        window = self.model.attention_window
        if window is not None and self.sequence_length > window:
            expected = f"at most model.attention_window = {window}: sliding windows are not modeled"
            raise bad_value("problem.sequence_length", self.sequence_length, expected)
