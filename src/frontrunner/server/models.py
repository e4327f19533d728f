"""The typed bodies and questions of the wire. Answers are the dataclasses of the floors below.

No field is a path, a command, an address or a template: what a client may choose is named, counted or measured.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from frontrunner.config.campaign import CampaignName
from frontrunner.config.validation import invalid_input, refuse_unusable_values
from frontrunner.spaces.errors import InvalidInput

Section = dict[str, JsonValue]
RegisteredName = Annotated[str | None, Field(max_length=64)]
Evaluator = Literal["probe", "simulated", "command", "table"]
Steps = Annotated[int, Field(ge=1, le=1_000_000_000)]

NAMED = "expected {} = a registered name (GET /api/v1/registered)"
TAKEN_INSTEAD = {
    "dispatch": NAMED.format("site"),
    "command": NAMED.format("trainer"),
    "data": NAMED.format("data"),
    "table": NAMED.format("table"),
    "store": "the service has a store of its own",
}
"""Section of a campaign file -> what a body says instead."""
LAPTOP: dict[str, JsonValue] = {
    "name": "first-try",
    "evaluator": "simulated",
    "model": {"layers": 4, "hidden": 128, "heads": 8, "vocabulary": 257},
    "cluster": {"device": "example", "backend": "cpu", "devices_per_node": 4, "memory_gib_per_device": 1.0},
    "problem": {"sequence_length": 128, "global_batch": 16, "precision": "fp32"},
    "space": {"tensor_parallel": [1, 2, 4], "pipeline_parallel": [1, 2], "micro_batch_seqs": [1, 2]},
    "budget": {"probes": 8},
}


class Body(BaseModel):
    """A request body without unknown keys; mistakes are described in the words of a campaign file's."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def in_our_words(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Raise `InvalidInput` in place of pydantic's errors."""
        try:
            return handler(given)
        except ValidationError as error:
            raise invalid_input(error.errors(), given, cls) from None


class CampaignBody(Body):
    """A campaign file (docs/campaign-file.md) as JSON, without the sections and keys that name files or commands.

    In their place stand names that whoever runs the service has registered, which `GET /registered` lists: `site` for
    [dispatch] and perhaps [cluster], `trainer` for [command], `data` for [data] and `table` for [table]. `evaluator` is
    "probe" unless a trainer or a table is named.
    """

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [LAPTOP]})

    name: CampaignName | None = None
    evaluator: Evaluator | None = None
    site: RegisteredName = None
    trainer: RegisteredName = None
    data: RegisteredName = None
    table: RegisteredName = None
    model: Section
    cluster: Section = {}
    problem: Section
    space: Section
    search: Section = {}
    budget: Section = {}
    probe: Section = {}

    @model_validator(mode="before")
    @classmethod
    def no_paths_or_commands(cls, given: object) -> object:
        """Refuse the sections that a registered name replaces, and values that no key takes."""
        if not isinstance(given, dict):
            return given
        for section, instead in TAKEN_INSTEAD.items():
            if isinstance(given.get(section), dict) or (section in given and section not in cls.model_fields):
                raise InvalidInput(f"[{section}] is not taken from the wire: {instead}")
        refuse_unusable_values(given)
        return given


class PlanBody(CampaignBody):
    """A campaign whose recipes are to be estimated; the `top` fastest that fit are answered."""

    top: Annotated[int, Field(ge=1, le=1000)] = 10


class ReplayBody(Body):
    """A full training run of a stored recipe, on the service's machine.

    `anyway` runs it on other hardware than the recipe was measured on.
    """

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"recipe_id": "3f9c01d2ab4e", "steps": 200}]}
    )

    recipe_id: Annotated[str, Field(pattern="^[0-9a-f]{4,64}$")]
    steps: Steps
    learning_rate: Annotated[float, Field(gt=0, le=10)] = 3e-4
    warm_up_steps: Annotated[int, Field(ge=0, le=1_000_000_000)] = 10
    evaluate_every: Steps = 50
    checkpoint_every: Steps | None = None
    anyway: bool = False

    def settings(self) -> dict[str, object]:
        """The recipe, `anyway`, and the fields of `ReplaySettings`."""
        table = self.model_dump()
        table["evaluation_every_steps"] = table.pop("evaluate_every")
        table["checkpoint_every_steps"] = table.pop("checkpoint_every")
        return table


class FrameAnswer(BaseModel):
    """The columns of a table, all of one length; null where a cell is missing, times in ISO 8601."""

    columns: dict[str, list[JsonValue]]


class ErrorText(BaseModel):
    """What went wrong, by the name of its class, and the one next step."""

    kind: str
    message: str
    hint: str | None


class ErrorAnswer(BaseModel):
    """An answer that says no."""

    error: ErrorText


class LaunchAnswer(BaseModel):
    """A campaign that is under way."""

    campaign: str
    pid: int


class SignalAnswer(BaseModel):
    """A driver that was told something."""

    campaign: str
    told: Literal["pause", "stop", "cancel"]
    pid: int


class RegisteredAnswer(BaseModel):
    """The names that a launch may say, each with what it is in a few words."""

    site: dict[str, str]
    trainer: dict[str, str]
    data: dict[str, str]
    table: dict[str, str]


class LinkAnswer(BaseModel):
    """A path that opens a browser's session once, within ten minutes."""

    path: str


SECTIONS = ("model", "cluster", "problem", "space", "search", "budget", "probe")
"""The sections that `CampaignBody` takes."""
FORBIDDEN_KEYS = {"cluster": ("file", "nvme_path"), "search": ("baseline",)}
"""Keys of a campaign file that name a file or a folder, in the sections that `CampaignBody` takes."""
