"""The space: the choices for each dimension of a recipe, and the finite set of legal recipes they
make.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from frontrunner.spaces.batches import GLOBAL_BATCH
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.custom import CustomKnob
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.errors import InvalidInput, bad_value, shown
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.model.model import KEYS
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import (
    DIMENSIONS,
    RANK_ORDERS,
    RECOMPUTES,
    Choice,
    Degrees,
    Dimension,
    ReadsEarlierNames,
    Recipe,
    custom_dimension,
)
from frontrunner.spaces.sharding import Sharding
from frontrunner.spaces.stages import balanced_layers, even_layers

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from frontrunner.spaces.columns import Places, RecipeColumns, Rows

Point = tuple[Choice, ...]
"""One value for each dimension, in order."""

DEGREES = tuple(
    one.name for one in DIMENSIONS.values() if one.group == "degrees" and one.name != "devices"
)
"""The dimensions whose product is the devices of one replica."""
FRAME = tuple(
    one.name
    for one in DIMENSIONS.values()
    if one.group in ("degrees", "batch", "pipeline") and one.kind != "layers"
)
"""The first dimensions, which `legality.why_no_frame` judges."""
MAX_POINTS = 20_000_000
LARGEST_MICRO_BATCH = 8
LONG_SEQUENCE = 16_384
"""From this length on, ranks of a node may share a sequence; assumed."""

_PLAIN = tuple(  # read here once, since a survey makes a million recipes
    (one.field, one.name, one.type, one.matters, one.neutral)
    for one in DIMENSIONS.values()
    if one.kind in ("count", "flag", "choice") and one.name not in (*DEGREES, "accumulation")
)


def recipe_at(
    choice: Mapping[str, Choice],
    problem: Problem,
    custom: Mapping[str, CustomKnob] = MappingProxyType({}),
) -> Recipe | Reason:
    """Return the recipe of a choice for each dimension, the user's own included, or the reason why
    there is none.

    Choices that make no difference take their neutral value: no schedule without a pipeline, no
    sequence parallelism without tensor parallelism, one copy of the model has nothing to shard.
    """
    devices, *degrees = (int(choice[key]) for key in ("devices", *DEGREES))
    tp, pp, cp = degrees
    if devices % (tp * pp * cp):
        factors = [f"{key} {choice[key]}" for key in (DEGREES if cp > 1 else DEGREES[:2])]
        return Reason("devices-divide", f"{' x '.join(factors)} does not divide {devices} devices")
    dp = devices // (tp * pp * cp)
    micro_batch, accumulation = int(choice["micro_batch_seqs"]), choice.get("accumulation")
    if accumulation is None:
        batch = problem.global_batch.maximum
        if batch % (micro_batch * dp):
            text = f"micro-batch {micro_batch} x {dp} replicas does not divide global batch {batch}"
            return Reason(GLOBAL_BATCH, text)
        accumulation = batch // (micro_batch * dp)
    at = Degrees(
        tensor_parallel=tp, pipeline_parallel=pp, copies=dp * cp, accumulation=int(accumulation)
    )
    values: dict[str, Any] = {
        field: kind(choice[name]) if matters(at) else neutral
        for field, name, kind, matters, neutral in _PLAIN
    }
    values["rank_order"] = order_that_matters(values["rank_order"], at)
    values |= zip(DEGREES, degrees, strict=True)
    if custom:
        own = (one for name in sorted(custom) for one in custom[name].at(name, choice[name]))
        values["custom"] = tuple(own)
    sharding = Sharding.named(str(choice["sharding"]), dp * cp)
    recipe = Recipe(accumulation=at.accumulation, sharding=sharding, **values)
    layers = own_layers(recipe, problem) if choice["layer_split"] == "balanced" else ()
    return replace(recipe, layers_per_stage=layers) if layers else recipe


def own_layers(recipe: Recipe, problem: Problem) -> tuple[int, ...]:
    """Return the balanced layers of a recipe's stages; none where they are the even ones."""
    layers, stages = len(problem.model.layers), recipe.stages
    # Rules refuse more stages than layers; a balanced split that is the even one is no other
    # recipe.
    if recipe.pipeline_parallel == 1 or stages > layers:
        return ()
    balanced = balanced_layers(recipe, problem)
    return () if balanced == even_layers(layers, stages) else balanced


