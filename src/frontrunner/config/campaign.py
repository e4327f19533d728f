"""The campaign file: one tree of models that parses it, describes it, and is the body of a launch over HTTP."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, WithJsonSchema

from frontrunner.config.cluster import ClusterSection
from frontrunner.config.toml_file import Table, holds, read_toml
from frontrunner.evaluators.cluster.settings import DispatchSettings
from frontrunner.evaluators.external.settings import CommandSettings
from frontrunner.evaluators.probe.settings import DataSettings, ProbeSettings
from frontrunner.evaluators.registry import require_evaluator
from frontrunner.evaluators.tables import TableSettings
from frontrunner.results.redaction import looks_secret
from frontrunner.search.spec import Budget, CampaignSpec, SearchSettings
from frontrunner.search.strategy import STRATEGIES
from frontrunner.spaces.errors import CAMPAIGN_NAME, InvalidInput, bad_value, campaign_name_from, require_campaign_name
from frontrunner.spaces.model import Model
from frontrunner.spaces.presets import model_names, model_preset
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import DIMENSIONS, EARLIER_NAMES
from frontrunner.spaces.space import Space
from frontrunner.spaces.validation import Config, SchemaOf, inlined_schema, parse

logger = logging.getLogger(__name__)

Schema = dict[str, Any]
_COUNT = {"type": "integer", "minimum": 1}
_BATCH_SCHEMA = {
    "description": "Sequences per optimizer step, or [minimum, maximum].",
    "anyOf": [_COUNT, {"type": "array", "items": _COUNT, "minItems": 2, "maxItems": 2}],
}


def _base(info: ValidationInfo) -> Path:
    """The folder from which relative paths are taken."""
    base: Path = (info.context or {}).get("base", Path())
    return base


def _complete_model(given: Any) -> Any:
    """Fill in a preset, and what follows from other keys."""
    if not isinstance(given, dict):
        return given
    preset = model_preset(given["preset"]) if "preset" in given else {"name": "custom"}
    merged = preset | {key: value for key, value in given.items() if key != "preset"}
    if isinstance(merged.get("heads"), int):
        merged.setdefault("kv_heads", merged["heads"])
    if isinstance(merged.get("hidden"), int):
        merged.setdefault("ffn_hidden", 4 * merged["hidden"])
    return merged


def _model_schema(schema: Schema) -> None:
    preset = {"type": "string", "enum": list(model_names()), "description": "A preset; the other keys override it."}
    schema["properties"] = {"preset": preset, **schema["properties"]}
    own = [key for key in schema.pop("required") if key not in _complete_model({"heads": 1, "hidden": 1})]
    schema["anyOf"] = [{"required": ["preset"]}, {"required": [*own, "hidden", "heads"]}]


def _batch_range(given: Any) -> Any:
    """Read sequences per step: a number, or [minimum, maximum]."""
    ends = given if isinstance(given, list) and len(given) == 2 else [given, given]
    if not all(isinstance(end, int) and not isinstance(end, bool) for end in ends):
        raise bad_value("problem.global_batch", given, "a whole number of sequences, or [minimum, maximum]")
    return {"minimum": ends[0], "maximum": ends[1]}


def _lists(given: Any) -> Any:
    """Read a single value as a list of one; print a note for each key of earlier versions."""
    if not isinstance(given, dict):
        return given
    for key in EARLIER_NAMES.keys() & given.keys():
        logger.warning("note: space.%s is now called space.%s", key, EARLIER_NAMES[key])
    return {key: tuple(value) if isinstance(value, list) else (value,) for key, value in given.items()}


def _space_schema(schema: Schema) -> None:
    """Each dimension takes a list of values, or one of them."""
    for name, dimension in schema["properties"].items():
        default = dimension.pop("default")
        values = DIMENSIONS[name].values
        dimension["items"] |= {"enum": list(values)} if values else {}
        more = {"default": default, "description": DIMENSIONS[name].description}
        schema["properties"][name] = {"anyOf": [dimension, dimension["items"]]} | more


def _read_baseline(given: Any, info: ValidationInfo) -> Any:
    """Read the recipe file that `baseline` names."""
    if not isinstance(given, dict):
        return given
    table = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    name = table.get("baseline")
    if name is not None:
        if not isinstance(name, str) or not name:
            raise bad_value("search.baseline", name, "the path of a recipe file")
        from frontrunner.config.recipe_file import read

        table["baseline"] = read(_base(info) / name).recipe
    return table


def _search_schema(schema: Schema) -> None:
    schema["properties"]["strategy"]["enum"] = list(STRATEGIES)
    described = schema["properties"]["baseline"]["description"]
    schema["properties"]["baseline"] = {"type": "string", "description": described}


def _located(section: str) -> AfterValidator:
    """Return the validator of a section whose `path` has to be a file's."""

    def locate(settings: Any, info: ValidationInfo) -> Any:
        if settings.path is None:
            return settings
        path = _base(info) / settings.path
        if not holds(path.is_file):
            expected = f"a file, by its path from {_base(info).absolute()}"
            raise bad_value(f"{section}.path", settings.path, expected)
        return replace(settings, path=str(path.resolve()))

    return AfterValidator(locate)


