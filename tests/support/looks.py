"""Ways to look at a job's ranks other than running its probe, for the warm parent.

Each is called in a forked rank with the job, the rank and where to meet, and returns what can be written as JSON.
"""

from collections.abc import Callable
from typing import Any, Self
from unittest.mock import Mock

import torch
import torch.distributed as dist
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed._tools.mod_tracker import ModTracker
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed.fake_pg import FakeStore

from frontrunner.evaluators.trainer import model
from frontrunner.evaluators.trainer.data import TokenFile
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.layout import make_layout
from frontrunner.evaluators.trainer.torch_engine import make_stepper

_CPU = torch.device("cpu")
_LOOKED_AT_STEPS = 4


class _NoModules(ModTracker):
    """Follows no module: hooks on them refuse a model that runs more than once in a step, and pipelines."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        pass


class _Totals(MemTracker):
    """Without the statistics by module."""

    def __init__(self) -> None:
        super().__init__()
        self._mod_tracker = _NoModules()

    def start(self) -> None:
        """Look for the peak from here on."""
        self._peak_mem: dict[torch.device, int] = {}

    @property
    def peak_bytes(self) -> int:
        """The most that tensors on the CPU have taken since."""
        return self._peak_mem[_CPU]


def peak_of_real_step(job: Job, rank: int, init_method: str) -> int:
    """Be `rank` of the job over gloo for some steps; the least peak of its tensors after the first, in bytes.

    The least, since a thread of gloo may keep a collective's tensors for a moment after its end, in some steps only.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=job.recipe.devices)
    layout = make_layout(job.recipe, device_type="cpu")
    data = TokenFile(job.data_path, dtype=job.data.dtype, sequence_length=job.sequence_length, seed=job.seed)
    with _Totals() as tracker:
        stepper = make_stepper(job, layout, data, _CPU)
        stepper.step(1)
        peaks = []
        for step in range(2, 2 + _LOOKED_AT_STEPS):
            tracker.start()
            stepper.step(step)
            peaks.append(tracker.peak_bytes)
    dist.destroy_process_group()
    return min(peaks)


def dry_run(job: Job, rank: int, _: str) -> dict[str, Any]:
    """What a trace of `rank` sees; its micro-batches are as many as the job has measured steps."""
    from frontrunner.evaluators.trainer.dry_run import trace  # which torch 2.11 cannot import

    torch.set_num_threads(1)
    micro_batches = job.recipe.accumulation if job.probe is None else job.probe.measured_steps
    return trace(job, rank=rank, micro_batches=micro_batches)


def first_weights(job: Job, rank: int, _: str) -> tuple[list[str], float]:
    """The parameters of which `rank` has other first weights than the whole model, and the share of blocks it draws."""
    model._BLOCK_ELEMENTS = 200  # 3 rows of 64
    whole = model.Gpt(job.model, sequence_length=job.sequence_length, layers=range(job.model.layers))
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=job.recipe.devices)
    drawn = [0]
    plain = torch.Tensor.normal_

    def counting(*arguments: Any, **options: Any) -> torch.Tensor:
        drawn[-1] += 1
        return plain(*arguments, **options)

    torch.Tensor.normal_ = counting  # type: ignore[assignment]
    (part,) = make_stepper(job, make_layout(job.recipe, device_type="cpu"), Mock(), _CPU)._parts.values()
    named = part.named_parameters()
    for parameters in (named, list(whole.named_parameters())):
        drawn.append(0)
        model.initialize(parameters, seed=job.seed, layers=job.model.layers)
    expected, differing = dict(whole.named_parameters()), []
    for name, parameter in named:
        size, offset = compute_local_shape_and_global_offset(
            parameter.shape, parameter.device_mesh, parameter.placements
        )
        held = tuple(slice(start, start + length) for start, length in zip(offset, size, strict=True))
        if not torch.equal(parameter.to_local(), expected[name][held]):
            differing.append(name)
    return differing, drawn[1] / drawn[2]


LOOKS: dict[str, Callable[[Job, int, str], Any]] = {
    "peak": peak_of_real_step,
    "dry-run": dry_run,
    "first-weights": first_weights,
}
