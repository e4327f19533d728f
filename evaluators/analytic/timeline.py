"""Timeline of one optimizer step: what each pipeline rank does when, and the memory that it holds
meanwhile.

Passes take the formulas' times and run in the schedule's own order, each as soon as its rank is
free and its input is there. Within a pass computing and the collectives of its layers alternate; a
pass has their sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from frontrunner.evaluators.analytic import communication, stage_layers
from frontrunner.evaluators.analytic.accuracy_bounds import has_times
from frontrunner.evaluators.analytic.arrays import Rows, number
from frontrunner.evaluators.analytic.codes import coded
from frontrunner.evaluators.analytic.estimates import not_modelled
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.memory import (
    fullest_parameters,
    memory_of_each,
    micro_batches_held,
)
from frontrunner.evaluators.analytic.replicas import replica_waits
from frontrunner.evaluators.analytic.schedules import Pass, order_of
from frontrunner.evaluators.analytic.step import (
    StepTime,
    exposed_transfers,
    stage_passes,
    step_time,
)
from frontrunner.evaluators.analytic.workload import LayersByKind, Workload
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.stages import rank_of_stage
from frontrunner.text import percent

KINDS: Mapping[str, str] = {
    "F": "forward",
    "B": "backward",
    "I": "backward for inputs",
    "W": "backward for weights",
    "receive": "waits for a transfer between stages",
    "send": "sends to another stage",
    "replicas": "waits for replicas, at a micro-batch",
    "reduce": "reduces gradients over replicas",
    "host": "transfers to and from the host",
    "optimizer": "optimizer",
    "gather": "gathers new parameters",
    "bubble": "bubble",
}
"""What a rank does, by the names of actions."""
MOST_PASSES = 400_000
"""Passes of a step that are laid out; more take several seconds."""
AGREES = 0.01
"""Difference between a timeline and the formulas that needs no explanation."""


class Action(NamedTuple):
    """What a rank does for a time; of passes and what belongs to them, the stage and micro-batch,
    else None.
    """

    kind: str
    stage: int | None
    micro_batch: int | None
    begin_s: float
    end_s: float


class Level(NamedTuple):
    """The bytes that a rank holds from a time on."""

    begin_s: float
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class RankTimeline:
    """One pipeline rank, which stands for `devices` that do the same; its actions fill the step
    without a gap.
    """

    rank: int
    devices: int
    stages: tuple[int, ...]
    layers: int
    bubble_s: float
    peak_memory_bytes: int
    actions: tuple[Action, ...]
    memory: tuple[Level, ...]


@dataclass(frozen=True, kw_only=True)
class StepTimeline(Displayed):
    """One optimizer step of a recipe, by pipeline rank.

    `step_time_s` is when the last rank is done, `formula_step_time_s` the estimate; `bubble_share`
    is the mean over the ranks. `pass_parts_s` are the seconds of a pass of each kind through each
    stage by what they are spent on.
    """

    recipe_id: str
    recipe: Recipe
    describe: str
    step_time_s: float
    formula_step_time_s: float
    bubble_share: float
    formula_bubble_share: float
    memory_limit_bytes: int
    pass_parts_s: Mapping[str, tuple[Mapping[str, float], ...]]
    ranks: tuple[RankTimeline, ...]
    differences: tuple[str, ...]

    @property
    def slowest_rank(self) -> int:
        """The rank that waits least."""
        return min(self.ranks, key=lambda one: one.bubble_s).rank


@dataclass(frozen=True, kw_only=True)
class _Costs:
    """Seconds of passes by stage, of a transfer (in which the receiver, and the sender, are busy),
    and of the rest.
    """

    passes: Mapping[str, Sequence[float]]
    transfer: float
    receives: float
    sends: float
    at_each: float
    after: Mapping[str, float]
    at_end: Mapping[str, float]


def step_timeline(recipe: Recipe, problem: Problem) -> StepTimeline:
    """Lay out one step of a legal recipe; raises `InvalidInput` where the formulas do not know it,
    or it is too long.

    The timeline is the formulas' own step where all stages are equal. Otherwise it may end before
    or after them, and `differences` explain why.
    """
    name = recipe_id(problem, recipe)
    unknown, passes = not_modelled(recipe), 2 * recipe.stages * recipe.accumulation
    if unknown is not None:
        what = f"the step of recipe {name} cannot be laid out: the formulas do not know {unknown}"
        raise InvalidInput(what, hint="frontrunner profile measures it")
    if not has_times(problem, recipe.engine):
        what = (
            f"the step of recipe {name} cannot be laid out: cluster.peak_tflops.{problem.precision}"
            " is not given"
        )
        raise InvalidInput(
            what,
            hint="state the device's peak in the campaign file, or measure: frontrunner launch",
        )
    if passes > MOST_PASSES:
        what = (
            f"the step of recipe {name} has {passes:,} passes: at most {MOST_PASSES:,} are laid out"
        )
        raise InvalidInput(what, hint="fewer stages or larger micro-batches have fewer")
    machine = Machine.of(problem.cluster, problem.precision, coded(problem.software, recipe.engine))
    work = Workload.of([recipe], problem, machine.code.pipeline.layer_split)
    counts = stage_layers.of_stages(recipe, problem.model, machine.code.pipeline.layer_split)
    by_kind: LayersByKind = tuple(np.array(counts, dtype=float).T)
    layers = np.sum(by_kind, axis=0)
    parts = stage_passes(machine, work, by_kind)
    formula = step_time(machine, work)
    costs = _costs(machine, work, formula, {kind: one.total for kind, one in parts.items()})
    rank_of = [rank_of_stage(recipe, stage) for stage in range(recipe.stages)]
    actions = _played(order_of(recipe), rank_of, costs)
    ends = [held[-1].end_s for held in actions]
    memory = _memory(machine, work, actions, rank_of, by_kind)
    waits = [
        sum(one.end_s - one.begin_s for one in held if one.kind == "bubble") for held in actions
    ]
    total, expected = max(ends), float(formula.total[0])
    ranks = tuple(
        RankTimeline(
            rank=rank,
            devices=recipe.devices // recipe.pipeline_parallel,
            stages=tuple(stage for stage, its in enumerate(rank_of) if its == rank),
            layers=int(sum(layers[stage] for stage, its in enumerate(rank_of) if its == rank)),
            bubble_s=waits[rank],
            peak_memory_bytes=max(level.memory_bytes for level in memory[rank]),
            actions=tuple(held),
            memory=memory[rank],
        )
        for rank, held in enumerate(actions)
    )
    return StepTimeline(
        recipe_id=name,
        recipe=recipe,
        describe=recipe.describe(),
        step_time_s=total,
        formula_step_time_s=expected,
        bubble_share=sum(waits) / len(waits) / total,
        formula_bubble_share=float(formula.bubble[0]) / expected,
        memory_limit_bytes=problem.cluster.memory_bytes_per_device,
        pass_parts_s={kind: _by_stage(one) for kind, one in parts.items() if one.total.any()},
        ranks=ranks,
        differences=_differences(total / expected - 1, recipe, ranks, costs),
    )


def _costs(
    machine: Machine, work: Workload, formula: StepTime, totals: Mapping[str, Rows]
) -> _Costs:
    rank_s = {kind: totals[kind].sum() / max(1, int(work.degrees.pipeline[0])) for kind in totals}
    replicas = replica_waits(
        machine,
        work,
        fullest_parameters(machine, work),
        number(rank_s["F"]),
        number(rank_s["I"] + rank_s["W"]),
    )
    once = float((replicas.last + replicas.published)[0])
    # The formulas' own sum, by when it falls due: experts have replicas of their own.
    share = float(formula.data_parallel[0]) / max(
        once + float((work.schedule.accumulation * replicas.each)[0]), 1e-30
    )
    message = float(communication.pipeline_transfer_s(machine, work)[0]) / 2
    exposed = float(exposed_transfers(machine, work)[0])
    return _Costs(
        passes={
            "F": totals["F"].tolist(),
            "B": (totals["I"] + totals["W"]).tolist(),
            "I": totals["I"].tolist(),
            "W": totals["W"].tolist(),
        },
        transfer=message,
        receives=message * min(exposed, 1.0),
        sends=message * max(exposed - 1.0, 0.0),
        at_each=share * float(replicas.each[0]) / float(work.schedule.virtual_stages[0]),
        after={
            "reduce": share * float(replicas.last[0]),
            "host": float(formula.host_transfer.ravel()[0]),
        },
        at_end={
            "optimizer": float(formula.optimizer[0]),
            "gather": share * float(replicas.published[0]),
        },
    )


class _Ranks:
    """Pipeline ranks that run their passes; `done` is when a pass ended, `now` until when each rank
    is busy.
    """

    def __init__(self, rank_of: Sequence[int], costs: _Costs) -> None:
        self._rank_of, self._costs = rank_of, costs
        self.done: dict[Pass, float] = {}
        self.now = [0.0] * (max(rank_of) + 1)
        self.actions: list[list[Action]] = [[] for _ in self.now]

    def add(self, rank: int, kind: str, seconds: float, of: Pass | None = None) -> None:
        """Keep a rank busy, if for any time."""
        if seconds > 0:
            stage, number = (None, None) if of is None else (of.stage, of.micro_batch)
            begin, self.now[rank] = self.now[rank], self.now[rank] + seconds
            self.actions[rank].append(Action(kind, stage, number, begin, self.now[rank]))

    def run(self, rank: int, one: Pass) -> bool:
        """Run a pass if what it needs is done."""
        need, costs = one.needs(len(self._rank_of)), self._costs
        if need is not None and need not in self.done:
            return False
        if need is not None:
            travels = self._rank_of[need.stage] != rank
            arrives = self.done[need] + (costs.transfer - costs.receives if travels else 0.0)
            self.add(rank, "bubble", arrives - self.now[rank])
            self.add(rank, "receive", costs.receives if travels else 0.0, one)
        self.add(rank, one.kind, costs.passes[one.kind][one.stage], one)
        self.done[one.done] = self.now[rank]
        to = one.stage + (1 if one.kind == "F" else -1)
        if one.kind != "W" and 0 <= to < len(self._rank_of) and self._rank_of[to] != rank:
            self.add(rank, "send", costs.sends, one)
        self.add(rank, "replicas", costs.at_each if one.kind in ("B", "W") else 0.0, one)
        return True


def _played(
    order: Sequence[Sequence[Pass]], rank_of: Sequence[int], costs: _Costs
) -> list[list[Action]]:
    """Run each rank's passes, and return what it does from the beginning to the end of the step."""
    found, place = _Ranks(rank_of, costs), [0] * len(order)
    while any(at < len(passes) for at, passes in zip(place, order, strict=True)):
        before = sum(place)
        for rank, passes in enumerate(order):
            while place[rank] < len(passes) and found.run(rank, passes[place[rank]]):
                place[rank] += 1
        assert sum(place) > before, "the schedule deadlocks"  # noqa: S101 - no legal recipe's does
    for rank in range(len(order)):
        for kind, seconds in costs.after.items():
            found.add(rank, kind, seconds)
    ready = max(found.now)
    for rank in range(len(order)):  # the optimizer needs the norm of all gradients
        found.add(rank, "bubble", ready - found.now[rank])
        for kind, seconds in costs.at_end.items():
            found.add(rank, kind, seconds)
    return found.actions


