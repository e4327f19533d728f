"""Warm starts: what a new campaign can learn from earlier campaigns of its store and from imported tables.

Evidence has the same device and precision, the same torch and driver, and the same model, one of close shape, or one
that was measured on the same cluster. The rest is left out and counted by its reason: numbers of different machines
or software are never mixed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from frontrunner.evaluators.tables.reading import DISAGREEING
from frontrunner.results.outcome import Failure, FailureKind, Measurement, pool
from frontrunner.results.prior_results import PriorResult, campaign_results
from frontrunner.results.provenance import GPU_DRIVER_FILES, Provenance, collect
from frontrunner.results.records import IMPORTED, Campaign
from frontrunner.results.store import Store
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.search.result_reuse import ReusableResult, reusable_result
from frontrunner.search.spec import CampaignSpec
from frontrunner.search.strategy import Evidence
from frontrunner.spaces.errors import StoreUnusable
from frontrunner.spaces.model import Model
from frontrunner.spaces.presets import known_device
from frontrunner.spaces.problem import Problem

CLOSE_PARAMETERS = 4.0
CLOSE_HIDDEN = 2.0
"""Largest ratios of parameters and hidden sizes between models of close shape, which also have equally many matrices
in their feed-forward parts. Assumed: the shapes of matrix products, and with them their rates, change slowly."""
OTHER_DRIVER = "of another driver version"
MOST_EVIDENCE = 200
"""Outcomes that are passed on, the nearest problems' first. A Gaussian process takes the cube of their number at each
ask; with this many an ask takes less than half a second."""
MOST_ORIGINS = 4
"""Named in an event."""


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """A campaign of the store with its specification."""

    campaign: Campaign
    spec: CampaignSpec


@dataclass(frozen=True, kw_only=True)
class PriorResults:
    """What is known when a campaign begins.

    `evidence` is for its strategy, the nearest problems' first. `left_out` counts outcomes by the reason for which they
    are not used. `reusable` are results by recipe id that need no probe.
    """

    evidence: tuple[Evidence, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    reusable: Mapping[str, ReusableResult] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether anything was found, to be used or not."""
        return bool(self.evidence or self.left_out or self.reusable)

    def counts(self, *, used: bool) -> dict[str, str | int]:
        """Count what is used and what is not, for an event; `used` is whether the strategy learns from evidence."""
        origins = list(dict.fromkeys(piece.origin for piece in self.evidence))
        found: dict[str, str | int] = {"learned_from": len(self.evidence) if used else 0, "answers": len(self.reusable)}
        if used and origins:
            found["origins"] = ", ".join(origins[:MOST_ORIGINS]) + (", ..." if len(origins) > MOST_ORIGINS else "")
        if not used and self.evidence:
            found["left out: the strategy does not learn from before"] = len(self.evidence)
        return found | {f"left out: {reason}": count for reason, count in sorted(self.left_out.items())}


def prior_results(store: Store, record: Campaign, spec: CampaignSpec) -> PriorResults:
    """Collect what a campaign can use of those created before it, as far as this version can read them."""
    if not (spec.search.warm_start or spec.search.reuse or spec.confirms):
        return PriorResults()
    earlier = []
    for summary in reversed(store.campaigns()):  # the oldest first
        if summary.id >= record.id:
            continue
        campaign = store.campaign(summary.name)
        with suppress(StoreUnusable):
            earlier.append(Earlier(campaign=campaign, spec=stored_spec(campaign)))
    return gather(store, spec, earlier, collect(spec.problem.cluster.device)) if earlier else PriorResults()


def gather(store: Store, spec: CampaignSpec, earlier: Iterable[Earlier], here: Provenance) -> PriorResults:
    """Collect what a campaign of `spec` can use of `earlier` ones, the oldest first.

    `here` is what its probes would run with.
    """
    found: list[tuple[float, Evidence]] = []
    left_out: Counter[str] = Counter()
    reusable: dict[str, ReusableResult] = {}
    for one in earlier:
        known = campaign_results(store, one.campaign.id)
        is_small_self = one.campaign.name == spec.confirms  # made of the same file, for this
        reason = None if is_small_self else why_no_evidence(one, spec)
        is_learned_from = spec.search.warm_start or is_small_self
        for recipe in known:
            if recipe.damage is not None:
                left_out[f"of a record that cannot be read: {recipe.damage}"] += 1
                continue
            result = reusable_result(
                recipe, campaign=one.campaign.name, there=one.spec, spec=spec, here=here, now=store.now()
            )
            if result is not None:
                reusable[recipe.recipe_id] = result  # the newest campaign's counts
            if not is_learned_from:
                continue
            why = reason or _why_not(recipe, one, spec, here)
            if why is None:
                found.append((distance(one.spec.problem, spec.problem), _evidence(recipe, one)))
            else:
                left_out[why] += 1
    found.sort(key=lambda pair: pair[0])  # stable: of one distance the oldest first
    if len(found) > MOST_EVIDENCE:
        left_out[f"further away than the nearest {MOST_EVIDENCE}"] = len(found) - MOST_EVIDENCE
    nearest = tuple(evidence for _, evidence in found[:MOST_EVIDENCE])
    return PriorResults(evidence=nearest, left_out=left_out, reusable=reusable if spec.search.reuse else {})


