"""The workload: recipes and the models they train as arrays, one row per recipe.

Every formula of the analytic model is written once, over these arrays; one recipe is an array of
one row.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from frontrunner.spaces.columns import each
from frontrunner.spaces.model.attention import LatentAttention
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import (
    RANK_ORDERS,
    SPLIT_BACKWARD_SCHEDULES,
    V_SHAPED_SCHEDULES,
    Recipe,
)
from frontrunner.spaces.stages import (
    even_layers,
    head_layers,
    layers_of_ranks,
    layers_of_stages,
    leading,
    rank_of_stage,
)

Rows = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

Split = Literal["even", "cost", "ends"]

FP8_SCALINGS = ("none", "tensorwise", "rowwise", "delayed", "blockwise", "mxfp8")
"""How factors of products are scaled to 8 bits; beside those that recipes choose, those of
Transformer Engine: by a factor from earlier steps, and by one for each block of 128, or of 32
values.
"""
BYTES_PER_VALUE = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}


ROUTED_DEVIATION = {"none": 0.26, "loss": 0.26, "bias": 0.02}
"""Standard deviation of an expert's tokens over the mean, by how a router is balanced.

The fullest of 64 experts had 1.72 and 1.52 times the mean in models of 1B and 3B parameters with an
auxiliary loss, 1.04 with biases (arXiv 2408.15664, table 2, over a validation set), and the largest
of 64 normals is 2.34 deviations above the mean. A router that is not balanced is taken to be as
even as with a loss, which it is at most.
"""


def number(value: float) -> Rows:
    """Return a value that holds for every row."""
    return np.array([value], dtype=np.float64)


_one: Callable[[], Rows] = functools.partial(number, 1)
_none: Callable[[], Rows] = functools.partial(number, 0)
_no: Callable[[], Any] = functools.partial(np.array, [False])


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Arrays of equal length, or of length 1 where all rows agree; columns with a default are in
    neutral position.

    `layers` are the model's with the `mtp_layers` after them, which are on the rank with the head.
    `layers_first` and `layers_last` are the layers of the pipeline ranks with the embedding and the
    head, `layers_middle` of the fullest between; `dense_first`, `dense_middle` and `dense_last` of
    these have no experts. `head_on_first` marks one rank with both. `split_backward` schedules run
    the gradients of weights separately, `keeps_all` ones (GPipe) all forward passes first.
    `attended_share` is what windows leave of the positions, `kv_hidden` has a head for each
    tensor-parallel rank at least. `normed_heads` is the width of queries and keys that have norms
    of their own, `expert_deviation` that of an expert's tokens over the mean. `rank_order` is an
    index into `RANK_ORDERS`, `fp8` one into `FP8_SCALINGS`.
    """

    layers: Rows
    hidden: Rows
    heads: Rows
    q_hidden: Rows
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
    micro_batch_seqs: Rows
    accumulation: Rows
    sharding_parameters: Rows
    sharding_gradients: Rows
    sharding_optimizer: Rows
    layers_first: Rows
    layers_middle: Rows
    layers_last: Rows
    head_on_first: Flags
    attended_share: Rows = field(default_factory=_one)
    norms: Rows = field(default_factory=lambda: number(2))
    normed_heads: Rows = field(default_factory=_none)
    parallel_residual: Flags = field(default_factory=_no)
    clamped_gate: Flags = field(default_factory=_no)
    stretched_rotary: Flags = field(default_factory=_no)
    expert_biases: Flags = field(default_factory=_no)
    expert_deviation: Rows = field(default_factory=_none)
    capped_logits: Flags = field(default_factory=_no)
    query_rank: Rows = field(default_factory=_none)
    key_value_rank: Rows = field(default_factory=_none)
    rotary_width: Rows = field(default_factory=_none)
    value_hidden: Rows = field(default_factory=_none)
    experts: Rows = field(default_factory=_none)
    experts_per_token: Rows = field(default_factory=_one)
    shared_experts: Rows = field(default_factory=_none)
    router_groups: Rows = field(default_factory=_one)
    router_groups_kept: Rows = field(default_factory=_one)
    mtp_layers: Rows = field(default_factory=_none)
    dense_layers: Rows = field(default_factory=_none)
    dense_ffn_hidden: Rows = field(default_factory=_none)
    dense_first: Rows = field(default_factory=_none)
    dense_middle: Rows = field(default_factory=_none)
    dense_last: Rows = field(default_factory=_none)
    expert_parallel: Rows = field(default_factory=_one)
    expert_tensor_parallel: Rows = field(default_factory=_one)
    virtual_stages: Rows = field(default_factory=_one)
    context_parallel: Rows = field(default_factory=_one)
    secondary_partition: Rows = field(default_factory=_one)
    loss_chunks: Rows = field(default_factory=_one)
    feed_forward_tiles: Rows = field(default_factory=_one)
    recompute_full: Flags = field(default_factory=_no)
    recompute_selective: Flags = field(default_factory=_no)
    sequence_parallel: Flags = field(default_factory=_no)
    reduces_each: Flags = field(default_factory=_no)
    split_backward: Flags = field(default_factory=_no)
    keeps_all: Flags = field(default_factory=_no)
    dual_pipeline: Flags = field(default_factory=_no)
    compile: Flags = field(default_factory=_no)
    activation_offload: Flags = field(default_factory=_no)
    quantized_weights: Flags = field(default_factory=_no)
    quantized_gradients: Flags = field(default_factory=_no)
    optimizer_on_host: Flags = field(default_factory=_no)
    parameters_on_host: Flags = field(default_factory=_no)
    bytes_per_optimizer_state: Rows = field(default_factory=lambda: number(4))
    rank_order: Rows = field(default_factory=lambda: number(0))
    fp8: Rows = field(default_factory=lambda: number(0))

    @classmethod
    def of(cls, recipes: Sequence[Recipe], problem: Problem, split: Split = "even") -> Workload:
        """Return the recipes of one problem, in order; `split` gives layers to stages that a recipe
        does not state.
        """
        model = problem.model
        # Where ranks are more than these heads, each has one whole.
        kv_heads = np.maximum(
            model.attention.kv_heads, each(recipes, attrgetter("tensor_parallel"), np.float64)
        )
        columns: dict[str, Any] = {
            "vocabulary": number(model.embedding.padded_vocabulary),
            "sequence_length": number(problem.sequence_length),
            "tied_embeddings": np.array([model.head.tied]),
            "rotary": np.array([model.embedding.positions == "rotary"]),
            "fused_attention": np.array([problem.has_fused_attention]),
            "bytes_per_value": number(BYTES_PER_VALUE[problem.precision]),
            "kv_hidden": kv_heads * (model.attention.head_dim + model.attention.value_dim) / 2,
            "value_hidden": number(model.attention.mixed_hidden),
            "rotary_width": number(
                model.attention.rotated_width if isinstance(model.attention, LatentAttention) else 0
            ),
            "attended_share": number(
                model.attended(problem.sequence_length) / problem.sequence_length
            ),
            "norms": number(model.layers[0].norms),
            "normed_heads": (model.attention.q_hidden + kv_heads * model.attention.head_dim)
            * model.attention.qk_norm,
            "parallel_residual": np.array([model.layers[0].parallel_residual]),
            "clamped_gate": np.array([model.feed_forward.activation == "swiglu_clamped"]),
            "capped_logits": np.array([model.head.softcap is not None]),
            "stretched_rotary": np.array([has_stretched_rotary(model)]),
            "expert_biases": np.array([has_expert_biases(model)]),
            "expert_deviation": number(expert_deviation(model)),
            "experts_per_token": number(model.mixture.experts_per_token if model.mixture else 1),
        }
        keys = model.keys()
        for name in _OF_MODEL:
            columns[name] = number(keys[name] or 0)
        columns["q_hidden"] = number(model.attention.q_hidden)
        columns["ffn_matrices"] = number(model.feed_forward.matrices)
        columns["layers"] = number(len(model.layers) + model.prediction.layers)

        def held(recipe: Recipe) -> tuple[int, ...]:
            last = rank_of_stage(recipe, recipe.stages - 1)
            layers, dense = _held(recipe, model, split)
            return ends(with_mtp(layers, model.prediction.layers, last), dense, last=last)

        counts = np.array(each(recipes, held).tolist(), dtype=np.float64).reshape(-1, len(LAYERS)).T
        columns |= zip(LAYERS, counts, strict=True)
        for name, dtype in ((column.name, _DTYPES[column.type]) for column in fields(cls)):
            if name not in columns:
                columns[name] = each(recipes, _FROM_RECIPE.get(name, attrgetter(name)), dtype)
        return cls(**columns)

    @property
    def tokens(self) -> Rows:
        """micro_batch_seqs * sequence_length / context_parallel: one rank's tokens of a
        micro-batch.
        """
        return self.micro_batch_seqs * self.sequence_length / self.context_parallel

    @property
    def copies(self) -> Rows:
        """data_parallel * context_parallel: the ranks that hold the same part of the model, as
        `Recipe.copies`.
        """
        return self.data_parallel * self.context_parallel

    @property
    def devices(self) -> Rows:
        """The ranks of the job, as `Recipe.devices`."""
        return self.tensor_parallel * self.pipeline_parallel * self.copies

    @property
    def expert_ranks(self) -> Rows:
        """expert_parallel * expert_tensor_parallel: the ranks that hold each expert once, as
        `Recipe.expert_ranks`.
        """
        return self.expert_parallel * self.expert_tensor_parallel

    @property
    def held_experts(self) -> Rows:
        """A rank's experts of a layer, or the one feed-forward part of a layer without."""
        return np.maximum(self.experts / self.expert_parallel, 1.0)

    @property
    def sequence_shards(self) -> Rows:
        """The tensor-parallel ranks that share what lies between the blocks: all under sequence
        parallelism, or one.
        """
        return np.where(self.sequence_parallel, self.tensor_parallel, 1.0)

    @property
    def layer_share(self) -> Rows:
        """One rank's parameters of a layer, before any sharding over copies."""
        return self.layer_share_over(number(1))

    def layer_share_over(self, degree: Rows) -> Rows:
        """Return what a rank holds of a layer's parameters, times `degree`, where they are sharded
        over so many copies.

        Tensor-parallel ranks share what is not an expert's, expert-parallel ranks the experts;
        sharded, experts are so over the ranks of the stage that hold the same ones.
        """
        others = self.hidden * (
            self.experts + self.shared_experts * self.ffn_matrices * self.ffn_hidden
        )
        parts = self.hidden * self.ffn_matrices * self.ffn_hidden
        experts = np.where(
            self.experts > 0, self.expert_share_over(degree), parts / self.tensor_parallel
        )
        return self.attention_share(self.tensor_parallel) + others / self.tensor_parallel + experts

    def attention_share(self, ranks: Rows) -> Rows:
        """Return what each of so many tensor-parallel ranks holds of the parameters of attention's
        matrices.

        Those down to latent vectors are whole on each; see `Model.attention_parameters`.
        """
        plain: Rows = self.hidden * (2 * self.q_hidden + 2 * self.kv_hidden)
        if not self.key_value_rank.any():
            return plain / ranks
        down = self.hidden * (self.query_rank + self.key_value_rank + self.rotary_width)
        made = self.latent_outputs
        up = np.where(self.query_rank > 0, self.query_rank, self.hidden) * self.q_hidden
        up = up + self.key_value_rank * (made - self.q_hidden) + self.mixed_hidden * self.hidden
        return np.where(self.key_value_rank > 0, down + up / ranks, plain / ranks)

    @property
    def mixed_hidden(self) -> Rows:
        """The width of what attention returns, as `Model.mixed_hidden`."""
        return np.where(self.key_value_rank > 0, self.value_hidden, self.q_hidden)

    @property
    def rotated_hidden(self) -> Rows:
        """The width of queries and keys that is rotated; of latent attention one rotated part is of
        all keys.
        """
        rotated = (self.heads + 1) * self.rotary_width
        return np.where(self.key_value_rank > 0, rotated, self.q_hidden + self.kv_hidden)

    @property
    def latent_outputs(self) -> Rows:
        """The width of queries, and of keys without their rotated part and values: what comes of
        latent vectors.
        """
        return self.q_hidden + 2 * self.kv_hidden - self.heads * self.rotary_width

    @functools.cached_property
    def without_experts(self) -> Workload:
        """The same recipes of layers without experts."""
        width = np.where(self.dense_ffn_hidden > 0, self.dense_ffn_hidden, self.ffn_hidden)
        none: dict[str, Any] = {
            "experts": number(0),
            "shared_experts": number(0),
            "dense_layers": number(0),
        }
        none |= dict.fromkeys(
            ("experts_per_token", "expert_parallel", "expert_tensor_parallel"), number(1)
        )
        return replace(self, ffn_hidden=width, **none)

    def over_layers(self, layers: Rows, dense: Rows, each: Callable[[Workload], Rows]) -> Rows:
        """Return what `each` says of a layer for so many, of which `dense` have no experts."""
        mixed = each(self)
        found = layers * mixed
        return (
            found + dense * (each(self.without_experts) - mixed)
            if self.dense_layers.any()
            else found
        )

    def expert_share_over(self, degree: Rows) -> Rows:
        """Return the experts' part of `layer_share_over`."""
        ranks = np.where(degree > 1, self.tensor_parallel, self.expert_ranks)
        return self.experts * self.hidden * self.ffn_matrices * self.ffn_hidden / ranks

    @property
    def stage_of_experts(self) -> Workload:
        """The same ranks by their experts: groups that share these stand where tensor-parallel
        ranks do.
        """
        replicas = self.tensor_parallel * self.copies / self.expert_ranks
        degrees = ("sharding_parameters", "sharding_gradients", "sharding_optimizer")
        spread: dict[str, Any] = {
            name: np.where(getattr(self, name) > 1, replicas, 1.0) for name in degrees
        }
        spread |= {
            "tensor_parallel": self.expert_ranks,
            "data_parallel": replicas,
            "context_parallel": number(1),
        }
        spread |= dict.fromkeys(
            ("q_hidden", "kv_hidden", "key_value_rank", "shared_experts"), number(0)
        )
        return replace(self, **spread)

    @property
    def uses_host(self) -> bool:
        """Whether any row keeps something in the host's memory."""
        return bool(self.activation_offload.any() or self.optimizer_on_host.any())

    @functools.cached_property
    def strides(self) -> Mapping[str, Rows]:
        """The distances in ranks between neighbors of a group, as `Recipe.rank_strides`."""
        sizes = {"tp": self.tensor_parallel, "dp": self.copies, "pp": self.pipeline_parallel}
        found = {name: number(1) for name in sizes}
        for (inner, outer), is_inner in _IS_WITHIN.items():
            found[outer] = found[outer] * np.where(
                is_inner[self.rank_order.astype(np.intp)], sizes[inner], 1.0
            )
        return found

    def rows(self, chosen: slice | Flags) -> Workload:
        """Return the chosen rows."""
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        return Workload(**{name: c if c.size == 1 else c[chosen] for name, c in columns.items()})


