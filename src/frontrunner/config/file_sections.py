"""The sections of a campaign file: their dataclasses and keys, and one of them read, or what is wrong with it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TypeVar, get_type_hints

from frontrunner.config.toml_file import Table
from frontrunner.config.validation import refuse_unusable_values, validate
from frontrunner.evaluators.cluster.settings import DispatchSettings
from frontrunner.evaluators.external.settings import CommandSettings
from frontrunner.evaluators.probe.settings import DataSettings, ProbeSettings
from frontrunner.evaluators.tables.table_settings import TableSettings
from frontrunner.search.spec import Budget, SearchSettings
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean
from frontrunner.spaces.model import Model
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.space import Space
from frontrunner.spaces.wording import shown, shown_key

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
KEYS = {
    section: tuple(f.name for f in fields(kind) if f.name not in SECTIONS) for section, kind in SECTION_TYPES.items()
}
"""The keys of each section, without those of `PLACES`; a problem's model and cluster are sections of their own."""
PLACES = {"model": ("preset",), "cluster": ("preset", "file")}
"""Keys that say where a section's other keys are taken from."""
NEEDED = ("model", "cluster", "problem", "space")
"""The sections that a campaign file must have."""


def section_of(cls: type[T], name: str, table: Table) -> T:
    """One section as its dataclass: unknown keys, missing keys and wrong types name `section.key`."""
    _refuse_unknown_fields(cls, name, table)
    return validate(cls, table, prefix=name)


def _refuse_unknown_fields(cls: type, name: str, table: Table) -> None:
    hints = get_type_hints(cls)
    refuse_unknown_keys(name, table, [f.name for f in fields(cls)])
    for key, value in table.items():
        if is_dataclass(hints[key]) and isinstance(value, dict):
            _refuse_unknown_fields(hints[key], f"{name}.{key}", value)


def refuse_wrong_sections(
    table: Table, *, known: Sequence[str], sections: Sequence[str] = SECTIONS, needed: Sequence[str] = NEEDED
) -> None:
    """Raise `InvalidInput` for what is wrong with a campaign file before its sections are read.

    That is a value that no key takes, a key at the top that is none of `known`, one of `sections` that is no table, and
    one of `needed` that is not there.
    """
    refuse_unusable_values(table)
    refuse_unknown_keys("", table, known)
    for section in sections:
        if not isinstance(table.get(section, {}), dict):
            raise bad_value(section, table[section], f"a section: [{section}]")
    for section in needed:
        if section not in table:
            raise InvalidInput(f"[{section}] is missing", hint="examples/laptop.toml has every section")


def text_at(table: Table, key: str, default: str) -> str:
    """The text of a key at the top of the file; raises `InvalidInput` for another value."""
    value = table.get(key, default)
    if not isinstance(value, str):
        raise bad_value(key, value, "text in quotes")
    return value


def refuse_unknown_keys(section: str, table: Table, known: Sequence[str]) -> None:
    """Raise `InvalidInput` for a key that is none of `known`; `section` is empty at the top of the file."""
    extra = PLACES.get(section, ())
    for key, value in table.items():
        if key in (*known, *extra):
            continue
        path = f"{section}.{shown_key(key)}" if section else shown_key(key)
        what = f"section [{path}]" if not section and isinstance(value, dict) else f"key {path} = {shown(value)}"
        raise InvalidInput(f"unknown {what}", hint=_where(section, key, (*known, *extra)))


def _where(section: str, key: str, known: Sequence[str]) -> str | None:
    """The nearest key of this section; else the section that has a key of exactly this name."""
    owners = [name for name, keys in KEYS.items() if key in keys and name != section]
    if owners and not difflib.get_close_matches(key, known, n=1):
        return f"{key} belongs in [{owners[0]}]"
    return did_you_mean(key, known)
