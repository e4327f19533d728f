"""Requests to the service: questions to the store, bodies, and the campaign that a launch or plan
describes.
"""

from __future__ import annotations

import inspect
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from frontrunner.config.campaign import CampaignFile, CampaignName, parse_campaign, section_schema
from frontrunner.config.toml_file import Table
from frontrunner.evaluators.analytic.timeline import StepTimeline
from frontrunner.evaluators.nodes.settings import HIDDEN_LINES
from frontrunner.results.pages import Comparison, HistoryPage, TrialPage
from frontrunner.results.ranking import FILTERS, RankBy, RankedRecipe, Ranking
from frontrunner.results.records import Labels
from frontrunner.results.redaction import REDACTED, redact
from frontrunner.results.states import TrialState
from frontrunner.results.status import ActiveDriver, Appearance, Explanation, Status
from frontrunner.running_trials import Running
from frontrunner.search.budget import Limit
from frontrunner.server.auth import USER_NAME, Role
from frontrunner.server.settings import EVALUATOR_OF, KINDS, Registered
from frontrunner.spaces.errors import (
    CAMPAIGN_NAME,
    FALLBACK_NAME,
    InvalidInput,
    bad_value,
    shown,
    shown_key,
)
from frontrunner.spaces.recipe import DIMENSIONS
from frontrunner.spaces.validation import invalid_input, refuse_unusable_values
from frontrunner.store import Baseline, LocalStore

logger = logging.getLogger("frontrunner.server")
T = TypeVar("T")
Section = dict[str, JsonValue]
RegisteredName = Annotated[str | None, Field(max_length=64)]
Steps = Annotated[int, Field(ge=1, le=1_000_000_000)]

NAMED = "expected {} = a registered name (GET /api/v1/registered)"
TAKEN_INSTEAD = {
    "dispatch": NAMED.format("site"),
    "command": NAMED.format("trainer"),
    "data": NAMED.format("data"),
    "table": NAMED.format("table"),
    "store": "the service has a store of its own",
}
SECTIONS = ("model", "cluster", "problem", "software", "space", "search", "budget", "probe")
FORBIDDEN_KEYS = {
    "model": ("config",),
    "cluster": ("file", "nvme_path"),
    "search": ("baseline",),
    "space": ("custom",),
}
ABOUT = {"trainer": "command", "data": "data.", "table": "table."}
"""Kind of a registered name -> first words of messages about its content, which may name a path or
command.
"""
LAPTOP: Section = {
    "name": "first-try",
    "evaluator": "simulated",
    "model": {"layers": 4, "hidden": 128, "heads": 8, "vocabulary": 257},
    "cluster": {
        "device": "example",
        "backend": "cpu",
        "devices_per_node": 4,
        "memory_gib_per_device": 1.0,
    },
    "problem": {"sequence_length": 128, "global_batch": 16, "precision": "fp32"},
    "space": {
        "tensor_parallel": [1, 2, 4],
        "pipeline_parallel": [1, 2],
        "micro_batch_seqs": [1, 2],
    },
    "budget": {"probes": 8},
}


class Body(BaseModel):
    """A request body without unknown keys; mistakes are described in the words of a campaign
    file's.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def in_our_words(cls, given: Any, handler: pydantic.ModelWrapValidatorHandler[Self]) -> Self:
        """Raise `InvalidInput` in place of pydantic's errors."""
        try:
            return handler(given)
        except ValidationError as error:
            raise invalid_input(error.errors(), given, cls) from None


def _described(name: str) -> pydantic.WithJsonSchema:
    schema = section_schema(name)
    keys = {
        key: value
        for key, value in schema["properties"].items()
        if key not in FORBIDDEN_KEYS.get(name, ())
    }
    schema = {"title": f"{name.capitalize()}Section", **schema, "properties": keys}
    if name == "cluster":  # a registered site may provide all that is needed
        del schema["anyOf"]
    return pydantic.WithJsonSchema(schema)


