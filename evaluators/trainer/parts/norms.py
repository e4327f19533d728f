"""Norms: RMSNorm or LayerNorm, as the model has them."""

from torch import nn

from frontrunner.spaces.model.norms import Norm


def make_norm(norm: Norm, width: int) -> nn.Module:
    """Return a norm over the last dimension, which has `width` values."""
    if norm.kind == "rmsnorm":
        return nn.RMSNorm(width, eps=norm.epsilon)
    return nn.LayerNorm(width, eps=norm.epsilon, bias=norm.has_biases)
