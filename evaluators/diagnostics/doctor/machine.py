"""Checks of one machine: installed software, accelerators, limits and clocks."""

from __future__ import annotations

import ctypes
import json
import platform
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import psutil
from packaging.requirements import Requirement

from frontrunner.evaluators.cluster.environment import COLLECTIVES
from frontrunner.evaluators.diagnostics.doctor.check import Check, Needs, Section
from frontrunner.evaluators.probe.this_machine import cpu_name, processors

SOFTWARE, DEVICES, LIMITS = Section("software"), Section("devices"), Section("limits")
GIB = 2**30
MIN_PYTHON = (3, 11)
MIN_SQLITE = (3, 35, 0)
"""The first with RETURNING, by which rows are claimed (https://www.sqlite.org/lang_returning.html)."""
COMPILERS = ("c++", "g++", "clang++", "icpx", "hipcc")
DEVICE_FILES = {"cuda": ("/dev/nvidia[0-9]*",), "rocm": ("/dev/kfd",), "xpu": ("/dev/dri/renderD*",)}
"""Files by which the system shows accelerators. A render node alone may be any graphics card: see `_is_shown`."""
DRIVERS = {
    "cuda": ("/proc/driver/nvidia/version",),
    "rocm": ("/sys/module/amdgpu/version",),
    "xpu": ("/sys/module/i915/version", "/sys/module/xe/version"),
}
MAKERS = {"cuda": "NVIDIA", "rocm": "AMD", "xpu": "Intel"}
WHEELS = {"cuda": "a CUDA", "rocm": "a ROCm", "xpu": "an XPU"}
INTEL = "0x8086"
TORCH_TIMEOUT_S = 180.0
"""Assumed: importing torch from a cold network file system, and a driver that wakes its devices."""
MIN_OPEN_FILES = 4096
"""Assumed: a rank of a full mesh of sockets holds one for each of its peers, for each group that it is in."""
MIN_SHARED_BYTES = GIB
"""NCCL's troubleshooting guide asks containers for --shm-size=1g, whose default is 64 MiB."""
TIME_ERROR = 5
"""Of adjtimex(2): the clock is not synchronized."""
DRIFT_S = 0.5
"""More than a busy machine lets pass between the reading of one clock and of the other."""
CLOCK_S = 0.05
NO_LIMIT = 2**60
"""Cgroups of version 1 have a larger value for no limit."""

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


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package: the required range, the installed version (None: not installed), and the extra that requires it."""

    name: str
    required: Requirement
    installed: str | None
    extra: str | None

    @property
    def fits(self) -> bool:
        """Whether it is installed, in the range."""
        return self.installed is not None and self.required.specifier.contains(self.installed, prereleases=True)


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Paths of programs; None for those that are not on PATH."""

    compiler: str | None
    ninja: str | None


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device as torch names it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Torch:
    """Torch's version, the platform it is built for, and the devices it sees.

    `built_for` is cpu, cuda, rocm or xpu. `error` is why torch could not be imported, `device_error` why it sees none.
    """

    version: str = ""
    built_for: str = "cpu"
    platform_version: str | None = None
    devices: tuple[Device, ...] = ()
    device_error: str | None = None
    collectives: tuple[str, ...] = ()
    nccl: str | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Accelerators:
    """Backend of the accelerators that the system shows (None: none), and the first line of the driver's version."""

    backend: str | None
    driver: str | None


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of the machine, of those free, and the lowest limit that this process is under; None for no limit."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None
    limited_by: str | None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Soft limits of this process (None for none), the hard one of open files, and the size of /dev/shm."""

    open_files: int | None
    max_open_files: int | None
    locked_bytes: int | None
    shared_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """Seconds that passed by the monotonic and by the wall clock; whether NTP keeps the wall clock synchronized."""

    monotonic_s: float
    wall_s: float
    synchronized: bool | None


# Software


def check_python(version: tuple[int, ...]) -> Iterator[Check]:
    """Require Python 3.11 or later."""
    words = ".".join(map(str, version))
    if version[:2] >= MIN_PYTHON:
        yield SOFTWARE.ok("python", f"{words}, {platform.machine()}")
    else:
        yield SOFTWARE.problem("python", words, "install Python 3.11 or later, and frontrunner with it")


def gather_packages() -> tuple[Package, ...]:
    """Return the packages that frontrunner's own metadata requires, with the versions that are installed."""
    found = []
    for line in metadata.requires("frontrunner") or []:
        required = Requirement(line)
        # The extra that a requirement belongs to, from its marker `extra == "name"`.
        extra = str(required.marker or "").partition('extra == "')[2].partition('"')[0] or None
        applies = required.marker is None or required.marker.evaluate({"extra": extra or ""})
        if extra != "dev" and applies:
            found.append(Package(name=required.name, required=required, installed=_version(required.name), extra=extra))
    return tuple(found)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_packages(packages: Sequence[Package], needed: Sequence[str]) -> Iterator[Check]:
    """Require default packages and those that the campaign needs; extras that are not installed are one note."""
    required = [package for package in packages if package.extra is None or package.name in needed]
    for package in required:
        if not package.fits:
            range_ = f"{package.name}{package.required.specifier}"
            how = "is not installed" if package.installed is None else f"is {package.installed}"
            what = f"frontrunner[{package.extra}]" if package.extra else range_
            yield SOFTWARE.problem(
                package.name, f"{package.name} {how}: expected {range_}", remedy=f"pip install '{what}'"
            )
    if all(package.fits for package in required):
        yield SOFTWARE.ok("packages", ", ".join(f"{package.name} {package.installed}" for package in required))
    missing = sorted({str(each.extra) for each in packages if each not in required and not each.fits})
    if missing:
        remedy = "pip install 'frontrunner[NAME]' for what they add"
        yield SOFTWARE.note("extras", f"extras not installed: {', '.join(missing)}", remedy)


