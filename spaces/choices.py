"""The recipe that a choice for each dimension of a space stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from frontrunner.spaces.problem import Problem
from frontrunner.spaces.reasons import Reason
from frontrunner.spaces.recipe import RANK_ORDERS, Recipe
from frontrunner.spaces.sharding import Sharding
from frontrunner.spaces.stages import balanced_layers, even_layers

Choice = int | str | bool
DEGREES = ("tensor_parallel", "pipeline_parallel", "context_parallel")
"""The dimensions whose product is the devices of one replica."""


def recipe_at(choice: Mapping[str, Choice], problem: Problem) -> Recipe | Reason:
    """The recipe that a choice for each dimension stands for, or the reason why there is none.

    Choices that make no difference take their neutral value: no schedule without a pipeline, no sequence
    parallelism without tensor parallelism, one copy of the model has nothing to shard.
    """
    devices, tp, pp, cp = (int(choice[key]) for key in ("devices", *DEGREES))
    if devices % (tp * pp * cp):
        factors = [f"{key} {choice[key]}" for key in DEGREES if key != "context_parallel" or cp > 1]
        return Reason("devices-divide", f"{' x '.join(factors)} does not divide {devices} devices")
    dp = devices // (tp * pp * cp)
    copies = dp * cp
    sharding = Sharding.named(str(choice["sharding"]), copies)
    micro_batch = int(choice["micro_batch_seqs"])
    accumulation = choice.get("accumulation")
    if accumulation is None:
        batch = problem.global_batch.maximum
        if batch % (micro_batch * dp):
            return Reason(
                "global-batch", f"micro-batch {micro_batch} x {dp} replicas does not divide global batch {batch}"
            )
        accumulation = batch // (micro_batch * dp)
    schedule = str(choice["schedule"]) if pp > 1 else "none"
    recipe = Recipe(
        engine=str(choice["engine"]),
        devices=devices,
        tensor_parallel=tp,
        pipeline_parallel=pp,
        context_parallel=cp,
        virtual_stages=int(choice["virtual_stages"]) if pp > 1 else 1,
        schedule=schedule,
        micro_batch_seqs=micro_batch,
        accumulation=int(accumulation),
        sharding=sharding,
        recompute=str(choice["recompute"]),
        sequence_parallel=bool(choice["sequence_parallel"]) and tp > 1,
        replication=str(choice["replication"]) if copies > 1 else "replicate",
        synchronise=str(choice["synchronise"]) if copies > 1 and int(accumulation) > 1 else "last",
        secondary_partition=int(choice["secondary_partition"]) if copies > 1 else 1,
        rank_order=_order_that_matters(str(choice["rank_order"]), {"tp": tp, "dp": copies, "pp": pp}),
        **_levers(choice),
    )
    if choice["layer_split"] == "balanced":
        return replace(recipe, layers_per_stage=_balanced(recipe, problem))
    return recipe


def _balanced(recipe: Recipe, problem: Problem) -> tuple[int, ...]:
    """The balanced split; nothing where it is the even one, and where there are too few layers (rules refuse those)."""
    layers = problem.model.layers
    if recipe.pipeline_parallel == 1 or recipe.stages > layers:
        return ()
    balanced = balanced_layers(recipe, problem)
    return () if balanced == even_layers(layers, recipe.stages) else balanced


def _order_that_matters(order: str, sizes: Mapping[str, int]) -> str:
    """The first of `RANK_ORDERS` that numbers the ranks likewise: groups of one rank may stand anywhere."""

    def apart(name: str) -> list[str]:
        return [part for part in name.split("-") if sizes[part] > 1]

    return next(name for name in RANK_ORDERS if apart(name) == apart(order))


def _levers(choice: Mapping[str, Choice]) -> dict[str, Any]:
    """The choices that stand for themselves whatever the others are."""
    return {
        "compile": bool(choice["compile"]),
        "loss_chunks": int(choice["loss_chunks"]),
        "feed_forward_tiles": int(choice["feed_forward_tiles"]),
        "optimizer_state": str(choice["optimizer_state"]),
        "activation_offload": bool(choice["activation_offload"]),
        "offload": str(choice["offload"]),
    }
