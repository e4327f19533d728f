"""How the ranks of a job find each other, and how each learns its place in its node.

Rank 0 opens a store on a port that the system picks, and only then writes where it is into a file
in the run folder. Importing this module registers the scheme `frontrunner-rendezvous://` in torch;
its path is the folder.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlparse

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore, default_pg_timeout, distributed_c10d  # type: ignore[attr-defined]
from torch.distributed.rendezvous import register_rendezvous_handler

from frontrunner.evaluators.trainer.hosts import own_hosts
from frontrunner.evaluators.trainer.run import write_json
from frontrunner.evaluators.trainer.telemetry import allocator_settings, pci_address

SCHEME = "frontrunner-rendezvous"
FILE = "meeting.json"
POLL_S = 0.1
CONNECT_TIMEOUT_S = 5.0


def rendezvous_url(folder: Path) -> str:
    """Return the `init_method` by which ranks find each other through a folder without a file of an
    earlier one.
    """
    return f"{SCHEME}://{quote(str(folder.resolve()))}"


def _rendezvous(
    url: str, timeout: timedelta = default_pg_timeout, **_: object
) -> Iterator[tuple[Store, int, int]]:
    parts = urlparse(url)
    query = parse_qs(parts.query)
    rank, world_size = int(query["rank"][0]), int(query["world_size"][0])
    file = Path(unquote(parts.netloc + parts.path)) / FILE
    if rank == 0:  # listens on every interface
        store = TCPStore(
            "127.0.0.1", 0, world_size, is_master=True, timeout=timeout, wait_for_workers=False
        )
        write_json(
            file, {"hosts": own_hosts(os.environ.get("GLOO_SOCKET_IFNAME")), "port": store.port}
        )
    else:
        store = _join(file, world_size, timeout)
    yield store, rank, world_size
    raise RuntimeError("a rendezvous cannot be held twice")


def _join(file: Path, world_size: int, timeout: timedelta) -> TCPStore:
    end_s = time.monotonic() + timeout.total_seconds()
    poll_s = POLL_S / 16
    # Empty until rank 0 has written it: a network file system may cache for a minute that a file is
    # missing.
    while not (written := file.read_text(encoding="utf-8") if file.exists() else ""):
        if time.monotonic() > end_s:
            raise TimeoutError(f"rank 0 did not open the rendezvous within {timeout}")
        time.sleep(poll_s)
        poll_s = min(POLL_S, 2 * poll_s)
    found, complaints = json.loads(written), []
    port = int(found["port"])
    for host in found["hosts"]:
        try:
            socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
        except OSError as error:
            complaints.append(f"{host}: {error}")
            continue
        return TCPStore(
            host, port, world_size, is_master=False, timeout=timeout, wait_for_workers=False
        )
    raise ConnectionError(f"rank 0 cannot be reached on port {port}: {'; '.join(complaints)}")


register_rendezvous_handler(SCHEME, _rendezvous)  # type: ignore[no-untyped-call]


_ALLOCATOR_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Variables of the allocator's settings, in torch's order (c10/cuda/CUDAAllocatorConfig.h)."""