class CampaignBody(Body):
    """A campaign file (docs/campaign-file.md) as JSON, without the sections and keys that name
    files or commands.

    Names that the operator of the service has registered replace them; `GET /registered` lists
    them: `site` for [dispatch] and perhaps [cluster], `trainer` for [command], `data` for [data]
    and `table` for [table]. `evaluator` is "probe" unless a trainer or a table is named.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [LAPTOP]})

    name: CampaignName | None = None
    evaluator: Literal["probe", "simulated", "command", "table"] | None = None
    site: RegisteredName = None
    trainer: RegisteredName = None
    data: RegisteredName = None
    table: RegisteredName = None
    model: Annotated[Section, _described("model")]
    cluster: Annotated[Section, _described("cluster")] = {}
    problem: Annotated[Section, _described("problem")]
    software: Annotated[Section, _described("software")] = {}
    space: Annotated[Section, _described("space")] = {}
    search: Annotated[Section, _described("search")] = {}
    budget: Annotated[Section, _described("budget")] = {}
    probe: Annotated[Section, _described("probe")] = {}

    @model_validator(mode="before")
    @classmethod
    def no_paths_or_commands(cls, given: object) -> object:
        """Refuse the sections that a registered name replaces, and values that no key takes."""
        if not isinstance(given, dict):
            return given
        for section, instead in TAKEN_INSTEAD.items():
            if isinstance(given.get(section), dict) or (
                section in given and section not in cls.model_fields
            ):
                raise InvalidInput(f"[{section}] is not accepted from a request: {instead}")
        refuse_unusable_values(given)
        return given


class PlanBody(CampaignBody):
    """A campaign whose recipes are to be estimated; the `top` fastest that fit are returned."""

    top: Annotated[int, Field(ge=1, le=1000)] = 10


class ReplayBody(Body):
    """A full training run of a stored recipe, on the service's machine.

    `anyway` runs it on other hardware than the recipe was measured on.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"recipe_id": "3f9c01d2ab4e", "steps": 200}]}
    )

    recipe_id: Annotated[str, Field(pattern="^[0-9a-f]{4,64}$")]
    steps: Steps
    learning_rate: Annotated[float | None, Field(gt=0, le=10)] = None
    warm_up_steps: Annotated[int | None, Field(ge=0, le=1_000_000_000)] = None
    evaluate_every: Annotated[Steps, Field(serialization_alias="evaluation_every_steps")] = 50
    checkpoint_every: Annotated[
        Steps | None, Field(serialization_alias="checkpoint_every_steps")
    ] = None
    anyway: bool = False

    def settings(self) -> dict[str, object]:
        """Return the recipe, `anyway`, and the fields of `ReplaySettings`."""
        return self.model_dump(by_alias=True)


class ProblemKind(BaseModel):
    """What the errors of a kind have in common; `type` never changes. `status` is None where that
    differs.
    """

    type: str
    title: str
    status: int | None
    kind: str


class Problem(ProblemKind):
    """An error, as the problem details of RFC 9457; `hint` is the next step."""

    status: int
    detail: str
    hint: str | None


class Limits(Body):
    """Limits of a budget."""

    probes: Annotated[int | None, Field(gt=0)] = None
    minutes: Annotated[float | None, Field(gt=0)] = None
    node_hours: Annotated[float | None, Field(gt=0)] = None
    cost: Annotated[float | None, Field(gt=0)] = None


class ChangeBody(Body):
    """A change of a campaign: its `name`, limits of its `budget` (`add` adds to those that it has),
    or its labels.

    `tags` replace those that it has; a `hidden` campaign is left out of lists.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [{"budget": {"probes": 40}}]})

    name: CampaignName | None = None
    budget: Limits | None = None
    add: bool = False
    tags: Annotated[
        tuple[Annotated[str, Field(max_length=1000)], ...] | None, Field(max_length=1000)
    ] = None
    note: Annotated[str | None, Field(max_length=100_000)] = None
    hidden: bool | None = None

    @property
    def labels(self) -> dict[str, Any]:
        """The labels that are changed."""
        return self.model_dump(include={"tags", "note", "hidden"}, exclude_none=True)

    @model_validator(mode="after")
    def _is_one_change(self) -> Self:
        if (self.name is not None) + (self.budget is not None) + bool(self.labels) != 1:
            raise ValueError("expected one of name, budget, and labels (tags, note, hidden)")
        return self


class ChangeAnswer(BaseModel):
    """A campaign after a change."""

    campaign: str
    budget: tuple[Limit, ...]
    labels: Labels


class LaunchAnswer(BaseModel):
    """A campaign that was started."""

    campaign: str
    pid: int


class SignalAnswer(LaunchAnswer):
    """A signal that was sent to a driver."""

    told: Literal["pause", "stop", "cancel"]


class UserBody(Body):
    """Someone to invite. An operator may launch and stop, a reader only read."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ada"}]})

    name: Annotated[str, Field(pattern=f"^{USER_NAME}$")]
    role: Role = Role.OPERATOR


class UserAnswer(BaseModel):
    """A user; `invited_until` is None once the invitation was accepted."""

    name: str
    role: Role
    added_at: str
    added_by: str
    invited_until: str | None


class InvitationAnswer(BaseModel):
    """A path that makes the first who opens it the user `name`, or whose code `POST /join`
    takes.
    """

    name: str
    role: Role
    path: str


class UserName(BaseModel):
    """A user by name."""

    name: str


class JoinBody(Body):
    """The code of an invitation's path."""

    code: Annotated[str, Field(max_length=128)]


class TokenAnswer(BaseModel):
    """A user's token, which is kept nowhere else."""

    name: str
    role: Role
    token: str