def why_no_evidence(earlier: Earlier, spec: CampaignSpec) -> str | None:
    """Return why nothing of an earlier campaign is evidence for one of `spec`, or None."""
    there, ours = earlier.spec.problem, spec.problem
    same_cluster = earlier.campaign.figures != "imported" and there.cluster.name == ours.cluster.name
    reasons = {
        "simulated": earlier.campaign.figures == "simulated" and spec.evaluator != "simulated",
        "of another trainer": earlier.campaign.figures == "measured" and earlier.spec.trainer != spec.trainer,
        # The same row would count again for each campaign that looked it up.
        "looked up in a table": earlier.spec.evaluator == "table",
        "of another device": _device(there) != _device(ours),
        "of another precision": there.precision != ours.precision,
        "of a model of another shape": not is_close(there.model, ours.model) and not same_cluster,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def is_close(one: Model, other: Model) -> bool:
    """Return whether two models are of close shape."""
    return (
        one.ffn_matrices == other.ffn_matrices
        and _ratio(one.parameters, other.parameters) <= CLOSE_PARAMETERS
        and _ratio(one.hidden, other.hidden) <= CLOSE_HIDDEN
    )


def _why_not(known: PriorResult, earlier: Earlier, spec: CampaignSpec, here: Provenance) -> str | None:
    """Return why one recipe of a usable campaign is not evidence, or None."""
    if earlier.campaign.figures == "measured":
        different = _other_software(known.provenance, here)
        # A pair's first campaign may run on a machine of its own: its evidence is what the second is for.
        is_own = earlier.campaign.name == spec.confirms and different == OTHER_DRIVER
        if different is not None and not is_own:
            return different
    if isinstance(known.outcomes, Failure):
        lasting = known.outcomes.kind is FailureKind.OUT_OF_MEMORY or _is_same(earlier.spec.problem, spec.problem)
        return None if lasting else "failed for a reason that another problem need not share"
    times = [measured.step_time_s_median for measured in known.outcomes]
    if max(times) > (1 + DISAGREEING) * min(times):
        return f"repeats that differ by more than {100 * DISAGREEING:.0f} %"
    return None


def _other_software(there: Provenance | None, here: Provenance) -> str | None:
    if there is None:
        return "of software that was not recorded"
    if _minor(there) != _minor(here):
        return "of another torch"
    if [there.versions.get(name) for name in GPU_DRIVER_FILES] != [
        here.versions.get(name) for name in GPU_DRIVER_FILES
    ]:
        return OTHER_DRIVER
    return None


def _minor(provenance: Provenance) -> list[str]:
    """Torch's major and minor version."""
    return provenance.versions.get("torch", "").split(".")[:2]


def _device(problem: Problem) -> object:
    """The device by its preset's name, where there is one, and its backend."""
    name = problem.cluster.device
    return (known_device(name) or {}).get("device", name.lower()), problem.cluster.backend


def _is_same(one: Problem, other: Problem) -> bool:
    """Return whether two problems differ in names only: same model, sequence, batch and number of devices."""
    return (
        replace(one.model, name="") == replace(other.model, name="")
        and (one.sequence_length, one.global_batch) == (other.sequence_length, other.global_batch)
        and one.cluster.devices == other.cluster.devices
    )


def distance(one: Problem, other: Problem) -> float:
    """Return how far apart two problems are: doublings of parameters, sequence length and devices, summed."""
    pairs = (
        (one.model.parameters, other.model.parameters),
        (one.sequence_length, other.sequence_length),
        (one.cluster.devices, other.cluster.devices),
    )
    return sum(math.log2(_ratio(*pair)) for pair in pairs)


def _ratio(one: float, other: float) -> float:
    """Return the larger over the smaller."""
    return max(one, other) / min(one, other)


def _evidence(known: PriorResult, earlier: Earlier) -> Evidence:
    imported = earlier.campaign.strategy == IMPORTED
    return Evidence(
        problem=earlier.spec.problem,
        recipe=known.recipe,
        outcome=known.outcomes if isinstance(known.outcomes, Failure) else _pooled(known.outcomes),
        origin=known.run_folder.partition(" row ")[0] if imported else f"campaign {earlier.campaign.name}",
    )


def _pooled(repeats: Sequence[Measurement]) -> Measurement:
    """Combine repeats into one measurement with the steps of all, whose spread shows how far they agree."""
    if len(repeats) == 1:
        return repeats[0]
    together = pool(repeats)
    return replace(
        repeats[-1],
        step_times_s=tuple(time for measured in repeats for time in measured.step_times_s),
        tokens_per_s=together.tokens_per_s,
        model_tflops_per_device=together.model_tflops_per_device,
        hardware_tflops_per_device=together.hardware_tflops_per_device,
        mfu=together.mfu,
        peak_memory_bytes=(together.peak_memory_bytes_max_rank,),
    )
