"""Questions about campaigns: all of them, one of them, its trials, failures and logs, and two side by side."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from frontrunner.results import status as standing
from frontrunner.results.compare import Comparison
from frontrunner.results.driving import DriverSeen
from frontrunner.results.pages import CampaignPage, TrialPage, campaign_page
from frontrunner.results.states import TrialState
from frontrunner.results.status import FailedTrial, Status
from frontrunner.server.answers import AnswersOf, answer
from frontrunner.server.logs import log_tail
from frontrunner.server.routes.parameters import CampaignName, PageNumber, PageSize
from frontrunner.server.secrets import status_told
from frontrunner.server.state import LocalOf, RoleOf, ServiceOf
from frontrunner.server.tokens import Role

router = APIRouter(tags=["campaigns"])


@router.get("/campaigns", response_model=CampaignPage)
def all_campaigns(answers: AnswersOf, service: ServiceOf, page: PageNumber = 1, page_size: PageSize = 50) -> Response:
    """The store's campaigns, the newest first."""
    return answers.of_now(lambda: campaign_page(service.store, page=page, page_size=page_size, known=service.summaries))


@router.get("/drivers", response_model=list[DriverSeen])
def all_drivers(store: LocalOf) -> Response:
    """Who drives which campaign, and when each last wrote."""
    return answer(store.drivers())


@router.get("/compare", response_model=Comparison)
def compared(
    answers: AnswersOf,
    store: LocalOf,
    first: Annotated[str, Query(min_length=1, max_length=64)],
    second: Annotated[str, Query(min_length=1, max_length=64)],
    page: PageNumber = 1,
    page_size: PageSize = 50,
) -> Response:
    """Two campaigns side by side, and the recipes that both have measured."""
    return answers.about((first, second), lambda: store.compare(first, second, page=page, page_size=page_size))


@router.get("/campaigns/{name}", response_model=Status)
def one_campaign(answers: AnswersOf, store: LocalOf, name: CampaignName) -> Response:
    """Where a campaign stands."""
    return answers.about((name,), lambda: status_told(store.status(name)))


@router.get("/campaigns/{name}/trials", response_model=TrialPage)
def trials(
    answers: AnswersOf,
    store: LocalOf,
    name: CampaignName,
    state: TrialState | None = None,
    page: PageNumber = 1,
    page_size: PageSize = 50,
) -> Response:
    """A campaign's trials in the order in which they were proposed, with what came of each."""
    return answers.about((name,), lambda: store.trials(name, state=state, page=page, page_size=page_size))


@router.get("/campaigns/{name}/failures", response_model=list[FailedTrial])
def failures(
    answers: AnswersOf, service: ServiceOf, name: CampaignName, page: PageNumber = 1, page_size: PageSize = 50
) -> Response:
    """A campaign's failed trials, with the ends of their logs."""
    offset = (page - 1) * page_size
    return answers.about((name,), lambda: standing.failures(service.store, name, limit=page_size, offset=offset))


@router.get(
    "/campaigns/{name}/trials/{number}/log", response_class=Response, responses={200: {"content": {"text/plain": {}}}}
)
def log(service: ServiceOf, role: RoleOf, name: CampaignName, number: Annotated[int, Path(ge=1, le=2**31)]) -> Response:
    """The end of the log of a failed trial: of the rank that failed first, in its last attempt.

    An operator is told it from the file, a reader the lines that the driver put into the store without its secrets.
    """
    most_bytes = service.settings.limits.log_bytes if role is Role.OPERATOR else 0
    text = log_tail(service.store, name, number, most_bytes=most_bytes)
    return Response(text, media_type="text/plain; charset=utf-8")
