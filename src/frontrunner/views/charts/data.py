"""Data of a campaign's charts: outcomes, ranking, searched space, and the knobs in which recipes differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from frontrunner.results.outcome import Failure
from frontrunner.results.pages import probed
from frontrunner.results.prior_results import reused_trials
from frontrunner.results.ranking import RankedRecipe, best, pareto
from frontrunner.results.records import Campaign, Event, Probed
from frontrunner.results.status import FailedTrial, failures, status
from frontrunner.results.store import Store
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import DIMENSIONS, Choice, Recipe
from frontrunner.spaces.space import Survey
from frontrunner.text import thousands

Json = dict[str, Any]
Row = TypeVar("Row")
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Why a chart cannot be drawn, as a sentence."""

    reason: str


NOTHING_ENDED = Missing(reason="No probe of this campaign has ended yet.")
NOTHING_MEASURED = Missing(reason="No recipe of this campaign has been measured.")


@dataclass(frozen=True)
class Table:
    """The content of a chart as text."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def table(rows: Sequence[Row], *columns: tuple[str, str | Callable[[Row], str]]) -> Table:
    """Return rows as text; columns are (title, key of a row or function of it), and None is a dash."""
    found = (tuple(_cell(row, value) for _, value in columns) for row in rows)
    return Table(tuple(title for title, _ in columns), tuple(found))


def _cell(row: Any, value: str | Callable[[Any], str]) -> str:
    found = value(row) if callable(value) else row[value]
    return "-" if found is None else thousands(found) if isinstance(found, float) else str(found)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A Vega-Lite specification without the page's colors, what to read in it, the same as a table, and its gaps."""

    reading: str
    spec: Json
    table: Table
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Collected:
    """One campaign as the store knows it: attempts as they ended; one row per recipe in `ranking` and `front`.

    `failed` are the trials whose final outcome is a failure; `reused` counts attempts that reused earlier outcomes.
    """

    campaign: Campaign
    survey: Survey
    attempts: Sequence[Probed]
    ranking: Sequence[RankedRecipe]
    front: Sequence[RankedRecipe]
    failed: Sequence[FailedTrial]
    outlook: Event | None = None
    reused: int = 0

    @property
    def problem(self) -> Problem:
        """The problem that the campaign's recipes solve."""
        return self.survey.problem

    @property
    def final_failures(self) -> dict[Recipe, Failure]:
        """The failure of each recipe that ended with one."""
        return {row.trial.recipe: row.failure for row in self.failed}


def collect(store: Store, campaign: Campaign, survey: Survey) -> Collected:
    """Read what the charts need; `survey` is the one of the campaign's space and problem."""
    return Collected(
        campaign=campaign,
        survey=survey,
        attempts=probed(store, campaign),
        ranking=best(store, campaign, top=None),
        front=pareto(store, campaign),
        failed=failures(store, campaign),
        outlook=status(store, campaign).outlook,
        reused=len(reused_trials(store, campaign.id)),
    )


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A dimension with the values that recipes have on it, in the order of the space; numbers ascend."""

    name: str
    values: tuple[Choice, ...]

    @property
    def label(self) -> str:
        """The name on an axis."""
        return DIMENSIONS[self.name].label

    def place(self, recipe: Recipe) -> int:
        """Return the index of the recipe's value among `values`."""
        return self.values.index(DIMENSIONS[self.name].of(recipe))

    def word(self, recipe: Recipe) -> str:
        """Return the recipe's value as text."""
        return shown(DIMENSIONS[self.name].of(recipe))


def shown(value: Choice) -> str:
    """Return a value as text: yes and no for flags."""
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def knobs(survey: Survey, recipes: Sequence[Recipe]) -> tuple[Knob, ...]:
    """Return the dimensions with a choice in which these recipes differ."""
    found = []
    for name, listed in survey.dimensions.items():
        present = {DIMENSIONS[name].of(recipe) for recipe in recipes}
        # Recipes without a pipeline have the schedule `none`, whatever the space lists.
        if len(listed) > 1 and len(present) > 1:
            found.append(Knob(name=name, values=tuple(sorted(present, key=_order(list(listed))))))
    return tuple(found)


def _order(listed: Sequence[Choice]) -> Callable[[Choice], tuple[int, str]]:
    """Return a sort key: numbers and flags by size, words as the space lists them, after unlisted ones."""

    def key(value: Choice) -> tuple[int, str]:
        if isinstance(value, str):
            return (listed.index(value), "") if value in listed else (-1, value)
        return int(value), ""

    return key
