"""Registered names: files that the operator registers, and that launches refer to by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from frontrunner.config.campaign import parse_campaign
from frontrunner.config.toml_file import Table, holds, read_toml
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.errors import (
    FALLBACK_NAME,
    FrontrunnerError,
    InvalidInput,
    bad_value,
    did_you_mean,
    require_campaign_name,
)

KINDS = ("site", "trainer", "data", "table")
SECTIONS = {"site": ("cluster", "dispatch"), "trainer": ("command",), "data": ("data",), "table": ("table",)}
"""The sections that are read from a file; others are ignored, so that a campaign file can be registered."""
AROUND: Mapping[str, Any] = {
    "model": {"layers": 1, "hidden": 8, "heads": 1, "vocabulary": 8},
    "cluster": {"device": "any", "backend": "cpu", "devices_per_node": 1, "memory_gib_per_device": 1.0},
    "problem": {"sequence_length": 2, "global_batch": 1, "precision": "fp32"},
    "space": {"micro_batch_seqs": [1]},
}
EVALUATOR_OF = {"trainer": "command", "table": "table"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One name: a short description, and the sections of a campaign file that it stands for."""

    about: str
    sections: Mapping[str, Table]


@dataclass(frozen=True)
class Registered:
    """Every name that a launch may use: kind -> name -> entry."""

    entries: Mapping[str, Mapping[str, Entry]] = field(default_factory=dict)

    def names(self, kind: str) -> tuple[str, ...]:
        """Return the names of a kind in alphabetical order."""
        return tuple(sorted(self.entries.get(kind, {})))

    def about(self) -> dict[str, dict[str, str]]:
        """Return kind -> name -> description, without the content."""
        return {kind: {name: self.entries[kind][name].about for name in self.names(kind)} for kind in KINDS}

    def sections(self, kind: str, name: str) -> Mapping[str, Table]:
        """Return the sections of a name; raise `InvalidInput`, with the known names, for an unknown one."""
        known = self.names(kind)
        if name not in known:
            register = f"the operator of the service registers one: frontrunner serve --{kind} NAME=FILE"
            hint = (did_you_mean(name, known) or register) if known else register
            listed = f"one of {', '.join(known)}" if known else f"no entry: no {kind} is registered here"
            raise bad_value(kind, name, listed, hint=hint)
        return self.entries[kind][name].sections


def register(words: Mapping[str, Iterable[str]]) -> Registered:
    """Read and check the files of options such as `--site NAME=FILE`, by kind."""
    found: dict[str, dict[str, Entry]] = {kind: {} for kind in KINDS}
    for kind in KINDS:
        for word in words.get(kind, ()):
            name, equals, file = word.partition("=")
            if not equals or not file:
                raise bad_value(f"--{kind}", word, "NAME=FILE")
            require_campaign_name(f"--{kind} {word}: the name", name)
            if name in found[kind]:
                raise bad_value(f"--{kind}", word, f"another name: {name} is registered for another file")
            try:
                found[kind][name] = _entry(kind, Path(file))
            except FrontrunnerError as error:
                raise type(error)(f"--{kind} {word}: {error.message}", hint=error.hint) from None
    return Registered(found)


def _entry(kind: str, path: Path) -> Entry:
    given = _given(kind, path)
    evaluator = EVALUATOR_OF.get(kind, "probe")
    file = parse_campaign({**AROUND, **given, "evaluator": evaluator}, default_name=FALLBACK_NAME, base=path.parent)
    if evaluator == "command":
        file.spec.survey()
    sections = asdict(file.spec) | {"cluster": asdict(file.spec.problem.cluster)}
    if file.store.run_folder is not None:
        sections["store"] = {"run_folder": str(Path(file.store.run_folder).resolve())}
    return Entry(about=_about(kind, given, file.spec), sections={section: sections[section] for section in given})


def _given(kind: str, path: Path) -> dict[str, Any]:
    if kind in ("data", "table") and path.suffix != ".toml":
        return {kind: {"path": path.name}}
    table = read_toml(path, f"{kind} file", f"docs/service.md says what a {kind} file holds")
    given = {section: table[section] for section in SECTIONS[kind] if section in table}
    if not given:
        expected = " or ".join(f"[{section}]" for section in SECTIONS[kind])
        raise InvalidInput(f"{path} has no section {expected}")
    if kind == "site" and "run_folder" in (store := table.get("store", {})):
        given["store"] = {"run_folder": store["run_folder"]}
    return given


def _about(kind: str, given: Mapping[str, Any], spec: CampaignSpec) -> str:
    if kind == "trainer":
        return spec.command.trainer or spec.command.log or "a command"
    if kind == "table":
        return spec.table.problem or "a table of measured configurations"
    if kind == "data":
        path = Path(spec.data.path or "")
        return f"{path.stat().st_size / 1e6:,.1f} MB" if holds(path.is_file) else "the built-in text"
    cluster, dispatch = spec.problem.cluster, spec.dispatch
    nodes = f"{cluster.nodes:,} node{'s' if cluster.nodes > 1 else ''} of {cluster.devices_per_node} x {cluster.device}"
    machine = f"{cluster.name}: {nodes}, " if "cluster" in given else ""
    return f"{machine}{dispatch.scheduler or dispatch.backend or 'this machine, or the job it is in'}"