_IS_WITHIN = {
    (inner, outer): np.array([order.index(inner) < order.index(outer) for order in RANK_ORDERS])
    for inner, outer in itertools.permutations(("tp", "dp", "pp"), 2)
}
"""For each of `RANK_ORDERS`, whether the one kind of groups is numbered within the other."""
LAYERS = (
    "layers_first",
    "dense_first",
    "layers_middle",
    "dense_middle",
    "layers_last",
    "dense_last",
)
_OF_MODEL = (
    "hidden", "heads", "ffn_hidden", "query_rank", "key_value_rank",
    "mtp_layers",
    "experts", "shared_experts", "dense_layers", "dense_ffn_hidden", "router_groups",
    "router_groups_kept",
)  # fmt: skip
_DTYPES: Mapping[Any, type] = {"Rows": np.float64, "Flags": np.bool_}
_FROM_RECIPE: Mapping[str, Callable[[Recipe], float]] = {
    "sharding_parameters": attrgetter("sharding.parameters"),
    "sharding_gradients": attrgetter("sharding.gradients"),
    "sharding_optimizer": attrgetter("sharding.optimizer"),
    "head_on_first": lambda recipe: (
        recipe.schedule in V_SHAPED_SCHEDULES or recipe.pipeline_parallel == 1
    ),
    "recompute_full": lambda recipe: recipe.recompute == "full",
    "recompute_selective": lambda recipe: recipe.recompute == "selective",
    "reduces_each": lambda recipe: recipe.gradient_sync == "each",
    "split_backward": lambda recipe: recipe.schedule in SPLIT_BACKWARD_SCHEDULES,
    "keeps_all": lambda recipe: recipe.schedule in ("gpipe", "looped-bfs"),
    "dual_pipeline": lambda recipe: recipe.schedule == "dualpipev",
    "optimizer_on_host": lambda recipe: recipe.offload != "none",
    "parameters_on_host": lambda recipe: recipe.offload == "optimizer+parameters",
    "bytes_per_optimizer_state": lambda recipe: 2 if recipe.optimizer_state == "bf16" else 4,
    "rank_order": lambda recipe: RANK_ORDERS.index(recipe.rank_order),
    "fp8": lambda recipe: FP8_SCALINGS.index(recipe.fp8),
}


