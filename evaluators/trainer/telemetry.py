"""What a rank records of itself and its device beside the steps: memory, versions, clocks, and what
slowed it down.

Nothing here fails a run: what a device, a driver or a build of torch does not state is None.
"""

import ctypes
import os
import platform
import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from frontrunner.evaluators.trainer import foreign_load

if TYPE_CHECKING:
    from frontrunner.evaluators.trainer.expert_parallel import ExpertLoads

_STATUS = Path("/proc/self/status")
PEAKS = ("peak_memory_bytes", "peak_reserved_bytes", "device_used_bytes")
"""A result's keys of memory, with an entry per rank."""
_NVML = "libnvidia-ml.so.1"
_KFD = Path("/sys/class/kfd/kfd")
_SM_CLOCK, _CORE_TEMPERATURE = 1, 0
_MOST_PROCESSES = 256
_SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "temperature",
    0x40: "temperature",
    0x80: "power brake",
}
"""Bits of nvmlDeviceGetCurrentClocksThrottleReasons that a device under load should not show
(nvml.h).
"""


class Telemetry:
    """Recorder of one rank, made when it is ready to build and has built nothing yet."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._idle_private_bytes = process_bytes().get("RssAnon") if device.type == "cpu" else None
        self._build_peak_bytes: int | None = None
        self._retries_before = 0
        self._readings: list[dict[str, Any]] = []
        self._device_users = [device_processes(device)]
        self._before: foreign_load.Reading | None = None
        self.attention: str | None = None
        self.experts: ExpertLoads | None = None

    def built(self) -> None:
        """Begin the peaks of memory anew, so that they are those of steps."""
        if self._device.type != "cpu":
            module = torch.get_device_module(self._device)
            self._build_peak_bytes = module.max_memory_allocated(self._device)
            module.reset_peak_memory_stats(self._device)

    def watch_processors(self) -> None:
        """Begin to watch what others take of this rank's processors, before a step that is not
        measured.
        """
        self._before = foreign_load.read()

    def warmed_up(self) -> None:
        """Begin to count the allocator's retries, and read the device's sensors right after a
        step.
        """
        self._retries_before = _retries(self._device) or 0
        self._readings.append(device_state(self._device))

    def stepped(self) -> None:
        """Note, between two steps, that one is over."""
        if self.experts is not None:
            self.experts.end_step(self._device)

    def describe(self) -> dict[str, Any]:
        """Return a result's keys about memory, device and versions, of all ranks. Every rank must
        call it.

        On a CPU `peak_memory_bytes` is the peak resident size of the process, and
        `idle_memory_bytes` what of it no recipe changes: private memory before the build, and files
        and shared memory that are mapped at the end. On an accelerator the peak is what torch's
        allocator had handed out since the build, `peak_reserved_bytes` what it held, and
        `device_used_bytes` what the whole device had in use at the end, libraries and other
        processes included.
        """
        after = None if self._before is None else foreign_load.read()
        own: dict[str, Any] = own_memory(self._device)
        own["idle_memory_bytes"] = own["cpus"] = own["allocator_retries"] = None
        if self._idle_private_bytes is not None:
            held = process_bytes()
            own["idle_memory_bytes"] = self._idle_private_bytes + held["RssFile"] + held["RssShmem"]
        if (retries := _retries(self._device)) is not None:
            own["allocator_retries"] = retries - self._retries_before
        own["build_peak_memory_bytes"] = self._build_peak_bytes
        own["allocator_settings"] = None if self._device.type == "cpu" else allocator_settings()
        if hasattr(os, "sched_getaffinity") and self._device.type != "cpu":
            own["cpus"] = cpu_list(os.sched_getaffinity(0))
        self._readings.append(device_state(self._device))
        for key, worst in (
            ("clock_mhz", min),
            ("power_w", max),
            ("temperature_c", max),
            ("slowed_by", max),
        ):
            own[key] = worst(
                (one[key] for one in self._readings if one.get(key) is not None), default=None
            )
        self._device_users.append(device_processes(self._device))
        own["device_processes"] = (
            None if after is None else _others_on_device(self._device_users, after.processes)
        )
        own["load"] = foreign_load.between(self._before, after, os.getppid())
        rows: list[dict[str, Any]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(rows, own)
        several = {key: [row[key] for row in rows] for key in own}
        loads = several.pop("load")
        known: dict[str, Any] = {
            key: ranks if None not in ranks else None for key, ranks in several.items()
        }
        software = describe_software(self._device)
        found = {key: known.pop(key) for key in PEAKS}
        versions = [
            f"{name} {version}"
            for name, version in software["versions"].items()
            if version is not None
        ]
        known |= {"attention": self.attention, "versions": versions} | foreign_load.foreign_load(
            loads
        )
        return (
            found
            | software
            | {"telemetry": known | ({} if self.experts is None else self.experts.describe())}
        )


def own_memory(device: torch.device) -> dict[str, int | None]:
    """Return this rank's `PEAKS`, None where one is not known."""
    if device.type == "cpu":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return dict.fromkeys(PEAKS) | {"peak_memory_bytes": process_bytes().get("VmHWM", peak)}
    module = torch.get_device_module(device)
    free, total = module.mem_get_info(device)
    peaks = module.max_memory_allocated(device), module.max_memory_reserved(device), total - free
    return dict(zip(PEAKS, peaks, strict=True))


