"""Norms."""

from torch import nn

from frontrunner.spaces.model import Model


def make_norm(shape: Model, width: int) -> nn.Module:
    """Return a norm of the model's kind over the last dimension."""
    if shape.norm == "rmsnorm":
        return nn.RMSNorm(width, eps=shape.norm_epsilon)
    return nn.LayerNorm(width, eps=shape.norm_epsilon, bias=shape.biases == "all")
