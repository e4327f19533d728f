"""Offload to a disk by DeepSpeed (ZeRO-Infinity, arXiv 2104.07857): its settings, its operator, the
machine's limits.

DeepSpeed compiles its async_io operator at first use, in every rank, behind a lock file that a
killed rank leaves for good. This module as a program compiles it once before any rank starts; one
built with DeepSpeed (DS_BUILD_AIO=1) is DeepSpeed's to load. Importing this module imports neither
deepspeed nor torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import resource
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from frontrunner.evaluators.trainer.job import Disk, Job

if TYPE_CHECKING:
    from torch import Tensor

OPERATORS = ("pin_memory", "async_io")
"""In the order of loading: the second uses symbols of the first."""
LEAST_GROUP = 2**20
"""Elements that a rank's optimizer updates at a time, at the least: 4 MiB, so that small models
reach the disk too.
"""

_OPTIMIZER_BUFFERS = 4
"""Weights, gradients and AdamW's two states of one group."""
_PARAMETER_BUFFERS = 5
"""DeepSpeed's default: parameters of one module, and those whose release is under way."""
_CAP_IPC_LOCK = 14


def check_disk(job: Job) -> None:
    """Raise ValueError where this machine cannot offload to a disk: no operator, no room, or no
    memory to lock.
    """
    disk = cast("Disk", job.disk)  # or the recipe is illegal
    if not is_installed() and not is_built(job.device):
        raise ValueError(
            "offload nvme needs DeepSpeed's async_io operator, which is not built here; it is"
            " compiled when a campaign is launched, which takes libaio-dev and g++ on Debian"
        )
    Path(disk.folder).mkdir(mode=0o700, exist_ok=True)
    free = shutil.disk_usage(disk.folder).free
    if free < disk.needed_bytes:
        raise ValueError(
            f"offload nvme needs {_gib(disk.needed_bytes)} on {Path(disk.folder).parent}, which has"
            f" {_gib(free)} free"
        )
    limit, needed = _lockable_bytes(), _locked_bytes(job)
    if limit is not None and limit < needed:
        raise ValueError(
            f"offload nvme locks {_gib(needed)} of memory a rank, and the limit is {_gib(limit)}:"
            " raise `ulimit -l`"
        )


def disk_settings(job: Job) -> dict[str, Any]:
    """Return the part of DeepSpeed's `zero_optimization` that puts parameters and the optimizer on
    the disk.
    """
    common = {
        "device": "nvme",
        "nvme_path": cast("Disk", job.disk).folder,
        "pin_memory": job.device != "cpu",
    }
    return {
        "sub_group_size": _group(job),
        # Its reading ahead counts a parameter twice that is used twice in a row, as under full
        # recompute, and asserts.
        "stage3_prefetch_bucket_size": 0,
        "offload_optimizer": common | {"buffer_count": _OPTIMIZER_BUFFERS},
        # By default up to 1e9 elements of the parameters would stay in memory.
        "offload_param": (
            common
            | {
                "buffer_count": _PARAMETER_BUFFERS,
                "buffer_size": _largest_share(job),
                "max_in_cpu": 0,
            }
        ),
    }


def check_written(job: Job) -> None:
    """Raise RuntimeError where the job's disk ran full: the operator then counts a write as
    done.
    """
    if job.disk is None:
        return
    folder = Path(job.disk.folder)
    sizes = [path.stat() for path in folder.rglob("*.swp")]
    missing = sum(max(0, size.st_size - 512 * size.st_blocks) for size in sizes)
    if missing > shutil.disk_usage(folder).free:
        # An OSError would be taken for the run folder's full disk and blame no recipe.
        raise RuntimeError(f"the disk is full: offload wrote files in {folder} that came out short")