def describe_software(device: torch.device) -> dict[str, Any]:
    """Return a result's keys about the device and the versions."""
    name = (
        platform.machine()
        if device.type == "cpu"
        else torch.get_device_module(device).get_device_name(device)
    )
    versions = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
    }
    if device.type == "cuda":
        versions |= {
            "hip": torch.version.hip,
            "cudnn": None,
            "driver": device_state(device).get("driver"),
        }
        with suppress(Exception):  # a build without the library
            versions["cudnn"] = str(torch.backends.cudnn.version() or "") or None  # type: ignore[no-untyped-call]
        with suppress(Exception):
            library = "nccl" if torch.version.hip is None else "rccl"
            version: Any = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
            versions[library] = ".".join(map(str, version))
    return {"device_name": name, "versions": versions}


def device_state(device: torch.device) -> dict[str, Any]:
    """Return the clock, power, temperature and slowdown of an accelerator as it is now, of what its
    driver states.
    """
    if device.type != "cuda":
        return {}
    with suppress(Exception):
        if torch.version.hip is None:
            return _nvml_state(pci_address(device) or "")
    found: dict[str, Any] = {}
    for key, read in _AMD_SENSORS.items():
        with suppress(Exception):  # amdsmi is optional
            found[key] = float(read(device)) or None
    return found


_AMD_SENSORS: dict[str, Callable[[Any], float]] = {
    "clock_mhz": torch.cuda.clock_rate,
    "power_w": torch.cuda.power_draw,
    "temperature_c": torch.cuda.temperature,
}


def _nvml_device(address: str) -> tuple[Any, Any] | None:
    """Return the driver's own library and its handle of a device: torch's nvidia-ml-py need not be
    installed.
    """
    library, handle = ctypes.CDLL(_NVML), ctypes.c_void_p()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByPciBusId_v2(
        address.encode(), ctypes.byref(handle)
    ):
        return None
    return library, handle


def _nvml_state(address: str) -> dict[str, Any]:
    if (found := _nvml_device(address)) is None:
        return {}
    library, handle = found

    def read(kind: Any, name: str, *arguments: int) -> Any:
        value = kind()
        return None if library[name](handle, *arguments, ctypes.byref(value)) else value.value

    driver = ctypes.create_string_buffer(96)
    power_mw = read(ctypes.c_uint, "nvmlDeviceGetPowerUsage")
    bits = read(ctypes.c_ulonglong, "nvmlDeviceGetCurrentClocksThrottleReasons")
    slowed_by = (
        None
        if bits is None
        else ", ".join(dict.fromkeys(_SLOWDOWNS[bit] for bit in _SLOWDOWNS if bits & bit))
    )
    return {
        "clock_mhz": read(ctypes.c_uint, "nvmlDeviceGetClockInfo", _SM_CLOCK),
        "power_w": None if power_mw is None else power_mw / 1000,
        "temperature_c": read(ctypes.c_uint, "nvmlDeviceGetTemperature", _CORE_TEMPERATURE),
        "slowed_by": slowed_by,
        "driver": None
        if library.nvmlSystemGetDriverVersion(driver, len(driver))
        else driver.value.decode(),
    }


