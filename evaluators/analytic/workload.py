"""The workload: recipes of one problem as arrays, with what the formulas need to know of the
problem.

Every formula of the analytic model is written once, over these arrays. One recipe is an array of
one entry.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

import numpy as np

from frontrunner.evaluators.analytic import stage_layers
from frontrunner.evaluators.analytic.arrays import Flags, Rows, number
from frontrunner.evaluators.analytic.training_code import LayerSplit
from frontrunner.spaces.columns import each
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import (
    RANK_ORDERS,
    SPLIT_BACKWARD_SCHEDULES,
    V_SHAPED_SCHEDULES,
    Recipe,
)

FP8_SCALINGS = ("none", "tensorwise", "rowwise", "delayed", "blockwise", "mxfp8")
"""How factors of products are scaled to 8 bits; beside those that recipes choose, those of
Transformer Engine: by a factor from earlier steps, and by one for each block of 128, or of 32
values.
"""
BYTES_PER_VALUE = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}


_one: Callable[[], Rows] = functools.partial(number, 1)
_zero: Callable[[], Rows] = functools.partial(number, 0)
_four: Callable[[], Rows] = functools.partial(number, 4)
_no: Callable[[], Any] = functools.partial(np.array, [False])


@dataclass(frozen=True, kw_only=True)
class ParallelDegrees:
    """Ranks that share the work, by form of parallelism. `rank_order` is an index into
    `RANK_ORDERS`.
    """

    tensor: Rows
    pipeline: Rows
    data: Rows
    context: Rows = field(default_factory=_one)
    expert: Rows = field(default_factory=_one)
    expert_tensor: Rows = field(default_factory=_one)
    rank_order: Rows = field(default_factory=_zero)

    @property
    def copies(self) -> Rows:
        """Data * context: the ranks that hold the same part of the model, as `Recipe.copies`."""
        return self.data * self.context

    @property
    def devices(self) -> Rows:
        """The ranks of the job, as `Recipe.devices`."""
        return self.tensor * self.pipeline * self.copies

    @property
    def expert_ranks(self) -> Rows:
        """Ranks that hold each expert once: expert * expert_tensor, as `Recipe.expert_ranks`."""
        return self.expert * self.expert_tensor

    @functools.cached_property
    def strides(self) -> Mapping[str, Rows]:
        """The distances in ranks between neighbors of a group, as `Recipe.rank_strides`."""
        sizes = {"tp": self.tensor, "dp": self.copies, "pp": self.pipeline}
        strides = {name: number(1) for name in sizes}
        for (inner, outer), is_within in _IS_WITHIN.items():
            order = self.rank_order.astype(np.intp)
            strides[outer] = strides[outer] * np.where(is_within[order], sizes[inner], 1.0)
        return strides


_IS_WITHIN = {
    (inner, outer): np.array([order.index(inner) < order.index(outer) for order in RANK_ORDERS])
    for inner, outer in itertools.permutations(("tp", "dp", "pp"), 2)
}
"""For each of `RANK_ORDERS`, whether the one kind of groups is numbered within the other."""


@dataclass(frozen=True, kw_only=True)
class ShardingRows:
    """Degrees of sharding over the copies of a rank, and how its messages are reduced."""

    parameters: Rows = field(default_factory=_one)
    gradients: Rows = field(default_factory=_one)
    optimizer: Rows = field(default_factory=_one)
    secondary_partition: Rows = field(default_factory=_one)
    quantized_weights: Flags = field(default_factory=_no)
    quantized_gradients: Flags = field(default_factory=_no)
    reduces_each: Flags = field(default_factory=_no)
    """Gradients are reduced after each micro-batch."""


@dataclass(frozen=True, kw_only=True)
class ScheduleRows:
    """Micro-batches, and the order in which a pipeline runs their passes."""

    micro_batch_seqs: Rows
    accumulation: Rows
    virtual_stages: Rows = field(default_factory=_one)
    head_on_first: Flags = field(default_factory=_no)
    """The rank with the embedding has the head too."""
    split_backward: Flags = field(default_factory=_no)
    """The gradients of weights are a pass of their own."""
    keeps_all: Flags = field(default_factory=_no)
    """All forward passes run first (GPipe)."""
    dual_pipeline: Flags = field(default_factory=_no)


@dataclass(frozen=True, kw_only=True)
class LayerChoices:
    """What recipes choose of how layers and loss run. `fp8` is an index into `FP8_SCALINGS`."""

    sequence_parallel: Flags = field(default_factory=_no)
    compile: Flags = field(default_factory=_no)
    loss_chunks: Rows = field(default_factory=_one)
    feed_forward_tiles: Rows = field(default_factory=_one)
    fp8: Rows = field(default_factory=_zero)


@dataclass(frozen=True, kw_only=True)
class RecomputeRows:
    """What the backward pass computes a second time.

    Besides all of a layer (`full`), or what the training code drops under `selective`, there are
    named parts, as in Megatron-core's `recompute_modules`.
    """

    full: Flags = field(default_factory=_no)
    selective: Flags = field(default_factory=_no)
    attention: Flags = field(default_factory=_no)
    """Scores, softmax and the product with the values."""
    latents: Flags = field(default_factory=_no)
    """Queries, keys and values that are made from latent vectors."""
    norms: Flags = field(default_factory=_no)
    """The norms before the two blocks."""
    activation: Flags = field(default_factory=_no)
    """Activations of experts."""
    dense: Flags = field(default_factory=_no)
    """Feed-forward blocks without experts."""
    experts: Flags = field(default_factory=_no)
    """Feed-forward blocks with experts."""

    def again(self, parts: Collection[str]) -> Flags:
        """Return the recipes that compute any of these parts again, by the parts' own names."""
        flags = np.array([False])
        for part in parts:
            flags = flags | getattr(self, part)
        return flags

    @property
    def any_part(self) -> Flags:
        """The recipes that compute any named part again."""
        return self.again(NAMED_PARTS)


