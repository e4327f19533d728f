"""Where the torch engine can pull its levers of compilation and memory, as legality rules.

`tests/system/test_levers.py` runs the legal combinations against one process.
"""

from __future__ import annotations

from frontrunner.spaces.problem import Problem
from frontrunner.spaces.reasons import Reason
from frontrunner.spaces.recipe import SPLIT_BACKWARD_SCHEDULES, Recipe


def torch_compile(recipe: Recipe, _: Problem) -> Reason | None:
    """A compiled layer is one piece to whatever would look into it."""
    if not recipe.compile:
        return None
    if recipe.recompute == "full" and recipe.tensor_parallel > 1:
        return Reason(
            "compile-recompute-tensor",
            "torch 2.13 raises where a compiled tensor-parallel layer is to be recomputed: use recompute none",
        )
    if recipe.recompute == "selective":
        return Reason(
            "compile-selective", "selective recompute chooses among a layer's operations, which compile hides from it"
        )
    if recipe.schedule in SPLIT_BACKWARD_SCHEDULES:
        return Reason(
            "compile-split-backward",
            f"{recipe.schedule} splits the backward pass, and a compiled layer's backward is one piece",
        )
    return None


def torch_pieces(recipe: Recipe, problem: Problem) -> Reason | None:
    """The positions that a rank holds, under context and sequence parallelism a share of all, make equal pieces."""
    shards = recipe.tensor_parallel if recipe.sequence_parallel else 1
    held = problem.sequence_length // (recipe.context_parallel * shards)
    for name in ("loss_chunks", "feed_forward_tiles"):
        pieces = getattr(recipe, name)
        if held % pieces:
            return Reason("pieces-divide", f"{name} {pieces} does not divide the {held} positions that a rank holds")
    if recipe.feed_forward_tiles > 1 and recipe.recompute == "selective":
        return Reason(
            "tiles-selective", "selective recompute keeps the matrix products' outputs that feed_forward_tiles frees"
        )
    return None


def torch_host_memory(recipe: Recipe, problem: Problem) -> Reason | None:
    """What moves to the host's memory needs a device that has another, and a time when the device can do without."""
    if recipe.offload not in ("none", "optimizer+parameters"):
        return Reason("torch-offload", f"the torch engine offloads optimizer+parameters or none, not {recipe.offload}")
    moves = recipe.activation_offload or recipe.offload != "none"
    if moves and problem.cluster.backend == "cpu":
        return Reason("offload-cpu", "a cpu device computes in the host's memory: there is no other to offload to")
    p, _, o = recipe.sharding.degrees
    if recipe.offload != "none" and (p == 1 or p < o) and recipe.copies > 1:
        return Reason(
            "offload-sharding",
            f"offload {recipe.offload} brings parameters to the device for each use: it needs zero-3 or hybrid "
            f"sharding, not {recipe.sharding_name}",
        )
    return None


def torch_gradient_sync(recipe: Recipe, _: Problem) -> Reason | None:
    """Reducing gradients at each micro-batch is a choice only where they could wait."""
    if recipe.gradient_sync == "last":
        return None
    if recipe.schedule in SPLIT_BACKWARD_SCHEDULES:
        return Reason(
            "gradient-sync-split-backward",
            f"{recipe.schedule} finishes weight gradients out of order: reduce at the last",
        )
    p, g, o = recipe.sharding.degrees
    reduces_late = o == 1 or p == o < recipe.copies
    if reduces_late:
        return None
    if 1 < g < o:
        return Reason(
            "gradient-sync-sharding",
            f"{recipe.sharding_name} holds gradients over {g} replicas until the last micro-batch: choose last",
        )
    same = "runs as zero-2" if g == 1 else "is what it does at any rate"
    return Reason("gradient-sync-sharding", f"{recipe.sharding_name} with gradient_sync each {same}: choose last")


def only_torch_levers(recipe: Recipe, _: Problem) -> Reason | None:
    """The levers of this file are the torch engine's; `offload` has rules of its own in every engine."""
    moved = [lever for lever in recipe.levers if not lever.startswith("offload=")]
    return Reason("levers-engine", f"only the torch engine has {', '.join(moved)}") if moved else None


TORCH_LEVER_RULES = (torch_compile, torch_pieces, torch_host_memory, torch_gradient_sync)
