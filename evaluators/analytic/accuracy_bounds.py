"""Intervals of the formulas' step times, and measurements that are faster than they can explain.

A probe is compared with the least that its recipe needs: the formulas with hosts, latencies, kernel
starts and tile losses at zero and gradients fully overlapped. A faster step is mostly a mistake:
fewer micro-batches than stated, a smaller model, a clock that does not wait for the device.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np

from frontrunner.evaluators.analytic.arrays import Flags, Rows
from frontrunner.evaluators.analytic.codes import (
    ENGINES,
    FRONTRUNNER,
    UNKNOWN,
    coded,
    described,
    known_as,
)
from frontrunner.evaluators.analytic.compared import (
    Accuracy,
    held_back,
    nearest,
    why_not_compared,
)
from frontrunner.evaluators.analytic.machine import (
    ASSUMED,
    BOUNDS,
    CODE_CONSTANTS,
    Machine,
    assumptions,
    fit_of,
)
from frontrunner.evaluators.analytic.parts import mixture
from frontrunner.evaluators.analytic.priors import (
    ALIKE,
    ASSUMED_DEVIATIONS,
    DEVIATIONS,
    NORMAL_95,
    OTHER_DEVICES,
    PER_DOUBLING,
    SHIPPED_SHARE,
    UNSEEN_EXCHANGE,
    Direction,
    deviations_of,
    directions,
    end_changes,
    has_measured_network,
    log_ends,
    of_network,
    scaled_by,
)
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.analytic.training_code import TrainingCode
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.spaces.cluster import Cluster, FittedCode
from frontrunner.spaces.columns import each
from frontrunner.spaces.problem import Problem, SoftwareSettings
from frontrunner.spaces.recipe import DIMENSIONS, Recipe

VALIDATED_DEVICES = frozenset({"a100-40gb", "a100-80gb"})
ROW_ERROR = 0.07
"""Standard deviation of a row's log step time that no constant explains: 0.05 to 0.14 in tables of
A100. That a device is not validated widens its constants, and not this once more.
"""
ROW_ERROR_ROWS = 6
"""Rows that `ROW_ERROR` is worth beside those of a fit; assumed."""
FEWEST_PROBLEMS = 3
"""With fewer, no whole problem is held back of a fit."""
UNJUDGED_ERROR = 0.35
"""The same of choices whose formulas are not validated, but for those of `BOUNDED`; a guess."""
EXPERTS_ERROR, ROUTED_ERROR = 0.15, 0.25
"""The same of mixtures of experts, and of routers that deal tokens unevenly: 98 published steps
with even routing were off by 0.22 together with the constants, and half of 17 with a router by more
than 0.25.
"""
FP8_ERROR = 0.1
"""How far the time in FP8 over that in 16 bits is off, as a logarithm: 0.09 in 50 published
pairs.
"""
COMPILE_SHARE = 0.5
"""Of the gain of compiling that is off; two published pairs took 0.86 of the time, as predicted."""
BOUNDED = frozenset(
    {"compile", "fp8", "mixtures of experts", "expert_parallel", "expert_tensor_parallel"}
)
"""Choices whose formulas are not validated, and that have errors of their own."""
COMPARED = frozenset({"mixtures of experts", "expert_parallel"})
"""Those of them that were compared with published steps (`compared`)."""
MEAN_TO_DEVIATION = (math.pi / 2) ** 0.5
"""A normal's standard deviation over its mean distance."""

VALIDATED = (
    "tensor_parallel", "pipeline_parallel", "micro_batch_seqs", "accumulation", "devices",
    "virtual_stages",
    "schedule", "sharding", "recompute", "sequence_parallel", "replication", "layer_split",
)  # fmt: skip
"""The dimensions whose formulas measurements have validated; of schedules and shardings only those
of `unvalidated`.
"""
VALIDATED_SCHEDULES = ("none", "1f1b", "interleaved-1f1b")
_UNVALIDATED = tuple(
    (one.name, one.field, one.neutral) for one in DIMENSIONS.values() if one.name not in VALIDATED
)

