"""A rank's memory: holding it to a limit, and its peak."""

import resource
from dataclasses import dataclass
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """One rank's peak. `reserved_bytes` and `device_used_bytes` are None on a CPU.

    On a CPU `allocated_bytes` is the peak resident size of the process; on an accelerator it is what torch's
    allocator had handed out, `reserved_bytes` what it held, and `device_used_bytes` what the whole device had in use
    at the end, libraries and other processes included.
    """

    allocated_bytes: int
    reserved_bytes: int | None
    device_used_bytes: int | None


def limit_memory(device: torch.device, limit_bytes: int) -> None:
    """Make allocations fail that would take this rank above `limit_bytes`.

    On a CPU the kernel enforces it (RLIMIT_DATA bounds the process's private writable memory, and what else it
    has resident is taken off), so that resident size never passes the limit; on CUDA torch's allocator does.

    Raises:
        MemoryError: the process already uses more than the limit.
        ValueError: the device is neither a CPU nor CUDA.
    """
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total), device)
        return
    if device.type != "cpu":
        raise ValueError(f"a memory limit cannot be enforced on device {device.type!r}")
    status = _read_status()
    shared = status["RssFile"] + status["RssShmem"]
    allowed = limit_bytes - shared
    if allowed < status["VmData"]:
        raise MemoryError(
            f"out of memory: the limit is {_gib(limit_bytes)} a rank, but this rank uses "
            f"{_gib(status['VmData'] + shared)} before it has built anything"
        )
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))


def as_memory_error(error: Exception) -> Exception:
    """Return a MemoryError for a thread that could not start, where a limit is in force; any other error as it is.

    A thread's stack counts against the limit, and the kernel then reports "try again", which names no memory.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit == resource.RLIM_INFINITY or "Resource temporarily unavailable" not in str(error):
        return error
    return MemoryError(f"out of memory: a thread's stack does not fit into the {_gib(limit)} of data allowed ({error})")


def peak_memory(device: torch.device) -> PeakMemory:
    """Return this rank's peak so far."""
    if device.type == "cpu":
        return PeakMemory(allocated_bytes=_peak_resident_bytes(), reserved_bytes=None, device_used_bytes=None)
    module = torch.get_device_module(device)
    free, total = module.mem_get_info(device)
    return PeakMemory(
        allocated_bytes=module.max_memory_allocated(device),
        reserved_bytes=module.max_memory_reserved(device),
        device_used_bytes=total - free,
    )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.3g} GiB"


def _peak_resident_bytes() -> int:
    if _STATUS.exists():
        return _read_status()["VmHWM"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _read_status() -> dict[str, int]:
    """Return the sizes in /proc/self/status, in bytes."""
    sizes = {}
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            sizes[name] = int(value.split()[0]) * 1024
    return sizes