class LinkAnswer(BaseModel):
    """A path that logs one browser in, within ten minutes."""

    path: str


_KIND_FIELDS: Any = dict.fromkeys(KINDS, dict[str, str])
RegisteredAnswer: Any = pydantic.create_model("RegisteredAnswer", **_KIND_FIELDS)


def campaign_table(body: CampaignBody, known: Registered) -> Table:
    """Return a body as the content of a campaign file, with the sections of its registered
    names.
    """
    table: Table = {
        name: dict(getattr(body, name)) for name in SECTIONS if name in body.model_fields_set
    }
    for section, content in table.items():
        for key in FORBIDDEN_KEYS.get(section, ()):
            if isinstance(content, Mapping) and key in content:
                raise bad_value(
                    f"{section}.{key}", content[key], "no path in a request to a service"
                )
    table |= {"evaluator": _evaluator(body, known)} | (
        {} if body.name is None else {"name": body.name}
    )
    for kind in ("trainer", "data", "table"):
        if (name := getattr(body, kind)) is not None:
            table |= known.sections(kind, name)
    return table if body.site is None else _at_site(table, body.site, known)


def _evaluator(body: CampaignBody, known: Registered) -> str:
    named = {EVALUATOR_OF[kind]: kind for kind in EVALUATOR_OF if getattr(body, kind) is not None}
    if len(named) > 1:
        raise bad_value(
            "table", body.table, f"no entry together with trainer = {shown(body.trainer)}"
        )
    for evaluator, kind in named.items():
        if body.evaluator not in (None, evaluator):
            raise bad_value("evaluator", body.evaluator, f"{evaluator}, or no entry, with a {kind}")
        return evaluator
    for kind, evaluator in EVALUATOR_OF.items():
        if body.evaluator == evaluator:
            listed = ", ".join(known.names(kind)) or "none is registered"
            raise bad_value(
                kind, None, f"a registered {kind} ({listed}), for evaluator = {shown(evaluator)}"
            )
    return body.evaluator or "probe"


def _at_site(table: Table, name: str, known: Registered) -> Table:
    """Add the sections of a site, of whose cluster the body gives only the number of nodes."""
    sections = dict(known.sections("site", name))
    if table["evaluator"] not in ("probe", "command"):
        sections.pop("dispatch", None)
    if "cluster" in sections:
        given = table.get("cluster", {})
        for key, value in given.items():
            if key != "nodes":
                expected = f"cluster.nodes only: site = {shown(name)} defines the rest"
                raise bad_value(f"cluster.{shown_key(key)}", value, expected)
        sections["cluster"] = {**sections["cluster"], **given}
    return {**table, **sections}


def parsed(table: Table) -> CampaignFile:
    """Return the campaign of such a table; raise `InvalidInput` for an invalid one."""
    return parse_campaign(table, default_name=FALLBACK_NAME, base=Path.cwd())


@contextmanager
def campaign_from(
    body: CampaignBody, known: Registered, *, most_points: int
) -> Iterator[CampaignFile]:
    """Pass the campaign of a body; raise `InvalidInput` for a space of more than `most_points`
    points.

    An error in what a registered name stands for is reported by the name only, since it may contain
    a path or command.
    """
    try:
        file = parsed(campaign_table(body, known))
        dimensions = file.spec.space.dimensions(file.spec.problem.cluster)
        points = math.prod(len(values) for values in dimensions.values())
        if points > most_points:
            raise InvalidInput(
                f"space has {shown(points)} points: a service plans at most {most_points:,}",
                hint="narrow a dimension, or run `frontrunner plan` on your own machine",
            )
        yield file
    except InvalidInput as error:
        for kind, beginning in ABOUT.items():
            name = getattr(body, kind)
            if name is not None and error.message.startswith(beginning):
                raise _by_name(kind, name, known, error) from None
        raise


def _by_name(kind: str, name: str, known: Registered, error: InvalidInput) -> InvalidInput:
    called = f"{kind} = {shown(name)}"
    if kind == "table":
        rest = error.message.removeprefix(
            f"table.path = {known.sections(kind, name)[kind]['path']} "
        )
        if rest != error.message:  # it has no such problem; which ones it has is no secret
            return InvalidInput(f"{called} {rest}", hint=error.hint)
    logger.warning("%s cannot be used: %s", called, error.message)
    return InvalidInput(f"{called} can no longer be used", hint="the service's log says why")


def redacted(found: T) -> T:
    """Return a status or an explanation without the secrets that commands and nodes were given;
    others as they are.
    """
    if isinstance(found, Explanation):
        return replace(found, appearances=tuple(map(redacted, found.appearances)))
    if isinstance(found, Status | Appearance):
        campaign = replace(found.campaign, spec_json=redacted_spec(found.campaign.spec_json))
        return replace(found, campaign=campaign)
    return found


