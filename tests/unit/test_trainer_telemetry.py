"""What a rank records of its device, by stand-ins of the driver's library and of torch's module for
the device.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from frontrunner.evaluators.trainer import telemetry
from frontrunner.evaluators.trainer.parts.attention_kernels import attention_kernel, attention_order
from frontrunner.results.outcome import Telemetry
from support.trainer_runs import small_job, small_model, small_recipe

NVML = r"""
#include <string.h>
typedef void *device;
static int made;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, device *out) {
    *out = &made;
    return strcmp(address, "0000:3b:00.0") ? 6 : 0;
}
int nvmlDeviceGetClockInfo(device d, unsigned kind, unsigned *out) { *out = 1980; return d != &made || kind != 1; }
int nvmlDeviceGetPowerUsage(device d, unsigned *out) { *out = 651500; return d != &made; }
int nvmlDeviceGetTemperature(device d, unsigned sensor, unsigned *out) { *out = 87; return d != &made || sensor; }
int nvmlDeviceGetCurrentClocksThrottleReasons(device d, unsigned long long *out) { *out = BITS; return d != &made; }
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } process;
int nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *count, process *out) {
    process found[] = {{4711, 1 << 20, 0, 0}, {4712, 1 << 30, 3, 1}};
    if (d != &made || *count < 2) return 7;
    memcpy(out, found, sizeof found);
    *count = 2;
    return 0;
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) { strncpy(out, "580.82.07", size); return 0; }
"""  # noqa: E501
"""With nvml.h's types and codes: the wrong argument is an error."""
STATE = {"clock_mhz": 1980, "power_w": 651.5, "temperature_c": 87, "driver": "580.82.07"}


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Build the library with these reasons for a lower clock."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("needs a C compiler")

    def build(bits: int) -> None:
        (tmp_path / "nvml.c").write_text(NVML)
        path = tmp_path / f"nvml{bits}.so"
        subprocess.run(
            [compiler, "-shared", "-fPIC", f"-DBITS={bits}", "-o", path, tmp_path / "nvml.c"],
            check=True,
        )
        monkeypatch.setattr(telemetry, "_NVML", str(path))

    return build


@pytest.fixture
def one_rank(tmp_path: Path) -> Any:
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("bits", "slowed_by"),
    [
        (0, ""),
        (0x01 | 0x04, ""),
        (0x40, "temperature"),
        (0x08 | 0x80, "hardware slowdown, power brake"),
    ],
)
def test_a_device_s_state_is_read_from_the_driver_s_library(
    nvml: Callable[[int], None], bits: int, slowed_by: str
) -> None:
    """An idle device and one at its power limit are not slowed down by a fault."""
    nvml(bits)
    assert telemetry._nvml_state("0000:3b:00.0") == STATE | {"slowed_by": slowed_by}
    assert telemetry._nvml_state("0000:86:00.0") == {}, "not of another device"
    assert telemetry._nvml_processes("0000:3b:00.0") == {
        4711: 0,
        4712: 3,
    }, "with their parts of a divided device"
    assert telemetry._nvml_processes("0000:86:00.0") is None


class Accelerator:
    """As torch.cuda: what the allocator counts, and where the device is."""

    def __init__(self) -> None:
        self.peak_bytes, self.retries = 900, 2

    def max_memory_allocated(self, device: torch.device) -> int:
        return self.peak_bytes

    def max_memory_reserved(self, device: torch.device) -> int:
        return 1000

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return 3000, 5000

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.peak_bytes = 0

    def memory_stats(self, device: torch.device) -> dict[str, int]:
        return {"num_alloc_retries": self.retries}

    def get_device_name(self, device: torch.device) -> str:
        return "NVIDIA H100 80GB HBM3"

    def get_device_properties(self, device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)


