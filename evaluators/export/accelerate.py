"""Recipes as Accelerate's configuration with the arguments of a Hugging Face Trainer script.

Keys are those that `accelerate launch --config_file` reads (Accelerate 1.15:
`commands/config/config_args.py`, `utils/launch.py`). Accelerate's file does not hold the
micro-batch or accumulation: `TrainingArguments` do. ZeRO-1 is DeepSpeed's; ZeRO-2, ZeRO-3 and
hybrid sharding are FSDP2's, over replicas and context ranks; plain replicas are
DistributedDataParallel's. Ranks are numbered tp-cp-dp.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from frontrunner.evaluators.export import reading
from frontrunner.evaluators.export.base import (
    Export,
    Refusal,
    Tool,
    fsdp_degrees,
    fsdp_sharding,
    launch_of,
    nested,
    words,
    yaml_text,
)
from frontrunner.evaluators.export.deepspeed import OFFLOADS, zero_sharding
from frontrunner.evaluators.export.reading import Given, Options, Table
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

FILE = "accelerate.yaml"
MESH = "parallelism_config.parallelism_config_{}_size"
CHECKPOINTING = "--gradient_checkpointing"
BATCH, MESHED = ("micro_batch_seqs", "accumulation"), ("tensor_parallel", "context_parallel")
NAMES = {
    "tensor_parallel": MESH.format("tp"),
    "context_parallel": MESH.format("cp"),
    "micro_batch_seqs": "--per_device_train_batch_size",
    "accumulation": "--gradient_accumulation_steps",
}


class Accelerate(Tool):
    """Accelerate: a bash file that writes its configuration and sets the Trainer's arguments."""

    name = "accelerate"
    title = "Accelerate"
    usage = f'accelerate launch --config_file {FILE} YOUR_SCRIPT "${{RECIPE_ARGS[@]}}"'
    names = NAMES
    expressed = frozenset({"sharding", "recompute", "compile", "offload"})

    def refusals(self, problem: Problem, recipe: Recipe) -> Iterable[Refusal]:
        """Return what of the recipe neither FSDP2, DeepSpeed nor DistributedDataParallel runs."""
        del problem
        tool, name, (p, g, o), copies = (
            self.title,
            recipe.sharding_name,
            recipe.sharding.degrees,
            recipe.copies,
        )
        cp, is_fsdp, offload = recipe.context_parallel, _kind(recipe) == "fsdp", recipe.offload
        return (
            (recipe.pipeline_parallel > 1, "pipeline-unsaid",
             f"{tool} runs pipelines only by Megatron-LM: export megatron-lm"),
            (recipe.recompute == "selective", "recompute-unsaid",
                f"{tool} recomputes whole layers or none"),
            (not is_fsdp and max(recipe.tensor_parallel, cp) > 1, "sharding-unsaid",
             f"{tool} has tensor and context parallelism only with FSDP, not {name}"),
            (not is_fsdp and offload != "none", "offload-unsaid",
                f"{tool} offloads only with FSDP"),
            (offload not in ("none", "optimizer+parameters"), "offload-unsaid",
             f"{tool}'s FSDP offloads optimizer+parameters or none, not {offload}"),
            (is_fsdp and not (p == g == o or (p, g, o) == (1, copies, copies)), "sharding-unsaid",
             f"{tool}'s FSDP has zero-2, zero-3 and hybrid-K, not {name}"),
            (is_fsdp and (o % cp or (copies > 1 and o < 2)), "sharding-unsaid",
             f"{tool}'s FSDP shards over replicas and context ranks, not as {name}"),
        )  # fmt: skip

    def arguments_and_files(self, problem: Problem, recipe: Recipe) -> Export:
        """Return the Trainer's arguments, and the file that `accelerate launch --config_file`
        takes.
        """
        arguments = self.numbers(recipe, *MESHED)
        if recipe.recompute == "full" and _kind(recipe) != "fsdp":
            arguments[CHECKPOINTING] = "true"
        files = {FILE: yaml_text(nested(self._settings(problem, recipe)))}
        return Export(arguments=words(arguments), files=files)

    def _settings(self, problem: Problem, recipe: Recipe) -> dict[str, Any]:
        kind, on_cpu = _kind(recipe), problem.cluster.backend == "cpu"
        plain = "NO" if recipe.devices == 1 else "MULTI_CPU" if on_cpu else "MULTI_GPU"
        found: dict[str, Any] = {
            "compute_environment": "LOCAL_MACHINE",
            "distributed_type": {"deepspeed": "DEEPSPEED", "fsdp": "FSDP"}.get(kind, plain),
            "mixed_precision": "no" if problem.precision == "fp32" else problem.precision,
            "num_machines": launch_of(problem, recipe)[0],
            "num_processes": recipe.devices,
            "use_cpu": on_cpu,
        }
        if recipe.compile:
            found["dynamo_config"] = {
                "dynamo_backend": "INDUCTOR",
                "dynamo_use_regional_compilation": True,
            }
        if kind == "deepspeed":
            found |= {
                "deepspeed_config.zero_stage": 1,
                "deepspeed_config.gradient_accumulation_steps": recipe.accumulation,
                "deepspeed_config.zero3_init_flag": False,
            }
        if kind == "fsdp":
            replicate, shard, _ = fsdp_degrees(recipe)
            found |= {
                "fsdp_config.fsdp_version": 2,
                "fsdp_config.fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "fsdp_config.fsdp_reshard_after_forward": (
                    recipe.sharding.parameters == recipe.sharding.optimizer
                ),
                "fsdp_config.fsdp_activation_checkpointing": recipe.recompute == "full",
                "fsdp_config.fsdp_offload_params": recipe.offload != "none",
                MESH.format("dp_replicate"): replicate,
                MESH.format("dp_shard"): shard,
                **self.numbers(recipe, *BATCH),
            }
        return found

    def read(self, problem: Problem, given: Given) -> Recipe:
        """Return the recipe of a script of `render`'s form, or of a configuration alone with the
        batch stated.
        """
        inside = reading.split_files(given.text)[1].get(FILE)
        said = Options({}) if inside is None else given.keep(reading.read_options(given.text))
        root = given.keep(reading.yaml_table(given.text if inside is None else inside))
        kind, precision = root.get("distributed_type"), root.get("mixed_precision", "no")
        precision = "fp32" if precision == "no" else precision
        reading.refuse_other_problem({"mixed_precision": (precision, problem.precision)})
        found: dict[str, Any] = {
            "devices": root.number("num_processes"),
            "compile": str(root.get("dynamo_config.dynamo_backend", "NO")).upper() != "NO",
        }
        if kind == "DEEPSPEED":
            found |= _deepspeed(root)
        elif kind == "FSDP":
            found |= self._sharded(root, found["devices"] or problem.cluster.devices)
        elif kind not in ("NO", "MULTI_GPU", "MULTI_CPU", "MULTI_XPU"):
            raise bad_value(
                "distributed_type", kind, "NO, MULTI_GPU, MULTI_CPU, MULTI_XPU, FSDP or DEEPSPEED"
            )
        found["micro_batch_seqs"] = said.number(self.names["micro_batch_seqs"])
        accumulation = said.number(self.names["accumulation"])
        if (
            accumulation is not None
            and found.setdefault("accumulation", accumulation) != accumulation
        ):
            raise InvalidInput(
                f"gradient_accumulation_steps is {found['accumulation']} and {accumulation}"
            )
        if str(said.get(CHECKPOINTING, "false")) != "false":
            found["recompute"] = "full"
        return reading.recipe_of(
            problem, found, given, engine="deepspeed" if kind == "DEEPSPEED" else "torch"
        )

    def _sharded(self, root: Table, devices: int) -> dict[str, Any]:
        """Return what FSDP2 says: sizes of the mesh, and whether parameters are gathered again for
        backward.
        """
        version = root.get("fsdp_config.fsdp_version", 1)
        if version != 2:
            raise bad_value(
                "fsdp_config.fsdp_version", version, "2", hint="accelerate to-fsdp2 converts it"
            )
        root.refuse({MESH.format("sp"): "DeepSpeed's sequence parallelism"})
        mesh = {number: root.number(self.names[number]) or 1 for number in MESHED}
        replicate = root.number(MESH.format("dp_replicate")) or 1
        shard = root.number(MESH.format("dp_shard")) or max(
            1, devices // (replicate * math.prod(mesh.values()))
        )
        key = "fsdp_config.fsdp_reshard_after_forward"
        reshards = root.get(key, default=True) in (True, "true", "FULL_SHARD")
        if not reshards and replicate > 1:
            raise bad_value(key, reshards, "true, with replicated shards")
        return mesh | {
            "sharding": fsdp_sharding(mesh, shard, keeps_parameters=not reshards),
            "recompute": (
                "full" if root.flag("fsdp_config.fsdp_activation_checkpointing") else "none"
            ),
            "offload": (
                "optimizer+parameters" if root.flag("fsdp_config.fsdp_offload_params") else "none"
            ),
        }


