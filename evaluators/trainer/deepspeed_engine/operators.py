"""DeepSpeed's async_io operator, which reads and writes tensors on a disk: where it is, compiling it, loading it.

DeepSpeed compiles it at first use, in every rank, behind a lock file that a killed rank leaves for good. Here it is
compiled once, by a program of its own before any rank starts, into a folder that is there whole or not at all; ranks
load what they find. An operator that was built with DeepSpeed (DS_BUILD_AIO=1) is DeepSpeed's to load.

Only `build` and `load` import deepspeed.
"""

import hashlib
import importlib.util
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

OPERATORS = ("pin_memory", "async_io")
"""In the order of loading: the second uses symbols of the first."""


def built_folder(device: str) -> Path:
    """Return the folder of operators compiled for this processor, Python, torch, DeepSpeed and torch device."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    versions = (f"{package}-{version(package)}" for package in ("torch", "deepspeed"))
    tags = (sys.implementation.cache_tag, *versions, device, _processor())
    return cache / "frontrunner" / "operators" / "-".join(map(str, tags))


def _processor() -> str:
    """Return the architecture and its kind: DeepSpeed compiles for the very processor that it runs on."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8", errors="replace").splitlines() if information.exists() else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()}-{hashlib.sha256(features.encode()).hexdigest()[:8]}"


def is_installed() -> bool:
    """Return whether DeepSpeed was installed with the operator built."""
    package = importlib.util.find_spec("deepspeed")
    places = [] if package is None else package.submodule_search_locations or []
    return any(True for place in places for _ in Path(place, "ops", "aio").glob("async_io_op*.so"))


def is_built(device: str) -> bool:
    """Return whether `built_folder` holds the operators."""
    folder = built_folder(device)
    return all(_library(folder, name).exists() for name in OPERATORS)


def load(device: str) -> None:
    """Have DeepSpeed use the operators that were compiled before, in this process; installed ones need nothing."""
    if is_installed():
        return
    from deepspeed.ops.op_builder import AsyncIOBuilder, PinMemoryBuilder
    from deepspeed.ops.op_builder.builder import OpBuilder

    loaded: dict[str, Any] = OpBuilder._loaded_ops
    for name, builder in zip(OPERATORS, (PinMemoryBuilder, AsyncIOBuilder), strict=True):
        if name not in loaded:
            loaded[name] = _import(name, _library(built_folder(device), name))
        builder().load(verbose=False)  # makes the first's symbols visible to the second


def build() -> None:
    """Compile the operators into TORCH_EXTENSIONS_DIR, for the accelerator that DS_ACCELERATOR names: minutes."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    AsyncIOBuilder().load(verbose=True)


def _library(folder: Path, name: str) -> Path:
    return folder / name / f"{name}.so"


def _import(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not an extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    build()
