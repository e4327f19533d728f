"""This machine as a cluster table: its accelerators if it has any, else its processors."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from frontrunner.spaces.cluster import GIB
from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.presets import known_device

ACCELERATOR_NODES = ("/dev/nvidia0", "/dev/kfd", "/dev/dri", "/dev/dxg")
"""Device files whose absence shows, without importing torch, that there is no accelerator."""
CPU_MEMORY_SHARE = 0.8
"""Share of the memory that is free now that the ranks of a probe may use together."""
MIN_MEMORY_GIB = 0.01

TORCH_TIMEOUT_S = 180.0
"""Assumed: importing torch from a cold network file system, and a driver that wakes its devices."""
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
names = ("gloo", "nccl", "mpi", "xccl")
words["collectives"] = [name for name in names if getattr(dist, f"is_{name}_available", lambda: False)()]
print(json.dumps(words))
"""  # noqa: E501


@dataclass(frozen=True, kw_only=True)
class Torch:
    """What `TORCH_PROGRAM` prints; `error` is why torch could not be imported, `device_error` why
    it sees no device.
    """

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
        return next(
            ((backend, version) for backend, version in found.items() if version), ("cpu", "")
        )

    @property
    def backend(self) -> str:
        """The backend of the devices that it sees."""
        return self.platform[0] if self.devices else "cpu"


def detect(backend: object = None) -> dict[str, Any]:
    """Return the fields of [cluster] for this machine as one node, without unknown rates; on CPU a
    device is a core.

    With the `backend` "cpu" they are those of its processors, whatever else it has.
    """
    if backend == "cpu" or not any(Path(node).exists() for node in ACCELERATOR_NODES):
        return processors()
    torch = torch_facts()
    if not torch.devices:
        return processors()
    first = torch.devices[0]
    known = known_device(first["name"]) or {"device": first["name"], "backend": torch.backend}
    return known | {
        "name": "this-machine",
        "nodes": 1,
        "devices_per_node": len(torch.devices),
        "memory_gib_per_device": round(first["memory_bytes"] / GIB, 1),
        "source": f"detected: {first['name']}",
    }


@cache
def torch_facts() -> Torch:
    """Return what torch is built for and sees, from a process of its own, so that this one never
    holds a device.
    """
    command = [sys.executable, "-P", "-c", TORCH_PROGRAM]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TORCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Torch(error=f"importing it took more than {TORCH_TIMEOUT_S:g} s")
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        last = done.stderr.strip().splitlines()
        return Torch(error=last[-1] if last else f"it ended with status {done.returncode}")
    return Torch(**json.loads(lines[-1]))


def processors() -> dict[str, Any]:
    """Return the fields of [cluster] for this machine's processors: see `detect`."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    peak = peak_tflops(1, _clock_mhz(), cpu_fields(_cpuinfo()))
    return {
        "name": "this-machine",
        "device": cpu_name(),
        "backend": "cpu",
        "nodes": 1,
        "devices_per_node": cores,
        "memory_gib_per_device": round(
            psutil.virtual_memory().available * CPU_MEMORY_SHARE / cores / GIB, 2
        ),
        "source": "detected",
    } | ({"peak_tflops": {"fp32": peak}} if peak else {})


def share_processors(table: dict[str, Any], devices_per_node: int) -> dict[str, Any]:
    """Return a detected CPU table for another number of devices; raises `InvalidInput` below 0.01
    GiB each.
    """
    factor = table["devices_per_node"] / devices_per_node
    memory_gib = table["memory_gib_per_device"] * factor
    if memory_gib < MIN_MEMORY_GIB:
        most = int(table["devices_per_node"] * table["memory_gib_per_device"] / MIN_MEMORY_GIB)
        expected = (
            f"at most {most}, so that each has {MIN_MEMORY_GIB} GiB of this machine's free memory"
        )
        raise bad_value("cluster.devices_per_node", devices_per_node, expected)
    shared = table | {
        "devices_per_node": devices_per_node,
        "memory_gib_per_device": round(memory_gib, 2),
    }
    if "peak_tflops" in table:
        shared["peak_tflops"] = {
            name: round(rate * factor, 4) for name, rate in table["peak_tflops"].items()
        }
    return shared


def cpu_name() -> str:
    """Return the processor's model name, or the architecture where that is unknown."""
    return cpu_fields(_cpuinfo()).get("model name") or platform.processor() or platform.machine()


def peak_tflops(cores: int, clock_mhz: float, fields: dict[str, str]) -> float | None:
    """Return cores * clock * single-precision operations per cycle, in TFLOP/s, from the entries of
    /proc/cpuinfo.

    64 per cycle with AVX-512, 32 with AVX2 and FMA, 16 for other x86: an upper bound. None where it
    is unknown.
    """
    if not clock_mhz > 0 or "flags" not in fields:
        return None
    flags = set(fields["flags"].split())
    per_cycle = 64 if "avx512f" in flags else 32 if {"avx2", "fma"} <= flags else 16
    return round(cores * clock_mhz * 1e6 * per_cycle / 1e12, 4)


def cpu_fields(cpuinfo: str) -> dict[str, str]:
    """Return the first processor's entries of a /proc/cpuinfo: the last of equal keys, no lines
    without a colon.
    """
    first = cpuinfo.strip().split("\n\n", 1)[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _clock_mhz() -> float:
    try:
        clock = psutil.cpu_freq()
    except (NotImplementedError, OSError):  # what psutil raises where the kernel has no such file
        return 0.0
    return max(clock.max, clock.current) if clock else 0.0


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
