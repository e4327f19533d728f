"""Recipes as Accelerate's configuration with the arguments of a Hugging Face Trainer script.

Keys are those that `accelerate launch --config_file` reads (Accelerate 1.15: `commands/config/config_args.py`,
`utils/launch.py`). Accelerate's file does not say the micro-batch: `TrainingArguments` of transformers do, and the
accumulation. ZeRO-1 is DeepSpeed's; ZeRO-2, ZeRO-3 and hybrid sharding are FSDP2's, over replicas and context ranks;
plain replicas are DistributedDataParallel's. Ranks are numbered tp-cp-dp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from frontrunner.evaluators.export import script
from frontrunner.evaluators.export.export import Export, launch_of, why_no_launch, why_unsaid
from frontrunner.evaluators.export.given import (
    Given,
    flag_in,
    number,
    number_in,
    recipe_of,
    refuse_other_problem,
    table_in,
)
from frontrunner.evaluators.export.parsed import yaml_table, yaml_text
from frontrunner.evaluators.export.shell import embedded_files, options
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.reasons import Reason
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import SHARDING_NAMES, Sharding

TOOL = "Accelerate"
FILE = "accelerate.yaml"
SAYS = frozenset({"tensor_parallel", "context_parallel", "sharding", "recompute", "compile", "offload"})
SIZE = "parallelism_config_{}_size"


def why_not(problem: Problem, recipe: Recipe) -> Reason | None:
    """Why Accelerate cannot be told this recipe."""
    if recipe.pipeline_parallel > 1:
        return Reason("pipeline-unsaid", f"{TOOL} runs pipelines by Megatron-LM alone: export megatron-lm")
    if recipe.recompute == "selective":
        return Reason("recompute-unsaid", f"{TOOL} recomputes whole layers or none")
    return why_unsaid(recipe, TOOL, SAYS) or why_no_launch(problem, recipe) or _why_no_sharding(recipe)


def _why_no_sharding(recipe: Recipe) -> Reason | None:
    kind, name = _kind(recipe), recipe.sharding_name
    p, g, o = recipe.sharding.degrees
    if kind == "fsdp" and recipe.offload not in ("none", "optimizer+parameters"):
        return Reason("offload-unsaid", f"{TOOL}'s FSDP offloads optimizer+parameters or none, not {recipe.offload}")
    if kind != "fsdp":
        if recipe.tensor_parallel > 1 or recipe.context_parallel > 1:
            return Reason("sharding-unsaid", f"{TOOL} has tensor and context parallelism with FSDP alone, not {name}")
        return Reason("offload-unsaid", f"{TOOL} offloads with FSDP alone") if recipe.offload != "none" else None
    if not (p == g == o or (p, g, o) == (1, recipe.copies, recipe.copies)):
        return Reason("sharding-unsaid", f"{TOOL}'s FSDP has zero-2, zero-3 and hybrid-K, not {name}")
    if o % recipe.context_parallel or (recipe.copies > 1 and o < 2):
        return Reason("sharding-unsaid", f"{TOOL}'s FSDP spreads over replicas and context ranks, not as {name}")
    return None


def _kind(recipe: Recipe) -> str:
    """Which of Accelerate's plug-ins runs the recipe: deepspeed, fsdp, or none for plain replicas."""
    if recipe.sharding.optimizer > 1:
        return "deepspeed" if recipe.sharding_name == "zero-1" else "fsdp"
    alone = recipe.copies == 1 and (recipe.tensor_parallel > 1 or recipe.offload != "none")
    return "fsdp" if alone else "none"


def settings(problem: Problem, recipe: Recipe) -> dict[str, Any]:
    """The configuration."""
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


def export(problem: Problem, recipe: Recipe) -> Export:
    """The Trainer's arguments, beside the file that `accelerate launch --config_file` is given."""
    words = ["--per_device_train_batch_size", str(recipe.micro_batch_seqs)]
    words += ["--gradient_accumulation_steps", str(recipe.accumulation)]
    if recipe.recompute == "full" and _kind(recipe) != "fsdp":
        words += ["--gradient_checkpointing", "true"]
    return Export(arguments=tuple(words), files={FILE: yaml_text(settings(problem, recipe))})


def render(problem: Problem, recipe: Recipe, header: Sequence[str]) -> str:
    """A bash file to be sourced: it writes the configuration and sets the Trainer's arguments."""
    found = export(problem, recipe)
    use = f'Use: source this file; accelerate launch --config_file {FILE} YOUR_SCRIPT "${{RECIPE_ARGS[@]}}"'
    return script.script((*header, use), {"RECIPE_ARGS": found.arguments}, found.files)


