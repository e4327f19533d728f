"""Settings and limits of a service."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from frontrunner.server.registered import Registered
from frontrunner.spaces.errors import InvalidInput, bad_value

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
DEFAULT_PORT = 8787


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits; sizes in bytes, times in seconds.

    `cache_s` is how old a response may be that several clients are sent. `running_campaigns` counts drivers of the
    whole store.
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
    plan_points: int = 200_000
    frame_rows: int = 50_000


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """Which store is served, where, to whom; `allowed_hosts` are names, besides loopback's, of a Host header."""

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
                raise bad_value("--allow-host", name, "a host's name without scheme and port, as in tune.example.org")
        if not 0 <= self.port <= 65535:
            raise bad_value("--port", self.port, "a port from 0 to 65535; 0 takes a free one")
        if self.allowed_hosts:
            return
        if not is_loopback(self.host):
            raise InvalidInput(
                f"--host {self.host} is reachable from other machines, and no --allow-host gives its name",
                hint="add --allow-host NAME and put TLS in front (docs/service.md); or tunnel with ssh -L",
            )
        if self.behind_tls:
            raise InvalidInput(
                "--behind-tls means that browsers come through a proxy, and no --allow-host gives its name",
                hint="add --allow-host NAME, the proxy's own, as in tune.example.org (docs/service.md)",
            )

    def address(self, port: int) -> str:
        """Return the URL by which browsers reach a service that listens on `port`."""
        name = self.allowed_hosts[0] if self.allowed_hosts else _in_address(self.host)
        return f"https://{name}" if self.behind_tls else f"http://{name}:{port}"

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
