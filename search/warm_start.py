"""Warm starts: what a new campaign can use of earlier campaigns of its store and of imported
tables.

Its strategy learns from evidence: outcomes of the same device, precision, torch and driver, and of
a model of close shape or the same cluster. A result of the same recipe and environment replaces a
probe. The rest is counted by its reason: numbers of different machines or software are never mixed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from frontrunner.evaluators.runs.measure import rates
from frontrunner.evaluators.tables.reading import DISAGREEING
from frontrunner.results.outcome import STABLE_SPREAD, Failure, FailureKind, Outcome, combined, pool
from frontrunner.results.prior_results import PriorResult, campaign_results
from frontrunner.results.provenance import GPU_DRIVER_FILES, LIBRARIES, Provenance, collect
from frontrunner.results.records import IMPORTED, Campaign
from frontrunner.results.store import Store
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.search.spec import CampaignSpec
from frontrunner.search.strategy import Evidence
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput, StoreUnusable
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.presets import known_device
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

CLOSE_PARAMETERS, CLOSE_HIDDEN = 4.0, 2.0
"""Largest ratios between models of close shape, whose matrix products have like rates; assumed."""
MOST_EVIDENCE = 200
"""Nearest problems' outcomes that are passed on; a Gaussian process takes the cube of their
number.
"""
MOST_ORIGINS = 4
RECENT = timedelta(days=7)
"""Older measurements are repeated: clocks, firmware and network load change without a version.
Assumed.
"""
CHOOSING = frozenset({"deephyper", "optuna", "sqlalchemy"})
"""Packages whose versions change which recipe is tried, but not how it runs."""
AFFECTS_STEPS = (
    "backend", "scheduler", "queue", "constraint", "scheduler_options", "select_options",
    "launcher",
    "launcher_options", "worker_init", "network_interface",
)  # fmt: skip
"""Keys of [dispatch] that choose a probe's nodes and its environment there; the others are about
getting nodes.
"""


class Earlier(NamedTuple):
    """A campaign of the store with its specification."""

    campaign: Campaign
    spec: CampaignSpec


@dataclass(frozen=True, kw_only=True)
class ReusableResult:
    """An outcome of an earlier campaign that needs no probe."""

    recipe: Recipe
    outcome: Outcome
    campaign: str
    trial_number: int
    measured_at: str
    run_folder: str

    @property
    def origin(self) -> dict[str, str | int]:
        """Where the outcome comes from, as event data."""
        return {
            "campaign": self.campaign,
            "its_trial": self.trial_number,
            "measured_at": self.measured_at,
        }


@dataclass(frozen=True, kw_only=True)
class PriorResults:
    """What is known when a campaign begins: `evidence`, nearest first, `left_out` by reason,
    `reusable` by id.
    """

    evidence: tuple[Evidence, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    reusable: Mapping[str, ReusableResult] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.evidence or self.left_out or self.reusable)

    def counts(self, legal: Container[Recipe], *, used: bool) -> dict[str, str | int]:
        """Count what is used and what is not, for an event; `used` is whether the strategy learns
        from evidence.
        """
        origins = list(dict.fromkeys(piece.origin for piece in self.evidence))
        answers = sum(one.recipe in legal for one in self.reusable.values())
        found: dict[str, str | int] = {
            "learned_from": len(self.evidence) if used else 0,
            "answers": answers,
        }
        if used and origins:
            found["origins"] = ", ".join(origins[:MOST_ORIGINS]) + (
                ", ..." if len(origins) > MOST_ORIGINS else ""
            )
        if not used and self.evidence:
            found["left out: that the strategy does not learn from"] = len(self.evidence)
        return found | {
            f"left out: {reason}": count for reason, count in sorted(self.left_out.items())
        }


def prior_results(store: Store, record: Campaign, spec: CampaignSpec) -> PriorResults:
    """Collect what a campaign can use of those created before it, as far as this version can read
    them.
    """
    if not (spec.search.warm_start or spec.search.reuse):
        return PriorResults()
    earlier = []
    for summary in reversed(store.campaigns()):  # the oldest first
        if summary.id < record.id:
            campaign = store.campaign(summary.name)
            with suppress(StoreUnusable, InvalidInput):
                earlier.append(Earlier(campaign=campaign, spec=stored_spec(campaign)))
    return (
        gather(store, spec, earlier, collect(spec.problem.cluster.device))
        if earlier
        else PriorResults()
    )


def gather(
    store: Store, spec: CampaignSpec, earlier: Iterable[Earlier], here: Provenance
) -> PriorResults:
    """Collect what a campaign of `spec` can use of `earlier` ones, the oldest first; `here` is its
    probes' software.
    """
    found: list[tuple[float, Evidence]] = []
    left_out: Counter[str] = Counter()
    reusable: dict[str, ReusableResult] = {}
    for one in earlier:
        there, why_none = one.spec.problem, _why_no_evidence(one, spec)
        for known in campaign_results(store, one.campaign.id):
            if (outcome := _reusable_outcome(known, one.spec, spec, here, store.now())) is not None:
                reusable[recipe_id(spec.problem, known.recipe)] = (
                    ReusableResult(  # the newest campaign's counts
                        recipe=known.recipe,
                        outcome=replace(outcome, node_seconds=0.0),
                        campaign=one.campaign.name,
                        trial_number=known.trial_number,
                        measured_at=known.finished_at,
                        run_folder=known.run_folder,
                    )
                )
            if not spec.search.warm_start:
                continue
            why_not = why_none or _why_not(
                known, one, spec, here, is_same=_is_same(there, spec.problem)
            )
            if why_not is not None:
                left_out[why_not] += 1
                continue
            found.append((distance(there, spec.problem), _evidence(known, one)))
    found.sort(key=lambda pair: pair[0])  # stable: of one distance the oldest first
    if len(found) > MOST_EVIDENCE:
        left_out[f"further away than the nearest {MOST_EVIDENCE}"] = len(found) - MOST_EVIDENCE
    nearest = tuple(evidence for _, evidence in found[:MOST_EVIDENCE])
    return PriorResults(
        evidence=nearest, left_out=left_out, reusable=reusable if spec.search.reuse else {}
    )


def _reusable_outcome(
    known: PriorResult, there: CampaignSpec, spec: CampaignSpec, here: Provenance, now: datetime
) -> Outcome | None:
    """Return an earlier result for use in place of a probe: same conditions, recent, not noisy; or
    out of memory.
    """
    then, recipe = known.provenance, known.recipe
    is_alike = (
        spec.evaluator_kind.trains
        and there.evaluator_kind.trains
        and then is not None
        and _is_same_environment(then, here)
        and now - datetime.fromisoformat(known.finished_at) <= RECENT
        and _conditions(there, recipe) == _conditions(spec, recipe)
        and recipe_id(spec.problem, recipe) == known.recipe_id
    )
    if not is_alike:
        return None
    limit, limit_there = (of.problem.cluster.memory_bytes_per_device for of in (spec, there))
    if isinstance(known.outcomes, Failure):
        is_certain = known.outcomes.kind is FailureKind.OUT_OF_MEMORY and limit <= limit_there
        return known.outcomes if is_certain else None
    newest = known.outcomes[-1]
    spread = max(
        [pool(known.outcomes).step_time_spread, *(one.step_time_spread for one in known.outcomes)]
    )
    if spread > STABLE_SPREAD or newest.doubts or max(newest.peak_memory_bytes) > limit:
        return None
    return replace(newest, mfu=rates(recipe, spec.problem, newest.step_time_s_median)["mfu"])


def _is_same_environment(one: Provenance, other: Provenance) -> bool:
    """Return whether host, system, device, driver and every package that takes part in a probe are
    the same.
    """
    differ = {
        name
        for name in {*one.versions, *other.versions}
        if one.versions.get(name) != other.versions.get(name)
    }
    unknown = {name for name in LIBRARIES if name not in one.versions or name not in other.versions}
    alike = (one.host, one.platform, one.device) == (other.host, other.platform, other.device)
    return alike and not differ - CHOOSING - unknown


def _conditions(spec: CampaignSpec, recipe: Recipe) -> tuple[object, ...]:
    disk = spec.problem.cluster.nvme_path if recipe.offload == "nvme" else None
    steps = tuple(getattr(spec.dispatch, key) for key in AFFECTS_STEPS)
    return spec.probe.optimizer, spec.search.parallel_probes, disk, steps


def _why_no_evidence(earlier: Earlier, spec: CampaignSpec) -> str | None:
    there, ours, figures = earlier.spec.problem, spec.problem, earlier.campaign.figures
    same_cluster = figures != "imported" and there.cluster.name == ours.cluster.name
    reasons = {
        "simulated": figures == "simulated" and not spec.evaluator_kind.simulates,
        "of another trainer": figures == "measured" and earlier.spec.trainer != spec.trainer,
        # It holds other states in memory, and its step takes another time.
        "of another optimizer": (
            figures == "measured" and earlier.spec.probe.optimizer != spec.probe.optimizer
        ),
        # The same row would count again for each campaign that looked it up.
        "looked up in a table": earlier.spec.evaluator_kind.looks_up,
        "of another device": _device(there) != _device(ours),
        "of another precision": there.precision != ours.precision,
        "of a model of another shape": not is_close(there.model, ours.model) and not same_cluster,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def is_close(one: Model, other: Model) -> bool:
    """Return whether two models are of close shape."""
    return (
        one.feed_forward.matrices == other.feed_forward.matrices
        and _ratio(one.parameters, other.parameters) <= CLOSE_PARAMETERS
        and _ratio(one.hidden, other.hidden) <= CLOSE_HIDDEN
    )


def _why_not(
    known: PriorResult, earlier: Earlier, spec: CampaignSpec, here: Provenance, *, is_same: bool
) -> str | None:
    if earlier.campaign.figures == "measured":
        different = _other_software(known.provenance, here)
        if different is not None:
            return different
    knobs = {(name, knob.flag, knob.env) for name, knob in spec.space.custom.items()}
    if not knobs.issuperset((one.name, one.flag, one.env) for one in known.recipe.custom):
        return "of knobs that the space does not have"
    if isinstance(known.outcomes, Failure):
        lasting = known.outcomes.kind is FailureKind.OUT_OF_MEMORY or is_same
        return None if lasting else "failed for a reason that another problem need not share"
    times = [measured.step_time_s_median for measured in known.outcomes]
    if max(times) > (1 + DISAGREEING) * min(times):
        return f"repeats that differ by more than {100 * DISAGREEING:.0f} %"
    return None


def _other_software(there: Provenance | None, here: Provenance) -> str | None:
    if there is None:
        return "of software that was not recorded"
    one, other = there.versions, here.versions
    if one.get("torch", "").split(".")[:2] != other.get("torch", "").split(".")[:2]:
        return "of another torch"
    if any(one.get(name) != other.get(name) for name in GPU_DRIVER_FILES):
        return "of another driver version"
    return None


def _device(problem: Problem) -> object:
    name = problem.cluster.device
    return (known_device(name) or {}).get("device", name.lower()), problem.cluster.backend


def _is_same(one: Problem, other: Problem) -> bool:
    """Return whether two problems differ in names only: same model, sequence, batch and number of
    devices.
    """
    return (
        replace(one.model, name="") == replace(other.model, name="")
        and (one.sequence_length, one.global_batch) == (other.sequence_length, other.global_batch)
        and one.cluster.devices == other.cluster.devices
    )


def distance(one: Problem, other: Problem) -> float:
    """Return how far apart two problems are: doublings of parameters, sequence length and devices,
    summed.
    """
    sizes = ((of.model.parameters, of.sequence_length, of.cluster.devices) for of in (one, other))
    return sum(math.log2(_ratio(*pair)) for pair in zip(*sizes, strict=True))


def _ratio(one: float, other: float) -> float:
    return max(one, other) / min(one, other)


def _evidence(known: PriorResult, earlier: Earlier) -> Evidence:
    """Combine a recipe's repeats into one measurement with the steps of all, whose spread shows how
    far they agree.

    Without the peak of a table's row: it may count what the allocator reserves or the device holds
    (`mem_kind`), which the store does not keep, and strategies compare peaks with what tensors
    hold.
    """
    outcomes, origin = known.outcomes, f"campaign {earlier.campaign.name}"
    if isinstance(outcomes, Failure):
        outcome: Outcome = outcomes
    else:
        outcome = combined(outcomes)
        if earlier.campaign.figures == IMPORTED:
            outcome = replace(outcome, peak_memory_bytes=(0,))
    if earlier.campaign.strategy == IMPORTED:
        origin = known.run_folder.partition(" row ")[0]
    return Evidence(
        problem=earlier.spec.problem, recipe=known.recipe, outcome=outcome, origin=origin
    )
