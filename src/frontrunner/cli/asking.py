"""Whom the reading commands ask: the store at hand, or a service by --server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from frontrunner import api
from frontrunner.spaces.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from frontrunner.baseline import Baseline
    from frontrunner.evaluators.analytic.breakdown import Breakdown
    from frontrunner.evaluators.insight.objectives import OnFront
    from frontrunner.results.explain import Explanation
    from frontrunner.results.predictions import SmallScale
    from frontrunner.results.ranking import RankedRecipe
    from frontrunner.results.records import CampaignSummary
    from frontrunner.results.status import FailedTrial, Status
    from frontrunner.views.charts.catalogue import Drawn

F = TypeVar("F", bound=Callable[..., Any])


class Questions(Protocol):
    """What can be asked of a store, wherever it is; the functions of `frontrunner.api` say what is answered."""

    def campaigns(self) -> list[CampaignSummary]: ...  # noqa: D102 - as in `frontrunner.api`, like those below

    def status(self, campaign: str | None) -> Status: ...  # noqa: D102

    def failures(self, campaign: str | None) -> list[FailedTrial]: ...  # noqa: D102

    def best(  # noqa: D102
        self, campaign: str | None, *, top: int, by: str, max_memory_gb: float | None
    ) -> list[RankedRecipe]: ...

    def pareto(self, campaign: str | None) -> list[RankedRecipe]: ...  # noqa: D102

    def front(self, campaign: str | None, *, objectives: tuple[str, ...]) -> tuple[OnFront, ...]: ...  # noqa: D102

    def show(self, recipe_id: str) -> Explanation: ...  # noqa: D102

    def export(self, recipe: str, *, to: str) -> str: ...  # noqa: D102

    def predictions(self, campaign: str | None) -> SmallScale | None: ...  # noqa: D102

    def predictions_of(self, recipe_id: str) -> tuple[SmallScale, ...]: ...  # noqa: D102

    def baseline(self, campaign: str | None) -> Baseline | None: ...  # noqa: D102

    def explain(self, recipe: str) -> Breakdown: ...  # noqa: D102

    def dataframe(self, campaign: str | None) -> pd.DataFrame: ...  # noqa: D102

    def report(self, campaign: str | None, *, out: Path | None) -> Path: ...  # noqa: D102

    def plot(  # noqa: D102
        self,
        campaign: str | None,
        *,
        out: Path,
        figure: str | None,
        format: str | None,  # noqa: A002
    ) -> tuple[list[Path], list[Drawn]]: ...


class OwnStore:
    """The store at hand."""

    def __init__(self, store: str | None) -> None:
        self._store = store

    def campaigns(self) -> list[CampaignSummary]:
        """As `api.campaigns`."""
        return api.campaigns(store=self._store)

    def status(self, campaign: str | None) -> Status:
        """As `api.status`."""
        return api.status(campaign, store=self._store)

    def failures(self, campaign: str | None) -> list[FailedTrial]:
        """As `api.failures`."""
        return api.failures(campaign, store=self._store)

    def best(self, campaign: str | None, *, top: int, by: str, max_memory_gb: float | None) -> list[RankedRecipe]:
        """As `api.best`."""
        return api.best(campaign, top=top, by=by, max_memory_gb=max_memory_gb, store=self._store)

    def pareto(self, campaign: str | None) -> list[RankedRecipe]:
        """As `api.pareto`."""
        return api.pareto(campaign, store=self._store)

    def front(self, campaign: str | None, *, objectives: tuple[str, ...]) -> tuple[OnFront, ...]:
        """As `reporting_api.front`."""
        from frontrunner.reporting_api import front

        return front(campaign, objectives=objectives, store=self._store)

    def show(self, recipe_id: str) -> Explanation:
        """As `api.show`."""
        return api.show(recipe_id, store=self._store)

    def export(self, recipe: str, *, to: str) -> str:
        """As `travel_api.export`."""
        from frontrunner.travel_api import export

        return export(recipe, to=to, store=self._store)

    def predictions(self, campaign: str | None) -> SmallScale | None:
        """As `predictions_api.predictions`."""
        from frontrunner.predictions_api import predictions

        return predictions(campaign, store=self._store)

    def predictions_of(self, recipe_id: str) -> tuple[SmallScale, ...]:
        """As `predictions_api.predictions_of`."""
        from frontrunner.predictions_api import predictions_of

        return predictions_of(recipe_id, store=self._store)

    def baseline(self, campaign: str | None) -> Baseline | None:
        """As `baseline.baseline`."""
        from frontrunner.baseline import baseline

        return baseline(campaign, store=self._store)

    def explain(self, recipe: str) -> Breakdown:
        """As `planning_api.explain` of a stored recipe."""
        from frontrunner.planning_api import explain

        return explain(recipe, store=self._store)

    def dataframe(self, campaign: str | None) -> pd.DataFrame:
        """As `api.dataframe`."""
        return api.dataframe(campaign, store=self._store)

    def report(self, campaign: str | None, *, out: Path | None) -> Path:
        """As `reporting_api.report`."""
        from frontrunner.reporting_api import report

        return report(campaign, out=out, store=self._store)

    def plot(
        self,
        campaign: str | None,
        *,
        out: Path,
        figure: str | None,
        format: str | None,  # noqa: A002 - as `reporting_api.plot`
    ) -> tuple[list[Path], list[Drawn]]:
        """As `reporting_api.plot`."""
        from frontrunner.reporting_api import plot

        return plot(campaign, out=out, figure=figure, format=format, store=self._store)


def server_option(function: F) -> F:
    """--server: ask a service instead of a store."""
    return click.option(
        "--server",
        metavar="URL",
        help="Ask the service there, with the token of $FRONTRUNNER_TOKEN or, on this machine, the token file.",
    )(function)


def asked(store: str | None, server: str | None) -> Questions:
    """Whoever answers; raises `InvalidInput` where both a store and a service are named."""
    if server is None:
        return OwnStore(store)
    if store is not None:
        raise InvalidInput(f"--store {store} and --server {server} are both given: expected one of them")
    from frontrunner.server.client import connect

    return connect(server)
