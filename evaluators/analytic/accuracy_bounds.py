"""How far to trust the formulas: which devices and choices measurements have validated, and how far off they may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frontrunner.evaluators.analytic.machine import ASSUMED_HOST_BYTES_PER_S, assumptions
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import DIMENSIONS, Recipe

EXPECTED_ERROR = 0.15
"""Mean error of step time on tables of A100 measurements that the constants were not fitted to (docs/planning.md)."""
VALIDATED_DEVICES = frozenset({"a100-40gb", "a100-80gb"})
"""The devices of `EXPECTED_ERROR`, in 16 bits."""
UNKNOWN_HARDWARE_ERROR = 0.5
"""Stated for other devices, for fp32, for choices that are not validated, and where the cluster omits a figure that the
estimate needs: a guess. On tables that nothing was fitted to the mean error was 9 to 63 %."""

VALIDATED = (
    "tensor_parallel", "pipeline_parallel", "micro_batch_seqs", "accumulation", "devices", "virtual_stages",
    "schedule", "sharding", "recompute", "sequence_parallel", "replication", "layer_split",
)  # fmt: skip
"""The dimensions whose formulas measurements of step times have validated, two of them in these values only."""
VALIDATED_SCHEDULES = ("none", "1f1b", "interleaved-1f1b")
_UNVALIDATED = tuple((one.name, one.field, one.neutral) for one in DIMENSIONS.values() if one.name not in VALIDATED)

OTHER_HARDWARE = "the formulas' constants were validated on A100 in 16 bits only"
HOST_UNLIMITED = "the host's memory limits no recipe that offloads: a cluster file does not state its size"
HOST_ASSUMED = f"links.host_gb_per_s is not given: offloading is estimated with {ASSUMED_HOST_BYTES_PER_S / 1e9:g} GB/s"
SHARED_CPU = "ranks on one machine's CPU share its cores; the formulas give each its own, so do not trust their order"
MEASURED_TOGETHER = (
    "the figures are those of ranks that are all busy on one CPU; where some wait, as in pipelines, others are faster"
)


@dataclass(frozen=True, kw_only=True)
class Trust:
    """How far to trust estimates of one problem.

    `assumed` are the keys of the cluster that were not given and are replaced by a common value; `expected_error` is
    the share by which a step time is off on average, unless an estimate states its own. `remarks` list what else the
    formulas do not know.
    """

    assumed: tuple[str, ...]
    expected_error: float
    remarks: tuple[str, ...]


def trust_in(recipes: Sequence[Recipe], problem: Problem) -> Trust:
    """Return how far to trust the estimates of these recipes."""
    unknown = [choices for recipe in recipes if (choices := unvalidated(recipe))]
    names = ", ".join(sorted({name for choices in unknown for name in choices}))
    offloads = any(recipe.offload != "none" or recipe.activation_offload for recipe in recipes)
    wide = round(100 * max(UNKNOWN_HARDWARE_ERROR, expected_error(problem)))
    count = "1 estimate" if len(unknown) == 1 else f"{len(unknown):,} estimates"
    on_cpu, measured = problem.cluster.backend == "cpu", problem.cluster.matmul_flops(problem.precision) is not None
    remarks = {
        OTHER_HARDWARE: not is_validated(problem),
        SHARED_CPU: on_cpu and not measured,
        MEASURED_TOGETHER: on_cpu and measured,
        f"{count} may be off by {wide} %: no measurement has validated {names}": bool(unknown),
        HOST_UNLIMITED: offloads,
        HOST_ASSUMED: offloads and problem.cluster.links.host_gb_per_s is None,
    }
    return Trust(
        assumed=assumed(problem),
        expected_error=expected_error(problem),
        remarks=tuple(remark for remark, holds in remarks.items() if holds),
    )


def own_error(problem: Problem) -> float | None:
    """Return the error that a cluster states for its own measured rows while they were held back, or None."""
    error: float | None = getattr(problem.cluster.expected_error, problem.precision)
    return error


def is_validated(problem: Problem) -> bool:
    """Return whether the formulas' constants were validated on the problem's device and precision."""
    if own_error(problem) is not None:
        return True
    return problem.cluster.device in VALIDATED_DEVICES and problem.precision != "fp32"


def assumed(problem: Problem) -> tuple[str, ...]:
    """Return the keys of the cluster that are replaced by a common value.

    An error of the cluster's own was measured with whatever the file omits, except for the network: it may have been
    measured on one node.
    """
    keys = assumptions(problem.cluster, problem.precision)
    return keys if own_error(problem) is None else tuple(key for key in keys if key.startswith("links.nic"))


def unvalidated(recipe: Recipe) -> tuple[str, ...]:
    """Return the choices of a recipe whose formulas no measurement of step times has validated."""
    found = [name for name, key, neutral in _UNVALIDATED if getattr(recipe, key) != neutral]
    if recipe.schedule not in VALIDATED_SCHEDULES:
        found.append(f"schedule {recipe.schedule}")
    if not {1, recipe.copies}.issuperset(recipe.sharding.degrees):
        found.append("sharding over some of the replicas")
    return tuple(found)


def expected_error(problem: Problem, recipe: Recipe | None = None) -> float:
    """Return the share by which step times are off on average: of a recipe, or of those that are validated."""
    own = own_error(problem)
    stated = EXPECTED_ERROR if own is None else own
    if assumed(problem) or not is_validated(problem) or (recipe is not None and unvalidated(recipe)):
        return max(UNKNOWN_HARDWARE_ERROR, stated)
    return stated
