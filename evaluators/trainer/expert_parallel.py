"""Expert parallelism: ranks that share a mixture of experts send each token to the ranks of its experts, and back.

The ranks of a pipeline stage are cut into groups of `expert_parallel` neighbors, which may hold several copies of the
rest of the model, or parts of one (Megatron-Core's parallel folding, arXiv 2504.14960). A rank holds whole experts and
routes its own positions, which with tensor parallelism are those that sequence parallelism gives it. No token is
dropped: messages have the lengths that the routing asks for.
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
from frontrunner.evaluators.trainer.model import Gpt, on_host
from frontrunner.spaces.model import Model


class ExpertRanks:
    """The ranks that share the experts of a layer."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.size = mesh.size()
        self._group = mesh.get_group()

    def dispatch(self, rows: Tensor, counts: Tensor) -> "Dispatched":
        """Send rows, sorted by expert, of which there are `counts` [E] for each, to the ranks that hold these."""
        received = _waited(all_to_all_single(counts, None, None, self._group))
        return Dispatched(self, rows, counts.view(self.size, -1), received.view(self.size, -1))

    def exchange(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Send the first `sent[0]` rows to the first rank, and so on; return what comes, in the order of the ranks."""
        there, back = partial(self._send, sent, received), partial(self._send, received, sent)
        return exchanged(rows, there, back)

    def _send(self, sent: list[int], received: list[int], rows: Tensor) -> Tensor:
        return _waited(all_to_all_single(rows.contiguous(), received, sent, self._group))


def _waited(found: Tensor) -> Tensor:
    return found.wait() if isinstance(found, AsyncCollectiveTensor) else found


class Dispatched:
    """The rows of this rank's experts, sorted by expert, and the way back."""

    def __init__(self, ranks: ExpertRanks, rows: Tensor, sent: Tensor, received: Tensor) -> None:
        self._ranks = ranks
        totals = torch.stack([sent.sum(dim=1), received.sum(dim=1)])
        self._sent, self._received = on_host(totals, rows=len(rows))
        # They come sorted by rank, and by expert within a rank's.
        expert = torch.arange(received.numel(), device=rows.device) % received.shape[1]
        order = expert.repeat_interleave(received.flatten(), output_size=sum(self._received)).argsort(stable=True)
        self._inverse = order.argsort()
        self.counts = received.sum(dim=0)
        self.rows = ranks.exchange(rows, self._sent, self._received)[order]

    def back(self, rows: Tensor) -> Tensor:
        """Return what the experts made of the rows to where these came from, in the order in which they were sent."""
        return self._ranks.exchange(rows[self._inverse], self._received, self._sent)


def apply_expert_parallel(model: Gpt, mesh: DeviceMesh) -> None:
    """Spread the experts of `model`, in place, over the ranks of the 1-D `mesh`."""
    ranks = ExpertRanks(mesh)
    for mixture in model.mixtures.values():
        for matrices in cast("Iterable[nn.Linear]", mixture.experts.children()):
            matrices.weight = nn.Parameter(distribute_tensor(matrices.weight, mesh, [Shard(0)]))
        mixture.ranks = ranks


class ExpertLoads:
    """Recorder of how evenly a probe's tokens go to experts, and to the ranks that hold these.

    Counts stay on the device until the end: no step waits for them. What is computed again counts again.
    """

    def __init__(self, parts: Iterable[nn.Module], shape: Model, *, ranks_of_stage: int) -> None:
        named = [one for part in parts for one in cast("Gpt", part).mixtures.items()]
        self._mixtures = {int(name.removeprefix("blocks.")): mixture for name, mixture in named}
        self._shape = shape
        self._ranks = ranks_of_stage
        self._steps: list[Tensor] = []  # [layers, experts + 1]: rows sent to each expert, and those that came here
        for mixture in self._mixtures.values():
            mixture.loads = []

    def end_step(self, device: torch.device) -> None:
        """Take over the counts of a step's forward passes."""
        rows = torch.zeros(self._shape.layers, self._shape.experts + 1, dtype=torch.int64, device=device)
        for layer, mixture in self._mixtures.items():
            passes, mixture.loads = mixture.loads or [], []
            rows[layer, :-1] = torch.stack([sent for sent, _ in passes]).sum(dim=0)
            rows[layer, -1] = torch.stack([held for _, held in passes]).sum()
        self._steps.append(rows)

    def describe(self) -> dict[str, Any]:
        """Return the fullest expert's rows over the mean, and the fullest rank's, of each step. All ranks call it."""
        total = torch.stack(self._steps)
        fullest = total[..., -1].clone()
        dist.all_reduce(total)
        dist.all_reduce(fullest, dist.ReduceOp.MAX)
        of_experts = total[..., :-1].amax(dim=-1) / total[..., :-1].double().mean(dim=-1)
        of_ranks = fullest / (total[..., -1].double() / self._ranks)
        # Layers without experts are 0 / 0.
        return {
            "routing": self._shape.routing,
            "expert_imbalance": of_experts.nanmean(dim=-1).tolist(),
            "rank_imbalance": of_ranks.nanmean(dim=-1).tolist(),
        }
