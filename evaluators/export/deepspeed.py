"""Recipes as DeepSpeed's JSON configuration (keys as DeepSpeed 0.19 reads them).

What the training script decides and the JSON cannot say is refused: pipelines (`PipelineModule`), recompute and
compilation. DeepSpeed takes no notice of the key "frontrunner", which holds the provenance: JSON has no comments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from frontrunner.evaluators.export.export import Export, why_unsaid
from frontrunner.evaluators.export.given import (
    Given,
    flag_in,
    number_in,
    recipe_of,
    refuse_other_default,
    refuse_other_problem,
    table_in,
)
from frontrunner.evaluators.export.parsed import json_table
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.reasons import Reason
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import SHARDING_NAMES

TOOL = "DeepSpeed's configuration"
FILE = "ds_config.json"
SAYS = frozenset({"tensor_parallel", "sharding", "offload", "secondary_partition"})
PROVENANCE = "frontrunner"
REFUSED = {
    "zero_quantized_weights": "quantised weights",
    "zero_quantized_gradients": "quantised gradients",
    "mics_shard_size": "MiCS, which DeepSpeed has removed",
}


def why_not(problem: Problem, recipe: Recipe) -> Reason | None:
    """Why a DeepSpeed configuration cannot say this recipe."""
    if recipe.pipeline_parallel > 1:
        return Reason("pipeline-unsaid", f"{TOOL} does not say the stages of a pipeline: the training script does")
    if recipe.recompute != "none":
        return Reason("recompute-unsaid", f"{TOOL} does not turn recompute on: the training script does")
    return why_unsaid(recipe, TOOL, SAYS) or why_no_zero(problem, recipe)


def why_no_zero(problem: Problem, recipe: Recipe) -> Reason | None:
    """ZeRO 0 to 3 over all replicas; offload is a part of it, and to a disk needs to be told which."""
    name = recipe.sharding_name
    if name not in SHARDING_NAMES:
        return Reason("sharding-unsaid", f"DeepSpeed has ZeRO 0 to 3 over all replicas, not {name}")
    if recipe.offload == "nvme" and problem.cluster.nvme_path is None:
        return Reason("offload-nvme", "offload nvme needs a folder on each node's own fast disk: set cluster.nvme_path")
    return None


def zero_stage(recipe: Recipe) -> int | None:
    """The ZeRO stage of the sharding, 0 to 3, and over one copy the one that has the recipe's offload; else None."""
    name = recipe.sharding_name
    if recipe.copies > 1:
        return SHARDING_NAMES.index(name) if name in SHARDING_NAMES else None
    return {"none": 0, "optimizer": 1}.get(recipe.offload, 3)


def configuration(problem: Problem, recipe: Recipe) -> dict[str, Any]:
    """The recipe in DeepSpeed's keys."""
    zero: dict[str, Any] = {"stage": zero_stage(recipe)}
    device = "nvme" if recipe.offload == "nvme" else "cpu"
    place = {"device": device} | ({"nvme_path": problem.cluster.nvme_path} if device == "nvme" else {})
    if recipe.offload != "none":
        zero["offload_optimizer"] = place
    if recipe.offload in ("optimizer+parameters", "nvme"):
        zero["offload_param"] = place
    if recipe.secondary_partition > 1:
        zero["zero_hpz_partition_size"] = recipe.secondary_partition
    settings: dict[str, Any] = {
        "train_batch_size": recipe.global_batch_seqs,
        "train_micro_batch_size_per_gpu": recipe.micro_batch_seqs,
        "gradient_accumulation_steps": recipe.accumulation,
        "zero_optimization": zero,
    }
    if problem.precision != "fp32":
        settings[problem.precision] = {"enabled": True}
    if recipe.tensor_parallel > 1:
        settings["tensor_parallel"] = {"autotp_size": recipe.tensor_parallel}
    return settings


def text_of(settings: Mapping[str, Any]) -> str:
    """The configuration as a file's text."""
    return json.dumps(settings, indent=2) + "\n"


def export(problem: Problem, recipe: Recipe) -> Export:
    """The configuration beside the option that names it."""
    files = {FILE: text_of(configuration(problem, recipe))}
    return Export(arguments=("--deepspeed", "--deepspeed_config", FILE), files=files)


