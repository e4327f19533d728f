"""The question about a campaign's recipes, which has a key for each choice that they can be filtered by."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, create_model, model_validator

from frontrunner.results.ranking import RankBy
from frontrunner.results.recipe_filters import DEFAULTS
from frontrunner.server.models import Body
from frontrunner.spaces.errors import bad_value, did_you_mean
from frontrunner.spaces.recipe import DIMENSIONS, Dimension

Count = Annotated[int | None, Field(ge=1, le=1_000_000)]
ShardingName = Annotated[str | None, Field(max_length=64, examples=["none", "zero-1", "zero-3", "hybrid-4"])]


def _filter_type(dimension: Dimension) -> Any:
    if dimension.kind == "count":
        return Count
    if dimension.kind == "flag":
        return bool | None
    return Annotated[str | None, Field(json_schema_extra={"enum": list(dimension.values)})]


_FIELDS: dict[str, Any] = {name: (_filter_type(DIMENSIONS[name]), None) for name in DEFAULTS}
_Filters: Any = create_model("_Filters", __base__=Body, **_FIELDS)


class RecipeQuestion(_Filters):  # type: ignore[misc]
    """Which recipes of a campaign: each choice that is named must have the value."""

    by: RankBy = RankBy.TOKENS
    page: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    page_size: Annotated[int, Field(ge=1, le=200)] = 50
    max_memory_gb: Annotated[float | None, Field(gt=0, le=1e9)] = None
    data_parallel: Count = None
    sharding: ShardingName = None

    @model_validator(mode="after")
    def words_that_there_are(self) -> Self:
        """Refuse a word that no recipe has, which would find nothing."""
        for key, value in self.filters.items():
            words = DIMENSIONS[key].values if key in DIMENSIONS else ()
            if words and value not in words:
                hint = did_you_mean(str(value), words)
                raise bad_value(key, value, f"one of {', '.join(words)}", hint=hint)
        return self

    @property
    def filters(self) -> dict[str, int | str]:
        """The choices that were named, with their values."""
        others = {"by", "page", "page_size", "max_memory_gb"}
        named: dict[str, int | str] = self.model_dump(exclude_none=True, exclude=others)
        return named
