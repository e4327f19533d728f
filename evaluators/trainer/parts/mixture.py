"""Mixture of experts: the choice of experts for each token, and how their loads are balanced."""

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
    """Biases that are added to the scores for the choice of experts, and for nothing else.

    Each step moves the biases of experts with more tokens than the mean down, and those of experts
    with fewer tokens up: balancing without an auxiliary loss (arXiv 2408.15664). The biases are not
    a buffer of a module, because they would be rounded to the model's type with it.
    """

    def __init__(self, part: MixtureOfExperts) -> None:
        self._rate = part.balancing_weight
        self.bias = torch.zeros(part.experts, device="cpu")
        self._tokens: list[Tensor] = []  # [E] for each forward pass since the last step

    def on(self, device: torch.device) -> "Balance":
        """Move the biases to `device`, and return this object."""
        self.bias = self.bias.to(device)
        return self

    def count(self, tokens: Tensor) -> None:
        """Note the tokens of each expert, [E], in one forward pass.

        Passes that do not train are not counted, and neither are recomputations.
        """
        is_recomputing = torch._C._current_graph_task_id() >= 0
        if torch.is_grad_enabled() and not is_recomputing:
            self._tokens.append(tokens)

    def counted(self, passes: int) -> Tensor:
        """Return the tokens of each expert, [E], in the last `passes` forward passes.

        All counts are forgotten. There may be more than `passes` of them, since torch's pipelines
        run one forward pass before their first step.
        """
        tokens = torch.stack(self._tokens[-passes:]).sum(dim=0)
        self._tokens = []
        return tokens

    def move(self, tokens: Tensor) -> None:
        """Move the biases by the tokens of each expert, [E], in a whole step."""
        self.bias += self._rate * torch.sign(tokens.float().mean() - tokens)