def has_expert_biases(model: Model) -> bool:
    """Return whether each expert's products have biases."""
    return model.mixture is not None and model.mixture.has_biases


def has_stretched_rotary(model: Model) -> bool:
    """Return whether rotations also scale queries and keys, as YaRN's do (arXiv 2309.00071, section
    3.4).
    """
    return model.rotary is not None and model.rotary.is_stretched


def expert_deviation(model: Model) -> float:
    """Return how uneven a router's choices are; 0 where tokens are dealt in turn."""
    mixture = model.mixture
    is_learned = mixture is not None and mixture.routing == "learned"
    return ROUTED_DEVIATION[mixture.balancing] if mixture and is_learned else 0.0


def split_layers(split: Split, layers: int, ranks: int, head: float) -> Sequence[int]:
    """Return the layers of each pipeline rank, where a head costs as much as `head` layers.

    By cost (nanotron's `build_model`) a rank takes layers until the sum so far passes its share of
    the whole. By modules embedding, last norm and head count as layers.
    """
    if split == "even" or ranks == 1:
        return even_layers(layers, ranks)
    if split == "ends":
        cuts = np.cumsum((0, *even_layers(layers + 3, ranks)))
        counts: list[int] = np.diff(np.clip(cuts, 1, layers + 1)).tolist()
        return counts
    share, rank, held = (layers + head) / ranks, 0, [0] * ranks
    for layer in range(1, layers + 1):
        held[rank] += 1
        if layer > share * (rank + 1) and rank + 1 < ranks:
            rank += 1
    return held


