"""Start and end of a rank, under a fork server, torchrun or a plain command."""

import datetime as dt
import os
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from frontrunner.evaluators.trainer.checks import check_job
from frontrunner.evaluators.trainer.data import TokenFile
from frontrunner.evaluators.trainer.files import ProgressLog, write_json
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.layout import Layout, make_layout
from frontrunner.evaluators.trainer.memory import as_memory_error, limit_memory
from frontrunner.evaluators.trainer.precision import LossScale
from frontrunner.evaluators.trainer.probe_loop import run_probe, run_profile
from frontrunner.evaluators.trainer.rendezvous import use_one_thread_per_group
from frontrunner.evaluators.trainer.run_context import RunContext
from frontrunner.evaluators.trainer.torch_engine import build_engine
from frontrunner.evaluators.trainer.train_step import Stepper, TorchStepper
from frontrunner.evaluators.trainer.training_loop import run_training

_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}
# What torch imports only at first use, inside the first probe's build and first step.
_LATE_IMPORTS = ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.tensor.experimental")

Phase = Literal["starting", "building", "stepping"]


def preload(engines: Sequence[str] = ("torch",)) -> None:
    """Import every heavy module that a rank of these engines uses, so that a fork server pays for it once.

    Starts no thread and no process group, and touches no accelerator.
    """
    if "deepspeed" in engines:
        from frontrunner.evaluators.trainer.deepspeed_engine import stepper as environment

        environment.preload()
    for name in _LATE_IMPORTS:
        import_module(name)
    # The first optimizer ever built pays for imports of its own.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)


def run_rank(job: Job, *, rank: int, world_size: int, init_method: str, local_rank: int) -> None:
    """Be rank `rank` of the job from start to end.

    Returns once the job is done. Where the rank fails it writes `rank-N.error.json`, prints the traceback to stderr
    and ends the process with status 1 at once: waiting for peers, as an orderly exit does, could take until their
    collectives time out.
    """
    runner = _Runner(job, rank=rank, local_rank=local_rank)
    try:
        runner.run(world_size=world_size, init_method=init_method)
    except Exception as error:
        try:
            traceback.print_exc()
            runner.write_error(as_memory_error(error))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)


class _Runner:
    """One rank, and how far it has come."""

    def __init__(self, job: Job, *, rank: int, local_rank: int) -> None:
        self._job = job
        self._rank = rank
        self._folder = Path(job.run_folder)
        self._device = torch.device(job.device) if job.device == "cpu" else torch.device(job.device, local_rank)
        self._phase: Phase = "starting"

    @property
    def _error_path(self) -> Path:
        return self._folder / f"rank-{self._rank}.error.json"

    def run(self, *, world_size: int, init_method: str) -> None:
        start = time.monotonic()
        self._remove_old_outcome()
        check_job(self._job, world_size=world_size)
        self._prepare_process()
        dist.init_process_group(
            _BACKENDS[self._job.device],
            init_method=init_method,
            rank=self._rank,
            world_size=world_size,
            timeout=dt.timedelta(seconds=self._job.collective_timeout_s),
        )
        self._phase = "building"
        with self._open_log() as log:
            context = self._build(log, start)
            log.write("built", time_s=context.build_time_s)
            self._phase = "stepping"
            if self._job.mode == "train" and self._job.train is not None:
                run_training(context, self._job.train)
            elif self._job.probe is not None:
                steps_done = run_probe(context, self._job.probe)
                if self._job.profile is not None:
                    run_profile(context, self._job.profile, steps_done=steps_done)
        dist.destroy_process_group()

    def write_error(self, error: Exception) -> None:
        """Leave what went wrong where the rank's starter looks for it."""
        document = {
            "rank": self._rank,
            "type": type(error).__name__,
            "message": str(error),
            "traceback": "".join(traceback.format_exception(error)),
            "phase": self._phase,
        }
        write_json(self._error_path, document)

    def _remove_old_outcome(self) -> None:
        """Remove the outcome of an earlier start in the same folder."""
        self._error_path.unlink(missing_ok=True)
        if self._rank == 0:
            (self._folder / "result.json").unlink(missing_ok=True)

    def _open_log(self) -> ProgressLog:
        # A probe is always a new run; a training run may be the continuation of one.
        path = self._folder / "progress.jsonl" if self._rank == 0 else None
        return ProgressLog(path, append=self._job.mode == "train")

    def _prepare_process(self) -> None:
        if self._job.device == "cpu":
            use_one_thread_per_group()
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        else:
            torch.accelerator.set_device_index(self._device.index)
        if self._job.memory_limit_bytes_per_rank is not None:
            limit_memory(self._device, self._job.memory_limit_bytes_per_rank)

    def _build(self, log: ProgressLog, start: float) -> RunContext:
        job = self._job
        layout = make_layout(job.recipe, device_type=job.device)
        data = TokenFile(job.data_path, dtype=job.data.dtype, sequence_length=job.sequence_length, seed=job.seed)
        stepper = _build_stepper(job, layout, data, self._device)
        # All ranks begin the first step together, so that its time is not another rank's build.
        dist.all_reduce(torch.zeros(1, device=self._device))
        return RunContext(
            job=job,
            rank=self._rank,
            device=self._device,
            stepper=stepper,
            log=log,
            build_time_s=time.monotonic() - start,
        )


def _build_stepper(job: Job, layout: Layout, data: TokenFile, device: torch.device) -> Stepper:
    """Return the recipe's engine over this rank's part of the model."""
    if job.recipe.engine == "deepspeed":
        from frontrunner.evaluators.trainer.deepspeed_engine.stepper import DeepSpeedStepper

        return DeepSpeedStepper(job, layout, data, device)
    scale = LossScale(job.precision, device)
    return TorchStepper(job, layout, build_engine(job, layout, device, scale), data, scale)
