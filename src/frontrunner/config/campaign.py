"""Campaign and cluster files: one tree of models that parses them, describes them, and is the body
of a launch.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, WithJsonSchema

from frontrunner.config.recipe_file import read
from frontrunner.config.removed import refuse_removed
from frontrunner.config.toml_file import Table, read_text, read_toml, set_value, value_of
from frontrunner.evaluators.export.reading import json_table
from frontrunner.evaluators.nodes.settings import DispatchSettings, require_scheduler
from frontrunner.evaluators.programs.command_settings import CommandSettings
from frontrunner.evaluators.registry import require_evaluator
from frontrunner.evaluators.runs.settings import BUILT_IN_DATA, DataSettings, ProbeSettings
from frontrunner.evaluators.tables import TableSettings
from frontrunner.results.redaction import looks_secret
from frontrunner.search.spec import Budget, CampaignSpec, DeepHyperSettings, SearchSettings
from frontrunner.search.strategy import STRATEGIES
from frontrunner.spaces import errors, presets
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.hugging_face import model_of_config
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem, SoftwareSettings
from frontrunner.spaces.recipe import DIMENSIONS, EARLIER_NAMES
from frontrunner.spaces.space import Space, usual_space
from frontrunner.spaces.validation import Config, SchemaOf, inlined_schema, parse

logger = logging.getLogger(__name__)

Schema = dict[str, Any]
THIS_MACHINE = "this-machine"
FURTHER_TOKENS = "num_nextn_predict_layers"
CUSTOM = "custom"
_COUNT = {"type": "integer", "minimum": 1}
_BATCH_SCHEMA = {
    "description": "Sequences per optimizer step, or [minimum, maximum].",
    "anyOf": [_COUNT, {"type": "array", "items": _COUNT, "minItems": 2, "maxItems": 2}],
}


def _base(info: ValidationInfo) -> Path:
    base: Path = (info.context or {}).get("base", Path())
    return base


def _filled(fill: Callable[[Table, Path], Table]) -> BeforeValidator:
    """Complete a table before it is validated, with the folder of its file; what is no table is
    left as it is.
    """
    return BeforeValidator(
        lambda given, info: fill(given, _base(info)) if isinstance(given, dict) else given
    )


def _preset(names: tuple[str, ...]) -> Schema:
    return {
        "type": "string",
        "enum": list(names),
        "description": "A preset; the other keys override it.",
    }


def _fill_model(given: Table, base: Path) -> Table:
    found: Table = {"name": "custom"}
    if "config" in given and "preset" in given:
        raise errors.bad_value("model.preset", given["preset"], "no preset beside model.config")
    if "preset" in given:
        found = presets.model_preset(given["preset"])
    elif "config" in given:
        found = _published_model(given["config"], base, counts_further="mtp_layers" in given)
    merged = found | {key: value for key, value in given.items() if key not in ("preset", "config")}
    if isinstance(merged.get("heads"), int):
        merged.setdefault("kv_heads", merged["heads"])
    if isinstance(merged.get("hidden"), int):
        merged.setdefault("ffn_hidden", 4 * merged["hidden"])
    return merged


def with_model_inside(table: Table, base: Path) -> Table:
    """Return a campaign file's content with what `model.config` says in its place, for a reader
    without that file.
    """
    model = table.get("model")
    return (
        table | {"model": _fill_model(model, base)}
        if isinstance(model, dict) and "config" in model
        else table
    )


def _published_model(name: object, base: Path, *, counts_further: bool) -> Table:
    if not isinstance(name, str) or not name:
        raise errors.bad_value("model.config", name, "the path of a model's config.json")
    path = base / name
    text = read_text(path, "configuration of a model", "take config.json from the model's folder")
    with errors.naming(path):
        config = json_table(text).values
        found = model_of_config(config)
    if (further := config.get(FURTHER_TOKENS)) and not counts_further:
        what = (
            "these layers, which predict further tokens, are left out; model.mtp_layers estimates"
            " them"
        )
        logger.warning("note: %s: %s = %s: %s", path, FURTHER_TOKENS, errors.shown(further), what)
    return found


def _model_schema(schema: Schema) -> None:
    config = (
        "Path of a published model's `config.json`, relative to the campaign file; the other keys"
        " override it."
    )
    schema["properties"] = {
        "preset": _preset(presets.preset_names("models")),
        "config": {"type": "string", "description": config},
        **schema["properties"],
    }
    own = [
        key
        for key in schema.pop("required")
        if key not in _fill_model({"heads": 1, "hidden": 1}, Path())
    ]
    schema["anyOf"] = [
        {"required": ["preset"]},
        {"required": ["config"]},
        {"required": [*own, "hidden", "heads"]},
    ]


def _fill_cluster(given: Table, base: Path) -> Table:
    """Complete a [cluster] by its preset, file or device; a device that ships is named by its
    key.
    """
    found = _with_figures(dict(given), base)
    if "fitted" in found:
        found["fitted"] = _as_tuples(found["fitted"])
    known = presets.known_device(str(found.get("device", "")))
    return found if known is None else found | {"device": known["device"]}


def _as_tuples(given: Any) -> Any:
    """Return lists as tuples, which strict validation expects of a table that was filled in, at
    every depth.
    """
    if isinstance(given, dict):
        return {key: _as_tuples(value) for key, value in given.items()}
    return tuple(map(_as_tuples, given)) if isinstance(given, list | tuple) else given


def _with_figures(table: Table, base: Path) -> Table:
    if "file" in table:
        return _over_file(table, base)
    name, wanted = table.pop("preset", None), table.get("devices_per_node")
    if name is None:
        return (
            {"name": "custom", "nodes": 1}
            | (presets.known_device(str(table.get("device", ""))) or {})
            | table
        )
    if name != THIS_MACHINE:
        return presets.cluster_preset(name) | table
    from frontrunner.evaluators.nodes.this_machine import detect, share_processors

    found = detect(table.get("backend"))
    if isinstance(wanted, int) and found["backend"] == "cpu" and wanted >= 1:
        found = share_processors(found, wanted)
    elif isinstance(wanted, int) and wanted > found["devices_per_node"]:
        raise errors.bad_value(
            "cluster.devices_per_node",
            wanted,
            f"at most the {found['devices_per_node']} found here",
        )
    return found | table


def _over_file(table: Table, base: Path) -> Table:
    name = table.pop("file")
    if not isinstance(name, str) or not name:
        raise errors.bad_value("cluster.file", name, "the path of a cluster file")
    if "preset" in table:
        raise errors.bad_value(
            "cluster.preset", table["preset"], f"no preset with cluster.file = {errors.shown(name)}"
        )
    cluster = read_cluster_file(base / name)
    measured, wanted = (
        cluster.devices_per_node,
        table.get("devices_per_node", cluster.devices_per_node),
    )
    if cluster.backend == "cpu" and wanted != measured:
        expected = f"{measured}: {name} was measured with this many ranks sharing the processors"
        raise errors.bad_value("cluster.devices_per_node", wanted, expected)
    stated = own if isinstance(own := table.get("efficiencies"), dict) else {}
    for key, code in ((one.name, fit.code) for fit in cluster.fitted for one in fit.constants):
        if key in stated:
            expected = f"no value here: {name} has what was fitted to steps of {code}"
            raise errors.bad_value(f"cluster.efficiencies.{key}", stated[key], expected)
    merged = asdict(cluster)
    for key, value in table.items():
        both_tables = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merged[key] | value if both_tables else value
    return merged


MOST_NAME, CONTROL = 200, re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _check_name(found: Any, info: ValidationInfo) -> Any:
    if len(found.name) > MOST_NAME or CONTROL.search(found.name):
        expected = f"at most {MOST_NAME} characters, none a control character"
        raise errors.bad_value(f"{info.field_name}.name", found.name, expected)
    return found


def _check_efficiencies(cluster: Cluster) -> Cluster:
    if cluster.efficiencies or cluster.fitted:
        from frontrunner.evaluators.analytic.machine import check_efficiencies, check_fits

        check_efficiencies(cluster.efficiencies)
        check_fits(cluster.fitted)
    return cluster


def _check_code(software: SoftwareSettings) -> SoftwareSettings:
    if software.code is not None:
        errors.require_one_of("software", "code", software.code, _codes())
    return software


def _codes() -> tuple[str, ...]:
    from frontrunner.evaluators.analytic.codes import CODES

    return tuple(CODES)


def _software_schema(schema: Schema) -> None:
    schema["properties"]["code"]["anyOf"][0]["enum"] = list(_codes())


def _cluster_schema(schema: Schema) -> None:
    schema["properties"] = {
        "preset": _preset((*presets.preset_names("clusters"), THIS_MACHINE)),
        "file": {
            "type": "string",
            "description": "Path of a cluster file, relative to the campaign file.",
        },
        **schema["properties"],
    }
    schema["properties"]["device"]["examples"] = list(presets.preset_names("devices"))
    filled = _fill_cluster({"device": presets.preset_names("devices")[0]}, Path())
    schema["properties"]["fitted"] = {"type": "array", "items": {"type": "object"}} | {
        "description": (
            "Constants fitted to measured steps of training codes, `[[cluster.fitted]]`, as"
            " `frontrunner calibrate` writes them; of another code nothing there is used. See"
            " [calibration](calibration.md)."
        )
    }
    own = [key for key in schema.pop("required") if key not in filled or key == "device"]
    schema["anyOf"] = [
        *({"required": [key]} for key in ("preset", "file")),
        {"required": own},
    ]


def _batch_range(given: Any) -> Any:
    ends = given if isinstance(given, list) and len(given) == 2 else [given, given]
    if not all(isinstance(end, int) and not isinstance(end, bool) for end in ends):
        raise errors.bad_value(
            "problem.global_batch", given, "a whole number of sequences, or [minimum, maximum]"
        )
    return {"minimum": ends[0], "maximum": ends[1]}


def _fill_space(given: Table, _: Path) -> Table:
    """Read a single value as a list of one; print a note for each key of earlier versions."""
    for key in EARLIER_NAMES.keys() & given.keys():
        logger.warning("note: space.%s is now called space.%s", key, EARLIER_NAMES[key])
    found: Table = {
        key: tuple(value) if isinstance(value, list) else (value,) for key, value in given.items()
    }
    if isinstance(own := given.get(CUSTOM), dict):
        own = {
            name: _with_values(name, knob) if isinstance(knob, dict) else knob
            for name, knob in own.items()
        }
    return found if own is None else found | {CUSTOM: own}


def _with_values(name: str, knob: Table) -> Table:
    values = knob.get("values")
    if not isinstance(values, list):
        return knob
    if strange := next(
        (value for value in values if not isinstance(value, bool | int | float | str)), None
    ):
        expected = "numbers, texts, or true and false"
        raise errors.bad_value(f"space.custom.{errors.shown_key(name)}.values", strange, expected)
    return knob | {"values": tuple(values)}


def _check_custom(space: Space) -> Space:
    for name, knob in space.custom.items():
        if knob.env is not None and any(
            looks_secret(knob.env, str(value)) for value in knob.values
        ):
            raise errors.bad_value(
                f"space.custom.{name}.env",
                knob.env,
                "no variable that looks like a secret, which would be stored",
            )
    return space


def _space_schema(schema: Schema) -> None:
    own = schema["properties"].pop(CUSTOM)
    for name, dimension in schema["properties"].items():
        stated, more = DIMENSIONS[name], {"default": dimension.pop("default")}
        dimension["items"] |= {"enum": list(stated.values)} if stated.values else {}
        more["description"] = stated.description
        schema["properties"][name] = {"anyOf": [dimension, dimension["items"]]} | more
    about = (
        "Knobs of your own, by name, that a trainer gets as arguments or environment variables:"
        " [below](#spacecustom)."
    )
    schema["properties"][CUSTOM] = own | {"description": about}


def _fill_search(given: Table, base: Path) -> Table:
    table = {
        key: tuple(value) if isinstance(value, list) else value for key, value in given.items()
    }
    if (name := table.get("baseline")) is not None:
        if not isinstance(name, str) or not name:
            raise errors.bad_value("search.baseline", name, "the path of a recipe file")
        table["baseline"] = read(base / name).recipe
    return table


def _check_deephyper(search: SearchSettings) -> SearchSettings:
    """Refuse settings that nothing would use; stored campaigns of earlier versions may have
    some.
    """
    own, usual = search.deephyper, DeepHyperSettings()
    for key, value in vars(own).items():
        used_by = {"kappa": ("UCB",), "xi": ("EI", "PI")}.get(key, ("",))
        if value == getattr(usual, key):
            continue
        if search.strategy != "deephyper":
            expected = f'no such entry with search.strategy = "{search.strategy}"'
            raise errors.bad_value(f"search.deephyper.{key}", value, expected)
        if not own.acquisition.startswith(used_by):
            expected = (
                f'no such entry with acquisition = "{own.acquisition}": it is of'
                f" {' and '.join(used_by)}"
            )
            raise errors.bad_value(f"search.deephyper.{key}", value, expected)
    return search


def _search_schema(schema: Schema) -> None:
    properties = schema["properties"]
    properties["strategy"]["enum"] = list(STRATEGIES)
    properties["baseline"] = {
        "type": "string",
        "description": properties["baseline"]["description"],
    }


def _locate(settings: Any, info: ValidationInfo) -> Any:
    if settings.path is None:
        return settings
    return replace(settings, path=_located(settings.path, f"{info.field_name}.path", info))


def _located(named: str, key: str, info: ValidationInfo) -> str:
    path = _base(info) / named
    if not errors.holds(path.is_file):
        raise errors.bad_value(key, named, f"a file, by its path from {_base(info).absolute()}")
    return str(path.resolve())


def _locate_files(data: DataSettings, info: ValidationInfo) -> DataSettings:
    files = (replace(one, path=_located(one.path, "data.files.path", info)) for one in data.files)
    return replace(data, files=tuple(files))


def _locate_command(command: CommandSettings, info: ValidationInfo) -> CommandSettings:
    for name, value in command.environment.items():
        if looks_secret(name, value):
            raise errors.InvalidInput(
                f"command.environment.{name} looks like a secret, which would be stored: expected"
                " other variables",
                hint=(
                    f'set it where the driver is started, and pass_environment = ["{name}", ...]'
                    " hands it on"
                ),
            )
    folder = _base(info) / (command.folder or "")
    if command.folder is not None and not errors.holds(folder.is_dir):
        raise errors.bad_value(
            "command.folder", command.folder, f"a folder, by its path from {_base(info).absolute()}"
        )
    return replace(command, folder=str(folder.resolve())) if command.arguments else command


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """Where outcomes are kept."""

    url: str | None = None
    """Path or URL of the [store](store.md); `--store` and `FRONTRUNNER_STORE` override it. By
    default `frontrunner.db`.
    """
    run_folder: str | None = None
    """Folder for the files of probes and replays; `FRONTRUNNER_RUNS` overrides it. By default
    `frontrunner-runs` next to the store.
    """

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            if value is not None and (not value.strip() or "\0" in value):
                raise errors.bad_value(
                    f"store.{key}", value, "a path" + (", or a URL" if key == "url" else "")
                )


CampaignName = Annotated[
    str,
    AfterValidator(lambda name: errors.require_campaign_name("name", name)),
    WithJsonSchema({"type": "string", "pattern": f"^{errors.CAMPAIGN_NAME.pattern}$"}),
]
ModelSection = Annotated[
    Model, _filled(_fill_model), AfterValidator(_check_name), SchemaOf(_model_schema)
]
ClusterSection = Annotated[
    Cluster,
    _filled(_fill_cluster),
    AfterValidator(_check_name),
    AfterValidator(_check_efficiencies),
    SchemaOf(_cluster_schema),
]


DataSection = Annotated[DataSettings, AfterValidator(_locate), AfterValidator(_locate_files)]


class ProblemSection(Config):
    """What a recipe must solve, besides the sections [model] and [cluster]."""

    sequence_length: int
    """Tokens per sequence."""
    global_batch: Annotated[
        GlobalBatch, BeforeValidator(_batch_range), WithJsonSchema(_BATCH_SCHEMA)
    ]
    """Sequences per optimizer step over all replicas: a number, from which accumulation follows, or
    `[minimum, maximum]`, which needs `space.accumulation`."""
    precision: str = "bf16"
    """`fp32`, `bf16` or `fp16`: the arithmetic; master weights are fp32, and so are optimizer
    states but for `space.optimizer_state = ["bf16"]`. Under `fp16` the loss is scaled, and steps
    whose gradients overflow are not measured.
    """
    tolerance: str = "rounding"
    """How far recipes may differ in their results: by `rounding` alone, or by what is `quantized`
    too, which `space.fp8`, `space.quantized_weights` and `space.quantized_gradients` need.
    """
    billion_tokens: float | None = None
    """Tokens of the whole training, in 1e9: tables then state its days, its node-hours and, with
    `cluster.price_per_node_hour`, its price."""


class CampaignConfig(Config):
    """A campaign file. Each section is validated to the values that the campaign works with."""

    model: ModelSection
    cluster: ClusterSection
    problem: ProblemSection
    software: Annotated[
        SoftwareSettings, AfterValidator(_check_code), SchemaOf(_software_schema)
    ] = SoftwareSettings()
    space: Annotated[
        Space, _filled(_fill_space), AfterValidator(_check_custom), SchemaOf(_space_schema)
    ] = Space()
    search: Annotated[
        SearchSettings,
        _filled(_fill_search),
        AfterValidator(_check_deephyper),
        SchemaOf(_search_schema),
    ] = SearchSettings()
    budget: Budget = Budget()
    probe: ProbeSettings = ProbeSettings()
    data: DataSection = DataSettings()
    dispatch: Annotated[DispatchSettings, AfterValidator(require_scheduler)] = DispatchSettings()
    table: Annotated[TableSettings, AfterValidator(_locate)] = TableSettings()
    command: Annotated[CommandSettings, AfterValidator(_locate_command)] = CommandSettings()
    store: StoreSettings = StoreSettings()
    name: CampaignName | None = None
    """The campaign's name: `a-z`, `0-9`, `.`, `_`, `-`. It must be free; the default, the file's
    own name, gets `-2`, `-3`, ...
    """
    evaluator: str = "probe"
    """How recipes are judged: `probe` trains, `simulated` rehearses with computed outcomes, `table`
    [looks them up](#table), `command` runs [another trainer](#command); other names are
    [plug-ins](other-trainers.md#a-plug-in).
    """

    def campaign(self, default_name: str) -> CampaignFile:
        """Return the campaign that the file describes; raises `InvalidInput` for sections that do
        not go together.
        """
        require_evaluator(self.evaluator)
        problem = Problem(
            model=self.model, cluster=self.cluster, software=self.software, **dict(self.problem)
        )
        shared = ("search", "budget", "probe", "data", "dispatch", "table", "command", "evaluator")
        sections = {key: getattr(self, key) for key in shared}
        says_more = "space" in self.model_fields_set and self.space != Space(
            custom=self.space.custom
        )
        only_own = bool(self.space.custom) and not says_more
        is_stated = "space" in self.model_fields_set and not only_own
        sections["space"] = (
            self.space if is_stated else replace(usual_space(problem), custom=self.space.custom)
        )
        spec = CampaignSpec(name=self.name or default_name, problem=problem, **sections)
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
    path: Path | None = None
    changes: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    """As `CampaignSpec.changes`."""


def campaign_of(given: str | Path | Mapping[str, Any] | CampaignFile) -> CampaignFile:
    """Return the campaign of a file's path, or of its sections as a dictionary, whose paths are
    from this folder.
    """
    if isinstance(given, CampaignFile):
        return given
    if isinstance(given, Mapping):
        return parse_campaign(dict(given), default_name="campaign", base=Path())
    return read_campaign_file(Path(given))


def example_file(name: str) -> Path:
    """Return the path of a campaign file that ships; raises `NotFound` for another name."""
    folder = Path(str(files("frontrunner"))) / "examples"
    known = sorted(path.stem for path in folder.glob("*.toml"))
    if name not in known:
        raise errors.NotFound(f"no example {name!r}", hint=errors.did_you_mean(name, known))
    return folder / f"{name}.toml"


def read_campaign_file(
    path: Path, changes: Mapping[str, str] = MappingProxyType({})
) -> CampaignFile:
    """Read and validate a campaign file; raises `NotFound`, or `InvalidInput` naming the key.

    `changes` are values as TOML by their keys, as `budget.probes`, in place of the file's.
    """
    table = read_toml(path)
    default_name = errors.campaign_name_from(path.stem)
    kept = {
        key: text for key, text in changes.items() if not key.startswith("store.")
    }  # which has passwords
    try:
        with errors.naming(path):
            replaced = {key: (value_of(table, key), text) for key, text in kept.items()}
            for key, text in changes.items():
                set_value(table, key, text)
            found = parse_campaign(table, default_name=default_name, base=path.parent)
    except errors.InvalidInput as error:
        if not changes or not _is_valid(path, default_name):
            raise
        without_path = error.message.removeprefix(f"{path}: ")
        raise type(error)(f"--set: {without_path}", hint=error.hint) from None
    return replace(found, path=path.resolve(), changes=replaced)


def _is_valid(path: Path, default_name: str) -> bool:
    """Return whether a campaign file is valid as it is, so that what was set on the command line is
    at fault.
    """
    try:
        parse_campaign(read_toml(path), default_name=default_name, base=path.parent)
    except errors.FrontrunnerError:
        return False
    return True


def on_cluster(given: str | Path | Mapping[str, Any], cluster: str) -> CampaignFile:
    """Return the campaign of a file, or of its sections, on another cluster: a preset or a cluster
    file.

    A preset has as many nodes as the campaign's own cluster. The sections [dispatch] and [budget]
    are left out, since they are about that cluster.
    """
    if isinstance(given, Mapping):
        table, base, default_name = dict(given), Path(), "campaign"
    else:
        path = Path(given)
        table, base = read_toml(path), path.parent
        default_name = errors.campaign_name_from(path.stem)
    section = cluster_section(cluster)
    if "file" in section:
        section["file"] = str(Path(section["file"]).absolute())
    elif section["preset"] != THIS_MACHINE:
        section["nodes"] = value_of(table, "cluster.nodes") or 1
    kept = {key: value for key, value in table.items() if key not in ("dispatch", "budget")}
    with errors.naming(f"cluster {cluster}"):
        return parse_campaign(kept | {"cluster": section}, default_name=default_name, base=base)


def parse_campaign(table: Table, *, default_name: str, base: Path) -> CampaignFile:
    """Validate a campaign from parsed TOML or JSON; relative paths are taken from `base`."""
    refuse_removed(table)
    return parse(CampaignConfig, table, base=base).campaign(default_name)


class _ModelFile(Config):
    model: ModelSection


class ClusterFile(Config):
    """A cluster file: TOML with the section [cluster] alone, as `frontrunner calibrate` writes
    it.
    """

    cluster: ClusterSection


def read_cluster_file(path: Path) -> Cluster:
    """Read and validate a cluster file; raises `NotFound` and `InvalidInput` as
    `read_campaign_file` does.
    """
    table = read_toml(path, "cluster file", "frontrunner calibrate --out FILE writes one")
    with errors.naming(path):
        section = table.get("cluster")
        if isinstance(section, dict) and "file" in section:
            raise errors.bad_value("cluster.file", section["file"], "no such key in a cluster file")
        refuse_removed(table)
        return parse(ClusterFile, table, base=path.parent).cluster


class _DataFile(Config):
    data: DataSection


def named_data(name: str) -> DataSettings:
    """Return data by the path of a file, or of a TOML file with a section [data], or as
    `built-in`.
    """
    if name == BUILT_IN_DATA:
        return DataSettings()
    path = Path(name)
    if path.suffix != ".toml":
        return DataSettings(path=str(path.absolute()))
    table = read_toml(path, "data file", "it has a section [data], as a campaign file")
    with errors.naming(path):
        return parse(
            _DataFile,
            {key: value for key, value in table.items() if key == "data"},
            base=path.parent,
        ).data


def preset_model(name: str) -> Model:
    """Return the model of a preset."""
    return parse(_ModelFile, {"model": {"preset": name}}).model


def named_cluster(name: str | Cluster | None) -> Cluster | None:
    """Return a cluster by the name of a preset or the path of a cluster file; a cluster, or None,
    as it is.
    """
    return parse_cluster(cluster_section(name)) if isinstance(name, str) else name


def cluster_section(name: str) -> Table:
    """Return the section [cluster] of a preset, or of the path of a cluster file."""
    known = (*presets.preset_names("clusters"), THIS_MACHINE)
    if name in known:
        return {"preset": name}
    if "/" in name or name.endswith(".toml"):
        return {"file": name}
    raise errors.bad_value(
        "cluster",
        name,
        "a known preset, or a cluster file's path",
        hint=errors.did_you_mean(name, known),
    )


def parse_cluster(table: Table) -> Cluster:
    """Validate the keys of a section [cluster]; a relative `file` is taken from the working
    directory.
    """
    refuse_removed({"cluster": table})
    return parse(ClusterFile, {"cluster": table}).cluster
