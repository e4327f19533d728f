"""Routes of the API: questions to the store, plans, launches, signals to drivers, replays and login
links.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Literal, get_origin

import anyio
import anyio.to_thread
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from frontrunner.evaluators.analytic.estimates import ShownPlan
from frontrunner.exchange import export_name
from frontrunner.fronts import OnFront
from frontrunner.planning import plan_of
from frontrunner.results import frames
from frontrunner.results.pages import CampaignPage, RecipePage, campaign_page
from frontrunner.results.pruning import Deleted
from frontrunner.results.status import FailedTrial, failures
from frontrunner.server import requests
from frontrunner.server.auth import USER_NAME, Role
from frontrunner.server.drivers import Replay, Word
from frontrunner.server.errors import KINDS, Refused, TooMany, status_of, title_of, type_of
from frontrunner.server.service import (
    OPERATOR,
    STARTS,
    CachedRoute,
    CallerOf,
    OnceRoute,
    RoleOf,
    Service,
    ServiceOf,
    answer,
    unhurried,
)
from frontrunner.spaces.errors import (
    CAMPAIGN_NAME,
    InvalidInput,
    NotFound,
    NothingLegal,
    did_you_mean,
)
from frontrunner.store import LOG_BYTES, POLL_S, Follower, parse_cursor
from frontrunner.text import to_json
from frontrunner.views.charts import FIGURES
from frontrunner.views.charts.marks import Missing
from frontrunner.views.report import figure as draw_figure
from frontrunner.views.report import not_drawn, report_text

api = APIRouter(route_class=CachedRoute)
uncached = APIRouter(route_class=OnceRoute)
"""Routes whose responses change while nothing is written, and those that write nothing."""

QUIET_POLLS = 15
CSV_ROWS = 500
"""Rows that are written at a time: meanwhile no other thread runs."""
MEDIA = {"svg": "image/svg+xml", "png": "image/png"}
TEXT = "text/plain; charset=utf-8"

CampaignName = Annotated[
    str,
    Path(
        pattern=f"^{CAMPAIGN_NAME.pattern}$",
        description="A campaign's name.",
        examples=["frontier-22b"],
    ),
]
RecipeId = Annotated[
    str, Path(pattern="^[0-9a-f]{4,64}$", description="A recipe's id, or a unique prefix of it.")
]
SUBJECTS = {"name": CampaignName, "recipe_id": RecipeId}


def _content(*kinds: str) -> Any:
    content = {kind: {"schema": {"type": "string"}} for kind in kinds}
    return {"response_class": Response, "responses": {200: {"content": content}}}


def _add(question: requests.Question) -> None:
    subjects = [name for name in SUBJECTS if f"{{{name}}}" in question.path]

    def route(service: Service, **given: Any) -> Response:
        of = [given.pop(name) for name in subjects]
        found = getattr(service.local, question.method)(*of, **given)
        if question.result is not str:
            return answer(requests.redacted(found))
        headers = {
            "content-disposition": f'attachment; filename="{export_name(of[0], given["to"])}"'
        }
        return Response(found, media_type=TEXT, headers=headers)

    async def slow_route(service: Service, **given: Any) -> Response:
        return await service.slowly(lambda: route(service, **given))

    served = slow_route if question.method == "step" else route
    of_path = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=SUBJECTS[name])
        for name in subjects
    ]
    service = inspect.Parameter(
        "service", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=ServiceOf
    )
    of_query = [question.parameter(name) for name in question.query]
    lists = [
        one for one in of_query if get_origin(one.annotation) is list
    ]  # FastAPI would read them from a body
    of_query = [
        one.replace(annotation=Annotated[one.annotation, Query()]) if one in lists else one
        for one in of_query
    ]
    vars(served)["__signature__"] = inspect.Signature([service, *of_path, *of_query])
    described: Any = {
        "name": question.method,
        "description": inspect.getdoc(question.local),
        "tags": [question.tag],
    }
    described |= (
        _content("text/plain") if question.result is str else {"response_model": question.result}
    )
    api.get(question.path, **described)(served)


for _question in requests.QUESTIONS:
    _add(_question)


@api.get("/campaigns", response_model=CampaignPage, tags=["campaigns"])
def all_campaigns(
    service: ServiceOf, page: requests.Page = 1, page_size: requests.PageSize = 50
) -> Response:
    """Return the store's campaigns, the newest first."""
    return answer(campaign_page(service.store, page=page, page_size=page_size))


