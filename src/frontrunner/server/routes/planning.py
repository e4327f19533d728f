"""What the formulas say of a campaign that nobody has to run."""

from __future__ import annotations

from fastapi import APIRouter, Response

from frontrunner.planning_api import plan_of, shown_plan
from frontrunner.server.answers import answer
from frontrunner.server.bodies import campaign_from, contents_untold
from frontrunner.server.models import PlanBody, RegisteredAnswer
from frontrunner.server.state import ServiceOf
from frontrunner.views.shown_plan import ShownPlan

router = APIRouter(tags=["planning"])


@router.get("/registered", response_model=RegisteredAnswer)
def registered(service: ServiceOf) -> Response:
    """The sites, trainers, data and tables that a launch or a plan may name."""
    return answer(service.settings.registered.about())


@router.post("/plan", response_model=ShownPlan)
async def plan(service: ServiceOf, body: PlanBody) -> Response:
    """Estimate every legal recipe of a campaign by formulas; nothing is run or kept."""

    def planned() -> ShownPlan:
        settings = service.settings
        with contents_untold(body, settings.registered):
            file = campaign_from(body, settings.registered, most_points=settings.limits.plan_points)
            return shown_plan(plan_of(file.spec), body.top)

    return answer(await service.slowly(planned))
