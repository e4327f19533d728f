"""What a rank checks of its machine before it trains; importing this imports no torch."""

import os
import shutil
from importlib.util import find_spec

from frontrunner.evaluators.trainer.deepspeed_disk import check_disk
from frontrunner.evaluators.trainer.job import Job
from frontrunner.spaces.errors import installing


def check_job(job: Job, *, world_size: int) -> None:
    """Raise ValueError, with the numbers, where this machine cannot run the job.

    Whether the recipe is legal, the driver has judged.
    """
    recipe = job.recipe
    if recipe.devices != world_size:
        raise ValueError(f"the recipe needs {recipe.devices} ranks, but {world_size} were started")
    if (
        recipe.compile
        and job.device == "cpu"
        and shutil.which(os.environ.get("CXX", "g++")) is None
    ):
        raise ValueError(
            "compile needs a C++ compiler on a CPU, and there is none (g++, or what CXX names)"
        )
    if recipe.fp8 == "mxfp8" and job.device != "cpu":
        import torch

        capability = ".".join(map(str, torch.cuda.get_device_capability()))
        if not capability.startswith("10."):  # what torchao's kernels are built for
            name = torch.cuda.get_device_name()
            raise ValueError(
                f"fp8 mxfp8 needs a device of compute capability 10 (Blackwell): {name} has"
                f" {capability}"
            )
    if recipe.compile and job.device != "cpu":
        from torch.utils._triton import has_triton

        if not has_triton():
            raise ValueError(
                f"compile needs Triton on device {job.device!r}, and there is none that works"
            )
    if recipe.engine == "deepspeed" and find_spec("deepspeed") is None:
        raise ValueError(f"deepspeed is not installed; run: {installing('deepspeed')}")
    if recipe.offload == "nvme":
        check_disk(job)
