"""Norms."""

from __future__ import annotations

from dataclasses import dataclass

from frontrunner.spaces.model.keys import check_keys, key


@dataclass(frozen=True, kw_only=True)
class Norm:
    """How all norms of a model are computed. Each place that has a norm gives its width."""

    kind: str = key("norm", default="layernorm", words=("layernorm", "rmsnorm"))
    """`layernorm` or `rmsnorm`."""
    epsilon: float = key("norm_epsilon", default=1e-5, is_positive=True)
    """Added to the variance in each norm."""
    has_biases: bool = False
    """Whether a LayerNorm has biases beside its weights; an RMSNorm never has."""

    def __post_init__(self) -> None:
        check_keys(self)

    def parameters(self, width: int) -> int:
        """Return the weights, and the biases, of norms of so many values."""
        per_value = 2 if self.has_biases and self.kind == "layernorm" else 1
        return per_value * width