def _by_stage(parts: object) -> tuple[dict[str, float], ...]:
    names = [one.name for one in fields(parts)]  # type: ignore[arg-type]
    columns = [np.atleast_1d(getattr(parts, name)).tolist() for name in names]
    return tuple(
        {name: value for name, value in zip(names, row, strict=True) if value}
        for row in zip(*columns, strict=True)
    )


def _memory(
    machine: Machine,
    work: Workload,
    actions: Sequence[Sequence[Action]],
    rank_of: Sequence[int],
    stages: LayersByKind,
) -> list[tuple[Level, ...]]:
    """Return the bytes on each rank over the step: its states, and the activations of what is
    between its passes.

    Those of a pass come when it begins forward and go when it ends backward, each stage's by its
    layers. Gradients are there after the first backward pass where the code makes them then;
    logits, and what a layer needs while it runs, are there while passes run.
    """
    ranks = len(actions)
    held = np.zeros((len(stages), ranks))
    for stage, rank in enumerate(rank_of):
        held[:, rank] += [count[stage] for count in stages]
    layers, layers_of_ranks = np.sum(stages, axis=0), held.sum(axis=0)
    less, more, most = (
        memory_of_each(machine, work, tuple(held), in_flight=count, ends=(rank_of[0], rank_of[-1]))
        for count in (  # below one micro-batch, where gradients are whole; activations grow evenly
            np.full(ranks, 0.25),
            np.full(ranks, 0.75),
            micro_batches_held(work, np.arange(ranks, dtype=float)),
        )
    )
    columns = {
        part.name: np.broadcast_to(getattr(less, part.name), ranks).tolist()
        for part in fields(less)
    } | {
        "each": np.broadcast_to(2 * (more.activations - less.activations), ranks).tolist(),
        "runtime": (
            np.broadcast_to(most.runtime, ranks).tolist()
        ),  # what the allocator lost at the peak stays lost
    }
    found = []
    for rank, its in enumerate(actions):
        own = {name: column[rank] for name, column in columns.items()}
        states = (
            own["parameters"]
            + own["optimizer"]
            + own["runtime"]
            + max(own["activations"] - own["each"] / 4, 0.0)
        )
        gradients = 0.0 if machine.code.gradients.appear_in_backward else own["gradients"]
        weight = {
            stage: layers[stage] / max(layers_of_ranks[rank], 1.0)
            for stage, at in enumerate(rank_of)
            if at == rank
        }
        last, activations, levels = len(rank_of) - 1, 0.0, [Level(0.0, int(states + gradients))]
        for one in its:
            if one.kind not in ("F", "B", "I", "W") or one.stage is None:
                continue
            share = own["each"] * weight[one.stage]
            activations += share * (one.kind == "F")
            during = (own["logits"] if one.stage == last else 0.0) + (
                own["working"] if one.kind != "F" else 0.0
            )
            levels.append(Level(one.begin_s, int(states + gradients + activations + during)))
            activations -= share * (one.kind in ("B", "W"))
            gradients = own["gradients"] if one.kind in ("B", "W") else gradients
            levels.append(Level(one.end_s, int(states + gradients + max(activations, 0.0))))
        found.append(tuple(levels))
    return found