@api.get(
    "/campaigns/{name}/failures",
    response_model=list[FailedTrial],
    name="failures",
    tags=["campaigns"],
)
def failed(
    service: ServiceOf,
    name: CampaignName,
    page: requests.Page = 1,
    page_size: requests.PageSize = 50,
) -> Response:
    """Return a campaign's failed trials with their log tails."""
    return answer(failures(service.store, name, limit=page_size, offset=(page - 1) * page_size))


@api.get("/campaigns/{name}/trials/{number}/log", tags=["campaigns"], **_content("text/plain"))
def log(
    service: ServiceOf,
    role: RoleOf,
    name: CampaignName,
    number: Annotated[int, Path(ge=1, le=2**31)],
    most_bytes: Annotated[int, Query(ge=0, le=LOG_BYTES)] = LOG_BYTES,
) -> Response:
    """Return the end of the log of a trial that runs, or of a failed one: of the rank that failed
    first.

    An operator gets the end of the file, a reader the lines that the driver stored without its
    secrets: of a trial that runs there are none yet.
    """
    text = service.local.log(name, number, most_bytes=most_bytes if role is Role.OPERATOR else 0)
    return Response(text, media_type=TEXT)


@api.get("/campaigns/{name}/front", response_model=list[OnFront], tags=["recipes"])
def front(
    service: ServiceOf,
    name: CampaignName,
    objective: Annotated[
        list[str], Query(min_length=2, max_length=3, examples=[["tokens", "nodes"]])
    ],
) -> Response:
    """Return the recipes that no other beats in all the objectives: tokens, memory (headroom),
    nodes.
    """
    return answer(service.local.front(name, objectives=objective))


@api.get("/campaigns/{name}/recipes", response_model=RecipePage, name="recipes", tags=["recipes"])
def filtered(
    service: ServiceOf, name: CampaignName, asked: Annotated[requests.RecipeQuestion, Query()]
) -> Response:
    """Return a campaign's measured recipes that pass the filters, best first, with their ranks
    among all.
    """
    return answer(service.local.recipes(name, **asked.model_dump(exclude_none=True)))


@api.get("/campaigns/{name}/report", tags=["reports"], **_content("text/html"))
async def report(request: Request, service: ServiceOf, name: CampaignName) -> Response:
    """Return a campaign as one self-contained HTML page."""
    text = await service.slowly(
        lambda: report_text(service.report(name), server=service.settings.seen_by(request))
    )
    headers = {"content-disposition": f'attachment; filename="{name}.html"'}
    return Response(text, media_type="text/html", headers=headers)


@api.get("/campaigns/{name}/figures/{figure}", tags=["reports"], **_content(*MEDIA.values()))
async def figure(
    service: ServiceOf,
    name: CampaignName,
    figure: Annotated[str, Path(json_schema_extra={"enum": list(FIGURES)}, max_length=64)],
    format: Literal["svg", "png"] = "svg",  # noqa: A002 - the option's name
) -> Response:
    """Return one figure of a campaign's report as a picture; 422 with the reason where it cannot be
    drawn.
    """
    drawn = await service.slowly(lambda: draw_figure(service.report(name), figure, format))
    if isinstance(drawn, Missing):
        raise NothingLegal(not_drawn(figure) + drawn.reason)
    return Response(drawn, media_type=MEDIA[format])


@api.get(
    "/campaigns/{name}/dataframe",
    response_model=requests.FrameAnswer,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
    tags=["reports"],
)
async def dataframe(
    service: ServiceOf,
    name: CampaignName,
    format: Literal["json", "csv"] = "json",  # noqa: A002 - the option's name
) -> Response:
    """Return a table with one row per finished attempt, by column, or as CSV."""
    most = service.settings.limits.frame_rows

    def made() -> bytes:
        rows = frames.row_count(service.store, name)
        if rows > most:
            raise InvalidInput(
                f"campaign {name} has {rows:,} finished attempts: a service makes a table of at"
                f" most {most:,}",
                hint="run `frontrunner dataframe` where the store is",
            )
        table = frames.frame(service.store, name)
        if format == "csv":
            return table.to_csv(index=False, chunksize=CSV_ROWS).encode()
        columns = frames.plain_columns(table)
        # Column by column: no other thread runs while a piece of JSON is made.
        parts = [f"{to_json(key)}: {to_json(cells)}" for key, cells in columns.items()]
        return ('{"columns": {' + ", ".join(parts) + "}}").encode()

    content = await service.slowly(made)
    if format == "csv":
        headers = {"content-disposition": f'attachment; filename="{name}-measurements.csv"'}
        return Response(content, media_type="text/csv", headers=headers)
    return Response(content, media_type="application/json")


