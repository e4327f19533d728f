"""Pipeline parallelism: the stages of a rank, and schedules that reduce gradients when the recipe says."""

import itertools
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle, get_schedule_class

from frontrunner.evaluators.trainer.layout import Layout
from frontrunner.evaluators.trainer.loss import LossFunction
from frontrunner.evaluators.trainer.parallel.data import Replicas
from frontrunner.spaces.recipe import LOOPED_SCHEDULES, SPLIT_BACKWARD_SCHEDULES, Recipe
from frontrunner.spaces.stages import even_layers, rank_of_stage

SCHEDULE_CLASSES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "looped-bfs": "LoopedBFS",
    "interleaved-zero-bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}


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
    sharding: ZeRO-2 and ZeRO-3 would be ZeRO-1 in disguise, with whole gradients on every rank. Here the FSDP2 hooks
    run as they do without pipelining. Only for schedules that compute each backward pass in one piece.
    """

    def __init__(self, module: nn.Module, replicas: Replicas, **options: Any) -> None:
        super().__init__(_Opaque(module), **options)
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
    modules: Sequence[nn.Module],
    replicas: Sequence[Replicas | None],
    layout: Layout,
    loss: LossFunction,
    device: torch.device,
) -> PipelineScheduleSingle | PipelineScheduleMulti:
    """Return the recipe's schedule over this rank's stage `modules`, given in ascending order of their numbers.

    The loss function must already divide by the number of micro-batches: the schedule scales no gradient.

    Raises:
        ValueError: torch's schedule refuses the number of micro-batches or stages.
    """
    recipe = layout.recipe
    stages = []
    for number, module, group in zip(stages_of_rank(recipe, layout.pipeline_rank), modules, replicas, strict=True):
        options: dict[str, Any] = {
            "stage_index": number,
            "num_stages": recipe.stages,
            "device": device,
            "group": layout.pipeline_mesh.get_group(),
        }
        if group is None or recipe.schedule in SPLIT_BACKWARD_SCHEDULES:
            stages.append(PipelineStage(module, **options))
        else:
            stages.append(ReplicatedStage(module, group, **options))
    kind = get_schedule_class(SCHEDULE_CLASSES[recipe.schedule])
    local = stages if recipe.schedule in LOOPED_SCHEDULES else stages[0]
    schedule = kind(local, n_microbatches=recipe.accumulation, loss_fn=loss, scale_grads=False)
    return cast("PipelineScheduleSingle | PipelineScheduleMulti", schedule)