FASTER_THAN_NEEDED = math.exp(NORMAL_95 * math.hypot(DEVIATIONS["matmul"], ROW_ERROR))
"""A step this many times as fast as needed is rejected: beyond 95 % of steps that are all products,
known to a tenth.

Of 1,673 published steps none was above 1.07.
"""
MOST_OVER_SHARE = 1.1
"""The rate of a device's fastest product of any shape over that of large products of training, its
`matmul_share`: 0.803 of the peak over 0.73 on H100 (github.com/stas00/ml-engineering, "Maximum
Achievable Matmul FLOPS").
"""
LARGEST_MATMUL_SHARE = 0.86
"""The largest `matmul_share` of the presets, A100's, for devices that state none."""
SCALES = {"peak_tflops": "matmul"} | {key: name for key, (name, _) in ASSUMED_DEVIATIONS.items()}
"""A cluster's key that takes a common value where it is not given -> the constant that it
scales.
"""
LINKS = {"node_links", "network_links"}
LOSSES = (
    "tile_waves", "reduction_depth", "kernel_s", "node_latency_s", "network_latency_s",
    "ring_node_hop_s",
    "ring_network_hop_s", "crowded_hop_s",
)  # fmt: skip

OTHER_HARDWARE = "the formulas' constants were validated on A100 in 16 bits only"
HOST_UNLIMITED = (
    "the host's memory limits no recipe that offloads: a cluster file does not state its size"
)
HOST_ASSUMED = (
    "links.host_gb_per_s is not given: offloading is estimated with"
    f" {ASSUMED['links.host_gb_per_s']:g} GB/s"
)
UNEVENLY_LOADED = (
    "ranks are taken to get as unequally many tokens for their experts as routers of published"
    " models dealt them; cluster.efficiencies.rank_imbalance states the fullest one's share over"
    " the mean, which `frontrunner show` gives of a probe"
)
NOT_TRAINED = (
    "the built-in trainer has no multi-token prediction (model.mtp_layers): `frontrunner launch`"
    ' needs another one, by evaluator = "command"'
)
COMPILED = (
    "compiled recipes run norms, activation, rotation and, in one piece, the loss as fused kernels"
)
SHARED_CPU = (
    "ranks on one machine's CPU share its cores; the formulas give each its own, so do not trust"
    " their order"
)
MEASURED_TOGETHER = (
    "the figures are those of ranks that are all busy on one CPU; where some wait, as in pipelines,"
    " others are faster"
)


@dataclass(frozen=True, kw_only=True)
class Trust:
    """How far to trust estimates of one problem; `assumed` are cluster keys that take a common
    value.

    `accuracy` is what was measured nearest to the problem, `expected_error` its mean error, and
    `accuracy_in_words` states it, also where nothing was measured. `is_timed` is whether some
    recipe has a step time. Where the device's peak is assumed `why_no_times` states that no figure
    that follows from time is an estimate. `software` are the training codes that are assumed, one
    for each engine, of an unknown one what is stated.
    """

    assumed: tuple[str, ...]
    expected_error: float | None
    accuracy: Accuracy | None
    accuracy_in_words: str
    remarks: tuple[str, ...]
    software: tuple[SoftwareSettings, ...] = field(default=(), repr=False)
    why_no_times: str | None = None
    is_timed: bool = True

    def in_words(self) -> str:
        """Return what a step time of these estimates is worth."""
        if not self.is_timed:
            return self.why_no_times or "nothing is estimated"
        if self.why_no_times is not None:
            return (
                f"where there is a time, {self.accuracy_in_words}; of the others"
                f" {self.why_no_times}"
            )
        return f"estimates, not measurements: {self.accuracy_in_words}"

    def assumed_in_words(self) -> str:
        """Return the keys of the cluster that were not given, with their values:
        `cluster.matmul_share = 0.7`.
        """
        values = {
            key: ASSUMED["peak_tflops" if key.startswith("peak_tflops") else key]
            for key in self.assumed
        }
        return ", ".join(f"cluster.{key} = {value:g}" for key, value in values.items())