class _WithLoss(torch.autograd.Function):
    """Adds a loss to the model's loss where no path leads there.

    Returns `x` unchanged. In the backward pass the loss gets the gradient 1.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.loss = loss
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor]:
        return gradients[0], torch.ones_like(ctx.loss)


class MixtureModule(nn.Module):
    """A router and experts: each token goes through the experts with its highest scores.

    No expert has a limit of tokens. With uniform routing tokens go to the experts in turn instead.

    Attributes:
        ranks: The ranks that share the experts (`expert_parallel.ExpertRanks`), or None.
        loads: If it is a list, each forward pass appends the rows that this rank's positions send
            to each expert, and those that each expert of this rank gets. `ExpertLoads` reads it.
        sequence_groups: Process groups whose ranks share the positions of each sequence.
        summed_ranks: How many of those ranks sum their gradients instead of averaging them.
        scale_loss: Scales the balancing loss in the same way as the model's loss.
    """

    def __init__(
        self, part: MixtureOfExperts, host_activations: HostActivations | None = None
    ) -> None:
        super().__init__()
        self._part = part
        self._experts_per_token = part.experts_per_token
        self.router = Router(part.hidden, part.experts, bias=part.has_biases)
        self.experts = Experts(part, host_activations)
        self.shared = FeedForwardModule(part.shared) if part.shared else None
        self.balance = Balance(part) if part.balancing == "bias" else None
        self.ranks: Any = None
        self.loads: list[tuple[Tensor, Tensor]] | None = None
        self.sequence_groups: list[Any] = []
        self.summed_ranks = 1
        self.scale_loss: Callable[[Tensor], Tensor] = lambda loss: loss

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        tokens = x.flatten(0, 1)
        logits = self.router(tokens)
        scores = logits.softmax(dim=-1) if self._part.router == "softmax" else logits.sigmoid()
        chosen = self._chosen_experts(scores)
        weights = scores.gather(1, chosen)
        if self._part.renormalized_experts:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        if self._part.routed_scale != 1:
            weights = weights * self._part.routed_scale
        # Rows are sorted by expert, and put back by the inverse order. So sums have a fixed order,
        # the same in every run.
        order = chosen.flatten().argsort(stable=True)
        # `bincount` would make the host wait for the device to learn its length.
        counts = order.new_zeros(scores.shape[1]).index_add_(
            0, chosen.flatten(), torch.ones_like(order)
        )
        if self._part.balancing == "loss":
            loss = self.scale_loss(self._balancing_loss(scores, chosen, len(x)))
            weights = cast("Tensor", _WithLoss.apply(weights, loss))  # type: ignore[no-untyped-call]
        if self.balance is not None:
            self.balance.count(counts)
        rows = tokens[order // self._experts_per_token]
        local_counts = counts
        if self.ranks is None:
            outputs = self.experts(rows, counts)
        else:
            dispatched = self.ranks.dispatch(rows, counts)
            local_counts = dispatched.counts
            outputs = dispatched.back(self.experts(dispatched.rows, local_counts))
        if self.loads is not None:
            self.loads.append((counts, local_counts))
        outputs = outputs[order.argsort()].view(*weights.shape, -1)
        mixed: Tensor = (outputs * weights.to(x.dtype).unsqueeze(-1)).sum(dim=1).view_as(x)
        return mixed if self.shared is None else mixed + self.shared(x)

    def _chosen_experts(self, scores: Tensor) -> Tensor:
        """Return the numbers of each token's experts: scores [N, E] -> [N, experts per token]."""
        if self._part.routing == "uniform":
            turns = torch.arange(len(scores) * self._experts_per_token, device=scores.device)
            return turns.remainder(scores.shape[1]).view(-1, self._experts_per_token)
        return self._ranking(scores).topk(self._experts_per_token, dim=-1).indices

    def _ranking(self, scores: Tensor) -> Tensor:
        """Return the numbers by which experts are chosen: scores [N, E] -> [N, E].

        Balancing biases are added. Where experts form groups, each token keeps its best groups, and
        the experts of the others get minus infinity.
        """
        ranking = scores.detach()
        if self.balance is not None:
            ranking = ranking + self.balance.on(ranking.device).bias
        if self._part.router_groups == 1:
            return ranking
        groups = ranking.view(len(ranking), self._part.router_groups, -1)
        if self._part.router == "softmax":
            group_scores = groups.amax(dim=2)
        else:
            group_scores = groups.topk(2, dim=2).values.sum(dim=2)
        kept_groups = group_scores.topk(self._part.router_groups_kept, dim=1).indices
        is_left_out = torch.ones_like(group_scores, dtype=torch.bool)
        is_left_out = is_left_out.scatter(1, kept_groups, value=False)
        return groups.masked_fill(is_left_out.unsqueeze(2), -math.inf).flatten(1)

    def _balancing_loss(self, scores: Tensor, chosen: Tensor, sequences: int) -> Tensor:
        """Return weight * E * the sum over experts of token share times mean probability, a scalar.

        As in the Switch Transformer (arXiv 2101.03961, section 2.2) and `transformers`' Mixtral,
        but computed for each layer and each sequence (arXiv 2412.19437, section 2.1.2), and
        averaged over the sequences. So it does not depend on how the batch is cut.

        Args:
            scores: [N, E].
            chosen: Numbers of each token's experts, [N, experts per token].
            sequences: How many sequences the N tokens belong to.
        """
        experts = scores.shape[1]
        chosen = chosen.view(sequences, -1)
        tokens = torch.zeros(sequences, experts, dtype=scores.dtype, device=scores.device)
        tokens.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=scores.dtype))
        positions = chosen.shape[1] // self._experts_per_token
        for group in self.sequence_groups:
            summed = torch.ops._c10d_functional.all_reduce(tokens, "sum", group.group_name)
            tokens = torch.ops._c10d_functional.wait_tensor(summed)
            positions *= group.size()
        probabilities = scores / scores.sum(dim=-1, keepdim=True)
        means = probabilities.view(sequences, -1, experts).mean(dim=1) / self.summed_ranks
        sums: Tensor = (tokens / positions * means).sum() / sequences
        return self._part.balancing_weight * experts * sums
