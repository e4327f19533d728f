"""How ranks would reach one another: host name, loopback, ports, and the settings of a Slingshot network."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from frontrunner.evaluators.cluster.environment import RENDEZVOUS_PORT
from frontrunner.evaluators.diagnostics.doctor.checks import Check, Status, Titled, examination

SECTION = "network"
FABRICS = {"/sys/class/cxi": "Slingshot", "/sys/class/infiniband": "InfiniBand or RoCE"}
PLUGINS = ("librccl-net*.so", "libnccl-net*.so")
"""Names by which NCCL and RCCL look for a network plug-in in the library path: github.com/aws/aws-ofi-nccl."""
SETTINGS = {
    "FI_MR_CACHE_MONITOR": "userfaultfd, or kdreg2 where the site has it: the default can deadlock with NCCL and RCCL",
    "FI_CXI_DEFAULT_CQ_SIZE": "131072: the default overflows with many messages",
}
"""What the guides of Frontier (PyTorch page) and Polaris (NCCL page) both ask for on Slingshot; see docs/sites.md."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """This machine's name, the addresses that it resolves to, or why it does not."""

    name: str
    addresses: tuple[str, ...]
    error: str | None


@dataclass(frozen=True, kw_only=True)
class Loopback:
    """A message sent to this machine and back: the free port that was used, or why it failed.

    `rendezvous_free` tells of torchrun's own port, which ranks use where nothing else is agreed on.
    """

    port: int | None
    error: str | None
    rendezvous_free: bool


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """Networks that move memory themselves, a plug-in by which NCCL uses them, and the variables that tune it."""

    kinds: tuple[str, ...]
    cards: int
    plugin: str | None
    environment: Mapping[str, str]


def network_checks(backend: str) -> list[Titled]:
    """The examinations of this file, for devices of one backend."""
    return [
        examination(SECTION, "host name", gather_host, judge_host),
        examination(SECTION, "loopback", gather_loopback, judge_loopback),
        examination(SECTION, "fabric", gather_fabric, lambda found: judge_fabric(found, backend)),
    ]


def gather_host() -> Host:
    """The name as the system has it, resolved as others would."""
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
    except OSError as error:
        return Host(name=name, addresses=(), error=error.strerror or str(error))
    return Host(name=name, addresses=tuple(dict.fromkeys(str(entry[4][0]) for entry in found)), error=None)


def judge_host(host: Host) -> Iterable[Check]:
    """Gloo binds to the address that the host's name resolves to."""
    if host.error is not None:
        remedy = f"add a line '127.0.0.1 {host.name}' (one machine) or its address to /etc/hosts"
        found = f"{host.name} does not resolve: {host.error}"
        yield Check(section=SECTION, name="host name", status=Status.PROBLEM, found=found, remedy=remedy)
        return
    told = f"{host.name} is {', '.join(host.addresses)}"
    if all(address.startswith("127.") or address == "::1" for address in host.addresses):
        remedy = "fine for one machine; for several, let the name resolve to an address that the others reach"
        yield Check(section=SECTION, name="host name", status=Status.NOTE, found=told, remedy=remedy)
    else:
        yield Check(section=SECTION, name="host name", status=Status.OK, found=told)


def gather_loopback() -> Loopback:
    """Listen on a free port of 127.0.0.1, connect, and send a byte."""
    free = _is_free(RENDEZVOUS_PORT)
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=5) as here, server.accept()[0] as there:
                here.sendall(b"!")
                there.settimeout(5)
                arrived = there.recv(1)
    except OSError as error:
        return Loopback(port=None, error=error.strerror or str(error), rendezvous_free=free)
    return Loopback(port=port, error=None if arrived == b"!" else "the byte was lost", rendezvous_free=free)


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def judge_loopback(loopback: Loopback) -> Iterable[Check]:
    """The ranks of a machine meet over it."""
    if loopback.error is not None:
        remedy = "bring the loopback interface up (ip link set lo up), or look at the firewall"
        yield Check(section=SECTION, name="loopback", status=Status.PROBLEM, found=loopback.error, remedy=remedy)
        return
    yield Check(section=SECTION, name="loopback", status=Status.OK, found=f"free port {loopback.port}, answers")
    if not loopback.rendezvous_free:
        found = f"port {RENDEZVOUS_PORT}, torchrun's default, is in use"
        remedy = "set MASTER_PORT to a free one for launchers that name none"
        yield Check(section=SECTION, name="ports", status=Status.NOTE, found=found, remedy=remedy)


def gather_fabric(root: Path = Path("/")) -> Fabric:
    """Cards under /sys/class, plug-ins in the library path, and the variables of this process."""
    found = {kind: list((root / path.lstrip("/")).glob("*")) for path, kind in FABRICS.items()}
    folders = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    plugins = (str(path) for folder in folders for pattern in PLUGINS for path in folder.glob(pattern))
    names = ("NCCL_", "FI_", "CCL_", "RCCL_")
    return Fabric(
        kinds=tuple(kind for kind, cards in found.items() if cards),
        cards=sum(map(len, found.values())),
        plugin=next(plugins, None),
        environment={name: value for name, value in os.environ.items() if name.startswith(names)},
    )


def judge_fabric(fabric: Fabric, backend: str) -> Iterable[Check]:
    """Whether NCCL or RCCL will use the cards of a Slingshot network, and with the settings that it needs."""
    if not fabric.kinds:
        return
    told = f"{fabric.cards} cards of {' and '.join(fabric.kinds)}"
    yield Check(section=SECTION, name="fabric", status=Status.OK, found=told)
    if "Slingshot" not in fabric.kinds or backend not in ("cuda", "rocm"):
        return
    if fabric.plugin is None and "NCCL_NET_PLUGIN" not in fabric.environment:
        found = "no NCCL or RCCL network plug-in in LD_LIBRARY_PATH: collectives between nodes go over sockets"
        remedy = "load the site's module for aws-ofi-nccl or aws-ofi-rccl, or build it (docs/sites.md)"
        yield Check(section=SECTION, name="plug-in", status=Status.WARNING, found=found, remedy=remedy)
    for name, wanted in SETTINGS.items():
        if name not in fabric.environment:
            found, remedy = f"{name} is not set", f"set it to {wanted}"
            yield Check(section=SECTION, name="settings", status=Status.WARNING, found=found, remedy=remedy)
