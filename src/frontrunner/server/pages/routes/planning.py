"""The pages that come before a campaign: planning by formulas, and launching."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from frontrunner.config.toml_file import parse_toml
from frontrunner.results.store import Store
from frontrunner.server.bodies import campaign_from, campaign_table, contents_untold, parsed
from frontrunner.server.mistakes import mistake_in
from frontrunner.server.models import CampaignBody
from frontrunner.server.pages.rendering import page, render
from frontrunner.server.pages.views.plan import TOP, PlanQuestion, plan_view
from frontrunner.server.pages.views.plan_form import ENTRIES, GROUPS, PlanForm, read_form, shown_values
from frontrunner.server.registered import KINDS
from frontrunner.server.state import OPERATOR, RoleOf, ServiceOf
from frontrunner.server.tokens import Role
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput, NotFound
from frontrunner.views.charts.cut import cut
from frontrunner.views.columns import ESTIMATES, used

router = APIRouter()
MOST_CHARACTERS = 100_000
MOST_ANSWERS = 64
ABSENT = {"site": "this machine", "trainer": "frontrunner's own", "data": "the built-in text", "table": "none"}
"""What a campaign has where no registered name is chosen."""


class CampaignText(BaseModel):
    """A campaign file as text, and the registered names that were chosen beside it; empty where none was."""

    model_config = ConfigDict(extra="forbid")

    campaign: Annotated[str, Field(max_length=MOST_CHARACTERS)]
    site: Annotated[str, Field(max_length=64)] = ""
    trainer: Annotated[str, Field(max_length=64)] = ""
    data: Annotated[str, Field(max_length=64)] = ""
    table: Annotated[str, Field(max_length=64)] = ""

    def body(self) -> CampaignBody:
        """The campaign that the text holds; raises `InvalidInput` for text that is no TOML, or has other keys."""
        table = parse_toml(self.campaign, "the campaign file")
        for kind in KINDS:
            chosen = getattr(self, kind)
            if chosen and table.setdefault(kind, chosen) != chosen:
                raise InvalidInput(f"{kind} = {chosen!r} was chosen, and the campaign file says another {kind}")
        try:
            return CampaignBody.model_validate(table)
        except ValidationError as error:
            raise mistake_in(error.errors()) from None


@router.get("/plan")
async def plan(request: Request, service: ServiceOf) -> Response:
    """The planning page with its first answer, or with what is wrong beside the fields that it is about."""
    form = read_form(request.query_params)
    question = form.question
    answer = "" if question is None else await service.slowly(lambda: _answered(question))
    return page(
        "plan.html",
        here="/plan",
        form=form,
        groups=GROUPS,
        values=_values(form),
        shown=shown_values(form.typed),
        answer=Markup(answer),  # noqa: S704 - what a template has made
    )


@router.get("/plan/answer")
async def plan_answer(request: Request, service: ServiceOf) -> Response:
    """The answer, with what is said beside the fields; where the form cannot be asked, that alone."""
    form = read_form(request.query_params)
    told = render("plan_errors.html", form=form, entries=ENTRIES)
    question = form.question
    if question is None:
        return HTMLResponse(told, headers={"HX-Reswap": "none"})
    answer = await service.slowly(lambda: _answered(question))
    return HTMLResponse(answer + told, headers={"HX-Replace-Url": f"/plan?{urlencode(form.typed)}"})


@router.get("/plan/fields/{name}")
def plan_fields(request: Request, name: Literal["model", "cluster"]) -> Response:
    """The fields under a preset, which show what it says where they are empty."""
    form = read_form(request.query_params)
    (group,) = (group for group in GROUPS if group.preset is not None and group.preset.name == name)
    values, shown = _values(form), shown_values(form.typed)
    return page("plan_fields.html", group=group, form=form, values=values, shown=shown)


def _values(form: PlanForm) -> dict[str, object]:
    """What the form's fields hold: what was typed, and defaults where something is needed."""
    defaults = {name: getattr(PlanQuestion, name) if entry.needed else "" for name, entry in ENTRIES.items()}
    return defaults | dict(form.typed)


@lru_cache(maxsize=MOST_ANSWERS)
def _answered(question: PlanQuestion) -> str:
    """The plan, or why there is none; the same question has the same answer as long as the service runs."""
    try:
        view = plan_view(question)
    except FrontrunnerError as error:
        return render("launch_checked.html", error=error)
    estimates, problem = view.plan.fastest(TOP), view.spec.problem
    first = cut(estimates[0].recipe, problem.cluster, layers=problem.model.layers) if estimates else None
    numbered = list(enumerate(estimates, start=1))
    columns = used(ESTIMATES, numbered)
    return render("plan_answer.html", view=view, estimates=estimates, numbered=numbered, columns=columns, cut=first)


@router.get("/launch")
def launch_page(service: ServiceOf, role: RoleOf) -> Response:
    """A campaign file to edit and launch."""
    text = files("frontrunner.server.pages").joinpath("static", "first-campaign.toml").read_text(encoding="utf-8")
    offered = {kind: names for kind, names in service.settings.registered.about().items() if names}
    may_change = role is Role.OPERATOR
    return page("launch.html", here="/launch", text=text, offered=offered, absent=ABSENT, may_change=may_change)


@router.post("/launch/check")
async def check(service: ServiceOf, given: CampaignText) -> Response:
    """What is wrong with a campaign file, or how many recipes it searches; nothing is started."""

    def checked() -> dict[str, Any]:
        try:
            settings, body = service.settings, given.body()
            with contents_untold(body, settings.registered):
                spec = campaign_from(body, settings.registered, most_points=settings.limits.plan_points).spec
                found = spec.survey()
        except FrontrunnerError as error:
            return {"error": error}
        return {
            "error": None,
            "name": spec.name,
            "is_taken": _is_taken(service.store, spec.name),
            "legal": len(found.recipes),
            "points": found.points,
            "why_none": None if found.recipes else next(found.refused_by_count(), None),
            "devices": spec.problem.cluster.devices,
        }

    return page("launch_checked.html", **await service.slowly(checked))


def _is_taken(store: Store, name: str) -> bool:
    """Whether the store has a campaign of this name."""
    try:
        store.campaign(name)
    except NotFound:
        return False
    return True


@router.post("/launch", dependencies=OPERATOR)
async def launch(service: ServiceOf, given: CampaignText) -> Response:
    """Start the campaign, and go to its page."""

    def begun() -> dict[str, Any]:
        table = campaign_table(given.body(), service.settings.registered)
        parsed(table)  # TOML has numbers that no campaign has, and that cannot be told to a driver
        return service.drivers.launch(table)

    started = await service.slowly(begun)
    return Response(status_code=204, headers={"HX-Redirect": f"/campaigns/{started['campaign']}"})
