"""The experts of one layer: feed-forward parts of which each row goes through one."""

from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from frontrunner.evaluators.trainer.optimizer import local
from frontrunner.evaluators.trainer.parts.feed_forward import activated
from frontrunner.evaluators.trainer.parts.host_activations import HostActivations
from frontrunner.spaces.model.feed_forward import MixtureOfExperts


class Experts(nn.Module):
    """Feed-forward parts of which each row of the input goes through one.

    The matrices of all experts lie below one another, as [E * D, F]: `gate` and `up` lead from D to
    F, `down` leads back. Biases are [E, F] and, for `down`, [E, D]. Ranks that share each expert
    hold an equal range of the F columns of all, and their outputs must be summed.
    """

    def __init__(
        self, part: MixtureOfExperts, host_activations: HostActivations | None = None
    ) -> None:
        super().__init__()
        self._host_activations = host_activations
        self._activation = part.activation
        self._is_gated = part.is_gated
        for name in ("gate", "up", "down") if self._is_gated else ("up", "down"):
            matrices = nn.Linear(part.ffn_hidden, part.experts * part.hidden, bias=False)
            if part.has_biases:
                width = part.hidden if name == "down" else part.ffn_hidden
                matrices.bias = nn.Parameter(torch.empty(part.experts, width))
            self.add_module(name, matrices)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Return what the experts compute from the rows.

        Args:
            rows: [N, D], sorted by expert.
            counts: Rows of each expert on this rank, [E].

        Returns:
            [N, D], in the order of `rows`.
        """
        staying = (
            nullcontext()
            if self._host_activations is None
            else self._host_activations.leave(self.parameters())
        )
        host_counts = None
        if not has_grouped_products(rows.dtype, rows.device):
            host_counts = counts_on_host(counts, rows=len(rows))
        with staying:
            gate = self._products(rows, "gate", counts, host_counts) if self._is_gated else None
            up = self._products(rows, "up", counts, host_counts)
            inner = activated(self._activation, up, gate)
            return self._products(inner, "down", counts, host_counts)

    def _products(
        self, rows: Tensor, name: str, counts: Tensor, host_counts: list[int] | None
    ) -> Tensor:
        """Return the products of the rows and their experts' matrices, [N, in] -> [N, out].

        With `host_counts` the experts are multiplied one after another, without it in one kernel.
        """
        matrices = cast("nn.Linear", self.get_submodule(name))
        weight = local(matrices.weight)
        weight = weight.view(len(counts), -1, weight.shape[1])
        weight = weight.transpose(1, 2) if name == "down" else weight
        if host_counts is not None:
            pairs = zip(torch.split_with_sizes(rows, host_counts), weight.unbind(), strict=True)
            products = torch.cat([expert_rows @ matrix for expert_rows, matrix in pairs])
        elif len(rows) == 0:  # torch's grouped product takes no empty input
            products = rows @ weight[0]
        else:
            ends = counts.cumsum(0).to(torch.int32)
            weight = cast("Tensor", _ZeroWithoutRows.apply(weight, counts))  # type: ignore[no-untyped-call]
            products = functional.grouped_mm(rows, weight, offs=ends)
        if matrices.bias is None:
            return products
        biases = local(matrices.bias)
        return products + biases.repeat_interleave(counts, dim=0, output_size=len(rows))


class _ZeroWithoutRows(torch.autograd.Function):
    """Experts' weights [E, in, out], unchanged; experts without rows get the gradient 0.

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
        # In place, since the product has just made the gradient and nothing else refers to it.
        return gradients[0].masked_fill_((counts == 0).view(-1, 1, 1), 0.0), None


def has_grouped_products(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether one kernel computes the products of all experts."""
    return device.type == "cuda" and dtype == torch.bfloat16


def counts_on_host(counts: Tensor, *, rows: int) -> list[Any]:  # noqa: ARG001 - for dry runs
    """Return counts of rows as Python numbers, for which the host waits for the device.

    Args:
        counts: Whole numbers, [..., E].
        rows: Sum of the counts over the last dimension if routing is uniform. A dry run, whose
            tensors have no values, divides it among the experts instead of reading `counts`.
    """
    return counts.tolist()
