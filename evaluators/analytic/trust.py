"""How far to trust the formulas: which devices and choices measurements have judged, and by how much they are off."""

from __future__ import annotations

from frontrunner.evaluators.analytic.machine import assumptions
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

EXPECTED_ERROR = 0.15
"""Mean error of step time on tables of A100 measurements that the constants were not fitted to (docs/planning.md)."""
JUDGED_DEVICES = frozenset({"a100-40gb", "a100-80gb"})
"""The devices of `EXPECTED_ERROR`, in 16 bits."""
UNKNOWN_HARDWARE_ERROR = 0.5
"""Stated for other devices, for fp32, for choices that are `unjudged`, and where the cluster leaves out a figure that
the estimate needs: a guess. On tables of V100 and H100 the mean error was 11 to 51 % (docs/measurements.md)."""


def own_error(problem: Problem) -> float | None:
    """What a cluster states of itself: the error on its own measured rows while they were held back; None elsewhere."""
    error: float | None = getattr(problem.cluster.expected_error, problem.precision)
    return error


def is_judged(problem: Problem) -> bool:
    """Whether the formulas' constants were judged on the problem's device and precision."""
    if own_error(problem) is not None:
        return True
    return problem.cluster.device in JUDGED_DEVICES and problem.precision != "fp32"


def unjudged(recipe: Recipe) -> tuple[str, ...]:
    """The choices of a recipe whose formulas no measurement of step times has judged."""
    choices = {
        "the deepspeed engine": recipe.engine != "torch",
        "context parallelism": recipe.context_parallel > 1,
        "compile": recipe.compile,
        "activation offload": recipe.activation_offload,
        "offload": recipe.offload != "none",
        "a secondary partition": recipe.secondary_partition > 1,
    }
    return tuple(name for name, chosen in choices.items() if chosen)


def expected_error(problem: Problem, recipe: Recipe | None = None) -> float:
    """The share by which step times are off on average: of a recipe, or of those whose choices are all judged."""
    if recipe is not None and unjudged(recipe):
        return UNKNOWN_HARDWARE_ERROR
    own = own_error(problem)
    if own is not None:
        return own
    known = is_judged(problem) and not assumptions(problem.cluster, problem.precision)
    return EXPECTED_ERROR if known else UNKNOWN_HARDWARE_ERROR
