"""One device for a benchmark: its clock, its memory, and what it is. Needs nothing but torch and the trainer."""

from __future__ import annotations

import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

BF16_PEAKS = (
    # Words of the device's name, words it must not have, dense bf16 TFLOP/s (fp16 the same), source.
    (("h100",), ("pcie", "nvl"), 989.4, "NVIDIA H100 datasheet, SXM5"),
    (("h100", "pcie"), (), 756.5, "NVIDIA H100 datasheet, PCIe"),
    (("h200",), ("nvl",), 989.4, "NVIDIA H200 datasheet, SXM"),
    (("a100",), (), 312.0, "NVIDIA A100 datasheet"),
    (("mi250x",), (), 191.5, "AMD Instinct MI250X datasheet, halved: one of its two dies"),
    (("mi300x",), (), 1307.4, "AMD Instinct MI300X datasheet"),
)


class Device:
    """A device's clock and memory; on a CPU there is nothing to wait for and no allocator to ask."""

    def __init__(self, kind: str) -> None:
        self.device = torch.device(kind) if kind == "cpu" else torch.device(kind, 0)
        self._module = None if kind == "cpu" else torch.get_device_module(self.device)
        if self._module is not None:
            torch.accelerator.set_device_index(0)

    @property
    def name(self) -> str:
        return platform.machine() if self._module is None else str(self._module.get_device_name(self.device))

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

    def peak(self) -> dict[str, Any]:
        """Since `forget_peak`, as the trainer tells it; None on a CPU, where only the process's own peak is known."""
        from frontrunner.evaluators.trainer.telemetry import own_memory

        names = {"peak_memory_bytes": "allocated_bytes", "peak_reserved_bytes": "reserved_bytes"}
        found = {names.get(key, key): size for key, size in own_memory(self.device).items()}
        return dict.fromkeys(found) if self._module is None else found

    def retries(self) -> int:
        """How often the allocator had to give memory back before it could go on: times are too long then."""
        return 0 if self._module is None else int(self._module.memory_stats(self.device).get("num_alloc_retries", 0))


def matmul_tflops(device: Device) -> float:
    """The best rate of a square bf16 matrix product: what the device reaches at most in practice."""
    size, repeats = (256, 1) if device.device.type == "cpu" else (8192, 10)
    left, right = (torch.randn(size, size, device=device.device, dtype=torch.bfloat16) for _ in range(2))

    def work() -> None:
        for _ in range(repeats):
            torch.mm(left, right)

    work()
    return max(2 * size**3 * repeats / device.seconds(work) for _ in range(5)) / 1e12


def describe(device: Device) -> dict[str, Any]:
    """What was measured on, and the peak that MFU is taken over."""
    measured, words = matmul_tflops(device), device.name.lower()
    known = [row for row in BF16_PEAKS if all(w in words for w in row[0]) and not any(w in words for w in row[1])]
    peak, source = known[0][2:] if known else (measured, "not a known device: the best bf16 matrix product measured")
    return {
        "name": device.name,
        "type": device.device.type,
        "memory_bytes": device.total_bytes(),
        "bf16_peak_tflops": peak,
        "bf16_peak_source": source,
        "bf16_matmul_tflops_measured": measured,
        "driver": driver_version(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
    }


def driver_version() -> str | None:
    if shutil.which("nvidia-smi") is None:
        module = Path("/sys/module/amdgpu/version")
        return module.read_text(encoding="ascii").strip() if module.exists() else None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip() or None
