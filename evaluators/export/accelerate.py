"""Recipes as Accelerate's configuration with the arguments of a Hugging Face Trainer script.

Keys are those that `accelerate launch --config_file` reads (Accelerate 1.15: `commands/config/config_args.py`,
`utils/launch.py`). Accelerate's file does not hold the micro-batch or accumulation: `TrainingArguments` do.
ZeRO-1 is DeepSpeed's; ZeRO-2, ZeRO-3 and hybrid sharding are FSDP2's, over replicas and context ranks; plain
replicas are DistributedDataParallel's. Ranks are numbered tp-cp-dp.
"""

from __future__ import annotations

from typing import Any

from frontrunner.evaluators.export.base import Export, Tool, launch_of, yaml_text
from frontrunner.evaluators.export.deepspeed import OFFLOADS, zero_sharding
from frontrunner.evaluators.export.reading import (
    Given,
    Options,
    Section,
    embedded_files,
    read_options,
    recipe_of,
    refuse_other_problem,
    yaml_section,
)
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding

FILE = "accelerate.yaml"
SIZE = "parallelism_config_{}_size"


class Accelerate(Tool):
    """Accelerate: a bash file that writes its configuration and sets the Trainer's arguments."""

    name = "accelerate"
    title = "Accelerate"
    usage = f'accelerate launch --config_file {FILE} YOUR_SCRIPT "${{RECIPE_ARGS[@]}}"'
    dimensions = frozenset({"tensor_parallel", "context_parallel", "sharding", "recompute", "compile", "offload"})

    def why_unsupported(self, problem: Problem, recipe: Recipe) -> Reason | None:
        """Return what of the recipe neither FSDP2, DeepSpeed nor DistributedDataParallel runs."""
        del problem
        if recipe.pipeline_parallel > 1:
            return Reason("pipeline-unsaid", f"{self.title} runs pipelines only by Megatron-LM: export megatron-lm")
        if recipe.recompute == "selective":
            return Reason("recompute-unsaid", f"{self.title} recomputes whole layers or none")
        return self._why_no_fsdp(recipe) if _kind(recipe) == "fsdp" else self._why_not_plain(recipe)

    def _why_not_plain(self, recipe: Recipe) -> Reason | None:
        if recipe.tensor_parallel > 1 or recipe.context_parallel > 1:
            reason = f"{self.title} has tensor and context parallelism only with FSDP, not {recipe.sharding_name}"
            return Reason("sharding-unsaid", reason)
        return None if recipe.offload == "none" else Reason("offload-unsaid", f"{self.title} offloads only with FSDP")

    def _why_no_fsdp(self, recipe: Recipe) -> Reason | None:
        name, (p, g, o) = recipe.sharding_name, recipe.sharding.degrees
        if recipe.offload not in ("none", "optimizer+parameters"):
            reason = f"{self.title}'s FSDP offloads optimizer+parameters or none, not {recipe.offload}"
            return Reason("offload-unsaid", reason)
        if not (p == g == o or (p, g, o) == (1, recipe.copies, recipe.copies)):
            return Reason("sharding-unsaid", f"{self.title}'s FSDP has zero-2, zero-3 and hybrid-K, not {name}")
        if o % recipe.context_parallel or (recipe.copies > 1 and o < 2):
            return Reason(
                "sharding-unsaid", f"{self.title}'s FSDP shards over replicas and context ranks, not as {name}"
            )
        return None

    def arguments_and_files(self, problem: Problem, recipe: Recipe) -> Export:
        """Return the Trainer's arguments, and the file that `accelerate launch --config_file` takes."""
        words = ["--per_device_train_batch_size", str(recipe.micro_batch_seqs)]
        words += ["--gradient_accumulation_steps", str(recipe.accumulation)]
        if recipe.recompute == "full" and _kind(recipe) != "fsdp":
            words += ["--gradient_checkpointing", "true"]
        return Export(arguments=tuple(words), files={FILE: yaml_text(settings(problem, recipe))})

    def read(self, problem: Problem, given: Given) -> Recipe:
        """Return the recipe of a script of `render`'s form, or of a configuration alone with the batch stated."""
        inside = embedded_files(given.text).get(FILE)
        said = Options() if inside is None else read_options(given.text)
        found = _configured(problem, yaml_section(given.text if inside is None else inside))
        found["micro_batch_seqs"] = said.number("--per-device-train-batch-size")
        accumulation = said.number("--gradient-accumulation-steps")
        if accumulation is not None and found.setdefault("accumulation", accumulation) != accumulation:
            raise InvalidInput(f"gradient_accumulation_steps is {found['accumulation']} and {accumulation}")
        if said.text("--gradient-checkpointing", "false") != "false":
            found["recompute"] = "full"
        return recipe_of(problem, found | {"engine": given.stated.get("engine", found["engine"])}, given)


def _kind(recipe: Recipe) -> str:
    """Return which of Accelerate's plug-ins runs the recipe: deepspeed, fsdp, or none for plain replicas."""
    if recipe.sharding.optimizer > 1:
        return "deepspeed" if recipe.sharding_name == "zero-1" else "fsdp"
    alone = recipe.copies == 1 and (recipe.tensor_parallel > 1 or recipe.offload != "none")
    return "fsdp" if alone else "none"