@lru_cache(maxsize=256)
def redacted_spec(spec_json: str) -> str:
    """Return the text of a specification without the secrets in it."""
    spec: dict[str, Any] = json.loads(spec_json)
    command, dispatch = spec.get("command") or {}, spec.get("dispatch") or {}
    if command.get("environment"):
        command["environment"] = dict.fromkeys(command["environment"], REDACTED)
    if command.get("arguments"):
        command["arguments"] = list(redact(command["arguments"]))
    spec |= {"changes": {}} if spec.get("changes") else {}  # perhaps of these
    dispatch.update({key: () for key in HIDDEN_LINES if dispatch.get(key)})
    return spec_json if spec == json.loads(spec_json) else json.dumps(spec)


API = "/api/v1"
MOST_RANKED = 1000
Page = Annotated[int, Field(ge=1, le=1_000_000, description="The page, from 1.")]
PageSize = Annotated[int, Field(ge=1, le=200, description="Items per page.")]
MaxMemory = Annotated[
    float | None, Field(gt=0, le=1e9, description="Largest peak memory of a rank, in GB.")
]
InCampaign: Any = Annotated[
    str | None, Field(pattern=f"^{CAMPAIGN_NAME.pattern}$", description="Its figures first.")
]
PAGED: dict[str, Any] = {"page": Page, "page_size": PageSize}
SIDES: Any = list[Annotated[str, Field(min_length=1, max_length=64)]]


@dataclass(frozen=True)
class Question:
    """One method of `LocalStore` over HTTP. `result` is the type of its JSON document; text is sent
    as it is.

    `query` has the types of its parameters but the campaign or recipe, which is part of the path;
    `as_none` what a client sends for None; `make` turns what was received into what the method
    returns.
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


COUNT: Any = Annotated[int | None, Field(ge=1, le=1_000_000)]


def _filter_type(name: str) -> Any:
    if name not in DIMENSIONS:  # data_parallel, which is derived
        return COUNT
    dimension = DIMENSIONS[name]
    words = (
        Literal[*dimension.values] | None
        if dimension.values
        else Annotated[str | None, Field(max_length=64)]
    )
    return {"count": COUNT, "flag": bool | None}.get(dimension.kind, words)


STEP_DIMENSIONS = ("schedule", "pipeline_parallel", "virtual_stages", "micro_batch_seqs")
"""What a recipe's step may be laid out with other values of."""
QUESTIONS = (
    Question("drivers", "campaigns", "/drivers", list[ActiveDriver]),
    Question("compare", "campaigns", "/compare", Comparison, {"campaigns": SIDES, **PAGED}),
    Question("status", "campaigns", "/campaigns/{name}", Status),
    Question(
        "running",
        "campaigns",
        "/campaigns/{name}/running",
        Running,
        {"top": Annotated[int, Field(ge=1, le=50)]},
    ),
    Question(
        "trials",
        "campaigns",
        "/campaigns/{name}/trials",
        TrialPage,
        {"state": TrialState | None, **PAGED},
    ),
    Question("history", "campaigns", "/campaigns/{name}/history", HistoryPage, PAGED),
    Question(
        "best",
        "recipes",
        "/campaigns/{name}/best",
        list[RankedRecipe],
        {
            "top": Annotated[int, Field(ge=1, le=MOST_RANKED)],
            "by": RankBy | None,
            "max_memory_gb": MaxMemory,
        },
        as_none={"top": MOST_RANKED},
        make=Ranking,
    ),
    Question("pareto", "recipes", "/campaigns/{name}/pareto", list[RankedRecipe], make=Ranking),
    Question("show", "recipes", "/recipes/{recipe_id}", Explanation, {"campaign": InCampaign}),
    Question(
        "step",
        "recipes",
        "/recipes/{recipe_id}/step",
        StepTimeline,
        {"campaign": InCampaign, **{name: _filter_type(name) for name in STEP_DIMENSIONS}},
    ),
    Question("export", "recipes", "/recipes/{recipe_id}/export", str, {"to": str}),
    Question("baseline", "reports", "/campaigns/{name}/baseline", Baseline | None),
)
_FILTERS: dict[str, Any] = {name: (_filter_type(name), None) for name in FILTERS}
RecipeQuestion: Any = pydantic.create_model(
    "RecipeQuestion",
    __base__=Body,
    by=(RankBy, RankBy.TOKENS),
    max_memory_gb=(MaxMemory, None),
    page=(Page, 1),
    page_size=(PageSize, 50),
    custom=(Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=16)], ()),
    **_FILTERS,
)


class FrameAnswer(BaseModel):
    """The columns of a table, all of one length; null where a cell is missing, times in ISO
    8601.
    """

    columns: dict[str, list[JsonValue]]