def test_peaks_and_retries_are_those_of_steps(
    nvml: Callable[[int], None], one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml(0x20)
    module = Accelerator()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(telemetry, "allocator_settings", lambda: "expandable_segments:True")
    recorder = telemetry.Telemetry(torch.device("cuda", 0))
    recorder.built()
    module.peak_bytes, module.retries = max(module.peak_bytes, 700), 5
    recorder.warmed_up()
    module.retries = 8
    found = recorder.describe()
    told = {key: found[key] for key in telemetry.PEAKS}
    assert told == {
        "peak_memory_bytes": [700],
        "peak_reserved_bytes": [1000],
        "device_used_bytes": [2000],
    }
    recorded = found["telemetry"]
    assert (recorded["build_peak_memory_bytes"], recorded["allocator_retries"]) == ([900], [3])
    assert recorded["allocator_settings"] == ["expandable_segments:True"]
    assert (recorded["slowed_by"], recorded["clock_mhz"], recorded["power_w"]) == (
        ["temperature"],
        [1980],
        [651.5],
    )
    assert "driver 580.82.07" in recorded["versions"]
    assert "cudnn None" not in recorded["versions"]


def test_a_cpu_s_peak_is_the_largest_size_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t900 kB\nVmRSS:\t300 kB\n")
    monkeypatch.setattr(telemetry, "_STATUS", status)
    assert telemetry.own_memory(torch.device("cpu"))["peak_memory_bytes"] == 900 * 1024


def test_a_device_that_states_nothing_fails_no_probe(
    one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Accelerator()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(telemetry, "_NVML", "libnone.so.1")
    recorder = telemetry.Telemetry(torch.device("cuda", 0))
    recorder.warmed_up()
    recorded = recorder.describe()["telemetry"]
    assert {recorded[key] for key in ("clock_mhz", "power_w", "temperature_c", "slowed_by")} == {
        None
    }


def test_what_speaks_against_a_measurement_is_put_in_words() -> None:
    assert Telemetry().doubts == ()
    assert (
        Telemetry(allocator_retries=(0, 0), slowed_by=("", ""), clock_mhz=(1980.0, 1900.0)).doubts
        == ()
    )
    assert Telemetry(
        allocator_retries=(1, 2), slowed_by=("", "power brake"), clock_mhz=(1980.0, 1980.0, 1200.0)
    ).doubts == (
        "memory ran short while steps were measured (allocator retries: 3)",
        "rank 1's device was slowed down (power brake)",
        "rank 2's clock was 1200 MHz, the ranks' median 1980",
    )


@pytest.mark.parametrize(
    ("cpus", "text"), [({0}, "0"), ({0, 1, 2, 8}, "0-2,8"), ({3, 5, 6}, "3,5-6"), (set(), "")]
)
def test_processors_are_written_as_the_kernel_does(cpus: set[int], text: str) -> None:
    assert telemetry.cpu_list(cpus) == text


@pytest.mark.parametrize(
    ("capability", "cudnn", "first"),
    [((9, 0), 91900, 3), ((10, 0), 91500, 3), ((9, 0), 91400, 1), ((8, 0), 91900, 1)],
)
def test_the_kernels_of_attention_are_tried_in_a_stated_order(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], cudnn: int, first: int
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: cudnn)
    before = torch._C._get_sdp_priority_order()
    with attention_order(torch.device("cuda", 0)):
        order = torch._C._get_sdp_priority_order()
        assert (order[0], order.index(0)) == (first, 3), "math is the last of four"
    assert torch._C._get_sdp_priority_order() == before
    with attention_order(torch.device("cpu")):
        assert torch._C._get_sdp_priority_order() == before


def test_the_kernel_that_attention_takes_is_told_by_torch(tmp_path: Path) -> None:
    job = small_job(tmp_path / "run", recipe=small_recipe(tensor_parallel=2))
    assert attention_kernel(job, torch.device("cpu")) == "flash_attention"
    job = small_job(tmp_path / "run", model=small_model(attention="math"))
    assert attention_kernel(job, torch.device("cpu")) == "math"
