"""What the names in a torch profiler's trace stand for."""

from __future__ import annotations

from frontrunner.evaluators.diagnostics.profiling.breakdown import Part
from frontrunner.evaluators.trainer.job import DATA_RANGE

COLLECTIVE_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
COLLECTIVE_LIBRARIES = ("nccl", "rccl", "oneccl")
IN_FLIGHT_ON_CPU = "gloo:"
WAIT_OPERATOR = "wait_tensor"
COPIES_WITH_HOST = ("HtoD", "DtoH")

_WORDS = (
    # Longer words first: a reduce-scatter is no scatter.
    ("reducescatter", Part.REDUCE_SCATTER),
    ("allreduce", Part.ALL_REDUCE),
    ("allgather", Part.ALL_GATHER),
    ("alltoall", Part.ALL_TO_ALL),
    ("broadcast", Part.BROADCAST),
    ("send", Part.SEND_RECV),
    ("recv", Part.SEND_RECV),
)


def collective_part(name: str) -> Part:
    """The kind of a collective, from the name of a call (`c10d::allreduce_`), of what is in flight, or of a kernel."""
    letters = "".join(character for character in name.lower() if character.isalpha())
    return next((part for word, part in _WORDS if word in letters), Part.OTHER_COLLECTIVE)


def is_collective_call(operator: str) -> bool:
    """Whether a host's operator starts a collective."""
    namespace, _, rest = operator.partition("::")
    return namespace in COLLECTIVE_NAMESPACES and rest != WAIT_OPERATOR and "wrap_tensor" not in rest


def is_collective_kernel(kernel: str) -> bool:
    """Whether a device's kernel is the collective library's."""
    lower = kernel.lower()
    return any(library in lower for library in COLLECTIVE_LIBRARIES)


def is_computing(operator: str) -> bool:
    """Whether the self time of a host's operator is computing, where the host is the device.

    It is that of the operators of torch and its extensions (`aten::mm`) and of compiled regions. Nodes of autograd,
    functions written in Python and collectives hold others' time and their own waiting.
    """
    if "Compiled" in operator:
        return True
    namespace, colons, _ = operator.partition("::")
    return bool(colons) and namespace not in (*COLLECTIVE_NAMESPACES, "autograd", "frontrunner")


def host_part(annotation: str) -> Part | None:
    """The part that a range of the host's names: torch marks each optimizer's step, the trainer its data."""
    if annotation.startswith("Optimizer."):
        return Part.OPTIMIZER
    return Part.DATA if annotation == DATA_RANGE else None
