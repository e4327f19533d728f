"""Estimates of recipes: step time, speed and memory from the formulas, and what they cannot judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from frontrunner.evaluators.analytic.judged import Estimate, Judged, judge
from frontrunner.evaluators.analytic.machine import ASSUMED_HOST_BYTES_PER_S
from frontrunner.evaluators.analytic.trust import UNKNOWN_HARDWARE_ERROR, assumed, expected_error, is_judged, unjudged
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey

UNJUDGED = "the formulas' constants were judged on A100 in 16 bits alone"
HOST_UNLIMITED = "the host's memory limits no recipe that offloads: a cluster file does not say how much there is"
HOST_ASSUMED = f"links.host_gb_per_s is not given: offloading is estimated with {ASSUMED_HOST_BYTES_PER_S / 1e9:g} GB/s"
SHARED_CPU = "ranks on one machine's CPU share its cores; the formulas give each its own, so trust no order among these"
MEASURED_TOGETHER = (
    "the figures are those of ranks that are all busy on one CPU; where some wait, as in pipelines, others are faster"
)


@dataclass(frozen=True, kw_only=True)
class Trust:
    """How far to trust estimates of one problem.

    `assumed` are the keys of the cluster that were not given and for which a common value stands; `expected_error` is
    the share by which a step time is off on average, unless an estimate states another of its own. `remarks` say what
    else the formulas do not know.
    """

    assumed: tuple[str, ...]
    expected_error: float
    remarks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A space judged by the formulas; `not_modelled` counts the legal recipes that they leave out, by reason."""

    judged: Judged
    not_modelled: Mapping[str, int]
    trust: Trust

    @property
    def legal(self) -> int:
        """The legal recipes, those left out included."""
        return len(self.judged) + sum(self.not_modelled.values())

    @property
    def memory_limit_bytes(self) -> int:
        """A device's memory."""
        return self.judged.problem.cluster.memory_bytes_per_device

    @property
    def expected_error(self) -> float:
        """As in `Trust`."""
        return self.trust.expected_error

    @property
    def assumed(self) -> tuple[str, ...]:
        """As in `Trust`."""
        return self.trust.assumed

    @property
    def remarks(self) -> tuple[str, ...]:
        """As in `Trust`."""
        return self.trust.remarks

    @cached_property
    def estimates(self) -> tuple[Estimate, ...]:
        """All of them: what fits, fastest first, then what does not, smallest first."""
        return tuple(self.judged.estimates(self.judged.order))

    def fastest(self, top: int) -> tuple[Estimate, ...]:
        """The first `top` recipes that fit, fastest first."""
        return tuple(self.judged.estimates(self.judged.order[: min(top, self.judged.fitting)]))

    @property
    def fitting(self) -> tuple[Estimate, ...]:
        """The estimates of all recipes that fit, fastest first."""
        return self.estimates[: self.judged.fitting]

    @cached_property
    def front(self) -> tuple[Estimate, ...]:
        """The fitting recipes that no other beats in both speed and memory, fastest first."""
        return tuple(self.judged.estimates(self.judged.front()))


def plan(recipes: Sequence[Recipe], problem: Problem) -> Plan:
    """Judge legal recipes of one problem."""
    reasons = [not_modelled(recipe) for recipe in recipes]
    known = [recipe for recipe, reason in zip(recipes, reasons, strict=True) if reason is None]
    left_out = Counter(reason for reason in reasons if reason is not None)
    return Plan(judged=judge(known, problem), not_modelled=dict(left_out), trust=trust_in(known, problem))


def trust_in(recipes: Sequence[Recipe], problem: Problem) -> Trust:
    """How far the estimates of these recipes are to be trusted."""
    return Trust(
        assumed=assumed(problem),
        expected_error=expected_error(problem),
        remarks=_remarks(recipes, problem),
    )


def _remarks(recipes: Sequence[Recipe], problem: Problem) -> tuple[str, ...]:
    unknown = [choices for recipe in recipes if (choices := unjudged(recipe))]
    names = ", ".join(sorted({name for choices in unknown for name in choices}))
    offloads = any(recipe.offload != "none" or recipe.activation_offload for recipe in recipes)
    wide = round(100 * max(UNKNOWN_HARDWARE_ERROR, expected_error(problem)))
    unjudged_choices = f"{_estimates(len(unknown))} may be off by {wide} %: no measurement has judged {names}"
    on_cpu, measured = problem.cluster.backend == "cpu", problem.cluster.matmul_flops(problem.precision) is not None
    remarks = {
        UNJUDGED: not is_judged(problem),
        SHARED_CPU: on_cpu and not measured,
        MEASURED_TOGETHER: on_cpu and measured,
        unjudged_choices: bool(unknown),
        HOST_UNLIMITED: offloads,
        HOST_ASSUMED: offloads and problem.cluster.links.host_gb_per_s is None,
    }
    return tuple(remark for remark, holds in remarks.items() if holds)


def _estimates(count: int) -> str:
    return "1 estimate" if count == 1 else f"{count:,} estimates"


def why_nothing_legal(survey: Survey) -> tuple[int, str]:
    """Of a survey without a legal recipe the commonest refusal: how many points, and one example with its numbers.

    That schedules and virtual stages do not go together counts last: every space with both refuses half of them.
    """
    refusals = sorted(survey.refused_by_count(), key=lambda refusal: refusal[0] == "virtual-stages")
    _, points, example = refusals[0]
    return points, example


def not_modelled(recipe: Recipe) -> str | None:
    """Why the formulas cannot judge a recipe, or None."""
    return "offload to NVMe" if recipe.offload == "nvme" else None


def estimate(recipes: Sequence[Recipe], problem: Problem) -> list[Estimate]:
    """The recipes in order; each must be one that `not_modelled` lets pass."""
    judged = judge(recipes, problem)
    return list(judged.estimates(range(len(judged))))
