"""Dense feed-forward part, and the activations that it shares with experts."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from frontrunner.spaces.model.feed_forward import DenseFeedForward


def activated(activation: str, up: Tensor, gate: Tensor | None) -> Tensor:
    """Return the activation inside a feed-forward part.

    The clamped form is the one of gpt-oss, with the constants of its code
    (github.com/openai/gpt-oss, gpt_oss/torch/model.py).

    Args:
        activation: The activation's name in the model, as "swiglu".
        up: Product of the input and the first matrix, [..., F].
        gate: Product with the gating matrix, of the same shape; None if the model has no gate.
    """
    if activation == "relu":
        return functional.relu(up)
    if activation == "relu2":
        return functional.relu(up).square()
    if gate is None:
        return functional.gelu(up, approximate="tanh" if activation == "gelu_tanh" else "none")
    if activation == "geglu":
        return functional.gelu(gate, approximate="tanh") * up
    if activation == "swiglu_clamped":
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)
    return functional.silu(gate) * up


class FeedForwardModule(nn.Module):
    """Two matrices, D to F and F to D, with an activation between them.

    Gated models have a second matrix from D to F, whose product gates the first one's, as in SwiGLU
    (arXiv 2002.05202).
    """

    def __init__(self, part: DenseFeedForward) -> None:
        super().__init__()
        hidden = part.hidden
        width = part.ffn_hidden
        has_biases = part.has_biases
        self._activation = part.activation
        self._is_gated = part.is_gated
        if self._is_gated:
            self.gate = nn.Linear(hidden, width, bias=has_biases)
        self.up = nn.Linear(hidden, width, bias=has_biases)
        self.down = nn.Linear(width, hidden, bias=has_biases)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        gate = self.gate(x) if self._is_gated else None
        return cast("Tensor", self.down(activated(self._activation, self.up(x), gate)))