def trust_in(recipes: Sequence[Recipe], problem: Problem, errors: Sequence[float | None]) -> Trust:
    """Return how far to trust estimates of these recipes.

    `errors` are the `expected_error` of those at hand, None where a recipe has no time.
    """
    found = each(recipes, lambda recipe: tuple({*unvalidated(recipe, problem)} - COMPARED))
    unknown = [choices for choices in found.tolist() if choices]
    names = ", ".join(sorted({name for choices in unknown for name in choices}))
    offloads = bool(
        each(
            recipes, lambda recipe: recipe.offload != "none" or recipe.activation_offload, np.bool_
        ).any()
    )
    known, engines = (
        [error for error in errors if error is not None],
        set(each(recipes, attrgetter("engine")).tolist()),
    )
    count = "1 estimate is" if len(unknown) == 1 else f"{len(unknown):,} estimates are"
    precision, cluster = problem.precision, problem.cluster
    codes = [coded(problem.software, engine) for engine in ENGINES if engine in engines] or [
        coded(problem.software)
    ]
    fits = [fit_of(cluster, precision, code) for code in codes]
    on_cpu = cluster.backend == "cpu"
    is_measured_together = cluster.matmul_flops(precision) is not None
    remarks = {
        NOT_TRAINED: problem.model.prediction.layers > 0 and problem.software.code is None,
        **dict.fromkeys(_unused_fits(cluster, codes, precision), True),
        **{_used_fit(fit): True for fit in fits if fit is not None},
        OTHER_HARDWARE: None in fits and not is_validated(cluster, precision),
        SHARED_CPU: on_cpu and not is_measured_together,
        MEASURED_TOGETHER: on_cpu and is_measured_together,
        f"{count} less certain: no measurement has validated {names}": (
            bool(unknown) and has_times(problem)
        ),
        COMPILED: bool(each(recipes, attrgetter("compile"), np.bool_).any()),
        UNEVENLY_LOADED: (
            problem.model.mixture is not None
            and problem.model.mixture.routing == "learned"
            and "rank_imbalance" not in cluster.efficiencies
        ),
        HOST_UNLIMITED: offloads,
        HOST_ASSUMED: offloads and cluster.links.host_gb_per_s is None,
    }
    keys = tuple(
        dict.fromkeys(itertools.chain(*(assumed(cluster, precision, code) for code in codes)))
    )
    measured_error = accuracy_of(problem, codes)
    return Trust(
        assumed=keys,
        expected_error=None if measured_error is None or not known else measured_error.error,
        accuracy=measured_error,
        accuracy_in_words=(
            why_not_compared(problem) if measured_error is None else measured_error.in_words()
        ),
        is_timed=bool(known),
        why_no_times=_why_no_times(keys) if None in errors or not known else None,
        remarks=tuple(remark for remark, holds in remarks.items() if holds),
        software=tuple(
            dict.fromkeys(described(problem, engine) for engine in ENGINES if engine in engines)
        ),
    )


def accuracy_of(problem: Problem, codes: Sequence[TrainingCode]) -> Accuracy | None:
    """Return the error measured nearest to the problem; all statements of accuracy are this one.

    It is that of the cluster file's own steps, as far as it has some: of a fit to one of the codes,
    else of the cluster. Otherwise it is that of published steps, or None.
    """
    cluster, precision = problem.cluster, problem.precision
    for fit in (fit_of(cluster, precision, code) for code in codes):
        if fit is not None and (error := getattr(fit.error, precision)) is not None:
            return held_back(error, fit.rows)
    if (own := own_error(cluster, precision)) is not None:
        return held_back(own, None)
    return nearest(problem, {code.name for code in codes} - {UNKNOWN.name})


def _used_fit(fit: FittedCode) -> str:
    nodes = f"{fit.nodes} node{'s' if fit.nodes > 1 else ''}"
    return f"constants are fitted to {fit.rows} steps of {fit.code} on up to {nodes} ({fit.source})"