def read(problem: Problem, given: Given) -> Recipe:
    """The recipe of a script of `render`'s form, or of a configuration alone with the batch stated beside it."""
    inside = embedded_files(given.text).get(FILE)
    said = options(given.text) if inside is not None else {}
    table = yaml_table(given.text if inside is None else inside)
    found = _configured(problem, table)
    found["micro_batch_seqs"] = _argument(said, "--per-device-train-batch-size")
    accumulation = _argument(said, "--gradient-accumulation-steps")
    if accumulation is not None and found.setdefault("accumulation", accumulation) != accumulation:
        raise InvalidInput(f"gradient_accumulation_steps is {found['accumulation']} and {accumulation}")
    if said.get("--gradient-checkpointing", ("false",)) != ("false",):
        found["recompute"] = "full"
    return recipe_of(problem, found | {"engine": given.stated.get("engine", found["engine"])}, given)


def _argument(said: Mapping[str, tuple[str, ...]], name: str) -> int | None:
    return number(name, said[name]) if name in said else None


def _configured(problem: Problem, table: Mapping[str, Any]) -> dict[str, Any]:
    kind, precision = table.get("distributed_type"), table.get("mixed_precision") or "no"
    refuse_other_problem({"mixed_precision": ("fp32" if precision == "no" else precision, problem.precision)})
    dynamo = table_in(table, "dynamo_config", "dynamo_config")
    found: dict[str, Any] = {
        "devices": number_in(table, "num_processes", "num_processes"),
        "compile": str(dynamo.get("dynamo_backend", "NO")).upper() != "NO",
        "engine": "deepspeed" if kind == "DEEPSPEED" else "torch",
    }
    if kind == "DEEPSPEED":
        return found | _deepspeed(table_in(table, "deepspeed_config", "deepspeed_config"))
    if kind == "FSDP":
        return found | _sharded(table, found["devices"] or problem.cluster.devices)
    if kind not in ("NO", "MULTI_GPU", "MULTI_CPU", "MULTI_XPU"):
        raise bad_value("distributed_type", kind, "NO, MULTI_GPU, MULTI_CPU, MULTI_XPU, FSDP or DEEPSPEED")
    return found


def _deepspeed(plugin: Mapping[str, Any]) -> dict[str, Any]:
    if plugin.get("deepspeed_config_file") is not None:
        raise InvalidInput("deepspeed_config.deepspeed_config_file: give that file with --from deepspeed")
    stage = plugin.get("zero_stage", 2)
    if isinstance(stage, bool) or not isinstance(stage, int) or stage not in range(4):
        raise bad_value("deepspeed_config.zero_stage", stage, "0 to 3")
    where = tuple(plugin.get(f"offload_{what}_device") or "none" for what in ("optimizer", "param"))
    words = {("none", "none"): "none", ("cpu", "none"): "optimizer", ("cpu", "cpu"): "optimizer+parameters"}
    if where not in list(words):  # compared, for a list has no hash
        raise bad_value("deepspeed_config.offload_optimizer_device, offload_param_device", where, "none or cpu")
    key = "gradient_accumulation_steps"
    accumulation = None if plugin.get(key) == "auto" else number_in(plugin, key, f"deepspeed_config.{key}")
    found = {"sharding": SHARDING_NAMES[stage], "offload": words[where]}
    return found | ({"accumulation": accumulation} if accumulation else {})


def _sharded(table: Mapping[str, Any], devices: int) -> dict[str, Any]:
    """What FSDP2 says: sizes of the mesh, and whether parameters are gathered again for the backward pass."""
    fsdp, mesh = (
        table_in(table, "fsdp_config", "fsdp_config"),
        table_in(table, "parallelism_config", "parallelism_config"),
    )
    if fsdp.get("fsdp_version", 1) != 2:
        raise bad_value(
            "fsdp_config.fsdp_version", fsdp.get("fsdp_version", 1), "2", hint="accelerate to-fsdp2 converts it"
        )
    sizes = {
        key: number_in(mesh, SIZE.format(key), SIZE.format(key)) or 1 for key in ("dp_replicate", "tp", "cp", "sp")
    }
    if sizes["sp"] > 1:
        raise InvalidInput("parallelism_config_sp_size: no recipe of ours has DeepSpeed's sequence parallelism here")
    within = sizes["dp_replicate"] * sizes["tp"] * sizes["cp"]
    shard = number_in(mesh, SIZE.format("dp_shard"), SIZE.format("dp_shard")) or max(1, devices // within)
    spread = shard * sizes["cp"]
    reshards = fsdp.get("fsdp_reshard_after_forward", True) in (True, "true", "FULL_SHARD")
    if not reshards and sizes["dp_replicate"] > 1:
        raise bad_value("fsdp_config.fsdp_reshard_after_forward", reshards, "true, with replicated shards")
    recompute = flag_in(fsdp, "fsdp_activation_checkpointing", "fsdp_config.fsdp_activation_checkpointing")
    offloads = flag_in(fsdp, "fsdp_offload_params", "fsdp_config.fsdp_offload_params")
    return {
        "tensor_parallel": sizes["tp"],
        "context_parallel": sizes["cp"],
        "sharding": Sharding(parameters=spread if reshards else 1, gradients=spread, optimizer=spread),
        "recompute": "full" if recompute else "none",
        "offload": "optimizer+parameters" if offloads else "none",
    }
