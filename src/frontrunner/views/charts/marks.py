"""What charts share: their data, and parts of Vega-Lite specifications."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from frontrunner.results.arrays import RANK, Attempts, Ended, LastAttempts, Numbers, Trials
from frontrunner.results.nodes import SetAside
from frontrunner.results.pages import ranked_at
from frontrunner.results.prior_results import REUSED, trials_noted
from frontrunner.results.ranking import RankedRecipe, pareto
from frontrunner.results.records import IMPORTED, Campaign, Event
from frontrunner.results.snapshot import attempts_of
from frontrunner.results.status import FailedTrial, failures, status
from frontrunner.results.store import Store
from frontrunner.search.budget import Limit
from frontrunner.search.campaign_setup import budget_used
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Choice, Dimension, Recipe
from frontrunner.spaces.space import Survey
from frontrunner.text import thousands

MEASURED = "measured"
EDGE = 20
"""Pixels between the outermost marks of a chart that can be zoomed, with their labels, and its
edges, where it cuts.
"""
OVER_THE_EDGE = 6
"""Pixels by which a label of an axis may reach beyond it."""
NUMBER = ",.4~r"
"""Format of numbers: 12,345, 0.98; never with a prefix or an exponent."""
BLUE, ORANGE, RED, GRAY, GREEN = "#4c78a8", "#f58518", "#d9534f", "#8a939c", "#59a14f"
SLOW = "#a9b4c0"
CROSS = "M-1,-.6L-.6,-1L0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0Z"
STAR = "M0,-1.2L.3,-.4L1.1,-.4L.5,.15L.7,1L0,.5L-.7,1L-.5,.15L-1.1,-.4L-.3,-.4Z"
PENTAGON = "M0,-1L.95,-.31L.59,.81L-.59,.81L-.95,-.31Z"
BAR = "M-1,-.35L1,-.35L1,.35L-1,.35Z"
OUTCOMES: dict[str, tuple[str, str]] = {
    MEASURED: (BLUE, "circle"),
    "out-of-memory": (RED, CROSS),
    "crashed": ("#a47bb9", "triangle-up"),
    "hung": ("#b5835a", "square"),
    "too-slow": ("#e9b44c", "triangle-down"),
    "not-finite": ("#5fb3ad", "diamond"),
    "lost": (GRAY, BAR),
    "implausible": (GREEN, STAR),
    "illegal-for-engine": ("#86b5dd", PENTAGON),
    "no-steps-found": ("#d98ac0", "wedge"),
    "too-few-steps": ("#8c8c3a", "stroke"),
    "running": ("#2aa198", "arrow"),
}
"""Color and symbol of each outcome: each is unique by itself, and visible on white and on black."""


def number(field: str, title: str | None, *, from_zero: bool = True, **more: Any) -> Json:
    """Encode a quantitative field."""
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": {"zero": from_zero},
    } | more


def zoomed(panel: str, spec: Json) -> Json:
    """Return the layers of a panel, whose name is unique in its chart, so that a reader can zoom in
    on both axes.

    The wheel is that of the page unless Ctrl or Cmd is held, and a finger scrolls it. Marks are cut
    at the panel's edges, so its scales need room for those that lie there.
    """

    def with_room(part: Json) -> Json:
        places = {
            channel: at for channel, at in part.get("encoding", {}).items() if channel in ("x", "y")
        }
        scale = {"padding": EDGE, "nice": False}
        more = {
            channel: at
            | {"scale": at.get("scale", {}) | scale, "axis": {"labelBound": OVER_THE_EDGE}}
            for channel, at in places.items()
        }
        return part | {"encoding": part.get("encoding", {}) | more}

    selected = {
        "type": "interval",
        "zoom": "wheel![event.ctrlKey || event.metaKey]",
        "translate": "[mousedown, window:mouseup] > window:mousemove!",
    }
    first, *others = map(with_room, spec["layer"])
    first["params"] = [{"name": f"zoom_{panel}", "select": selected, "bind": "scales"}]
    return with_room(spec) | {"layer": [first, *others]}


def unscaled(field: str, **scale: Any) -> Json:
    """Encode a quantitative field without an axis."""
    return {"field": field, "type": "quantitative", "axis": None, "scale": scale}


def name(field: str, title: str | None = None, **more: Any) -> Json:
    """Encode a nominal field in the order of the data."""
    return {"field": field, "type": "nominal", "title": title, "sort": None} | more


def looks(
    field: str, known: Mapping[str, Sequence[str]], present: Iterable[str], *channels: str
) -> Json:
    """Encode a nominal field by several channels, each with its own part of the looks of the
    `known` values.
    """
    used = _present(known, present)
    return {
        channel: name(
            field, scale={"domain": used, "range": [known[value][place] for value in used]}
        )
        for place, channel in enumerate(channels)
    }


def palette(field: str, colors: Mapping[str, str], present: Iterable[str]) -> Json:
    """Encode a nominal field by these colors, with a legend of the values that are present."""
    used = _present(colors, present)
    return name(field, scale={"domain": used, "range": [colors[value] for value in used]})


def outcome_colors(present: Iterable[str]) -> Json:
    """Encode the field `outcome` by color."""
    return palette("outcome", {outcome: color for outcome, (color, _) in OUTCOMES.items()}, present)


def _present(known: Collection[str], present: Iterable[str]) -> list[str]:
    found = set(present)
    return [value for value in known if value in found]


def tooltip(
    *fields: str, numbers: Mapping[str, str] = MappingProxyType({}), **titled: str
) -> list[Json]:
    """Return a tooltip of these fields; keyword arguments are field=title, and `numbers` are
    rounded.
    """
    words = {field: field for field in fields} | titled
    quantities = [
        {"field": field, "title": title, "type": "quantitative", "format": NUMBER}
        for field, title in numbers.items()
    ]
    return [*({"field": field, "title": title} for field, title in words.items()), *quantities]


def recipe_fields(row: RankedRecipe) -> Json:
    """Return the fields by which a row of data names its recipe."""
    return {"recipe": row.recipe_id, "choices": row.recipe.describe()}


def rule(axis: str, at: float, words: str) -> list[Json]:
    """Return layers of a dashed line across a panel at a value of the axis, with a label."""
    rows = [{"at": at, "words": words}]
    place = {axis: {"field": "at", "type": "quantitative"}}
    label = place | {"text": {"field": "words"}}
    return [
        layer("rule", place, rows=rows, strokeDash=[5, 4], color=GRAY),
        layer("text", label, rows=rows, align="right", baseline="bottom", dx=-5, y="height", dy=-4),
    ]


def layer(
    kind: str, encoding: Json, *, rows: Sequence[Json] | None = None, where: str = "", **mark: Any
) -> Json:
    """Return a layer of marks: of `rows`, else of the chart's own, and of these only those `where`
    a test holds.
    """
    data = {} if rows is None else {"data": {"values": list(rows)}}
    kept = {"transform": [{"filter": where}]} if where else {}
    return {**data, **kept, "mark": {"type": kind} | mark, "encoding": encoding}


Json = dict[str, Any]
Row = TypeVar("Row")
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Why a chart cannot be drawn, as a sentence; reports leave out one that never `applies` to
    such a campaign.
    """

    reason: str
    applies: bool = True


