"""Recipes as nanotron's YAML configuration.

Names are those of `src/nanotron/config/` of huggingface/nanotron (config.py at commit 00708b80,
parallelism_config.py at 19f88fbe); recompute and context ranks are newer than release 0.4. Ranks
are numbered tp-cp-dp-pp. nanotron places layers on stages by its own estimate of their cost, and
trains Llama's form of the model, or with experts Qwen2's (models_config.py at commit 2411b022),
whose `nn/moe.py` neither sends tokens to other ranks nor scales probabilities.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from frontrunner.evaluators.export import reading
from frontrunner.evaluators.export.base import Export, Refusal, Tool, nested, yaml_text
from frontrunner.evaluators.export.reading import Given, Table
from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

FILE = "nanotron.yaml"
SCHEDULES = {"1f1b": "1f1b", "gpipe": "afab"}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
STAGES_NOTE = "note: nanotron places layers on stages by its own estimate of their cost"
YOURS_NOTE = "note: train_steps, learning rate and data are placeholders: set your own"
TP_MODES = {"ALL_REDUCE": "", "REDUCE_SCATTER": "sequence"}
REFUSED = {
    "parallelism.expert_parallel_size": (
        "ranks with other experts, between which nanotron sends no tokens,"
    ),
    "parallelism.moe_layer_recompute": "recompute of experts alone",
    "parallelism.context_parallel_size": "nanotron's context parallelism",
}
MODEL = "model.model_config."
MOE = f"{MODEL}moe_config."
NAMES = {
    "tensor_parallel": "parallelism.tp",
    "pipeline_parallel": "parallelism.pp",
    "micro_batch_seqs": "tokens.micro_batch_size",
    "accumulation": "tokens.batch_accumulation_per_replica",
}


class Nanotron(Tool):
    """nanotron: a whole YAML configuration."""

    name = "nanotron"
    title = "nanotron"
    has_launcher = False
    file = FILE
    names = NAMES
    expressed = frozenset({"schedule", "sharding", "recompute", "sequence_parallel"})
    model_fields = frozenset({
        "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocabulary", "vocabulary_multiple",
        "positions",
        "max_positions", "rotary_theta", "activation", "norm", "norm_epsilon", "tied_embeddings",
        "experts",
        "experts_per_token", "renormalized_experts",
    })  # fmt: skip

    def refusals(self, problem: Problem, recipe: Recipe) -> Iterable[Refusal]:
        """Return other forms of the model than Llama's, and what nanotron does not run."""
        tool, schedule, sharding = self.title, recipe.schedule, recipe.sharding_name
        model, mixture = problem.model, problem.model.mixture
        form = (model.embedding.positions, model.feed_forward.activation, model.norm.kind)
        return (
            (form != ("rotary", "swiglu", "rmsnorm"), "model-unsaid",
             f"{tool} trains rotary, swiglu, rmsnorm models, not {', '.join(form)}"),
            (mixture and mixture.renormalized_experts, "model-unsaid",
             f"{tool} does not renormalize the probabilities of experts"),
            (mixture and recipe.tensor_parallel > 1, "experts-tensor",
             f"{tool} has experts only with tensor_parallel 1"),
            (recipe.pipeline_parallel > 1 and schedule not in SCHEDULES, "schedule-unsaid",
             f"{tool} runs 1f1b and gpipe, not {schedule}"),
            (sharding not in ("none", "zero-1"), "sharding-unsaid",
                f"{tool} has ZeRO 0 and 1, not {sharding}"),
            (recipe.recompute == "selective", "recompute-unsaid",
                f"{tool} recomputes whole layers or none"),
        )  # fmt: skip

    def arguments_and_files(self, problem: Problem, recipe: Recipe) -> Export:
        """Return the configuration and the option that names it."""
        notes = (STAGES_NOTE, YOURS_NOTE) if recipe.pipeline_parallel > 1 else (YOURS_NOTE,)
        files = {FILE: yaml_text(nested(self._settings(problem, recipe)))}
        return Export(arguments=("--config-file", FILE), files=files, notes=notes)

    def _settings(self, problem: Problem, recipe: Recipe) -> dict[str, Any]:
        form = "qwen2" if problem.model.mixture else "llama"
        return {
            "general": {"project": "frontrunner", "run": "recipe", "seed": 42},
            "parallelism.dp": recipe.data_parallel,
            **self.numbers(recipe),
            "parallelism.pp_engine": SCHEDULES.get(recipe.schedule, "1f1b"),
            "parallelism.tp_mode": "REDUCE_SCATTER" if recipe.sequence_parallel else "ALL_REDUCE",
            "parallelism.tp_linear_async_communication": False,
            "parallelism.recompute_layer": recipe.recompute == "full",
            "tokens.sequence_length": problem.sequence_length,
            "tokens.train_steps": 100,
            "model.dtype": DTYPES[problem.precision],
            "model.init_method.std": 0.02,
            f"{MODEL}is_{form}_config": True,
            f"{MODEL}hidden_act": "silu",
            f"{MODEL}max_position_embeddings": max(problem.model.embedding.max_positions or 0,
                problem.sequence_length),
            f"{MODEL}vocab_size": problem.model.embedding.padded_vocabulary,
            **_sizes(problem),
            f"{MODEL}rope_theta": problem.model.keys()["rotary_theta"],
            f"{MODEL}rope_interleaved": False,
            f"{MODEL}rms_norm_eps": problem.model.norm.epsilon,
            "tokenizer.tokenizer_name_or_path": None,
            "optimizer.zero_stage": 0 if recipe.sharding_name == "none" else 1,
            "optimizer.weight_decay": 0.1,
            "optimizer.clip_grad": 1.0,
            "optimizer.accumulate_grad_in_fp32": True,
            "optimizer.optimizer_factory": {
                "name": "adamW", "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8,
                "torch_adam_is_fused": True,
            },
            "optimizer.learning_rate_scheduler": {
                "learning_rate": 3e-4, "lr_warmup_steps": 10, "lr_warmup_style": "linear",
                "lr_decay_style": "cosine",
                "min_decay_lr": 3e-5,
            },
        }  # fmt: skip

    def read(self, problem: Problem, given: Given) -> Recipe:
        """Return the recipe of a configuration."""
        root = given.keep(reading.yaml_table(given.text))
        _refuse_other_model(problem, root)
        root.refuse(REFUSED)
        found: dict[str, Any] = {number: root.number(name) for number, name in self.names.items()}
        dp, pp, tp = (root.number(f"parallelism.{key}") or 1 for key in ("dp", "pp", "tp"))
        theirs = {word: ours for ours, word in SCHEDULES.items()}
        tp_mode = root.choice("parallelism.tp_mode", "ALL_REDUCE", TP_MODES, spelled=str.upper)
        found |= {
            "devices": dp * pp * tp,
            "schedule": "none" if pp == 1 else root.choice("parallelism.pp_engine", "afab", theirs),
            "sequence_parallel": bool(tp_mode) and tp > 1,
            "recompute": "full" if root.flag("parallelism.recompute_layer") else "none",
            "sharding": root.choice("optimizer.zero_stage", 0, {0: "none", 1: "zero-1"}),
        }
        return reading.recipe_of(problem, found, given)


