"""Questions to the store; each route calls the method of `LocalStore` of its name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import anyio
import anyio.to_thread
from cachetools import TTLCache
from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from frontrunner.baseline import Baseline
from frontrunner.events import POLL_S, Follower, parse_cursor
from frontrunner.exchange import TARGETS
from frontrunner.pareto_front import OnFront
from frontrunner.plain_json import to_json
from frontrunner.reporting import Reported, not_drawn, report_text, reported
from frontrunner.reporting import figure as draw_figure
from frontrunner.results import frames
from frontrunner.results.active_drivers import ActiveDriver
from frontrunner.results.explain import Explanation
from frontrunner.results.pages import CampaignPage, Comparison, RecipePage, TrialPage, campaign_page
from frontrunner.results.predictions import SmallScale
from frontrunner.results.ranking import RankBy, RankedRecipe
from frontrunner.results.states import TrialState
from frontrunner.results.status import FailedTrial, Status, failures
from frontrunner.server.auth import Role
from frontrunner.server.errors import TooMany
from frontrunner.server.redaction import redacted_explanation, redacted_status
from frontrunner.server.requests import FrameAnswer, RecipeQuestion
from frontrunner.server.responses import answer
from frontrunner.server.service import CachedRoute, LocalOf, RoleOf, Service, ServiceOf, StoreOf
from frontrunner.spaces.errors import CAMPAIGN_NAME, InvalidInput, NothingLegal
from frontrunner.store import LOG_BYTES
from frontrunner.views.charts import FIGURES
from frontrunner.views.charts.data import Missing
from frontrunner.views.report import Elsewhere

campaigns = APIRouter(tags=["campaigns"], route_class=CachedRoute)
recipes = APIRouter(tags=["recipes"], route_class=CachedRoute)
reports = APIRouter(tags=["reports"], route_class=CachedRoute)
events = APIRouter(tags=["events"])

REPORT_TTL_S = 10.0
"""How long what was read for a report serves its figures too: a client asks for each of them by itself."""
MOST_REPORTED = 2
QUIET_POLLS = 15
"""After this many polls without news a comment keeps proxies from closing the connection."""
MEDIA = {"svg": "image/svg+xml", "png": "image/png"}
TEXT = "text/plain; charset=utf-8"

CampaignName = Annotated[
    str, Path(pattern=f"^{CAMPAIGN_NAME.pattern}$", description="A campaign's name.", examples=["frontier-22b"])
]
RecipeId = Annotated[str, Path(pattern="^[0-9a-f]{4,64}$", description="A recipe's id, or a unique prefix of it.")]
PageNumber = Annotated[int, Query(ge=1, le=1_000_000, description="The page, from 1.")]
PageSize = Annotated[int, Query(ge=1, le=200, description="Items per page.")]
SideName = Annotated[str, Query(min_length=1, max_length=64)]
FigureName = Annotated[str, Path(json_schema_extra={"enum": list(FIGURES)}, max_length=64)]
Objectives = Annotated[list[str], Query(min_length=2, max_length=3, examples=[["tokens", "nodes"]])]


def _content(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """Describe a response that is not JSON."""
    return {200: {"content": {kind: {"schema": {"type": "string"}} for kind in kinds}}}


@campaigns.get("/campaigns", response_model=CampaignPage)
def all_campaigns(store: StoreOf, page: PageNumber = 1, page_size: PageSize = 50) -> Response:
    """Return the store's campaigns, the newest first."""
    return answer(campaign_page(store, page=page, page_size=page_size))


@campaigns.get("/drivers", response_model=list[ActiveDriver])
def drivers(store: LocalOf) -> Response:
    """Return the drivers that hold a campaign, and when each last wrote."""
    return answer(store.drivers())


@campaigns.get("/compare", response_model=Comparison)
def compare(
    store: LocalOf, first: SideName, second: SideName, page: PageNumber = 1, page_size: PageSize = 50
) -> Response:
    """Return two campaigns side by side, and the recipes that both have measured."""
    return answer(store.compare(first, second, page=page, page_size=page_size))


@campaigns.get("/campaigns/{name}", response_model=Status)
def status(store: LocalOf, name: CampaignName) -> Response:
    """Return the state of a campaign."""
    return answer(redacted_status(store.status(name)))


