"""The DeepSpeed engine: the trainer's model, data and outputs, stepped by `deepspeed.initialize`.

Without a pipeline: ZeRO 0 to 3 over the replicas, tensor parallelism by AutoTP. With one:
DeepSpeed's 1F1B, ZeRO 0 or 1, and our own column- and row-parallel layers, since AutoTP forms its
groups over all ranks as if there were no pipeline. Either way attention and feed-forward are split;
embedding, norms and head are whole on every rank.
"""

import math
import os
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from frontrunner.evaluators.trainer.data import Batch, Tokens
from frontrunner.evaluators.trainer.deepspeed_disk import (
    check_written,
    disk_settings,
    load_operators,
    tensors_on_disk,
)
from frontrunner.evaluators.trainer.flat_state import LAYOUT, StateLayout, StatePart
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.layout import Layout, stage_layers
from frontrunner.evaluators.trainer.model import Gpt, initialize
from frontrunner.evaluators.trainer.optimizer import build_optimizer, set_learning_rate
from frontrunner.evaluators.trainer.parts.head import mean_cross_entropy
from frontrunner.evaluators.trainer.run import StepOutcome, Stepper, synchronize
from frontrunner.evaluators.trainer.tensor_parallel import OnLocalWeight, split_blocks
from frontrunner.spaces.sharding import SHARDING_NAMES

LARGEST_BUCKET = 500_000_000
"""DeepSpeed's own default, in elements. It allocates a whole bucket, so a small model gets a
smaller one.
"""
_AUTOMATIC_TENSOR_PARALLEL = {
    "row": [r".*\.attention\.output\.weight$", r".*\.feed_forward\.down\.weight$"],
    "column": [
        r".*\.attention\.(query|key|value)\.weight$",
        r".*\.feed_forward\.(gate|up)\.weight$",
    ],
}
"""AutoTP with our modules' names, which it does not know: without them it refuses the model."""


def zero_stage(job: Job) -> int:
    """Return the ZeRO stage of the recipe's sharding degrees; over one replica the one that has
    what the job needs.
    """
    recipe = job.recipe
    if recipe.data_parallel > 1:
        return SHARDING_NAMES.index(recipe.sharding_name)
    if recipe.offload in ("optimizer+parameters", "nvme"):
        return 3
    return 1 if recipe.offload == "optimizer" or job.precision == "bf16" else 0


def configuration(job: Job, *, parameters: int) -> dict[str, Any]:
    """Return what `deepspeed.initialize` is given for a rank that holds `parameters` parameters
    before sharding.
    """
    recipe = job.recipe
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": recipe.micro_batch_seqs,
        "gradient_accumulation_steps": recipe.accumulation,
        "gradient_clipping": job.optimizer.gradient_clip_norm or 0.0,
        "zero_optimization": _zero(job, parameters),
        # The optimizer is torch's own: DeepSpeed's are compiled at first use, for 45 s and more.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
    }
    if job.precision == "bf16":
        settings["bf16"] = {"enabled": True}
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
        settings["communication_data_type"] = "fp32"
    if recipe.quantized_gradients:
        # Its kernels read gradients as fp16 whatever they are (`csrc/quantization/pt_binding.cpp`).
        settings["communication_data_type"] = "fp16"
    if recipe.tensor_parallel > 1 and recipe.pipeline_parallel == 1:
        specs = [
            {"patterns": names, "partition_type": kind}
            for kind, names in _AUTOMATIC_TENSOR_PARALLEL.items()
        ]
        layers = {"use_default_specs": False, "layer_specs": specs}
        settings["tensor_parallel"] = {
            "autotp_size": recipe.tensor_parallel,
            "partition_config": layers,
        }
    return settings