def settings(problem: Problem, recipe: Recipe) -> dict[str, Any]:
    """Return the configuration."""
    launch, kind = launch_of(problem, recipe), _kind(recipe)
    on_cpu = problem.cluster.backend == "cpu"
    plain = "NO" if recipe.devices == 1 else "MULTI_CPU" if on_cpu else "MULTI_GPU"
    found: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": {"deepspeed": "DEEPSPEED", "fsdp": "FSDP"}.get(kind, plain),
        "mixed_precision": "no" if problem.precision == "fp32" else problem.precision,
        "num_machines": launch.nodes if launch else 1,
        "num_processes": recipe.devices,
        "use_cpu": on_cpu,
    }
    if recipe.compile:
        found["dynamo_config"] = {"dynamo_backend": "INDUCTOR", "dynamo_use_regional_compilation": True}
    if kind == "deepspeed":
        found["deepspeed_config"] = {
            "zero_stage": 1,
            "gradient_accumulation_steps": recipe.accumulation,
            "zero3_init_flag": False,
        }
    elif kind == "fsdp":
        found |= _fsdp(recipe)
    return found


def _fsdp(recipe: Recipe) -> dict[str, Any]:
    shard = max(1, recipe.sharding.optimizer // recipe.context_parallel)
    sizes = {
        "dp_replicate": recipe.data_parallel // shard,
        "dp_shard": shard,
        "tp": recipe.tensor_parallel,
        "cp": recipe.context_parallel,
    }
    fsdp = {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": recipe.sharding.parameters == recipe.sharding.optimizer,
        "fsdp_activation_checkpointing": recipe.recompute == "full",
        "fsdp_offload_params": recipe.offload != "none",
    }
    return {"fsdp_config": fsdp, "parallelism_config": {SIZE.format(key): value for key, value in sizes.items()}}


def _configured(problem: Problem, root: Section) -> dict[str, Any]:
    kind, precision = root.get("distributed_type"), root.get("mixed_precision", "no")
    refuse_other_problem({"mixed_precision": ("fp32" if precision == "no" else precision, problem.precision)})
    found: dict[str, Any] = {
        "devices": root.number("num_processes"),
        "compile": str(root.table("dynamo_config").get("dynamo_backend", "NO")).upper() != "NO",
        "engine": "deepspeed" if kind == "DEEPSPEED" else "torch",
    }
    if kind == "DEEPSPEED":
        return found | _deepspeed(root.table("deepspeed_config"))
    if kind == "FSDP":
        return found | _sharded(root, found["devices"] or problem.cluster.devices)
    if kind not in ("NO", "MULTI_GPU", "MULTI_CPU", "MULTI_XPU"):
        raise bad_value("distributed_type", kind, "NO, MULTI_GPU, MULTI_CPU, MULTI_XPU, FSDP or DEEPSPEED")
    return found


def _deepspeed(plugin: Section) -> dict[str, Any]:
    if plugin.get("deepspeed_config_file") is not None:
        raise InvalidInput("deepspeed_config.deepspeed_config_file: give that file with --from deepspeed")
    where = tuple(str(plugin.get(f"offload_{what}_device", "none")) for what in ("optimizer", "param"))
    if where not in OFFLOADS:
        raise bad_value("deepspeed_config.offload_optimizer_device, offload_param_device", list(where), "none or cpu")
    key = "gradient_accumulation_steps"
    accumulation = None if plugin.get(key) == "auto" else plugin.number(key)
    found = {"sharding": zero_sharding(plugin, "zero_stage", 2), "offload": OFFLOADS[where]}
    return found | ({"accumulation": accumulation} if accumulation else {})


def _sharded(root: Section, devices: int) -> dict[str, Any]:
    """Return what FSDP2 says: sizes of the mesh, and whether parameters are gathered again for the backward pass."""
    fsdp, mesh = root.table("fsdp_config"), root.table("parallelism_config")
    version = fsdp.get("fsdp_version", 1)
    if version != 2:
        raise bad_value("fsdp_config.fsdp_version", version, "2", hint="accelerate to-fsdp2 converts it")
    mesh.refuse({SIZE.format("sp"): "DeepSpeed's sequence parallelism"})
    replicate, tp, cp = (mesh.number(SIZE.format(key)) or 1 for key in ("dp_replicate", "tp", "cp"))
    shard = mesh.number(SIZE.format("dp_shard")) or max(1, devices // (replicate * tp * cp))
    spread = shard * cp
    reshards = fsdp.get("fsdp_reshard_after_forward", True) in (True, "true", "FULL_SHARD")
    if not reshards and replicate > 1:
        raise bad_value("fsdp_config.fsdp_reshard_after_forward", reshards, "true, with replicated shards")
    return {
        "tensor_parallel": tp,
        "context_parallel": cp,
        "sharding": Sharding(parameters=spread if reshards else 1, gradients=spread, optimizer=spread),
        "recompute": "full" if fsdp.flag("fsdp_activation_checkpointing") else "none",
        "offload": "optimizer+parameters" if fsdp.flag("fsdp_offload_params") else "none",
    }
