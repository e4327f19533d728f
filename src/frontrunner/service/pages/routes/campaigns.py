"""The pages of campaigns: all of them, and one as it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from frontrunner.evaluators.insight.collected import Missing
from frontrunner.results.pages import campaign_page
from frontrunner.service.answers import answer
from frontrunner.service.drivers import Word
from frontrunner.service.pages.figures import SHOWN, FigureShelf, coordinates, figure
from frontrunner.service.pages.rendering import digest, page, render
from frontrunner.service.pages.views.campaign import CampaignView, campaign_view, moment
from frontrunner.service.routes.parameters import CampaignName, PageNumber
from frontrunner.service.state import OPERATOR, RoleOf, ServiceOf, StoreOf
from frontrunner.service.tokens import Role
from frontrunner.spaces.errors import bad_value

router = APIRouter()
shelf = FigureShelf()
PAGE_SIZE = 50
Asked = Annotated[PageNumber, Query(alias="page")]
Seen = Annotated[str, Query(max_length=400, pattern="~")]
"""What a page has seen: the campaign's moment, the edition of its figures, and each part's digest, with ~ between."""
PARTS = ("numbers", "ranking", "trials", "timeline", "failures", "events")
"""The pieces of a campaign's page that change as it goes on, in their order on the page."""
TOLD = {
    "pause": "The driver was told to pause: probes that run may finish, no more are started.",
    "stop": "The driver was told to stop: probes that run may finish, and the campaign ends.",
    "cancel": "The driver was told to end its probes at once; the campaign can be resumed.",
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of the page as it is now."""

    name: str
    html: Markup


@router.get("/")
def all_campaigns(
    service: ServiceOf, role: RoleOf, page_number: Annotated[PageNumber, Query(alias="page")] = 1
) -> Response:
    """The store's campaigns, the newest first."""
    found = campaign_page(service.store, page=page_number, page_size=PAGE_SIZE, known=service.summaries)
    pages = max(1, -(-found.total // PAGE_SIZE))
    return page("campaigns.html", here="/", found=found, page=page_number, pages=pages, may_change=_may_change(role))


@router.get("/campaigns/{name}")
def one_campaign(store: StoreOf, role: RoleOf, name: CampaignName) -> Response:
    """One campaign, live."""
    now = moment(store, name)
    view = campaign_view(store, name)
    parts = _parts(view, role)
    return page(
        "campaign.html",
        here=None,
        view=view,
        parts=parts,
        figures=tuple(SHOWN.items()),
        live=Markup(_live(view, now, parts)),  # noqa: S704 - what a template has made
    )


@router.get("/campaigns/{name}/live")
def live(store: StoreOf, role: RoleOf, name: CampaignName, seen: Seen) -> Response:
    """The pieces that changed since the page saw them last; nothing (204) where nothing was written."""
    now = moment(store, name)
    was, edition, *digests = seen.split("~")
    if was == now:
        return Response(status_code=204)
    view = campaign_view(store, name)
    parts = _parts(view, role)
    old = dict(zip(PARTS, digests, strict=False))
    changed = [part.html for part in parts if old.get(part.name) != digest(part.html)]
    news = {} if edition == _edition(view) else {"HX-Trigger": "outcomes"}
    return HTMLResponse("".join([_live(view, now, parts), *changed]), headers=news)


@router.get("/campaigns/{name}/trials")
def trials(store: StoreOf, role: RoleOf, name: CampaignName, page_number: Asked = 1) -> Response:
    """One page of the table of trials."""
    view = campaign_view(store, name, trials_page=page_number)
    return page("campaign/trials.html", view=view, replaces=False, may_change=_may_change(role))


@router.get("/campaigns/{name}/figures/{wanted}")
async def one_figure(service: ServiceOf, name: CampaignName, wanted: str) -> Response:
    """What the page's script needs to draw a figure."""
    if wanted not in SHOWN:
        raise bad_value("figure", wanted, f"one of {', '.join(SHOWN)}")
    return await service.slowly(lambda: answer(figure(shelf.figures(service.store, name), wanted)))


@router.get("/campaigns/{name}/coordinates")
async def parallel_coordinates(service: ServiceOf, name: CampaignName) -> Response:
    """The parallel coordinates, drawn."""
    found = await service.slowly(lambda: coordinates(shelf.figures(service.store, name)))
    reason = found.reason if isinstance(found, Missing) else ""
    return page("campaign/coordinates.html", d=found, reason=reason, reading="measured recipes over their choices")


@router.post("/campaigns/{name}/resume", dependencies=OPERATOR)
async def resume(service: ServiceOf, name: CampaignName) -> Response:
    """Have a driver go on with the campaign."""
    started = await service.slowly(lambda: service.drivers.resume(name))
    return page("told.html", words=f"Process {started['pid']} goes on with {name}.")


@router.post("/campaigns/{name}/{word}", dependencies=OPERATOR)
def tell(service: ServiceOf, name: CampaignName, word: Word) -> Response:
    """Pause, stop or cancel the campaign."""
    service.drivers.tell(name, word)
    return page("told.html", words=TOLD[word])


def _parts(view: CampaignView, role: Role) -> tuple[Part, ...]:
    values = {"view": view, "problem": view.spec.problem, "may_change": _may_change(role), "replaces": True}
    return tuple(
        Part(name=name, html=Markup(render(f"campaign/{name}.html", **values)))  # noqa: S704 - made by a template
        for name in PARTS
    )


def _live(view: CampaignView, now: str, parts: tuple[Part, ...]) -> str:
    """The element that asks again, with what the page has seen."""
    seen = "~".join([now, _edition(view), *(digest(part.html) for part in parts)])
    return render("campaign_live.html", view=view, seen=seen)


def _edition(view: CampaignView) -> str:
    return str(shelf.editions.of(view.status.campaign, is_live=view.status.driver_is_live))


def _may_change(role: Role) -> bool:
    return role is Role.OPERATOR