def _zero(job: Job, parameters: int) -> dict[str, Any]:
    recipe, stage = job.recipe, zero_stage(job)
    a_block = max(1, parameters // len(job.model.layers))
    bucket = min(LARGEST_BUCKET, a_block if stage == 3 else max(1, parameters))
    settings: dict[str, Any] = {
        "stage": stage,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
    }
    memory = {"device": "cpu", "pin_memory": job.device != "cpu"}
    if recipe.offload in ("optimizer", "optimizer+parameters"):
        settings["offload_optimizer"] = memory
    if stage < 3:
        return settings
    # DeepSpeed's defaults keep parameters whole that are small (100,000 elements) or used again
    # soon (within 1e9 elements): a model of less than a billion parameters would not be sharded at
    # all. Here only norms and as narrow biases stay whole.
    settings["stage3_param_persistence_threshold"] = job.model.hidden
    settings["stage3_max_reuse_distance"] = 0
    settings["stage3_prefetch_bucket_size"] = a_block
    if recipe.offload == "optimizer+parameters":
        settings["offload_param"] = memory
    elif recipe.offload == "nvme":
        settings |= disk_settings(job)
    return settings | recipe.zero_plus_plus


def make_stepper(
    job: Job, layout: Layout, data: Tokens, device: torch.device
) -> "DeepSpeedStepper":
    """Import deepspeed for the job's device, compiling nothing on a CPU; return this rank's
    steps.
    """
    os.environ.setdefault("DS_ACCELERATOR", job.device)
    _set_places(device)
    operators = import_module("deepspeed.ops")
    if job.device == "cpu":
        # Its shared-memory collectives would be compiled at the first use of the process group, for
        # 23 s and more.
        operators.__compatible_ops__["deepspeed_shm_comm"] = False
    if job.recipe.offload == "nvme":
        load_operators(job.device)
    import_module("deepspeed").init_distributed()  # takes over the process group that there is
    kind = StagedStepper if job.recipe.pipeline_parallel > 1 else WholeStepper
    return kind(job, layout, data, device)


def _set_places(device: torch.device) -> None:
    """Set what DeepSpeed's launcher would have set: it reads that even where there is a process
    group.

    It takes the local rank for the number of its device, of those that the rank sees: a rank that
    sees one device has 0, whatever its place in the node (version 0.19.8, runtime/engine.py
    `_set_distributed_vars`, runtime/zero/partition_parameters.py `Init`). Open MPI's variable must
    be the same (runtime/engine.py `_configure_with_arguments`).
    """
    os.environ.setdefault("RANK", str(dist.get_rank()))
    os.environ.setdefault("WORLD_SIZE", str(dist.get_world_size()))
    if device.index is not None:
        os.environ["LOCAL_RANK"] = str(device.index)
    local_rank = os.environ.setdefault("LOCAL_RANK", str(dist.get_rank()))
    if "OMPI_COMM_WORLD_LOCAL_RANK" in os.environ:
        os.environ["OMPI_COMM_WORLD_LOCAL_RANK"] = local_rank


class DeepSpeedStepper(Stepper):
    """Steps of a rank's part of the model in a DeepSpeed engine, with the torch engine's data,
    losses and outcomes.
    """

    def __init__(self, job: Job, layout: Layout, data: Tokens, device: torch.device) -> None:
        import deepspeed

        super().__init__(job, layout, data, device)
        model = self._build()
        count = sum(
            getattr(parameter, "ds_numel", parameter.numel()) for parameter in model.parameters()
        )
        self._engine, self.optimizer, _, _ = deepspeed.initialize(
            model=model,
            config=configuration(job, parameters=count),
            optimizer=build_optimizer(job.optimizer, list(model.parameters())),
        )
        check_written(job)

    @abstractmethod
    def _build(self) -> nn.Module:
        """Return this rank's part of the model with its first weights."""

    @abstractmethod
    def _loss(self, batch: Batch, *, trains: bool) -> Tensor:
        """Return the loss of the replica's batch, whose mean over all ranks is the global batch's;
        maybe do a step.
        """

    def step(self, number: int) -> StepOutcome:
        """See Stepper. Without ZeRO in fp32 DeepSpeed clips and does not report the norm, which is
        then None.
        """
        loss = self._loss(self.training_batch(number), trains=True)
        dist.all_reduce(loss)
        synchronize(self.device)
        if number == 1:
            check_written(self.job)
        norm: float | None = math.nan  # DeepSpeed skips a step whose gradients are not finite
        if self._engine.was_step_applied():
            norm = (
                self._engine.get_global_grad_norm()
                if self.job.optimizer.gradient_clip_norm is not None
                else None
            )
            if norm is not None:
                norm = (
                    float(norm) if norm >= 0 else math.nan
                )  # -1 is its word for a norm that is not finite
        return StepOutcome(loss=float(loss) / dist.get_world_size(), gradient_norm=norm)

    @torch.no_grad()
    def loss_share(self, batch: Batch) -> Tensor:
        """See Stepper."""
        self._engine.eval()
        loss = self._loss(batch, trains=False)
        self._engine.train()
        return loss / dist.get_world_size()

    def state(self) -> dict[str, Tensor]:
        """See Stepper. The weights and states that the optimizer updates, as DeepSpeed has laid
        them out.
        """
        owner = self._owner
        on_disk = tensors_on_disk(self.optimizer)
        state: dict[str, Tensor] = {}
        for number, (weights, values) in enumerate(self._engine.basic_optimizer.state.items()):
            state[f"{owner}.{number}.weights"] = on_disk.get(id(weights), weights.detach())
            for key, value in values.items():
                if isinstance(value, Tensor):
                    state[f"{owner}.{number}.{key}"] = on_disk.get(id(value), value)
        return state

    @property
    def _owner(self) -> str:
        place = self.layout.mesh.get_coordinate() or ()
        if self.recipe.sharding.optimizer == 1:
            place = (self.layout.pipeline_rank, self.layout.mesh.get_local_rank("tensor"))
        return "-".join(map(str, place))

    def layout_of_state(self) -> dict[str, Tensor]:
        """See Stepper: which parts of the parameters this rank's weights in `state` are, as JSON of
        a `StateLayout`.
        """
        numbers = {
            id(weights): number for number, weights in enumerate(self._engine.basic_optimizer.state)
        }
        parts = []
        for its_name, parameter in self._engine.module.named_parameters():
            part = self._part(parameter, numbers)
            if part is not None:
                name = its_name.lstrip("0123456789.")  # those of a stage begin with its number
                parts.append(
                    StatePart(name, tuple(getattr(parameter, "ds_shape", parameter.shape)), *part)
                )
        layout = StateLayout(
            tensor_rank=self.layout.mesh.get_local_rank("tensor"), parts=tuple(parts)
        )
        return {
            f"{self._owner}{LAYOUT}": torch.frombuffer(
                bytearray(layout.to_json()), dtype=torch.uint8
            )
        }

    def _part(self, parameter: Any, numbers: dict[int, int]) -> tuple[int, int, int, int] | None:
        """Return the number of a tensor, a place in it, one in the flat parameter, and how many
        elements they share.
        """
        optimizer: Any = self.optimizer
        if hasattr(parameter, "ds_id"):  # ZeRO-3: each parameter is cut evenly
            group, place, count = optimizer.grad_position[optimizer.get_param_id(parameter)]
            first = count * dist.get_rank(group=optimizer.dp_process_group)
            count = min(count, parameter.ds_numel - first)  # the last shares are filled up
            number = numbers[id(optimizer.fp32_partitioned_groups_flat[group])]
            return (number, place, first, count) if count > 0 else None
        if hasattr(parameter, "_hp_mapping"):  # ZeRO-1 and 2: all parameters in a row are
            if (mapping := parameter._hp_mapping) is None:
                return None
            there, here = mapping.hp_fragment_address, mapping.lp_fragment_address
            return mapping.param_group_index, there.start, here.start, there.numel
        return numbers[id(parameter)], 0, 0, parameter.numel()

    def restore(self, load: Callable[[dict[str, Tensor]], None]) -> None:
        """See Stepper.

        The weights that the model computes with are copies of those that the optimizer updates,
        made at the end of each step: values are loaded, copied by a step of rate 0, and loaded
        again, since it changed the optimizer's states.
        """
        for _ in range(2):
            set_learning_rate(self.optimizer, 0.0)
            self.step(1)
            load(self.state())


class WholeStepper(DeepSpeedStepper):
    """The whole model on each tensor-parallel group; micro-batches run one after another."""

    def _build(self) -> nn.Module:
        job, shape = self.job, self.job.model
        make = partial(
            Gpt,
            shape,
            sequence_length=job.sequence_length,
            layers=range(len(shape.layers)),
            recipe=self.recipe,
        )
        if zero_stage(job) < 3 or self.recipe.tensor_parallel > 1:
            with torch.device("meta"):
                model = make()
            model.to_empty(device=self.device)
            initialize(model.named_parameters(), seed=job.seed, layers=len(shape.layers))
            return model
        import deepspeed

        # Each parameter is sharded as soon as it is made: no rank ever holds all.
        with deepspeed.zero.Init(config_dict_or_path=configuration(job, parameters=0)):
            model = make()
        for name, parameter in model.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                if dist.get_rank() == 0:
                    initialize([(name, parameter)], seed=job.seed, layers=len(shape.layers))
        return model

    def _loss(self, batch: Batch, *, trains: bool) -> Tensor:
        total = torch.zeros((), device=self.device)
        for micro_batch in batch.split(self.recipe.micro_batch_seqs):
            loss = mean_cross_entropy(self._engine(micro_batch.inputs), micro_batch.targets)
            if trains:
                self._engine.backward(loss)
                self._engine.step()
            total += loss.detach()
        return total / self.recipe.accumulation


class StagedStepper(DeepSpeedStepper):
    """One pipeline stage of the model, or a tensor-parallel share of it."""

    def _build(self) -> nn.Module:
        from deepspeed.pipe import LayerSpec, PipelineModule
        from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

        recipe = self.recipe
        # A stage is one layer to DeepSpeed, so that stages hold the same layers as those of the
        # torch engine.
        stages = stage_layers(len(self.job.model.layers), recipe)
        model: nn.Module = PipelineModule(
            layers=[
                LayerSpec(_Stage, self.job, self.layout, layers, self.device) for layers in stages
            ],
            topology=PipeModelDataParallelTopology(
                num_pp=recipe.pipeline_parallel,
                num_mp=recipe.tensor_parallel,
                num_dp=recipe.data_parallel,
            ),
            loss_fn=mean_cross_entropy,
            partition_method="uniform",
        )
        return model

    def _loss(self, batch: Batch, *, trains: bool) -> Tensor:
        parts = ((part.inputs, part.targets) for part in batch.split(self.recipe.micro_batch_seqs))
        loss: Tensor = (self._engine.train_batch if trains else self._engine.eval_batch)(
            data_iter=parts
        )
        return loss.detach().clone().reshape(())  # DeepSpeed keeps the tensor; evaluations are [1]


class _Stage(Gpt):
    """A stage on its device, with its first weights and, where the recipe says, cut over the
    tensor-parallel ranks.
    """

    def __init__(self, job: Job, layout: Layout, layers: range, device: torch.device) -> None:
        with torch.device("meta"):
            super().__init__(
                job.model, sequence_length=job.sequence_length, layers=layers, recipe=job.recipe
            )
        tensor_ranks = layout.mesh["tensor"]
        if job.recipe.tensor_parallel > 1:
            split_blocks(self, job.model, tensor_ranks, sequence_parallel=False)
        self.to_empty(device=device)
        initialize(self.named_parameters(), seed=job.seed, layers=len(job.model.layers))
        # DeepSpeed counts parameters without this mark once, and those with it on every rank, in
        # the gradient norm.
        split = [
            module.make_plain() for module in self.modules() if isinstance(module, OnLocalWeight)
        ]
        marked = [parameter for parameters in split for parameter in parameters]
        if layout.pipeline_rank > 0 and tensor_ranks.get_local_rank() == 0:
            # Without ZeRO it takes all ranks of a replica for ranks of tensor parallelism: the norm
            # would be that of the first stage.
            marked = list(self.parameters())
        for parameter in marked:
            cast("Any", parameter).model_parallel = True
