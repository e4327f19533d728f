"""Which layers each pipeline stage holds: as even as possible, or balanced with what first and last
stage do besides.

A looped placement gives pipeline rank r the stages r, r + pp, r + 2 pp, ...; a V-shaped one gives
it r and 2 pp - 1 - r.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache

from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import V_SHAPED_SCHEDULES, Recipe


def rank_of_stage(recipe: Recipe, stage: int) -> int:
    """Return the pipeline rank that holds `stage`."""
    ranks = recipe.pipeline_parallel
    if recipe.schedule in V_SHAPED_SCHEDULES and stage >= ranks:
        return recipe.stages - 1 - stage
    return stage % ranks


def even_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers of each stage as evenly as possible: the first stages take the
    remainder.
    """
    size, remainder = divmod(layers, stages)
    return tuple(size + (stage < remainder) for stage in range(stages))


def layers_of_stages(recipe: Recipe, layers: int) -> tuple[int, ...]:
    """Return the layers of each stage of a recipe."""
    return recipe.layers_per_stage or even_layers(layers, recipe.stages)


def layers_of_ranks(recipe: Recipe, layers: int, *, first: int | None = None) -> list[int]:
    """Return the layers that each pipeline rank holds in all its stages; given `first`, those of
    the first ones.
    """
    held = [0] * recipe.pipeline_parallel
    counts = layers_of_stages(recipe, layers)
    for stage, count in enumerate(counts if first is None else leading(counts, first)):
        held[rank_of_stage(recipe, stage)] += count
    return held


def leading(counts: Sequence[int], first: int) -> list[int]:
    """Return how many of the `first` layers each of neighboring parts has, which hold so many."""
    starts = itertools.accumulate(counts, initial=0)
    return [min(max(first - start, 0), count) for start, count in zip(starts, counts, strict=False)]


def balanced_layers(recipe: Recipe, problem: Problem) -> tuple[int, ...]:
    """Return how many layers each stage holds so that the busiest pipeline rank has as little to do
    as possible.

    A rank's work are the FLOPs of a micro-batch, recompute included, of its layers, and on the last
    stage of the head and of MTP layers. Ties are broken by the busiest stage, then by the most
    parameters of a rank. Layers cost the same, so that giving each in turn to the least busy is
    optimal.
    """
    model = problem.model
    # FLOPs of a token in a step, what is computed a second time included.
    layer_flops = (4.0 if recipe.recompute == "full" else 3.0) * model.layer_flops_per_token(
        problem.sequence_length
    )
    if recipe.feed_forward_tiles > 1:
        layer_flops += model.feed_forward_flops_per_token()
    head_flops = (4.0 if recipe.loss_chunks > 1 else 3.0) * model.head_flops_per_token()
    head_flops += (4.0 if recipe.recompute == "full" else 3.0) * model.mtp_flops_per_token(
        problem.sequence_length
    )
    rows = model.embedding.padded_vocabulary
    if model.embedding.has_learned_positions:
        rows += problem.sequence_length
    return _balance(
        len(model.layers),
        tuple(rank_of_stage(recipe, stage) for stage in range(recipe.stages)),
        head_layers=head_flops / layer_flops,
        embedding_layers=rows * model.hidden / model.layers[-1].matmul_parameters,
        head_parameter_layers=head_layers(model),
    )


def head_layers(model: Model) -> float:
    """Return the parameters of the head over those of a layer."""
    head = model.embedding.padded_vocabulary * model.hidden
    return head / model.layers[-1].matmul_parameters


@lru_cache(maxsize=4096)
def _balance(
    layers: int,
    rank_of: tuple[int, ...],
    *,
    head_layers: float,
    embedding_layers: float,
    head_parameter_layers: float,
) -> tuple[int, ...]:
    """`balanced_layers`, with everything in units of one layer: its FLOPs, or its parameters."""
    last = len(rank_of) - 1
    counts = [1] * len(rank_of)
    of_stage = [1.0] * len(rank_of)
    of_stage[last] += head_layers
    of_rank, parameters = [0.0] * len(rank_of), [0.0] * len(rank_of)
    for stage, rank in enumerate(rank_of):
        of_rank[rank] += of_stage[stage]
        parameters[rank] += (
            1 + embedding_layers * (stage == 0) + head_parameter_layers * (stage == last)
        )

    def burden(stage: int) -> tuple[float, float, float]:
        return of_rank[rank_of[stage]], of_stage[stage], parameters[rank_of[stage]]

    for _ in range(layers - len(rank_of)):
        stage = min(range(len(rank_of)), key=burden)
        counts[stage] += 1
        of_stage[stage] += 1
        of_rank[rank_of[stage]] += 1
        parameters[rank_of[stage]] += 1
    return tuple(counts)
