"""Recipes as nanotron's YAML configuration.

Names are those of `src/nanotron/config/` of huggingface/nanotron (config.py at commit 00708b80, parallelism_config.py
at 19f88fbe); recompute and context ranks are newer than release 0.4. Ranks are numbered tp-cp-dp-pp. nanotron places
layers on stages by its own estimate of their cost, and trains Llama's form of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frontrunner.evaluators.export.base import Export, Tool, comments, yaml_text
from frontrunner.evaluators.export.reading import (
    Given,
    Section,
    recipe_of,
    refuse_other_problem,
    refuse_other_vocabulary,
    yaml_section,
)
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

FILE = "nanotron.yaml"
SCHEDULES = {"1f1b": "1f1b", "gpipe": "afab"}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
STAGES_NOTE = "note: nanotron places layers on stages by its own estimate of their cost"
YOURS_NOTE = "note: train_steps, learning rate and data are placeholders: set your own"
TP_MODES = {"ALL_REDUCE": "", "REDUCE_SCATTER": "sequence"}


class Nanotron(Tool):
    """nanotron: a whole YAML configuration."""

    name = "nanotron"
    title = "nanotron"
    has_launcher = False
    dimensions = frozenset({
        "tensor_parallel", "pipeline_parallel", "schedule", "sharding", "recompute", "sequence_parallel",
    })  # fmt: skip

    def why_unsupported(self, problem: Problem, recipe: Recipe) -> Reason | None:
        """Refuse other forms of the model than Llama's, and what nanotron does not run."""
        form = (problem.model.positions, problem.model.activation, problem.model.norm)
        if form != ("rotary", "swiglu", "rmsnorm"):
            return Reason("model-unsaid", f"{self.title} trains rotary, swiglu, rmsnorm models, not {', '.join(form)}")
        if recipe.pipeline_parallel > 1 and recipe.schedule not in SCHEDULES:
            return Reason("schedule-unsaid", f"{self.title} runs 1f1b and gpipe, not {recipe.schedule}")
        if recipe.sharding_name not in ("none", "zero-1"):
            return Reason("sharding-unsaid", f"{self.title} has ZeRO 0 and 1, not {recipe.sharding_name}")
        if recipe.recompute == "selective":
            return Reason("recompute-unsaid", f"{self.title} recomputes whole layers or none")
        return None

    def arguments_and_files(self, problem: Problem, recipe: Recipe) -> Export:
        """Return the configuration and the option that names it."""
        notes = (STAGES_NOTE, YOURS_NOTE) if recipe.pipeline_parallel > 1 else (YOURS_NOTE,)
        files = {FILE: yaml_text(settings(problem, recipe))}
        return Export(arguments=("--config-file", FILE), files=files, notes=notes)

    def render(self, problem: Problem, recipe: Recipe, header: Sequence[str]) -> str:
        """Return the configuration with the header in comments."""
        found = self.export(problem, recipe)
        return comments((*header, *found.notes)) + "\n" + found.files[FILE]

    def read(self, problem: Problem, given: Given) -> Recipe:
        """Return the recipe of a configuration."""
        root = yaml_section(given.text)
        parallel, tokens = root.table("parallelism"), root.table("tokens")
        _refuse_other_model(problem, root)
        parallel.refuse(
            {
                "expert_parallel_size": "experts",
                "moe_layer_recompute": "experts",
                "context_parallel_size": "nanotron's context parallelism",
            }
        )
        dp, pp, tp = (parallel.number(key) or 1 for key in ("dp", "pp", "tp"))
        theirs = {word: ours for ours, word in SCHEDULES.items()}
        tp_mode = Section({"tp_mode": str(parallel.get("tp_mode", "ALL_REDUCE")).upper()}, parallel.path)
        found: dict[str, Any] = {
            "devices": dp * pp * tp,
            "pipeline_parallel": pp,
            "tensor_parallel": tp,
            "schedule": "none" if pp == 1 else parallel.choice("pp_engine", "afab", theirs),
            "sequence_parallel": bool(tp_mode.choice("tp_mode", "", TP_MODES)) and tp > 1,
            "recompute": "full" if parallel.flag("recompute_layer") else "none",
            "micro_batch_seqs": tokens.number("micro_batch_size"),
            "accumulation": tokens.number("batch_accumulation_per_replica"),
            "sharding": root.table("optimizer").choice("zero_stage", 0, {0: "none", 1: "zero-1"}),
            "engine": given.stated.get("engine", "torch"),
        }
        return recipe_of(problem, found, given)


def settings(problem: Problem, recipe: Recipe) -> dict[str, Any]:
    """Return a whole configuration, with placeholders for what is no part of a problem or a recipe."""
    factory = {"name": "adamW", "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8, "torch_adam_is_fused": True}
    rate = {"learning_rate": 3e-4, "lr_warmup_steps": 10, "lr_warmup_style": "linear", "lr_decay_style": "cosine"}
    return {
        "general": {"project": "frontrunner", "run": "recipe", "seed": 42},
        "parallelism": {
            "dp": recipe.data_parallel,
            "pp": recipe.pipeline_parallel,
            "tp": recipe.tensor_parallel,
            "pp_engine": SCHEDULES.get(recipe.schedule, "1f1b"),
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
        "model": {
            "dtype": DTYPES[problem.precision],
            "init_method": {"std": 0.02},
            "model_config": {
                "is_llama_config": True,
                "hidden_act": "silu",
                "max_position_embeddings": max(problem.model.max_positions or 0, problem.sequence_length),
                "vocab_size": problem.model.padded_vocabulary,
                **_sizes(problem),
            },
        },
        "tokenizer": {"tokenizer_name_or_path": None},
        "optimizer": {
            "zero_stage": 0 if recipe.sharding_name == "none" else 1,
            "weight_decay": 0.1,
            "clip_grad": 1.0,
            "accumulate_grad_in_fp32": True,
            "optimizer_factory": factory,
            "learning_rate_scheduler": rate | {"min_decay_lr": 3e-5},
        },
    }


def _sizes(problem: Problem) -> dict[str, int | bool]:
    model = problem.model
    return {
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "intermediate_size": model.ffn_hidden,
        "tie_word_embeddings": model.tied_embeddings,
    }


def _refuse_other_model(problem: Problem, root: Section) -> None:
    described = root.table("model")
    config = described.table("model_config")
    config.refuse({"moe_config": "experts"})
    said: dict[str, tuple[object, object]] = {
        config.key(key): (config.get(key), value) for key, value in _sizes(problem).items()
    }
    kv_heads = config.get("num_key_value_heads", config.get("num_attention_heads"))  # by default as many as heads
    said[config.key("num_key_value_heads")] = (kv_heads, problem.model.kv_heads)
    said["tokens.sequence_length"] = (root.table("tokens").get("sequence_length"), problem.sequence_length)
    said["model.dtype"] = (described.get("dtype", "bfloat16"), DTYPES[problem.precision])
    refuse_other_problem(said)
    refuse_other_vocabulary(problem, config.key("vocab_size"), config.number("vocab_size"))
