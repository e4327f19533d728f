"""Pages of a campaign as it goes on."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from frontrunner.results.address import parse_address
from frontrunner.results.pages import history_page, newest_spans, trial_page
from frontrunner.results.predictions import outlook_of
from frontrunner.results.ranking import pareto, rank
from frontrunner.results.records import IMPORTED, Campaign
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.status import (
    Status,
    active_drivers,
    campaign_and_driver,
    failures,
    status,
    version_of,
)
from frontrunner.results.store import Store
from frontrunner.running_trials import LAST_OUTCOMES, log_end, running, why_chosen
from frontrunner.search.budget import STOPPING, outlook_in_words
from frontrunner.search.campaign_setup import budget_used, stored_spec
from frontrunner.server.auth import PLAIN_HTTP_VARIABLE, Role
from frontrunner.server.drivers import Word
from frontrunner.server.pages.rendering import page, render
from frontrunner.server.requests import Page
from frontrunner.server.routes import CampaignName
from frontrunner.server.service import OPERATOR, CachedRoute, RoleOf, Service, ServiceOf
from frontrunner.server.settings import is_loopback
from frontrunner.spaces.errors import bad_value
from frontrunner.views.charts import FIGURES
from frontrunner.views.charts.campaign import timeline
from frontrunner.views.columns import COLUMNS, ORIGINS, TRIALS, used
from frontrunner.views.history import HISTORY

router = APIRouter(route_class=CachedRoute)
PageOf = Annotated[Page, Query(alias="page")]
Seen = Annotated[str, Query(max_length=400, pattern="~")]
"""What a page shows: the campaign's version, that of its charts, and the digest of each section,
with ~ between.
"""
SECTIONS = ("numbers", "now", "ranking", "trials", "timeline", "failures", "events")
POLL_S, POLL_DRIVEN_S = 5, 3
CHARTS_AT_ONCE, CHARTS_EVERY_S = 10, 15
"""While a driver runs, each of the first outcomes redraws the charts; later ones redraw them at
this interval.
"""
MOST_SPANS = 160
SHOWN = ("history", "speed-memory", "feasibility", "sensitivity", "parallel-coordinates")
"""The report's charts that a campaign's page draws too; the others take seconds."""
TRIALS_A_PAGE, TOP, MOST_FAILURES, MOST_RUNNING, EVENTS = 25, 10, 40, 3, 15
RANKED = tuple(column for column in COLUMNS if column.key != "layout")
TRIED = tuple(column for column in TRIALS if column.key != "describe")
"""The columns of tables in which a recipe's link says what these two do."""
OUTCOME_COLUMNS = {column.key: column for column in TRIALS}
JUMPS = {
    "now": "Now",
    "ranking": "Fastest",
    "figures": "Figures",
    "trials": "Trials",
    "timeline": "Timeline",
    "failures": "Failures",
    "events": "History",
    "take-along": "Report, CSV, Python",
}
"""Sections of a campaign's page by their ids, in its order."""
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
        newest, now = (
            newest_spans(store, campaign.id, MOST_SPANS),
            store.now() if found.driver_is_live else None,
        )
        with store.database.read() as connection:
            ranking = rank(connection, campaign, top=TOP)
        outlook = "" if found.outlook is None else outlook_in_words(outlook_of(found.outlook)[0])
        if campaign.state_reason.startswith(
            outlook.partition("; ")[0]
        ):  # the reason of the end states it
            outlook = ""
        front = (
            pareto(store, campaign, least_tokens_per_s=ranking[-1].standing.tokens_per_s)
            if ranking
            else []
        )
        older_failures = max(0, found.trials[TrialState.FAILED] - MOST_FAILURES)
        now_runs = running(store, name, top=MOST_RUNNING)
        most_rows = min(TOP, campaign.legal_recipes, spec.budget.probes or TOP)
        return {
            "status": found,
            "campaign": campaign,
            "spec": spec,
            "problem": spec.problem,
            "notice": ORIGINS.get(
                campaign.figures, ""
            ),  # where the figures come from if it did not measure them
            "can_be_driven": (
                campaign.figures != IMPORTED and not found.driver_is_live
            ),  # a table's rows have no driver
            "ending": _ending(store, found),
            "outlook": outlook,
            "limits": budget_used(store, campaign),
            "ranking": ranking,
            "columns": used(RANKED, ranking),
            "rows_ahead": (
                most_rows - len(ranking) if found.driver_is_live else 0
            ),  # that the ranking may come to have
            "front_ids": {row.recipe_id for row in front},
            "failed": failures(store, campaign, limit=MOST_FAILURES, offset=older_failures)[::-1],
            "timeline": timeline([] if campaign.figures == IMPORTED else newest.items, now),
            "history": history_page(store, name, page_size=EVENTS),
            "history_columns": HISTORY,
            "now": now_runs,
            "shows_now": found.driver_is_live,
            "why_chosen": lambda probe: why_chosen(probe, campaign.strategy),
            "log_ends": lambda probe: log_end(spec.run_folder, Path(probe.run_folder)),
            "outcome_columns": OUTCOME_COLUMNS,
            "most_last": LAST_OUTCOMES,
            "timeline_left_out": newest.total - len(newest.items),
            **_trials(store, name, 1),
        }


def _trials(store: Store, name: str, number: int) -> dict[str, Any]:
    found = trial_page(store, name, newest_first=True, page=number, page_size=TRIALS_A_PAGE)
    return {
        "name": name,
        "page": number,
        "size": TRIALS_A_PAGE,
        "found": found,
        "trial_columns": TRIED,
    }


