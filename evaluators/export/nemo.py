"""Recipes for NeMo's Megatron-Bridge: YAML for --config-file, or overrides such as `train.micro_batch_size=2`.

Names are those of `ConfigContainer` in `megatron/bridge/training/config.py` of megatron-bridge 0.3.1, whose `model` is
Megatron core's `TransformerConfig`. The model itself, its sequence length and precision are those of the Bridge recipe
that the file is merged into.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from frontrunner.evaluators.export import megatron_core as core
from frontrunner.evaluators.export.base import Export, Tool, comments, yaml_text
from frontrunner.evaluators.export.megatron_lm import MegatronLM
from frontrunner.evaluators.export.reading import (
    Given,
    Section,
    recipe_of,
    refuse_other_problem,
    refuse_other_vocabulary,
    yaml_section,
)
from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

MODEL_NOTE = (
    "note: the model, its sequence length and precision are those of the Bridge recipe that this is merged into"
)
REFUSED = {
    "expert_model_parallel_size": "experts",
    "num_moe_experts": "experts",
    "cpu_offloading": "activations offloaded by whole layers",
}
DEGREES = {
    "tensor_parallel": "tensor_model_parallel_size",
    "pipeline_parallel": "pipeline_model_parallel_size",
    "context_parallel": "context_parallel_size",
    "virtual_stages": "virtual_pipeline_model_parallel_size",
}
LAYOUT = "pipeline_model_parallel_layout"
PRECISIONS = {"bf16_mixed": "bf16", "fp16_mixed": "fp16"}


class MegatronBridge(Tool):
    """NeMo's Megatron-Bridge: YAML to be merged into one of its own recipes."""

    name = "nemo"
    title = "Megatron-Bridge"
    has_launcher = False
    dimensions = MegatronLM.dimensions - {"optimizer_state"}

    def why_unsupported(self, problem: Problem, recipe: Recipe) -> Reason | None:
        """Return what of the recipe Megatron core does not run."""
        return (
            core.why_no_schedule(recipe, self.title)
            or core.why_no_sharding(recipe, self.title)
            or core.why_no_rank_order(recipe, self.title)
            or core.why_no_context(problem, recipe, self.title)
        )

    def arguments_and_files(self, problem: Problem, recipe: Recipe) -> Export:
        """Return the recipe as overrides, `section.key=value`."""
        words = tuple(
            f"{section}.{key}={value if isinstance(value, str) else json.dumps(value)}"
            for section, table in settings(problem, recipe).items()
            for key, value in table.items()
        )
        return Export(arguments=words, notes=(MODEL_NOTE, *core.recompute_notes(recipe, self.title)))

    def render(self, problem: Problem, recipe: Recipe, header: Sequence[str]) -> str:
        """Return the recipe as YAML, for --config-file."""
        lines = (*header, f"devices: {recipe.devices}", *self.export(problem, recipe).notes)
        return comments(lines) + "\n" + yaml_text(settings(problem, recipe))

    def read(self, problem: Problem, given: Given) -> Recipe:
        """Return the recipe of a YAML file; its devices are the launcher's, so they are stated, or the cluster's."""
        root = yaml_section(given.text)
        model, train, ddp, optimizer, dist = (
            root.table(name) for name in ("model", "train", "ddp", "optimizer", "dist")
        )
        model.refuse(REFUSED)
        _refuse_other_precision(problem, root)
        found = _model_choices(problem, model) | {
            "micro_batch_seqs": train.number("micro_batch_size"),
            "global_batch_seqs": train.number("global_batch_size"),
            "sharding": _sharding(ddp, optimizer),
            "rank_order": "tp-pp-dp" if dist.flag("use_tp_pp_dp_mapping") else "tp-dp-pp",
            "engine": given.stated.get("engine", "torch"),
        }
        return recipe_of(problem, found, given)


