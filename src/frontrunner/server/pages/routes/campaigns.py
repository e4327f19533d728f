"""The pages of campaigns: all of them, and one as it goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from frontrunner.results.driving import stamp
from frontrunner.results.pages import campaign_page
from frontrunner.server.answers import JSON, AnswersOf
from frontrunner.server.drivers import Word
from frontrunner.server.pages.figures import ACROSS, SHOWN, FigureShelf, figure
from frontrunner.server.pages.pieces import LIVE, PARTS, POLL_S, PieceMaker
from frontrunner.server.pages.rendering import HTML, digest, page, render
from frontrunner.server.pages.views.campaign import moment, trials_table
from frontrunner.server.routes.parameters import CampaignName, PageNumber
from frontrunner.server.state import OPERATOR, RoleOf, Service, ServiceOf, StoreOf
from frontrunner.server.tokens import Role
from frontrunner.spaces.errors import bad_value

router = APIRouter()
PAGE_SIZE = 50
Asked = Annotated[PageNumber, Query(alias="page")]
Digest = Annotated[str, Query(max_length=64)]
"""Which list of campaigns a page shows."""
Seen = Annotated[str, Query(max_length=400, pattern="~")]
"""What a page has seen: the campaign's moment, the edition of its figures, and each part's digest, with ~ between."""


async def the_shelf(request: Request) -> FigureShelf:
    """The figures that this service has drawn: campaigns have the same ids in every store."""
    shelf: FigureShelf = request.app.state.shelf
    return shelf


ShelfOf = Annotated[FigureShelf, Depends(the_shelf)]
TOLD = {
    "pause": "The driver was told to pause: probes that run may finish, no more are started.",
    "stop": "The driver was told to stop: probes that run may finish, and the campaign ends.",
    "cancel": "The driver was told to end its probes at once; the campaign can be resumed.",
}


@router.get("/")
def all_campaigns(answers: AnswersOf, service: ServiceOf, role: RoleOf, page_number: Asked = 1) -> Response:
    """The store's campaigns, the newest first; live."""
    listed = _listed(answers, service, role, page_number)
    live = _live_list(page_number, listed)
    return page("campaigns.html", here="/", listed=listed, may_change=role is Role.OPERATOR, **live)


@router.get("/campaigns")
def campaigns_live(
    answers: AnswersOf, service: ServiceOf, role: RoleOf, seen: Digest, page_number: Asked = 1
) -> Response:
    """The list as it is now; nothing (204) where the page shows that already."""
    listed = _listed(answers, service, role, page_number)
    if seen == digest(listed):
        return Response(status_code=204)
    return HTMLResponse(render("campaigns_live.html", **_live_list(page_number, listed)) + listed)


def _listed(answers: AnswersOf, service: Service, role: Role, number: int) -> Markup:
    """The list alone, made once for all who ask at the same time."""

    def made(_: object) -> str:
        found = campaign_page(service.store, page=number, page_size=PAGE_SIZE, known=service.summaries)
        pages = max(1, -(-found.total // PAGE_SIZE))
        values = {"found": found, "page": number, "pages": pages, "may_change": role is Role.OPERATOR}
        return render("campaigns_list.html", **values)

    question = replace(answers.question, about=f"list of campaigns, page {number}")
    return Markup(answers.memory.answered(question, object, made))  # noqa: S704 - what a template has made


def _live_list(number: int, listed: str) -> dict[str, object]:
    """What the element that asks again says of the list that is shown."""
    return {"page": number, "seen": digest(listed), "polls_every_s": POLL_S}


@router.get("/campaigns/{name}")
def one_campaign(answers: AnswersOf, store: StoreOf, shelf: ShelfOf, role: RoleOf, name: CampaignName) -> Response:
    """One campaign, live."""
    pieces = PieceMaker(store=store, shelf=shelf, role=role).kept(answers, name)
    return page("campaign.html", here=None, pieces=pieces, figures=tuple(SHOWN.items()), across=ACROSS)


@router.get("/campaigns/{name}/live")
def live(answers: AnswersOf, store: StoreOf, shelf: ShelfOf, role: RoleOf, name: CampaignName, seen: Seen) -> Response:
    """The pieces that changed since the page saw them last; nothing (204) where nothing was written."""
    was, edition, *digests = seen.split("~")
    (now,) = stamp(store, (name,))
    if was == moment(now):
        return Response(status_code=204)
    pieces = PieceMaker(store=store, shelf=shelf, role=role).kept(answers, name, pace=LIVE)
    if was == pieces.moment:
        return Response(status_code=204)
    old = dict(zip(PARTS, digests, strict=False))
    changed = [part.html for part in pieces.parts if old.get(part.name) != part.digest]
    news = {} if edition == pieces.edition else {"HX-Trigger": "outcomes"}
    return HTMLResponse("".join([pieces.live, *changed]), headers=news)


@router.get("/campaigns/{name}/trials")
def trials(answers: AnswersOf, store: StoreOf, name: CampaignName, page_number: Asked = 1) -> Response:
    """One page of the table of trials."""

    def made() -> str:
        return render("campaign/trials.html", table=trials_table(store, name, page_number), replaces=False)

    return answers.text(lambda: stamp(store, (name,)), made, HTML)


@router.get("/campaigns/{name}/figures/{wanted}")
async def one_figure(service: ServiceOf, shelf: ShelfOf, name: CampaignName, wanted: str) -> Response:
    """What the page's script needs to draw a figure."""
    if wanted not in SHOWN:
        raise bad_value("figure", wanted, f"one of {', '.join(SHOWN)}")
    drawn = await service.slowly(lambda: shelf.drawn(service.store, name, wanted, lambda found: figure(found, wanted)))
    return Response(drawn, media_type=JSON)


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