def _sizes(problem: Problem) -> dict[str, int | bool]:
    model, mixture = problem.model, problem.model.mixture
    experts: dict[str, int | bool] = {}
    if mixture is not None:
        experts = {
            f"{MOE}num_experts": mixture.experts,
            f"{MOE}top_k": mixture.experts_per_token,
            f"{MOE}moe_intermediate_size": mixture.ffn_hidden,
            f"{MOE}enable_shared_expert": False,
        }
    return {
        f"{MODEL}num_hidden_layers": len(model.layers),
        f"{MODEL}hidden_size": model.hidden,
        f"{MODEL}num_attention_heads": model.attention.heads,
        f"{MODEL}num_key_value_heads": model.attention.kv_heads,
        f"{MODEL}intermediate_size": model.feed_forward.ffn_hidden,
        f"{MODEL}tie_word_embeddings": model.head.tied,
        **experts,
    }


def _refuse_other_model(problem: Problem, root: Table) -> None:
    mixture = problem.model.mixture
    experts = (root.number(f"{MOE}num_experts") or 0, mixture.experts if mixture else 0)
    reading.refuse_other_problem({f"{MOE}num_experts": experts})
    said: dict[str, tuple[object, object]] = {
        key: (root.get(key), value) for key, value in _sizes(problem).items()
    }
    heads, kv_heads = f"{MODEL}num_attention_heads", f"{MODEL}num_key_value_heads"
    said[kv_heads] = (
        root.get(kv_heads, root.get(heads)),
        problem.model.attention.kv_heads,
    )  # by default as many as heads
    # Its model gates by it (`GLUActivation`), so that silu is SwiGLU.
    key = f"{MODEL}hidden_act"
    if (function := root.get(key, "silu")) != "silu":
        raise bad_value(key, function, "silu: no other is modeled")
    reading.refuse_other_default(f"silu as {key}", "swiglu", problem.model.feed_forward.activation)
    said["tokens.sequence_length"] = (root.get("tokens.sequence_length"), problem.sequence_length)
    said["model.dtype"] = (root.get("model.dtype", "bfloat16"), DTYPES[problem.precision])
    reading.refuse_other_problem(said)
    reading.refuse_other_vocabulary(
        problem, f"{MODEL}vocab_size", root.number(f"{MODEL}vocab_size")
    )
