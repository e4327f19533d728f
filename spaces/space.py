"""The space: the choices for each part of a recipe, and the finite set of legal recipes they make."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

from frontrunner.spaces.choices import DEGREES, Choice, recipe_at
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput, bad_value, require_one_of
from frontrunner.spaces.legality import why_illegal_in_frame, why_no_frame
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.reasons import Reason
from frontrunner.spaces.recipe import (
    ENGINES,
    LAYER_SPLITS,
    OFFLOADS,
    OPTIMIZER_STATES,
    RANK_ORDERS,
    RECOMPUTES,
    REPLICATIONS,
    SCHEDULES,
    SYNCHRONISATIONS,
    Recipe,
)
from frontrunner.spaces.sharding import Sharding
from frontrunner.spaces.wording import shown

Point = tuple[Choice, ...]
"""One value for each dimension, in the order of `Space.dimensions`."""

FRAME = (*DEGREES, "micro_batch_seqs", "accumulation", "devices", "virtual_stages", "schedule")
"""The first dimensions, which `legality.FRAME_RULES` judge whatever the others are."""
FLAGS = ("sequence_parallel", "compile", "activation_offload")
"""The dimensions whose values are true and false."""
WORDS = {
    "schedule": SCHEDULES,
    "recompute": RECOMPUTES,
    "replication": REPLICATIONS,
    "engine": ENGINES,
    "optimizer_state": OPTIMIZER_STATES,
    "offload": OFFLOADS,
    "synchronise": SYNCHRONISATIONS,
    "layer_split": LAYER_SPLITS,
    "rank_order": RANK_ORDERS,
}
"""The dimensions whose values are words, with the words."""

MAX_POINTS = 2_000_000
"""Above this a space is refused rather than enumerated one point at a time."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """The choices. An empty `accumulation` means that it follows from the fixed global batch.

    An empty `devices` means all of the cluster's. Values keep the order in which they were given: it is the
    order in which `exhaustive` tries them.
    """

    tensor_parallel: tuple[int, ...] = (1,)
    pipeline_parallel: tuple[int, ...] = (1,)
    context_parallel: tuple[int, ...] = (1,)
    micro_batch_seqs: tuple[int, ...] = (1,)
    accumulation: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    virtual_stages: tuple[int, ...] = (1,)
    schedule: tuple[str, ...] = ("1f1b",)
    sharding: tuple[str, ...] = ("none",)
    recompute: tuple[str, ...] = ("none",)
    sequence_parallel: tuple[bool, ...] = (False,)
    replication: tuple[str, ...] = ("replicate",)
    compile: tuple[bool, ...] = (False,)
    loss_chunks: tuple[int, ...] = (1,)
    feed_forward_tiles: tuple[int, ...] = (1,)
    optimizer_state: tuple[str, ...] = ("fp32",)
    activation_offload: tuple[bool, ...] = (False,)
    synchronise: tuple[str, ...] = ("last",)
    engine: tuple[str, ...] = ("torch",)
    offload: tuple[str, ...] = ("none",)
    secondary_partition: tuple[int, ...] = (1,)
    layer_split: tuple[str, ...] = ("even",)
    rank_order: tuple[str, ...] = ("tp-dp-pp",)

    def __post_init__(self) -> None:
        for dimension in fields(self):
            values = getattr(self, dimension.name)
            if not values and dimension.name not in ("accumulation", "devices"):
                raise bad_value(f"space.{dimension.name}", [], "at least one value")
            if len(set(values)) != len(values):
                raise bad_value(f"space.{dimension.name}", list(values), "values that differ from one another")
            for value in values:
                self._check(dimension.name, value)

    @staticmethod
    def _check(name: str, value: Choice) -> None:
        if name == "sharding":
            Sharding.named(str(value), 2)  # refuses unknown names
        elif name in WORDS:
            require_one_of("space", name, str(value), WORDS[name])
        elif name not in FLAGS and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise bad_value(f"space.{name}", value, "whole numbers of at least 1")

    def dimensions(self, cluster: Cluster) -> dict[str, tuple[Choice, ...]]:
        """The dimensions that a point has a value for, with their values; `accumulation` only where it is free."""
        found: dict[str, tuple[Choice, ...]] = {f.name: getattr(self, f.name) for f in fields(self)}
        found["devices"] = found["devices"] or (cluster.devices,)
        if not found["accumulation"]:
            del found["accumulation"]
        return found

    def survey(self, problem: Problem) -> Survey:
        """Look at every point: keep the legal recipes, count the others by reason.

        Raises `InvalidInput` if accumulation is to follow from a global batch that is a range, or if the
        space has more than `MAX_POINTS` points.
        """
        dimensions = self.dimensions(problem.cluster)
        if not self.accumulation and not problem.global_batch.is_fixed:
            raise bad_value(
                "space.accumulation",
                None,
                f"values to choose from, since problem.global_batch is the range {problem.global_batch}",
            )
        survey = Survey(problem=problem, dimensions=dimensions)
        if survey.points > MAX_POINTS:
            raise InvalidInput(
                f"space has {shown(survey.points)} points: expected at most {MAX_POINTS}",
                hint=f"narrow a dimension: {survey.sizes}",
            )
        framing = sum(name in FRAME for name in dimensions)
        values = tuple(dimensions.values())
        rest = tuple(itertools.product(*values[framing:]))
        for frame in itertools.product(*values[:framing]):
            survey.look_at_frame(frame, rest)
        return survey


@dataclass(kw_only=True)
class Survey:
    """A space looked at in full for one problem.

    `legal` maps one point to each legal recipe. Points that differ only where it makes no difference (a
    schedule without a pipeline, a sharding over one replica) give the same recipe: the first stands for all,
    the others are counted as `repeats`.
    """

    problem: Problem
    dimensions: Mapping[str, tuple[Choice, ...]]
    legal: dict[Point, Recipe] = field(default_factory=dict)
    repeats: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    _seen: set[Recipe] = field(default_factory=set, repr=False)
    _frames: dict[Recipe, Mapping[str, int]] = field(default_factory=dict, repr=False)

    @property
    def points(self) -> int:
        """All combinations of the choices, legal or not: the product of the dimensions' sizes."""
        count = 1
        for values in self.dimensions.values():
            count *= len(values)
        return count

    @property
    def sizes(self) -> str:
        """How many values each dimension with a choice has, for people: `tensor_parallel 3, sharding 4`."""
        return ", ".join(f"{name} {len(values)}" for name, values in self.dimensions.items() if len(values) > 1)

    @cached_property
    def recipes(self) -> tuple[Recipe, ...]:
        """The legal recipes, each once, in the order of the choices."""
        return tuple(self.legal.values())

    @cached_property
    def points_by_recipe(self) -> dict[Recipe, Point]:
        """The point that stands for each legal recipe."""
        return {recipe: point for point, recipe in self.legal.items()}

    def look_at_frame(self, frame: Point, rest: Sequence[Point]) -> None:
        """Look at the points that begin with `frame` and go on with each of `rest`.

        They are refused at once where the frame is, and counted as an earlier frame's were if its recipes are the same.
        """
        first = self._frame_at(frame + rest[0])
        if isinstance(first, Reason):
            self._refuse(first, points=len(rest))
            return
        refused = self._frames.get(first)
        if refused is None:
            before = dict(self.refusals)
            for point in rest:
                self._look_at(frame + point)
            self._frames[first] = {code: count - before.get(code, 0) for code, count in self.refusals.items()}
            return
        for code, count in refused.items():
            self.refusals[code] += count
        self.repeats += len(rest) - sum(refused.values())

    def _look_at(self, point: Point) -> None:
        """Count one point, of a frame that nothing refuses, as legal, repeated, or refused with its reason."""
        answer = self._recipe_at(point)
        if isinstance(answer, Recipe) and answer in self._seen:
            self.repeats += 1
            return
        reason = answer if isinstance(answer, Reason) else why_illegal_in_frame(answer, self.problem)
        if reason is not None:
            self._refuse(reason)
        elif isinstance(answer, Recipe):
            self._seen.add(answer)
            self.legal[point] = answer

    def _recipe_at(self, point: Point) -> Recipe | Reason:
        return recipe_at(dict(zip(self.dimensions, point, strict=True)), self.problem)

    def _frame_at(self, point: Point) -> Recipe | Reason:
        """The recipe of a frame's point, or the reason for which every point of the frame is refused."""
        recipe = self._recipe_at(point)
        if isinstance(recipe, Reason):
            return recipe
        return why_no_frame(recipe, self.problem) or recipe

    def _refuse(self, reason: Reason, points: int = 1) -> None:
        self.refusals[reason.code] = self.refusals.get(reason.code, 0) + points
        self.examples.setdefault(reason.code, reason.text)

    def refused_by_count(self) -> Iterator[tuple[str, int, str]]:
        """(code, points refused, one example with its numbers), the commonest first."""
        for code, count in sorted(self.refusals.items(), key=lambda item: (-item[1], item[0])):
            yield code, count, self.examples[code]
