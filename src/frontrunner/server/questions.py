"""The question about a campaign's recipes, which has a key for each choice that they can be filtered by."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from frontrunner.results.ranking import RankBy
from frontrunner.server.models import Body
from frontrunner.spaces.errors import bad_value, did_you_mean
from frontrunner.spaces.space import WORDS

Count = Annotated[int | None, Field(ge=1, le=1_000_000)]
Schedule = Annotated[str | None, Field(json_schema_extra={"enum": list(WORDS["schedule"])})]
Recompute = Annotated[str | None, Field(json_schema_extra={"enum": list(WORDS["recompute"])})]
Replication = Annotated[str | None, Field(json_schema_extra={"enum": list(WORDS["replication"])})]
Engine = Annotated[str | None, Field(json_schema_extra={"enum": list(WORDS["engine"])})]
OptimizerState = Annotated[str | None, Field(json_schema_extra={"enum": list(WORDS["optimizer_state"])})]
Offload = Annotated[str | None, Field(json_schema_extra={"enum": list(WORDS["offload"])})]
Synchronise = Annotated[str | None, Field(json_schema_extra={"enum": list(WORDS["synchronise"])})]
RankOrder = Annotated[str | None, Field(json_schema_extra={"enum": list(WORDS["rank_order"])})]
ShardingName = Annotated[str | None, Field(max_length=64, examples=["none", "zero-1", "zero-3", "hybrid-4"])]


class RecipeQuestion(Body):
    """Which recipes of a campaign: each choice that is named must have the value."""

    by: RankBy = RankBy.TOKENS
    page: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    page_size: Annotated[int, Field(ge=1, le=200)] = 50
    max_memory_gb: Annotated[float | None, Field(gt=0, le=1e9)] = None
    devices: Count = None
    tensor_parallel: Count = None
    pipeline_parallel: Count = None
    data_parallel: Count = None
    context_parallel: Count = None
    virtual_stages: Count = None
    schedule: Schedule = None
    micro_batch_seqs: Count = None
    accumulation: Count = None
    sharding: ShardingName = None
    recompute: Recompute = None
    sequence_parallel: bool | None = None
    replication: Replication = None
    compile: bool | None = None
    loss_chunks: Count = None
    feed_forward_tiles: Count = None
    optimizer_state: OptimizerState = None
    activation_offload: bool | None = None
    offload: Offload = None
    synchronise: Synchronise = None
    secondary_partition: Count = None
    rank_order: RankOrder = None
    engine: Engine = None

    @model_validator(mode="after")
    def words_that_there_are(self) -> Self:
        """Refuse a word that no recipe has, which would find nothing."""
        for key, value in self.filters.items():
            words = WORDS.get(key)
            if words is not None and value not in words:
                hint = did_you_mean(str(value), words)
                raise bad_value(key, value, f"one of {', '.join(words)}", hint=hint)
        return self

    @property
    def filters(self) -> dict[str, int | str]:
        """The choices that were named, with their values."""
        others = {"by", "page", "page_size", "max_memory_gb"}
        return self.model_dump(exclude_none=True, exclude=others)
