"""The campaign file: TOML in, a validated `CampaignSpec` out, or one message that names the key.

Sections: [model] [cluster] [problem] [space] [search] [budget] [probe] [data] [dispatch] [table] [command] [store],
and at the top `name` and `evaluator`. Types come from the dataclasses of the floors; this module fills in presets and
defaults and turns every complaint into the file's own words.
"""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TypeVar, get_type_hints

from frontrunner.evaluators.command.settings import CommandSettings
from frontrunner.evaluators.dispatch.settings import DispatchSettings
from frontrunner.evaluators.plugins import require_evaluator
from frontrunner.evaluators.settings import DataSettings, ProbeSettings
from frontrunner.evaluators.table_settings import TableSettings
from frontrunner.results.secret_values import looks_secret
from frontrunner.search.spec import Budget, CampaignSpec, SearchSettings
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean
from frontrunner.spaces.model import Model
from frontrunner.spaces.names import campaign_name_from, require_campaign_name
from frontrunner.spaces.presets import cluster_names, cluster_preset, known_device, model_preset
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.space import Space
from frontrunner.spaces.wording import shown, shown_key
from frontrunner.toml_file import Table, holds, read_toml
from frontrunner.validation import refuse_unusable_values, validate

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """Where outcomes are kept: a URL (or a path, for SQLite), and the folder for the probes' own files."""

    url: str | None = None
    run_folder: str | None = None

    def __post_init__(self) -> None:
        for key, value in (("url", self.url), ("run_folder", self.run_folder)):
            if value is not None and (not value.strip() or "\0" in value):
                raise bad_value(f"store.{key}", value, "a path" + (", or a URL" if key == "url" else ""))


@dataclass(frozen=True, kw_only=True)
class CampaignFile:
    """A campaign file's content; `named` says whether the file itself gave the campaign its name."""

    spec: CampaignSpec
    store: StoreSettings
    named: bool


SECTION_TYPES: dict[str, type] = {
    "model": Model,
    "cluster": Cluster,
    "problem": Problem,
    "space": Space,
    "search": SearchSettings,
    "budget": Budget,
    "probe": ProbeSettings,
    "data": DataSettings,
    "dispatch": DispatchSettings,
    "table": TableSettings,
    "command": CommandSettings,
    "store": StoreSettings,
}
SECTIONS = tuple(SECTION_TYPES)
TOP_LEVEL = (*SECTIONS, "name", "evaluator")
KEYS = {
    section: tuple(f.name for f in fields(kind) if f.name not in SECTIONS) for section, kind in SECTION_TYPES.items()
}
"""The keys of each section, without `preset`; a problem's model and cluster are sections of their own."""


def read_campaign_file(path: Path) -> CampaignFile:
    """Read and validate a campaign file.

    Raises `NotFound` where there is no such file, and `InvalidInput` naming the key, its value and what was
    expected for anything else that is wrong with it.
    """
    table = read_toml(path, "campaign file", "examples/laptop.toml is one to begin with")
    try:
        return parse_campaign(table, default_name=campaign_name_from(path.stem), base=path.parent)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.message}", hint=error.hint) from None


def read_cluster_file(path: Path) -> Cluster:
    """Read and validate a cluster file: TOML with the section [cluster] alone, as `frontrunner calibrate` writes it.

    Raises as `read_campaign_file` does.
    """
    table = read_toml(path, "cluster file", "frontrunner calibrate --out FILE writes one")
    try:
        refuse_unusable_values(table)
        if set(table) != {"cluster"} or not isinstance(table["cluster"], dict):
            named = ", ".join(shown_key(key) for key in table) or "nothing"
            raise InvalidInput(f"it holds {named}: expected the section [cluster] alone")
        if "file" in table["cluster"]:
            raise bad_value("cluster.file", table["cluster"]["file"], "no such key in a cluster file")
        return _checked_cluster(_cluster_table(table["cluster"], path.parent))
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.message}", hint=error.hint) from None


def named_cluster(name: str) -> Cluster:
    """A cluster by the name of a preset, or by the path of a cluster file."""
    if name == "this-machine" or name in cluster_names():
        return parse_cluster({"preset": name})
    if "/" in name or name.endswith(".toml"):
        return read_cluster_file(Path(name))
    hint = did_you_mean(name, (*cluster_names(), "this-machine"))
    raise bad_value("cluster", name, "a known preset, or a cluster file's path", hint=hint)


