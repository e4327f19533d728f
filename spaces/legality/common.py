"""Rules of every engine, what a rule yields, and remarks about legal recipes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import LOOPED_SCHEDULES, Recipe


@dataclass(frozen=True)
class Reason:
    """Why a recipe is illegal: a stable code to count by, and the sentence with the numbers."""

    code: str
    text: str

    def __str__(self) -> str:
        return self.text


Rule = Callable[[Recipe, Problem], Iterator[Reason]]
"""Yields why a recipe is illegal; its docstring states what is required."""


def devices_fit(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """A recipe uses at most the cluster's devices."""
    if recipe.devices > problem.cluster.devices:
        yield Reason("devices", f"{recipe.devices} devices of {problem.cluster.devices} in the cluster")


def tensor_parallel_divides(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """Tensor parallelism cuts heads, feed-forward and vocabulary into equal shares."""
    model, tp = problem.model, recipe.tensor_parallel
    parts = {
        "heads": model.heads,
        "ffn_hidden": model.ffn_hidden,
        "padded vocabulary": model.padded_vocabulary,
    }
    for part, size in parts.items():
        if size % tp:
            yield Reason("tensor-parallel-divides", f"tensor_parallel {tp} does not divide {part} {size}")
    if model.kv_heads % tp and tp % model.kv_heads:
        yield Reason("kv-heads", f"tensor_parallel {tp} neither divides kv_heads {model.kv_heads} nor is a multiple")


def context_parallel_divides(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """Context parallelism cuts sequences and a tensor-parallel rank's heads into equal parts."""
    cp, length = recipe.context_parallel, problem.sequence_length
    heads = problem.model.heads // recipe.tensor_parallel
    kv_heads = max(1, problem.model.kv_heads // recipe.tensor_parallel)
    of_rank = "heads of a tensor-parallel rank"
    if length % cp:
        yield Reason("context-parallel-divides", f"context_parallel {cp} does not divide sequence_length {length}")
    if heads % cp:
        yield Reason(
            "context-parallel-heads",
            f"context_parallel {cp} does not divide the {heads} {of_rank}",
        )
    if kv_heads % cp and cp % kv_heads:
        yield Reason(
            "context-parallel-heads",
            f"context_parallel {cp} neither divides the {kv_heads} kv {of_rank} nor is a multiple",
        )


def sequence_parallel_divides(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """Sequence parallelism divides the positions of a context rank over the tensor-parallel group."""
    tp, held = recipe.tensor_parallel, problem.sequence_length // recipe.context_parallel
    if recipe.sequence_parallel and tp == 1:
        yield Reason("sequence-parallel-alone", "sequence_parallel needs tensor_parallel > 1")
    if recipe.sequence_parallel and held % tp:
        whole = f"sequence_length {held}"
        share = whole if recipe.context_parallel == 1 else f"the {held} positions of a context rank"
        yield Reason("sequence-parallel-divides", f"tensor_parallel {tp} does not divide {share}")


def stages_hold_layers(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """Every pipeline stage holds at least one layer, and all of them together the model's."""
    if recipe.stages > problem.model.layers:
        yield Reason("too-many-stages", f"{recipe.stages} pipeline stages for {problem.model.layers} layers")
    if recipe.layers_per_stage and sum(recipe.layers_per_stage) != problem.model.layers:
        yield Reason("layers-per-stage", f"stages of {recipe.layers_name} layers for {problem.model.layers} layers")


def schedule_fits(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """A schedule exists exactly where there is a pipeline; looped ones need more than one chunk per rank."""
    if (recipe.schedule == "none") != (recipe.pipeline_parallel == 1):
        yield Reason(
            "schedule-without-pipeline", f"schedule {recipe.schedule} with pipeline_parallel {recipe.pipeline_parallel}"
        )
    looped = recipe.schedule in LOOPED_SCHEDULES
    if looped and recipe.virtual_stages < 2:
        yield Reason("virtual-stages", f"schedule {recipe.schedule} needs virtual_stages >= 2")
    if not looped and recipe.virtual_stages != 1:
        yield Reason(
            "virtual-stages", f"schedule {recipe.schedule} takes virtual_stages 1, not {recipe.virtual_stages}"
        )


def batch_matches(recipe: Recipe, problem: Problem) -> Iterator[Reason]:
    """Micro_batch_seqs * accumulation * data_parallel is the problem's global batch."""
    sizes, batch = (recipe.micro_batch_seqs, recipe.accumulation, recipe.data_parallel), recipe.global_batch_seqs
    if batch not in problem.global_batch:
        product = f"{' x '.join(map(str, sizes))} = {batch}"
        yield Reason("global-batch", f"micro-batch x accumulation x replicas = {product}, not {problem.global_batch}")


def sharding_divides(recipe: Recipe, _: Problem) -> Iterator[Reason]:
    """Sharding degrees rise from parameters to optimizer and divide one another and the copies."""
    chain = (*recipe.sharding.degrees, recipe.copies)
    for small, large in itertools.pairwise(chain):
        if small < 1 or large % small:
            yield Reason(
                "sharding-divides",
                f"sharding degrees {recipe.sharding.degrees} do not divide one another and {recipe.copies_in_words()}",
            )


FRAME_RULES: tuple[Rule, ...] = (
    devices_fit,
    tensor_parallel_divides,
    context_parallel_divides,
    stages_hold_layers,
    schedule_fits,
    batch_matches,
)
"""Rules about degrees, devices, schedule and batch alone: a space checks them once for all points that share these."""

LATER_RULES: tuple[Rule, ...] = (sequence_parallel_divides, sharding_divides)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A remark about a legal recipe that its reader should know."""

    code: str
    text: str


def _tensor_parallel_beyond_node(recipe: Recipe, problem: Problem) -> str | None:
    tp, per_node = recipe.tensor_parallel, problem.cluster.devices_per_node
    apart = recipe.rank_strides["tp"]
    if tp == 1 or tp * apart <= per_node:
        return None
    spread = f", its ranks {apart} apart," if apart > 1 else ""
    return f"tensor_parallel {tp}{spread} crosses nodes of {per_node} devices"


def _context_parallel_beyond_node(recipe: Recipe, problem: Problem) -> str | None:
    apart, cp, per_node = recipe.rank_strides["dp"], recipe.context_parallel, problem.cluster.devices_per_node
    if cp == 1 or apart * cp <= per_node:
        return None
    spread = f"tensor_parallel {apart} x " if apart == recipe.tensor_parallel else f"groups of {apart} ranks x "
    return f"{spread}context_parallel {cp} crosses nodes of {per_node} devices"


def _replicated_kv_heads(recipe: Recipe, problem: Problem) -> str | None:
    tp, kv_heads = recipe.tensor_parallel, problem.model.kv_heads
    return f"each of {kv_heads} kv heads is held by {tp // kv_heads} ranks" if tp > kv_heads else None


def _uneven_stages(recipe: Recipe, problem: Problem) -> str | None:
    layers, stages = problem.model.layers, recipe.stages
    if recipe.layers_per_stage or layers % stages == 0:
        return None
    return f"{layers} layers over {stages} stages: the first {layers % stages} hold one more"


def _idle_devices(recipe: Recipe, problem: Problem) -> str | None:
    idle = problem.cluster.devices - recipe.devices
    return f"{idle} of {problem.cluster.devices} devices stay idle" if idle > 0 else None


_MARKS: dict[str, Callable[[Recipe, Problem], str | None]] = {
    "tp-beyond-node": _tensor_parallel_beyond_node,
    "cp-beyond-node": _context_parallel_beyond_node,
    "kv-replicated": _replicated_kv_heads,
    "uneven-stages": _uneven_stages,
    "idle-devices": _idle_devices,
}


def marks(recipe: Recipe, problem: Problem) -> Iterator[Mark]:
    """Return what a reader should know about a legal recipe: unusual, allowed, and often slow."""
    for code, remark in _MARKS.items():
        text = remark(recipe, problem)
        if text is not None:
            yield Mark(code=code, text=text)
