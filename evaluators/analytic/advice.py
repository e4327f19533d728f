"""Recommend a starting configuration: does a model fit on a cluster, in which parallel layout, and
at what price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from frontrunner.evaluators.analytic.accuracy_bounds import Trust, trust_in
from frontrunner.evaluators.analytic.estimates import Estimate, estimate_many, plan, why_none
from frontrunner.evaluators.analytic.step import TRAFFIC
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import DIMENSIONS, RECOMPUTES, Choice, Recipe
from frontrunner.spaces.space import LARGEST_MICRO_BATCH, Space, divisors

WORTH_ITS_COMPLEXITY = 0.05
"""A layout is preferred to a plainer one only if it is faster by more than this share; assumed."""
WORTH_FREEING = 0.01
"""Tiling is advised where it frees this share of a device's memory; assumed."""
TILES = {"loss_chunks": 8, "feed_forward_tiles": 4}
"""What tiling is tried with; more pieces save little more, since the rest of a layer stays."""

ONE_COPY, PLAIN, OFFLOAD = "one copy", "plain data parallel", "offloaded ZeRO-3"

Choices = dict[str, tuple[Choice, ...]]


@dataclass(frozen=True, kw_only=True)
class ParallelLayout:
    """One layout on `devices`: its recommended recipe, and how many legal ones there are.

    The recipe is the first of the plan; `choices` single it out in a space, or `reason` is why
    there is none. Layouts are compared by `_tokens_per_s`, which is no estimate where the device's
    peak is assumed.
    """

    name: str
    devices: int
    legal: int
    estimate: Estimate | None
    choices: Mapping[str, Choice]
    reason: str | None
    about: str
    _tokens_per_s: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether its recipe fits."""
        return self.estimate is not None and self.estimate.fits


def speed(layout: ParallelLayout) -> float:
    """Return what layouts are compared by, 0 where a layout's recipe does not fit."""
    return layout._tokens_per_s if layout.fits else 0.0


@dataclass(frozen=True, kw_only=True)
class OneCopy:
    """A copy of the model on one device, one sequence at a time: all activations kept, or only the
    layers' inputs.
    """

    whole: Estimate
    recomputed: Estimate

    @property
    def state_bytes(self) -> int:
        """Parameters, gradients and optimizer."""
        return _bytes_of(self.whole, "parameters", "gradients", "optimizer")

    @property
    def activation_bytes_whole(self) -> int:
        """Activations, logits and what a layer needs while it runs, of one sequence."""
        return _bytes_of(self.whole, "activations", "logits", "working")

    @property
    def activation_bytes_recomputed(self) -> int:
        """The same where each layer is run again."""
        return _bytes_of(self.recomputed, "activations", "logits", "working")


def _bytes_of(found: Estimate, *parts: str) -> int:
    return int(sum(found.memory_parts_bytes[name] for name in parts))


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """The recommended recipe, and the same with its sequence in pieces through loss and
    feed-forward parts.
    """

    base: Estimate
    tiled: Estimate

    @property
    def saved_bytes(self) -> int:
        """The memory that tiling frees on the fullest rank."""
        return self.base.peak_memory_bytes - self.tiled.peak_memory_bytes

    @property
    def slower(self) -> float | None:
        """The share by which a step takes longer; None without times."""
        before, after = self.base.step_time_s, self.tiled.step_time_s
        return None if before is None or after is None else after / before - 1


@dataclass(frozen=True, kw_only=True, repr=False)
class Advice(Displayed):
    """The recommendation, with the estimates behind it.

    `one_node` is empty on one node; `chosen` is None where nothing fits. `choices` name its recipe
    within the campaign's space; `lacking` are those that the space does not list.
    """

    problem: Problem
    one_copy: OneCopy | None
    one_device: tuple[ParallelLayout, ...]
    one_node: tuple[ParallelLayout, ...]
    whole_cluster: tuple[ParallelLayout, ...]
    chosen: ParallelLayout | None
    choices: Mapping[str, Choice]
    lacking: Mapping[str, Choice]
    tiling: Tiling | None
    trust: Trust

    def __repr__(self) -> str:
        estimate = self.chosen and self.chosen.estimate
        return (
            f"Advice(recipe={estimate.recipe.describe()!r})" if estimate else "Advice(recipe=None)"
        )

    @property
    def fastest(self) -> ParallelLayout | None:
        """The fastest layout on the whole cluster that fits."""
        return max(
            (layout for layout in self.whole_cluster if layout.fits), key=speed, default=None
        )