def parse_cluster(table: Table) -> Cluster:
    """A cluster from the keys of a [cluster] section; a relative `file` is taken from the working directory."""
    return _checked_cluster(_cluster_table(table, Path()))


def parse_campaign(table: Table, *, default_name: str, base: Path) -> CampaignFile:
    """A campaign from its parsed TOML; relative data paths are taken from `base`."""
    refuse_unusable_values(table)
    _refuse_unknown("", table, TOP_LEVEL)
    for section in SECTIONS:
        if not isinstance(table.get(section, {}), dict):
            raise bad_value(section, table[section], f"a section: [{section}]")
    for section in ("model", "cluster", "problem", "space"):
        if section not in table:
            raise InvalidInput(f"[{section}] is missing", hint="examples/laptop.toml has every section")
    name, evaluator = _text(table, "name", default_name), _text(table, "evaluator", "probe")
    require_campaign_name("name", name)
    require_evaluator(evaluator)
    _refuse_unknown("space", table["space"], KEYS["space"])
    space = {key: value if isinstance(value, list) else [value] for key, value in table["space"].items()}
    spec = CampaignSpec(
        name=name,
        problem=_problem(table, base),
        space=_section(Space, "space", space),
        search=_search(table.get("search", {}), base),
        budget=_section(Budget, "budget", table.get("budget", {})),
        probe=_section(ProbeSettings, "probe", table.get("probe", {})),
        data=_data(table.get("data", {}), base),
        dispatch=_section(DispatchSettings, "dispatch", table.get("dispatch", {})),
        table=_measured_table(table.get("table", {}), base),
        command=_command(table.get("command", {}), base),
        evaluator=evaluator,
    )
    return CampaignFile(
        spec=spec, store=_section(StoreSettings, "store", table.get("store", {})), named="name" in table
    )


def _text(table: Table, key: str, default: str) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise bad_value(key, value, "text in quotes")
    return value


def _data(table: Table, base: Path) -> DataSettings:
    data = _section(DataSettings, "data", table)
    if data.path is None:
        return data
    path = base / data.path
    if not holds(path.is_file):
        raise bad_value("data.path", data.path, f"a file, by its path from {base.absolute()}")
    return DataSettings(path=str(path.resolve()))


def _search(table: Table, base: Path) -> SearchSettings:
    """The section [search], whose baseline is a recipe file."""
    name = table.get("baseline")
    if name is None:
        return _section(SearchSettings, "search", table)
    if not isinstance(name, str) or not name:
        raise bad_value("search.baseline", name, "the path of a recipe file")
    from frontrunner.recipe_file import read

    rest = {key: value for key, value in table.items() if key != "baseline"}
    return replace(_section(SearchSettings, "search", rest), baseline=read(base / name).recipe)


def _measured_table(table: Table, base: Path) -> TableSettings:
    found = _section(TableSettings, "table", table)
    if found.path is None:
        return found
    path = base / found.path
    if not holds(path.is_file):
        raise bad_value("table.path", found.path, f"a file, by its path from {base.absolute()}")
    return replace(found, path=str(path.resolve()))


def _command(table: Table, base: Path) -> CommandSettings:
    found = _section(CommandSettings, "command", table)
    for name, value in found.environment.items():
        if looks_secret(name, value):  # the store keeps the campaign file's content
            raise InvalidInput(
                f"command.environment.{name} looks like a secret, which would be stored: expected other variables",
                hint=f'set it where the driver is started, and pass_environment = ["{name}", ...] hands it on',
            )
    folder = base / (found.folder or "")
    if found.folder is not None and not holds(folder.is_dir):
        raise bad_value("command.folder", found.folder, f"a folder, by its path from {base.absolute()}")
    return replace(found, folder=str(folder.resolve())) if found.arguments else found


def _problem(table: Table, base: Path) -> Problem:
    problem = dict(table["problem"])
    _refuse_unknown("problem", problem, KEYS["problem"])
    if "global_batch" in problem:
        problem["global_batch"] = _global_batch(problem["global_batch"])
    model, cluster = _model_table(table["model"]), _cluster_table(table["cluster"], base)
    _section(Model, "model", model)  # first on their own, so that a complaint names their section
    _checked_cluster(cluster)
    return _section(Problem, "problem", problem | {"model": model, "cluster": cluster})