@uncached.get("/campaigns/{name}/events", tags=["events"], **_content("text/event-stream"))
async def event_stream(
    service: ServiceOf,
    caller: CallerOf,
    name: CampaignName,
    last_event_id: Annotated[
        str | None, Header(max_length=64, description="Continue after this event.")
    ] = None,
) -> Response:
    """Stream a campaign's history and outcomes as they are recorded, from its beginning or after an
    id.

    Endless, but for a user who is removed.
    """
    cursor = parse_cursor(last_event_id)
    await anyio.to_thread.run_sync(
        lambda: service.store.campaign(name)
    )  # an unknown one is 404, not a stream
    if service.streams.available_tokens < 1:
        raise TooMany(f"{service.settings.limits.streams} streams are open: no more may be")
    follower = Follower(service.store, name, cursor)
    events = _stream(follower, service.streams, lambda: service.access.lets_in(caller))
    return StreamingResponse(events, media_type="text/event-stream")


async def _stream(
    follower: Follower, streams: anyio.CapacityLimiter, may_read: Callable[[], bool]
) -> AsyncIterator[str]:
    quiet = 0
    async with streams:
        yield f"retry: {int(1000 * POLL_S)}\n\n"
        while may_read():
            found, more = await anyio.to_thread.run_sync(follower.poll)
            for event in found:
                yield f"id: {event.id}\nevent: {event.kind}\ndata: {to_json(event.data)}\n\n"
            quiet = 0 if found else quiet + 1
            if quiet and quiet % QUIET_POLLS == 0:
                yield ": no news\n\n"
            if not more:
                await anyio.sleep(POLL_S)


@uncached.get("/registered", response_model=requests.RegisteredAnswer, tags=["planning"])
def registered(service: ServiceOf) -> Response:
    """Return the sites, trainers, data and tables that a launch or a plan may name."""
    return answer(service.settings.registered.about())


@uncached.post("/plan", response_model=ShownPlan, tags=["planning"])
async def plan(service: ServiceOf, body: requests.PlanBody) -> Response:
    """Estimate every legal recipe of a campaign; nothing is run or stored."""
    settings = service.settings

    def planned() -> ShownPlan:
        with requests.campaign_from(
            body, settings.registered, most_points=settings.limits.plan_points
        ) as file:
            return plan_of(file.spec).shown(body.top)

    return answer(await service.slowly(planned))


@api.post(
    "/campaigns",
    response_model=requests.LaunchAnswer,
    status_code=201,
    tags=["control"],
    dependencies=STARTS,
)
async def launch(service: ServiceOf, body: requests.CampaignBody) -> Response:
    """Start a campaign; the response comes once it is in the store and its driver has begun."""
    table = requests.campaign_table(body, service.settings.registered)
    started = await service.slowly(lambda: service.drivers.launch(table), starts=True)
    return answer(
        started, status=201, headers={"location": f"{requests.API}/campaigns/{started['campaign']}"}
    )


@api.patch(
    "/campaigns/{name}",
    response_model=requests.ChangeAnswer,
    tags=["control"],
    dependencies=OPERATOR,
)
def change(service: ServiceOf, name: CampaignName, body: requests.ChangeBody) -> Response:
    """Change a campaign's labels or limits of its budget, also while it runs, or its name, unless
    it runs.
    """
    limits = {} if body.budget is None else body.budget.model_dump(exclude_none=True)
    if body.name is not None:
        service.local.rename(name, body.name)
    budget = service.local.change_budget(body.name or name, limits, add=body.add)
    labels = service.local.label(body.name or name, **body.labels)
    return answer({"campaign": body.name or name, "budget": budget, "labels": labels})


@api.delete("/campaigns/{name}", response_model=Deleted, tags=["control"], dependencies=OPERATOR)
def delete(service: ServiceOf, name: CampaignName, preview: bool = False) -> Response:  # noqa: FBT001, FBT002
    """Delete a campaign with its outcomes and run folders, or (`preview`) return what that would
    remove.
    """
    return answer(service.local.delete(name, preview=preview))


@api.post(
    "/campaigns/{name}/resume",
    response_model=requests.LaunchAnswer,
    tags=["control"],
    dependencies=STARTS,
)
async def resume(service: ServiceOf, name: CampaignName) -> Response:
    """Continue a campaign where it stopped."""
    return answer(await service.slowly(lambda: service.drivers.resume(name), starts=True))


