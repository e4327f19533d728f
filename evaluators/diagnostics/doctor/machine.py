"""Checks of one machine: installed software, accelerators, limits and clock; and the table of all checks."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from packaging.requirements import Requirement

from frontrunner.evaluators.cluster.environment import COLLECTIVES, job_environment
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
from frontrunner.evaluators.probe.this_machine import cpu_name, detect, processors

GIB = 2**30
MIN_SQLITE = (3, 35, 0)
"""The first with RETURNING, by which rows are claimed (https://www.sqlite.org/lang_returning.html)."""
COMPILERS = ("c++", "g++", "clang++", "icpx", "hipcc")


class Platform(NamedTuple):
    """A kind of accelerators: the maker, a build of torch for it, device files, and files of the driver's version."""

    maker: str
    build: str
    devices: str
    drivers: tuple[str, ...]


PLATFORMS = {
    "cuda": Platform("NVIDIA", "a CUDA", "dev/nvidia[0-9]*", ("proc/driver/nvidia/version",)),
    "rocm": Platform("AMD", "a ROCm", "dev/kfd", ("sys/module/amdgpu/version",)),
    "xpu": Platform("Intel", "an XPU", "dev/dri/renderD*", ("sys/module/i915/version", "sys/module/xe/version")),
}
INTEL = "0x8086"
"""Vendor of Intel's render nodes: a render node alone may be any graphics card."""
TORCH_TIMEOUT_S = 180.0
"""Assumed: importing torch from a cold network file system, and a driver that wakes its devices."""
MIN_OPEN_FILES = 4096
"""Assumed: a rank of a full mesh of sockets holds one for each of its peers, for each group that it is in."""
TIME_ERROR = 5
"""Of adjtimex(2): the clock is not synchronized."""

TORCH_PROGRAM = """
import json, torch
import torch.distributed as dist
words = {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip,
         "xpu": getattr(torch.version, "xpu", None), "devices": [], "device_error": None, "nccl": None}
kind = "xpu" if words["xpu"] else "cuda" if words["cuda"] or words["hip"] else None
if kind is not None:
    module = getattr(torch, kind)
    try:
        module.init()
        for number in range(module.device_count()):
            found = module.get_device_properties(number)
            words["devices"].append({"name": found.name, "memory_bytes": found.total_memory})
    except Exception as error:
        words["device_error"] = str(error).strip().split(chr(10))[0]
if kind == "cuda" and dist.is_nccl_available():
    version = torch.cuda.nccl.version()
    words["nccl"] = ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
checks = {"gloo": "is_gloo_available", "nccl": "is_nccl_available", "mpi": "is_mpi_available",
          "xccl": "is_xccl_available"}
words["collectives"] = [name for name, ask in checks.items() if getattr(dist, ask, lambda: False)()]
print(json.dumps(words))
"""


class Package(NamedTuple):
    """A required package, its installed version (None: not installed), and the extra that requires it."""

    required: Requirement
    installed: str | None
    extra: str | None = None

    @property
    def fits(self) -> bool:
        """Whether it is installed, in the range."""
        return self.installed is not None and self.required.specifier.contains(self.installed, prereleases=True)


@dataclass(frozen=True, kw_only=True)
class Torch:
    """What `TORCH_PROGRAM` prints; `error` is why torch could not be imported, `device_error` why it sees no device."""

    version: str = ""
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None
    devices: Sequence[Mapping[str, Any]] = ()
    device_error: str | None = None
    collectives: Sequence[str] = ()
    nccl: str | None = None
    error: str | None = None

    @property
    def platform(self) -> tuple[str, str]:
        """The backend that it is built for, with the version of the platform."""
        found = {"xpu": self.xpu, "rocm": self.hip, "cuda": self.cuda}
        return next(((backend, version) for backend, version in found.items() if version), ("cpu", ""))

    @property
    def backend(self) -> str:
        """The backend of the devices that it sees."""
        return self.platform[0] if self.devices else "cpu"


class Accelerators(NamedTuple):
    """Backend of the accelerators that the system shows (None: none), and the first line of the driver's version."""

    backend: str | None
    driver: str | None


def examine(needs: Needs) -> tuple[Check, ...]:
    """Check this machine, this job and this installation. Takes as long as importing torch does."""
    torch, system, fabric = torch_facts(), gather_accelerators(), site.gather_fabric()
    has_fabric = bool(fabric.kinds)
    return run_checks([
        ("software", "python", lambda: check_python(sys.version_info[:3])),
        ("software", "packages", lambda: check_packages(gather_packages(), needs.packages)),
        ("software", "sqlite", lambda: check_sqlite(sqlite3.sqlite_version_info)),
        ("software", "compiler", lambda: check_tools(_compiler(), shutil.which("ninja"), needs)),
        ("devices", "torch", lambda: check_torch(torch, system)),
        ("devices", "devices", lambda: check_devices(torch, system)),
        ("devices", "driver", lambda: check_driver(system)),
        ("devices", "collectives", lambda: check_collectives(torch)),
        ("devices", "campaign", lambda: check_needed_devices(torch, needs)),
        ("job", "scheduler", lambda: site.check_schedulers(site.gather_schedulers(), needs.scheduler)),
        ("job", "allocation", lambda: site.check_job(job_environment(os.environ, detect()), needs)),
        ("network", "host name", lambda: site.check_host(*site.gather_host())),
        ("network", "loopback", lambda: site.check_loopback(*site.gather_loopback())),
        ("network", "fabric", lambda: site.check_fabric(fabric, torch.backend)),
        *site.storage_checks(needs),
        ("limits", "memory", lambda: check_memory(*gather_memory())),
        ("limits", "open files", lambda: check_open_files(*_limits(resource.RLIMIT_NOFILE))),
        ("limits", "locked memory", lambda: check_locked(_limits(resource.RLIMIT_MEMLOCK)[0], has_fabric=has_fabric)),
        ("limits", "shared memory", lambda: check_shared(_shared_bytes(), has_devices=bool(torch.devices))),
        ("limits", "clock", lambda: check_clock(_is_synchronized())),
    ])  # fmt: skip


# Software


def check_python(version: tuple[int, ...]) -> Iterator[Check]:
    """Require Python 3.11 or later."""
    found = f"{'.'.join(map(str, version))}, {platform.machine()}"
    remedy = "install Python 3.11 or later, and frontrunner with it"
    yield judge("python", found, fine=version >= (3, 11), otherwise=PROBLEM, remedy=remedy)


def gather_packages() -> tuple[Package, ...]:
    """Return the packages that frontrunner's own metadata requires, with the versions that are installed."""
    found = []
    for line in metadata.requires("frontrunner") or []:
        required = Requirement(line)
        # The extra that a requirement belongs to, from its marker `extra == "name"`.
        extra = str(required.marker or "").partition('extra == "')[2].partition('"')[0] or None
        applies = required.marker is None or required.marker.evaluate({"extra": extra or ""})
        if extra != "dev" and applies:
            found.append(Package(required, _version(required.name), extra))
    return tuple(found)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_packages(packages: Sequence[Package], needed: Sequence[str]) -> Iterator[Check]:
    """Require default packages and those that the campaign needs; extras that are not installed are one note."""
    required = [package for package in packages if package.extra is None or package.required.name in needed]
    for package in required:
        if not package.fits:
            name = package.required.name
            range_ = f"{name}{package.required.specifier}"
            how = "is not installed" if package.installed is None else f"is {package.installed}"
            what = f"frontrunner[{package.extra}]" if package.extra else range_
            yield Check(name, f"{name} {how}: expected {range_}", PROBLEM, f"pip install '{what}'")
    if all(package.fits for package in required):
        yield Check("packages", ", ".join(f"{package.required.name} {package.installed}" for package in required))
    missing = sorted({str(each.extra) for each in packages if each not in required and not each.fits})
    if missing:
        remedy = "pip install 'frontrunner[NAME]' for what they add"
        yield Check("extras", f"extras not installed: {', '.join(missing)}", NOTE, remedy)


def check_sqlite(version: tuple[int, ...]) -> Iterator[Check]:
    """Require the SQLite that stores in files need; Python brings it."""
    found, least = (".".join(map(str, each)) for each in (version, MIN_SQLITE))
    remedy = f"use a Python that brings SQLite {least} or later"
    yield judge("sqlite", found, fine=version >= MIN_SQLITE, otherwise=PROBLEM, remedy=remedy)


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def check_tools(compiler: str | None, ninja: str | None, needs: Needs) -> Iterator[Check]:
    """Require a compiler for torch.compile and ninja for DeepSpeed's operators, where a campaign uses them."""
    offloads = needs.disk_folder is not None
    if compiler is None:
        found = "a C++ compiler is not on PATH: torch.compile cannot be used"
        status = PROBLEM if needs.compiles or offloads else NOTE
        yield Check("compiler", found, status, "install g++ or load a compiler's module")
    if ninja is None:
        found = "ninja is not on PATH: DeepSpeed's operators for offload to a disk cannot be used"
        yield Check("compiler", found, PROBLEM if offloads else NOTE, "pip install ninja")
    if there := [path for path in (compiler, ninja) if path]:
        yield Check("compiler", ", ".join(there))


# Accelerators


@cache
def torch_facts() -> Torch:
    """Return what torch is built for and sees, from a process of its own, so that this one never holds a device."""
    command = [sys.executable, "-P", "-c", TORCH_PROGRAM]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TORCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return Torch(error=f"importing it took more than {TORCH_TIMEOUT_S:g} s")
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        last = done.stderr.strip().splitlines()
        return Torch(error=last[-1] if last else f"it ended with status {done.returncode}")
    return Torch(**json.loads(lines[-1]))


def gather_accelerators(root: Path = Path("/")) -> Accelerators:
    """Return the device files and driver versions under `root`."""

    def is_shown(backend: str) -> bool:
        files = any(root.glob(PLATFORMS[backend].devices))
        makers = root.glob("sys/class/drm/renderD*/device/vendor")
        return files and (backend != "xpu" or any(path.read_text("utf-8").strip() == INTEL for path in makers))

    backend = next(filter(is_shown, PLATFORMS), None)
    drivers = [root / path for path in (PLATFORMS[backend].drivers if backend else ()) if (root / path).is_file()]
    return Accelerators(backend, drivers[0].read_text("utf-8").split("\n")[0].strip() if drivers else None)


def check_torch(torch: Torch, system: Accelerators) -> Iterator[Check]:
    """Compare torch's build with the devices that the system shows."""
    if torch.error is not None:
        remedy = "run: python -c 'import torch', and reinstall torch if it fails"
        yield Check("torch", torch.error, PROBLEM, remedy)
        return
    build = f"{torch.version}, built for {' '.join(torch.platform)}".rstrip()
    if system.backend is not None and system.backend != torch.platform[0] and not torch.devices:
        needed = PLATFORMS[system.backend]
        found = f"{build}: it cannot use the {needed.maker} devices of this machine"
        remedy = f"install {needed.build} build of torch: https://pytorch.org/get-started/locally/"
        yield Check("torch", found, PROBLEM, remedy)
    else:
        yield Check("torch", build)


def check_devices(torch: Torch, system: Accelerators) -> Iterator[Check]:
    """List the devices that torch sees; on a machine without accelerators its processors, as a note."""
    if torch.devices:
        counts = Counter(f"{device['name']}, {device['memory_bytes'] / GIB:.1f} GiB" for device in torch.devices)
        found = "; ".join(f"{count} x {name}" for name, count in counts.items())
        remedy = "probe on devices of one kind: the slowest sets the pace of all"
        yield judge("devices", found, fine=len(counts) == 1, otherwise=WARNING, remedy=remedy)
    elif system.backend is not None and system.backend == torch.platform[0]:
        found = f"torch sees none of this machine's {PLATFORMS[system.backend].maker} devices"
        found += f": {torch.device_error}" if torch.device_error else ""
        remedy = "check the driver, the permissions of the device files, and variables that hide devices"
        yield Check("devices", found, PROBLEM, remedy)
    else:
        found = f"no accelerator; {processors()['devices_per_node']} processors, {cpu_name()}"
        yield Check("devices", found, NOTE, "cpu clusters run here; on a login node, run this inside a job instead")


def check_driver(system: Accelerators) -> Iterator[Check]:
    """Report the driver's version, where there are devices."""
    if system.backend is not None:
        missing = f"{PLATFORMS[system.backend].maker} devices are shown, but no version of their driver"
        remedy = "in a container the driver is the host's: check there"
        yield judge("driver", system.driver or missing, fine=bool(system.driver), otherwise=NOTE, remedy=remedy)


def check_collectives(torch: Torch) -> Iterator[Check]:
    """Require the communication backend for the devices that torch is built for."""
    if torch.error is not None:
        return
    backend, library = COLLECTIVES[torch.platform[0]]
    missing = [name for name in dict.fromkeys((backend, "gloo")) if name not in torch.collectives]
    if missing:
        found = f"torch was built without {' and '.join(missing)}"
        yield Check("collectives", found, PROBLEM, "install a build of torch with it: several ranks need it")
        return
    version = f" {torch.nccl}" if torch.nccl and backend == "nccl" else ""
    yield Check("collectives", library if library == backend else f"{library}{version}, by torch's {backend}")


def check_needed_devices(torch: Torch, needs: Needs) -> Iterator[Check]:
    """Check whether probes of the campaign's cluster can run on this machine's devices."""
    if needs.backend is None or torch.error is not None:
        return
    found = f"its cluster's {needs.backend} devices are of this machine's kind"
    is_ours, is_enough = needs.backend in ("cpu", torch.backend), len(torch.devices) >= (needs.devices_per_node or 0)
    if not is_ours:
        found = f"its cluster has {needs.backend} devices, this machine {torch.backend}"
    elif needs.backend != "cpu" and not is_enough:
        found = f"its cluster has {needs.devices_per_node} devices per node, this machine shows {len(torch.devices)}"
    yield judge(
        "campaign",
        found,
        fine=is_ours and (needs.backend == "cpu" or is_enough),
        otherwise=PROBLEM if needs.scheduler is None else NOTE,  # a batch system may run probes elsewhere
        remedy="run this on a node of that cluster, inside a job",
    )


# Limits and clock


def gather_memory() -> tuple[int, int, dict[str, int]]:
    """Return the machine's memory, what is free, and limits by what sets them: cgroups and the address space."""
    found = {}
    address_space, _ = _limits(resource.RLIMIT_AS)
    if address_space is not None:
        found["ulimit -v"] = address_space
    groups = Path("/proc/self/cgroup")
    for line in groups.read_text(encoding="utf-8").splitlines() if groups.is_file() else []:
        _, kinds, folder = line.split(":", 2)
        root, name = ("", "memory.max") if not kinds else ("memory", "memory.limit_in_bytes")
        if kinds and "memory" not in kinds.split(","):
            continue
        for place in (Path(folder.lstrip("/")), *Path(folder.lstrip("/")).parents):
            path = Path("/sys/fs/cgroup", root, place, name)
            text = path.read_text(encoding="utf-8").strip() if path.is_file() else "max"
            if text.isdecimal():
                found[str(path)] = int(text)
    memory = psutil.virtual_memory()
    return memory.total, memory.available, found


def check_memory(total_bytes: int, free_bytes: int, limits: Mapping[str, int]) -> Iterator[Check]:
    """Report the memory, with a note where a limit leaves a process less than the machine has."""
    found = f"{total_bytes / GIB:,.1f} GiB, {free_bytes / GIB:,.1f} GiB free"
    limit, by = min(((limit, by) for by, limit in limits.items()), default=(total_bytes, ""))
    is_less = limit < total_bytes  # cgroups of version 1 have a huge value for no limit
    found += f"; at most {limit / GIB:,.1f} GiB by {by}" if is_less else ""
    remedy = "request all memory of a node (Slurm: --mem=0) if probes should have it"
    yield judge("memory", found, fine=not is_less, otherwise=NOTE, remedy=remedy)


def _limits(kind: int) -> tuple[int | None, int | None]:
    """Return the soft and the hard limit of this process, which its children inherit; None for no limit."""
    soft, hard = (None if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(kind))
    return soft, hard


def check_open_files(soft: int | None, hard: int | None) -> Iterator[Check]:
    """Require enough open files for the sockets of many ranks."""
    if soft is None or soft >= MIN_OPEN_FILES:
        yield Check("open files", "no limit" if soft is None else f"{soft:,}")
        return
    can_raise = hard is None or hard >= MIN_OPEN_FILES
    remedy = f"ulimit -n {MIN_OPEN_FILES}" if can_raise else "ask the administrator for a higher hard limit (nofile)"
    found = f"{soft:,}: expected {MIN_OPEN_FILES:,} for the sockets of many ranks"
    yield Check("open files", found, WARNING, remedy)


def check_locked(soft: int | None, *, has_fabric: bool) -> Iterator[Check]:
    """Require lockable memory for network cards that move memory themselves (RDMA)."""
    found = "no limit" if soft is None else f"at most {soft / 2**20:,.1f} MiB"
    found += "; nothing here needs more" if soft is not None and not has_fabric else ""
    remedy = "ulimit -l unlimited, or ask the administrator (memlock): the network registers its buffers"
    yield judge("locked memory", found, fine=soft is None or not has_fabric, otherwise=WARNING, remedy=remedy)


def _shared_bytes() -> int:
    shared = Path("/dev/shm")  # noqa: S108 - read, not written to
    return shutil.disk_usage(shared).total if shared.is_dir() else 0


def check_shared(size_bytes: int, *, has_devices: bool) -> Iterator[Check]:
    """Require room in /dev/shm, through which ranks of a node exchange buffers.

    NCCL's troubleshooting guide asks containers, whose default is 64 MiB, for --shm-size=1g.
    """
    found = f"{size_bytes / GIB:,.1f} GiB" if size_bytes >= GIB else f"{size_bytes / 2**20:,.0f} MiB"
    fine = size_bytes >= GIB or (size_bytes > 0 and not has_devices)
    remedy = "mount a /dev/shm, or start the container with --shm-size=1g or more: ranks of a node exchange buffers"
    yield judge("shared memory", found, fine=fine, otherwise=WARNING, remedy=remedy)


def _is_synchronized() -> bool | None:
    """Call adjtimex(2) without changing anything; return None where it fails."""
    if sys.platform != "linux":
        return None
    buffer = ctypes.create_string_buffer(512)  # struct timex has 208 bytes, all zero: no mode, so nothing is set
    state: int = ctypes.CDLL(None).adjtimex(buffer)
    return None if state < 0 else state != TIME_ERROR


def check_clock(synchronized: bool | None) -> Iterator[Check]:  # noqa: FBT001
    """Check the wall clock, by which timestamps are taken; step times are by the monotonic clock."""
    found = {True: "synchronized", False: "not synchronized by NTP", None: "synchronization is unknown"}[synchronized]
    remedy = "start chronyd or ntpd, or do not compare timestamps"
    yield judge("clock", found, fine=synchronized is not False, otherwise=NOTE, remedy=remedy)
