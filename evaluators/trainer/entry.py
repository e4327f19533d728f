"""Start and end of a rank, under a fork server, torchrun or a plain command."""

import datetime as dt
import gc
import os
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist

from frontrunner.evaluators.trainer import run
from frontrunner.evaluators.trainer.data import tokens_of
from frontrunner.evaluators.trainer.device_checks import check_job
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.layout import make_layout
from frontrunner.evaluators.trainer.probe_run import run_probe, run_profile
from frontrunner.evaluators.trainer.rendezvous import rank_device
from frontrunner.evaluators.trainer.training_run import run_training

_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}
_LATE_IMPORTS = {
    "torch": (
        "torch._dynamo",
        "torch.distributed.checkpoint",
        "torch.distributed.checkpoint._fsspec_filesystem",
        "torch.distributed.tensor.experimental",
        "torch.utils.serialization.config",
    ),
    "deepspeed": (
        "deepspeed",
        "deepspeed.pipe",
        "deepspeed.runtime.bf16_optimizer",
        "deepspeed.runtime.pipe.engine",
        "deepspeed.runtime.zero.stage3",
        "deepspeed.runtime.zero.stage_1_and_2",
        "torch._dynamo.aot_compile",
        "torch._inductor.compile_fx",
    ),
}
"""What is imported only at first use, inside the first probe's build and first step: seconds of a
cold start.
"""


def preload(engines: Sequence[str] = ("torch",)) -> None:
    """Import every heavy module that a rank of these engines uses, and freeze what is in memory.

    It starts no thread and touches no accelerator, so that a process may fork ranks afterwards.
    The garbage collector of a forked rank skips frozen objects. Otherwise each collection would
    visit all of torch's objects, and the kernel would copy every memory page that holds one.
    """
    for engine in dict.fromkeys(("torch", *engines)):
        for name in _LATE_IMPORTS[engine]:
            import_module(name)
    # The first optimizer ever built pays for imports of its own.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
    gc.collect()
    gc.freeze()


def run_rank(job: Job, *, rank: int, world_size: int, init_method: str, local_rank: int) -> None:
    """Be rank `rank` of the job; one that fails ends at once, since an orderly exit would wait for
    its peers.
    """
    folder, start, phases = Path(job.run_folder), time.monotonic(), ["starting"]
    error_path = folder / f"rank-{rank}.error.json"
    try:
        error_path.unlink(missing_ok=True)  # of an earlier start in the same folder
        if rank == 0:
            (folder / "result.json").unlink(missing_ok=True)
        check_job(job, world_size=world_size)
        os.environ.update(job.recipe.custom_environment())  # before any device is initialized
        device = rank_device(job.device, local_rank)
        if job.memory_limit_bytes_per_rank is not None:
            run.limit_memory(device, job.memory_limit_bytes_per_rank)
        dist.init_process_group(
            _BACKENDS[job.device],
            init_method=init_method,
            rank=rank,
            world_size=world_size,
            timeout=dt.timedelta(seconds=job.collective_timeout_s),
            # Known, an accelerator's ranks connect once, now, and every further group is split off
            # from that.
            device_id=None if device.type == "cpu" else device,
        )
        _run(job, rank, device, start, phases)
        dist.destroy_process_group()
    except Exception as error:
        try:
            traceback.print_exc()
            error = run.as_memory_error(error)
            document = {
                "rank": rank,
                "type": type(error).__name__,
                "message": str(error),
                "traceback": "".join(traceback.format_exception(error)),
                "phase": phases[-1],
            }
            run.write_json(error_path, document)
        finally:
            run.leave(1)


def _run(job: Job, rank: int, device: torch.device, start: float, phases: list[str]) -> None:
    phases.append("building")
    log_path = Path(job.run_folder) / "progress.jsonl" if rank == 0 else None
    # A probe is always a new run; a training run may be the continuation of one.
    log = run.ProgressLog(log_path, append=job.mode == "train")
    make_stepper = import_module(
        f"frontrunner.evaluators.trainer.{job.recipe.engine}_engine"
    ).make_stepper
    layout = make_layout(job.recipe, device_type=job.device)
    data = tokens_of(job)
    stepper: run.Stepper = make_stepper(job, layout, data, device)
    dist.all_reduce(
        torch.zeros(1, device=device)
    )  # so that no step's time holds another rank's build
    stepper.telemetry.built()
    build_time_s = time.monotonic() - start
    context = run.RunContext(
        job=job, rank=rank, stepper=stepper, log=log, build_time_s=build_time_s
    )
    log.write("built", time_s=build_time_s)
    gc.collect()
    gc.freeze()  # what is there by now stays: later collections need not look at it
    gc.disable()
    phases.append("stepping")
    if job.mode == "train" and job.train is not None:
        run_training(context, job.train)
    elif job.probe is not None:
        steps_done = run_probe(context, job.probe)
        if job.profile is not None:
            run_profile(context, job.profile, steps_done=steps_done)


def main() -> None:
    """Run the job file named on the command line; rank and world size come from torchrun's
    environment.
    """
    if len(sys.argv) != 2:
        sys.exit("usage: python -P -m frontrunner.evaluators.trainer JOB.json")
    try:
        job = Job.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"{sys.argv[1]}: {error}")
    rendezvous = Path(job.run_folder) / f"rendezvous-{os.getpid()}"
    run_rank(
        job,
        rank=int(os.environ.get("RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        init_method="env://" if "MASTER_ADDR" in os.environ else f"file://{rendezvous}",
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
    )
    run.leave(0)
