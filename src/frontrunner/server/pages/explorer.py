"""The explorer: all recipes of a campaign in one table, linked with figures; what it shows is in
its address.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Self
from urllib.parse import quote, urlencode

import numpy as np
from fastapi import APIRouter, Request, Response

from frontrunner.results.arrays import (
    CUSTOM,
    DATA_PARALLEL,
    FIGURES,
    NUMBER,
    OUTCOME,
    RANK,
    Axis,
    Mask,
    Rows,
    Trials,
    Wanted,
)
from frontrunner.results.explore import ExploredRecipe, explored
from frontrunner.results.records import Campaign
from frontrunner.results.snapshot import attempts_of
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.search.spec import CampaignSpec
from frontrunner.server.pages.rendering import page
from frontrunner.server.routes import CampaignName
from frontrunner.server.service import CachedRoute, Service, ServiceOf
from frontrunner.spaces.errors import bad_value, did_you_mean
from frontrunner.spaces.recipe import DIMENSIONS
from frontrunner.text import to_json
from frontrunner.views.charts.marks import GIB, shown
from frontrunner.views.columns import COLUMNS, RECIPE_ID, Column, used, why, words

router = APIRouter(route_class=CachedRoute)
A_PAGE, MOST_VALUES, MOST_PINNED, MOST_DRAWN, MOST_FADED = 50, 20, 12, 1500, 400
"""Rows of a page, values of a choice that are offered, pinned recipes, and lines that are drawn,
met or not.
"""
MOST_PARAMETERS = 400
RANGES: Mapping[str, tuple[str, float]] = {
    "tokens_per_s": ("tokens/s", 1.0),
    "step_time_s_median": ("step, s", 1.0),
    "mfu": ("MFU, %", 0.01),
    "peak_memory_bytes_max_rank": ("peak GiB", float(GIB)),
}
"""The figures by which recipes are filtered and drawn: their titles, and what one of the shown unit
is.
"""
FROM, TO = "_from", "_to"
SORT, SHOW, PIN, PAGE = "sort", "columns", "pin", "page"
HIDDEN_AT_FIRST = (
    "rank",
    "step_time_spread",
    "model_tflops_per_device",
    "repeats",
    "memory_above_idle_bytes_max_rank",
)

TABLE: dict[str, Column[ExploredRecipe]] = {
    column.key: column.of(attrgetter("ranked"))
    for column in COLUMNS
    if column.key not in ("layout", "batch")
}
TABLE |= {
    RECIPE_ID.key: RECIPE_ID,
    NUMBER: Column(NUMBER, "trial", lambda row: row.tried.trial.number),
    OUTCOME: words(OUTCOME, "outcome", attrgetter("outcome")),
    "attempts": Column("attempts", "tries", lambda row: row.tried.attempts),
    "why": words("why", "why", lambda row: why(row.tried.outcome)),
}
for _name in ("sharding", "options"):
    del TABLE[_name]


def label(name: str) -> str:
    """Return how a choice is called at an axis, a filter and a column."""
    if name.startswith(CUSTOM):
        return name.removeprefix(CUSTOM)
    return {OUTCOME: "outcome", DATA_PARALLEL: "DP"}.get(name) or DIMENSIONS[name].label


def column_of(name: str) -> Column[ExploredRecipe]:
    """Return a column of the table: a figure, or a choice."""
    if name in TABLE:
        return TABLE[name]
    own = name.removeprefix(CUSTOM)

    def value(row: ExploredRecipe) -> str:
        if name == DATA_PARALLEL:
            return str(row.recipe.data_parallel)
        if name in DIMENSIONS:
            return shown(DIMENSIONS[name].of(row.recipe))
        return next((shown(one.value) for one in row.recipe.custom if one.name == own), "-")

    is_number = name == DATA_PARALLEL or (name in DIMENSIONS and DIMENSIONS[name].kind == "count")
    about = DIMENSIONS[name].description.replace("`", "") if name in DIMENSIONS else ""
    return Column(name, label(name), value, is_number=is_number, about=about)


@dataclass(frozen=True, kw_only=True)
class View:
    """What the explorer shows, as its address states it: `values` and `ranges` by name, as they are
    typed.
    """

    campaign: str
    values: Mapping[str, tuple[str, ...]]
    ranges: Mapping[str, float]
    sort: str = RANK
    columns: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    page: int = 1

    @classmethod
    def of(cls, campaign: str, given: Sequence[tuple[str, str]], axes: Iterable[str]) -> Self:
        """Read an address; raise `InvalidInput` for what is not known."""
        choices = list(axes)
        ends = [name + end for name in RANGES for end in (FROM, TO)]
        known = [*choices, *ends, SORT, SHOW, PIN, PAGE]
        found: dict[str, list[str]] = {}
        for name, text in given[:MOST_PARAMETERS]:
            if name not in known:
                raise bad_value(
                    "parameter",
                    name,
                    "a choice, a figure or a column",
                    hint=did_you_mean(name, known),
                )
            found.setdefault(name, []).extend(text.split(",") if name not in ends else [text])
        sort = (found.get(SORT) or [RANK])[-1]
        if sort.removeprefix("-") not in (*choices, *FIGURES, RANK, NUMBER, "gap_percent"):
            raise bad_value(SORT, sort, "the name of a choice or a figure, after a - to descend")
        columns = tuple(name for name in dict.fromkeys(found.get(SHOW, ())) if name)
        for name in columns:
            if name not in TABLE and name not in choices:
                raise bad_value(
                    SHOW,
                    name,
                    "names of choices and figures",
                    hint=did_you_mean(name, [*TABLE, *choices]),
                )
        return cls(
            campaign=campaign,
            values={
                name: texts
                for name in choices
                if (texts := tuple(filter(None, found.get(name, ()))))
            },
            ranges={
                name: _number(name, found[name][-1]) for name in ends if any(found.get(name, ()))
            },
            sort=sort,
            columns=columns,
            pins=tuple(dict.fromkeys(filter(None, found.get(PIN, ()))))[:MOST_PINNED],
            page=int(_number(PAGE, (found.get(PAGE) or ["1"])[-1], least=1)),
        )

    def query(self, **changes: Any) -> str:
        """Return the query of this view with changes; whatever else changes begins again at the
        first page.
        """
        changed = replace(self, **({"page": 1} | changes))
        given: dict[str, str] = {
            name: ",".join(texts) for name, texts in changed.values.items() if texts
        }
        given |= {name: f"{number:g}" for name, number in changed.ranges.items()}
        given |= {SORT: changed.sort} if changed.sort != RANK else {}
        given |= {
            name: ",".join(texts)
            for name, texts in ((SHOW, changed.columns), (PIN, changed.pins))
            if texts
        }
        given |= {PAGE: str(changed.page)} if changed.page > 1 else {}
        return urlencode(given, safe=",", quote_via=quote)

    def address(self, **changes: Any) -> str:
        """Return the path and query of this view with changes."""
        query = self.query(**changes)
        return f"/campaigns/{self.campaign}/recipes" + (f"?{query}" if query else "")

    def sorted_by(self, name: str) -> str:
        """Return the address with the table in the order of a column; in reverse where it is in
        that order.
        """
        first = f"-{name}" if name in RANGES or name in FIGURES else name
        turned = first.removeprefix("-") if first.startswith("-") else f"-{name}"
        return self.address(sort=turned if self.sort == first else first)

    def without(self, name: str, value: str = "") -> str:
        """Return the address without a filter, or one value of it."""
        kept = tuple(one for one in self.values.get(name, ()) if value and one != value)
        return self.address(
            values=dict(self.values) | {name: kept},
            ranges={
                end: number
                for end, number in self.ranges.items()
                if end not in (name + FROM, name + TO)
            },
        )

    def with_pin(self, recipe_id: str) -> str:
        """Return the address with a recipe pinned, or no longer."""
        kept = tuple(one for one in self.pins if one != recipe_id)
        return self.address(
            pins=kept if recipe_id in self.pins else (*self.pins, recipe_id), page=self.page
        )

    def wanted(self, columns: Trials) -> Wanted:
        """Return the filters in the terms of the columns."""
        values = {
            name: frozenset(value for value in columns.axes[name].values if shown(value) in texts)
            for name, texts in self.values.items()
        }
        ranges = {
            name: tuple(
                (
                    None
                    if (end := self.ranges.get(name + word)) is None
                    else _widened(end * unit, word)
                )
                for word in (FROM, TO)
            )
            for name, (_, unit) in RANGES.items()
            if name + FROM in self.ranges or name + TO in self.ranges
        }
        return Wanted(values=values, ranges=ranges)  # type: ignore[arg-type] # tuples of two


def _widened(end: float, word: str) -> float:
    """Take in what equals the end as it is shown: numbers in addresses are rounded."""
    return end * (1 - 1e-6 if word == FROM else 1 + 1e-6)


def _number(name: str, text: str, *, least: float = 0.0) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not least <= found <= 1e18:
        raise bad_value(name, text, f"a number of at least {least:g}")
    return found


@dataclass(frozen=True, kw_only=True)
class Explored:
    """A campaign with its trials as columns, the view that is asked for, and which trials that
    is.
    """

    campaign: Campaign
    spec: CampaignSpec
    columns: Trials
    view: View
    masks: Mapping[str, Mask]

    @classmethod
    def of(cls, service: Service, name: str, request: Request) -> Self:
        """Read what a request asks."""
        campaign = service.store.campaign(name)
        columns = attempts_of(service.store, campaign).trials
        view = View.of(name, request.query_params.multi_items(), columns.axes)
        masks = columns.masks(view.wanted(columns))
        return cls(
            campaign=campaign, spec=stored_spec(campaign), columns=columns, view=view, masks=masks
        )

    @property
    def met(self) -> Mask:
        """Which trials meet all filters."""
        return self.columns.both(self.masks.values())

    @property
    def rows(self) -> Rows:
        """The trials that meet all filters, in the order of the table."""
        by, descending = self.view.sort.removeprefix("-"), self.view.sort.startswith("-")
        return self.columns.ordered(
            self.met, RANK if by == "gap_percent" else by, descending=descending
        )


def _pinned(columns: Trials, pins: Sequence[str]) -> list[int]:
    """Return the rows of pinned recipes, in their order."""
    known = np.flatnonzero(np.isin(columns.recipe_ids, list(pins))).tolist() if pins else []
    rows = {str(columns.recipe_ids[row]): row for row in known}
    return [rows[one] for one in pins if one in rows]


def _at_first(columns: Trials) -> tuple[str, ...]:
    """Return the columns of an address that names none: what differs between recipes, and the main
    figures.
    """
    figures = [
        name for name in TABLE if name not in (RECIPE_ID.key, NUMBER, OUTCOME, "attempts", "why")
    ]
    outcome = [OUTCOME] if columns.axes[OUTCOME].varies else []
    return (*columns.varied, *outcome, *(name for name in figures if name not in HIDDEN_AT_FIRST))


@router.get("/campaigns/{name}/recipes")
def explorer(request: Request, service: ServiceOf, name: CampaignName) -> Response:
    """All recipes of a campaign: filters, figures and a page of the table."""
    found = Explored.of(service, name, request)
    view, columns, rows = found.view, found.columns, found.rows
    pages = max(1, math.ceil(len(rows) / A_PAGE))
    view = replace(view, page=min(view.page, pages))
    listed = rows[(view.page - 1) * A_PAGE : view.page * A_PAGE].tolist()
    pins = _pinned(columns, view.pins)
    items = explored(service.store, columns, [*pins, *(row for row in listed if row not in pins)])
    chosen = [column_of(one) for one in view.columns or _at_first(columns)]
    counts = columns.counts(found.masks)
    return page(
        "explorer.html",
        here=None,
        name=name,
        campaign=found.campaign,
        spec=found.spec,
        problem=found.spec.problem,
        view=replace(view, pins=tuple(str(columns.recipe_ids[row]) for row in pins)),
        pinned=items[: len(pins)],
        items=items[len(pins) :],
        total=len(columns),
        matching=len(rows),
        pages=pages,
        facets=[_facet(one, columns.axes[one], counts[one], view) for one in _filtered(columns,
            view)],
        ranges=[(one, title, view.ranges.get(one + FROM), view.ranges.get(one + TO))
                for one, (title, _) in RANGES.items() if _has(columns, one)],
        columns=chosen if view.columns else used(chosen, items),
        offered=[column_of(one) for one in (NUMBER, *columns.varied, OUTCOME,
            *TABLE) if one != RECIPE_ID.key],
        sortable={*columns.axes, *FIGURES, RANK, NUMBER, "gap_percent"},
        label_of=label,
        python=_python(view, service.settings.seen_by(request)),
    )  # fmt: skip


def _has(columns: Trials, figure: str) -> bool:
    return any(math.isfinite(number) for number in columns.figures[figure][:10_000].tolist())


def _filtered(columns: Trials, view: View) -> list[str]:
    """Return the choices that are offered as filters: those in which trials differ, and those
    filtered by.
    """
    return [name for name, axis in columns.axes.items() if axis.varies or name in view.values]


def _facet(name: str, axis: Axis, counts: Sequence[int], view: View) -> dict[str, Any]:
    texts = [shown(value) for value in axis.values]
    chosen = view.values.get(name, ())
    rows = [(text, count, text in chosen) for text, count in zip(texts, counts, strict=True)]
    kept = [row for place, row in enumerate(rows) if place < MOST_VALUES or row[2]]
    return {"name": name, "label": label(name), "values": kept, "left_out": len(rows) - len(kept)}


def _python(view: View, server: str) -> str:
    """Return the lines that ask the same of the service in Python, as far as its API filters."""
    alone = {
        name: texts[0]
        for name, texts in view.values.items()
        if len(texts) == 1 and name in DIMENSIONS
    }
    words = {"yes": "True", "no": "False"}
    asked = "".join(
        f", {name}={words.get(text, text if text.isdigit() else repr(text))}"
        for name, text in alone.items()
    )
    return "\n".join(
        (
            "import frontrunner",
            "",
            f'team = frontrunner.connect("{server}")',
            f'found = team.recipes("{view.campaign}"{asked})',
            "for row in found.items:",
            "    print(row.recipe.describe(), row.standing.tokens_per_s)",
            f'frame = team.dataframe("{view.campaign}")  # pandas: one row per attempt',
        )
    )


@router.get("/campaigns/{name}/recipes/points")
def points(request: Request, service: ServiceOf, name: CampaignName) -> Response:
    """Return what explorer.js draws: the axes, and a sample of the recipes that are met, and of the
    others.
    """
    found = Explored.of(service, name, request)
    columns, view, met = found.columns, found.view, found.met
    drawn = columns.sample(np.flatnonzero(met), MOST_DRAWN)
    pins = np.array(_pinned(columns, view.pins), dtype=np.intp)
    rows = np.unique(
        np.concatenate([drawn, columns.sample(np.flatnonzero(~met), MOST_FADED), pins])
    )
    names = [one for one in _filtered(columns, view) if one != OUTCOME]
    axes: list[dict[str, Any]] = [
        {"name": one, "label": label(one),
            "values": [shown(value) for value in columns.axes[one].values],
         "at": columns.axes[one].places[rows].tolist(), "chosen": view.values.get(one)}
        for one in names
    ]  # fmt: skip
    for one in ("peak_memory_bytes_max_rank", "tokens_per_s"):
        title, unit = RANGES[one]
        numbers, known = columns.figures[one] / unit, np.isfinite(columns.figures[one])
        if known.any():
            ends = [float(numbers[known].min()), float(numbers[known].max())]
            at = [
                None if math.isnan(number) else float(f"{number:.6g}")
                for number in numbers[rows].tolist()
            ]
            chosen = [view.ranges.get(one + FROM), view.ranges.get(one + TO)]
            axes.append({"name": one, "label": title, "ends": ends, "at": at, "chosen": chosen})
    cluster, outcome = found.spec.problem.cluster, columns.axes[OUTCOME]
    answer = {
        "axes": axes,
        "ids": columns.recipe_ids[rows].tolist(),
        "ranks": columns.ranks[rows].tolist(),
        "met": met[rows].astype(int).tolist(),
        "outcomes": [str(outcome.values[place]) for place in outcome.places[rows].tolist()],
        "pins": list(view.pins),
        "matching": int(met.sum()),
        "drawn": len(drawn),
        "limit_gib": cluster.memory_bytes_per_device / GIB,
    }
    return Response(to_json(answer), media_type="application/json")


@router.get("/campaigns/{name}/recipes.csv")
async def as_csv(request: Request, service: ServiceOf, name: CampaignName) -> Response:
    """Return all recipes that are met as CSV, in the order of the table."""

    def written() -> str:
        found = Explored.of(service, name, request)
        columns, rows = found.columns, found.rows
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        axes = {one: axis for one, axis in columns.axes.items() if one != OUTCOME}
        writer.writerow(["recipe", RANK, OUTCOME, *axes, *FIGURES])
        parts: list[Iterable[Any]] = [
            columns.recipe_ids[rows].tolist(),
            (rank or "" for rank in columns.ranks[rows].tolist()),
            *([shown(axis.values[place]) for place in axis.places[rows].tolist()]
              for axis in (columns.axes[OUTCOME], *axes.values())),
            *(["" if math.isnan(number) else f"{number:.10g}" for number
               in columns.figures[one][rows].tolist()]
              for one in FIGURES),
        ]  # fmt: skip
        writer.writerows(itertools.zip_longest(*parts))
        return text.getvalue()

    headers = {"content-disposition": f'attachment; filename="{name}.csv"'}
    return Response(
        await service.slowly(written), media_type="text/csv; charset=utf-8", headers=headers
    )