def _held(recipe: Recipe, model: Model, split: Split) -> tuple[Sequence[int], Sequence[int]]:
    """Return each pipeline rank's layers, and those of them that have no experts."""
    if split == "even" or recipe.layers_per_stage or recipe.stages != recipe.pipeline_parallel:
        return layers_of_ranks(recipe, len(model.layers)), layers_of_ranks(
            recipe, len(model.layers), first=model.dense_layers
        )
    held = split_layers(split, len(model.layers), recipe.pipeline_parallel, head_layers(model))
    return held, leading(held, model.dense_layers)


def stage_layers(recipe: Recipe, model: Model, split: Split) -> tuple[Sequence[int], Sequence[int]]:
    """Return the layers of each stage as the workload counts them by rank, and those of them
    without experts.
    """
    counts: Sequence[int] = layers_of_stages(recipe, len(model.layers))
    dense: Sequence[int] = leading(counts, model.dense_layers)
    if recipe.stages == recipe.pipeline_parallel:
        counts, dense = _held(recipe, model, split)
    return with_mtp(counts, model.prediction.layers), dense


def with_mtp(counts: Sequence[int], mtp_layers: int, last: int = -1) -> Sequence[int]:
    """Return layers by rank or stage, with the MTP layers where the last ones are."""
    held = [*counts]
    held[last] += mtp_layers
    return held


def ends(held: Sequence[int], dense: Sequence[int], last: int = -1) -> tuple[int, ...]:
    """Return layers, and those without experts, of the ranks with the embedding, of the fullest
    between, with the head.

    Of ranks between that are as full it is the one with most experts.
    """
    ranks = list(zip(held, dense, strict=True))
    between = [one for rank, one in enumerate(ranks) if rank not in (0, last % len(ranks))]
    fullest = max(between, key=lambda one: (one[0], -one[1]), default=(0, 0))
    return *ranks[0], *fullest, *ranks[last]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Arrays by what they count, which add up to `total`."""

    @property
    def total(self) -> Rows:
        """The sum of the parts."""
        parts: list[Rows] = [getattr(self, part.name) for part in fields(self)]
        return sum(parts[1:], start=parts[0])
