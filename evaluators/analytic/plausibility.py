"""Measurements that are faster than the formulas can explain.

A probe is compared with what its recipe needs at least: the formulas without what codes, hosts and libraries differ in.
Hosts take no time, kernels start at once and are fused, attention runs at the rate of other products, which fill their
tiles, messages have no latency, gradients are narrow and overlap with computation as far as it lasts. The shares of
bandwidths stay as fitted, hence the margin of `FASTER_THAN_NEEDED`.

Steps are slow for many reasons, and no slow one is rejected. A step that is faster than that has few, and most are
mistakes: fewer micro-batches than the recipe states, a smaller model, a clock that does not wait for the device.
"""

from __future__ import annotations

from dataclasses import replace

from frontrunner.evaluators.analytic.accuracy_bounds import EXPECTED_ERROR, unvalidated
from frontrunner.evaluators.analytic.machine import Machine, assumptions
from frontrunner.evaluators.analytic.software import FRONTRUNNER
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

FASTER_THAN_NEEDED = 1 + 2 * EXPECTED_ERROR
"""A step this many times as fast as the recipe needs at least is rejected. Of 1,673 published steps on A100 and H100
the closest was 1.07 times as fast (docs/measurements.md); noise makes steps slower, not faster."""
LOSSES = (
    "tile_waves", "reduction_depth", "kernel_s", "node_latency_s", "network_latency_s", "ring_node_hop_s",
    "ring_network_hop_s",
)  # fmt: skip
"""The efficiencies that cost nothing at best."""


def why_too_fast(recipe: Recipe, problem: Problem, step_time_s: float) -> str | None:
    """Return why a median step of `step_time_s` cannot be true, or None.

    None wherever the formulas cannot decide: on a CPU, whose ranks share its cores, in fp32, where the cluster omits a
    figure or states constants of its own, which are means and no bounds, and for choices that no measurement has
    validated.
    """
    cluster = problem.cluster
    blind = cluster.backend == "cpu" or problem.precision == "fp32" or bool(cluster.efficiencies)
    if blind or unvalidated(recipe) or assumptions(cluster, problem.precision):
        return None
    machine = at_best(Machine.of(cluster, problem.precision, FRONTRUNNER))
    least_s = float(step_time(machine, Workload.of([recipe], problem)).total[0])
    if step_time_s * FASTER_THAN_NEEDED >= least_s:
        return None
    return (
        f"the median step took {step_time_s:.4g} s, and the formulas give it at least {least_s:.4g} s, "
        f"{least_s / step_time_s:.2f} times as long"
    )


def at_best(machine: Machine) -> Machine:
    """Return the machine without what makes one training code, host or library slower than another."""
    software = replace(
        machine.software,
        wide_gradients=False,
        fused_kernels=True,
        dropout=False,
        overlaps_unsharded=True,
        gradient_overlap=1.0,
        host_layer_s=0.0,
        host_collective_s=0.0,
    )
    efficiencies = replace(machine.efficiencies, **dict.fromkeys(LOSSES, 0.0))
    efficiencies = replace(efficiencies, fused_attention_forward=1.0, fused_attention_backward=1.0)
    return replace(machine, software=software, efficiencies=efficiencies, attention_scale=1.0)