def _kind(recipe: Recipe) -> str:
    """Return which of Accelerate's plug-ins runs the recipe: deepspeed, fsdp, or none for plain
    replicas.
    """
    if recipe.sharding.optimizer > 1:
        return "deepspeed" if recipe.sharding_name == "zero-1" else "fsdp"
    alone = recipe.copies == 1 and (recipe.tensor_parallel > 1 or recipe.offload != "none")
    return "fsdp" if alone else "none"


def _deepspeed(root: Table) -> dict[str, Any]:
    if root.get("deepspeed_config.deepspeed_config_file") is not None:
        raise InvalidInput(
            "deepspeed_config.deepspeed_config_file: give that file with --from deepspeed"
        )
    where = tuple(
        str(root.get(f"deepspeed_config.offload_{what}_device", "none"))
        for what in ("optimizer", "param")
    )
    if where not in OFFLOADS:
        raise bad_value(
            "deepspeed_config.offload_optimizer_device, offload_param_device",
            list(where),
            "none or cpu",
        )
    found = {
        "sharding": zero_sharding(root, "deepspeed_config.zero_stage", 2),
        "offload": OFFLOADS[where],
    }
    key = "deepspeed_config.gradient_accumulation_steps"
    accumulation = None if root.get(key) == "auto" else root.number(key)
    return found | ({"accumulation": accumulation} if accumulation else {})
