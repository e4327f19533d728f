"""What a rank records of itself and its device beside the steps: memory and versions."""

import platform
import resource
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_STATUS = Path("/proc/self/status")
PEAKS = ("peak_memory_bytes", "peak_reserved_bytes", "device_used_bytes")
"""A result's keys of memory, with an entry per rank."""


class Telemetry:
    """Recorder of one rank, made when it is ready to build and has built nothing yet."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._idle_private_bytes = process_bytes().get("RssAnon") if device.type == "cpu" else None

    def describe(self) -> dict[str, Any]:
        """Return a result's keys about memory, device and versions, of all ranks. Every rank must call it.

        On a CPU `peak_memory_bytes` is the peak resident size of the process, and `idle_memory_bytes` what of it no
        recipe changes: private memory before the build, and files and shared memory that are mapped at the end. On an
        accelerator the peak is what torch's allocator had handed out, `peak_reserved_bytes` what it held, and
        `device_used_bytes` what the whole device had in use at the end, libraries and other processes included.
        """
        own: dict[str, Any] = own_memory(self._device)
        if self._idle_private_bytes is not None:
            held = process_bytes()
            own["idle_memory_bytes"] = self._idle_private_bytes + held["RssFile"] + held["RssShmem"]
        rows: list[dict[str, Any]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(rows, own)
        known = {key: [row[key] for row in rows] if own[key] is not None else None for key in own}
        found = {key: known.pop(key) for key in PEAKS}
        return found | describe_software(self._device) | {"telemetry": known}


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
    name = platform.machine() if device.type == "cpu" else torch.get_device_module(device).get_device_name(device)
    versions = {"python": platform.python_version(), "torch": str(torch.__version__), "cuda": torch.version.cuda}
    return {"device_name": name, "versions": versions}


def process_bytes() -> dict[str, int]:
    """Return the sizes in /proc/self/status by their names there; empty where there is no such file."""
    text = _STATUS.read_text(encoding="ascii") if _STATUS.exists() else ""
    lines = (line.split() for line in text.splitlines() if line.endswith(" kB"))
    return {name.rstrip(":"): int(kib) * 1024 for name, kib, _ in lines}
