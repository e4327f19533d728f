"""Pipeline parallelism: the stages of a rank, and schedules that reduce gradients when the recipe says."""

import itertools
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle, get_schedule_class

from frontrunner.evaluators.trainer.data_parallel import FsdpReplicas, Replicas
from frontrunner.evaluators.trainer.layout import Layout
from frontrunner.spaces.recipe import LOOPED_SCHEDULES, SPLIT_BACKWARD_SCHEDULES, Recipe
from frontrunner.spaces.stages import even_layers, rank_of_stage


def stage_layers(layers: int, recipe: Recipe) -> list[range]:
    """Return the layers of each stage: as many as the recipe says, else as even as possible."""
    counts = recipe.layers_per_stage or even_layers(layers, recipe.stages)
    ends = itertools.accumulate(counts)
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]


def stages_of_rank(recipe: Recipe, pipeline_rank: int) -> list[int]:
    """Return the numbers of the stages that one rank of the pipeline holds, in ascending order."""
    return [stage for stage in range(recipe.stages) if rank_of_stage(recipe, stage) == pipeline_rank]


class _Opaque(nn.Module):
    """Hides an FSDP2 root from torch's schedules, which would otherwise decide when it gathers and reduces."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, **options: Tensor) -> Tensor:
        return cast("Tensor", self.inner(x, **options))


class ReplicatedStage(PipelineStage):
    """A stage whose replicas reduce gradients as its `Replicas` say, at each backward pass.

    torch's own stage turns the reduction off for every backward pass and reduces once after the last, for every
    sharding: ZeRO-2 and ZeRO-3 would be ZeRO-1 in disguise. Only for schedules that compute each backward pass in one
    piece.
    """

    def __init__(self, replicas: Replicas, **options: Any) -> None:
        super().__init__(_Opaque(replicas.model), **options)
        self._replicas = replicas

    def backward_maybe_with_nosync(
        self,
        backward_type: str,
        bwd_kwargs: dict[str, Any],
        last_backward: bool = False,  # noqa: FBT001, FBT002
    ) -> Any:
        """Tell the replicas whether this backward pass is the step's last one, then run it."""
        self._replicas.before_backward(last=last_backward)
        return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)


def build_schedule(
    parts: Mapping[int, Replicas], layout: Layout, loss: Any, device: torch.device
) -> PipelineScheduleSingle | PipelineScheduleMulti:
    """Return the recipe's schedule over this rank's stages, by number, in ascending order.

    The loss function must already divide by the number of micro-batches.
    """
    recipe = layout.recipe
    stages: list[PipelineStage] = []
    for number, replicas in parts.items():
        options: dict[str, Any] = {
            "stage_index": number,
            "num_stages": recipe.stages,
            "device": device,
            "group": layout.mesh["pipeline"].get_group(),
        }
        if isinstance(replicas, FsdpReplicas) and recipe.schedule not in SPLIT_BACKWARD_SCHEDULES:
            stages.append(ReplicatedStage(replicas, **options))
        else:
            stages.append(PipelineStage(replicas.model, **options))
    names = {"zbv": "ZBVZeroBubble"}  # of the others torch's names are ours without hyphens
    kind = get_schedule_class(names.get(recipe.schedule, recipe.schedule.replace("-", "")))
    local = stages if recipe.schedule in LOOPED_SCHEDULES else stages[0]
    schedule = kind(local, n_microbatches=recipe.accumulation, loss_fn=loss, scale_grads=False)
    return cast("PipelineScheduleSingle | PipelineScheduleMulti", schedule)
