"""The experts of one layer: many feed-forward parts, each for some of the tokens."""

from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from frontrunner.evaluators.trainer.parts.feed_forward import activated
from frontrunner.evaluators.trainer.parts.host_activations import HostActivations
from frontrunner.spaces.model.feed_forward import MixtureOfExperts


class Experts(nn.Module):
    """Feed-forward parts, of which each row goes through one.

    The matrices of all lie below one another, [E * D, F]: `gate` and `up` lead from D to F, `down`
    back. Where ranks share each expert, they hold equal columns of all, and the outcomes are to be
    added up. Biases are [E, F], of `down` [E, D].
    """

    def __init__(self, part: MixtureOfExperts, on_host: HostActivations | None = None) -> None:
        super().__init__()
        self._on_host = on_host
        self._activation, self._is_gated = part.activation, part.is_gated
        for name in ("gate", "up", "down") if self._is_gated else ("up", "down"):
            matrices = nn.Linear(part.ffn_hidden, part.experts * part.hidden, bias=False)
            if part.has_biases:
                width = part.hidden if name == "down" else part.ffn_hidden
                matrices.bias = nn.Parameter(torch.empty(part.experts, width))
            self.add_module(name, matrices)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """[N, D] -> [N, D] for rows sorted by expert, of which each expert that is held here has
        `counts`.
        """
        staying = nullcontext() if self._on_host is None else self._on_host.leave(self.parameters())
        lengths = None
        if not has_grouped_products(rows.dtype, rows.device):
            lengths = on_host(counts, rows=len(rows))
        with staying:
            gate = self._products(rows, "gate", counts, lengths) if self._is_gated else None
            up = self._products(rows, "up", counts, lengths)
            inner = activated(self._activation, up, gate)
            return self._products(inner, "down", counts, lengths)

    def _products(
        self, rows: Tensor, part: str, counts: Tensor, lengths: list[int] | None
    ) -> Tensor:
        """Return rows [N, in] through their experts' matrices: [N, out]. Without `lengths`, the
        counts as numbers, they are one kernel.
        """
        matrices = cast("nn.Linear", self.get_submodule(part))
        held = (
            matrices.weight.to_local() if isinstance(matrices.weight, DTensor) else matrices.weight
        )
        weight = held.view(len(counts), -1, held.shape[1])
        weight = weight.transpose(1, 2) if part == "down" else weight
        if lengths is not None:
            parts = zip(torch.split_with_sizes(rows, lengths), weight.unbind(), strict=True)
            found = torch.cat([own @ matrix for own, matrix in parts])
        elif len(rows) == 0:  # which torch's grouped product does not take
            found = rows @ weight[0]
        else:
            ends = counts.cumsum(0).to(torch.int32)
            weight = cast("Tensor", _ZeroWithoutRows.apply(weight, counts))  # type: ignore[no-untyped-call]
            found = functional.grouped_mm(rows, weight, offs=ends)
        if matrices.bias is None:
            return found
        biases = matrices.bias.to_local() if isinstance(matrices.bias, DTensor) else matrices.bias
        return found + biases.repeat_interleave(counts, dim=0, output_size=len(rows))


class _ZeroWithoutRows(torch.autograd.Function):
    """Experts' weights [E, in, out] as they are, of which those without rows have the gradient 0.

    torch's grouped product leaves their gradients unwritten on some devices (github.com/pytorch/
    pytorch/issues/172439 on B200, 174314 on ROCm).
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, counts: Tensor) -> Tensor:
        ctx.save_for_backward(counts)
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        (counts,) = ctx.saved_tensors
        # In place: the product has just made it, and nothing else holds it.
        return gradients[0].masked_fill_((counts == 0).view(-1, 1, 1), 0.0), None


def has_grouped_products(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether the products of all experts are one kernel."""
    return device.type == "cuda" and dtype == torch.bfloat16


def on_host(counts: Tensor, *, rows: int) -> list[Any]:  # noqa: ARG001 - a dry run shares them out
    """Return counts as numbers; `rows` is what those of the last dimension add up to where routing
    is uniform.
    """
    return counts.tolist()
