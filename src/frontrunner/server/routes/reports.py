"""A whole campaign in one answer: its report, its figures, its attempts as a table, and what it predicts."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import StreamingResponse

from frontrunner.baseline import Baseline
from frontrunner.plain_json import to_json
from frontrunner.reporting import Reported, not_drawn, report_text, reported
from frontrunner.reporting import figure as drawn_figure
from frontrunner.results import frames
from frontrunner.results.driving import stamp
from frontrunner.results.predictions import SmallScale
from frontrunner.results.store import Store
from frontrunner.server.answers import JSON, AnswersOf, answer
from frontrunner.server.models import FrameAnswer
from frontrunner.server.routes.parameters import CampaignName, RecipeId
from frontrunner.server.state import LocalOf, Service, ServiceOf
from frontrunner.spaces.errors import InvalidInput, NothingLegal
from frontrunner.spaces.space import Survey
from frontrunner.views.charts import FIGURES
from frontrunner.views.charts.data import Missing
from frontrunner.views.report import Elsewhere

router = APIRouter(tags=["reports"])
MOST_READ = 4
PIECE_BYTES = 262_144
"""Reports and tables are sent in such pieces, so that a slow reader is only cut off where one takes too long."""
MEDIA = {"svg": "image/svg+xml", "png": "image/png"}
PAGE: dict[int | str, dict[str, Any]] = {200: {"content": {"text/html": {"schema": {"type": "string"}}}}}
PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in MEDIA.values()}}
}
FigureName = Annotated[str, Path(json_schema_extra={"enum": list(FIGURES)}, max_length=64)]


class ReportCache:
    """What was read last of a few campaigns, by their version; the survey of a space never changes."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, object], Reported] = OrderedDict()
        self._surveys: OrderedDict[int, Survey] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, store: Store, name: str, version: object = None) -> Reported:
        """Return everything that is drawn of a campaign; raise `NotFound` for a missing one.

        A `version` that was read before is not read again; the default changes with every write to the campaign.
        """
        key = (name, stamp(store, (name,)) if version is None else version)
        with self._lock:  # a client fetches all figures at once: one of its requests reads
            if key not in self._kept:
                self._kept[key] = reported(store, name, self._surveys)
                self._surveys.move_to_end(self._kept[key].collected.campaign.id)
            self._kept.move_to_end(key)
            for kept in (self._kept, self._surveys):
                while len(kept) > MOST_READ:
                    kept.popitem(last=False)
            return self._kept[key]


async def the_reports(request: Request) -> ReportCache:
    """Return the service's cache of reports."""
    reports: ReportCache = request.app.state.reports
    return reports


ReportsOf = Annotated[ReportCache, Depends(the_reports)]


@router.get("/campaigns/{name}/report", response_class=Response, responses=PAGE)
async def report(request: Request, service: ServiceOf, reports: ReportsOf, name: CampaignName) -> Response:
    """A campaign as one HTML page to decide with, which needs no other file."""
    elsewhere = Elsewhere(server=_address(request, service))
    text = await service.slowly(lambda: report_text(reports.of(service.store, name), elsewhere))
    headers = {"content-disposition": f'attachment; filename="{name}.html"'}
    return StreamingResponse(_pieces(text.encode()), media_type="text/html; charset=utf-8", headers=headers)


def _address(request: Request, service: Service) -> str:
    """The service as the sender calls it; the name was checked before anything else."""
    return f"{'https' if service.settings.behind_tls else 'http'}://{request.url.netloc}"


def _pieces(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), PIECE_BYTES):
        yield content[start : start + PIECE_BYTES]


@router.get("/campaigns/{name}/figures/{figure}", response_class=Response, responses=PICTURE)
async def figure(
    service: ServiceOf,
    reports: ReportsOf,
    name: CampaignName,
    figure: FigureName,
    format: Literal["svg", "png"] = "svg",  # noqa: A002 - as the command's option
) -> Response:
    """One figure of a campaign's report as a picture; 422 with the reason where it cannot be drawn."""
    drawn = await service.slowly(lambda: drawn_figure(reports.of(service.store, name), figure, format))
    if isinstance(drawn, Missing):
        raise NothingLegal(not_drawn(figure) + drawn.reason)
    return Response(drawn, media_type=MEDIA[format])


@router.get("/campaigns/{name}/dataframe", response_model=FrameAnswer)
async def dataframe(service: ServiceOf, name: CampaignName) -> Response:
    """One row a finished attempt, by column; as `frontrunner dataframe` writes it."""
    most = service.settings.limits.frame_rows

    def table() -> bytes:
        rows = frames.row_count(service.store, name)
        if rows > most:
            raise InvalidInput(
                f"campaign {name} has {rows:,} finished attempts: a service makes a table of at most {most:,}",
                hint="run `frontrunner dataframe` where the store is",
            )
        return _frame_json(frames.plain_columns(frames.frame(service.store, name)))

    return StreamingResponse(_pieces(await service.slowly(table)), media_type=JSON)


def _frame_json(columns: dict[str, list[Any]]) -> bytes:
    """A `FrameAnswer`, made column by column: while JSON is made of one, no other thread runs."""
    return b'{"columns": {%s}}' % b", ".join(
        f"{to_json(name)}: {to_json(cells)}".encode() for name, cells in columns.items()
    )


@router.get("/campaigns/{name}/predictions", response_model=SmallScale | None)
def predictions(store: LocalOf, name: CampaignName) -> Response:
    """Return what a campaign that is measured on few nodes predicts for all of them; null for others."""
    return answer(store.predictions(name))


@router.get("/campaigns/{name}/baseline", response_model=Baseline | None)
def baseline(answers: AnswersOf, store: LocalOf, name: CampaignName) -> Response:
    """Return the campaign's baseline and its best recipe; null without a measured baseline."""
    return answers.about((name,), lambda: store.baseline(name))


@router.get("/recipes/{recipe_id}/predictions", response_model=list[SmallScale])
def predictions_of_recipe(store: LocalOf, recipe_id: RecipeId) -> Response:
    """Return the campaigns that predict a recipe, each with that prediction only."""
    return answer(store.predictions_of(recipe_id))