def _unused_fits(cluster: Cluster, codes: Sequence[TrainingCode], precision: str) -> list[str]:
    """Return a remark for each code without a fit of its own, where the cluster has fits of
    others.
    """
    return [
        f"the cluster file's fit to steps of {' and of '.join(map(_fitted_to, cluster.fitted))} is"
        f" not used for {known_as(code)} in {precision}"
        for code in codes
        if cluster.fitted and fit_of(cluster, precision, code) is None
    ]


def _fitted_to(fit: FittedCode) -> str:
    return (
        f"{fit.code} in"
        f" {', '.join(name for name, error in vars(fit.error).items() if error is not None)}"
    )


def _why_no_times(keys: Sequence[str]) -> str | None:
    peak = next((key for key in keys if key.startswith("peak_tflops")), None)
    if peak is None:
        return None
    return (
        "no time or rate here is an estimate, at most the recipes' order means something:"
        f" cluster.{peak} is not given (assumed: {ASSUMED['peak_tflops']:g})"
    )


def own_error(cluster: Cluster, precision: str) -> float | None:
    """Return the error that a cluster states for its own measured rows while they were held back,
    or None.
    """
    error: float | None = getattr(cluster.expected_error, precision)
    return error


def is_validated(cluster: Cluster, precision: str) -> bool:
    """Return whether the formulas' constants were validated on the cluster's device and this
    precision.
    """
    own = own_error(cluster, precision) is not None
    return own or (cluster.device in VALIDATED_DEVICES and precision != "fp32")