def render(problem: Problem, recipe: Recipe, header: Sequence[str]) -> str:
    """The configuration alone, the header in a key of its own."""
    return text_of({PROVENANCE: list(header)} | configuration(problem, recipe))


def read(problem: Problem, given: Given) -> Recipe:
    """The recipe of a configuration; numbers that it leaves to the script ("auto") have to be stated."""
    table = json_table(given.text)
    found = choices(problem, table) | {"engine": given.stated.get("engine", "deepspeed")}
    stages = table_in(table, "pipeline", "pipeline").get("stages", "auto")
    if stages not in ("auto", 1):
        raise bad_value("pipeline.stages", stages, "no pipeline: give Megatron-DeepSpeed's arguments")
    sizes = [found.get(key) for key in ("global_batch_seqs", "micro_batch_seqs", "accumulation")]
    if all(sizes) and "devices" not in given.stated:
        batch, micro, accumulation = (int(size or 1) for size in sizes)
        replicas, rest = divmod(batch, micro * accumulation)
        if rest:
            raise bad_value("train_batch_size", batch, f"a multiple of {micro} x {accumulation}")
        found["devices"] = replicas * found["tensor_parallel"]
    return recipe_of(problem, found, given)


def choices(problem: Problem, table: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration says of a recipe."""
    zero = table_in(table, "zero_optimization", "zero_optimization")
    for key, what in REFUSED.items():
        if zero.get(key) not in (None, False, -1):
            raise InvalidInput(f"zero_optimization.{key}: no recipe of ours has {what}")
    _refuse_other_precision(problem, table)
    parallel = table_in(table, "tensor_parallel", "tensor_parallel")
    batch = {
        "global_batch_seqs": "train_batch_size",
        "micro_batch_seqs": "train_micro_batch_size_per_gpu",
        "accumulation": "gradient_accumulation_steps",
    }
    return {
        **{key: number_in(table, name, name) for key, name in batch.items() if table.get(name) != "auto"},
        "tensor_parallel": (parallel.get("autotp_size") and number_in(parallel, "autotp_size", "autotp_size")) or 1,
        "sharding": _sharding(zero),
        "offload": _offload(zero),
        "secondary_partition": number_in(zero, "zero_hpz_partition_size", "zero_hpz_partition_size") or 1,
    }


def _refuse_other_precision(problem: Problem, table: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for another precision; DeepSpeed trains in fp32 where none is enabled.

    "auto" leaves it to the script that fills the configuration in.
    """
    if flag_in(table_in(table, "torch_autocast", "torch_autocast"), "enabled", "torch_autocast.enabled"):
        raise InvalidInput("torch_autocast: no recipe of ours computes by autocast")
    sections = {key: table_in(table, key, key) for key in ("bf16", "bfloat16", "fp16")}
    left_open = [key for key, section in sections.items() if section.get("enabled") == "auto"]
    enabled = [
        key
        for key, section in sections.items()
        if key not in left_open and flag_in(section, "enabled", f"{key}.enabled")
    ]
    for key in enabled:
        refuse_other_problem({f"{key}.enabled": ("bf16" if key == "bfloat16" else key, problem.precision)})
    if not enabled and not left_open:
        refuse_other_default("neither bf16.enabled nor fp16.enabled is there", "fp32", problem.precision)


def _sharding(zero: Mapping[str, Any]) -> str:
    stage = zero.get("stage", 0)
    if isinstance(stage, bool) or not isinstance(stage, int) or stage not in range(4):
        raise bad_value("zero_optimization.stage", stage, "0 to 3")
    return SHARDING_NAMES[int(stage)]


def _offload(zero: Mapping[str, Any]) -> str:
    devices = []
    for key in ("offload_optimizer", "offload_param"):
        device = table_in(zero, key, f"zero_optimization.{key}").get("device", "none")
        devices.append("none" if device is None else device)
    words = {("none", "none"): "none", ("cpu", "none"): "optimizer", ("cpu", "cpu"): "optimizer+parameters"}
    words[("nvme", "nvme")] = "nvme"
    if tuple(devices) not in list(words):  # compared, for a list has no hash
        expected = "the optimizer on cpu, or optimizer and parameters both on cpu or both on nvme"
        raise bad_value("zero_optimization.offload_optimizer, offload_param", devices, expected)
    return words[devices[0], devices[1]]