NOTHING_ENDED = Missing(reason="No probe of this campaign has ended yet.")
NOTHING_MEASURED = Missing(reason="No recipe of this campaign has been measured.")


@dataclass(frozen=True)
class Table:
    """The content of a chart as text."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def table(rows: Sequence[Row], *columns: tuple[str, str | Callable[[Row], str]]) -> Table:
    """Return rows as text; columns are (title, key of a row or function of it), and None is a
    dash.
    """

    def cell(row: Any, value: str | Callable[[Any], str]) -> str:
        found = value(row) if callable(value) else row[value]
        return (
            "-" if found is None else thousands(found) if isinstance(found, float) else str(found)
        )

    found = (tuple(cell(row, value) for _, value in columns) for row in rows)
    return Table(tuple(title for title, _ in columns), tuple(found))


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A Vega-Lite specification without the page's colors, what to read in it, the same as a table,
    and its gaps.
    """

    reading: str
    spec: Json
    table: Table
    remarks: tuple[str, ...] = ()


MOST_DRAWN, MOST_FAILURES = 2000, 200
MOST_LINES = 500


@dataclass(frozen=True, kw_only=True)
class Collected:
    """One campaign as the store knows it: all attempts as they ended, and of its recipes as many as
    can be drawn.

    `ranking` has the front, the `MOST_LINES` fastest and an `even` selection of the `ranked`
    recipes, of which `with_peak` have a known peak memory. `failed` are the first `MOST_FAILURES`
    trials whose final outcome is a failure; `reused` counts attempts that reused earlier outcomes;
    `limits` are the budget's. `around` is the recipe that a sweep is around.
    """

    campaign: Campaign
    survey: Survey
    attempts: Attempts
    ranking: Sequence[RankedRecipe]
    ranked: int
    with_peak: int
    even: Collection[str]
    front: Sequence[RankedRecipe]
    failed: Sequence[FailedTrial]
    outlook: Event | None = None
    nodes_aside: tuple[SetAside, ...] = ()
    reused: int = 0
    limits: tuple[Limit, ...] = ()
    around: Recipe | None = None

    @property
    def center(self) -> RankedRecipe | Missing:
        """The recipe that a sweep is around, else the best, with its measurement."""
        if self.around is None:
            return self.ranking[0] if self.ranking else NOTHING_MEASURED
        found = next((row for row in self.ranking if row.recipe == self.around), None)
        return found or Missing(
            reason=f"The recipe itself, {self.around.describe()}, was not measured."
        )

    @property
    def problem(self) -> Problem:
        """The problem that the campaign's recipes solve."""
        return self.survey.problem

    @property
    def sought(self) -> str:
        """What the campaign seeks: one of `pareto.RATES`."""
        return self.campaign.objective

    @property
    def unit(self) -> str:
        """The unit of `rate`."""
        return {"tokens_per_device": "TFLOPS/device", "tokens_per_cost": "tokens per price"}.get(
            self.sought, "tokens/s"
        )

    def rate(self, tokens_per_s: float, recipe: Recipe) -> float:
        """Return what the campaign seeks at tokens/s of a recipe; per device as TFLOPS of the
        model's own work.
        """
        if self.sought == "tokens":
            return tokens_per_s
        found = tokens_per_s / self.problem.divisor(self.sought, recipe)
        flops = self.problem.model.model_flops_per_token(self.problem.sequence_length)
        return found * flops / 1e12 if self.sought == "tokens_per_device" else found

    @property
    def attempt_rates(self) -> Numbers:
        """The `rate` of each attempt, not a number for a failure."""
        if self.sought == "tokens":
            return self.attempts.tokens_per_s
        trials = self.attempts.trials
        of_one = trials.recipes.each_recipe(("devices",), lambda recipe: self.rate(1.0, recipe))
        found: Numbers = self.attempts.tokens_per_s * of_one[self.attempts.rows]
        return found

    @property
    def nothing_ran(self) -> Missing | None:
        """Why there is no course of the search to draw, if so."""
        if self.campaign.figures == IMPORTED:
            return Missing(reason="Nothing ran here: the table's rows were measured elsewhere.")
        return None if len(self.attempts) else NOTHING_ENDED

    @property
    def trials(self) -> Trials:
        """The trials of the attempts."""
        return self.attempts.trials

    @cached_property
    def tried(self) -> Mapping[str, Ended]:
        """The last attempt at each recipe, by its id."""
        return LastAttempts(self.attempts)

    @cached_property
    def final_failures(self) -> list[Ended]:
        """The last attempt at each recipe that ended with a failure."""
        return self.attempts.final_failures


