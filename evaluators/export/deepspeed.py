"""Recipes as DeepSpeed's JSON configuration (keys as DeepSpeed 0.19 reads them).

What the training script decides and the JSON does not hold is refused: pipelines
(`PipelineModule`), recompute and compilation. DeepSpeed ignores the key "frontrunner", which holds
the provenance: JSON has no comments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from frontrunner.evaluators.export import reading
from frontrunner.evaluators.export.base import Export, Refusal, Tool
from frontrunner.evaluators.export.reading import Given, Table
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.legality import NO_DISK
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import ZERO_PLUS_PLUS, Recipe
from frontrunner.spaces.sharding import SHARDING_NAMES

FILE = "ds_config.json"
PROVENANCE = "frontrunner"
REFUSED = {
    "expert_parallel.expert_tensor_parallel_size": "experts cut by tensor parallelism",
    "zero_optimization.mics_shard_size": "MiCS, which DeepSpeed has removed",
}
OFFLOADS = {
    ("none", "none"): "none",
    ("cpu", "none"): "optimizer",
    ("cpu", "cpu"): "optimizer+parameters",
}
BATCH = {
    "global_batch_seqs": "train_batch_size",
    "micro_batch_seqs": "train_micro_batch_size_per_gpu",
    "accumulation": "gradient_accumulation_steps",
}
AUTO_TP = "tensor_parallel.autotp_size"
ZERO_KEYS = {name: f"zero_optimization.{key}" for name, key in ZERO_PLUS_PLUS.items()}
SECONDARY = "secondary_partition"
AUTO_EP = "expert_parallel.autoep_size"
NAMES = {
    **BATCH,
    "tensor_parallel": AUTO_TP,
    SECONDARY: ZERO_KEYS[SECONDARY],
    "expert_parallel": AUTO_EP,
}


class DeepSpeed(Tool):
    """DeepSpeed: a JSON configuration for a training script of one's own."""

    name = "deepspeed"
    title = "DeepSpeed's configuration"
    has_launcher = False
    names = NAMES
    expressed = frozenset({"sharding", "offload", *ZERO_KEYS})

    def refusals(self, problem: Problem, recipe: Recipe) -> Iterable[Refusal]:
        """Return what the configuration does not hold."""
        stages = f"{self.title} does not say the stages of a pipeline: the training script does"
        recompute = f"{self.title} does not turn recompute on: the training script does"
        return (
            (recipe.pipeline_parallel > 1, "pipeline-unsaid", stages),
            (recipe.recompute != "none", "recompute-unsaid", recompute),
            *zero_refusals(problem, recipe),
        )

    def arguments_and_files(self, problem: Problem, recipe: Recipe) -> Export:
        """Return the configuration and the option that names it."""
        files = {FILE: json_text(configuration(problem, recipe))}
        return Export(arguments=("--deepspeed", "--deepspeed_config", FILE), files=files)

    def render(self, problem: Problem, recipe: Recipe, header: Sequence[str]) -> str:
        """Return the configuration alone, the header in a key of its own."""
        notes = self.export(problem, recipe).notes
        return json_text({PROVENANCE: [*header, *notes]} | configuration(problem, recipe))

    def read(self, problem: Problem, given: Given) -> Recipe:
        """Return the recipe of a configuration; numbers that it leaves to the script ("auto") have
        to be stated.
        """
        root = given.keep(reading.json_table(given.text))
        root.seen.add(PROVENANCE)
        found = choices(problem, root)
        stages = root.get("pipeline.stages", "auto")
        if stages not in ("auto", 1):
            raise bad_value(
                "pipeline.stages", stages, "no pipeline: give Megatron-DeepSpeed's arguments"
            )
        batch, micro, accumulation = (found.get(key) for key in BATCH)
        if batch and micro and accumulation and "devices" not in given.stated:
            replicas, rest = divmod(batch, micro * accumulation)
            if rest:
                raise bad_value(
                    "train_batch_size", batch, f"a multiple of {micro} x {accumulation}"
                )
            found["devices"] = replicas * found["tensor_parallel"]
        return reading.recipe_of(problem, found, given, engine="deepspeed")