def settings(problem: Problem, recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Return the sections of a `ConfigContainer` that hold the recipe."""
    layers = core.stage_layers(problem, recipe)
    name, full = recipe.sharding_name, recipe.recompute == "full"
    degrees = {theirs: getattr(recipe, ours) for ours, theirs in DEGREES.items()}
    ddp: dict[str, Any] = {"use_distributed_optimizer": name != "none"}
    found: dict[str, dict[str, Any]] = {
        "model": {
            **degrees,
            DEGREES["virtual_stages"]: recipe.virtual_stages if recipe.virtual_stages > 1 else None,
            LAYOUT: core.layout(layers) if len(set(layers)) > 1 else None,
            "sequence_parallel": recipe.sequence_parallel,
            "recompute_granularity": None if recipe.recompute == "none" else recipe.recompute,
            "recompute_method": "uniform" if full else None,
            "recompute_num_layers": 1 if full else None,
        },
        "train": {"micro_batch_size": recipe.micro_batch_seqs, "global_batch_size": recipe.global_batch_seqs},
        "ddp": ddp,
        "optimizer": {"use_distributed_optimizer": name != "none"},
        "dist": {"use_tp_pp_dp_mapping": recipe.rank_order == "tp-pp-dp"},
    }
    if name in core.FSDP:
        ddp |= {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": core.FSDP[name]}
        found["dist"]["use_megatron_fsdp"] = True
        found["checkpoint"] = {"ckpt_format": "fsdp_dtensor"}
    return found


def _refuse_other_precision(problem: Problem, root: Section) -> None:
    """Raise `InvalidInput` for another precision; where the file says none it is the Bridge recipe's.

    `mixed_precision` is the name of a set of settings (`bf16_mixed`), or these settings.
    """
    sections = [root.table("model")]
    if isinstance(root.get("mixed_precision"), str):
        named = Section({"mixed_precision": str(root.get("mixed_precision")).replace("-", "_")})
        refuse_other_problem({"mixed_precision": (named.choice("mixed_precision", "", PRECISIONS), problem.precision)})
    else:
        sections.append(root.table("mixed_precision"))
    for section in sections:
        section.refuse({"fp8": "8-bit arithmetic", "fp4": "4-bit arithmetic"})
        for precision in ("bf16", "fp16"):
            if section.flag(precision):
                refuse_other_problem({section.key(precision): (precision, problem.precision)})


def _model_choices(problem: Problem, model: Section) -> dict[str, Any]:
    sizes = {
        "num_layers": problem.model.layers,
        "hidden_size": problem.model.hidden,
        "num_attention_heads": problem.model.heads,
        "num_query_groups": problem.model.kv_heads,
        "kv_channels": problem.model.head_dim,
        "ffn_hidden_size": problem.model.ffn_hidden,
        "seq_length": problem.sequence_length,
    }
    refuse_other_problem({model.key(key): (model.get(key), value) for key, value in sizes.items()})
    refuse_other_vocabulary(problem, model.key("vocab_size"), model.number("vocab_size"))
    found: dict[str, Any] = {ours: model.number(theirs) or 1 for ours, theirs in DEGREES.items()}
    layout = model.get(LAYOUT)
    if layout is not None:
        if not isinstance(layout, str):
            raise bad_value(model.key(LAYOUT), layout, "text such as Ett|tt|tL")
        found |= core.stages_of_layout(problem, layout, model.key(LAYOUT), found["pipeline_parallel"])
    found["schedule"] = core.schedule_of(found["pipeline_parallel"], found["virtual_stages"])
    found["sequence_parallel"] = model.flag("sequence_parallel") and found["tensor_parallel"] > 1
    granularities = {name: name for name in ("none", "full", "selective")}
    found["recompute"] = model.choice("recompute_granularity", "none", granularities)
    how = [model.get("recompute_method"), model.get("recompute_num_layers")]
    if found["recompute"] == "full" and how != ["uniform", 1]:
        raise bad_value(model.key("recompute_method, recompute_num_layers"), how, "uniform and 1")
    return found


def _sharding(ddp: Section, optimizer: Section) -> str:
    if ddp.flag("use_megatron_fsdp"):
        return ddp.choice("data_parallel_sharding_strategy", "no_shard", core.SHARDING_OF_STRATEGY)
    key = "use_distributed_optimizer"
    return "zero-1" if ddp.flag(key) or optimizer.flag(key) else "none"