def advise(space: Space, problem: Problem) -> Advice:
    """Estimate every layout on one device, one node and the whole cluster, and choose; `space`
    names the recipe.
    """
    own = space.dimensions(problem.cluster)
    cluster = problem.cluster
    alone = layouts(problem, 1)
    node = (
        layouts(problem, cluster.devices_per_node)
        if cluster.nodes > 1 and cluster.devices_per_node > 1
        else ()
    )
    everything = layouts(problem, cluster.devices) if cluster.devices > 1 else alone
    chosen = choose(everything)
    known = {
        one.estimate.recipe: one.estimate
        for one in (*alone, *node, *everything)
        if one.estimate is not None
    }
    at_hand, choices, tiling = list(known.values()), dict[str, Choice](), None
    if chosen is not None and (found := chosen.estimate) is not None:
        at_hand = [found]
        choices, tiling = _named_by(own, chosen, found.recipe), _tiling(found, problem)
    return Advice(
        problem=problem,
        one_copy=_one_copy(problem),
        one_device=alone,
        one_node=node,
        whole_cluster=everything,
        chosen=chosen,
        choices=choices,
        lacking={key: value for key, value in choices.items() if value not in own[key]},
        tiling=tiling,
        trust=trust_in(list(known), problem, [one.expected_error for one in at_hand]),
    )


def choose(found: Sequence[ParallelLayout]) -> ParallelLayout | None:
    """Return the plainest layout that none outruns by more than `WORTH_ITS_COMPLEXITY`; tight if
    all are.
    """
    found = [
        layout for layout in found if layout.estimate and layout.estimate.fit == "fits"
    ] or found
    best = max(map(speed, found), default=0.0)
    good = (
        layout
        for layout in found
        if layout.fits and speed(layout) * (1 + WORTH_ITS_COMPLEXITY) >= best
    )
    return next(good, None)


def layouts(problem: Problem, devices: int) -> tuple[ParallelLayout, ...]:
    """Return every layout that this many of the cluster's devices leave room for, the plainest
    first.
    """
    fixed = replace(problem, global_batch=one_batch(problem.global_batch, devices))
    micro = tuple(
        size for size in divisors(fixed.global_batch.maximum) if size <= LARGEST_MICRO_BATCH
    )
    base: dict[str, Any] = {
        "devices": (devices,),
        "micro_batch_seqs": micro,
        "recompute": RECOMPUTES,
    }
    return tuple(
        _layout(name, about, Space(**base | choices), fixed)
        for name, (about, choices) in _table(problem, devices).items()
        if all(choices.values())
    )


def _table(problem: Problem, devices: int) -> dict[str, tuple[str, Choices]]:
    """Return what each layout does and its choices; one with an empty choice has no room."""
    tiled: Choices = {name: (pieces,) for name, pieces in TILES.items()}
    if devices == 1:
        return {
            ONE_COPY: ("no parallelism", {}),
            "one copy, tiled": ("sequences in pieces, so that few activations are alive", tiled),
        }
    per_node = min(devices, problem.cluster.devices_per_node)
    hybrid = (f"hybrid-{per_node}",) if 1 < per_node < devices else ()
    ways = tuple(ways for ways in divisors(per_node) if ways > 1)
    some: tuple[Choice, ...] = ("none", "zero-1", "zero-3")
    zero_3: tuple[Choice, ...] = ("zero-3",)
    pipeline: Choices = {
        "pipeline_parallel": tuple(
            ranks for ranks in divisors(devices) if 1 < ranks <= len(problem.model.layers)),
        "schedule": ("1f1b", "interleaved-1f1b"), "virtual_stages": (1, 2),
        "sharding": ("none", "zero-1"),
    }  # fmt: skip
    shared: Choices = {}
    experts: dict[str, tuple[str, Choices]] = {}
    if mixture := problem.model.mixture:
        several = tuple(ranks for ranks in divisors(mixture.experts) if 1 < ranks <= devices)
        shared = {"expert_parallel": (1, *several)}
        about = "devices share the experts, to which tokens travel; the rest is sharded as in ZeRO"
        split = {"expert_parallel": several, "expert_tensor_parallel": (1, *ways), "sharding": some}
        experts = {"expert parallel": (about, split)}
        pipeline |= shared
    return {
        PLAIN: ("each device holds a whole copy; only gradients travel, once per step", {}),
        "ZeRO-1": ("optimizer states are sharded", {"sharding": ("zero-1",)}),
        "ZeRO-2": ("gradients and optimizer states are sharded", {"sharding": ("zero-2",)}),
        "ZeRO-3 (FSDP)": (
            "parameters are sharded too, and gathered layer by layer",
            {"sharding": zero_3},
        ),
        "ZeRO-3 within nodes": ("as ZeRO-3; parameters never leave the node", {"sharding": hybrid}),
        **experts,
        "tensor parallel": (
            "a node's devices share each layer's matrices, which divides states and activations",
            {"tensor_parallel": ways, "sharding": some, "sequence_parallel": (False, True)}
            | shared,
        ),
        "context parallel": (
            "a node's devices share each sequence, which divides activations only",
            {"context_parallel": ways, "sharding": some},
        ),
        "pipeline": (
            "each device holds some of the layers and passes activations on: little traffic",
            pipeline,
        ),
        "tensor x pipeline (3D)": (
            "layers are shared within nodes and passed on between nodes, where links are slow",
            pipeline | {"tensor_parallel": ways, "sequence_parallel": (True,)},
        ),
        "tiled ZeRO-3": (
            "as ZeRO-3, with sequences in pieces, so that few activations are alive",
            {"sharding": zero_3} | tiled,
        ),
        OFFLOAD: (
            "as ZeRO-3, with the shards in the host's memory",
            {"sharding": zero_3, "offload": ("optimizer+parameters",)},
        ),
    }