@campaigns.get("/campaigns/{name}/trials", response_model=TrialPage)
def trials(
    store: LocalOf,
    name: CampaignName,
    state: TrialState | None = None,
    page: PageNumber = 1,
    page_size: PageSize = 50,
) -> Response:
    """Return a campaign's trials in the order in which they were proposed, with their outcomes."""
    return answer(store.trials(name, state=state, page=page, page_size=page_size))


@campaigns.get("/campaigns/{name}/failures", response_model=list[FailedTrial])
def failed(store: StoreOf, name: CampaignName, page: PageNumber = 1, page_size: PageSize = 50) -> Response:
    """Return a campaign's failed trials with their log tails."""
    return answer(failures(store, name, limit=page_size, offset=(page - 1) * page_size))


@campaigns.get("/campaigns/{name}/trials/{number}/log", response_class=Response, responses=_content("text/plain"))
def log(
    store: LocalOf,
    role: RoleOf,
    name: CampaignName,
    number: Annotated[int, Path(ge=1, le=2**31)],
    most_bytes: Annotated[int, Query(ge=0, le=LOG_BYTES)] = LOG_BYTES,
) -> Response:
    """Return the end of the log of a failed trial: of the rank that failed first, in its last attempt.

    An operator gets the end of the file, a reader the lines that the driver stored without its secrets.
    """
    text = store.log(name, number, most_bytes=most_bytes if role is Role.OPERATOR else 0)
    return Response(text, media_type=TEXT)


@recipes.get("/campaigns/{name}/best", response_model=list[RankedRecipe])
def best(
    store: LocalOf,
    name: CampaignName,
    top: Annotated[int, Query(ge=1, le=1000)] = 10,
    by: RankBy = RankBy.TOKENS,
    max_memory_gb: Annotated[float | None, Query(gt=0, le=1e9, description="Largest peak memory of a rank.")] = None,
) -> Response:
    """Return a campaign's recipes, best first."""
    return answer(store.best(name, top=top, by=by, max_memory_gb=max_memory_gb))


@recipes.get("/campaigns/{name}/pareto", response_model=list[RankedRecipe])
def pareto(store: LocalOf, name: CampaignName) -> Response:
    """Return the recipes that no other beats in both tokens/s and peak memory."""
    return answer(store.pareto(name))


@recipes.get("/campaigns/{name}/front", response_model=list[OnFront])
def front(store: LocalOf, name: CampaignName, objective: Objectives) -> Response:
    """Return the recipes that no other beats in all the objectives: tokens, memory (headroom), nodes."""
    return answer(store.front(name, objectives=objective))


@recipes.get("/campaigns/{name}/recipes", response_model=RecipePage)
def filtered(store: LocalOf, name: CampaignName, asked: Annotated[RecipeQuestion, Query()]) -> Response:
    """Return a campaign's measured recipes that pass the filters, best first, with their ranks among all."""
    found = store.recipes(
        name,
        by=asked.by,
        max_memory_gb=asked.max_memory_gb,
        page=asked.page,
        page_size=asked.page_size,
        **asked.choices,
    )
    return answer(found)


@recipes.get("/recipes/{recipe_id}", response_model=Explanation)
def show(store: LocalOf, recipe_id: RecipeId) -> Response:
    """Return everything that the store knows of a recipe, and why it ranks where it does."""
    return answer(redacted_explanation(store.show(recipe_id)))


@recipes.get("/recipes/{recipe_id}/export", response_class=Response, responses=_content("text/plain"))
def export(
    store: LocalOf, recipe_id: RecipeId, to: Annotated[str, Query(json_schema_extra={"enum": list(TARGETS)})]
) -> Response:
    """Return a recipe as another tool's configuration, as a batch script, or as a recipe file."""
    return Response(store.export(recipe_id, to=to), media_type=TEXT)


@recipes.get("/recipes/{recipe_id}/predictions", response_model=list[SmallScale])
def predictions_of(store: LocalOf, recipe_id: RecipeId) -> Response:
    """Return the campaigns that predict a recipe, each with that prediction only."""
    return answer(store.predictions_of(recipe_id))


@reports.get("/campaigns/{name}/predictions", response_model=SmallScale | None)
def predictions(store: LocalOf, name: CampaignName) -> Response:
    """Return what a campaign that is measured on few nodes predicts for all of them; null for others."""
    return answer(store.predictions(name))


