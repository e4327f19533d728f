"""Pages of campaigns: the list, and one campaign as it goes on."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from frontrunner.results.pages import campaign_page, newest_spans, trial_page
from frontrunner.results.predictions import outlook_of
from frontrunner.results.prior_results import probes_made
from frontrunner.results.ranking import pareto, rank
from frontrunner.results.records import IMPORTED, Campaign
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.status import Status, active_drivers, campaign_and_driver, failures, status, version_of
from frontrunner.results.store import Store
from frontrunner.search.budget import STOPPING, Spent, outlook_in_words
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.server.auth import Role
from frontrunner.server.drivers import Word
from frontrunner.server.pages.rendering import page, render
from frontrunner.server.requests import Page
from frontrunner.server.routes import CampaignName
from frontrunner.server.service import OPERATOR, CachedRoute, RoleOf, Service, ServiceOf
from frontrunner.spaces.errors import bad_value
from frontrunner.views.charts import FIGURES
from frontrunner.views.charts.campaign import timeline
from frontrunner.views.columns import CAMPAIGNS, COLUMNS, ORIGINS, TRIALS, used

router = APIRouter(route_class=CachedRoute)
PageOf = Annotated[Page, Query(alias="page")]
Digest = Annotated[str, Query(max_length=64)]
Seen = Annotated[str, Query(max_length=400, pattern="~")]
"""What a page shows: the campaign's version, that of its charts, and the digest of each section, with ~ between."""
SECTIONS = ("numbers", "ranking", "trials", "timeline", "failures", "events")
POLL_S, POLL_DRIVEN_S = 5, 3
CHARTS_AT_ONCE, CHARTS_EVERY_S = 10, 15
"""While a driver runs, each of the first outcomes redraws the charts; later ones redraw them at this interval."""
MOST_SPANS = 160
SHOWN = ("history", "speed-memory", "feasibility", "sensitivity", "parallel-coordinates")
"""The report's charts that a campaign's page draws too; the others take seconds."""
CAMPAIGNS_A_PAGE, TRIALS_A_PAGE, TOP, MOST_FAILURES = 50, 25, 10, 40
ACCEPTED = {
    "pause": "Pausing: running probes will finish, and no more are started.",
    "stop": "Stopping: running probes will finish, and the campaign ends.",
    "cancel": "Canceling: running probes are ended now; the campaign can be resumed.",
}


def campaign_view(store: Store, name: str) -> dict[str, Any]:
    """Return what the page shows, all of it as it was at one moment."""
    with store.database.reading():
        found = status(store, name)
        campaign, spec = found.campaign, stored_spec(found.campaign)
        spent = Spent(
            probes=probes_made(store, campaign),
            driver_seconds=campaign.driver_seconds,
            node_seconds=campaign.node_seconds_spent,
        )
        newest, now = newest_spans(store, campaign.id, MOST_SPANS), store.now() if found.driver_is_live else None
        with store.database.read() as connection:
            ranking = rank(connection, campaign, top=TOP)
        outlook = "" if found.outlook is None else outlook_in_words(outlook_of(found.outlook)[0])
        if campaign.state_reason.startswith(outlook.partition("; ")[0]):  # the reason of the end states it
            outlook = ""
        front = pareto(store, campaign, least_tokens_per_s=ranking[-1].standing.tokens_per_s) if ranking else []
        older_failures = max(0, found.trials[TrialState.FAILED] - MOST_FAILURES)
        most_rows = min(TOP, campaign.legal_recipes, spec.budget.probes or TOP)
        return {
            "status": found,
            "campaign": campaign,
            "spec": spec,
            "problem": spec.problem,
            "notice": ORIGINS.get(campaign.figures, ""),  # where the figures come from if it did not measure them
            "can_be_driven": campaign.figures != IMPORTED and not found.driver_is_live,  # a table's rows have no driver
            "ending": _ending(store, found),
            "outlook": outlook,
            "limits": spent.limits(spec.budget),
            "ranking": ranking,
            "columns": used(COLUMNS, ranking),
            "rows_ahead": most_rows - len(ranking) if found.driver_is_live else 0,  # that the ranking may come to have
            "front_ids": {row.recipe_id for row in front},
            "failed": failures(store, campaign, limit=MOST_FAILURES, offset=older_failures)[::-1],
            "timeline": timeline([] if campaign.figures == IMPORTED else newest.items, now),
            "timeline_left_out": newest.total - len(newest.items),
            **_trials(store, name, 1),
        }


def _trials(store: Store, name: str, number: int) -> dict[str, Any]:
    found = trial_page(store, name, newest_first=True, page=number, page_size=TRIALS_A_PAGE)
    return {"name": name, "page": number, "size": TRIALS_A_PAGE, "found": found, "trial_columns": TRIALS}


def _ending(store: Store, found: Status) -> str:
    """Return that the current driver was asked to pause or to stop, and what it waits for."""
    request = next((event for event in reversed(found.last_events) if event.kind == STOPPING), None)
    driver = next((one for one in active_drivers(store) if one.campaign == found.campaign.name), None)
    if request is None or driver is None or not driver.is_live or request.at < driver.since:
        return ""
    word = "pausing" if request.data.get("leaves") == CampaignState.PAUSED else "stopping"
    left = found.trials[TrialState.RUNNING]
    return f"{word}, {left} probe{'s' if left > 1 else ''} to finish" if left else word