def check_sqlite(version: tuple[int, ...]) -> Iterator[Check]:
    """Require the SQLite that stores in files need; Python brings it."""
    words = ".".join(map(str, version))
    if version >= MIN_SQLITE:
        yield SOFTWARE.ok("sqlite", words)
    else:
        yield SOFTWARE.problem(
            "sqlite", words, f"use a Python that brings SQLite {'.'.join(map(str, MIN_SQLITE))} or later"
        )


def gather_tools() -> Tools:
    """Return the first C++ compiler on PATH, and ninja."""
    return Tools(compiler=next(filter(None, map(shutil.which, COMPILERS)), None), ninja=shutil.which("ninja"))


def check_tools(tools: Tools, needs: Needs) -> Iterator[Check]:
    """Require a compiler for torch.compile and ninja for DeepSpeed's operators, where a campaign uses them."""
    offloads = needs.disk_folder is not None
    if tools.compiler is None:
        make = SOFTWARE.problem if needs.compiles or offloads else SOFTWARE.note
        found = "a C++ compiler is not on PATH: torch.compile cannot be used"
        yield make("compiler", found, "install g++ or load a compiler's module")
    if tools.ninja is None:
        make = SOFTWARE.problem if offloads else SOFTWARE.note
        found = "ninja is not on PATH: DeepSpeed's operators for offload to a disk cannot be used"
        yield make("compiler", found, "pip install ninja")
    if there := [path for path in (tools.compiler, tools.ninja) if path]:
        yield SOFTWARE.ok("compiler", ", ".join(there))


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
    return parse_torch_facts(json.loads(lines[-1]))


def parse_torch_facts(words: Mapping[str, object]) -> Torch:
    """Return the output of `TORCH_PROGRAM` as a value."""
    platforms = {"xpu": words["xpu"], "rocm": words["hip"], "cuda": words["cuda"]}
    built_for = next((name for name, version in platforms.items() if version), "cpu")
    devices, collectives, version = words["devices"], words["collectives"], platforms.get(built_for)
    return Torch(
        version=str(words["version"]),
        built_for=built_for,
        platform_version=str(version) if version else None,
        devices=tuple(Device(**each) for each in devices) if isinstance(devices, list) else (),
        device_error=str(words["device_error"]) if words["device_error"] else None,
        collectives=tuple(map(str, collectives)) if isinstance(collectives, list) else (),
        nccl=str(words["nccl"]) if words["nccl"] else None,
    )


def gather_accelerators(root: Path = Path("/")) -> Accelerators:
    """Return the device files and driver versions under `root`."""
    backend = next((name for name in DEVICE_FILES if _is_shown(name, root)), None)
    lines = (root / path.lstrip("/") for path in DRIVERS.get(backend or "", ()))
    versions = [path.read_text(encoding="utf-8").split("\n", maxsplit=1)[0].strip() for path in lines if path.is_file()]
    return Accelerators(backend=backend, driver=next(iter(versions), None))


def _is_shown(backend: str, root: Path) -> bool:
    """Return whether the system shows such devices; render nodes count as Intel's where a card says so."""
    files = [path for pattern in DEVICE_FILES[backend] for path in root.glob(pattern.lstrip("/"))]
    if backend != "xpu" or not files:
        return bool(files)
    makers = (path / "device" / "vendor" for path in root.glob("sys/class/drm/renderD*"))
    return any(path.read_text(encoding="utf-8").strip() == INTEL for path in makers if path.is_file())


