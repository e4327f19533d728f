"""The forms of parallelism that a person would think of, from the plainest on, each as a small space of recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from frontrunner.evaluators.analytic.estimates import Estimate, EstimateTable, plan, why_nothing_legal
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import RECOMPUTES, Choice
from frontrunner.spaces.space import Space

LARGEST_MICRO_BATCH = 8
LOSS_CHUNKS, TILES = 8, 4
"""What tiling is tried with; more pieces save little more, since the rest of a layer stays."""

ALONE = "one copy"
MARGIN = 0.05
"""Of a device's memory, left free by what is advised where a form has such a recipe; assumed."""

PLAIN = "plain data parallel"
ZERO = {"ZeRO-1": "zero-1", "ZeRO-2": "zero-2", "ZeRO-3 (FSDP)": "zero-3"}
HYBRID = "ZeRO-3 within nodes"
TENSOR = "tensor parallel"
CONTEXT = "context parallel"
PIPELINE = "pipeline"
THREE_D = "tensor x pipeline (3D)"
TILED_ALONE = "one copy, tiled"
TILED = "tiled ZeRO-3"
OFFLOAD = "offloaded ZeRO-3"


@dataclass(frozen=True, kw_only=True)
class Form:
    """What the formulas tell of one form on `devices`: one recipe, and how many there are.

    It is the fastest that leaves `MARGIN` of the memory free, else the fastest that fits, else the smallest.

    `choices` has a value for each dimension of a space that names this recipe. Where there is none `reason` says why.
    """

    name: str
    devices: int
    legal: int
    estimate: Estimate | None
    choices: Mapping[str, Choice]
    reason: str | None

    @property
    def fits(self) -> bool:
        """Whether its recipe does."""
        return self.estimate is not None and self.estimate.fits


def forms(problem: Problem, devices: int) -> tuple[Form, ...]:
    """Every form on so many devices of the problem's cluster, the plainest first."""
    fixed = replace(problem, global_batch=one_batch(problem.global_batch, devices))
    return tuple(_judged(name, space, fixed, devices) for name, space in spaces(fixed, devices).items())


def one_batch(batch: GlobalBatch, devices: int) -> GlobalBatch:
    """Of a range the largest batch that spreads evenly over the devices, if it holds one, else its largest."""
    even = batch.maximum // devices * devices
    chosen = even if even in batch and even > 0 else batch.maximum
    return GlobalBatch(minimum=chosen, maximum=chosen)


def spaces(problem: Problem, devices: int) -> dict[str, Space]:
    """The forms' spaces; a form that so many devices leave no room for is not among them."""
    per_node = min(devices, problem.cluster.devices_per_node)
    batch = problem.global_batch.maximum
    micro = tuple(size for size in divisors(batch) if size <= LARGEST_MICRO_BATCH)
    base: dict[str, Any] = {"devices": (devices,), "micro_batch_seqs": micro, "recompute": RECOMPUTES}
    tiled = base | {"loss_chunks": (LOSS_CHUNKS,), "feed_forward_tiles": (TILES,)}
    if devices == 1:
        return {ALONE: Space(**base), TILED_ALONE: Space(**tiled)}
    tensor = tuple(ways for ways in divisors(per_node) if ways > 1)
    stages = tuple(ranks for ranks in divisors(devices) if 1 < ranks <= problem.model.layers)
    found = {PLAIN: Space(**base)} | {name: Space(**base, sharding=(word,)) for name, word in ZERO.items()}
    if 1 < per_node < devices:
        found[HYBRID] = Space(**base, sharding=(f"hybrid-{per_node}",))
    if tensor:
        every = ("none", "zero-1", "zero-3")
        found[TENSOR] = Space(**base, tensor_parallel=tensor, sharding=every, sequence_parallel=(False, True))
        found[CONTEXT] = Space(**base, context_parallel=tensor, sharding=every)
    in_stages: dict[str, Any] = {
        "pipeline_parallel": stages,
        "schedule": ("1f1b", "interleaved-1f1b"),
        "virtual_stages": (1, 2),
        "sharding": ("none", "zero-1"),
    }
    if stages:
        found[PIPELINE] = Space(**base, **in_stages)
    if stages and tensor:
        found[THREE_D] = Space(**base, **in_stages, tensor_parallel=tensor, sequence_parallel=(True,))
    found[TILED] = Space(**tiled, sharding=("zero-3",))
    found[OFFLOAD] = Space(**base, sharding=("zero-3",), offload=("optimizer+parameters",))
    return found


def divisors(number: int) -> list[int]:
    """All divisors in rising order; of a number of up to ten digits at once."""
    small = [part for part in range(1, int(number**0.5) + 1) if number % part == 0]
    return sorted({*small, *(number // part for part in small)})


def _advisable(judged: EstimateTable) -> int:
    """The row of the recipe that stands for its form: see `Form`."""
    limit = judged.problem.cluster.memory_bytes_per_device
    roomy = np.flatnonzero(judged.peak_memory_bytes[judged.order] <= (1 - MARGIN) * limit)
    return int(judged.order[roomy[0] if len(roomy) else 0])


def _judged(name: str, space: Space, problem: Problem, devices: int) -> Form:
    survey = space.survey(problem)
    found = plan(survey.recipes, problem)
    best = found.table[_advisable(found.table)] if len(found.table) else None
    point = survey.points_by_recipe[best.recipe] if best else ()
    reason = None
    if not survey.recipes:
        _, reason = why_nothing_legal(survey)
    elif best is None:
        reason = f"not estimated: the formulas do not know {', '.join(found.not_modelled)}"
    return Form(
        name=name,
        devices=devices,
        legal=found.legal,
        estimate=best,
        choices=dict(zip(survey.dimensions, point, strict=False)),
        reason=reason,
    )
