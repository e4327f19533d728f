"""Ways to look at a job's ranks other than running its probe, for the warm parent.

Each is called in a forked rank with the job, the rank and where to meet, and returns what can be
written as JSON.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self
from unittest.mock import Mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed._tools.mod_tracker import ModTracker
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from frontrunner.evaluators.trainer import model, torch_engine
from frontrunner.evaluators.trainer.data import TokenFile
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.layout import Layout, make_layout
from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.evaluators.trainer.tensor_parallel import apply_tensor_parallel
from frontrunner.evaluators.trainer.torch_engine import make_stepper

_CPU = torch.device("cpu")
_LOOKED_AT_STEPS = 4


class _NoModules(ModTracker):
    """Follows no module: hooks on them refuse a model that runs more than once in a step, and
    pipelines.
    """

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


def _met(job: Job, rank: int, init_method: str) -> tuple[Layout, TokenFile]:
    """Meet the job's other ranks over gloo; return the layout and the data."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=init_method, rank=rank, world_size=job.recipe.devices
    )
    data = TokenFile(
        job.data_path, dtype=job.data.dtype, sequence_length=job.sequence_length, seed=job.seed
    )
    return make_layout(job.recipe, device_type="cpu"), data


def peak_of_real_step(job: Job, rank: int, init_method: str) -> int:
    """Be `rank` of the job over gloo for some steps; the least peak of its tensors after the first,
    in bytes.

    The least, since a thread of gloo may keep a collective's tensors for a moment after its end, in
    some steps only.
    """
    layout, data = _met(job, rank, init_method)
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


def losses_in_8_bits(job: Job, rank: int, init_method: str) -> list[float]:
    """Be `rank` of the job for its measured steps, with products of values that were rounded to 8
    bits; its losses.
    """
    layout, data = _met(job, rank, init_method)
    torch_engine.multiply_in_8_bits = partial(torch_engine.multiply_in_8_bits, emulate=True)
    stepper = make_stepper(job, layout, data, _CPU)
    assert job.probe is not None
    steps = job.probe.warm_up_steps + job.probe.measured_steps
    losses = [stepper.step(number).loss for number in range(1, 1 + steps)]
    dist.destroy_process_group()
    return losses


def deepspeed_training(job: Job, rank: int, init_method: str) -> dict[str, list[float | None]]:
    """Be `rank` of a `training_job` of the DeepSpeed engine; its losses and gradient norms.

    Leaves the whole weights and momentum of its stage in `rank-N.weights`: DeepSpeed's checkpoints
    have them in pieces.
    """
    from frontrunner.evaluators.trainer.deepspeed_engine import make_stepper

    layout, data = _met(job, rank, init_method)
    stepper = make_stepper(job, layout, data, _CPU)
    assert job.train is not None
    outcomes = [stepper.step(number) for number in range(1, job.train.steps + 1)]
    with torch.device("meta"):
        model = Gpt(
            job.model, sequence_length=job.sequence_length, layers=range(len(job.model.layers))
        )
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    tensors = {}
    for its_name, parameter in stepper._engine.module.named_parameters():
        name = its_name.lstrip("0123456789.")  # those of a stage begin with its number
        for kind, part in zip(
            ("weights", "momentum"), _weight_and_momentum(stepper._engine, parameter), strict=True
        ):
            tensors[f"{kind} {name}"] = _whole(
                part, shapes[name], layout.mesh["tensor"].get_group()
            )
    torch.save(tensors, Path(job.run_folder) / f"rank-{rank}.weights")
    dist.barrier()
    return {
        "loss": [one.loss for one in outcomes],
        "gradient_norm": [one.gradient_norm for one in outcomes],
    }


def _weight_and_momentum(engine: Any, parameter: Any) -> tuple[Tensor, Tensor]:
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    if hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping"):  # under ZeRO
        return safe_get_full_fp32_param(parameter), safe_get_full_optimizer_state(
            parameter, "momentum_buffer"
        )
    return parameter.detach(), engine.basic_optimizer.state[parameter]["momentum_buffer"]


def _whole(part: Tensor, shape: torch.Size, tensor_ranks: Any) -> Tensor:
    if part.shape == shape:
        return part
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size(tensor_ranks))]
    dist.all_gather(parts, part.contiguous(), group=tensor_ranks)
    return torch.cat(parts, dim=0 if part.shape[0] < shape[0] else 1)


