"""Recipes as DeepSpeed's JSON configuration (keys as DeepSpeed 0.19 reads them).

What the training script decides and the JSON does not hold is refused: pipelines (`PipelineModule`), recompute and
compilation. DeepSpeed ignores the key "frontrunner", which holds the provenance: JSON has no comments.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from frontrunner.evaluators.export.base import NAMES, Export, Tool
from frontrunner.evaluators.export.reading import (
    Given,
    Table,
    json_table,
    recipe_of,
    refuse_other_default,
    refuse_other_problem,
)
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import SHARDING_NAMES

FILE = "ds_config.json"
PROVENANCE = "frontrunner"
REFUSED = {
    "zero_optimization.zero_quantized_weights": "quantized weights",
    "zero_optimization.zero_quantized_gradients": "quantized gradients",
    "zero_optimization.mics_shard_size": "MiCS, which DeepSpeed has removed",
}
OFFLOADS = {("none", "none"): "none", ("cpu", "none"): "optimizer", ("cpu", "cpu"): "optimizer+parameters"}
BATCH = {key: NAMES[key]["deepspeed"] for key in ("global_batch_seqs", "micro_batch_seqs", "accumulation")}
AUTO_TP = NAMES["tensor_parallel"]["deepspeed"]


class DeepSpeed(Tool):
    """DeepSpeed: a JSON configuration for a training script of one's own."""

    name = "deepspeed"
    title = "DeepSpeed's configuration"
    has_launcher = False
    expressed = frozenset({"sharding", "offload"})

    def refusals(self, problem: Problem, recipe: Recipe) -> Iterator[Reason]:
        """Yield what the configuration does not hold."""
        if recipe.pipeline_parallel > 1:
            why = f"{self.title} does not say the stages of a pipeline: the training script does"
            yield Reason("pipeline-unsaid", why)
        if recipe.recompute != "none":
            why = f"{self.title} does not turn recompute on: the training script does"
            yield Reason("recompute-unsaid", why)
        yield from zero_refusals(problem, recipe)

    def arguments_and_files(self, problem: Problem, recipe: Recipe) -> Export:
        """Return the configuration and the option that names it."""
        files = {FILE: json_text(configuration(problem, recipe))}
        return Export(arguments=("--deepspeed", "--deepspeed_config", FILE), files=files)

    def render(self, problem: Problem, recipe: Recipe, header: Sequence[str]) -> str:
        """Return the configuration alone, the header in a key of its own."""
        self.export(problem, recipe)
        return json_text({PROVENANCE: list(header)} | configuration(problem, recipe))

    def read(self, problem: Problem, given: Given) -> Recipe:
        """Return the recipe of a configuration; numbers that it leaves to the script ("auto") have to be stated."""
        root = json_table(given.text)
        found = choices(problem, root)
        stages = root.get("pipeline.stages", "auto")
        if stages not in ("auto", 1):
            raise bad_value("pipeline.stages", stages, "no pipeline: give Megatron-DeepSpeed's arguments")
        batch, micro, accumulation = (found.get(key) for key in BATCH)
        if batch and micro and accumulation and "devices" not in given.stated:
            replicas, rest = divmod(batch, micro * accumulation)
            if rest:
                raise bad_value("train_batch_size", batch, f"a multiple of {micro} x {accumulation}")
            found["devices"] = replicas * found["tensor_parallel"]
        return recipe_of(problem, found, given, engine="deepspeed")


def zero_refusals(problem: Problem, recipe: Recipe) -> Iterator[Reason]:
    """Yield what is not ZeRO 0 to 3 over all replicas, and an offload to a disk that the cluster does not name."""
    name = recipe.sharding_name
    if name not in SHARDING_NAMES:
        yield Reason("sharding-unsaid", f"DeepSpeed has ZeRO 0 to 3 over all replicas, not {name}")
    if recipe.offload == "nvme" and problem.cluster.nvme_path is None:
        why = "offload nvme needs a folder on each node's own fast disk: set cluster.nvme_path"
        yield Reason("offload-nvme", why)


def zero_stage(recipe: Recipe) -> int | None:
    """Return the ZeRO stage, 0 to 3, and over one copy the lowest that has the recipe's offload; else None."""
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
    if recipe.secondary_partition > 1:
        zero["zero_hpz_partition_size"] = recipe.secondary_partition
    settings: dict[str, Any] = {name: getattr(recipe, key) for key, name in BATCH.items()}
    settings["zero_optimization"] = zero
    if problem.precision != "fp32":
        settings[problem.precision] = {"enabled": True}
    if recipe.tensor_parallel > 1:
        settings["tensor_parallel"] = {"autotp_size": recipe.tensor_parallel}
    return settings


def json_text(settings: Mapping[str, Any]) -> str:
    """Return the configuration as a file's text."""
    return json.dumps(settings, indent=2) + "\n"


def choices(problem: Problem, root: Table) -> dict[str, Any]:
    """Return what a configuration says of a recipe."""
    root.refuse(REFUSED)
    _refuse_other_precision(problem, root)
    return {
        **{key: root.number(name) for key, name in BATCH.items() if root.get(name) != "auto"},
        "tensor_parallel": root.number(AUTO_TP) if root.get(AUTO_TP) else 1,
        "sharding": zero_sharding(root, "zero_optimization.stage", 0),
        "offload": _offload(root),
        "secondary_partition": root.number(NAMES["secondary_partition"]["deepspeed"]) or 1,
    }


def zero_sharding(root: Table, key: str, default: int) -> str:
    """Return the sharding of a ZeRO stage."""
    return root.choice(key, default, dict(enumerate(SHARDING_NAMES)))


def _refuse_other_precision(problem: Problem, root: Table) -> None:
    """Raise `InvalidInput` for another precision; DeepSpeed trains in fp32 where none is enabled.

    "auto" leaves it to the script that fills the configuration in.
    """
    if root.flag("torch_autocast.enabled"):
        raise InvalidInput("torch_autocast: no recipe of ours computes by autocast")
    is_open, enabled = False, False
    for key in ("bf16", "bfloat16", "fp16"):
        if root.get(f"{key}.enabled") == "auto":
            is_open = True
        elif root.flag(f"{key}.enabled"):
            enabled = True
            refuse_other_problem({f"{key}.enabled": ("bf16" if key == "bfloat16" else key, problem.precision)})
    if not enabled and not is_open:
        refuse_other_default("neither bf16.enabled nor fp16.enabled is there", "fp32", problem.precision)


def _offload(root: Table) -> str:
    keys = ("offload_optimizer", "offload_param")
    found = tuple(str(root.get(f"zero_optimization.{key}.device", "none")) for key in keys)
    names = OFFLOADS | {("nvme", "nvme"): "nvme"}
    if found not in names:
        expected = "the optimizer on cpu, or optimizer and parameters both on cpu or both on nvme"
        raise bad_value("zero_optimization.offload_optimizer, offload_param", list(found), expected)
    return names[found]
