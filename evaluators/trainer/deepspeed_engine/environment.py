"""What must be true of a process before deepspeed is imported in it, and what it imports late."""

import os
from importlib import import_module

# Imported inside `deepspeed.initialize` or at the first step, and slow: 3 s of a cold start.
_LATE_IMPORTS = (
    "deepspeed.pipe",
    "deepspeed.runtime.bf16_optimizer",
    "deepspeed.runtime.pipe.engine",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.zero.stage_1_and_2",
    "torch._dynamo",
    "torch._dynamo.aot_compile",
    "torch._inductor.compile_fx",
)


def preload() -> None:
    """Import what ranks of this engine use, for a fork server to pay for once.

    Starts no process group and touches no accelerator where DS_ACCELERATOR names one, so that deepspeed need not look.
    """
    import_module("deepspeed")
    for name in _LATE_IMPORTS:
        import_module(name)


def prepare(device_type: str, *, rank: int, world_size: int) -> None:
    """Import deepspeed so that it takes `device_type` for its accelerator and compiles nothing on a CPU."""
    os.environ.setdefault("DS_ACCELERATOR", device_type)
    # What its launcher would have set; deepspeed reads them even where the process group exists already.
    os.environ.setdefault("RANK", str(rank))
    os.environ.setdefault("LOCAL_RANK", str(rank))
    os.environ.setdefault("WORLD_SIZE", str(world_size))
    operators = import_module("deepspeed.ops")
    if device_type == "cpu":
        # Its shared-memory collectives would be compiled at the first use of the process group, for 23 s and more.
        operators.__compatible_ops__["deepspeed_shm_comm"] = False
