"""Recipes for NeMo's Megatron-Bridge: YAML for --config-file, or overrides such as `train.micro_batch_size=2`.

Names are those of `ConfigContainer` in `megatron/bridge/training/config.py` of megatron-bridge 0.3.1, whose `model` is
Megatron core's `TransformerConfig`. The model itself, its sequence length and precision are those of the Bridge recipe
that the file is merged into.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from frontrunner.evaluators.export import megatron, megatron_lm
from frontrunner.evaluators.export.export import Export, why_unsaid
from frontrunner.evaluators.export.given import (
    Given,
    flag_in,
    number_in,
    recipe_of,
    refuse_other_problem,
    refuse_other_vocabulary,
    table_in,
)
from frontrunner.evaluators.export.parsed import yaml_table, yaml_text
from frontrunner.evaluators.export.script import comments
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.reasons import Reason
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.wording import shown

TOOL = "Megatron-Bridge"
SAYS = megatron_lm.SAYS - {"optimizer_state"}
MODEL_NOTE = (
    "note: the model, its sequence length and precision are those of the Bridge recipe that this is merged into"
)
REFUSED = ("expert_model_parallel_size", "num_moe_experts", "cpu_offloading")


def why_not(problem: Problem, recipe: Recipe) -> Reason | None:
    """Why Megatron-Bridge cannot be told this recipe."""
    return (
        why_unsaid(recipe, TOOL, SAYS)
        or megatron.why_no_schedule(recipe, TOOL)
        or megatron_lm.why_no_sharding(recipe, TOOL)
        or megatron_lm.why_no_rank_order(recipe, TOOL)
        or megatron_lm.why_no_context(problem, recipe, TOOL)
    )


def settings(problem: Problem, recipe: Recipe) -> dict[str, dict[str, Any]]:
    """The sections of a `ConfigContainer` that hold the recipe."""
    layers = megatron.stage_layers(problem, recipe)
    is_uneven, name = len(set(layers)) > 1, recipe.sharding_name
    virtual = recipe.virtual_stages if recipe.virtual_stages > 1 else None
    full = recipe.recompute == "full"
    ddp: dict[str, Any] = {"use_distributed_optimizer": name != "none"}
    found: dict[str, dict[str, Any]] = {
        "model": {
            "tensor_model_parallel_size": recipe.tensor_parallel,
            "pipeline_model_parallel_size": recipe.pipeline_parallel,
            "virtual_pipeline_model_parallel_size": virtual,
            "pipeline_model_parallel_layout": megatron.layout(layers) if is_uneven else None,
            "context_parallel_size": recipe.context_parallel,
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
    if name in megatron_lm.FSDP:
        ddp |= {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": megatron_lm.FSDP[name]}
        found["dist"]["use_megatron_fsdp"] = True
        found["checkpoint"] = {"ckpt_format": "fsdp_dtensor"}
    return found


def export(problem: Problem, recipe: Recipe) -> Export:
    """The recipe as overrides, `section.key=value`."""
    words = tuple(
        f"{section}.{key}={value if isinstance(value, str) else json.dumps(value)}"
        for section, table in settings(problem, recipe).items()
        for key, value in table.items()
    )
    return Export(arguments=words, notes=(MODEL_NOTE, *megatron_lm.notes(recipe, TOOL)))


def render(problem: Problem, recipe: Recipe, header: Sequence[str]) -> str:
    """The recipe as YAML, for --config-file."""
    notes = export(problem, recipe).notes
    return comments((*header, f"devices: {recipe.devices}", *notes)) + "\n" + yaml_text(settings(problem, recipe))


def read(problem: Problem, given: Given) -> Recipe:
    """The recipe of a YAML file; the launcher tells Bridge its devices, so they are stated, or all of the cluster's."""
    table = yaml_table(given.text)
    sections = {name: table_in(table, name, name) for name in ("model", "train", "ddp", "optimizer", "dist")}
    model = sections["model"]
    for key in REFUSED:
        if model.get(key) not in (None, False, 1):
            raise InvalidInput(f"model.{key} = {shown(model[key])}: no recipe of ours has this")
    _refuse_other_precision(problem, table, model)
    found = _model_choices(problem, model)
    found["micro_batch_seqs"] = number_in(sections["train"], "micro_batch_size", "train.micro_batch_size")
    found["global_batch_seqs"] = number_in(sections["train"], "global_batch_size", "train.global_batch_size")
    found["sharding"] = _sharding(sections)
    tp_pp_dp = flag_in(sections["dist"], "use_tp_pp_dp_mapping", "dist.use_tp_pp_dp_mapping")
    found["rank_order"] = "tp-pp-dp" if tp_pp_dp else "tp-dp-pp"
    found["engine"] = given.stated.get("engine", "torch")
    return recipe_of(problem, found, given)


