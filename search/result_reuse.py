"""Reuse of earlier campaigns' outcomes in place of a probe, within the same environment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from frontrunner.evaluators.probe.measure import rates
from frontrunner.results.outcome import STABLE_SPREAD, Failure, FailureKind, Measurement, Outcome, pool
from frontrunner.results.prior_results import PriorResult
from frontrunner.results.provenance import Provenance
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.recipe import Recipe

RECENT = timedelta(days=7)
"""Older measurements are repeated: clocks, firmware and network load change without a version. Assumed."""
CHOOSING = frozenset({"deephyper", "optuna", "sqlalchemy"})
"""Packages whose versions change which recipe is tried, but not how it runs."""

AFFECTS_STEPS = (
    "backend", "scheduler", "queue", "constraint", "scheduler_options", "select_options", "launcher",
    "launcher_options", "worker_init", "network_interface",
)  # fmt: skip
"""Keys of [dispatch] that choose a probe's nodes and its environment there; the others are about getting nodes."""


@dataclass(frozen=True, kw_only=True)
class ReusableResult:
    """An outcome of an earlier campaign that needs no probe."""

    outcome: Outcome
    campaign: str
    trial_number: int
    measured_at: str
    run_folder: str

    @property
    def origin(self) -> dict[str, str | int]:
        """Where the outcome comes from, as event data."""
        return {"campaign": self.campaign, "its_trial": self.trial_number, "measured_at": self.measured_at}


def same_environment(one: Provenance, other: Provenance) -> bool:
    """Return whether host, system, device, driver and every package that takes part in a probe are the same."""
    alike = (one.host, one.platform, one.device) == (other.host, other.platform, other.device)
    return alike and _running(one) == _running(other)


def _running(provenance: Provenance) -> dict[str, str]:
    return {name: version for name, version in provenance.versions.items() if name not in CHOOSING}


def reusable_result(
    known: PriorResult, *, campaign: str, there: CampaignSpec, spec: CampaignSpec, here: Provenance, now: datetime
) -> ReusableResult | None:
    """Return the result of an earlier campaign `there` for use in a campaign of `spec`; None where a probe is needed.

    It was measured in the same environment, in the last `RECENT` days, with the same optimizer, as many probes at a
    time and the same disk where it offloads to one, and the steps of all its repeats together are not noisy. Of
    failures only out of memory is reused, which is no accident.
    """
    if spec.evaluator != "probe" or there.evaluator != "probe" or known.provenance is None:
        return None
    if not same_environment(known.provenance, here) or now - datetime.fromisoformat(known.finished_at) > RECENT:
        return None
    if _conditions(there, known.recipe) != _conditions(spec, known.recipe):
        return None
    if recipe_id(spec.problem, known.recipe) != known.recipe_id:
        return None
    outcome = _outcome(known, there, spec)
    if outcome is None:
        return None
    return ReusableResult(
        outcome=replace(outcome, node_seconds=0.0),
        campaign=campaign,
        trial_number=known.trial_number,
        measured_at=known.finished_at,
        run_folder=known.run_folder,
    )


def _conditions(spec: CampaignSpec, recipe: Recipe) -> tuple[object, ...]:
    """Return the campaign's settings, beyond a recipe's identity, that a probe's times depend on."""
    disk = spec.problem.cluster.nvme_path if recipe.offload == "nvme" else None
    steps = tuple(getattr(spec.dispatch, key) for key in AFFECTS_STEPS)
    return spec.probe.optimizer, spec.search.parallel_probes, disk, steps


def _outcome(known: PriorResult, there: CampaignSpec, spec: CampaignSpec) -> Outcome | None:
    """Return the outcome under the memory and the peak that this campaign states for the same devices, or None."""
    limit, limit_there = (of.problem.cluster.memory_bytes_per_device for of in (spec, there))
    if isinstance(known.outcomes, Failure):
        is_answer = known.outcomes.kind is FailureKind.OUT_OF_MEMORY and limit <= limit_there
        return known.outcomes if is_answer else None
    newest: Measurement = known.outcomes[-1]
    spread = max([pool(known.outcomes).step_time_spread, *(one.step_time_spread for one in known.outcomes)])
    if spread > STABLE_SPREAD or newest.peak_memory_bytes_max_rank > limit:
        return None
    return replace(newest, mfu=rates(known.recipe, spec.problem, newest.step_time_s_median)["mfu"])