def _ending(store: Store, found: Status) -> str:
    """Return that the current driver was asked to pause or to stop, and what it waits for."""
    request = next((event for event in reversed(found.last_events) if event.kind == STOPPING), None)
    driver = next(
        (one for one in active_drivers(store) if one.campaign == found.campaign.name), None
    )
    if request is None or driver is None or not driver.is_live or request.at < driver.since:
        return ""
    word = "pausing" if request.data.get("leaves") == CampaignState.PAUSED else "stopping"
    left = found.trials[TrialState.RUNNING]
    return f"{word}, {left} probe{'s' if left > 1 else ''} to finish" if left else word


def version(store: Store, name: str) -> str:
    """Return a campaign's version: cheap, and changed by every write and by the end of its driver's
    lease.
    """
    version, is_driven = version_of(store, name)
    return f"{version} {'driven' if is_driven else 'left'}"


def digest(text: str) -> str:
    """Return a short name for a piece of HTML, by which a browser states which version of it is
    shown.
    """
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


@router.get("/campaigns/{name}")
def one_campaign(
    request: Request, service: ServiceOf, role: RoleOf, name: CampaignName
) -> Response:
    """One campaign, live."""
    now = version(service.store, name)
    view = campaign_view(service.store, name)
    sections = _sections(view, role)
    titles = {figure: title for figure, (title, _) in FIGURES.items()}
    return page(
        "campaign.html",
        here=None,
        name=name,
        sections=sections,
        live=_live(view["status"], now, sections),
        figures={figure: titles.pop(figure) for figure in SHOWN},
        other_figures=titles,
        jumps=[
            (place, title) for place, title in JUMPS.items() if view["shows_now"] or place != "now"
        ],
        snippets=snippets(service, name, service.settings.seen_by(request), role),
    )


@router.get("/campaigns/{name}/live")
def live(service: ServiceOf, role: RoleOf, name: CampaignName, seen: Seen) -> Response:
    """The sections that changed since the page was sent them; nothing (204) if nothing was
    written.
    """
    was, charts, *digests = seen.split("~")
    now = version(service.store, name)
    if was == now and now.endswith("left"):  # bars of probes that run reach up to this moment
        return Response(status_code=204)
    view = campaign_view(service.store, name)
    view["shows_now"] |= was.endswith("driven")  # the page below must not move when the driver ends
    sections = _sections(view, role)
    old = dict(zip(SECTIONS, digests, strict=False))
    changed = [html for section, html in sections.items() if old.get(section) != digest(html)]
    if was == now and not changed:
        return Response(status_code=204)
    campaign: Campaign = view["campaign"]
    news = (
        {}
        if charts == charts_version(campaign, view["status"].driver_is_live)
        else {"HX-Trigger": "outcomes"}
    )
    return HTMLResponse("".join([_live(view["status"], now, sections), *changed]), headers=news)


def snippets(service: Service, name: str, server: str, role: Role) -> dict[str, str]:
    """Return Python that reads a campaign, by where it runs; only an operator is told where the
    store is.
    """
    there = [
        (
            f'store = frontrunner.connect("{server}")  # with the token of $FRONTRUNNER_TOKEN, or'
            " of your token file here"
        ),
        f'frame = store.dataframe("{name}")  # pandas: one row per attempt',
        f'for row in store.best("{name}", top=3):',
    ]
    if urlsplit(server).scheme == "http" and not is_loopback(urlsplit(server).hostname or ""):
        there.insert(
            0,
            f'os.environ["{PLAIN_HTTP_VARIABLE}"] = "1"  # the token crosses the network'
            " unencrypted",
        )
        there.insert(0, "import os")
    found = {"by this service": there}
    path = parse_address(service.store.url).path
    if path is not None and role is Role.OPERATOR:
        found["where the store is"] = [
            f"store = {str(path)!r}",
            f'frame = frontrunner.dataframe("{name}", store=store)  # pandas: one row per attempt',
            f'for row in frontrunner.best("{name}", top=3, store=store):',
        ]
    shows = "    print(row.rank, row.recipe.describe(), row.standing.tokens_per_s)"
    return {
        where: "\n".join(("import frontrunner", "", *lines, shows))
        for where, lines in found.items()
    }


def _sections(view: Mapping[str, Any], role: Role) -> dict[str, Markup]:
    values = {**view, "may_change": role is Role.OPERATOR, "replaces": True}
    return {section: render(f"campaign/{section}.html", **values) for section in SECTIONS}


def _live(found: Status, now: str, sections: Mapping[str, Markup]) -> Markup:
    seen = "~".join(
        [now, charts_version(found.campaign, found.driver_is_live), *map(digest, sections.values())]
    )
    url = f"/campaigns/{found.campaign.name}/live?seen={quote(seen)}"
    return render(
        "live.html", url=url, polls_every_s=POLL_DRIVEN_S if found.driver_is_live else POLL_S
    )


def charts_version(campaign: Campaign, driver_is_live: bool) -> str:  # noqa: FBT001 - as it is read
    """Return the version of a campaign's charts: a new one per outcome, later one per
    `CHARTS_EVERY_S`.
    """
    if driver_is_live and campaign.outcomes > CHARTS_AT_ONCE:
        return f"t{int(time.time() / CHARTS_EVERY_S)}"
    return f"{campaign.outcomes}-{campaign.node_seconds_spent:g}"


@router.get("/campaigns/{name}/trials")
def trials(service: ServiceOf, name: CampaignName, number: PageOf = 1) -> Response:
    """One page of the table of trials."""
    return page("campaign/trials.html", replaces=False, **_trials(service.store, name, number))


@router.get("/campaigns/{name}/figures/{wanted}")
async def one_figure(service: ServiceOf, name: CampaignName, wanted: str) -> Response:
    """One of the charts for charts.js: what to read in it, and its specification, null if it cannot
    be drawn.
    """
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
