"""Expert parallelism: ranks that share a mixture of experts send each token to the ranks of its
experts, and back.

The ranks of a pipeline stage are cut into groups of `expert_parallel` x `expert_tensor_parallel`
neighbors, which may hold several copies of the rest of the model, or parts of one (Megatron-Core's
parallel folding, arXiv 2504.14960). A rank holds whole experts, or with expert tensor parallelism a
part of each, and routes its own positions, which with tensor parallelism are those that sequence
parallelism gives it. No token is dropped: messages have the lengths that the routing asks for.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_to_all_single
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from frontrunner.evaluators.trainer.layout import exchanged
from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.evaluators.trainer.parts.experts import counts_on_host
from frontrunner.spaces.model.feed_forward import MixtureOfExperts
from frontrunner.spaces.model.model import Model


class ExpertRanks:
    """The ranks that share the experts of a layer, of a mesh [experts, expert_tensor]."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._expert_group, self._tensor_group = (
            mesh.get_group("experts"),
            mesh.get_group("expert_tensor"),
        )
        self.sizes = mesh.shape
        self.tensor_rank = mesh.get_local_rank("expert_tensor")

    def dispatch(self, rows: Tensor, counts: Tensor) -> "Dispatched":
        """Send rows, sorted by expert, of which there are `counts` [E] for each, to the ranks that
        hold these.
        """
        received = counts
        if self.sizes[0] > 1:
            received = _waited(all_to_all_single(counts, None, None, self._expert_group))
        if self.sizes[1] > 1:
            received = _waited(
                all_to_all_single(received.repeat(self.sizes[1]), None, None, self._tensor_group)
            )
        return Dispatched(
            self, rows, counts.view(self.sizes[0], -1), received.view(*self.sizes[::-1], -1)
        )

    def among_experts(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Send the first `sent[0]` rows to the first rank, and so on; return what comes, in the
        order of the ranks.
        """
        return self._exchanged(rows, sent, received, self._expert_group)

    def gathered(self, rows: Tensor, lengths: list[int]) -> Tensor:
        """Return the rows of all ranks that share each expert; they have `lengths`."""
        size = self.sizes[1]
        if size == 1:
            return rows
        return self._exchanged(
            rows.repeat(size, 1), [len(rows)] * size, lengths, self._tensor_group
        )

    def added_up(self, rows: Tensor, lengths: list[int]) -> Tensor:
        """Return the sums over the ranks that share each expert of this rank's part of `gathered`
        rows.
        """
        size = self.sizes[1]
        if size == 1:
            return rows
        own = lengths[self.tensor_rank]
        parts = self._exchanged(rows, lengths, [own] * size, self._tensor_group)
        return parts.view(size, own, rows.shape[1]).sum(dim=0)

    @staticmethod
    def _exchanged(
        rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        if len(sent) == 1:
            return rows

        def send(sent: list[int], received: list[int], rows: Tensor) -> Tensor:
            return _waited(all_to_all_single(rows.contiguous(), received, sent, group))

        return exchanged(rows, partial(send, sent, received), partial(send, received, sent))


def _waited(found: Tensor) -> Tensor:
    return found.wait() if isinstance(found, AsyncCollectiveTensor) else found


class Dispatched:
    """The rows of this rank's experts, sorted by expert, and the way back.

    Of `received` [ranks that share each expert, ranks that share all, experts held] the first
    dimension are copies.
    """

    def __init__(self, ranks: ExpertRanks, rows: Tensor, sent: Tensor, received: Tensor) -> None:
        self._ranks = ranks
        totals = torch.cat([sent.sum(dim=1).unsqueeze(0), received.sum(dim=2)])
        self._sent, *all_received = counts_on_host(totals, rows=len(rows))
        self._received, self._lengths = (
            all_received[ranks.tensor_rank],
            [sum(one) for one in all_received],
        )
        # They come sorted by rank, and by expert within a rank's.
        expert = torch.arange(received.numel(), device=rows.device) % received.shape[2]
        order = expert.repeat_interleave(
            received.flatten(), output_size=sum(self._lengths)
        ).argsort(stable=True)
        self._inverse = order.argsort()
        self.counts = received.sum(dim=(0, 1))
        own = ranks.among_experts(rows, self._sent, self._received)
        self.rows = ranks.gathered(own, self._lengths)[order]

    def back(self, rows: Tensor) -> Tensor:
        """Return what the experts made of the rows to where these came from, in the order in which
        they were sent.
        """
        own = self._ranks.added_up(rows[self._inverse], self._lengths)
        return self._ranks.among_experts(own, self._received, self._sent)


def apply_expert_parallel(model: Gpt, mesh: DeviceMesh) -> None:
    """Spread the experts of `model`, in place, over the ranks of a mesh [experts,
    expert_tensor].
    """
    ranks = ExpertRanks(mesh)
    names = [
        name for name, size in zip(mesh.mesh_dim_names or (), mesh.shape, strict=True) if size > 1
    ]
    several, placements = (
        mesh[tuple(names)],
        [Shard(0 if name == "experts" else 1) for name in names],
    )
    for mixture in model.mixtures.values():
        for matrices in cast("Iterable[nn.Linear]", mixture.experts.children()):
            for name, whole in list(matrices.named_parameters()):
                setattr(matrices, name, nn.Parameter(distribute_tensor(whole, several, placements)))
        mixture.ranks = ranks


class ExpertLoads:
    """Recorder of how evenly a probe's tokens go to experts, and to the ranks that hold these.

    Counts stay on the device until the end: no step waits for them. What is computed again counts
    again.
    """

    def __init__(self, parts: Iterable[nn.Module], shape: Model, *, ranks_of_stage: int) -> None:
        named = [one for part in parts for one in cast("Gpt", part).mixtures.items()]
        self._mixtures = {int(name.removeprefix("blocks.")): mixture for name, mixture in named}
        self._layers, self._mixture = len(shape.layers), cast("MixtureOfExperts", shape.mixture)
        self._ranks = ranks_of_stage
        self._steps: list[
            Tensor
        ] = []  # [layers, experts + 1]: rows sent to each expert, and those that came here
        for mixture in self._mixtures.values():
            mixture.loads = []

    def end_step(self, device: torch.device) -> None:
        """Take over the counts of a step's forward passes."""
        rows = torch.zeros(
            self._layers, self._mixture.experts + 1, dtype=torch.int64, device=device
        )
        for layer, mixture in self._mixtures.items():
            passes, mixture.loads = mixture.loads or [], []
            rows[layer, :-1] = torch.stack([sent for sent, _ in passes]).sum(dim=0)
            rows[layer, -1] = torch.stack([held for _, held in passes]).sum()
        self._steps.append(rows)

    def describe(self) -> dict[str, Any]:
        """Return the fullest expert's rows over the mean, and the fullest rank's, of each step. All
        ranks call it.
        """
        total = torch.stack(self._steps)
        fullest = total[..., -1].clone()
        dist.all_reduce(total)
        dist.all_reduce(fullest, dist.ReduceOp.MAX)
        of_experts = total[..., :-1].amax(dim=-1) / total[..., :-1].double().mean(dim=-1)
        of_ranks = fullest / (total[..., -1].double() / self._ranks)
        # Layers without experts are 0 / 0.
        return {
            "routing": self._mixture.routing,
            "expert_imbalance": of_experts.nanmean(dim=-1).tolist(),
            "rank_imbalance": of_ranks.nanmean(dim=-1).tolist(),
        }
