"""Checks of one machine: installed software, accelerators and limits; and the table of all
checks.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import psutil
from packaging.requirements import Requirement

from frontrunner.evaluators.diagnostics.doctor import site
from frontrunner.evaluators.diagnostics.doctor.check import (
    NOTE,
    PROBLEM,
    WARNING,
    Check,
    Needs,
    judge,
    run_checks,
)
from frontrunner.evaluators.nodes.environment import COLLECTIVES, job_environment
from frontrunner.evaluators.nodes.this_machine import (
    Torch,
    cpu_name,
    detect,
    processors,
    torch_facts,
)
from frontrunner.evaluators.programs.trainers import NEVER_RAN
from frontrunner.results.provenance import GPU_DRIVER_FILES
from frontrunner.spaces.cluster import GIB
from frontrunner.spaces.errors import installing

MIN_PYTHON = (3, 11)
MIN_SQLITE = (3, 35, 0)
"""The first with RETURNING, by which rows are claimed
(https://www.sqlite.org/lang_returning.html).
"""
COMPILERS = ("c++", "g++", "clang++", "icpx", "hipcc")


class Platform(NamedTuple):
    """A kind of accelerators: the maker, a build of torch for it, device files, and its drivers."""

    maker: str
    build: str
    devices: str
    drivers: tuple[str, ...]


PLATFORMS = {
    "cuda": Platform("NVIDIA", "a CUDA", "dev/nvidia[0-9]*", ("nvidia-driver",)),
    "rocm": Platform("AMD", "a ROCm", "dev/kfd", ("amdgpu-driver",)),
    "xpu": Platform("Intel", "an XPU", "dev/dri/renderD*", ("i915-driver", "xe-driver")),
}
INTEL = "0x8086"
"""Vendor of Intel's render nodes: a render node alone may be any graphics card."""
MIN_OPEN_FILES = 4096
"""Assumed: a rank of a full mesh of sockets holds one for each of its peers, for each group that it
is in.
"""


class Package(NamedTuple):
    """A required package, its installed version (None: not installed), and the extra that requires
    it.
    """

    required: Requirement
    installed: str | None
    extra: str | None = None

    @property
    def fits(self) -> bool:
        """Whether it is installed, in the range."""
        return self.installed is not None and self.required.specifier.contains(
            self.installed, prereleases=True
        )


class Accelerators(NamedTuple):
    """Backend of the accelerators that the system shows (None: none), and the first line of the
    driver's version.
    """

    backend: str | None
    driver: str | None


def examine(needs: Needs) -> tuple[Check, ...]:
    """Check this machine, this job and this installation. Takes as long as importing torch does."""
    torch, system, fabric = torch_facts(), gather_accelerators(), site.gather_fabric()
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    uses = {"has_fabric": bool(fabric.kinds), "has_devices": bool(torch.devices)}
    return run_checks([
        ("software", "python", lambda: check_versions(sys.version_info[:3],
            sqlite3.sqlite_version_info)),
        ("software", "packages", lambda: check_packages(gather_packages(), needs.packages)),
        ("software", "trainer", lambda: check_trainer(needs.trainer)),
        ("software", "compiler", lambda: check_tools(compiler, shutil.which("ninja"), needs)),
        ("devices", "torch", lambda: check_torch(torch, system)),
        ("devices", "devices", lambda: check_devices(torch, system)),
        ("devices", "collectives", lambda: check_collectives(torch)),
        ("devices", "campaign", lambda: check_needed_devices(torch, needs,
            processors()["devices_per_node"])),
        ("job", "scheduler", lambda: site.check_schedulers(site.gather_schedulers(),
            needs.scheduler)),
        ("job", "allocation", lambda: site.check_job(job_environment(os.environ, detect()), needs)),
        *([("job", "ray", partial(site.ray_checks, needs.ray))] if needs.ray else []),
        ("network", "host name", lambda: site.check_host(*site.gather_host())),
        ("network", "fabric", lambda: site.check_fabric(fabric, torch.backend)),
        *site.storage_checks(needs),
        ("limits", "limits", lambda: check_limits(gather_limits(), **uses)),
    ])  # fmt: skip


# Software


def check_versions(python: tuple[int, ...], sqlite: tuple[int, ...]) -> Iterator[Check]:
    """Require a Python that this version runs on, and the SQLite in it that stores in files
    need.
    """
    found, least = (".".join(map(str, each)) for each in (sqlite, MIN_SQLITE))
    remedy = "install Python 3.11 or later, and frontrunner with it"
    text = f"{'.'.join(map(str, python))}, {platform.machine()}"
    yield judge("python", text, fine=python >= MIN_PYTHON, otherwise=PROBLEM, remedy=remedy)
    remedy = f"use a Python that brings SQLite {least} or later"
    yield judge("sqlite", found, fine=sqlite >= MIN_SQLITE, otherwise=PROBLEM, remedy=remedy)


def gather_packages() -> tuple[Package, ...]:
    """Return the packages that frontrunner's own metadata requires, with the versions that are
    installed.
    """
    found = []
    for line in metadata.requires("frontrunner") or []:
        required = Requirement(line)
        # The extra that a requirement belongs to, from its marker `extra == "name"`.
        extra = str(required.marker or "").partition('extra == "')[2].partition('"')[0] or None
        applies = required.marker is None or required.marker.evaluate({"extra": extra or ""})
        if extra != "dev" and applies:
            versions = [each.version for each in metadata.distributions(name=required.name)]
            found.append(Package(required, next(iter(versions), None), extra))
    return tuple(found)


def check_packages(packages: Sequence[Package], needed: Sequence[str]) -> Iterator[Check]:
    """Require default packages and those that the campaign needs; extras that are not installed are
    one note.
    """
    required = [
        package for package in packages if package.extra is None or package.required.name in needed
    ]
    for package in required:
        if not package.fits:
            name = package.required.name
            range_ = f"{name}{package.required.specifier}"
            how = "is not installed" if package.installed is None else f"is {package.installed}"
            what = f"frontrunner[{package.extra}]" if package.extra else range_
            yield Check(name, f"{name} {how}: expected {range_}", PROBLEM, installing(what))
    if all(package.fits for package in required):
        yield Check(
            "packages",
            ", ".join(f"{package.required.name} {package.installed}" for package in required),
        )
    missing = sorted(
        {str(each.extra) for each in packages if each not in required and not each.fits}
    )
    if missing:
        remedy = f"{installing('frontrunner[NAME]')} for what they add"
        yield Check("extras", f"extras not installed: {', '.join(missing)}", NOTE, remedy)


def check_trainer(name: str | None) -> Iterator[Check]:
    """Check whether probes of a campaign's ready-made trainer have ever run."""
    if name in NEVER_RAN:
        remedy = (
            "start with --set budget.probes=2, and read command.log of both beside frontrunner show"
        )
        yield Check(
            "trainer", f"{name} was never run by the project: it needs a GPU", WARNING, remedy
        )
    elif name is not None:
        yield Check("trainer", f"{name} was run by the project, on processors alone")


def check_tools(compiler: str | None, ninja: str | None, needs: Needs) -> Iterator[Check]:
    """Require a compiler for torch.compile and ninja for DeepSpeed's operators, where a campaign
    uses them.
    """
    offloads = needs.disk_folder is not None
    if compiler is None:
        found = "a C++ compiler is not on PATH: torch.compile cannot be used"
        status = PROBLEM if needs.compiles or offloads else NOTE
        yield Check("compiler", found, status, "install g++ or load a compiler's module")
    if ninja is None:
        found = "ninja is not on PATH: DeepSpeed's operators for offload to a disk cannot be used"
        yield Check("compiler", found, PROBLEM if offloads else NOTE, installing("ninja"))
    if there := [path for path in (compiler, ninja) if path]:
        yield Check("compiler", ", ".join(there))


# Accelerators


def gather_accelerators(root: Path = Path("/")) -> Accelerators:
    """Return the device files and driver versions under `root`."""

    def is_shown(backend: str) -> bool:
        files = any(root.glob(PLATFORMS[backend].devices))
        makers = root.glob("sys/class/drm/renderD*/device/vendor")
        return files and (
            backend != "xpu" or any(path.read_text("utf-8").strip() == INTEL for path in makers)
        )

    backend = next(filter(is_shown, PLATFORMS), None)
    files = [
        root / GPU_DRIVER_FILES[name] for name in (PLATFORMS[backend].drivers if backend else ())
    ]
    drivers = [file for file in files if file.is_file()]
    return Accelerators(
        backend, drivers[0].read_text("utf-8").split("\n")[0].strip() if drivers else None
    )


def check_torch(torch: Torch, system: Accelerators) -> Iterator[Check]:
    """Compare torch's build with the devices that the system shows."""
    if torch.error is not None:
        yield Check(
            "torch",
            torch.error,
            PROBLEM,
            "run: python -c 'import torch', and reinstall torch if it fails",
        )
        return
    build = f"{torch.version}, built for {' '.join(torch.platform)}".rstrip()
    if system.backend in (None, torch.platform[0]) or torch.devices:
        yield Check("torch", build)
        return
    needed = PLATFORMS[system.backend]
    found = f"{build}: it cannot use the {needed.maker} devices of this machine"
    remedy = f"install {needed.build} build of torch: https://pytorch.org/get-started/locally/"
    yield Check("torch", found, PROBLEM, remedy)


def check_devices(torch: Torch, system: Accelerators) -> Iterator[Check]:
    """List the devices that torch sees, on a machine without accelerators its processors, and the
    driver's version.
    """
    maker = PLATFORMS[system.backend].maker if system.backend else ""
    if torch.devices:
        counts = Counter(
            f"{device['name']}, {device['memory_bytes'] / GIB:.1f} GiB" for device in torch.devices
        )
        found = "; ".join(f"{count} x {name}" for name, count in counts.items())
        remedy = "probe on devices of one kind: the slowest sets the pace of all"
        yield judge("devices", found, fine=len(counts) == 1, otherwise=WARNING, remedy=remedy)
    elif maker and system.backend == torch.platform[0]:
        found = f"torch sees none of this machine's {maker} devices"
        found += f": {torch.device_error}" if torch.device_error else ""
        remedy = (
            "check the driver, the permissions of the device files, and variables that hide devices"
        )
        yield Check("devices", found, PROBLEM, remedy)
    else:
        found = f"no accelerator; {processors()['devices_per_node']} processors, {cpu_name()}"
        yield Check(
            "devices",
            found,
            NOTE,
            "cpu clusters run here; on a login node, run this inside a job instead",
        )
    if maker:
        found = system.driver or f"{maker} devices are shown, but no version of their driver"
        remedy = "in a container the driver is the host's: check there"
        yield judge("driver", found, fine=bool(system.driver), otherwise=NOTE, remedy=remedy)


def check_collectives(torch: Torch) -> Iterator[Check]:
    """Require the communication backend for the devices that torch is built for."""
    if torch.error is not None:
        return
    backend, library = COLLECTIVES[torch.platform[0]]
    version = f" {torch.nccl}" if torch.nccl and backend == "nccl" else ""
    found = library if library == backend else f"{library}{version}, by torch's {backend}"
    missing = [name for name in dict.fromkeys((backend, "gloo")) if name not in torch.collectives]
    found = f"torch was built without {' and '.join(missing)}" if missing else found
    remedy = "install a build of torch with it: several ranks need it"
    yield judge("collectives", found, fine=not missing, otherwise=PROBLEM, remedy=remedy)


def check_needed_devices(torch: Torch, needs: Needs, cores: int) -> Iterator[Check]:
    """Check whether probes of the campaign's cluster can run on this machine's devices."""
    if needs.backend is None or torch.error is not None:
        return
    fine, found = True, f"its cluster's {needs.backend} devices are of this machine's kind"
    bad, ranks, remedy = (
        PROBLEM,
        needs.devices_per_node or 0,
        "run this on a node of that cluster, inside a job",
    )
    if needs.backend not in ("cpu", torch.backend):
        fine, found = (
            False,
            f"its cluster has {needs.backend} devices, this machine {torch.backend}",
        )
    elif needs.backend != "cpu" and len(torch.devices) < ranks:
        fine, found = (
            False,
            f"its cluster has {ranks} devices per node, this machine shows {len(torch.devices)}",
        )
    elif needs.backend == "cpu" and cores < ranks:
        fine, bad = False, WARNING
        found = (
            f"its cluster has {ranks} ranks per node, and they share this machine's {cores}"
            " processors"
        )
        remedy = f"expect slow and noisy steps, or set cluster.devices_per_node to at most {cores}"
    otherwise = bad if needs.scheduler is None else NOTE  # a batch system may run probes elsewhere
    yield judge("campaign", found, fine=fine, otherwise=otherwise, remedy=remedy)


# Limits


class Limits(NamedTuple):
    """Memory of the machine, limits on it by what sets them, and limits of this process; None is no
    limit.
    """

    memory_bytes: int
    free_bytes: int
    memory_limits: Mapping[str, int] = {}
    open_files: int | None = None
    most_open_files: int | None = None
    locked_bytes: int | None = None
    shared_bytes: int = GIB


def gather_limits() -> Limits:
    """Return the limits of cgroups, of `ulimit` and of /dev/shm."""

    def limits(kind: int) -> tuple[int | None, int | None]:
        soft, hard = (
            None if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(kind)
        )
        return soft, hard

    address_space, _ = limits(resource.RLIMIT_AS)
    found = {} if address_space is None else {"ulimit -v": address_space}
    groups = Path("/proc/self/cgroup")
    for line in groups.read_text(encoding="utf-8").splitlines() if groups.is_file() else []:
        _, kinds, folder = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        root, name = ("memory", "memory.limit_in_bytes") if kinds else ("", "memory.max")
        own = Path(folder.lstrip("/"))
        for path in (Path("/sys/fs/cgroup", root, place, name) for place in (own, *own.parents)):
            text = path.read_text(encoding="utf-8").strip() if path.is_file() else "max"
            if text.isdecimal():
                found[str(path)] = int(text)
    memory, shared = psutil.virtual_memory(), Path("/dev/shm")  # noqa: S108 - read, not written to
    open_files, most_open_files = limits(resource.RLIMIT_NOFILE)
    locked, _ = limits(resource.RLIMIT_MEMLOCK)
    room = shutil.disk_usage(shared).total if shared.is_dir() else 0
    return Limits(memory.total, memory.available, found, open_files, most_open_files, locked, room)


def check_limits(limits: Limits, *, has_fabric: bool, has_devices: bool) -> Iterator[Check]:
    """Check what ranks need: all memory, sockets, memory that network cards register, and /dev/shm
    between them.

    NCCL's troubleshooting guide asks containers, whose default for /dev/shm is 64 MiB, for
    --shm-size=1g.
    """
    total, files, hard, locked = (
        limits.memory_bytes,
        limits.open_files,
        limits.most_open_files,
        limits.locked_bytes,
    )
    found = f"{total / GIB:,.1f} GiB, {limits.free_bytes / GIB:,.1f} GiB free"
    least, by = min(
        ((limit, by) for by, limit in limits.memory_limits.items()), default=(total, "")
    )
    is_less = least < total  # cgroups of version 1 have a huge value for no limit
    found += f"; at most {least / GIB:,.1f} GiB by {by}" if is_less else ""
    remedy = "request all memory of a node (Slurm: --mem=0) if probes should have it"
    yield judge("memory", found, fine=not is_less, otherwise=NOTE, remedy=remedy)

    fine, can_raise = (
        files is None or files >= MIN_OPEN_FILES,
        hard is None or hard >= MIN_OPEN_FILES,
    )
    found = "no limit" if files is None else f"{files:,}"
    found += "" if fine else f": expected {MIN_OPEN_FILES:,} for the sockets of many ranks"
    remedy = (
        f"ulimit -n {MIN_OPEN_FILES}"
        if can_raise
        else "ask the administrator for a higher hard limit (nofile)"
    )
    yield judge("open files", found, fine=fine, otherwise=WARNING, remedy=remedy)

    found = "no limit" if locked is None else f"at most {locked / 2**20:,.1f} MiB"
    found += "; nothing here needs more" if locked is not None and not has_fabric else ""
    remedy = (
        "ulimit -l unlimited, or ask the administrator (memlock): the network registers its buffers"
    )
    yield judge(
        "locked memory",
        found,
        fine=locked is None or not has_fabric,
        otherwise=WARNING,
        remedy=remedy,
    )

    shared = limits.shared_bytes
    found = f"{shared / GIB:,.1f} GiB" if shared >= GIB else f"{shared / 2**20:,.0f} MiB"
    fine = shared >= GIB or (shared > 0 and not has_devices)
    remedy = (
        "mount a /dev/shm, or start the container with --shm-size=1g or more: ranks of a node"
        " exchange buffers"
    )
    yield judge("shared memory", found, fine=fine, otherwise=WARNING, remedy=remedy)