class OneThreadGloo(dist.ProcessGroupGloo):
    """A gloo group with a single thread for its collectives.

    torch gives each gloo group two threads, and after a collective each of them writes the
    collective's name into one string of the group, without a lock (`ProcessGroupGloo::runLoop`,
    torch 2.11 to 2.13): two that end at the same time free the same memory twice. Sequence
    parallelism under an interleaved schedule met that.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's stub has another name
        options._threads = 1
        options._timeout = timeout
        options._devices = [dist.ProcessGroupGloo.create_default_device()]
        super().__init__(store, rank, size, options)


def rank_device(kind: str, local_rank: int) -> torch.device:
    """Prepare this process to be a rank, before its first group, and return its device, of those
    that it sees.
    """
    distributed_c10d.ProcessGroupGloo = OneThreadGloo  # type: ignore[misc]  # torch hands gloo no options
    if kind == "cpu":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        return torch.device("cpu")
    _set_allocator(kind)
    # A launcher may have masked devices: each rank then sees its own, alone or with those of its
    # task.
    number = local_rank % max(1, torch.accelerator.device_count())
    torch.accelerator.set_device_index(number)
    device, local_ranks = torch.device(kind, number), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    allowed, sysfs = os.sched_getaffinity(0), Path("/sys")
    cores = near_cores(pci_address(device), allowed, sysfs, local_ranks=local_ranks)
    if isinstance(cores, str):
        sys.stderr.write(f"the rank at {device} is not bound to processors: {cores}\n")
    else:
        os.sched_setaffinity(0, cores)
    # What the host computes of a step, as the optimizer of offloaded states, has this rank's share
    # of the cores.
    own = allowed if isinstance(cores, str) else cores
    is_shared = isinstance(cores, str) and len(allowed) * local_ranks > (os.cpu_count() or 1)
    torch.set_num_threads(max(1, len(own) // local_ranks if is_shared else len(own)))
    return device


def _set_allocator(kind: str) -> None:
    """Put the allocator's settings in force: those of the environment, or ours on NVIDIA devices.

    torch reads the environment when it is imported, which a fork server has done long ago and a
    recipe's own variables come too late for.
    """
    names = _ALLOCATOR_SETTINGS if kind == "cuda" else _ALLOCATOR_SETTINGS[-1:]
    stated = [os.environ[name] for name in names if name in os.environ]
    default = "expandable_segments:True" if kind == "cuda" and torch.version.hip is None else ""
    settings = stated[0] if stated else default
    if settings and settings != allocator_settings():
        torch._C._accelerator_setAllocatorSettings(settings)


def near_cores(
    address: str | None, allowed: set[int], sysfs: Path, *, local_ranks: int
) -> set[int] | str:
    """Return a rank's processors of those near its device, or why it is not to be bound.

    Devices of the same model with the same near processors share them equally, whether or not ranks
    use them all, so that no rank needs to know the others' devices. Hardware threads of a core stay
    together.
    """
    try:
        online = _cpus((sysfs / "devices/system/cpu/online").read_text())
        if allowed < online and len(allowed) * local_ranks <= len(online):
            return f"its launcher gave it {len(allowed)} of {len(online)} already"
        if address is None:
            return "torch does not state where the device is on the PCI bus"
        places = sysfs / "bus/pci/devices"
        about = {
            place.name: [
                (place / name).read_text() for name in ("vendor", "device", "local_cpulist")
            ]
            for place in sorted(places.iterdir())
            if (place / "local_cpulist").exists()
        }
        alike = [name for name in about if about[name] == about[address]]
        cores: dict[str, set[int]] = {}
        for cpu in sorted(_cpus(about[address][2]) & allowed):
            threads = (
                sysfs / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
            ).read_text()
            cores.setdefault(threads, set()).add(cpu)
    except (OSError, LookupError, ValueError) as error:
        return f"the topology is unknown ({error})"
    share = len(cores) // len(alike)
    if share == 0:
        return (
            f"{len(cores)} of its processors are near the device, which {len(alike)} devices share"
        )
    first = alike.index(address) * share
    return set().union(*list(cores.values())[first : first + share])


def _cpus(text: str) -> set[int]:
    """Read a list of processors as the kernel writes it: `0-11,96`."""
    ends = (part.split("-") for part in text.strip().split(",") if part)
    return {cpu for one in ends for cpu in range(int(one[0]), int(one[-1]) + 1)}


def set_local_rank_env(local_rank: int, local_world_size: int) -> None:
    """Set a rank's place within its node where collective libraries and engines read it, before the
    first group.

    oneCCL takes it from an MPI launcher unless CCL_PROCESS_LAUNCHER is "none", and from
    CCL_LOCAL_RANK and CCL_LOCAL_SIZE then. torch sets these itself, but not where it finds
    variables of an MPI launcher (ProcessGroupXCCL.cpp, `with_mpirun`), which our ranks always
    inherit.
    """
    rank, size = str(local_rank), str(local_world_size)
    os.environ |= {
        "LOCAL_RANK": rank,
        "CCL_LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": size,
        "CCL_LOCAL_SIZE": size,
    }
    os.environ["CCL_PROCESS_LAUNCHER"] = "none"
