"""How the ranks of several nodes find each other: by a file in the run folder, which all nodes see.

Rank 0 opens a store on a port that the system picks, and only then writes where it is; the others wait for that file.
So no port is chosen before it is used, and none is taken in between. Importing this module teaches torch the scheme
`frontrunner-meeting://`, whose path is the folder.

Process groups on CPU whose collectives run one after another.

torch's gloo backend gives each group two threads, and after a collective each of them writes the collective's name
into one string of the group, without a lock (`ProcessGroupGloo::runLoop`, torch 2.11 to 2.13). Names of more than 15
letters, as a reduce-scatter's, lie on the heap: two that end at the same time free the same memory twice, and the
rank dies of SIGABRT or SIGSEGV. Sequence parallelism under an interleaved schedule met that once in some 150 probes.
With one thread a group nothing is shared. Sends and receives do not use these threads.

A rank's place within its node, in the variables by which collective libraries and engines read it.

oneCCL asks an MPI launcher for it unless CCL_PROCESS_LAUNCHER says "none", and takes CCL_LOCAL_RANK and CCL_LOCAL_SIZE
then. torch sets these three itself, but not where it finds variables of an MPI launcher (ProcessGroupXCCL.cpp,
`with_mpirun`). Our ranks always have such variables from elsewhere: mpiexec started what forked them, once a node.
"""

import datetime as dt
import fcntl
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlparse

import torch.distributed as dist
from torch.distributed import Store, TCPStore, default_pg_timeout, distributed_c10d  # type: ignore[attr-defined]
from torch.distributed.rendezvous import register_rendezvous_handler

from frontrunner.evaluators.trainer.files import write_json

SCHEME = "frontrunner-meeting"
FILE = "meeting.json"
POLL_S = 0.1
CONNECT_TIMEOUT_S = 5.0
SIOCGIFADDR = 0x8915
"""Linux's request for an interface's IPv4 address (netdevice(7))."""


def meeting_at(folder: Path) -> str:
    """The `init_method` by which ranks meet in a folder, where no earlier meeting has left its file."""
    return f"{SCHEME}://{quote(str(folder.resolve()))}"


def _meet(url: str, timeout: timedelta = default_pg_timeout, **_: object) -> Iterator[tuple[Store, int, int]]:
    """Torch's handler: the store, this rank and the world size."""
    parts = urlparse(url)
    query = parse_qs(parts.query)
    rank, world_size = int(query["rank"][0]), int(query["world_size"][0])
    file = Path(unquote(parts.netloc + parts.path)) / FILE
    yield (_open(file, world_size, timeout) if rank == 0 else _join(file, world_size, timeout)), rank, world_size
    raise RuntimeError("a meeting cannot be held twice")


def _open(file: Path, world_size: int, timeout: timedelta) -> TCPStore:
    """Rank 0's end, which listens on every interface."""
    store = TCPStore("127.0.0.1", 0, world_size, is_master=True, timeout=timeout, wait_for_workers=False)
    write_json(file, {"hosts": _own_hosts(os.environ.get("GLOO_SOCKET_IFNAME")), "port": store.port})
    return store


def _join(file: Path, world_size: int, timeout: timedelta) -> TCPStore:
    """Another rank's end: the first of rank 0's addresses that answers."""
    end_s = time.monotonic() + timeout.total_seconds()
    while not (written := _read(file)):
        if time.monotonic() > end_s:
            raise TimeoutError(f"rank 0 did not open the meeting within {timeout}")
        time.sleep(POLL_S)
    found = json.loads(written)
    port = int(found["port"])
    complaints = []
    for host in found["hosts"]:
        try:
            socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
        except OSError as error:
            complaints.append(f"{host}: {error}")
            continue
        return TCPStore(host, port, world_size, is_master=False, timeout=timeout, wait_for_workers=False)
    raise ConnectionError(f"rank 0 cannot be reached on port {port}: {'; '.join(complaints)}")


def _read(file: Path) -> str:
    """The meeting's file; empty as long as rank 0 has not written it."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _own_hosts(interface: str | None) -> list[str]:
    """Where this host may be reached: at the named interface, else by its name and its own addresses."""
    if interface is not None:
        return [_address_of(interface)]
    name = socket.gethostname()
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)]
    except OSError:
        found = []
    # The name first: where hosts have several networks it is the one that the site means.
    return list(dict.fromkeys([name, *(address for address in found if not address.startswith("127."))]))


def _address_of(interface: str) -> str:
    """The interface's IPv4 address; raises OSError where there is no such interface, or it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24])


register_rendezvous_handler(SCHEME, _meet)  # type: ignore[no-untyped-call]


class OneThreadGloo(dist.ProcessGroupGloo):
    """A gloo group with a single thread for its collectives."""

    def __init__(self, store: Store, rank: int, size: int, timeout: dt.timedelta) -> None:
        """The arguments by which torch makes its own: see `torch.distributed.ProcessGroupGloo`."""
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's stub has another name
        options._threads = 1
        options._timeout = timeout
        options._devices = [dist.ProcessGroupGloo.create_default_device()]
        super().__init__(store, rank, size, options)


def use_one_thread_per_group() -> None:
    """Have every gloo group that this process makes from here on be a `OneThreadGloo`.

    torch hands its users' options to other backends but not to gloo: its name for the class is replaced.
    """
    distributed_c10d.ProcessGroupGloo = OneThreadGloo  # type: ignore[misc]


def tell_local_place(local_rank: int, local_world_size: int) -> None:
    """Set the variables for this process, before its first process group."""
    for name in ("LOCAL_RANK", "CCL_LOCAL_RANK"):
        os.environ[name] = str(local_rank)
    for name in ("LOCAL_WORLD_SIZE", "CCL_LOCAL_SIZE"):
        os.environ[name] = str(local_world_size)
    os.environ["CCL_PROCESS_LAUNCHER"] = "none"
