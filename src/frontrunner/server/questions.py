"""Questions of the API: the method of `LocalStore`, the path, the parameters and the result of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, JsonValue, create_model

from frontrunner.results.active_drivers import ActiveDriver
from frontrunner.results.explain import Explanation
from frontrunner.results.pages import Comparison, TrialPage
from frontrunner.results.predictions import SmallScale
from frontrunner.results.ranking import FILTERS, RankBy, RankedRecipe, Ranking
from frontrunner.results.states import TrialState
from frontrunner.results.status import Status
from frontrunner.server.requests import Body
from frontrunner.spaces.recipe import DIMENSIONS
from frontrunner.standings import Baseline
from frontrunner.store import LocalStore

API = "/api/v1"
MOST_RANKED = 1000
Page = Annotated[int, Field(ge=1, le=1_000_000, description="The page, from 1.")]
PageSize = Annotated[int, Field(ge=1, le=200, description="Items per page.")]
MaxMemory = Annotated[float | None, Field(gt=0, le=1e9, description="Largest peak memory of a rank, in GB.")]
PAGED: dict[str, Any] = {"page": Page, "page_size": PageSize}
SIDE: Any = Annotated[str, Field(min_length=1, max_length=64)]


@dataclass(frozen=True)
class Question:
    """One method of `LocalStore` over HTTP. `result` is the type of its JSON document; text is sent as it is.

    `query` has the types of its parameters but the campaign or recipe, which is part of the path; `as_none` what a
    client sends for None; `make` turns what was received into what the method returns.
    """

    method: str
    tag: str
    path: str
    result: Any
    query: Mapping[str, Any] = field(default_factory=dict)
    as_none: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[[Any], Any] | None = None

    @property
    def local(self) -> Callable[..., Any]:
        """The method."""
        method: Callable[..., Any] = getattr(LocalStore, self.method)
        return method

    def parameter(self, name: str) -> inspect.Parameter:
        """Return a query parameter with the default of the method's."""
        return (
            inspect.signature(self.local)
            .parameters[name]
            .replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=self.query[name])
        )


QUESTIONS = (
    Question("drivers", "campaigns", "/drivers", list[ActiveDriver]),
    Question("compare", "campaigns", "/compare", Comparison, {"first": SIDE, "second": SIDE, **PAGED}),
    Question("status", "campaigns", "/campaigns/{name}", Status),
    Question("trials", "campaigns", "/campaigns/{name}/trials", TrialPage, {"state": TrialState | None, **PAGED}),
    Question(
        "best",
        "recipes",
        "/campaigns/{name}/best",
        list[RankedRecipe],
        {"top": Annotated[int, Field(ge=1, le=MOST_RANKED)], "by": RankBy, "max_memory_gb": MaxMemory},
        as_none={"top": MOST_RANKED},
        make=Ranking,
    ),
    Question("pareto", "recipes", "/campaigns/{name}/pareto", list[RankedRecipe], make=Ranking),
    Question("show", "recipes", "/recipes/{recipe_id}", Explanation),
    Question("export", "recipes", "/recipes/{recipe_id}/export", str, {"to": str}),
    Question("predictions_of", "recipes", "/recipes/{recipe_id}/predictions", list[SmallScale], make=tuple),
    Question("predictions", "reports", "/campaigns/{name}/predictions", SmallScale | None),
    Question("baseline", "reports", "/campaigns/{name}/baseline", Baseline | None),
)
COUNT: Any = Annotated[int | None, Field(ge=1, le=1_000_000)]


def _filter_type(name: str) -> Any:
    if name not in DIMENSIONS:  # data_parallel, which is derived
        return COUNT
    dimension = DIMENSIONS[name]
    words = Literal[*dimension.values] | None if dimension.values else Annotated[str | None, Field(max_length=64)]
    return {"count": COUNT, "flag": bool | None}.get(dimension.kind, words)


_FILTERS: dict[str, Any] = {name: (_filter_type(name), None) for name in FILTERS}
RecipeQuestion: Any = create_model(
    "RecipeQuestion",
    __base__=Body,
    by=(RankBy, RankBy.TOKENS),
    max_memory_gb=(MaxMemory, None),
    page=(Page, 1),
    page_size=(PageSize, 50),
    **_FILTERS,
)


class FrameAnswer(BaseModel):
    """The columns of a table, all of one length; null where a cell is missing, times in ISO 8601."""

    columns: dict[str, list[JsonValue]]
