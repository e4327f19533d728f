"""The versions of the kernel's accelerator drivers, read without starting a program."""

from __future__ import annotations

import re
from pathlib import Path

VERSION_FILES = {
    "nvidia-driver": "proc/driver/nvidia/version",
    "amdgpu-driver": "sys/module/amdgpu/version",
    "i915-driver": "sys/module/i915/version",
    "xe-driver": "sys/module/xe/version",
}
"""A driver's name -> the file in which the kernel tells its version. NVIDIA's holds more: the version is the first
number with dots, as in `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15`."""
DOTTED = re.compile(r"\b\d+\.\d[\d.]*")


def driver_versions(root: Path = Path("/")) -> dict[str, str]:
    """Versions by the drivers' names, of those that are loaded and tell one; `root` is where the file system begins."""
    found = {}
    for name, file in VERSION_FILES.items():
        try:
            text = (root / file).read_text(encoding="utf-8", errors="replace")
        except OSError:  # a driver that is not loaded, or that tells no version, has no such file
            continue
        version = DOTTED.search(text)
        if version:
            found[name] = version[0]
    return found