@reports.get("/campaigns/{name}/baseline", response_model=Baseline | None)
def baseline(store: LocalOf, name: CampaignName) -> Response:
    """Return the campaign's baseline and its best recipe; null without a measured baseline."""
    return answer(store.baseline(name))


@reports.get("/campaigns/{name}/report", response_class=Response, responses=_content("text/html"))
async def report(request: Request, service: ServiceOf, name: CampaignName) -> Response:
    """Return a campaign as one self-contained HTML page."""
    scheme = "https" if service.settings.behind_tls else "http"
    elsewhere = Elsewhere(server=f"{scheme}://{request.url.netloc}")
    text = await service.slowly(lambda: report_text(read_report(request, service, name), elsewhere))
    headers = {"content-disposition": f'attachment; filename="{name}.html"'}
    return Response(text, media_type="text/html", headers=headers)


@reports.get("/campaigns/{name}/figures/{figure}", response_class=Response, responses=_content(*MEDIA.values()))
async def figure(
    request: Request,
    service: ServiceOf,
    name: CampaignName,
    figure: FigureName,
    format: Literal["svg", "png"] = "svg",  # noqa: A002 - the option's name
) -> Response:
    """Return one figure of a campaign's report as a picture; 422 with the reason where it cannot be drawn."""
    drawn = await service.slowly(lambda: draw_figure(read_report(request, service, name), figure, format))
    if isinstance(drawn, Missing):
        raise NothingLegal(not_drawn(figure) + drawn.reason)
    return Response(drawn, media_type=MEDIA[format])


def read_report(request: Request, service: Service, name: str, version: str = "") -> Reported:
    """Read what a campaign's report and figures show, at most once per `REPORT_TTL_S` and version of a page."""
    kept: TTLCache[tuple[str, str], Reported] = request.app.state.reported
    found: Reported | None = kept.get((name, version))
    if found is None:
        found = kept[name, version] = reported(service.store, name)
    return found


@reports.get("/campaigns/{name}/dataframe", response_model=FrameAnswer)
async def dataframe(service: ServiceOf, name: CampaignName) -> Response:
    """Return a table with one row per finished attempt, by column."""
    most = service.settings.limits.frame_rows

    def table() -> bytes:
        rows = frames.row_count(service.store, name)
        if rows > most:
            raise InvalidInput(
                f"campaign {name} has {rows:,} finished attempts: a service makes a table of at most {most:,}",
                hint="run `frontrunner dataframe` where the store is",
            )
        columns = frames.plain_columns(frames.frame(service.store, name))
        # Column by column: no other thread runs while a piece of JSON is made.
        parts = [f"{to_json(key)}: {to_json(cells)}" for key, cells in columns.items()]
        return ('{"columns": {' + ", ".join(parts) + "}}").encode()

    return Response(await service.slowly(table), media_type="application/json")


@events.get("/campaigns/{name}/events", response_class=Response, responses=_content("text/event-stream"))
async def event_stream(
    service: ServiceOf,
    name: CampaignName,
    last_event_id: Annotated[str | None, Header(max_length=64, description="Continue after this event.")] = None,
) -> Response:
    """Stream a campaign's history and outcomes as they are recorded, from its beginning or after an id; endless."""
    cursor = parse_cursor(last_event_id)
    await anyio.to_thread.run_sync(lambda: service.store.campaign(name))  # an unknown one is 404, not a stream
    if service.streams.available_tokens < 1:
        raise TooMany(f"{service.settings.limits.streams} streams are open: no more may be")
    follower = Follower(service.store, name, cursor)
    return StreamingResponse(_stream(follower, service.streams), media_type="text/event-stream")


async def _stream(follower: Follower, streams: anyio.CapacityLimiter) -> AsyncIterator[str]:
    quiet = 0
    async with streams:
        yield f"retry: {int(1000 * POLL_S)}\n\n"
        while True:
            found, more = await anyio.to_thread.run_sync(follower.poll)
            for event in found:
                yield f"id: {event.id}\nevent: {event.kind}\ndata: {to_json(event.data)}\n\n"
            quiet = 0 if found else quiet + 1
            if quiet and quiet % QUIET_POLLS == 0:
                yield ": no news\n\n"
            if not more:
                await anyio.sleep(POLL_S)
