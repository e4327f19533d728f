"""Accelerators: those that the system shows, their drivers, torch's build for them, and the collective library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from frontrunner.evaluators.cluster.environment import COLLECTIVES
from frontrunner.evaluators.diagnostics.doctor.checks import Check, Status, Titled, examination
from frontrunner.evaluators.diagnostics.doctor.torch_seen import TorchSeen, ask_torch
from frontrunner.evaluators.diagnostics.doctor.wanted import Wanted
from frontrunner.evaluators.probe.this_machine import cpu_name, processors

SECTION = "devices"
GIB = 2**30
DEVICE_FILES = {"cuda": ("/dev/nvidia[0-9]*",), "rocm": ("/dev/kfd",), "xpu": ("/dev/dri/renderD*",)}
"""Files by which the system shows accelerators. A render node alone may be any graphics card: see `_shown`."""
DRIVERS = {
    "cuda": ("/proc/driver/nvidia/version",),
    "rocm": ("/sys/module/amdgpu/version",),
    "xpu": ("/sys/module/i915/version", "/sys/module/xe/version"),
}
MAKERS = {"cuda": "NVIDIA", "rocm": "AMD", "xpu": "Intel"}
WHEELS = {"cuda": "a CUDA", "rocm": "a ROCm", "xpu": "an XPU"}
INTEL = "0x8086"


@dataclass(frozen=True, kw_only=True)
class System:
    """Accelerators that the system shows, by backend (None: none), and the first line of their driver's version."""

    backend: str | None
    driver: str | None


def device_checks(wanted: Wanted) -> list[Titled]:
    """The examinations of this file."""

    def look() -> tuple[TorchSeen, System]:
        return ask_torch(), gather_system()

    return [
        examination(SECTION, "torch", look, judge_torch),
        examination(SECTION, "devices", look, judge_devices),
        examination(SECTION, "driver", gather_system, judge_driver),
        examination(SECTION, "collectives", ask_torch, judge_collectives),
        examination(SECTION, "campaign", ask_torch, lambda torch: judge_wanted(torch, wanted)),
    ]


def gather_system(root: Path = Path("/")) -> System:
    """The device files and driver versions under `root`."""
    backend = next((name for name in DEVICE_FILES if _shown(name, root)), None)
    lines = (root / path.lstrip("/") for path in DRIVERS.get(backend or "", ()))
    versions = [path.read_text(encoding="utf-8").split("\n", maxsplit=1)[0].strip() for path in lines if path.is_file()]
    return System(backend=backend, driver=next(iter(versions), None))


def _shown(backend: str, root: Path) -> bool:
    """Whether the system shows such devices; render nodes count as Intel's where a card says so."""
    files = [path for pattern in DEVICE_FILES[backend] for path in root.glob(pattern.lstrip("/"))]
    if backend != "xpu" or not files:
        return bool(files)
    makers = (path / "device" / "vendor" for path in root.glob("sys/class/drm/renderD*"))
    return any(path.read_text(encoding="utf-8").strip() == INTEL for path in makers if path.is_file())


def judge_torch(seen: tuple[TorchSeen, System]) -> Iterable[Check]:
    """Torch's build, against the devices that the system shows."""
    torch, system = seen
    if torch.error is not None:
        remedy = "run: python -c 'import torch', and install torch anew if it fails"
        yield Check(section=SECTION, name="torch", status=Status.PROBLEM, found=torch.error, remedy=remedy)
        return
    build = f"{torch.version}, built for {torch.built_for}" + (
        f" {torch.platform_version}" if torch.platform_version else ""
    )
    if system.backend is not None and system.backend != torch.built_for and not torch.devices:
        maker, wheel = MAKERS[system.backend], WHEELS[system.backend]
        found = f"{build}: it cannot use the {maker} devices of this machine"
        remedy = f"install {wheel} build of torch: https://pytorch.org/get-started/locally/"
        yield Check(section=SECTION, name="torch", status=Status.PROBLEM, found=found, remedy=remedy)
    else:
        yield Check(section=SECTION, name="torch", status=Status.OK, found=build)