def first_weights(job: Job, rank: int, _: str) -> tuple[list[str], float]:
    """The parameters of which `rank` has other first weights than the whole model, and the share of
    blocks it draws.
    """
    model._VALUES_PER_SEED = 200  # 3 rows of 64
    whole = model.Gpt(
        job.model, sequence_length=job.sequence_length, layers=range(len(job.model.layers))
    )
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=job.recipe.devices)
    drawn = [0]
    plain = torch.Tensor.normal_

    def counting(*arguments: Any, **options: Any) -> torch.Tensor:
        drawn[-1] += 1
        return plain(*arguments, **options)

    torch.Tensor.normal_ = counting  # type: ignore[assignment]
    (part,) = make_stepper(
        job, make_layout(job.recipe, device_type="cpu"), Mock(), _CPU
    )._parts.values()
    named = part.named_parameters()
    for parameters in (named, list(whole.named_parameters())):
        drawn.append(0)
        model.initialize(parameters, seed=job.seed, layers=len(job.model.layers))
    expected, differing = dict(whole.named_parameters()), []
    for name, parameter in named:
        size, offset = compute_local_shape_and_global_offset(
            parameter.shape, parameter.device_mesh, parameter.placements
        )
        held = tuple(
            slice(start, start + length) for start, length in zip(offset, size, strict=True)
        )
        if not torch.equal(parameter.to_local(), expected[name][held]):
            differing.append(name)
    return differing, drawn[1] / drawn[2]


def flops_in_pieces(job: Job, _: int, init_method: str) -> list[tuple[dict[str, Any], int]]:
    """What torch counts in a real step of the one-rank job, for each recompute, in tiles and chunks
    and not.

    torch counts no attention on CPUs: it is given its own formulas for the same operators of other
    devices.
    """
    layout, data = _met(job, 0, init_method)
    flash = "_scaled_dot_product_flash_attention_for_cpu"
    formulas = {
        getattr(torch.ops.aten, flash): lambda *shapes, **_: sdpa_flop_count(*shapes[:3]),
        getattr(torch.ops.aten, f"{flash}_backward"): lambda *shapes, **_: sdpa_backward_flop_count(
            *shapes[:4]
        ),
    }
    found = []
    for recompute, tiles, chunks in itertools.product(
        ("none", "selective", "full"), (1, 2, 4), (1, 2)
    ):
        changes = {"recompute": recompute, "feed_forward_tiles": tiles, "loss_chunks": chunks}
        stepper = make_stepper(
            replace(job, recipe=replace(job.recipe, **changes)), layout, data, _CPU
        )
        with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
            stepper.step(1)
        found.append((changes, counter.get_total_flops()))
    return found


def compiled_tensor_parallelism(job: Job, rank: int, init_method: str) -> dict[str, list[int]]:
    """What torch finds to overlap in a compiled layer's forward pass.

    For each gather the products that use it, and for each sum the products that it is of.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes import micro_pipeline_tp as overlap
    from torch._inductor.fx_passes.post_grad import view_to_reshape

    dist.init_process_group(
        "gloo", init_method=init_method, rank=rank, world_size=job.recipe.devices
    )
    layout, found = make_layout(job.recipe, device_type="cpu"), dict[str, list[int]]()

    def forward(module: Any, _: Any) -> Any:
        view_to_reshape(module)  # as torch.compile does before it looks
        gathers = overlap.find_all_gather_patterns(module.graph)
        sums = overlap.find_reduce_scatter_patterns(module.graph)
        found["gathers"] = [len(overlap._find_consumer_matmuls(one.res_node)) for one in gathers]
        found["sums"] = [
            int(overlap._find_producer_matmul(one.input_node) is not None) for one in sums
        ]
        return module.forward

    model = Gpt(job.model, sequence_length=job.sequence_length, layers=range(1), recipe=job.recipe)
    apply_tensor_parallel(model, job.model, layout.mesh["tensor"], sequence_parallel=True)
    backend = aot_autograd(fw_compiler=forward, decompositions=select_decomp_table())
    model.compile_blocks(lambda run: torch.compile(run, backend=backend), _CPU)
    positions = job.sequence_length // job.recipe.tensor_parallel
    model.blocks["0"](
        torch.zeros(job.recipe.micro_batch_seqs, positions, job.model.hidden, requires_grad=True)
    )
    return found


LOOKS: dict[str, Callable[[Job, int, str], Any]] = {
    "peak": peak_of_real_step,
    "dry-run": dry_run,
    "flops": flops_in_pieces,
    "deepspeed": deepspeed_training,
    "first-weights": first_weights,
    "overlap": compiled_tensor_parallelism,
    "8-bit-losses": losses_in_8_bits,
}
