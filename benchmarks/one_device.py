"""One device for a benchmark: its clock, its memory, and what it is. Needs nothing but torch and
the trainer.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from typing import Any

import torch

MACHINE_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Device:
    """A device's clock and memory; on a CPU there is nothing to wait for and no allocator to
    ask.
    """

    def __init__(self, kind: str) -> None:
        self.device = torch.device(kind) if kind == "cpu" else torch.device(kind, 0)
        self._module = None if kind == "cpu" else torch.get_device_module(self.device)
        if self._module is not None:
            torch.accelerator.set_device_index(0)

    @property
    def name(self) -> str:
        return (
            platform.machine()
            if self._module is None
            else str(self._module.get_device_name(self.device))
        )

    def synchronize(self) -> None:
        if self._module is not None:
            self._module.synchronize(self.device)

    def seconds(self, work: Callable[[], Any]) -> float:
        """How long `work` takes, the device's part included."""
        self.synchronize()
        start = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - start

    def allocated_bytes(self) -> int:
        return 0 if self._module is None else int(self._module.memory_allocated(self.device))

    def total_bytes(self) -> int | None:
        return None if self._module is None else int(self._module.mem_get_info(self.device)[1])

    def forget_peak(self, *, empty_cache: bool = False) -> None:
        if self._module is None:
            return
        if empty_cache:
            self._module.empty_cache()
        self._module.reset_peak_memory_stats(self.device)

    def peak_bytes(self) -> int | None:
        """The most that torch's allocator had handed out since `forget_peak`; None on a CPU, which
        has none.
        """
        return None if self._module is None else int(self._module.max_memory_allocated(self.device))

    def retries(self) -> int:
        """How often the allocator had to give memory back before it could go on: times are too long
        then.
        """
        return (
            0
            if self._module is None
            else int(self._module.memory_stats(self.device).get("num_alloc_retries", 0))
        )


def matmul_tflops(device: Device) -> float:
    """The best rate of a square bf16 matrix product: what the device reaches at most in
    practice.
    """
    size, repeats = (256, 1) if device.device.type == "cpu" else (8192, 10)
    left, right = (
        torch.randn(size, size, device=device.device, dtype=torch.bfloat16) for _ in range(2)
    )

    def work() -> None:
        for _ in range(repeats):
            torch.mm(left, right)

    work()
    return max(2 * size**3 * repeats / device.seconds(work) for _ in range(5)) / 1e12


def describe(device: Device) -> dict[str, Any]:
    """What was measured on; `cluster` is the device as a [cluster] of a campaign file, for MFU and
    the plan.

    A device without a preset has its best matrix product measured here for its peak.
    """
    from frontrunner.evaluators.trainer.telemetry import describe_software
    from frontrunner.spaces.presets import known_device

    measured, memory_bytes = matmul_tflops(device), device.total_bytes() or MACHINE_BYTES
    found = {
        "device": device.name,
        "backend": {"cuda": "rocm" if torch.version.hip else "cuda"}.get(
            device.device.type, device.device.type
        ),
        "peak_tflops": {"bf16": measured},
        "source": "no preset of this device: the best bf16 matrix product measured here",
    }
    cluster = known_device(device.name) or found
    return {
        "name": device.name,
        "type": device.device.type,
        "cluster": cluster
        | {
            "name": "this device",
            "nodes": 1,
            "devices_per_node": 1,
            "memory_gib_per_device": memory_bytes / 2**30,
        },
        "bf16_matmul_tflops_measured": measured,
        **describe_software(device.device),
    }