NAMED_PARTS = ("attention", "latents", "norms", "activation", "dense", "experts")
"""The parts that can be recomputed by themselves."""


@dataclass(frozen=True, kw_only=True)
class StateRows:
    """Where activations and states are held, and the type of the optimizer's."""

    activation_offload: Flags = field(default_factory=_no)
    optimizer_on_host: Flags = field(default_factory=_no)
    parameters_on_host: Flags = field(default_factory=_no)
    bytes_per_optimizer_state: Rows = field(default_factory=_four)

    @property
    def uses_host(self) -> bool:
        """Whether any recipe keeps something in the host's memory."""
        return bool(self.activation_offload.any() or self.optimizer_on_host.any())


LayersByKind = tuple[Rows, ...]
"""Layers of each of `Model.kinds`, in their order."""


@dataclass(frozen=True, kw_only=True)
class PipelineLayers:
    """Layers of the ranks with the embedding, of the fullest between, and with the head."""

    first: LayersByKind
    middle: LayersByKind
    last: LayersByKind

    @classmethod
    def of(cls, counts: Sequence[tuple[stage_layers.Counts, ...]], *, kinds: int) -> PipelineLayers:
        """Return them of recipes that each state the counts of the three ranks, by kind."""
        columns = np.array(counts, dtype=np.float64).reshape(-1, 3, kinds).transpose(1, 2, 0)
        first, middle, last = (tuple(column) for column in columns)
        return cls(first=first, middle=middle, last=last)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Recipes of one model. Each array has an entry for each recipe, or one where all agree."""

    model: Model
    sequence_length: Rows
    """Tokens of a sequence. Recipes of one problem share it; rows of a table may not."""
    bytes_per_value: float
    """Of parameters and activations in the computation's type."""
    fused_attention: bool
    """Whether attention is one kernel."""
    degrees: ParallelDegrees
    sharding: ShardingRows
    schedule: ScheduleRows
    choices: LayerChoices
    recompute: RecomputeRows
    states: StateRows
    layers: PipelineLayers

    @classmethod
    def of(
        cls, recipes: Sequence[Recipe], problem: Problem, split: LayerSplit = "even"
    ) -> Workload:
        """Return the recipes of one problem, in order; `split` gives layers to stages that a recipe
        does not state.
        """
        model = problem.model

        def layers(recipe: Recipe) -> tuple[stage_layers.Counts, ...]:
            return stage_layers.of_ranks(recipe, model, split)

        groups = {name: _rows_of(kind, recipes) for name, kind in _GROUPS.items()}
        return cls(
            model=model,
            sequence_length=number(problem.sequence_length),
            bytes_per_value=BYTES_PER_VALUE[problem.precision],
            fused_attention=problem.has_fused_attention,
            layers=PipelineLayers.of(each(recipes, layers).tolist(), kinds=len(model.kinds)),
            **groups,
        )

    @property
    def tokens(self) -> Rows:
        """micro_batch_seqs * sequence_length / context_parallel: one rank's tokens of a
        micro-batch.
        """
        return self.schedule.micro_batch_seqs * self.sequence_length / self.degrees.context

    @property
    def attended_share(self) -> Rows:
        """Mean share of the positions that windows leave of a layer's attention."""
        shares = [self.model.attended(length) / length for length in self.sequence_length.tolist()]
        return np.array(shares)

    @property
    def sequence_shards(self) -> Rows:
        """The tensor-parallel ranks that share what lies between the blocks: all under sequence
        parallelism, or one.
        """
        return np.where(self.choices.sequence_parallel, self.degrees.tensor, 1.0)

    @property
    def boundary_bytes(self) -> Rows:
        """Bytes of a layer's input, of one micro-batch on one rank."""
        return self.tokens * self.bytes_per_value * self.model.hidden / self.sequence_shards

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding, of all tensor-parallel ranks together."""
        return self.model.embedding.padded_vocabulary

    @property
    def all_layers(self) -> tuple[int, ...]:
        """Layers of each kind in the whole model, those of multi-token prediction included."""
        counts = [count for count, _ in self.model.kinds]
        counts[-1] += self.model.prediction.layers
        return tuple(counts)

    def rows(self, chosen: slice | Flags) -> Workload:
        """Return the chosen recipes."""
        groups: dict[str, Any] = {
            name: _chosen(getattr(self, name), chosen) for name in (*_GROUPS, "layers")
        }
        lengths = self.sequence_length
        return replace(
            self, sequence_length=lengths if lengths.size == 1 else lengths[chosen], **groups
        )


def _recomputes(part: str, recipe: Recipe) -> bool:
    """Return whether a recipe recomputes a named part."""
    return part in recipe.recompute.split("+")


_GROUPS: Mapping[str, type] = {
    "degrees": ParallelDegrees,
    "sharding": ShardingRows,
    "schedule": ScheduleRows,
    "choices": LayerChoices,
    "recompute": RecomputeRows,
    "states": StateRows,
}
_FIELDS_OF_RECIPES: Mapping[str, str | Callable[[Recipe], float]] = {
    "tensor": "tensor_parallel",
    "pipeline": "pipeline_parallel",
    "data": "data_parallel",
    "context": "context_parallel",
    "expert": "expert_parallel",
    "expert_tensor": "expert_tensor_parallel",
    "rank_order": lambda recipe: RANK_ORDERS.index(recipe.rank_order),
    "parameters": "sharding.parameters",
    "gradients": "sharding.gradients",
    "optimizer": "sharding.optimizer",
    "reduces_each": lambda recipe: recipe.gradient_sync == "each",
    "head_on_first": lambda recipe: (
        recipe.schedule in V_SHAPED_SCHEDULES or recipe.pipeline_parallel == 1
    ),
    "split_backward": lambda recipe: recipe.schedule in SPLIT_BACKWARD_SCHEDULES,
    "keeps_all": lambda recipe: recipe.schedule in ("gpipe", "looped-bfs"),
    "dual_pipeline": lambda recipe: recipe.schedule == "dualpipev",
    "full": lambda recipe: recipe.recompute == "full",
    "selective": lambda recipe: recipe.recompute == "selective",
    **{part: functools.partial(_recomputes, part) for part in NAMED_PARTS},
    "fp8": lambda recipe: FP8_SCALINGS.index(recipe.fp8),
    "optimizer_on_host": lambda recipe: recipe.offload != "none",
    "parameters_on_host": lambda recipe: recipe.offload == "optimizer+parameters",
    "bytes_per_optimizer_state": lambda recipe: 2 if recipe.optimizer_state == "bf16" else 4,
}
"""Where a column is not the recipe's field of the same name."""
_DTYPES: Mapping[Any, type] = {"Rows": np.float64, "Flags": np.bool_}


def _rows_of(group: type, recipes: Sequence[Recipe]) -> Any:
    """Return one of `_GROUPS`, filled from recipes."""
    columns = {}
    for column in fields(group):
        source = _FIELDS_OF_RECIPES.get(column.name, column.name)
        value = attrgetter(source) if isinstance(source, str) else source
        columns[column.name] = each(recipes, value, _DTYPES[column.type])
    return group(**columns)


def _chosen(group: Any, chosen: slice | Flags) -> Any:
    """Return the chosen recipes of one group of columns."""

    def of(column: Any) -> Any:
        if isinstance(column, tuple):
            return tuple(of(part) for part in column)
        return column if column.size == 1 else column[chosen]

    return replace(
        group, **{column.name: of(getattr(group, column.name)) for column in fields(group)}
    )