def order_that_matters(order: str, recipe: Recipe | Degrees) -> str:
    """Return the first of `RANK_ORDERS` with the same numbering: groups of one rank may stand
    anywhere.
    """
    sizes = {"tp": recipe.tensor_parallel, "dp": recipe.copies, "pp": recipe.pipeline_parallel}

    def apart(name: str) -> list[str]:
        return [part for part in name.split("-") if sizes[part] > 1]

    return next(name for name in RANK_ORDERS if apart(name) == apart(order))


_Choices: Any = make_dataclass(
    "_Choices",
    [(one.name, tuple[one.type, ...], field(default=one.default)) for one in DIMENSIONS.values()],  # type: ignore[name-defined]
    frozen=True,
    kw_only=True,
)


@dataclass(frozen=True, kw_only=True)
class Space(ReadsEarlierNames, _Choices):  # type: ignore[misc]
    """The choices for each of `DIMENSIONS`, as fields of its name, and knobs of the user's own.

    An empty `accumulation` follows from the fixed global batch; an empty `devices` is all of the
    cluster's. `exhaustive` tries values in the order in which they were given.
    """

    custom: Mapping[str, CustomKnob] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, knob in self.custom.items():
            if name in DIMENSIONS or hasattr(Recipe, name) or name in KEYS:
                expected = (
                    "another name: a recipe or a model has something of its own that is called so"
                )
                raise bad_value("space.custom", name, expected)
            knob.check(name)
        ways = Counter(knob.flag or knob.env for knob in self.custom.values())
        if doubled := next((way for way, count in ways.items() if count > 1), None):
            raise bad_value("space.custom", doubled, "a flag or variable of its own for each knob")
        for one in DIMENSIONS.values():
            key, values = f"space.{one.name}", getattr(self, one.name)
            if not values and one.default:
                raise bad_value(key, [], "at least one value")
            if len(set(values)) != len(values):
                raise bad_value(key, list(values), "values that differ from one another")
            for value in values:
                one.check("space", value)

    def with_choices(self, **choices: Any) -> Space:
        """Return this space with other choices for these dimensions."""
        return replace(self, **choices)

    def dimensions(self, cluster: Cluster) -> dict[str, tuple[Choice, ...]]:
        """Return the dimensions of a point with their values; `accumulation` only where it is
        free.
        """
        found: dict[str, tuple[Choice, ...]] = {name: getattr(self, name) for name in DIMENSIONS}
        found["devices"] = found["devices"] or (cluster.devices,)
        if not found["accumulation"]:
            del found["accumulation"]
        return found | {name: knob.values for name, knob in self.custom.items()}

    def dimension(self, name: str) -> Dimension:
        """Return one of the dimensions, a recipe's or the user's own."""
        return DIMENSIONS[name] if name in DIMENSIONS else custom_dimension(name, self.custom[name])

    def survey(self, problem: Problem) -> Survey:
        """Look at every point: keep the legal recipes, count the others by reason."""
        if not self.accumulation and not problem.global_batch.is_fixed:
            expected = (
                "values to choose from, since problem.global_batch is the range"
                f" {problem.global_batch}"
            )
            raise bad_value("space.accumulation", None, expected)
        dimensions = self.dimensions(problem.cluster)
        if (points := math.prod(map(len, dimensions.values()))) > MAX_POINTS:
            sizes = ", ".join(
                f"{name} {len(values)}" for name, values in dimensions.items() if len(values) > 1
            )
            message = f"space has {shown(points)} points: expected at most {MAX_POINTS}"
            raise InvalidInput(message, hint=f"narrow a dimension: {sizes}")
        from frontrunner.spaces.enumeration import survey_of

        return survey_of(problem, dimensions, self.custom)


