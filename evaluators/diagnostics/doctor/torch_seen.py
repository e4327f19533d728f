"""What torch is built for and what it sees, asked in a process of its own, so that this one never holds a device."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

LONGEST_S = 180.0
"""Assumed: importing torch from a cold network file system, and a driver that wakes its devices."""

ASK = """
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
class Device:
    """One device as torch names it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class TorchSeen:
    """Torch's version, the platform that it is built for with that one's version, and what it sees.

    `built_for` is cpu, cuda, rocm or xpu. `error` is why torch could not be asked, `device_error` why it sees nothing.
    """

    version: str
    built_for: str
    platform_version: str | None
    devices: tuple[Device, ...]
    device_error: str | None
    collectives: tuple[str, ...]
    nccl: str | None
    error: str | None


def failed(why: str) -> TorchSeen:
    """What is known of a torch that does not answer."""
    return TorchSeen(
        version="", built_for="cpu", platform_version=None, devices=(), device_error=None, collectives=(), nccl=None,
        error=why,
    )  # fmt: skip


@cache
def ask_torch() -> TorchSeen:
    """Torch's answers; asked once, since it takes seconds."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", ASK], capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return failed(f"importing it took more than {LONGEST_S:g} s")
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        last = done.stderr.strip().splitlines()
        return failed(last[-1] if last else f"it ended with status {done.returncode}")
    return read_answer(json.loads(lines[-1]))


def read_answer(words: Mapping[str, object]) -> TorchSeen:
    """The answer of `ASK` as a value."""
    platforms = {"xpu": words["xpu"], "rocm": words["hip"], "cuda": words["cuda"]}
    built_for = next((name for name, version in platforms.items() if version), "cpu")
    devices, collectives = words["devices"], words["collectives"]
    version = platforms.get(built_for)
    return TorchSeen(
        version=str(words["version"]),
        built_for=built_for,
        platform_version=str(version) if version else None,
        devices=tuple(Device(**each) for each in devices) if isinstance(devices, list) else (),
        device_error=str(words["device_error"]) if words["device_error"] else None,
        collectives=tuple(map(str, collectives)) if isinstance(collectives, list) else (),
        nccl=str(words["nccl"]) if words["nccl"] else None,
        error=None,
    )
