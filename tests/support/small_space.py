"""Every legal recipe of a space for the small model, as the trainer's recipes, and the few that
stand for them.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Space
from support.covering import Row, covering
from support.trainer_runs import GLOBAL_BATCH_SEQS, SEQUENCE_LENGTH, small_model, small_recipe

EVERY = "FRONTRUNNER_TEST_EVERY_RECIPE"
"""The environment variable that, set to anything, has every legal recipe trained instead of the
chosen ones: hours.
"""

FEW_RANKS = 4
"""Eight ranks on two processors take four times as long as these, on average."""

_FACTORS = (
    "tensor_parallel",
    "sequence_parallel",
    "context_parallel",
    "schedule",
    "micro_batch_seqs",
    "recompute",
    "replication",
    "gradient_sync",
    "offload",
    "secondary_partition",
)


def small_problem(**model: Any) -> Problem:
    """`trainer_runs.small_model`, with these changes, in fp32 on a node of eight ranks."""
    cluster = Cluster(
        name="small",
        device="cpu",
        backend="cpu",
        nodes=1,
        devices_per_node=8,
        memory_gib_per_device=8.0,
    )
    batch = GlobalBatch(minimum=GLOBAL_BATCH_SEQS, maximum=GLOBAL_BATCH_SEQS)
    return Problem(
        model=small_model(**model),
        cluster=cluster,
        sequence_length=SEQUENCE_LENGTH,
        global_batch=batch,
        precision="fp32",
    )


def choices_of(recipe: Recipe) -> dict[str, Any]:
    """What `trainer_runs.small_recipe` takes, for the same recipe."""
    choices = asdict(recipe) | {
        "data_parallel": recipe.data_parallel,
        "sharding": recipe.sharding.degrees,
    }
    del choices["devices"]
    return choices


def legal_recipes(space: Space, **model: Any) -> dict[str, dict[str, Any]]:
    """All legal recipes of the space: a name, and what `trainer_runs.small_recipe` takes."""
    return {
        recipe.describe(): choices_of(recipe)
        for recipe in space.survey(small_problem(**model)).recipes
    }


def factors(recipe: Recipe) -> Row:
    """The choices whose pairs are to be covered.

    Four replicas stand for more. Sharding counts by how far each part is spread, not by degrees.
    """
    row = {name: getattr(recipe, name) for name in _FACTORS}
    split = "by hand" if recipe.layers_per_stage else "even"
    return row | {
        "replicas": min(recipe.data_parallel, 4),
        "layers": split,
        "sharding": _spread(recipe),
    }


def expert_factors(recipe: Recipe) -> Row:
    """Those of `factors`, pipelines and the ranks that share experts."""
    degrees = ("pipeline_parallel", "expert_parallel", "expert_tensor_parallel")
    return factors(recipe) | {name: getattr(recipe, name) for name in degrees}


def covering_recipes(
    space: Space, *, run_anyway: Iterable[Recipe] = ()
) -> dict[str, dict[str, Any]]:
    """Those of `legal_recipes` that hold, together with `run_anyway`, each pair of choices that is
    legal: first on few ranks what few can hold, then what is left, the most pairs first.

    All of them where the environment says so: see `EVERY`.
    """
    recipes = legal_recipes(space)
    if os.environ.get(EVERY):
        return recipes
    rows = {name: factors(small_recipe(**recipe)) for name, recipe in recipes.items()}
    few = {name: row for name, row in rows.items() if ranks_of(recipes[name]) <= FEW_RANKS}
    covered = [factors(recipe) for recipe in run_anyway]
    first = _covering_names(few, covered)
    rest = _covering_names(rows, [*covered, *(rows[name] for name in first)])
    return {name: recipes[name] for name in (*first, *rest)}


def ranks_of(recipe: Mapping[str, Any]) -> int:
    """The ranks of a recipe that is given as what `trainer_runs.small_recipe` takes."""
    return small_recipe(**recipe).devices


def _covering_names(rows: Mapping[str, Row], covered: Sequence[Row]) -> list[str]:
    names = list(rows)
    return [names[position] for position in covering(list(rows.values()), covered=covered)]


def covering_experts(
    space: Space, model: Mapping[str, Any], *, run_anyway: Iterable[Recipe]
) -> dict[str, dict[str, Any]]:
    """The legal recipes of a mixture that hold, with `run_anyway`, each legal pair of which one is
    a degree of experts.

    The pairs without one are those of `covering_recipes`.
    """
    recipes = legal_recipes(space, **model)
    rows = [expert_factors(small_recipe(**recipe)) for recipe in recipes.values()]
    without = [
        {name: value for name, value in row.items() if not name.startswith("expert")}
        for row in rows
    ]
    chosen = {*covering(rows, covered=[*without, *map(expert_factors, run_anyway)])}
    return {
        name: recipe
        for position, (name, recipe) in enumerate(recipes.items())
        if position in chosen
    }


def pairs_left_out(space: Space, run: Iterable[Recipe]) -> set[Any]:
    """The legal pairs of choices that none of the recipes in `run` holds."""
    legal = _pairs(small_recipe(**recipe) for recipe in legal_recipes(space).values())
    return legal - _pairs(run)


def expert_pairs_left_out(
    space: Space, model: Mapping[str, Any], run: Iterable[Recipe]
) -> set[Any]:
    """The legal pairs with a degree of experts that none of the recipes in `run` holds."""
    legal = (small_recipe(**recipe) for recipe in legal_recipes(space, **model).values())
    left_out = _pairs(legal, expert_factors) - _pairs(run, expert_factors)
    return {pair for pair in left_out if any(name.startswith("expert") for name, _ in pair)}


def _pairs(recipes: Iterable[Recipe], row_of: Callable[[Recipe], Row] = factors) -> set[Any]:
    """Each two choices that one of the recipes holds: two loops, and nothing of `covering`."""
    found = set()
    for row in map(row_of, recipes):
        for one in row.items():
            found |= {frozenset((one, other)) for other in row.items() if other != one}
    return found


def _spread(recipe: Recipe) -> str:
    """Parameters, gradients and optimizer's states over one, some or all copies of the model, as in
    "one some all".
    """
    copies = recipe.data_parallel * recipe.context_parallel
    words = {1: "one", copies: "all"} if copies > 1 else {1: "one"}
    return " ".join(words.get(degree, "some") for degree in asdict(recipe.sharding).values())
