"""The outcome of a probe: a measurement, or a failure of a kind whose policy decides what happens
next.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, TypeVar

STABLE_SPREAD = 0.05
"""Relative spread of step times above which a measurement is noisy."""
SLOW_CLOCK = 0.9
"""Assumed: below this share of its peers' clock a device holds them up; boost clocks of one model
differ less.
"""
LARGEST = 2**63 - 1
RATES = ("tokens_per_s", "model_tflops_per_device", "hardware_tflops_per_device")


class FailureKind(StrEnum):
    """Why there is no measurement."""

    OUT_OF_MEMORY = "out-of-memory"
    NOT_FINITE = "not-finite"
    HUNG = "hung"
    TOO_SLOW = "too-slow"
    CRASHED = "crashed"
    LOST = "lost"
    IMPLAUSIBLE = "implausible"
    ILLEGAL_FOR_ENGINE = "illegal-for-engine"
    NO_STEPS_FOUND = "no-steps-found"
    TOO_FEW_STEPS = "too-few-steps"


@dataclass(frozen=True, kw_only=True)
class FailurePolicy:
    """Policy for a kind of failure.

    `max_attempts` counts the first try. Where the machine, not the recipe, was at fault,
    `counts_against_recipe` is False: such attempts do not teach the strategy.
    """

    max_attempts: int
    counts_against_recipe: bool
    meaning: str


POLICIES: dict[FailureKind, FailurePolicy] = {
    kind: FailurePolicy(
        max_attempts=most, counts_against_recipe=kind is not FailureKind.LOST, meaning=meaning
    )
    for kind, most, meaning in (
        (FailureKind.OUT_OF_MEMORY, 1, "a rank asked for more memory than its device has"),
        (FailureKind.NOT_FINITE, 1, "the loss or the gradient became infinite or NaN"),
        (FailureKind.HUNG, 2, "the ranks stopped stepping, and were killed"),
        (FailureKind.TOO_SLOW, 1, "the ranks went on stepping past the probe's deadline"),
        (FailureKind.CRASHED, 2, "a rank ended with an error"),
        (
            FailureKind.LOST,
            4,
            "the ranks vanished without a word: a killed driver, node or allocation",
        ),
        (FailureKind.IMPLAUSIBLE, 1, "the numbers cannot be true; kept as evidence, never ranked"),
        (FailureKind.ILLEGAL_FOR_ENGINE, 1, "the engine refused the recipe before the first step"),
        (FailureKind.NO_STEPS_FOUND, 1, "the command ended well, and its log shows no step"),
        (FailureKind.TOO_FEW_STEPS, 1, "the command ended well before enough steps were measured"),
    )
}


class ProbeEnding(StrEnum):
    """Why a probe measured no further step."""

    KNOWN = "known"  # to the precision that the campaign requires
    SLOWER = "slower"  # clearly, than the campaign's best recipe; its figures are rough
    NOISY = "noisy"  # so much that the steps left would not have made its time known
    LIMIT = "limit"  # of steps or time
    FIXED = "fixed"  # number of steps


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """What a probe's ranks recorded beside their steps: one entry per rank, None where it is
    unknown.

    `idle_memory_bytes` is what a rank on a CPU has resident whatever its recipe: interpreter,
    libraries, mapped files. `memory_above_idle_bytes_max_rank` is the largest difference of a
    rank's peak and this; measurements of earlier versions lack it. Retries are the allocator's
    after the warm-up: it gave cached memory back and waited for the device. Clock, power and
    temperature are the worst of two readings, after the warm-up and at the end; `slowed_by` names
    what held the clock down then, "" is nothing. `cpus` are the processors that a rank may use,
    `attention` is its kernel, and
    `allocator_settings` are those in force, "" where all are torch's defaults.

    From the last step of the warm-up on, processes of others ran for `foreign_cores` seconds per
    second on a rank's processors, and for `foreign_share` of the time the rank was ready and waited
    while they did. `foreign_processes` are the most active of them, `device_processes` those seen
    on the rank's device before, between and after its steps; "" is none. Above `foreign_limit`, a
    share, the measurement is marked.

    The imbalances have one entry per step, warm-up included: the rows of the fullest expert over
    the mean, and those of the rank whose experts got most, as means over layers; `routing` is the
    model's, where it has experts.
    """

    idle_memory_bytes: tuple[int, ...] | None = None
    memory_above_idle_bytes_max_rank: int | None = None
    build_peak_memory_bytes: tuple[int, ...] | None = None
    allocator_retries: tuple[int, ...] | None = None
    allocator_settings: tuple[str, ...] | None = None
    clock_mhz: tuple[float, ...] | None = None
    power_w: tuple[float, ...] | None = None
    temperature_c: tuple[float, ...] | None = None
    slowed_by: tuple[str, ...] | None = None
    cpus: tuple[str, ...] | None = None
    foreign_cores: tuple[float, ...] | None = None
    foreign_share: tuple[float, ...] | None = None
    foreign_processes: tuple[str, ...] | None = None
    device_processes: tuple[str, ...] | None = None
    foreign_limit: float | None = None
    attention: str | None = None
    versions: tuple[str, ...] = ()
    routing: str | None = None
    expert_imbalance: tuple[float, ...] | None = None
    rank_imbalance: tuple[float, ...] | None = None

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the times may not be the recipe's own, as clauses; empty where nothing speaks against
        them.
        """
        found = []
        if retries := sum(self.allocator_retries or ()):
            found.append(
                f"memory ran short while steps were measured (allocator retries: {retries})"
            )
        return (*found, *self.disturbances, *(why for _, why in self._slow_ranks()))

    @property
    def disturbances(self) -> tuple[str, ...]:
        """What processes of others held up: of the processors, above `foreign_limit`, and of the
        devices.
        """
        return tuple(
            clauses[0][1] + (f" (the worst of {len(clauses)} ranks)" if len(clauses) > 1 else "")
            for clauses in self._disturbed_ranks()
            if clauses
        )

    def _disturbed_ranks(self) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        """Return what others held up, by rank, the worst first: by its processors, and by its
        device.
        """
        if self.foreign_limit is None or self.foreign_limit >= 1:
            return [], []
        shares, names = self.foreign_share or (), self.foreign_processes or ()
        waited = [
            (
                rank,
                (
                    f"rank {rank} waited {100 * share:.0f} % of the time for processors that other"
                    " processes used"
                ),
            )
            for rank, share in sorted(enumerate(shares), key=lambda one: -one[1])
            if share > self.foreign_limit
        ]
        waited = [(rank, why + (f": {names[rank]}" if names[rank] else "")) for rank, why in waited]
        users = enumerate(self.device_processes or ())
        return waited, [
            (rank, f"rank {rank}'s device was used by others: {name}")
            for rank, name in users
            if name
        ]

    def _slow_ranks(self) -> Iterator[tuple[int, str]]:
        for rank, reason in enumerate(self.slowed_by or ()):
            if reason:
                yield rank, f"rank {rank}'s device was slowed down ({reason})"
        usual = statistics.median(self.clock_mhz) if self.clock_mhz else 0.0
        for rank, clock in enumerate(self.clock_mhz or ()):
            if clock < SLOW_CLOCK * usual:
                yield (
                    rank,
                    f"rank {rank}'s clock was {clock:.0f} MHz, the ranks' median {usual:.0f}",
                )

    def slow_nodes(self, ranks_per_node: int) -> dict[int, str]:
        """Return what held the others up, by the number of the node on which it was."""
        found: dict[int, str] = {}
        for rank, why in itertools.chain(*self._disturbed_ranks(), self._slow_ranks()):
            found.setdefault(rank // ranks_per_node, why)
        return found


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Measurement of one probe, warm-up excluded.

    Rates follow from the median step. TFLOPS are 1e12 floating-point operations per second and
    device; model FLOPs leave recompute out, hardware FLOPs count it (formulas in
    `frontrunner.spaces.model`). `mfu` is model FLOPs over the device's peak, None without a stated
    peak. `losses` has one entry per step, warm-up included.

    `peak_memory_bytes` has the peak of the fullest rank of each pipeline stage, the first stage
    first: the allocator's peak on accelerators, the resident set's on CPU. It has a single entry,
    that of the fullest rank of all, where no more is known, and 0 where nothing is. Measurements of
    earlier versions have one entry per rank.
    """

    step_times_s: tuple[float, ...]
    tokens_per_step: int
    tokens_per_s: float
    model_tflops_per_device: float
    hardware_tflops_per_device: float
    mfu: float | None
    peak_memory_bytes: tuple[int, ...]
    losses: tuple[float, ...]
    node_seconds: float
    build_time_s: float
    first_step_time_s: float
    ended: ProbeEnding | None = None
    telemetry: Telemetry | None = None

    @property
    def step_time_s_median(self) -> float:
        """Median of the measured steps."""
        return statistics.median(self.step_times_s)

    @property
    def step_time_spread(self) -> float:
        """Standard deviation of the measured steps over their median; 0 for a single step."""
        if len(self.step_times_s) < 2:
            return 0.0
        return statistics.stdev(self.step_times_s) / self.step_time_s_median

    @property
    def peak_memory_bytes_max_rank(self) -> int | None:
        """Peak memory of the fullest rank, None where it is unknown."""
        return max(self.peak_memory_bytes) or None

    @property
    def doubts(self) -> tuple[str, ...]:
        """See `Telemetry`."""
        return () if self.telemetry is None else self.telemetry.doubts

    @property
    def is_disturbed(self) -> bool:
        """Whether processes of others held it up: see `Telemetry`."""
        return self.telemetry is not None and bool(self.telemetry.disturbances)

    @property
    def is_full(self) -> bool:
        """Whether nothing makes its figures rough: neither processes of others nor an early end."""
        return self.ended is not ProbeEnding.SLOWER and not self.is_disturbed

    @property
    def memory_above_idle_bytes_max_rank(self) -> int | None:
        """Most memory that a rank had beyond `idle_memory_bytes`, which ratios of recipes compare;
        None if unknown.
        """
        if self.telemetry is None:
            return None
        recorded = self.telemetry.memory_above_idle_bytes_max_rank
        if recorded is not None:
            return recorded
        # An earlier version stored the peak of each rank.
        return memory_above_idle(self.peak_memory_bytes, self.telemetry.idle_memory_bytes)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a probe has no measurement; `log_tail` ends the log, in `log_path`, of the rank that
    failed first.
    """

    kind: FailureKind
    message: str
    log_tail: str = ""
    log_path: str | None = None
    node_seconds: float = 0.0

    @property
    def policy(self) -> FailurePolicy:
        """The policy for this kind."""
        return POLICIES[self.kind]


Outcome = Measurement | Failure


def memory_above_idle(
    peak_memory_bytes: Sequence[int], idle_memory_bytes: Sequence[int] | None
) -> int | None:
    """Return the largest difference of a rank's peak and its idle memory, at least 0.

    None where the idle memory is unknown, or the peak of each rank is.
    """
    if not idle_memory_bytes or len(idle_memory_bytes) != len(peak_memory_bytes):
        return None
    pairs = zip(peak_memory_bytes, idle_memory_bytes, strict=True)
    return max(0, *(peak - idle for peak, idle in pairs))


def implausibility(
    measurement: Measurement,
    reached_flops: float,
    peak_flops: float | None,
    peaks_of_ranks: Sequence[int] | None,
) -> str | None:
    """Return why the numbers cannot be true, None if they can.

    Args:
        measurement: the measurement with its steps.
        reached_flops: the least that a device executed in a second.
        peak_flops: the most that a device can execute in a second, None where it is not stated.
        peaks_of_ranks: peak memory of each rank in bytes, None where it is not known.
    """
    if not measurement.step_times_s or not all(
        math.isfinite(t) and t > 0 for t in measurement.step_times_s
    ):
        return f"step times {list(measurement.step_times_s)} s are not all positive"
    if peaks_of_ranks is not None and (not peaks_of_ranks or min(peaks_of_ranks) <= 0):
        return f"peak memory {list(peaks_of_ranks)} bytes is not positive on every rank"
    if peak_flops is not None and reached_flops > peak_flops:
        return (
            f"{reached_flops / 1e12:.4g} TFLOPS a device is above the device's peak of"
            f" {peak_flops / 1e12:.4g}"
        )
    return None


@dataclass(frozen=True, kw_only=True)
class RecipeStats:
    """A recipe's measurements in one campaign, pooled over its `repeats`: the `undisturbed` ones.

    Times and rates are medians of the repeats' own values; the spread is the standard deviation of
    all measured steps over that median; memory is the most of any rank in any repeat, None where
    none states it.
    """

    repeats: int
    step_time_s_median: float
    step_time_spread: float
    tokens_per_s: float
    model_tflops_per_device: float
    hardware_tflops_per_device: float
    mfu: float | None
    peak_memory_bytes_max_rank: int | None

    @property
    def is_noisy(self) -> bool:
        """Whether the spread is above `STABLE_SPREAD`."""
        return self.step_time_spread > STABLE_SPREAD


class MayBeDisturbed(Protocol):
    """A measurement, or an attempt that ended with one."""

    @property
    def is_disturbed(self) -> bool:
        """See `Measurement`."""


D = TypeVar("D", bound=MayBeDisturbed)


def undisturbed(measurements: Sequence[D]) -> Sequence[D]:
    """Return those of a recipe's measurements that count, in rankings, searches, exports and fits
    alike.

    They are the ones that processes of others did not disturb; all where they disturbed each.
    """
    return [one for one in measurements if not one.is_disturbed] or measurements


def doubts_of(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """Return why the figures that these measurements pool to may not be their recipe's; the first
    disturbance only.
    """
    found, disturbed = list[str](), False
    for one in undisturbed(measurements):
        own = one.telemetry.disturbances if one.telemetry is not None else ()
        found += [why for why in one.doubts if not (disturbed and why in own)]
        disturbed = disturbed or bool(own)
    return tuple(dict.fromkeys(found))


def pool(measurements: Sequence[Measurement]) -> RecipeStats:
    """Pool one or more measurements of one recipe."""
    peak_memory_bytes = max(max(m.peak_memory_bytes) for m in measurements)
    measurements = undisturbed(measurements)
    steps = [time for measurement in measurements for time in measurement.step_times_s]
    median = statistics.median(m.step_time_s_median for m in measurements)
    utilizations = [m.mfu for m in measurements if m.mfu is not None and math.isfinite(m.mfu)]
    return RecipeStats(
        repeats=len(measurements),
        step_time_s_median=median,
        step_time_spread=statistics.stdev(steps) / median if len(steps) > 1 else 0.0,
        **{name: statistics.median(getattr(m, name) for m in measurements) for name in RATES},
        mfu=statistics.median(utilizations) if utilizations else None,
        peak_memory_bytes_max_rank=peak_memory_bytes or None,
    )


def combined(measurements: Sequence[Measurement]) -> Measurement:
    """Combine measurements of one recipe into one with the pooled rates and peak, and the steps of
    all that count.
    """
    if len(measurements) == 1:
        return measurements[0]
    together, counting = pool(measurements), undisturbed(measurements)
    return replace(
        counting[-1],
        step_times_s=tuple(time for measured in counting for time in measured.step_times_s),
        peak_memory_bytes=(together.peak_memory_bytes_max_rank or 0,),
        **{name: getattr(together, name) for name in (*RATES, "mfu")},
    )


def refuse_unrankable(outcome: Outcome) -> None:
    """Raise ValueError where a number that the store ranks or charges by is missing or not
    finite.
    """
    names: tuple[str, ...] = ("node_seconds",)
    if isinstance(outcome, Measurement):
        if not (
            outcome.peak_memory_bytes and outcome.step_times_s and min(outcome.step_times_s) > 0
        ):
            raise ValueError(
                f"expected positive step times and at least one peak of memory, not {outcome}"
            )
        names += ("step_times_s", *RATES)
    for name in names:
        value = getattr(outcome, name)
        if not all(map(math.isfinite, value if isinstance(value, tuple) else (value,))):
            raise ValueError(f"{name} = {value!r}: expected a finite number")


def refuse_unstorable(outcome: Outcome) -> None:
    """Raise ValueError for an outcome that the store would not hold, or not unchanged."""
    refuse_unrankable(outcome)
    if isinstance(outcome, Failure):
        return
    side_figures = (
        *outcome.losses,
        outcome.build_time_s,
        outcome.first_step_time_s,
        outcome.mfu or 0.0,
    )
    if not all(map(math.isfinite, side_figures)):
        raise ValueError("a loss, a time or the MFU is not finite")
    if (
        max(outcome.tokens_per_step, *outcome.peak_memory_bytes) > LARGEST
        or min(outcome.peak_memory_bytes) < 0
    ):
        raise ValueError(f"tokens of a step or a rank's memory are not in 0..{LARGEST}")