def _global_batch(given: object) -> Table:
    """A number of sequences, or [minimum, maximum], as the fields of `GlobalBatch`."""
    ends = given if isinstance(given, list) and len(given) == 2 else [given, given]
    if not all(isinstance(end, int) and not isinstance(end, bool) for end in ends):
        raise bad_value("problem.global_batch", given, "a whole number of sequences, or [minimum, maximum]")
    return {"minimum": ends[0], "maximum": ends[1]}


def _model_table(given: Table) -> Table:
    table = dict(given)
    preset = model_preset(table.pop("preset")) if "preset" in table else {"name": "custom"}
    merged = preset | table
    if isinstance(merged.get("heads"), int):
        merged.setdefault("kv_heads", merged["heads"])
    if isinstance(merged.get("hidden"), int):
        merged.setdefault("ffn_hidden", 4 * merged["hidden"])
    return merged


def _checked_cluster(table: Table) -> Cluster:
    cluster = _section(Cluster, "cluster", table)
    if cluster.efficiencies:
        from frontrunner.evaluators.analytic.measured import check_efficiencies

        check_efficiencies(cluster.efficiencies)
    return cluster


def _cluster_table(given: Table, base: Path) -> Table:
    table = dict(given)
    if "file" in table:
        return _cluster_of_file(table, base)
    name = table.pop("preset", None)
    if name is None:
        known = known_device(str(table.get("device", ""))) or {}  # so that `device = "mi300x"` says enough
        return {"name": "custom", "nodes": 1} | known | table
    if name != "this-machine":
        return cluster_preset(name) | table
    from frontrunner.evaluators.this_machine import detect, share_processors

    found = detect()
    wanted = table.get("devices_per_node", found["devices_per_node"])
    if found["backend"] == "cpu" and isinstance(wanted, int) and wanted >= 1:
        found = share_processors(found, wanted)
    elif isinstance(wanted, int) and wanted > found["devices_per_node"]:
        raise bad_value("cluster.devices_per_node", wanted, f"at most the {found['devices_per_node']} found here")
    return found | table


def _cluster_of_file(table: Table, base: Path) -> Table:
    """The fields of a cluster file, by its path from `base`, under those of the campaign file."""
    name = table.pop("file")
    if not isinstance(name, str) or not name:
        raise bad_value("cluster.file", name, "the path of a cluster file")
    if "preset" in table:
        raise bad_value("cluster.preset", table["preset"], f"no preset beside cluster.file = {shown(name)}")
    cluster = read_cluster_file(base / name)
    wanted = table.get("devices_per_node", cluster.devices_per_node)
    if cluster.backend == "cpu" and wanted != cluster.devices_per_node:
        expected = f"{cluster.devices_per_node}: so many ranks shared the processors when {name} was measured"
        raise bad_value("cluster.devices_per_node", wanted, expected)
    stated = asdict(cluster)
    for key, value in table.items():
        both_tables = isinstance(value, dict) and isinstance(stated.get(key), dict)
        stated[key] = stated[key] | value if both_tables else value
    return stated


def _section(cls: type[T], name: str, table: Table) -> T:
    """One section as its dataclass: unknown keys, missing keys and wrong types name `section.key`."""
    _refuse_unknown_fields(cls, name, table)
    return validate(cls, table, prefix=name)


def _refuse_unknown_fields(cls: type, name: str, table: Table) -> None:
    hints = get_type_hints(cls)
    _refuse_unknown(name, table, [f.name for f in fields(cls)])
    for key, value in table.items():
        if is_dataclass(hints[key]) and isinstance(value, dict):
            _refuse_unknown_fields(hints[key], f"{name}.{key}", value)


def _refuse_unknown(section: str, table: Table, known: list[str] | tuple[str, ...]) -> None:
    extra = {"model": ("preset",), "cluster": ("preset", "file")}.get(section, ())
    for key, value in table.items():
        if key in (*known, *extra):
            continue
        path = f"{section}.{shown_key(key)}" if section else shown_key(key)
        what = f"section [{path}]" if not section and isinstance(value, dict) else f"key {path} = {shown(value)}"
        raise InvalidInput(f"unknown {what}", hint=_where(section, key, (*known, *extra)))


def _where(section: str, key: str, known: tuple[str, ...]) -> str | None:
    """The nearest key of this section; else the section that has a key of exactly this name."""
    owners = [name for name, keys in KEYS.items() if key in keys and name != section]
    if owners and not difflib.get_close_matches(key, known, n=1):
        return f"{key} belongs in [{owners[0]}]"
    return did_you_mean(key, known)
