"""torch.compile for blocks: which compiler it needs, and noticing when something was compiled."""

from collections.abc import Callable
from typing import ParamSpec, cast

import torch
from torch import Tensor

from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.loss import LossFunction, micro_batch_loss

Inputs = ParamSpec("Inputs")


def check_compiler(device: str) -> None:
    """Raise ValueError where torch.compile has no compiler for `device`: C++ for a CPU, Triton for an accelerator."""
    if device != "cpu":
        from torch.utils._triton import has_triton

        if not has_triton():
            raise ValueError(f"compile needs Triton on device {device!r}, and there is none that works")
        return
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise ValueError("compile needs a C++ compiler on a CPU, and there is none (g++, or what CXX names)") from error


def compiled(function: Callable[Inputs, Tensor], device_type: str) -> Callable[Inputs, Tensor]:
    """`function`, compiled at its first call for each kind of input; what cannot be compiled whole raises then."""
    if device_type == "cpu":
        from torch._inductor import config

        # Ranks share the machine's cores, and a pool of compiling processes would outlive a rank that is killed.
        config.compile_threads = 1
    return cast("Callable[Inputs, Tensor]", torch.compile(function, fullgraph=True))


def compiled_graphs() -> int:
    """How many graphs this process has compiled so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def training_loss(job: Job) -> LossFunction:
    """The training loss of a micro-batch; compiled, its fp32 copies of the logits are never written to memory.

    Not where the logits are split over the vocabulary: that loss is torch's own for DTensors.
    """
    if job.recipe.compile and job.recipe.loss_chunks == 1 and job.recipe.tensor_parallel == 1:
        return compiled(micro_batch_loss, device_type=job.device)
    return micro_batch_loss
