"""Mixture of experts: routing of tokens, balancing of experts, shared experts."""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from frontrunner.evaluators.trainer.parts.experts import Experts
from frontrunner.evaluators.trainer.parts.feed_forward import FeedForwardModule
from frontrunner.evaluators.trainer.parts.host_activations import HostActivations
from frontrunner.evaluators.trainer.parts.router import Router
from frontrunner.spaces.model.feed_forward import MixtureOfExperts


class Balance:
    """Biases that the choice of experts sees: each step moves those with more tokens than the mean
    down, others up.

    Without an auxiliary loss (arXiv 2408.15664). No buffer, which would be rounded with the model.
    """

    def __init__(self, part: MixtureOfExperts) -> None:
        self._rate = part.balancing_weight
        self.bias = torch.zeros(part.experts, device="cpu")
        self._tokens: list[Tensor] = []

    def on(self, device: torch.device) -> "Balance":
        """Return itself, with its biases on `device`."""
        self.bias = self.bias.to(device)
        return self

    def count(self, tokens: Tensor) -> None:
        """Count each expert's `tokens` of one forward pass, unless none trains or a backward pass
        runs it again.
        """
        if torch.is_grad_enabled() and torch._C._current_graph_task_id() < 0:
            self._tokens.append(tokens)

    def counted(self, passes: int) -> Tensor:
        """Return each expert's tokens in the step's `passes`, the last ones: torch's pipelines
        begin with another.
        """
        tokens, self._tokens = torch.stack(self._tokens[-passes:]).sum(dim=0), []
        return tokens

    def move(self, tokens: Tensor) -> None:
        """Move the biases by each expert's `tokens` of a whole step."""
        self.bias += self._rate * torch.sign(tokens.float().mean() - tokens)


class _WithLoss(torch.autograd.Function):
    """Adds a loss to the model's: what passes through stays as it is, and backward the loss has the
    gradient 1.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.like = loss
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor]:
        return gradients[0], torch.ones_like(ctx.like)


class MixtureModule(nn.Module):
    """Experts and a router: each token goes through those of the highest probability, whatever the
    others get.

    Under uniform routing tokens are dealt to the experts in turn instead. `ranks` share the
    experts, where there are several (`expert_parallel.ExpertRanks`). `loads`, where they are
    recorded (`expert_parallel.ExpertLoads`), get the rows that this rank's positions send to each
    expert, and those that come to each of its own, of every forward pass. The groups in `parts`
    share the positions of a sequence, `summed` of these ranks with summed gradients. `weigh` scales
    the balancing loss as the model's.
    """

    def __init__(self, part: MixtureOfExperts, on_host: HostActivations | None = None) -> None:
        super().__init__()
        self._part = part
        self._count, self._each = part.experts, part.experts_per_token
        self.router = Router(part.hidden, part.experts, bias=part.has_biases)
        self._deals = part.routing == "uniform"
        self.experts = Experts(part, on_host)
        self.shared = FeedForwardModule(part.shared) if part.shared else None
        self.balance = Balance(part) if part.balancing == "bias" else None
        self.ranks: Any = None
        self.loads: list[tuple[Tensor, Tensor]] | None = None
        self.parts: list[Any] = []
        self.summed = 1
        self.weigh: Callable[[Tensor], Tensor] = lambda loss: loss

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        tokens = x.flatten(0, 1)
        outputs = self.router(tokens)
        scores = outputs.softmax(dim=-1) if self._part.router == "softmax" else outputs.sigmoid()
        if self._deals:
            turns = torch.arange(len(tokens) * self._each, device=x.device)
            chosen = turns.remainder(self._count).view(-1, self._each)
        else:
            chosen = self._choice(scores).topk(self._each, dim=-1).indices
        weights = scores.gather(1, chosen)
        if self._part.renormalized_experts:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        if self._part.routed_scale != 1:
            weights = weights * self._part.routed_scale
        # Rows are sorted by expert, and back by the inverse order: sums of fixed order, the same in
        # every run.
        order = chosen.flatten().argsort(stable=True)
        # Not by `bincount`, for whose length a device's host would wait.
        counts = order.new_zeros(self._count).index_add_(
            0, chosen.flatten(), torch.ones_like(order)
        )
        if self._part.balancing == "loss":
            loss = self.weigh(self._loss(scores, chosen, len(x)))
            weights = cast("Tensor", _WithLoss.apply(weights, loss))  # type: ignore[no-untyped-call]
        if self.balance is not None:
            self.balance.count(counts)
        rows, held = tokens[order // self._each], counts
        if self.ranks is None:
            found = self.experts(rows, counts)
        else:
            dispatched = self.ranks.dispatch(rows, counts)
            held = dispatched.counts
            found = dispatched.back(self.experts(dispatched.rows, held))
        if self.loads is not None:
            self.loads.append((counts, held))
        found = found[order.argsort()].view(*weights.shape, -1)
        mixed: Tensor = (found * weights.to(x.dtype).unsqueeze(-1)).sum(dim=1).view_as(x)
        return mixed if self.shared is None else mixed + self.shared(x)

    def _choice(self, scores: Tensor) -> Tensor:
        """Return what the choice of experts goes by: [N, E] with the biases, and without groups
        that are not kept.
        """
        choice = scores.detach()
        if self.balance is not None:
            choice = choice + self.balance.on(choice.device).bias
        if self._part.router_groups == 1:
            return choice
        groups = choice.view(len(choice), self._part.router_groups, -1)
        is_softmax = self._part.router == "softmax"
        best = groups.amax(dim=2) if is_softmax else groups.topk(2, dim=2).values.sum(dim=2)
        kept = best.topk(self._part.router_groups_kept, dim=1).indices
        left_out = torch.ones_like(best, dtype=torch.bool).scatter(1, kept, value=False)
        return groups.masked_fill(left_out.unsqueeze(2), -math.inf).flatten(1)

    def _loss(self, scores: Tensor, chosen: Tensor, sequences: int) -> Tensor:
        """Return weight * E * the sum over experts of their share of tokens times their mean
        probability.

        As in the Switch Transformer (arXiv 2101.03961, section 2.2) and `transformers`' Mixtral,
        but for each layer and each sequence by itself (arXiv 2412.19437, section 2.1.2), and their
        mean: the batch may be cut as one likes.
        """
        chosen = chosen.view(sequences, -1)
        tokens = torch.zeros(sequences, self._count, dtype=scores.dtype, device=scores.device)
        tokens.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=scores.dtype))
        positions = chosen.shape[1] // self._each
        for group in self.parts:
            summed = torch.ops._c10d_functional.all_reduce(tokens, "sum", group.group_name)
            tokens = torch.ops._c10d_functional.wait_tensor(summed)
            positions *= group.size()
        probabilities = scores / scores.sum(dim=-1, keepdim=True)
        means = probabilities.view(sequences, -1, self._count).mean(dim=1) / self.summed
        balanced: Tensor = (tokens / positions * means).sum() / sequences
        return self._part.balancing_weight * self._count * balanced
