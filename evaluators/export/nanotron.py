"""Recipes as nanotron's YAML configuration.

Names are those of `src/nanotron/config/` of huggingface/nanotron (config.py at commit 00708b80, parallelism_config.py
at 19f88fbe); recompute and context ranks are newer than release 0.4. Ranks are numbered tp-cp-dp-pp. nanotron places
layers on stages by its own estimate of their cost, and trains Llama's form of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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

TOOL = "nanotron"
FILE = "nanotron.yaml"
SAYS = frozenset({
    "tensor_parallel", "pipeline_parallel", "schedule", "sharding", "recompute", "sequence_parallel",
})  # fmt: skip
ENGINES = {"1f1b": "1f1b", "gpipe": "afab"}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
STAGES_NOTE = "note: nanotron places layers on stages by its own estimate of their cost"
YOURS_NOTE = "note: train_steps, learning rate and data are placeholders: set your own"


def why_not(problem: Problem, recipe: Recipe) -> Reason | None:
    """Why nanotron cannot be told this recipe."""
    model = problem.model
    form = (model.positions, model.activation, model.norm)
    if form != ("rotary", "swiglu", "rmsnorm"):
        return Reason("model-unsaid", f"{TOOL} trains rotary, swiglu, rmsnorm models, not {', '.join(form)}")
    if recipe.pipeline_parallel > 1 and recipe.schedule not in ENGINES:
        return Reason("schedule-unsaid", f"{TOOL} runs 1f1b and gpipe, not {recipe.schedule}")
    if recipe.sharding_name not in ("none", "zero-1"):
        return Reason("sharding-unsaid", f"{TOOL} has ZeRO 0 and 1, not {recipe.sharding_name}")
    if recipe.recompute == "selective":
        return Reason("recompute-unsaid", f"{TOOL} recomputes whole layers or none")
    return why_unsaid(recipe, TOOL, SAYS)


def export(problem: Problem, recipe: Recipe) -> Export:
    """The configuration beside the option that names it."""
    found = {FILE: yaml_text(settings(problem, recipe))}
    return Export(arguments=("--config-file", FILE), files=found, notes=_notes(recipe))


def _notes(recipe: Recipe) -> tuple[str, ...]:
    return (*((STAGES_NOTE,) if recipe.pipeline_parallel > 1 else ()), YOURS_NOTE)


def render(problem: Problem, recipe: Recipe, header: Sequence[str]) -> str:
    """The configuration with the header in comments."""
    return comments((*header, *_notes(recipe))) + "\n" + yaml_text(settings(problem, recipe))


def settings(problem: Problem, recipe: Recipe) -> dict[str, Any]:
    """A whole configuration, with placeholders for what is no part of a problem or a recipe."""
    return {
        "general": {"project": "frontrunner", "run": "recipe", "seed": 42},
        "parallelism": {
            "dp": recipe.data_parallel,
            "pp": recipe.pipeline_parallel,
            "tp": recipe.tensor_parallel,
            "pp_engine": ENGINES.get(recipe.schedule, "1f1b"),
            "tp_mode": "REDUCE_SCATTER" if recipe.sequence_parallel else "ALL_REDUCE",
            "tp_linear_async_communication": False,
            "recompute_layer": recipe.recompute == "full",
        },
        "tokens": {
            "sequence_length": problem.sequence_length,
            "train_steps": 100,
            "micro_batch_size": recipe.micro_batch_seqs,
            "batch_accumulation_per_replica": recipe.accumulation,
        },
        "model": _model(problem),
        "tokenizer": {"tokenizer_name_or_path": None},
        "optimizer": _optimizer(recipe),
    }


def _model(problem: Problem) -> dict[str, Any]:
    model = problem.model
    config = {
        "is_llama_config": True,
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn_hidden,
        "max_position_embeddings": max(model.max_positions or 0, problem.sequence_length),
        "num_attention_heads": model.heads,
        "num_hidden_layers": model.layers,
        "num_key_value_heads": model.kv_heads,
        "tie_word_embeddings": model.tied_embeddings,
        "vocab_size": model.padded_vocabulary,
    }
    return {"dtype": DTYPES[problem.precision], "init_method": {"std": 0.02}, "model_config": config}


def _optimizer(recipe: Recipe) -> dict[str, Any]:
    factory = {"name": "adamW", "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8, "torch_adam_is_fused": True}
    rate = {"learning_rate": 3e-4, "lr_warmup_steps": 10, "lr_warmup_style": "linear", "lr_decay_style": "cosine"}
    return {
        "zero_stage": 0 if recipe.sharding_name == "none" else 1,
        "weight_decay": 0.1,
        "clip_grad": 1.0,
        "accumulate_grad_in_fp32": True,
        "optimizer_factory": factory,
        "learning_rate_scheduler": rate | {"min_decay_lr": 3e-5},
    }


def read(problem: Problem, given: Given) -> Recipe:
    """The recipe of a configuration."""
    table = yaml_table(given.text)
    parallel, tokens = table_in(table, "parallelism", "parallelism"), table_in(table, "tokens", "tokens")
    _refuse_other_model(problem, table)
    for key in ("expert_parallel_size", "context_parallel_size"):
        if parallel.get(key) not in (None, 1):
            raise InvalidInput(f"parallelism.{key} = {shown(parallel[key])}: only 1 is read as a recipe")
    if flag_in(parallel, "moe_layer_recompute", "parallelism.moe_layer_recompute"):
        raise InvalidInput("parallelism.moe_layer_recompute: no recipe of ours has experts")
    dp, pp, tp = (number_in(parallel, key, f"parallelism.{key}") or 1 for key in ("dp", "pp", "tp"))
    found: dict[str, Any] = {
        "devices": dp * pp * tp,
        "pipeline_parallel": pp,
        "tensor_parallel": tp,
        "schedule": "none" if pp == 1 else _schedule(parallel.get("pp_engine") or "afab"),
        "sequence_parallel": tp > 1 and _is_reduce_scatter(parallel.get("tp_mode") or "ALL_REDUCE"),
        "recompute": "full" if flag_in(parallel, "recompute_layer", "parallelism.recompute_layer") else "none",
        "micro_batch_seqs": number_in(tokens, "micro_batch_size", "tokens.micro_batch_size"),
        "accumulation": number_in(tokens, "batch_accumulation_per_replica", "tokens.batch_accumulation_per_replica"),
        "sharding": _sharding(table_in(table, "optimizer", "optimizer").get("zero_stage", 0)),
        "engine": given.stated.get("engine", "torch"),
    }
    return recipe_of(problem, found, given)


def _refuse_other_model(problem: Problem, table: Mapping[str, Any]) -> None:
    described, tokens = table_in(table, "model", "model"), table_in(table, "tokens", "tokens")
    config = table_in(described, "model_config", "model.model_config")
    if config.get("moe_config") is not None:
        raise InvalidInput("model.model_config.moe_config: no recipe of ours has experts")
    model = problem.model
    sizes = {
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "intermediate_size": model.ffn_hidden,
        "tie_word_embeddings": model.tied_embeddings,
    }
    said: dict[str, tuple[object, object]] = {
        f"model.model_config.{key}": (config.get(key), value) for key, value in sizes.items()
    }
    if config.get("num_key_value_heads") is None:  # as many as there are heads
        said["model.model_config.num_key_value_heads"] = (config.get("num_attention_heads"), model.kv_heads)
    said["tokens.sequence_length"] = (tokens.get("sequence_length"), problem.sequence_length)
    said["model.dtype"] = (described.get("dtype") or "bfloat16", DTYPES[problem.precision])
    refuse_other_problem(said)
    vocabulary = number_in(config, "vocab_size", "model.model_config.vocab_size")
    refuse_other_vocabulary(problem, "model.model_config.vocab_size", vocabulary)


def _schedule(engine: object) -> str:
    names = {theirs: ours for ours, theirs in ENGINES.items()}
    if not isinstance(engine, str) or engine not in names:
        raise bad_value("parallelism.pp_engine", engine, "1f1b or afab")
    return names[engine]


def _is_reduce_scatter(mode: object) -> bool:
    if str(mode).upper() not in ("ALL_REDUCE", "REDUCE_SCATTER"):
        raise bad_value("parallelism.tp_mode", mode, "ALL_REDUCE or REDUCE_SCATTER")
    return str(mode).upper() == "REDUCE_SCATTER"


def _sharding(stage: object) -> str:
    if stage not in (0, 1):
        raise bad_value("optimizer.zero_stage", stage, "0 or 1")
    return "zero-1" if stage else "none"
