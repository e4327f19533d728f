"""The training loss, whole or split over the vocabulary, and torch.compile for it and the blocks."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional

from frontrunner.evaluators.trainer.job import Job

LossFunction = Callable[[Tensor, Tensor], Tensor]


def mean_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all tokens, in fp32, of logits [B, S, V] against token ids [B, S]; a scalar plain tensor.

    Logits that are split over the vocabulary must be given, and the result's backward run, in `loss_context`.
    """
    loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))
    return loss.full_tensor() if isinstance(loss, DTensor) else loss


def micro_batch_loss(output: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of one micro-batch from the last stage's output: logits, or the loss where it was chunked."""
    return mean_cross_entropy(output, targets) if output.dim() > 0 else output


def loss_context(*, tensor_parallel: int) -> AbstractContextManager[Any]:
    """Return where the loss and every backward pass must run."""
    return cast("AbstractContextManager[Any]", loss_parallel()) if tensor_parallel > 1 else nullcontext()


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
    """Return how many graphs this process has compiled so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def training_loss(job: Job) -> LossFunction:
    """Return the training loss of a micro-batch; compiled, its fp32 copies of the logits are never written to memory.

    Not where the logits are split over the vocabulary: that loss is torch's own for DTensors.
    """
    if job.recipe.compile and job.recipe.loss_chunks == 1 and job.recipe.tensor_parallel == 1:
        return compiled(micro_batch_loss, device_type=job.device)
    return micro_batch_loss
