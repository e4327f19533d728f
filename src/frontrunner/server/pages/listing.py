"""The list of campaigns, whose address states what it shows; and the page that labels, renames or
deletes one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup
from pydantic import Field

from frontrunner.config.campaign import CampaignName as StoredName
from frontrunner.results.courses import Course, steps
from frontrunner.results.records import IMPORTED, Campaign, CampaignSummary
from frontrunner.results.store import Store
from frontrunner.search.budget import Limit, Spent
from frontrunner.search.campaign_setup import budget_used, stored_budget
from frontrunner.server.auth import Role
from frontrunner.server.pages.campaigns import digest
from frontrunner.server.pages.rendering import page, render
from frontrunner.server.requests import Body
from frontrunner.server.routes import CampaignName
from frontrunner.server.service import OPERATOR, CachedRoute, RoleOf, Service, ServiceOf
from frontrunner.spaces.errors import StoreUnusable, bad_value, did_you_mean
from frontrunner.text import thousands
from frontrunner.views.columns import CAMPAIGNS, Column

router = APIRouter(route_class=CachedRoute)
A_PAGE, POLL_S = 50, 5
MOST_CHARACTERS = 200
Digest = Annotated[str, Query(max_length=64)]
ALL: dict[str, Column[CampaignSummary]] = {column.key: column for column in CAMPAIGNS}
COLUMNS = (
    "name",
    "state",
    "model",
    "best_tokens_per_s",
    "best_mfu",
    "node_seconds_spent",
    "created_at",
)
"""The columns by which the list is sorted."""
FILTERS: dict[str, Callable[[CampaignSummary], Sequence[str]]] = {
    "state": lambda row: (row.state_in_words,),
    "model": lambda row: _stated(row, "model"),
    "machine": lambda row: _stated(row, "cluster"),
    "tag": lambda row: row.labels.tags,
    "figures": lambda row: (row.figures,),
}
"""What campaigns are filtered by, each with a campaign's values of it."""


def _stated(row: CampaignSummary, key: str) -> tuple[str, ...]:
    value = row.problem_summary.get(key)
    return () if value is None else (str(value),)


@dataclass(frozen=True, kw_only=True)
class View:
    """What the list shows, as its address states it."""

    search: str = ""
    state: str = ""
    model: str = ""
    machine: str = ""
    tag: str = ""
    figures: str = ""
    hidden: bool = False
    sort: str = "-created_at"
    page: int = 1

    @classmethod
    def of(cls, request: Request) -> View:
        """Read an address; raise `InvalidInput` for what is not known."""
        given = {
            key: value[:MOST_CHARACTERS]
            for key, value in request.query_params.items()
            if key != "seen"
        }
        known = list(vars(cls()))
        for key in given:
            if key not in known:
                raise bad_value(
                    "parameter", key, f"one of {', '.join(known)}", hint=did_you_mean(key, known)
                )
        sort, number = given.get("sort") or cls.sort, given.get("page") or "1"
        if sort.removeprefix("-") not in COLUMNS:
            raise bad_value("sort", sort, f"one of {', '.join(COLUMNS)}, after a - to descend")
        if not (number.isascii() and number.isdigit() and 0 < int(number) <= 1_000_000):
            raise bad_value("page", number, "a whole number from 1")
        texts = {key: given.get(key, "").strip() for key in ("search", *FILTERS)}
        return cls(**texts, hidden=bool(given.get("hidden")), sort=sort, page=int(number))

    def query(self, **changes: Any) -> str:
        """Return the query of this view with changes; whatever else changes begins again at the
        first page.
        """
        changed = vars(replace(self, **({"page": 1} | changes)))
        plain = vars(View())
        given = {
            key: "yes" if value is True else value
            for key, value in changed.items()
            if value != plain[key]
        }
        return urlencode(given, quote_via=quote)

    def address(self, path: str = "/", **changes: Any) -> str:
        """Return the path and query of this view with changes."""
        query = self.query(**changes)
        return path + (f"?{query}" if query else "")

    def sorted_by(self, key: str) -> str:
        """Return the address with the list in the order of a column; in reverse where it is in that
        order.
        """
        first = key if ALL[key].is_number is False and key != "created_at" else f"-{key}"
        turned = first.removeprefix("-") if first.startswith("-") else f"-{key}"
        return self.address(sort=turned if self.sort == first else first)

    @property
    def filters(self) -> dict[str, str]:
        """The filters in force, each with its text."""
        found = {key: getattr(self, key) for key in ("search", *FILTERS) if getattr(self, key)}
        return found | ({"hidden": "too"} if self.hidden else {})

    def meets(self, row: CampaignSummary) -> bool:
        """Return whether a campaign passes all filters."""
        wanted = ((values(row), getattr(self, key)) for key, values in FILTERS.items())
        return (
            (self.hidden or not row.labels.hidden)
            and all(not text or text in values for values, text in wanted)
            and row.has(self.search)
        )

    def ordered(self, rows: Sequence[CampaignSummary]) -> list[CampaignSummary]:
        """Return the campaigns in the list's order; those without a value come last."""
        value = ALL[self.sort.removeprefix("-")].value
        newest = sorted(rows, key=attrgetter("id"), reverse=True)
        known = [row for row in newest if value(row) is not None]
        return [
            *sorted(known, key=value, reverse=self.sort.startswith("-")),
            *(row for row in newest if value(row) is None),
        ]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A campaign of the list with how far it is, None for an imported one, and how its best rose,
    as an SVG path.
    """

    campaign: CampaignSummary
    progress: Limit | None
    path: str
    words: str


@router.get("/")
def all_campaigns(request: Request, service: ServiceOf, role: RoleOf) -> Response:
    """The store's campaigns, the newest first; live."""
    view = View.of(request)
    known = service.store.campaigns()
    offered = {
        key: found
        for key, values in FILTERS.items()
        if len(
            found := sorted(
                {text for row in known for text in values(row)} | {getattr(view, key)} - {""}
            )
        )
        > 1
        or (found and (key == "tag" or getattr(view, key)))
    }
    return page(
        "campaigns.html",
        here="/",
        may_change=role is Role.OPERATOR,
        view=view,
        total=len(known),
        offered=offered,
        hidden=sum(row.labels.hidden for row in known),
        **_list(service, role, view, known),
    )