def selected(drawn: int, total: int, words: str) -> tuple[str, ...]:
    """Return the remark that only some are drawn, if so."""
    return (f"{drawn:,} of {total:,} {words}.",) if drawn < total else ()


def evenly(rows: Sequence[Row], most: int = MOST_DRAWN) -> Sequence[Row]:
    """Return up to `most` of the rows, evenly selected."""
    return rows[:: max(1, -(-len(rows) // most))]


def collect(
    store: Store, campaign: Campaign, survey: Survey, around: Recipe | None = None
) -> Collected:
    """Read what the charts need, all of it as it was at one moment; `survey` is the one of the
    campaign's space and problem, `around` a sweep's center.
    """
    with store.database.reading():
        attempts, front, now = (
            attempts_of(store, campaign),
            pareto(store, campaign),
            status(store, campaign),
        )
        trials = attempts.trials
        ranked = trials.ordered(trials.ranks > 0, RANK)
        ids = trials.recipe_ids[ranked].tolist()
        even = set(evenly(ids))
        drawn = {*ids[:MOST_LINES], *even, *(row.recipe_id for row in front)}
        places = {name: place for place, name in enumerate(ids, start=1) if name in drawn}
        return Collected(
            campaign=campaign,
            survey=survey,
            attempts=attempts,
            ranking=ranked_at(store, campaign, places),
            ranked=len(ids),
            with_peak=int(np.isfinite(trials.figures["peak_memory_bytes_max_rank"][ranked]).sum()),
            even=even,
            front=front,
            failed=failures(store, campaign, limit=MOST_FAILURES),
            outlook=now.outlook,
            nodes_aside=now.nodes_aside,
            reused=len(trials_noted(store, campaign.id, REUSED)),
            limits=budget_used(store, campaign),
            around=around,
        )


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A dimension with the values that recipes have on it, in the order of the space; numbers
    ascend.
    """

    dimension: Dimension
    values: tuple[Choice, ...]

    @property
    def label(self) -> str:
        """The name on an axis."""
        return self.dimension.label

    def place(self, recipe: Recipe) -> int:
        """Return the index of the recipe's value among `values`."""
        return self.values.index(self.dimension.of(recipe))

    def word(self, recipe: Recipe) -> str:
        """Return the recipe's value as text."""
        return shown(self.dimension.of(recipe))


def shown(value: Choice) -> str:
    """Return a value as text: yes and no for flags."""
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def knobs(survey: Survey, recipes: Sequence[Recipe]) -> tuple[Knob, ...]:
    """Return the dimensions with a choice in which these recipes differ."""
    found = []

    def order(listed: Sequence[Choice], value: Choice) -> tuple[float, str]:
        """Sort numbers and flags by size, words as the space lists them, after unlisted ones."""
        if isinstance(value, str):
            return (listed.index(value), "") if value in listed else (-1, value)
        return float(value), ""

    for name, listed in survey.dimensions.items():
        dimension = survey.dimension(name)
        present = {dimension.of(recipe) for recipe in recipes}
        # Recipes without a pipeline have the schedule `none`, whatever the space lists.
        if len(listed) > 1 and len(present) > 1:
            found.append(
                Knob(
                    dimension=dimension,
                    values=tuple(sorted(present, key=partial(order, list(listed)))),
                )
            )
    return tuple(found)