def _differences(
    off: float, recipe: Recipe, ranks: Sequence[RankTimeline], costs: _Costs
) -> tuple[str, ...]:
    """Return how far the timeline is from the formulas, and what may cause it."""
    if abs(off) < AGREES:
        return ()
    causes = []
    if costs.receives + costs.sends > 0:
        causes.append(
            "the formulas count a transfer each way per micro-batch, and the ranks at the"
            " pipeline's ends have one"
        )
    busy = [
        sum(one.end_s - one.begin_s for one in held.actions if one.kind != "bubble")
        for held in ranks
    ]
    if max(busy) > 1.01 * min(busy):
        causes.append("the stages are unequal, and the formulas' bubble is one of equal stages")
    if costs.at_each > 0:
        causes.append("waits for replicas at each micro-batch delay the ranks after")
    if recipe.schedule in (
        "looped-bfs",
        "zbv",
        "dualpipev",
        "interleaved-zero-bubble",
        "interleaved-1f1b",
    ):
        causes.append(
            f"the formulas' bubble of {recipe.schedule} is a closed form of equal stages and many"
            " micro-batches"
        )
    side = "later" if off > 0 else "earlier"
    return (
        f"This timeline ends {percent(abs(off))} {side} than the formulas: {'; '.join(causes)}.",
    )