def tensors_on_disk(optimizer: Any) -> dict[int, Tensor]:
    """Return views of what DeepSpeed's ZeRO-3 optimizer moved to files, by the id of the tensor in
    its place.
    """
    import torch

    swapper = getattr(optimizer, "optimizer_swapper", None)
    found: dict[int, Tensor] = {}
    for info in swapper.swap_params_info.values() if swapper is not None else ():
        for moved in info.tensors:
            view = torch.from_file(
                moved.swap_path, shared=True, size=info.numel(), dtype=info.dtype()
            )
            found[id(moved.compute_tensor)] = view
    return found


def _group(job: Job) -> int:
    """Elements of one rank's optimizer that are in memory at a time: its share of a layer."""
    return max(LEAST_GROUP, job.model.layers[-1].matmul_parameters // job.recipe.data_parallel)


def _largest_share(job: Job) -> int:
    model = job.model
    rows = max(
        model.embedding.padded_vocabulary,
        model.feed_forward.ffn_hidden,
        model.hidden,
        model.attention.q_hidden,
        job.sequence_length,
    )
    return -(-rows * model.hidden // job.recipe.data_parallel)


def _locked_bytes(job: Job) -> int:
    """Bound the page-locked memory of a rank: the optimizer's buffers in fp32, and one group of
    whole parameters.
    """
    largest_group = _group(job) + _largest_share(job)
    width = 4 if job.precision == "fp32" else 2
    parameters = _PARAMETER_BUFFERS * _largest_share(job) + job.recipe.data_parallel * largest_group
    return 4 * _OPTIMIZER_BUFFERS * largest_group + width * parameters


def _lockable_bytes() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    capabilities = int(
        _line(Path("/proc/self/status"), "CapEff:").removeprefix("CapEff:").strip() or "0", 16
    )
    return None if limit == resource.RLIM_INFINITY or capabilities >> _CAP_IPC_LOCK & 1 else limit


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def built_folder(device: str) -> Path:
    """Return the folder of operators compiled for this processor, Python, torch, DeepSpeed and
    torch device.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    features = _line(Path("/proc/cpuinfo"), "flags", "Features")
    processor = f"{platform.machine()}-{hashlib.sha256(features.encode()).hexdigest()[:8]}"
    versions = (f"{package}-{version(package)}" for package in ("torch", "deepspeed"))
    tags = (sys.implementation.cache_tag, *versions, device, processor)
    return cache / "frontrunner" / "operators" / "-".join(map(str, tags))


def _line(path: Path, *starts: str) -> str:
    """Return the first line of a file that starts so; empty where there is none."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    return next((line for line in lines if line.startswith(starts)), "")


def is_installed() -> bool:
    """Return whether DeepSpeed was installed with the operator built."""
    package = importlib.util.find_spec("deepspeed")
    places = [] if package is None else package.submodule_search_locations or []
    return any(True for place in places for _ in Path(place, "ops", "aio").glob("async_io_op*.so"))


def is_built(device: str) -> bool:
    """Return whether `built_folder` holds the operators."""
    folder = built_folder(device)
    return all(_library(folder, name).exists() for name in OPERATORS)


def load_operators(device: str) -> None:
    """Have DeepSpeed use the operators compiled before; installed ones need nothing."""
    if is_installed():
        return
    from deepspeed.ops.op_builder import AsyncIOBuilder, PinMemoryBuilder
    from deepspeed.ops.op_builder.builder import OpBuilder

    loaded: dict[str, Any] = OpBuilder._loaded_ops
    for name, builder in zip(OPERATORS, (PinMemoryBuilder, AsyncIOBuilder), strict=True):
        if name not in loaded:
            path = _library(built_folder(device), name)
            spec = importlib.util.spec_from_file_location(name, path)
            if spec is None or spec.loader is None:
                raise ImportError(f"{path} is not an extension module")
            loaded[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded[name])
        builder().load(verbose=False)  # makes the first's symbols visible to the second


def _library(folder: Path, name: str) -> Path:
    return folder / name / f"{name}.so"


if (
    __name__ == "__main__"
):  # compiles into TORCH_EXTENSIONS_DIR, for the accelerator that DS_ACCELERATOR names
    from deepspeed.ops.op_builder import AsyncIOBuilder

    AsyncIOBuilder().load(verbose=True)