def version(store: Store, name: str) -> str:
    """Return a campaign's version: cheap, and changed by every write and by the end of its driver's lease."""
    version, is_driven = version_of(store, name)
    return f"{version} {'driven' if is_driven else 'left'}"


def digest(text: str) -> str:
    """Return a short name for a piece of HTML, by which a browser states which version of it is shown."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


@router.get("/")
def all_campaigns(service: ServiceOf, role: RoleOf, number: PageOf = 1) -> Response:
    """The store's campaigns, the newest first; live."""
    return page("campaigns.html", here="/", may_change=role is Role.OPERATOR, **_list(service, role, number))


@router.get("/campaigns")
def campaigns_live(service: ServiceOf, role: RoleOf, seen: Digest, number: PageOf = 1) -> Response:
    """The list as it is now; nothing (204) if the page shows that already."""
    listed = _list(service, role, number)
    if seen == digest(listed["listed"]):
        return Response(status_code=204)
    return HTMLResponse(listed["live"] + listed["listed"])


def _list(service: Service, role: Role, number: int) -> dict[str, Markup]:
    found = campaign_page(service.store, page=number, page_size=CAMPAIGNS_A_PAGE)
    values = {"columns": CAMPAIGNS, "page": number, "size": CAMPAIGNS_A_PAGE, "may_change": role is Role.OPERATOR}
    listed = render("campaigns_list.html", found=found, **values)
    url = f"/campaigns?page={number}&seen={digest(listed)}"
    return {"listed": listed, "live": render("live.html", url=url, polls_every_s=POLL_S)}


@router.get("/campaigns/{name}")
def one_campaign(service: ServiceOf, role: RoleOf, name: CampaignName) -> Response:
    """One campaign, live."""
    now = version(service.store, name)
    view = campaign_view(service.store, name)
    sections = _sections(view, role)
    figures = {name: FIGURES[name][0] for name in SHOWN}
    live = _live(view["status"], now, sections)
    return page("campaign.html", here=None, name=name, sections=sections, live=live, figures=figures)


@router.get("/campaigns/{name}/live")
def live(service: ServiceOf, role: RoleOf, name: CampaignName, seen: Seen) -> Response:
    """The sections that changed since the page was sent them; nothing (204) if nothing was written."""
    was, charts, *digests = seen.split("~")
    now = version(service.store, name)
    if was == now and now.endswith("left"):  # bars of probes that run reach up to this moment
        return Response(status_code=204)
    view = campaign_view(service.store, name)
    sections = _sections(view, role)
    old = dict(zip(SECTIONS, digests, strict=False))
    changed = [html for section, html in sections.items() if old.get(section) != digest(html)]
    if was == now and not changed:
        return Response(status_code=204)
    campaign: Campaign = view["campaign"]
    news = {} if charts == charts_version(campaign, view["status"].driver_is_live) else {"HX-Trigger": "outcomes"}
    return HTMLResponse("".join([_live(view["status"], now, sections), *changed]), headers=news)


def _sections(view: Mapping[str, Any], role: Role) -> dict[str, Markup]:
    values = {**view, "may_change": role is Role.OPERATOR, "replaces": True}
    return {section: render(f"campaign/{section}.html", **values) for section in SECTIONS}


def _live(found: Status, now: str, sections: Mapping[str, Markup]) -> Markup:
    seen = "~".join([now, charts_version(found.campaign, found.driver_is_live), *map(digest, sections.values())])
    url = f"/campaigns/{found.campaign.name}/live?seen={quote(seen)}"
    return render("live.html", url=url, polls_every_s=POLL_DRIVEN_S if found.driver_is_live else POLL_S)


def charts_version(campaign: Campaign, driver_is_live: bool) -> str:  # noqa: FBT001 - as it is read
    """Return the version of a campaign's charts: a new one per outcome, later one per `CHARTS_EVERY_S`."""
    if driver_is_live and campaign.outcomes > CHARTS_AT_ONCE:
        return f"t{int(time.time() / CHARTS_EVERY_S)}"
    return f"{campaign.outcomes}-{campaign.node_seconds_spent:g}"


@router.get("/campaigns/{name}/trials")
def trials(service: ServiceOf, name: CampaignName, number: PageOf = 1) -> Response:
    """One page of the table of trials."""
    return page("campaign/trials.html", replaces=False, **_trials(service.store, name, number))


@router.get("/campaigns/{name}/figures/{wanted}")
async def one_figure(service: ServiceOf, name: CampaignName, wanted: str) -> Response:
    """One of the charts for charts.js: what to read in it, and its specification, null if it cannot be drawn."""
    if wanted not in SHOWN:
        raise bad_value("figure", wanted, f"one of {', '.join(SHOWN)}")

    def drawn() -> str:
        version = charts_version(*campaign_and_driver(service.store, name))
        return service.report(name, version).chart_json(wanted)

    return Response(await service.slowly(drawn), media_type="application/json")


@router.post("/campaigns/{name}/resume", dependencies=OPERATOR)
async def resume(service: ServiceOf, name: CampaignName) -> Response:
    """Have a driver go on with the campaign."""
    started = await service.slowly(lambda: service.drivers.resume(name), starts=True)
    return HTMLResponse(f'<p class="fine">Process {started["pid"]} continues {name}.</p>')


@router.post("/campaigns/{name}/{word}", dependencies=OPERATOR)
def control(service: ServiceOf, name: CampaignName, word: Word) -> Response:
    """Pause, stop or cancel the campaign."""
    service.drivers.tell(name, word)
    return HTMLResponse(f'<p class="fine">{ACCEPTED[word]}</p>')
