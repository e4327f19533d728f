"""The workload: recipes and the models they train as arrays, one row a recipe.

Every formula of the analytic model is written once, over these arrays; one recipe is an array of one row.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import RANK_ORDERS, SPLIT_BACKWARD_SCHEDULES, V_SHAPED_SCHEDULES, Recipe
from frontrunner.spaces.stages import even_layers, rank_of_stage

Rows = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

STANDS_BEFORE = {
    (inner, outer): np.array([order.index(inner) < order.index(outer) for order in RANK_ORDERS])
    for inner in ("tp", "dp", "pp")
    for outer in ("tp", "dp", "pp")
}
"""For each of `RANK_ORDERS`, whether the one kind of groups is numbered within the other."""

BYTES_PER_VALUE = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}


def number(value: float) -> Rows:
    """A value that holds for every row."""
    return np.array([value], dtype=np.float64)


def flag(*, value: bool) -> Flags:
    """A flag that holds for every row."""
    return np.array([value], dtype=np.bool_)


def _one() -> Rows:
    return number(1)


def _no() -> Flags:
    return flag(value=False)


def _first_order() -> npt.NDArray[np.intp]:
    return np.zeros(1, dtype=np.intp)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Arrays of equal length, or of length 1 where all rows agree. Degrees, counts and widths are whole numbers.

    `fused_attention` keeps no scores; `bytes_per_optimizer_state` is what one of AdamW's two states takes for a
    parameter. `layers_first` and `layers_last` are the layers of the pipeline ranks that hold the embedding and the
    head, `layers_middle` those of the fullest rank between; `head_on_first` says that one rank holds both ends, as in
    V-shaped schedules. `split_backward` schedules run the gradients of weights apart, in what would be bubble.
    `keeps_all` schedules run all forward passes before the first backward pass (GPipe). `compiled` layers run as few
    fused kernels. `dual_pipeline` is DualPipeV. `rank_order` is a place in `RANK_ORDERS`. What has a default is a lever
    in its neutral position.
    """

    layers: Rows
    hidden: Rows
    heads: Rows
    kv_hidden: Rows
    ffn_hidden: Rows
    ffn_matrices: Rows
    vocabulary: Rows
    sequence_length: Rows
    tied_embeddings: Flags
    rotary: Flags
    fused_attention: Flags
    bytes_per_value: Rows
    tensor_parallel: Rows
    pipeline_parallel: Rows
    data_parallel: Rows
    virtual_stages: Rows
    micro_batch_seqs: Rows
    accumulation: Rows
    sharding_parameters: Rows
    sharding_gradients: Rows
    sharding_optimizer: Rows
    recompute_full: Flags
    recompute_selective: Flags
    sequence_parallel: Flags
    gradient_sync_each: Flags
    loss_chunks: Rows
    feed_forward_tiled: Flags
    bytes_per_optimizer_state: Rows
    layers_first: Rows
    layers_middle: Rows
    layers_last: Rows
    head_on_first: Flags
    split_backward: Flags
    keeps_all: Flags
    context_parallel: Rows = field(default_factory=_one)
    secondary_partition: Rows = field(default_factory=_one)
    compiled: Flags = field(default_factory=_no)
    activations_on_host: Flags = field(default_factory=_no)
    optimizer_on_host: Flags = field(default_factory=_no)
    parameters_on_host: Flags = field(default_factory=_no)
    dual_pipeline: Flags = field(default_factory=_no)
    rank_order: npt.NDArray[np.intp] = field(default_factory=_first_order)

    @classmethod
    def of(cls, recipes: Sequence[Recipe], problem: Problem) -> Workload:
        """The recipes of one problem, in order."""
        return cls(**_model_columns(problem), **_recipe_columns(recipes, problem.model.layers))

    @property
    def tokens(self) -> Rows:
        """micro_batch_seqs * sequence_length / context_parallel: what a rank works on of one micro-batch."""
        return self.micro_batch_seqs * self.sequence_length / self.context_parallel

    @property
    def copies(self) -> Rows:
        """data_parallel * context_parallel: the ranks that hold the same part of the model, as `Recipe.copies`."""
        return self.data_parallel * self.context_parallel

    @functools.cached_property
    def tensor_stride(self) -> Rows:
        """How many ranks lie from one tensor-parallel rank to the next."""
        return self._stride("tp")

    @functools.cached_property
    def copy_stride(self) -> Rows:
        """Likewise for the ranks that hold the same part of the model."""
        return self._stride("dp")

    @functools.cached_property
    def pipeline_stride(self) -> Rows:
        """Likewise for the ranks of a pipeline."""
        return self._stride("pp")

    def _stride(self, name: str) -> Rows:
        """The product of the sizes of the groups that are numbered within this kind."""
        sizes = {"tp": self.tensor_parallel, "dp": self.copies, "pp": self.pipeline_parallel}
        inner = (np.where(STANDS_BEFORE[other, name][self.rank_order], sizes[other], 1.0) for other in sizes)
        return functools.reduce(np.multiply, inner, number(1))

    @property
    def layer_matmul_parameters(self) -> Rows:
        """Hidden * (2 hidden + 2 kv_hidden + ffn_matrices * ffn_hidden), as `Model.matmul_parameters_per_layer`."""
        return self.hidden * (2 * self.hidden + 2 * self.kv_hidden + self.ffn_matrices * self.ffn_hidden)

    def rows(self, start: int, stop: int) -> Workload:
        """The rows from `start` to before `stop`."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return Workload(**{name: c if c.size == 1 else c[start:stop] for name, c in columns.items()})


def _model_columns(problem: Problem) -> dict[str, Any]:
    model = problem.model
    return {
        "layers": number(model.layers),
        "hidden": number(model.hidden),
        "heads": number(model.heads),
        "kv_hidden": number(model.kv_hidden),
        "ffn_hidden": number(model.ffn_hidden),
        "ffn_matrices": number(model.ffn_matrices),
        "vocabulary": number(model.padded_vocabulary),
        "sequence_length": number(problem.sequence_length),
        "tied_embeddings": flag(value=model.tied_embeddings),
        "rotary": flag(value=model.positions == "rotary"),
        "fused_attention": flag(value=model.attention == "flash"),
        "bytes_per_value": number(BYTES_PER_VALUE[problem.precision]),
    }


def _recipe_columns(recipes: Sequence[Recipe], layers: int) -> dict[str, Any]:
    names = ("tensor_parallel", "pipeline_parallel", "data_parallel", "virtual_stages", "micro_batch_seqs")
    columns: dict[str, Any] = {name: rows(getattr(recipe, name) for recipe in recipes) for name in names}
    columns["accumulation"] = rows(recipe.accumulation for recipe in recipes)
    for part in ("parameters", "gradients", "optimizer"):
        columns[f"sharding_{part}"] = rows(getattr(recipe.sharding, part) for recipe in recipes)
    columns["recompute_full"] = flags(recipe.recompute == "full" for recipe in recipes)
    columns["recompute_selective"] = flags(recipe.recompute == "selective" for recipe in recipes)
    columns["gradient_sync_each"] = flags(recipe.gradient_sync == "each" for recipe in recipes)
    columns["loss_chunks"] = rows(recipe.loss_chunks for recipe in recipes)
    columns["feed_forward_tiled"] = flags(recipe.feed_forward_tiles > 1 for recipe in recipes)
    columns["bytes_per_optimizer_state"] = rows(2 if recipe.optimizer_state == "bf16" else 4 for recipe in recipes)
    columns["sequence_parallel"] = flags(recipe.sequence_parallel for recipe in recipes)
    columns["context_parallel"] = rows(recipe.context_parallel for recipe in recipes)
    columns["secondary_partition"] = rows(recipe.secondary_partition for recipe in recipes)
    columns["compiled"] = flags(recipe.compile for recipe in recipes)
    columns["activations_on_host"] = flags(recipe.activation_offload for recipe in recipes)
    columns["optimizer_on_host"] = flags(recipe.offload != "none" for recipe in recipes)
    columns["parameters_on_host"] = flags(recipe.offload == "optimizer+parameters" for recipe in recipes)
    held = [_layers_of_ranks(recipe, layers) for recipe in recipes]
    columns["layers_first"] = rows(first for first, _, _ in held)
    columns["layers_middle"] = rows(middle for _, middle, _ in held)
    columns["layers_last"] = rows(last for _, _, last in held)
    columns["head_on_first"] = flags(
        recipe.schedule in V_SHAPED_SCHEDULES or recipe.pipeline_parallel == 1 for recipe in recipes
    )
    columns["dual_pipeline"] = flags(recipe.schedule == "dualpipev" for recipe in recipes)
    columns["rank_order"] = np.fromiter((RANK_ORDERS.index(recipe.rank_order) for recipe in recipes), dtype=np.intp)
    columns["split_backward"] = flags(recipe.schedule in SPLIT_BACKWARD_SCHEDULES for recipe in recipes)
    columns["keeps_all"] = flags(recipe.schedule in ("gpipe", "looped-bfs") for recipe in recipes)
    return columns


def _layers_of_ranks(recipe: Recipe, layers: int) -> tuple[int, int, int]:
    """The layers of the ranks with the embedding and with the head, and of the fullest rank between."""
    counts = recipe.layers_per_stage or even_layers(layers, recipe.stages)
    held = [0] * recipe.pipeline_parallel
    for stage, count in enumerate(counts):
        held[rank_of_stage(recipe, stage)] += count
    last = rank_of_stage(recipe, recipe.stages - 1)
    between = [count for rank, count in enumerate(held) if rank not in (0, last)]
    return held[0], max(between, default=0), held[last]


def rows(values: Iterable[float]) -> Rows:
    """The values as an array of one dimension."""
    return np.fromiter(values, dtype=np.float64)


def flags(values: Iterable[bool]) -> Flags:
    """The values as an array of one dimension."""
    return np.fromiter(values, dtype=np.bool_)