def one_batch(batch: GlobalBatch, devices: int) -> GlobalBatch:
    """Return the largest batch of a range that spreads evenly over the devices, else its
    largest.
    """
    even = batch.maximum // devices * devices
    chosen = even if even in batch and even > 0 else batch.maximum
    return GlobalBatch(minimum=chosen, maximum=chosen)


def _layout(name: str, about: str, space: Space, problem: Problem) -> ParallelLayout:
    survey = space.survey(problem)
    found = plan(survey.recipes, problem)
    best, choices, rate = None, dict[str, Choice](), 0.0
    if found.at_hand:
        best = found.at_hand[0]
        rate = float(found.table.tokens_per_s[found.table.order[0]])
        row = survey.recipes.row(best.recipe)
        assert row is not None  # noqa: S101 - the table is of these recipes
        choices = survey.choices(row)
    return ParallelLayout(
        name=name,
        devices=space.devices[0],
        legal=found.legal,
        estimate=best,
        choices=choices,
        reason=None if best else why_none(survey, found),
        about=about,
        _tokens_per_s=rate,
    )


def _named_by(
    own: Mapping[str, tuple[Choice, ...]], layout: ParallelLayout, recipe: Recipe
) -> dict[str, Choice]:
    """Return the choices that single the layout's recipe out of dimensions with more values, or
    with others.
    """
    wanted = dict(layout.choices) | (
        {"accumulation": recipe.accumulation} if "accumulation" in own else {}
    )
    return {
        key: value
        for key, value in wanted.items()
        if own[key] != (value,) and DIMENSIONS[key].matters(recipe)
    }


def _one_copy(problem: Problem) -> OneCopy | None:
    """Return one sequence at a time on one device; None where no rule lets a device hold a copy."""
    whole = Recipe(devices=1, micro_batch_seqs=1, accumulation=problem.global_batch.maximum)
    recipes = [whole, replace(whole, recompute="full")]
    if any(why_illegal(recipe, problem) for recipe in recipes):
        return None
    kept, recomputed = estimate_many(recipes, problem)
    return OneCopy(whole=kept, recomputed=recomputed)


def _tiling(found: Estimate, problem: Problem) -> Tiling | None:
    """Return what tiling gives; None where it is in use, illegal, or frees too little memory."""
    if found.recipe.loss_chunks > 1:
        return None
    recipe = replace(found.recipe, **TILES)  # type: ignore[arg-type]
    if why_illegal(recipe, problem):
        return None
    tiling = Tiling(base=found, tiled=estimate_many([recipe], problem)[0])
    worth = WORTH_FREEING * problem.cluster.memory_bytes_per_device
    return tiling if tiling.saved_bytes >= worth else None


def traffic_share(found: Estimate) -> float | None:
    """Return the share of a step that waits for other devices' data, beyond what computation
    hides.
    """
    if found.step_time_s is None:
        return None
    return sum(found.step_parts_s[name] for name in TRAFFIC) / found.step_time_s