def zero_refusals(problem: Problem, recipe: Recipe) -> tuple[Refusal, ...]:
    """Refuse what is not ZeRO 0 to 3 over all replicas, and an offload to a disk that the cluster
    does not name.
    """
    name, no_disk = (
        recipe.sharding_name,
        recipe.offload == "nvme" and problem.cluster.nvme_path is None,
    )
    unsaid = f"DeepSpeed has ZeRO 0 to 3 over all replicas, not {name}"
    return (
        (name not in SHARDING_NAMES, "sharding-unsaid", unsaid),
        (no_disk, "offload-nvme", NO_DISK),
    )


def zero_stage(recipe: Recipe) -> int | None:
    """Return the ZeRO stage, 0 to 3, and over one copy the lowest that has the recipe's offload;
    else None.
    """
    name = recipe.sharding_name
    if recipe.copies > 1:
        return SHARDING_NAMES.index(name) if name in SHARDING_NAMES else None
    return {"none": 0, "optimizer": 1}.get(recipe.offload, 3)


def configuration(problem: Problem, recipe: Recipe) -> dict[str, Any]:
    """Return the recipe in DeepSpeed's keys."""
    zero: dict[str, Any] = {"stage": zero_stage(recipe)}
    place = {"device": "cpu"}
    if recipe.offload == "nvme":
        place = {"device": "nvme", "nvme_path": str(problem.cluster.nvme_path)}
    if recipe.offload != "none":
        zero["offload_optimizer"] = place
    if recipe.offload in ("optimizer+parameters", "nvme"):
        zero["offload_param"] = place
    zero |= recipe.zero_plus_plus
    settings: dict[str, Any] = {name: getattr(recipe, key) for key, name in BATCH.items()}
    settings["zero_optimization"] = zero
    if recipe.quantized_gradients:  # DeepSpeed's kernels read gradients as fp16 whatever they are
        settings["communication_data_type"] = "fp16"
    if problem.precision != "fp32":
        settings[problem.precision] = {"enabled": True}
    if recipe.tensor_parallel > 1:
        settings["tensor_parallel"] = {"autotp_size": recipe.tensor_parallel}
    if recipe.expert_parallel > 1:
        settings["expert_parallel"] = {"enabled": True, "autoep_size": recipe.expert_parallel}
    return settings


def json_text(settings: Mapping[str, Any]) -> str:
    """Return the configuration as a file's text."""
    return json.dumps(settings, indent=2) + "\n"


def choices(problem: Problem, root: Table) -> dict[str, Any]:
    """Return what a configuration says of a recipe."""
    root.refuse(REFUSED)
    _refuse_other_precision(problem, root)
    keys = ("offload_optimizer", "offload_param")
    devices = tuple(str(root.get(f"zero_optimization.{key}.device", "none")) for key in keys)
    offloads = OFFLOADS | {("nvme", "nvme"): "nvme"}
    if devices not in offloads:
        expected = "the optimizer on cpu, or optimizer and parameters both on cpu or both on nvme"
        raise bad_value(
            "zero_optimization.offload_optimizer, offload_param", list(devices), expected
        )
    return {
        **{key: root.number(name) for key, name in BATCH.items() if root.get(name) != "auto"},
        "tensor_parallel": root.number(AUTO_TP) if root.get(AUTO_TP) else 1,
        "expert_parallel": root.number(AUTO_EP) if root.flag("expert_parallel.enabled") else 1,
        "sharding": zero_sharding(root, "zero_optimization.stage", 0),
        "offload": offloads[devices],
        **{name: root.flag(key) for name, key in ZERO_KEYS.items() if name != SECONDARY},
        SECONDARY: root.number(ZERO_KEYS[SECONDARY]) or 1,
    }


def zero_sharding(root: Table, key: str, default: int) -> str:
    """Return the sharding of a ZeRO stage."""
    return root.choice(key, default, dict(enumerate(SHARDING_NAMES)))


def _refuse_other_precision(problem: Problem, root: Table) -> None:
    """Raise `InvalidInput` for another precision: fp32 where none is enabled, and none where one is
    "auto".
    """
    if root.flag("torch_autocast.enabled"):
        raise InvalidInput("torch_autocast: no recipe of ours computes by autocast")
    found = False
    for key, precision in {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16"}.items():
        if root.get(f"{key}.enabled") == "auto":
            found = True
        elif root.flag(f"{key}.enabled"):
            found = True
            reading.refuse_other_problem({f"{key}.enabled": (precision, problem.precision)})
    if not found:
        reading.refuse_other_default(
            "neither bf16.enabled nor fp16.enabled is there", "fp32", problem.precision
        )
