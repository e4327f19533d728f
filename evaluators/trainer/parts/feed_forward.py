"""Dense feed-forward part, and the activations of all feed-forward parts."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from frontrunner.spaces.model.feed_forward import DenseFeedForward


def activated(activation: str, up: Tensor, gate: Tensor | None) -> Tensor:
    """Return the activation of the first product, gated by the second where there is one.

    The clamped form is gpt-oss's, with the figures of its code (github.com/openai/gpt-oss,
    gpt_oss/torch/model.py).
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
    """D -> ffn -> GELU -> D; or D -> ffn, twice, one gating the other -> D (as in SwiGLU, arXiv
    2002.05202).
    """

    def __init__(self, part: DenseFeedForward) -> None:
        super().__init__()
        self._activation, self._is_gated = part.activation, part.is_gated
        hidden, width, has_biases = part.hidden, part.ffn_hidden, part.has_biases
        if self._is_gated:
            self.gate = nn.Linear(hidden, width, bias=has_biases)
        self.up = nn.Linear(hidden, width, bias=has_biases)
        self.down = nn.Linear(width, hidden, bias=has_biases)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        gate = self.gate(x) if self._is_gated else None
        return cast("Tensor", self.down(activated(self._activation, self.up(x), gate)))
