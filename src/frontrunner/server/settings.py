"""What a service is told when it starts, and the limits of everything that it answers."""

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
    """How much of everything there may be; sizes in bytes, times in seconds.

    `header_s` and `body_s` bound how long a client may take to send the head and the body of a request, `send_s` how
    long it may leave a piece of an answer unread. `running_campaigns` counts drivers of the whole store.
    """

    header_bytes: int = 16_384
    body_bytes: int = 1_000_000
    header_s: float = 10.0
    body_s: float = 20.0
    send_s: float = 30.0
    connections: int = 256
    streams: int = 64
    requests_per_s: float = 100.0
    request_burst: int = 200
    threads: int = 4
    page_size: int = 200
    ranking_size: int = 1000
    events_a_batch: int = 200
    log_bytes: int = 65_536
    remembered_bytes: int = 32_000_000
    running_campaigns: int = 4
    running_replays: int = 2
    launch_s: float = 120.0
    plan_points: int = 200_000
    frame_rows: int = 50_000


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """Which store is served, where, to whom.

    `allowed_hosts` are the names, beside those of loopback, that a request's Host header may hold. `behind_tls` says
    that browsers reach the service through a proxy with TLS, so that cookies are marked as secure. `registered` are the
    names that launches may say.
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
                raise bad_value("--allow-host", name, "a host's name without scheme and port, as in tune.example.org")
        if not 0 <= self.port <= 65535:
            raise bad_value("--port", self.port, "a port from 0 to 65535; 0 takes one that is free")
        if not is_loopback(self.host) and not self.allowed_hosts:
            raise InvalidInput(
                f"--host {self.host} is reachable from other machines, and no --allow-host says by which name",
                hint="add --allow-host NAME and put TLS in front (docs/service.md); or tunnel with ssh -L",
            )
        if self.behind_tls and not self.allowed_hosts:
            raise InvalidInput(
                "--behind-tls says that browsers come through a proxy, and no --allow-host says by which name",
                hint="add --allow-host NAME, the proxy's own, as in tune.example.org (docs/service.md)",
            )

    def address(self, port: int) -> str:
        """What browsers put before a path, where the service listens on `port`."""
        name = self.allowed_hosts[0] if self.allowed_hosts else _in_address(self.host)
        return f"https://{name}" if self.behind_tls else f"http://{name}:{port}"

    def listening(self, port: int) -> str:
        """What a proxy is told of where the service listens on `port`."""
        return f"{_in_address(self.host)}:{port}"

    @property
    def host_names(self) -> frozenset[str]:
        """Every name that a Host header may hold, in small letters, without the port."""
        own = (_in_address(self.host),) if is_loopback(self.host) else ()
        return frozenset(name.lower() for name in (*LOOPBACK_NAMES, *own, *self.allowed_hosts))


def _in_address(host: str) -> str:
    """A host as browsers write it: IPv6 shortened, in brackets."""
    return f"[{ipaddress.IPv6Address(host)}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