def _refuse_other_precision(problem: Problem, table: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for another precision; where the file says none it is the Bridge recipe's.

    `mixed_precision` is the name of a set of settings (`bf16_mixed`), or these settings.
    """
    found = table.get("mixed_precision")
    if isinstance(found, str):
        plain = {"bf16_mixed": "bf16", "fp16_mixed": "fp16"}
        name = found.replace("-", "_")
        if name not in plain:
            raise bad_value("mixed_precision", found, "bf16_mixed or fp16_mixed")
        refuse_other_problem({"mixed_precision": (plain[name], problem.precision)})
        found = None
    for path, settings in (("mixed_precision", found), ("model", model)):
        section = table_in({path: settings}, path, path)
        if any(section.get(key) not in (None, False) for key in ("fp8", "fp4")):
            raise InvalidInput(f"{path}.fp8, {path}.fp4: no recipe of ours has this")
        for precision in ("bf16", "fp16"):
            if flag_in(section, precision, f"{path}.{precision}"):
                refuse_other_problem({f"{path}.{precision}": (precision, problem.precision)})


def _model_choices(problem: Problem, model: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {
        "num_layers": problem.model.layers,
        "hidden_size": problem.model.hidden,
        "num_attention_heads": problem.model.heads,
        "num_query_groups": problem.model.kv_heads,
        "kv_channels": problem.model.head_dim,
        "ffn_hidden_size": problem.model.ffn_hidden,
        "seq_length": problem.sequence_length,
    }
    refuse_other_problem({f"model.{key}": (model.get(key), value) for key, value in sizes.items()})
    refuse_other_vocabulary(problem, "model.vocab_size", number_in(model, "vocab_size", "model.vocab_size"))
    degrees = {name: number_in(model, f"{name[:-9]}_model_parallel_size", f"model.{name[:-9]}_model_parallel_size")
               for name in ("tensor_parallel", "pipeline_parallel")}  # fmt: skip
    found: dict[str, Any] = {key: value or 1 for key, value in degrees.items()}
    found["context_parallel"] = number_in(model, "context_parallel_size", "model.context_parallel_size") or 1
    virtual = "virtual_pipeline_model_parallel_size"
    found["virtual_stages"] = number_in(model, virtual, f"model.{virtual}") or 1
    layout = model.get("pipeline_model_parallel_layout")
    if layout is not None:
        key = "model.pipeline_model_parallel_layout"
        if not isinstance(layout, str):
            raise bad_value(key, layout, "text such as Ett|tt|tL")
        found |= megatron.stages_of_layout(problem, layout, key, found["pipeline_parallel"])
    found["schedule"] = megatron.schedule_of(found["pipeline_parallel"], found["virtual_stages"])
    found["sequence_parallel"] = (
        flag_in(model, "sequence_parallel", "model.sequence_parallel") and found["tensor_parallel"] > 1
    )
    return found | {"recompute": _recompute(model)}


def _recompute(model: Mapping[str, Any]) -> str:
    names = ("granularity", "method", "num_layers")
    granularity, method, layers = (model.get(f"recompute_{name}") for name in names)
    if granularity not in (None, "full", "selective"):
        raise bad_value("model.recompute_granularity", granularity, "full or selective, or no entry")
    if granularity == "full" and (method, layers) != ("uniform", 1):
        raise bad_value("model.recompute_method, recompute_num_layers", [method, layers], "uniform and 1")
    return granularity or "none"


def _sharding(sections: Mapping[str, Mapping[str, Any]]) -> str:
    ddp, optimizer = sections["ddp"], sections["optimizer"]
    strategy = ddp.get("data_parallel_sharding_strategy", "no_shard")
    if flag_in(ddp, "use_megatron_fsdp", "ddp.use_megatron_fsdp"):
        names = {"no_shard": "none", "optim": "zero-1"} | {word: name for name, word in megatron_lm.FSDP.items()}
        if not isinstance(strategy, str) or strategy not in names:
            raise bad_value("ddp.data_parallel_sharding_strategy", strategy, f"one of {', '.join(names)}")
        return names[strategy]
    key = "use_distributed_optimizer"
    spread = flag_in(ddp, key, f"ddp.{key}") or flag_in(optimizer, key, f"optimizer.{key}")
    return "zero-1" if spread else "none"