def _locate_command(command: CommandSettings, info: ValidationInfo) -> CommandSettings:
    """Refuse secrets, which the store would keep, and resolve the folder."""
    for name, value in command.environment.items():
        if looks_secret(name, value):
            raise InvalidInput(
                f"command.environment.{name} looks like a secret, which would be stored: expected other variables",
                hint=f'set it where the driver is started, and pass_environment = ["{name}", ...] hands it on',
            )
    folder = _base(info) / (command.folder or "")
    if command.folder is not None and not holds(folder.is_dir):
        raise bad_value("command.folder", command.folder, f"a folder, by its path from {_base(info).absolute()}")
    return replace(command, folder=str(folder.resolve())) if command.arguments else command


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """Where outcomes are kept."""

    url: str | None = None
    """Path, or URL: `sqlite:///PATH` or `postgresql+psycopg://USER@HOST/DATABASE` ([stores](store.md)). `--store`
    and `FRONTRUNNER_STORE` override it; by default `frontrunner.db`."""
    run_folder: str | None = None
    """Folder for the files of probes and replays; `FRONTRUNNER_RUNS` overrides it. By default `frontrunner-runs`
    next to the store."""

    def __post_init__(self) -> None:
        for key, value in (("url", self.url), ("run_folder", self.run_folder)):
            if value is not None and (not value.strip() or "\0" in value):
                raise bad_value(f"store.{key}", value, "a path" + (", or a URL" if key == "url" else ""))


def _valid_name(name: str) -> str:
    require_campaign_name("name", name)
    return name


_NAME_SCHEMA = {"type": "string", "pattern": f"^{CAMPAIGN_NAME.pattern}$"}
CampaignName = Annotated[str, AfterValidator(_valid_name), WithJsonSchema(_NAME_SCHEMA)]


class ProblemSection(Config):
    """What a recipe must solve, besides the sections [model] and [cluster]."""

    sequence_length: int
    """Tokens per sequence."""
    global_batch: Annotated[GlobalBatch, BeforeValidator(_batch_range), WithJsonSchema(_BATCH_SCHEMA)]
    """Sequences per optimizer step over all replicas: a number, or `[minimum, maximum]`. With a number accumulation
    follows from it and recipes compare at equal mathematics; a range needs `space.accumulation`."""
    precision: str = "bf16"
    """`fp32`, `bf16` or `fp16`: the arithmetic; master weights and optimizer states are fp32. Under `fp16` the loss
    is scaled: a step whose gradients overflow changes no weight, halves the scale and is not measured; a probe whose
    measured steps all overflow is `not-finite`."""


class CampaignConfig(Config):
    """A campaign file. Each section is validated to the values that the campaign works with."""

    model: Annotated[Model, BeforeValidator(_complete_model), SchemaOf(_model_schema)]
    cluster: ClusterSection
    problem: ProblemSection
    space: Annotated[Space, BeforeValidator(_lists), SchemaOf(_space_schema)]
    search: Annotated[SearchSettings, BeforeValidator(_read_baseline), SchemaOf(_search_schema)] = SearchSettings()
    budget: Budget = Budget()
    probe: ProbeSettings = ProbeSettings()
    data: Annotated[DataSettings, _located("data")] = DataSettings()
    dispatch: DispatchSettings = DispatchSettings()
    table: Annotated[TableSettings, _located("table")] = TableSettings()
    command: Annotated[CommandSettings, AfterValidator(_locate_command)] = CommandSettings()
    store: StoreSettings = StoreSettings()
    name: CampaignName | None = None
    """The campaign's name: `a-z`, `0-9`, `.`, `_`, `-`. A name given here or with `--name` must be free; the
    default, the file's own name, gets `-2`, `-3`, ..."""
    evaluator: str = "probe"
    """How recipes are judged: `probe` trains; `simulated` computes rough outcomes at once, to rehearse a campaign
    (every table and JSON document marks them); `table` looks outcomes up ([below](#table)); `command` runs another
    trainer ([below](#command)); other names are [plug-ins](other-trainers.md#a-plug-in)."""

    def campaign(self, default_name: str) -> CampaignFile:
        """Return the campaign that the file describes; raises `InvalidInput` for sections that do not go together."""
        require_evaluator(self.evaluator)
        problem = Problem(model=self.model, cluster=self.cluster, **dict(self.problem))
        shared = ("space", "search", "budget", "probe", "data", "dispatch", "table", "command", "evaluator")
        spec = CampaignSpec(
            name=self.name or default_name, problem=problem, **{key: getattr(self, key) for key in shared}
        )
        return CampaignFile(spec=spec, store=self.store, named=self.name is not None)


SECTIONS = tuple(key for key in CampaignConfig.model_fields if key not in ("name", "evaluator"))


def section_schema(section: str) -> Schema:
    """Return the JSON Schema of one section; which values go together is not part of it."""
    schema: Schema = inlined_schema(CampaignConfig)["properties"][section]
    return {key: value for key, value in schema.items() if key != "default"}


def keys_of(section: str) -> tuple[str, ...]:
    """Return the keys that a section takes."""
    return tuple(section_schema(section)["properties"])


@dataclass(frozen=True, kw_only=True)
class CampaignFile:
    """A validated campaign file; `named` is whether the file itself names the campaign."""

    spec: CampaignSpec
    store: StoreSettings
    named: bool


def read_campaign_file(path: Path) -> CampaignFile:
    """Read and validate a campaign file.

    Raises `NotFound` for a missing file, and `InvalidInput` naming the key, its value and what was expected.
    """
    table = read_toml(path, "campaign file", "examples/laptop.toml is one to begin with")
    try:
        return parse_campaign(table, default_name=campaign_name_from(path.stem), base=path.parent)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.message}", hint=error.hint) from None


def parse_campaign(table: Table, *, default_name: str, base: Path) -> CampaignFile:
    """Validate a campaign from parsed TOML or JSON; relative paths are taken from `base`."""
    return parse(CampaignConfig, table, base=base).campaign(default_name)