def judge_devices(seen: tuple[TorchSeen, System]) -> Iterable[Check]:
    """What torch sees; on a machine without accelerators its processors, as a note."""
    torch, system = seen
    if torch.devices:
        told = Counter(f"{device.name}, {device.memory_bytes / GIB:.1f} GiB" for device in torch.devices)
        found = "; ".join(f"{count} x {name}" for name, count in told.items())
        status, remedy = Status.OK, None
        if len(told) > 1:
            status, remedy = Status.WARNING, "probe on devices of one kind: the slowest sets the pace of all"
        yield Check(section=SECTION, name="devices", status=status, found=found, remedy=remedy)
    elif system.backend is not None and system.backend == torch.built_for:
        found = f"torch sees none of this machine's {MAKERS[system.backend]} devices"
        found += f": {torch.device_error}" if torch.device_error else ""
        remedy = "look at the driver, at the rights to the device files, and at variables that hide devices"
        yield Check(section=SECTION, name="devices", status=Status.PROBLEM, found=found, remedy=remedy)
    else:
        cores = processors()["devices_per_node"]
        found = f"no accelerator; {cores} processors, {cpu_name()}"
        remedy = "cpu clusters run here; on a login node, run this inside a job instead"
        yield Check(section=SECTION, name="devices", status=Status.NOTE, found=found, remedy=remedy)


def judge_driver(system: System) -> Iterable[Check]:
    """The driver's version, where there are devices."""
    if system.backend is None:
        return
    if system.driver is not None:
        yield Check(section=SECTION, name="driver", status=Status.OK, found=system.driver)
    else:
        found = f"{MAKERS[system.backend]} devices are shown, but no version of their driver"
        remedy = "in a container the driver is the host's: look there"
        yield Check(section=SECTION, name="driver", status=Status.NOTE, found=found, remedy=remedy)


def judge_collectives(torch: TorchSeen) -> Iterable[Check]:
    """The back end that torch needs for the devices that it is built for."""
    if torch.error is not None:
        return
    backend, library = COLLECTIVES[torch.built_for]
    missing = [name for name in dict.fromkeys((backend, "gloo")) if name not in torch.collectives]
    if missing:
        remedy = "install a build of torch with it: several ranks cannot work without"
        found = f"torch was built without {' and '.join(missing)}"
        yield Check(section=SECTION, name="collectives", status=Status.PROBLEM, found=found, remedy=remedy)
        return
    version = f" {torch.nccl}" if torch.nccl and backend == "nccl" else ""
    found = library if library == backend else f"{library}{version}, by torch's {backend}"
    yield Check(section=SECTION, name="collectives", status=Status.OK, found=found)


def judge_wanted(torch: TorchSeen, wanted: Wanted) -> Iterable[Check]:
    """Whether probes of the campaign's cluster can run on this machine's devices."""
    if wanted.backend is None or torch.error is not None:
        return
    here = torch.built_for if torch.devices else "cpu"
    elsewhere = "run this on a node of that cluster, inside a job"
    unfit = Status.PROBLEM if wanted.scheduler is None else Status.NOTE  # its probes run where a batch system says
    if wanted.backend not in ("cpu", here):
        found = f"its cluster has {wanted.backend} devices, this machine {here}"
        yield Check(section=SECTION, name="campaign", status=unfit, found=found, remedy=elsewhere)
    elif wanted.backend != "cpu" and len(torch.devices) < (wanted.devices_per_node or 0):
        found = f"its cluster has {wanted.devices_per_node} devices a node, this machine shows {len(torch.devices)}"
        yield Check(section=SECTION, name="campaign", status=unfit, found=found, remedy=elsewhere)
    else:
        found = f"its cluster's {wanted.backend} devices are of this machine's kind"
        yield Check(section=SECTION, name="campaign", status=Status.OK, found=found)