def check_torch(torch: Torch, system: Accelerators) -> Iterator[Check]:
    """Compare torch's build with the devices that the system shows."""
    if torch.error is not None:
        remedy = "run: python -c 'import torch', and reinstall torch if it fails"
        yield DEVICES.problem("torch", torch.error, remedy)
        return
    build = f"{torch.version}, built for {torch.built_for}"
    build += f" {torch.platform_version}" if torch.platform_version else ""
    if system.backend is not None and system.backend != torch.built_for and not torch.devices:
        found = f"{build}: it cannot use the {MAKERS[system.backend]} devices of this machine"
        remedy = f"install {WHEELS[system.backend]} build of torch: https://pytorch.org/get-started/locally/"
        yield DEVICES.problem("torch", found, remedy)
    else:
        yield DEVICES.ok("torch", build)


def check_devices(torch: Torch, system: Accelerators) -> Iterator[Check]:
    """List the devices that torch sees; on a machine without accelerators its processors, as a note."""
    if torch.devices:
        counts = Counter(f"{device.name}, {device.memory_bytes / GIB:.1f} GiB" for device in torch.devices)
        found = "; ".join(f"{count} x {name}" for name, count in counts.items())
        if len(counts) == 1:
            yield DEVICES.ok("devices", found)
        else:
            yield DEVICES.warning("devices", found, "probe on devices of one kind: the slowest sets the pace of all")
    elif system.backend is not None and system.backend == torch.built_for:
        found = f"torch sees none of this machine's {MAKERS[system.backend]} devices"
        found += f": {torch.device_error}" if torch.device_error else ""
        remedy = "check the driver, the permissions of the device files, and variables that hide devices"
        yield DEVICES.problem("devices", found, remedy)
    else:
        found = f"no accelerator; {processors()['devices_per_node']} processors, {cpu_name()}"
        yield DEVICES.note("devices", found, "cpu clusters run here; on a login node, run this inside a job instead")


def check_driver(system: Accelerators) -> Iterator[Check]:
    """Report the driver's version, where there are devices."""
    if system.driver is not None:
        yield DEVICES.ok("driver", system.driver)
    elif system.backend is not None:
        found = f"{MAKERS[system.backend]} devices are shown, but no version of their driver"
        yield DEVICES.note("driver", found, "in a container the driver is the host's: check there")


def check_collectives(torch: Torch) -> Iterator[Check]:
    """Require the communication backend for the devices that torch is built for."""
    if torch.error is not None:
        return
    backend, library = COLLECTIVES[torch.built_for]
    missing = [name for name in dict.fromkeys((backend, "gloo")) if name not in torch.collectives]
    if missing:
        found = f"torch was built without {' and '.join(missing)}"
        yield DEVICES.problem("collectives", found, "install a build of torch with it: several ranks need it")
        return
    version = f" {torch.nccl}" if torch.nccl and backend == "nccl" else ""
    yield DEVICES.ok("collectives", library if library == backend else f"{library}{version}, by torch's {backend}")


def check_needed_devices(torch: Torch, needs: Needs) -> Iterator[Check]:
    """Check whether probes of the campaign's cluster can run on this machine's devices."""
    if needs.backend is None or torch.error is not None:
        return
    here = torch.built_for if torch.devices else "cpu"
    found = None
    if needs.backend not in ("cpu", here):
        found = f"its cluster has {needs.backend} devices, this machine {here}"
    elif needs.backend != "cpu" and len(torch.devices) < (needs.devices_per_node or 0):
        found = f"its cluster has {needs.devices_per_node} devices per node, this machine shows {len(torch.devices)}"
    if found is None:
        yield DEVICES.ok("campaign", f"its cluster's {needs.backend} devices are of this machine's kind")
    else:
        make = DEVICES.problem if needs.scheduler is None else DEVICES.note  # a batch system may run probes elsewhere
        yield make("campaign", found, "run this on a node of that cluster, inside a job")


# Limits and clocks


def gather_memory() -> Memory:
    """Return the machine's memory, and the lowest limit of this process's cgroups and of ulimit."""
    machine = psutil.virtual_memory()
    limits = {name: value for name, value in _memory_limits().items() if value < min(NO_LIMIT, machine.total)}
    lowest = min(limits, key=lambda name: limits[name], default=None)
    return Memory(
        total_bytes=machine.total,
        available_bytes=machine.available,
        limit_bytes=limits[lowest] if lowest else None,
        limited_by=lowest,
    )


def _memory_limits() -> dict[str, int]:
    """Return limits in bytes by what sets them: cgroups of this process up to the root, and the address space."""
    found = {}
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        found["ulimit -v"] = soft
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
    return found


