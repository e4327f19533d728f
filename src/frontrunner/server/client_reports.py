"""The client's questions about whole campaigns: report, figures, table, predictions; and a recipe taken apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from frontrunner.results.predictions import SmallScale
from frontrunner.server.connection import Connection, recipe_path
from frontrunner.server.models import FrameAnswer
from frontrunner.spaces.errors import NothingLegal, ServiceUnreachable
from frontrunner.spaces.places import writing

if TYPE_CHECKING:
    import pandas as pd

    from frontrunner.baseline import Baseline
    from frontrunner.evaluators.analytic.breakdown import Breakdown
    from frontrunner.evaluators.insight.collected import Missing
    from frontrunner.results.explain import Explanation
    from frontrunner.views.charts.catalogue import Drawn

T = TypeVar("T")


class Reports:
    """What `frontrunner.server.client.Client` asks about whole campaigns, by its own means of asking."""

    _connection: Connection

    def _get(self, kind: type[T], path: str, **question: object) -> T:
        raise NotImplementedError

    def _of(self, campaign: str | None, rest: str = "") -> str:
        raise NotImplementedError

    def show(self, recipe_id: str) -> Explanation:  # noqa: D102 - the client's own
        raise NotImplementedError

    def explain(self, recipe: str) -> Breakdown:
        """The parts of a stored recipe's step and memory by formulas, beside what the service's store measured of it.

        Raises `InvalidInput` for a recipe that the formulas do not know.
        """
        from frontrunner.planning_api import explain_known

        return explain_known(self.show(recipe), store=self._connection.url)

    def report(self, campaign: str | None = None, *, out: str | Path | None = None) -> Path:
        """Write a campaign as one HTML page that needs nothing else, and return its path; as `frontrunner.report`."""
        from frontrunner.evaluators.probe.files import write_bytes
        from frontrunner.reporting_pieces import report_place

        path = self._of(campaign)
        place = report_place(out, path.rpartition("/")[2])
        page = self._connection.ask("GET", f"{path}/report")
        with writing(place):
            write_bytes(place, page)
        return place

    def plot(
        self,
        campaign: str | None = None,
        *,
        out: str | Path,
        figure: str | None = None,
        format: str | None = None,  # noqa: A002 - as `frontrunner.plot`
    ) -> tuple[list[Path], list[Drawn]]:
        """Write a campaign's figures as PNG or SVG, as `frontrunner.plot`; nothing that draws is needed here."""
        from frontrunner.reporting_pieces import picture_place

        place = picture_place(out, figure, format)
        path = self._of(campaign, "/figures/")
        return place.save(lambda name: self._picture(path, name, place.kind))

    def _picture(self, path: str, name: str, kind: str) -> bytes | Missing:
        from frontrunner.evaluators.insight.collected import Missing
        from frontrunner.reporting_pieces import not_drawn

        try:
            return self._connection.ask("GET", f"{path}{name}?format={kind}")
        except NothingLegal as error:
            return Missing(reason=error.message.removeprefix(not_drawn(name)))

    def dataframe(self, campaign: str | None = None) -> pd.DataFrame:
        """One row a finished attempt of a campaign."""
        from frontrunner.results.frames import from_columns

        told = self._get(FrameAnswer, self._of(campaign, "/dataframe"))
        try:
            return from_columns(told.columns)
        except ValueError as error:
            raise ServiceUnreachable(
                f"{self._connection.url} answers with another kind of table: {str(error)[:200]}",
                hint="client and service should be of one version",
            ) from error

    def predictions(self, campaign: str | None = None) -> SmallScale | None:
        """What a campaign with `search.probe_nodes` predicts of its cluster; None for others."""
        return self._get(SmallScale | None, self._of(campaign, "/predictions"))  # type: ignore[arg-type]

    def predictions_of(self, recipe_id: str) -> tuple[SmallScale, ...]:
        """The campaigns that predict a recipe, each with that prediction alone; raises `NotFound` without one."""
        return tuple(self._get(list[SmallScale], f"{recipe_path(recipe_id)}/predictions"))

    def baseline(self, campaign: str | None = None) -> Baseline | None:
        """The campaign's baseline beside its best; None where it names none, or the baseline was not measured."""
        from frontrunner.baseline import Baseline

        return self._get(Baseline | None, self._of(campaign, "/baseline"))  # type: ignore[arg-type]

    def registered(self) -> dict[str, dict[str, str]]:
        """What a launch may name: kind (site, trainer, data, table) -> name -> what it is."""
        return self._get(dict[str, dict[str, str]], "/registered")