def device_processes(device: torch.device) -> dict[int, int] | None:
    """Return the processes that compute on an accelerator by their ids, with their parts of it;
    None where unknown.
    """
    if device.type == "cuda":
        with suppress(Exception):
            address = pci_address(device) or ""
            return (
                _nvml_processes(address) if torch.version.hip is None else _kfd_processes(address)
            )
    return None


class _ProcessInfo(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def _nvml_processes(address: str) -> dict[int, int] | None:
    if (found := _nvml_device(address)) is None:
        return None
    library, handle = found
    count = ctypes.c_uint(_MOST_PROCESSES)
    infos = (_ProcessInfo * _MOST_PROCESSES)()
    if library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), infos):
        return None
    return {info.pid: info.gpu_instance for info in infos[: count.value]}


def _kfd_processes(address: str) -> dict[int, int]:
    """Read the kernel's list of ROCm's processes; those without memory on a device do not use
    it.
    """
    for node in (_KFD / "topology" / "nodes").iterdir():
        lines = (
            line.split() for line in (node / "properties").read_text(encoding="ascii").splitlines()
        )
        stated = {name: int(value) for name, value in lines}
        place, domain = stated["location_id"], stated.get("domain", 0)
        if address == f"{domain:04x}:{place >> 8:02x}:{place >> 3 & 31:02x}.0":
            device = int((node / "gpu_id").read_text(encoding="ascii"))
            files = (_KFD / "proc").glob(f"*/vram_{device}")
            return {
                int(file.parent.name): 0 for file in files if int(file.read_text(encoding="ascii"))
            }
    raise ValueError(f"no device of KFD at {address}")


def _others_on_device(
    readings: Sequence[Mapping[int, int] | None], processes: Mapping[int, foreign_load.Process]
) -> str | None:
    """Return the processes of others that were on this rank's part of its device; None where that
    is not known.

    A driver that does not list this rank counts processes in another namespace, as at times in
    containers.
    """
    last, known = readings[-1], [one for one in readings if one is not None]
    if last is None or (part := last.get(os.getpid())) is None:
        return None
    found = {pid for one in known for pid in one if one[pid] == part} - foreign_load.ours(
        processes, os.getppid()
    )
    return foreign_load.named(sorted(found), processes)


def pci_address(device: torch.device) -> str | None:
    """Return where an accelerator is on the PCI bus, as sysfs names it; None where torch does not
    state it.
    """
    found = torch.get_device_module(device).get_device_properties(device)
    parts = [getattr(found, f"pci_{part}_id", -1) for part in ("domain", "bus", "device")]
    return None if min(parts) < 0 else f"{parts[0]:04x}:{parts[1]:02x}:{parts[2]:02x}.0"


def cpu_list(cpus: set[int]) -> str:
    """Return processors as the kernel writes them: `0-11,96-107`."""
    ordered, text = sorted(cpus), ""
    for place, cpu in enumerate(ordered):
        if place == 0 or ordered[place - 1] != cpu - 1:
            text += f",{cpu}"
        elif place + 1 == len(ordered) or ordered[place + 1] != cpu + 1:
            text += f"-{cpu}"
    return text[1:]


def _retries(device: torch.device) -> int | None:
    if device.type == "cpu":
        return None
    return int(torch.get_device_module(device).memory_stats(device).get("num_alloc_retries", 0))


def allocator_settings() -> str | None:
    """Return the settings of torch's allocator that are in force; None where torch does not state
    them.
    """
    read = getattr(torch._C, "_accelerator_getAllocatorSettings", None)  # not in torch 2.11
    return None if read is None else read()


def process_bytes() -> dict[str, int]:
    """Return the sizes in /proc/self/status by their names there; empty where there is no such
    file.
    """
    text = _STATUS.read_text(encoding="ascii") if _STATUS.exists() else ""
    lines = (line.split() for line in text.splitlines() if line.endswith(" kB"))
    return {name.rstrip(":"): int(kib) * 1024 for name, kib, _ in lines}
