"""Settings, limits and registered names of a service."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrunner.config.campaign import parse_campaign
from frontrunner.config.toml_file import Table, read_toml
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces import errors
from frontrunner.spaces.document import as_table

if TYPE_CHECKING:
    from fastapi import Request

KINDS = ("site", "trainer", "data", "table")
SECTIONS = {
    "site": ("cluster", "dispatch"),
    "trainer": ("command",),
    "data": ("data",),
    "table": ("table",),
}
"""The sections that are read from a file; others are ignored, so that a campaign file can be
registered.
"""
AROUND: Mapping[str, Any] = {
    "model": {"layers": 1, "hidden": 8, "heads": 1, "vocabulary": 8},
    "cluster": {
        "device": "any",
        "backend": "cpu",
        "devices_per_node": 1,
        "memory_gib_per_device": 1.0,
    },
    "problem": {"sequence_length": 2, "global_batch": 1, "precision": "fp32"},
    "space": {"micro_batch_seqs": [1]},
}
EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not listened on
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
        return {
            kind: {name: self.entries[kind][name].about for name in self.names(kind)}
            for kind in KINDS
        }

    def sections(self, kind: str, name: str) -> Mapping[str, Table]:
        """Return the sections of a name; raise `InvalidInput`, with the known names, for an unknown
        one.
        """
        known = self.names(kind)
        if name not in known:
            register = (
                f"the operator of the service registers one: frontrunner serve --{kind} NAME=FILE"
            )
            hint = (errors.did_you_mean(name, known) or register) if known else register
            listed = (
                f"one of {', '.join(known)}" if known else f"no entry: no {kind} is registered here"
            )
            raise errors.bad_value(kind, name, listed, hint=hint)
        return self.entries[kind][name].sections


def register(words: Mapping[str, Iterable[str]]) -> Registered:
    """Read and check the files of options such as `--site NAME=FILE`, by kind."""
    found: dict[str, dict[str, Entry]] = {kind: {} for kind in KINDS}
    for kind in KINDS:
        for word in words.get(kind, ()):
            name, equals, file = word.partition("=")
            if not equals or not file:
                raise errors.bad_value(f"--{kind}", word, "NAME=FILE")
            errors.require_campaign_name(f"--{kind} {word}: the name", name)
            if name in found[kind]:
                raise errors.bad_value(
                    f"--{kind}", word, f"another name: {name} is registered for another file"
                )
            try:
                found[kind][name] = _entry(kind, Path(file))
            except errors.FrontrunnerError as error:
                raise type(error)(f"--{kind} {word}: {error.message}", hint=error.hint) from None
    return Registered(found)


def _entry(kind: str, path: Path) -> Entry:
    given: dict[str, Any] = {kind: {"path": path.name}}
    if (
        kind not in ("data", "table") or path.suffix == ".toml"
    ):  # else the file is the text or the table itself
        table = read_toml(path, f"{kind} file", f"docs/service.md says what a {kind} file holds")
        given = {section: table[section] for section in SECTIONS[kind] if section in table}
        if not given:
            expected = " or ".join(f"[{section}]" for section in SECTIONS[kind])
            raise errors.InvalidInput(f"{path} has no section {expected}")
        if kind == "site" and "run_folder" in (store := table.get("store", {})):
            given["store"] = {"run_folder": store["run_folder"]}
    evaluator = EVALUATOR_OF.get(kind, "probe")
    file = parse_campaign(
        {**AROUND, **given, "evaluator": evaluator},
        default_name=errors.FALLBACK_NAME,
        base=path.parent,
    )
    if file.spec.evaluator_kind.has_section:
        file.spec.survey()
    sections = as_table(file.spec) | {"cluster": as_table(file.spec.problem.cluster)}
    if file.store.run_folder is not None:
        sections["store"] = {"run_folder": str(Path(file.store.run_folder).resolve())}
    return Entry(
        about=_about(kind, given, file.spec),
        sections={section: sections[section] for section in given},
    )


def _about(kind: str, given: Mapping[str, Any], spec: CampaignSpec) -> str:
    if kind == "trainer":
        return spec.command.trainer or spec.command.log or "a command"
    if kind == "table":
        return spec.table.problem or "a table of measured configurations"
    if kind == "data":
        files = [Path(path) for path, _ in spec.data.named if path is not None]
        size_mb = sum(path.stat().st_size for path in files) / 1e6
        return (
            f"{f'{len(files)} files, ' * bool(files[1:])}{size_mb:,.1f} MB"
            if files
            else "the built-in text"
        )
    cluster, dispatch = spec.problem.cluster, spec.dispatch
    machine = f"{cluster.name}: {cluster.describe()}, " if "cluster" in given else ""
    return (
        f"{machine}{dispatch.scheduler or dispatch.backend or 'this machine, or the job it is in'}"
    )


LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
DEFAULT_PORT = 8787


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a service; sizes in bytes, times in seconds. `running_campaigns` counts drivers of
    the whole store.
    """

    header_bytes: int = 16_384
    body_bytes: int = 1_000_000
    connections: int = 256
    streams: int = 64
    requests_per_s: float = 100.0
    request_burst: int = 200
    threads: int = 4
    log_bytes: int = 65_536
    cache_s: float = 1.0
    cache_bytes: int = 32_000_000
    running_campaigns: int = 4
    running_replays: int = 2
    launch_s: float = 120.0
    plan_points: int = 5_000_000
    frame_rows: int = 50_000


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """Which store is served, where, to whom; `allowed_hosts` are names, besides loopback's, of a
    Host header.
    """

    store: str
    token_file: Path
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    allowed_hosts: tuple[str, ...] = ()
    behind_tls: bool = False
    limits: Limits = field(default_factory=Limits)
    registered: Registered = field(default_factory=Registered)

    def __post_init__(self) -> None:
        for name in self.allowed_hosts:
            if not name or any(character in name for character in "/:@* ") or not name.isascii():
                raise errors.bad_value(
                    "--allow-host",
                    name,
                    "a host's name without scheme and port, as in tune.example.org",
                )
        if not 0 <= self.port <= 65535:
            raise errors.bad_value(
                "--port", self.port, "a port from 0 to 65535; 0 takes a free one"
            )
        if self.allowed_hosts:
            return
        if not is_loopback(self.host):
            raise errors.InvalidInput(
                f"--host {self.host} is reachable from other machines, and no --allow-host gives"
                " its name",
                hint=(
                    "add --allow-host NAME and put TLS in front (docs/service.md); or tunnel with"
                    " ssh -L"
                ),
            )
        if self.behind_tls:
            raise errors.InvalidInput(
                "--behind-tls means that browsers come through a proxy, and no --allow-host gives"
                " its name",
                hint=(
                    "add --allow-host NAME, the proxy's own, as in tune.example.org"
                    " (docs/service.md)"
                ),
            )

    def address(self, port: int) -> str:
        """Return the URL by which browsers reach a service that listens on `port`."""
        name = self.allowed_hosts[0] if self.allowed_hosts else _in_address(self.host)
        return f"https://{name}" if self.behind_tls else f"http://{name}:{port}"

    def here(self, port: int) -> str:
        """Return the URL by which programs of this machine reach a service that listens on
        `port`.
        """
        if is_loopback(self.host):
            return f"http://{_in_address(self.host)}:{port}"
        return f"http://127.0.0.1:{port}" if self.host in EVERY_ADDRESS else self.address(port)

    def seen_by(self, request: Request) -> str:
        """Return the URL by which a client has reached the service."""
        return f"{'https' if self.behind_tls else 'http'}://{request.url.netloc}"

    def listening(self, port: int) -> str:
        """Return the address that a proxy connects to, where the service listens on `port`."""
        return f"{_in_address(self.host)}:{port}"

    @property
    def host_names(self) -> frozenset[str]:
        """Every name that a Host header may have, in lower case, without the port."""
        own = (_in_address(self.host),) if is_loopback(self.host) else ()
        return frozenset(name.lower() for name in (*LOOPBACK_NAMES, *own, *self.allowed_hosts))


def _in_address(host: str) -> str:
    return f"[{ipaddress.IPv6Address(host)}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on can be reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