def _add_signal(word: Word, description: str) -> None:
    path, kind = f"/campaigns/{{name}}/{word}", requests.SignalAnswer

    @api.post(
        path,
        response_model=kind,
        name=word,
        description=description,
        tags=["control"],
        dependencies=OPERATOR,
    )
    def signal(service: ServiceOf, name: CampaignName) -> Response:
        return answer(service.drivers.tell(name, word))


_add_signal("pause", "Let running probes finish, start no more, and leave the campaign paused.")
_add_signal("stop", "Let running probes finish, start no more, and leave the campaign stopped.")
_add_signal(
    "cancel",
    "End running probes at once; their trials are tried again when the campaign is resumed.",
)


@uncached.get("/replays", response_model=list[Replay], tags=["replays"])
def all_replays(service: ServiceOf, role: RoleOf) -> Response:
    """Return every replay that a service on this store has started; the end of its log is for
    operators.
    """
    return answer([found.seen_by(role) for found in service.replays.all()])


@uncached.get("/replays/{recipe_id}", response_model=Replay, tags=["replays"])
def one_replay(service: ServiceOf, role: RoleOf, recipe_id: RecipeId) -> Response:
    """Return the progress of a replay, by the recipe's whole id; the end of its log is for
    operators.
    """
    return answer(service.replays.one(recipe_id).seen_by(role))


@uncached.post(
    "/replays", response_model=Replay, status_code=201, tags=["replays"], dependencies=STARTS
)
async def start_replay(service: ServiceOf, body: requests.ReplayBody) -> Response:
    """Start a replay, or continue one from its newest checkpoint."""
    return answer(
        await service.slowly(lambda: service.replays.start(body.settings()), starts=True),
        status=201,
    )


@uncached.post(
    "/replays/{recipe_id}/stop", response_model=Replay, tags=["replays"], dependencies=OPERATOR
)
def stop_replay(service: ServiceOf, recipe_id: RecipeId) -> Response:
    """Have a replay store a checkpoint and end, the second time at once."""
    return answer(service.replays.stop(recipe_id))


@uncached.get("/problems/{kind}", response_model=requests.ProblemKind, tags=["operations"])
def kind_of_problem(kind: Annotated[str, Path(pattern="^[A-Za-z]{1,64}$")]) -> Response:
    """Return what the errors of a kind have in common: the `type` of each is this address."""
    if kind not in KINDS:
        raise NotFound(f"no kind of error is called {kind}", hint=did_you_mean(kind, KINDS))
    status = None if KINDS[kind] is Refused else status_of(KINDS[kind](""))
    return answer({"type": type_of(kind), "title": title_of(kind), "status": status, "kind": kind})


@uncached.post("/links", response_model=requests.LinkAnswer, status_code=201, tags=["operations"])
def login_link(service: ServiceOf, caller: CallerOf) -> Response:
    """Return a link that logs one browser in as the sender."""
    return answer({"path": f"/login?code={service.links.make(caller)}"}, status=201)


UserName = Annotated[
    str, Path(pattern=f"^{USER_NAME}$", description="A user's name.", examples=["ada"])
]


@uncached.get(
    "/users", response_model=list[requests.UserAnswer], tags=["users"], dependencies=OPERATOR
)
def users(service: ServiceOf) -> Response:
    """Return the users who were invited."""
    fields = list(requests.UserAnswer.model_fields)[1:]
    known = service.access.tokens.users.items()
    return answer(
        [{"name": name} | {key: getattr(user, key) for key in fields} for name, user in known]
    )


@uncached.post(
    "/users",
    response_model=requests.InvitationAnswer,
    status_code=201,
    tags=["users"],
    dependencies=OPERATOR,
)
def invite(service: ServiceOf, body: requests.UserBody) -> Response:
    """Invite a user by a path that is good once, within seven days."""
    code = service.access.invite(body.name, body.role)
    return answer({"name": body.name, "role": body.role, "path": f"/join?code={code}"}, status=201)


@uncached.delete(
    "/users/{user}", response_model=requests.UserName, tags=["users"], dependencies=OPERATOR
)
def remove_user(service: ServiceOf, user: UserName) -> Response:
    """End a user's token, sessions and invitation at once."""
    service.access.remove(user)
    return answer({"name": user})


@uncached.post(
    "/join",
    response_model=requests.TokenAnswer,
    status_code=201,
    tags=["users"],
    dependencies=[Depends(unhurried)],
)
def join(service: ServiceOf, body: requests.JoinBody) -> Response:
    """Accept an invitation, and return the new user's token; needs no token itself."""
    caller, token = service.access.join(body.code)
    return answer({"name": caller.name, "role": caller.role, "token": token}, status=201)
