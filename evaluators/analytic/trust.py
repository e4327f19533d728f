"""How far to trust the formulas: which devices and choices measurements have judged, and by how much they are off."""

from __future__ import annotations

from frontrunner.evaluators.analytic.machine import assumptions
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import RANK_ORDERS, SPLIT_BACKWARD_SCHEDULES, Recipe

EXPECTED_ERROR = 0.15
"""Mean error of step time on tables of A100 measurements that the constants were not fitted to (docs/planning.md)."""
JUDGED_DEVICES = frozenset({"a100-40gb", "a100-80gb"})
"""The devices of `EXPECTED_ERROR`, in 16 bits."""
UNKNOWN_HARDWARE_ERROR = 0.5
"""Stated for other devices, for fp32, for choices that are `unjudged`, and where the cluster leaves out a figure that
the estimate needs: a guess. On tables that nothing was fitted to the mean error was 9 to 63 %."""


def own_error(problem: Problem) -> float | None:
    """What a cluster states of itself: the error on its own measured rows while they were held back; None elsewhere."""
    error: float | None = getattr(problem.cluster.expected_error, problem.precision)
    return error


def is_judged(problem: Problem) -> bool:
    """Whether the formulas' constants were judged on the problem's device and precision."""
    if own_error(problem) is not None:
        return True
    return problem.cluster.device in JUDGED_DEVICES and problem.precision != "fp32"


def assumed(problem: Problem) -> tuple[str, ...]:
    """The keys of the cluster for which a common value stands.

    An error of the cluster's own was measured with whatever the file leaves out, but for the network: it may have been
    measured on one node.
    """
    keys = assumptions(problem.cluster, problem.precision)
    return keys if own_error(problem) is None else tuple(key for key in keys if key.startswith("links.nic"))


def unjudged(recipe: Recipe) -> tuple[str, ...]:
    """The choices of a recipe whose formulas no measurement of step times has judged."""
    choices = {
        "the deepspeed engine": recipe.engine != "torch",
        "context parallelism": recipe.context_parallel > 1,
        "compile": recipe.compile,
        "activation offload": recipe.activation_offload,
        "offload": recipe.offload != "none",
        "a secondary partition": recipe.secondary_partition > 1,
        "sharding over some of the replicas": not {1, recipe.copies}.issuperset(recipe.sharding.degrees),
        "schedules that split the backward pass": recipe.schedule in SPLIT_BACKWARD_SCHEDULES,
        "schedules that run all forward passes first": recipe.schedule in ("gpipe", "looped-bfs"),
        "loss and feed-forward parts in pieces": max(recipe.loss_chunks, recipe.feed_forward_tiles) > 1,
        "optimizer states in bf16": recipe.optimizer_state != "fp32",
        "ranks in another order than tp-dp-pp": recipe.rank_order != RANK_ORDERS[0],
        "gradients reduced at each micro-batch": recipe.gradient_sync != "last",
    }
    return tuple(name for name, chosen in choices.items() if chosen)


def expected_error(problem: Problem, recipe: Recipe | None = None) -> float:
    """The share by which step times are off on average: of a recipe, or of those whose choices are all judged."""
    own = own_error(problem)
    judged = EXPECTED_ERROR if own is None else own
    if assumed(problem) or not is_judged(problem) or (recipe is not None and unjudged(recipe)):
        return max(UNKNOWN_HARDWARE_ERROR, judged)
    return judged