def check_memory(memory: Memory) -> Iterator[Check]:
    """Report the memory, with a note where a limit leaves a process less than the machine has."""
    found = f"{memory.total_bytes / GIB:,.1f} GiB, {memory.available_bytes / GIB:,.1f} GiB free"
    if memory.limit_bytes is None:
        yield LIMITS.ok("memory", found)
    else:
        found += f"; at most {memory.limit_bytes / GIB:,.1f} GiB by {memory.limited_by}"
        yield LIMITS.note("memory", found, "request all memory of a node (Slurm: --mem=0) if probes should have it")


def gather_limits() -> Limits:
    """Return the limits of this process, which its children inherit."""

    def finite(limit: int) -> int | None:
        return None if limit == resource.RLIM_INFINITY else limit

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shared = Path("/dev/shm")  # noqa: S108 - read, not written to
    return Limits(
        open_files=finite(soft),
        max_open_files=finite(hard),
        locked_bytes=finite(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        shared_bytes=shutil.disk_usage(shared).total if shared.is_dir() else None,
    )


def check_open_files(limits: Limits) -> Iterator[Check]:
    """Require enough open files for the sockets of many ranks."""
    soft, hard = limits.open_files, limits.max_open_files
    if soft is None or soft >= MIN_OPEN_FILES:
        yield LIMITS.ok("open files", "no limit" if soft is None else f"{soft:,}")
        return
    can_raise = hard is None or hard >= MIN_OPEN_FILES
    remedy = f"ulimit -n {MIN_OPEN_FILES}" if can_raise else "ask the administrator for a higher hard limit (nofile)"
    yield LIMITS.warning("open files", f"{soft:,}: expected {MIN_OPEN_FILES:,} for the sockets of many ranks", remedy)


def check_locked(limits: Limits, *, has_fabric: bool) -> Iterator[Check]:
    """Require lockable memory for network cards that move memory themselves (RDMA)."""
    if limits.locked_bytes is None:
        yield LIMITS.ok("locked memory", "no limit")
        return
    found = f"at most {limits.locked_bytes / 2**20:,.1f} MiB"
    if has_fabric:
        remedy = "ulimit -l unlimited, or ask the administrator (memlock): the network registers its buffers"
        yield LIMITS.warning("locked memory", found, remedy)
    else:
        yield LIMITS.ok("locked memory", f"{found}; nothing here needs more")


def check_shared(limits: Limits, *, has_devices: bool) -> Iterator[Check]:
    """Require room in /dev/shm, through which ranks of a node exchange buffers."""
    size = limits.shared_bytes
    if size is None:
        yield LIMITS.warning(
            "shared memory", "there is no /dev/shm", "mount one: ranks of a node exchange buffers in it"
        )
    elif size < MIN_SHARED_BYTES and has_devices:
        yield LIMITS.warning(
            "shared memory", f"{size / 2**20:,.0f} MiB", "start the container with --shm-size=1g or more"
        )
    else:
        yield LIMITS.ok("shared memory", f"{size / GIB:,.1f} GiB")


def gather_clocks() -> Clocks:
    """Read both clocks over the same moment, and whether the kernel considers the wall clock synchronized."""
    monotonic, wall = time.monotonic(), time.time()
    time.sleep(CLOCK_S)
    return Clocks(monotonic_s=time.monotonic() - monotonic, wall_s=time.time() - wall, synchronized=_is_synchronized())


def _is_synchronized() -> bool | None:
    """Call adjtimex(2) without changing anything; return None where it fails."""
    if sys.platform != "linux":
        return None
    buffer = ctypes.create_string_buffer(512)  # struct timex has 208 bytes, all zero: no mode, so nothing is set
    state: int = ctypes.CDLL(None).adjtimex(buffer)
    return None if state < 0 else state != TIME_ERROR


def check_clocks(clocks: Clocks) -> Iterator[Check]:
    """Check the wall clock, by which timestamps are taken; step times are by the monotonic clock."""
    if abs(clocks.wall_s - clocks.monotonic_s) > DRIFT_S:
        found = f"the wall clock moved {clocks.wall_s:.3f} s while {clocks.monotonic_s:.3f} s passed"
        yield LIMITS.warning(
            "clock", found, "something sets this machine's time: step times are safe, timestamps are not"
        )
    elif clocks.synchronized is False:
        yield LIMITS.note("clock", "not synchronized by NTP", "start chronyd or ntpd, or do not compare timestamps")
    else:
        yield LIMITS.ok("clock", "synchronized" if clocks.synchronized else "steady; synchronization is unknown")
