"""Norms: RMSNorm or LayerNorm, as the model has them."""

from torch import nn

from frontrunner.spaces.model import Model


def make_norm(shape: Model, width: int) -> nn.Module:
    """Return a norm of the model's kind over the last dimension, which has `width` values."""
    if shape.norm == "rmsnorm":
        return nn.RMSNorm(width, eps=shape.norm_epsilon)
    return nn.LayerNorm(width, eps=shape.norm_epsilon, bias=shape.biases == "all")
