"""The campaign file: TOML in, a validated `CampaignSpec` out, or one message that names the key.

Sections: [model] [cluster] [problem] [space] [search] [budget] [probe] [data] [store], and at the top `name`
and `evaluator`. Types come from the dataclasses of the floors; this module fills in presets and defaults and
turns every complaint into the file's own words.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from frontrunner.evaluators.settings import DataSettings, ProbeSettings
from frontrunner.search.spec import Budget, CampaignSpec, SearchSettings
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput, NotFound, bad_value, did_you_mean
from frontrunner.spaces.model import Model
from frontrunner.spaces.presets import cluster_preset, known_device, model_preset
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.space import Space
from frontrunner.validation import validate

Table = dict[str, Any]
T = TypeVar("T")

DEFAULT_STORE = "frontrunner.db"
MAX_FILE_BYTES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """Where outcomes are kept: a URL (or a path, for SQLite), and the folder for the probes' own files."""

    url: str | None = None
    run_folder: str | None = None


@dataclass(frozen=True, kw_only=True)
class CampaignFile:
    """A campaign file's content; `named` says whether the file itself gave the campaign its name."""

    spec: CampaignSpec
    store: StoreSettings
    named: bool


SECTIONS = ("model", "cluster", "problem", "space", "search", "budget", "probe", "data", "store")
TOP_LEVEL = (*SECTIONS, "name", "evaluator")


def read_campaign_file(path: Path) -> CampaignFile:
    """Read and validate a campaign file.

    Raises `NotFound` where there is no such file, and `InvalidInput` naming the key, its value and what was
    expected for anything else that is wrong with it.
    """
    if not path.is_file():
        raise NotFound(f"no campaign file at {path}", hint="examples/laptop.toml is one to begin with")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InvalidInput(f"{path} has {path.stat().st_size:,} bytes: a campaign file has at most {MAX_FILE_BYTES:,}")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"{path} is not valid TOML: {error}") from None
    try:
        return parse_campaign(table, default_name=path.stem, base=path.parent)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.message}", hint=error.hint) from None


def parse_campaign(table: Table, *, default_name: str, base: Path) -> CampaignFile:
    """A campaign from its parsed TOML; relative data paths are taken from `base`."""
    _refuse_unknown("", table, TOP_LEVEL)
    for section in SECTIONS:
        if not isinstance(table.get(section, {}), dict):
            raise bad_value(section, table[section], f"a section: [{section}]")
    for section in ("model", "cluster", "problem", "space"):
        if section not in table:
            raise InvalidInput(f"[{section}] is missing", hint="examples/laptop.toml has every section")
    space = {key: value if isinstance(value, list) else [value] for key, value in table["space"].items()}
    spec = CampaignSpec(
        name=_text(table, "name", default_name),
        problem=_problem(table),
        space=_section(Space, "space", space),
        search=_section(SearchSettings, "search", table.get("search", {})),
        budget=_section(Budget, "budget", table.get("budget", {})),
        probe=_section(ProbeSettings, "probe", table.get("probe", {})),
        data=_data(table.get("data", {}), base),
        evaluator=_text(table, "evaluator", "probe"),
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
    path = (base / data.path).resolve()
    if not path.is_file():
        raise bad_value("data.path", data.path, f"a file; there is none at {path}")
    return DataSettings(path=str(path))


def _problem(table: Table) -> Problem:
    problem = dict(table["problem"])
    _refuse_unknown("problem", problem, ("sequence_length", "global_batch", "precision"))
    batch = problem.get("global_batch")
    if isinstance(batch, int) and not isinstance(batch, bool):
        problem["global_batch"] = {"minimum": batch, "maximum": batch}
    elif isinstance(batch, list) and len(batch) == 2:
        problem["global_batch"] = {"minimum": batch[0], "maximum": batch[1]}
    elif batch is not None:
        raise bad_value("problem.global_batch", batch, "a number of sequences, or [minimum, maximum]")
    model, cluster = _model_table(table["model"]), _cluster_table(table["cluster"])
    _section(Model, "model", model)  # first on their own, so that a complaint names their section
    _section(Cluster, "cluster", cluster)
    return _section(Problem, "problem", problem | {"model": model, "cluster": cluster})


def _model_table(given: Table) -> Table:
    table = dict(given)
    preset = model_preset(table.pop("preset")) if "preset" in table else {"name": "custom"}
    merged = preset | table
    if isinstance(merged.get("heads"), int):
        merged.setdefault("kv_heads", merged["heads"])
    if isinstance(merged.get("hidden"), int):
        merged.setdefault("ffn_hidden", 4 * merged["hidden"])
    return merged


def _cluster_table(given: Table) -> Table:
    table = dict(given)
    name = table.pop("preset", None)
    if name is None:
        known = known_device(str(table.get("device", ""))) or {}
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
    extra = ("preset",) if section in ("model", "cluster") else ()
    for key in table:
        if key not in known:
            path = f"{section}.{key}" if section else key
            raise InvalidInput(f"unknown key {path} = {_short(table[key])}", hint=did_you_mean(key, (*known, *extra)))


def _short(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