def prior_deviations(cluster: Cluster, precision: str, share: float = 1.0) -> dict[str, float]:
    """Return the prior deviation of each of the formulas' constants on a cluster, whatever was
    fitted to its codes; `share` is that of `deviations_of`.
    """
    return deviations_of(
        cluster,
        assumed(cluster, precision),
        is_validated=is_validated(cluster, precision),
        share=share,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Unknown:
    """What is not known of the step times of some recipes, as logarithms.

    `changes` are those of `priors.end_changes`, which recipes have in common. `row` is the
    deviation of a row that no constant explains, `choices` the squared deviations of what recipes
    have alike where they make the same choices, a row of the array for each, and `codes` the
    squared 95 % ends between the training codes that an unknown one may be.
    """

    changes: Rows
    row: float
    choices: Rows
    codes: tuple[Rows | float, Rows | float]


def unknown_of(
    cluster: Cluster, precision: str, code: TrainingCode, work: Workload, unjudged: Flags
) -> Unknown:
    """Return what is not known of the rows' step times.

    It comes from the constants, and from what these do not explain; `unjudged` rows have choices
    whose formulas are not validated. Of constants that were fitted to the code's steps the
    posterior is left, and a row is as far off as those that were held back. The error that a
    cluster states of its own rows holds all that it states or they feel.
    """
    fit, machine = fit_of(cluster, precision, code), Machine.of(cluster, precision, code)
    share = 1.0 if code.stands_for else SHIPPED_SHARE  # of a code that nobody compared
    deviations: dict[str, float | Rows] = {**prior_deviations(cluster, precision, share)}
    row, own = ROW_ERROR, own_error(cluster, precision)
    waits: list[Direction] = [{"exchange_s": UNSEEN_EXCHANGE}]
    if fit is not None:
        row = fitted_row_error(fit, precision)
        waits = []
    elif own is not None:
        row, guessed = MEAN_TO_DEVIATION * own, scaled_by(assumed(cluster, precision))
        deviations = {name: deviations[name] for name in guessed}
        waits = []
    nodes = work.degrees.devices / cluster.devices_per_node
    if network := deviations.get("network_links"):
        deviations["network_links"] = grown(cluster, precision, network, nodes)
    if code.stands_for:  # whose host and overlap nobody has measured either
        own_constants = [name for name in CODE_CONSTANTS if name in deviations]
        deviations |= {name: OTHER_DEVICES * deviations[name] for name in own_constants}
    experts_part = work.model.mixture
    is_routed = experts_part is not None and mixture.deviation(experts_part) > 0
    is_uneven = is_routed and machine.efficiencies.rank_imbalance is None
    experts = (experts_part is not None) * np.hypot(EXPERTS_ERROR, is_uneven * ROUTED_ERROR)
    choices = np.broadcast_arrays(_gains(machine, work), unjudged * UNJUDGED_ERROR, experts)
    beyond = [] if fit is None else [of_network(_beyond(fit, nodes, deviations["network_links"]))]
    independent = [*directions(deviations, fit), *beyond, *waits]
    return Unknown(
        changes=end_changes(cluster, precision, code, work, independent),
        row=row,
        choices=np.stack(choices) ** 2,
        codes=(0.0, 0.0) if _knows_code(fit) else _between_codes(cluster, precision, code, work),
    )


def log_bounds(
    cluster: Cluster, precision: str, code: TrainingCode, work: Workload, unjudged: Flags
) -> tuple[Rows, Rows]:
    """Return how far the 95 % bounds of each row's step time are below and above its estimate, as
    logarithms.

    No step is faster than the matrix products that it needs (`least_step_s`).
    """
    unknown = unknown_of(cluster, precision, code, work, unjudged)
    below, above = log_ends(unknown.changes)
    others = NORMAL_95**2 * (unknown.row**2 + unknown.choices.sum(axis=0))
    if (
        cluster.backend == "cpu" and cluster.matmul_flops(precision) is None
    ):  # ranks may share a core
        above = np.hypot(above, np.log(np.minimum(work.degrees.devices, cluster.devices_per_node)))
    faster, slower = unknown.codes
    below = np.sqrt(below**2 + others + faster)
    if cluster.backend != "cpu":
        expected_s = step_time(Machine.of(cluster, precision, code), work).total
        least_s = least_step_s(cluster, precision, code, work)
        below = np.minimum(below, np.log(np.maximum(expected_s / least_s, 1.0)))
    return below, np.sqrt(above**2 + others + slower)


def log_gain_over_first(
    cluster: Cluster, precision: str, code: TrainingCode, work: Workload, unjudged: Flags
) -> Rows:
    """Return how much faster than estimated each row may be against the first one, as logarithms.

    It is the 95 % end. What changes both rows alike does not change their order: only differences
    count.
    """
    unknown = unknown_of(cluster, precision, code, work, unjudged)
    closer, _ = log_ends(unknown.changes - unknown.changes[:, :, :1])
    choices = np.abs(unknown.choices - unknown.choices[:, :1]).sum(axis=0)
    found: Rows = np.sqrt(closer**2 + NORMAL_95**2 * (2 * unknown.row**2 + choices))
    return found


def most_matmul_share(cluster: Cluster) -> float:
    """Return the share of the device's peak that matrix products plausibly reach at most."""
    share = cluster.matmul_share or LARGEST_MATMUL_SHARE
    return min(MOST_OVER_SHARE * share, 1.0)


def least_step_s(cluster: Cluster, precision: str, code: TrainingCode, work: Workload) -> Rows:
    """Return the time of each row's matrix products at the most that they plausibly reach.

    Products that are computed a second time count, and so does the pipeline's bubble; data move in
    no time.
    """
    machine = Machine.of(cluster, precision, code)
    usual = cluster.matmul_share or ASSUMED["matmul_share"]
    faster = most_matmul_share(cluster) / usual
    if cluster.matmul_flops(precision) is not None:
        faster = MOST_OVER_SHARE
    ideal = replace(
        at_best(machine),
        matmul_flops=machine.matmul_flops * faster,
        fp8_flops=machine.fp8_flops * faster,
        memory_bytes_per_s=math.inf,
        pair_bytes_per_s=math.inf,
        node_bytes_per_s=math.inf,
        network_bytes_per_s_per_node=math.inf,
        host_bytes_per_s=math.inf,
    )
    return step_time(ideal, work).total


def fitted_row_error(fit: FittedCode, precision: str) -> float:
    """Return the deviation of a row's log step time that no constant explains, by rows that were
    held back.

    It is that of a normal whose variance has an inverse chi-squared prior: few rows, or many of one
    problem, say little of it, and leave it wide.
    """
    off = MEAN_TO_DEVIATION * (getattr(fit.error, precision) or 0.0)
    rows = fit.rows / (1 + ALIKE * (fit.rows / fit.problems - 1))
    return math.sqrt((rows * off**2 + ROW_ERROR_ROWS * ROW_ERROR**2) / (rows + ROW_ERROR_ROWS - 2))


def known_network(
    known: float | Rows, unseen: float | Rows, nodes: float | Rows, seen: float
) -> Rows:
    """Return the deviation of a network that is `known` on up to `seen` nodes, and on twice as many
    as if unseen.
    """
    beyond = np.clip(np.log2(nodes / max(seen, 1.0)), 0.0, 1.0)
    found: Rows = known + beyond * (unseen - known)
    return found


def _beyond(fit: FittedCode, nodes: Rows, unseen: float | Rows) -> Rows:
    """Return what the network's deviation has besides the posterior's, on more nodes than the fit's
    rows had.
    """
    known = next((one.deviation for one in fit.constants if one.name == "network_links"), None)
    if known is None:
        return np.zeros(1)
    found: Rows = np.sqrt(
        known_network(known, np.maximum(unseen, known), nodes, fit.nodes) ** 2 - known**2
    )
    return found


def _knows_code(fit: FittedCode | None) -> bool:
    """Return whether whole problems that were held back showed how far an unknown code is off."""
    return fit is not None and fit.problems >= FEWEST_PROBLEMS


def _gains(machine: Machine, work: Workload) -> Rows:
    """Return how far the gains of compiling and of products in 8 bits are off, as the deviation of
    a logarithm.
    """
    found: Rows = np.where(work.choices.fp8 > 0, FP8_ERROR, 0.0)
    if work.choices.compile.any():
        eager = np.zeros_like(work.choices.compile)
        choices = replace(work.choices, fp8=np.zeros_like(work.choices.fp8))
        plain = replace(work, choices=replace(choices, compile=eager))
        compiled = replace(work, choices=choices)
        gain = np.log(step_time(machine, plain).total / step_time(machine, compiled).total)
        found = np.sqrt(found**2 + (COMPILE_SHARE * gain) ** 2)
    return found


def _between_codes(
    cluster: Cluster, precision: str, code: TrainingCode, work: Workload
) -> tuple[Rows, Rows]:
    """Return the squared 95 % bounds, as logarithms, of the step times of the codes that an unknown
    one stands for.
    """
    bare = replace(cluster, fitted=())
    times = [
        np.log(step_time(Machine.of(bare, precision, one), work).total)
        for one in (code, *code.stands_for)
    ]
    off = np.stack(times[1:] or times) - times[0]
    # Each side is half of a normal: the mean over all codes is half its square.
    squares = (2 * np.mean(side**2, axis=0) for side in (np.minimum(off, 0), np.maximum(off, 0)))
    faster, slower = (NORMAL_95**2 * square for square in squares)
    return faster, slower


def grown(cluster: Cluster, precision: str, deviation: float | Rows, nodes: float | Rows) -> Rows:
    """Return a deviation of the network on so many times the nodes; the same where the network is
    known.
    """
    is_known = is_validated(cluster, precision) or has_measured_network(cluster)
    doublings = 0.0 if is_known else np.log2(np.maximum(nodes, 1))
    found: Rows = np.hypot(deviation, PER_DOUBLING * np.sqrt(doublings))
    return found


def mean_error(below: float, above: float) -> float:
    """Return the mean of |measured / estimated step time - 1|, a lognormal of unlike halves with
    these 95 % bounds.
    """
    faster, slower = (statistics.NormalDist(sigma=bound / NORMAL_95) for bound in (below, above))
    more = math.exp(slower.variance / 2) * slower.cdf(slower.variance)
    return more - math.exp(faster.variance / 2) * faster.cdf(-faster.variance)


def assumed(cluster: Cluster, precision: str, code: TrainingCode | None = None) -> tuple[str, ...]:
    """Return the cluster's keys that take a common value, but for those whose error a fit to steps
    holds.

    It is that of a constant that was fitted to steps of `code`, or an error that the
    cluster states.
    """
    keys, fit = assumptions(cluster, precision), code and fit_of(cluster, precision, code)
    if fit:
        known = {one.name for one in fit.constants}
        return tuple(
            key for key in keys if SCALES.get(key.partition(".")[0], SCALES.get(key)) not in known
        )
    own = own_error(cluster, precision)
    return keys if own is None else tuple(key for key in keys if key.startswith("links.nic"))


def unvalidated(recipe: Recipe, problem: Problem) -> tuple[str, ...]:
    """Return the choices of a recipe, and of its problem, whose formulas no measurement of step
    times has validated.
    """
    found = ["mixtures of experts"] if problem.model.mixture else []
    found += [name for name, key, neutral in _UNVALIDATED if getattr(recipe, key) != neutral]
    found += [one.name for one in recipe.custom]
    if recipe.schedule not in VALIDATED_SCHEDULES:
        found.append(f"schedule {recipe.schedule}")
    if not {1, recipe.copies}.issuperset(recipe.sharding.degrees):
        found.append("sharding over some of the replicas")
    return tuple(found)


def has_times(problem: Problem, engine: str = "torch") -> bool:
    """Return whether step times are estimates; without the device's peak at most their order means
    something.
    """
    code = coded(problem.software, engine)
    keys = assumed(problem.cluster, problem.precision, code)
    return not any(key.startswith("peak_tflops") for key in keys)


def why_too_fast(recipe: Recipe, problem: Problem, step_time_s: float) -> str | None:
    """Return why a median step of `step_time_s` cannot be true; None also where the formulas cannot
    decide.

    Those are CPUs, fp32, clusters that omit a figure or state constants of their own but their
    links', and unvalidated choices.
    """
    cluster = problem.cluster
    has_fitted = not (BOUNDS.keys() - LINKS).isdisjoint(cluster.efficiencies)
    blind = cluster.backend == "cpu" or problem.precision == "fp32" or has_fitted
    if blind or unvalidated(recipe, problem) or assumptions(cluster, problem.precision):
        return None
    machine = at_best(Machine.of(replace(cluster, fitted=()), problem.precision, FRONTRUNNER))
    least_s = float(step_time(machine, Workload.of([recipe], problem)).total[0])
    if step_time_s * FASTER_THAN_NEEDED >= least_s:
        return None
    took = (
        f"the median step took {step_time_s:.4g} s, and the formulas give it at least"
        f" {least_s:.4g} s"
    )
    return f"{took}, {least_s / step_time_s:.2f} times as long"


def at_best(machine: Machine) -> Machine:
    """Return the machine without what makes one training code, host or library slower than
    another.
    """
    code = machine.code.changed(
        host_layer_s=0.0,
        host_collective_s=0.0,
        gradient_overlap=1.0,
        exchange_s=0.0,
        cuda_graphs="step",
        kernels__norm="fused",
        kernels__gate="fused",
        kernels__rotary="fused",
        kernels__softmax="fused",
        kernels__permutation="fused",
        kernels__flash=2,
        kernels__dropout=False,
        gradients__wide=False,
        gradients__reduced_wide=False,
        gradients__reduced_whole=False,
        gradients__overlaps_unsharded=True,
        gradients__overlaps_scattered=True,
        pipeline__overlaps_interleaved=True,
        products__overlaps_tensor_traffic=True,
        products__fuses_accumulation=True,
        experts__overlaps_dispatch=True,
        experts__dispatches_once=True,
    )
    efficiencies = replace(machine.efficiencies, **dict.fromkeys(LOSSES, 0.0))
    efficiencies = replace(efficiencies, fused_attention_forward=1.0, fused_attention_backward=1.0)
    return replace(
        machine,
        code=code,
        efficiencies=efficiencies,
        attention_scale=max(1.0, machine.attention_scale),
    )