@router.get("/campaigns")
def campaigns_live(
    request: Request, service: ServiceOf, role: RoleOf, seen: Digest = ""
) -> Response:
    """The list as it is now; nothing (204) if the page shows that already."""
    view = View.of(request)
    listed = _list(service, role, view, service.store.campaigns())
    if seen and seen == digest(listed["listed"]):
        return Response(status_code=204)
    headers = {} if seen else {"HX-Replace-Url": view.address()}
    return HTMLResponse(listed["live"] + listed["listed"], headers=headers)


def _list(
    service: Service, role: Role, view: View, known: Sequence[CampaignSummary]
) -> dict[str, Markup]:
    met = view.ordered([row for row in known if view.meets(row)])
    pages = max(1, math.ceil(len(met) / A_PAGE))
    view = replace(view, page=min(view.page, pages))
    shown = met[(view.page - 1) * A_PAGE : view.page * A_PAGE]
    courses = service.courses.of(service.store, shown)
    records = service.store.records([row.id for row in shown])
    listed = render(
        "campaigns_list.html",
        lines=[
            _line(service.store, row, records[row.id], courses[row.id])
            for row in shown
            if row.id in records
        ],
        view=view,
        pages=pages,
        met=len(met),
        total=len(known),
        columns=ALL,
        may_change=role is Role.OPERATOR,
    )
    query = view.query(page=view.page)
    url = f"/campaigns?seen={digest(listed)}" + (f"&{query}" if query else "")
    return {"listed": listed, "live": render("live.html", url=url, polls_every_s=POLL_S)}


def _line(store: Store, row: CampaignSummary, record: Campaign, course: Course) -> Line:
    if row.figures == IMPORTED:
        return Line(campaign=row, progress=None, path="", words="")
    points = list(steps(course, row))
    path = "".join(f"{'H' if place else 'M'}{100 * x:.1f}{'V' if place else ','}{24 - 22 * y:.1f}"
                   for place, (x, y) in enumerate(points))  # fmt: skip
    words = ""
    if points:
        first, top = thousands(course.best[0][1]), thousands(course.best[-1][1])
        words = f"best so far over {row.outcomes:,} outcomes: from {first} to {top} tokens/s"
    return Line(
        campaign=row,
        progress=_progress(store, row, record, course),
        path=path and f"{path}H100",
        words=words,
    )


def _progress(store: Store, row: CampaignSummary, record: Campaign, course: Course) -> Limit:
    """Return the limit of the budget that is used most, or how many of the legal recipes have an
    outcome.
    """
    budget = stored_budget(record)
    spent = Spent(
        probes=max(0, record.outcomes - course.reused),
        driver_seconds=record.driver_seconds,
        node_seconds=record.node_seconds_spent,
    )
    limits = spent.limits(replace(budget, cost=None))
    if budget.cost is not None:
        with suppress(
            StoreUnusable
        ):  # what the nodes cost is known of a specification that this version can read
            limits = budget_used(store, record)
    tried = Limit(name="recipes", used=row.outcomes, allowed=max(1, row.legal_recipes))
    return max(limits, key=attrgetter("share"), default=tried)


class Edit(Body):
    """Labels of a campaign as they are typed: its tags with commas between them."""

    tags: Annotated[str, Field(max_length=2000)] = ""
    note: Annotated[str, Field(max_length=100_000)] = ""
    hidden: bool = False


class NewName(Body):
    """A campaign's new name."""

    name: StoredName


@router.get("/campaigns/{name}/edit", dependencies=OPERATOR)
def edit(service: ServiceOf, name: CampaignName) -> Response:
    """Forms that label, rename or delete a campaign, with what that would remove."""
    labels, is_driven = service.store.labels(name), False
    with service.store.read(name) as (connection, found):
        is_driven = service.store.summaries(connection, [found.id])[0].is_driven
    removed = None if is_driven else service.local.delete(name, preview=True)
    return page("campaign_edit.html", here=None, name=name, labels=labels, removed=removed)


@router.patch("/campaigns/{name}", dependencies=OPERATOR)
def change(service: ServiceOf, name: CampaignName, given: Edit) -> Response:
    """Replace a campaign's labels, and go to the list."""
    tags = [tag.strip() for tag in given.tags.split(",") if tag.strip()]
    service.local.label(name, tags=tags, note=given.note.strip(), hidden=given.hidden)
    return Response(status_code=204, headers={"HX-Redirect": "/"})


@router.post("/campaigns/{name}/name", dependencies=OPERATOR)
def rename(service: ServiceOf, name: CampaignName, given: NewName) -> Response:
    """Rename a campaign, and go to its page."""
    service.local.rename(name, given.name)
    return Response(status_code=204, headers={"HX-Redirect": f"/campaigns/{given.name}"})


@router.delete("/campaigns/{name}", dependencies=OPERATOR)
def delete(service: ServiceOf, name: CampaignName) -> Response:
    """Delete a campaign, and go to the list."""
    service.local.delete(name)
    return Response(status_code=204, headers={"HX-Redirect": "/"})
