"""What a dry run traces: which ranks, over how many of a step's micro-batches, and what cannot be traced."""

from __future__ import annotations

from dataclasses import dataclass

from frontrunner.evaluators.probe.settings import ProbeSettings
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.stages import even_layers, rank_of_stage

ENOUGH_WITHOUT_PIPELINE = 2
"""Micro-batches: one that makes the gradients, and the last, which adds to them and reduces them."""

MOST_LAYER_PASSES = 256
"""Layers x micro-batches of one trace; each takes some 0.1 s."""

INTERLEAVED_SCHEDULES = ("interleaved-1f1b", "interleaved-zero-bubble")
"""Schedules that go in rounds of as many micro-batches as the pipeline has ranks."""

ALL_IN_FLIGHT = ("gpipe", "looped-bfs")
"""Schedules that run every forward pass of a step before the first backward pass."""


@dataclass(frozen=True, kw_only=True)
class DryRunPlan:
    """A dry run ready to run.

    `ranks` are traced, each over `micro_batches` of the step's. Where `extrapolated`, a second trace over twice as many
    says how much memory each further micro-batch takes.
    """

    recipe_id: str
    recipe: Recipe
    problem: Problem
    probe: ProbeSettings
    ranks: tuple[int, ...]
    micro_batches: int
    extrapolated: bool


def plan(
    *, recipe_id: str, recipe: Recipe, problem: Problem, probe: ProbeSettings, rank: int | None = None
) -> DryRunPlan:
    """Choose what to trace of a legal recipe; `rank` None is the ranks that may need most memory.

    Raises `InvalidInput` for a recipe that cannot be traced, and for a rank that it does not have.
    """
    reason = why_untraceable(recipe)
    if reason is not None:
        raise InvalidInput(f"recipe {recipe_id} cannot be traced: {reason}")
    if rank is not None and not 0 <= rank < recipe.devices:
        raise bad_value("rank", rank, f"one of the recipe's ranks, 0 to {recipe.devices - 1}")
    needed = needed_micro_batches(recipe)
    layers = max(layers_of_pipeline_ranks(recipe, problem))
    is_long = needed * layers > MOST_LAYER_PASSES and needed > 2 * recipe.stages
    extrapolated = recipe.schedule in ALL_IN_FLIGHT and is_long
    return DryRunPlan(
        recipe_id=recipe_id,
        recipe=recipe,
        problem=problem,
        probe=probe,
        ranks=worst_ranks(recipe, problem) if rank is None else (rank,),
        micro_batches=_few_micro_batches(recipe) if extrapolated else needed,
        extrapolated=extrapolated,
    )


def why_untraceable(recipe: Recipe) -> str | None:
    """Why fake tensors cannot show this recipe's memory; None where they can."""
    reasons = {
        "only the torch engine's steps can be traced": recipe.engine != "torch",
        "torch.compile plans the memory of compiled layers itself": recipe.compile,
        "replication ddp keeps its buckets where no trace sees them": recipe.replication == "ddp",
        "fake tensors have one memory, and offload needs two": recipe.offload != "none" or recipe.activation_offload,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def needed_micro_batches(recipe: Recipe) -> int:
    """How many micro-batches of a step show its peak.

    A pipeline that runs forward and backward passes in turn is full after as many micro-batches as it has stages. One
    more, of interleaved schedules one round of them, meets the gradients of the first; nothing grows from then on.
    Interleaved rounds depend on the accumulation: where the pipeline's ranks do not divide it all are traced.
    """
    accumulation, ranks = recipe.accumulation, recipe.pipeline_parallel
    if ranks == 1:
        return min(accumulation, ENOUGH_WITHOUT_PIPELINE)
    uneven_rounds = recipe.virtual_stages > 1 and accumulation % ranks
    if recipe.schedule in ALL_IN_FLIGHT or uneven_rounds:
        return accumulation
    return min(accumulation, recipe.stages + (ranks if recipe.schedule in INTERLEAVED_SCHEDULES else 1))


def _few_micro_batches(recipe: Recipe) -> int:
    """How many micro-batches to extrapolate from: GPipe's all cost alike, looped ones once each stage has had some."""
    return min(recipe.stages, 4) if recipe.schedule == "gpipe" else recipe.stages


def layers_of_pipeline_ranks(recipe: Recipe, problem: Problem) -> list[int]:
    """How many layers each rank of the pipeline holds, in all its stages."""
    held = [0] * recipe.pipeline_parallel
    counts = recipe.layers_per_stage or even_layers(problem.model.layers, recipe.stages)
    for stage, layers in enumerate(counts):
        held[rank_of_stage(recipe, stage)] += layers
    return held


def worst_ranks(recipe: Recipe, problem: Problem) -> tuple[int, ...]:
    """Of the first replica the first and the last rank of the pipeline, and the first with more layers than both.

    The first rank has most micro-batches in flight and the embedding, the last one the head and the loss.
    """
    layers = layers_of_pipeline_ranks(recipe, problem)
    chosen = {0, recipe.pipeline_parallel - 1}
    if max(layers) > max(layers[0], layers[-1]):
        chosen.add(layers.index(max(layers)))
    return tuple(recipe.rank_strides["pp"] * place for place in sorted(chosen))