def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors in rising order."""
    small = [part for part in range(1, math.isqrt(number) + 1) if number % part == 0]
    return tuple(sorted({*small, *(number // part for part in small)}))


def usual_space(problem: Problem) -> Space:
    """Return what model and cluster leave room for, of the choices that change no result beyond
    rounding.

    Those that need more of an installation, such as compilation or offloading, are left to a stated
    space.
    """
    cluster, batch, model = problem.cluster, problem.global_batch, problem.model
    devices, several = cluster.devices, cluster.nodes > 1
    # Of a rack's 72 devices, only degrees that heads and widths divide by are legal.
    ways = tuple(
        ranks for ranks in divisors(cluster.devices_per_node) if model.attention.heads % ranks == 0
    )
    split = tuple(ranks for ranks in ways if model.feed_forward.ffn_hidden % ranks == 0)
    hybrid = (
        (f"hybrid-{cluster.devices_per_node}",) if several and cluster.devices_per_node > 1 else ()
    )
    found: dict[str, Any] = {
        "tensor_parallel": split,
        "pipeline_parallel": tuple(
            ranks for ranks in divisors(devices) if ranks <= len(model.layers)
        ),
        "context_parallel": ways if problem.sequence_length >= LONG_SEQUENCE else (1,),
        "micro_batch_seqs": tuple(
            size for size in divisors(batch.maximum) if size <= LARGEST_MICRO_BATCH
        ),
        "accumulation": (
            () if batch.is_fixed else tuple(2**power for power in range(batch.maximum.bit_length()))
        ),
        "virtual_stages": (1, 2),
        "schedule": ("1f1b", "interleaved-1f1b"),
        "sharding": ("none", "zero-1", "zero-2", "zero-3", *hybrid),
        "recompute": RECOMPUTES,
        "sequence_parallel": (False, True),
        "expert_parallel": tuple(
            ranks
            for ranks in divisors(model.mixture.experts if model.mixture else 1)
            if ranks <= devices
        ),
        "expert_tensor_parallel": (
            split if model.mixture and not model.mixture.has_biases else (1,)
        ),
    }
    return Space(**found)


@dataclass(frozen=True, kw_only=True)
class Survey(Displayed):
    """A space looked at for one problem, as a rule in full.

    `recipes` are the legal ones, each once; `places` has a column for each dimension, the choices
    that give them. Of points that give the same recipe the first represents all; the others are
    counted as `repeats`.
    """

    problem: Problem
    dimensions: Mapping[str, tuple[Choice, ...]]
    recipes: RecipeColumns
    places: Places
    repeats: int = 0
    refusals: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)
    custom: Mapping[str, CustomKnob] = field(default_factory=dict)

    @classmethod
    def of_nothing(
        cls,
        problem: Problem,
        dimensions: Mapping[str, tuple[Choice, ...]],
        custom: Mapping[str, CustomKnob],
    ) -> Survey:
        """Return a survey of no point yet."""
        from frontrunner.spaces.columns import Places, RecipeColumns

        places = Places.of(dimensions, ())
        return cls(
            problem=problem,
            dimensions=dimensions,
            recipes=RecipeColumns.of(()),
            places=places,
            custom=custom,
        )

    @property
    def points(self) -> int:
        """The combinations of choices that were looked at, legal or not."""
        return len(self.recipes) + self.repeats + sum(self.refusals.values())

    @property
    def legal(self) -> dict[Point, Recipe]:
        """The point that gives each legal recipe; for surveys of a few thousand."""
        return {
            tuple(self.choices(row).values()): recipe for row, recipe in enumerate(self.recipes)
        }

    def choices(self, row: int) -> dict[str, Choice]:
        """Return the choice for each dimension that gives the recipe of a row."""
        return {
            name: values[codes[row]]
            for name in self.dimensions
            for values, codes in [self.places.column(name)]
        }

    def keep(self, rows: Rows | npt.NDArray[np.bool_]) -> Survey:
        """Return the survey with these of the legal recipes alone."""
        return replace(self, recipes=self.recipes.take(rows), places=self.places.take(rows))

    def refuse(self, reasons: Mapping[int, Reason]) -> Survey:
        """Return the survey without the recipes of these rows, which count as refused."""
        if not reasons:
            return self
        refusals, examples = Counter(self.refusals), dict(self.examples)
        for reason in reasons.values():
            refusals[reason.code] += 1
            examples.setdefault(reason.code, reason.text)
        import numpy as np

        kept = np.delete(np.arange(len(self.recipes)), list(reasons))
        return replace(self.keep(kept), refusals=dict(refusals), examples=examples)

    def recipe_at(self, choice: Mapping[str, Choice]) -> Recipe | Reason:
        """Return the recipe of a choice for each dimension, or the reason why there is none."""
        return recipe_at(choice, self.problem, self.custom)

    def dimension(self, name: str) -> Dimension:
        """Return one of `dimensions`, a recipe's or the user's own."""
        return DIMENSIONS[name] if name in DIMENSIONS else custom_dimension(name, self.custom[name])

    def refused_by_count(self) -> Iterator[tuple[str, int, str]]:
        """Yield (code, points refused, one example with its numbers), the commonest first."""
        for code, count in sorted(self.refusals.items(), key=lambda item: (-item[1], item[0])):
            yield code, count, self.examples[code]
