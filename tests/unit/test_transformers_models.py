"""The trainer's models compute what the published ones do: logits against `transformers`, with the same random weights.

Presets are reduced in depth, width and vocabulary; what a preset states beside them stays: the ratio of heads to groups
of keys and values, rotary frequencies, norms and their epsilon, biases, activation. Megatron's GPT is GPT-2's form.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.spaces.document import read_plain
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.hugging_face import ARCHITECTURES, model_of_config
from frontrunner.spaces.model import Model, RotaryScaling
from frontrunner.spaces.presets import model_preset, preset_names

SEQUENCE_LENGTH = 256
VOCABULARY = 250
RELATIVE = 1e-5
PRESETS = preset_names("models")
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("gpt2-small", {"activation": "gelu"}),
    ("gpt2-small", {"norm_epsilon": 1e-6}),
    ("llama-3-8b", {"rotary_theta": 1e4}),
    ("llama-3.1-8b", {"rotary_scaling": None}),
    ("llama-3.2-1b", {"rotary_scaling": RotaryScaling(factor=8.0)}),
    ("llama-3.2-1b", {"rotary_scaling": RotaryScaling(factor=32.0, low_frequency_factor=2.0)}),
    ("llama-3.2-1b", {"rotary_scaling": RotaryScaling(factor=32.0, high_frequency_factor=5.0)}),
    ("llama-3.2-1b", {"rotary_scaling": RotaryScaling(factor=32.0, original_positions=4096)}),
    ("qwen3-8b", {"norm_epsilon": 1e-5}),
    ("mistral-7b", {"attention_window": 101}),
    ("gemma-2-27b", {"full_attention_every": 1}),
    ("gemma-2-27b", {"attention_softcap": 1.1}),
    ("gemma-2-27b", {"logits_softcap": 0.6}),
    ("gemma-2-27b", {"query_scalar": 143.0}),
    ("gemma-2-27b", {"scaled_embedding": False}),
    ("gemma-2-27b", {"activation": "swiglu"}),
    ("gemma-3-27b", {"window_rotary_theta": 9e3}),
    ("gpt-oss-20b", {"activation": "swiglu"}),
    ("gpt-oss-20b", {"rotary_scaling": RotaryScaling(factor=32.0, kind="yarn", original_positions=4096)}),
    ("gpt-neox-20b", {"rotary_width": 16}),
    ("gpt-neox-20b", {"parallel_residual": False}),
]

_WIDTHS = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCABULARY} | {
    "max_position_embeddings": SEQUENCE_LENGTH
}
_GROUPED = _WIDTHS | {"num_key_value_heads": 2, "intermediate_size": 176}
_LLAMA_3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_YARN = {"rope_type": "yarn", "factor": 8.0}
_DEEPSEEK = _WIDTHS | {
    "num_key_value_heads": 4, "intermediate_size": 176, "moe_intermediate_size": 80, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "n_shared_experts": 2, "moe_layer_freq": 1, "kv_lora_rank": 24, "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16, "v_head_dim": 32, "rms_norm_eps": 1e-6,
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama": _GROUPED
    | {"rms_norm_eps": 1e-5, "head_dim": 16, "rope_theta": 5e5, "tie_word_embeddings": True, "attention_bias": False}
    | {"rope_scaling": _LLAMA_3 | {"factor": 32.0, "original_max_position_embeddings": 64}, "pretraining_tp": 1},
    "mistral": _GROUPED | {"sliding_window": SEQUENCE_LENGTH, "rms_norm_eps": 1e-5, "rope_theta": 1e6},
    "qwen2": _GROUPED | {"sliding_window": 64, "use_sliding_window": False, "rope_theta": 1e6, "max_window_layers": 1},
    "qwen3": _GROUPED | {"head_dim": 48, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "mixtral": _GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_theta": 1e6, "sliding_window": None},
    "qwen3_moe": _GROUPED
    | {"head_dim": 48, "moe_intermediate_size": 80, "num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True},
    "deepseek_v2": _DEEPSEEK
    | {"q_lora_rank": None, "topk_method": "greedy", "scoring_func": "softmax", "aux_loss_alpha": 0.001, "n_group": 1}
    | {"topk_group": 1, "first_k_dense_replace": 0, "norm_topk_prob": False},
    "deepseek_v3": _DEEPSEEK
    | {"q_lora_rank": 40, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "n_group": 4, "topk_group": 2}
    | {"num_nextn_predict_layers": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "ep_size": 1}
    | {"rope_scaling": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    "phi3": _GROUPED
    | {"rms_norm_eps": 1e-6, "sliding_window": None, "rope_scaling": None, "pad_token_id": 0}
    | {"partial_rotary_factor": 0.75},
    "gpt2": {"n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": SEQUENCE_LENGTH}
    | {"activation_function": "gelu", "n_inner": 192, "layer_norm_epsilon": 1e-4},
    "gpt_neox": _WIDTHS
    | {"intermediate_size": 320, "hidden_act": "gelu_fast", "rotary_pct": 1.0, "rotary_emb_base": 5e3}
    | {"use_parallel_residual": False, "layer_norm_eps": 1e-4},
    "mistral in windows": _GROUPED | {"sliding_window": 70},
    "qwen2 in windows": _GROUPED | {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 0},
    "gpt_oss": _GROUPED
    | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 60}
    | {"rope_scaling": _YARN | {"original_max_position_embeddings": 64, "truncate": False}, "rope_theta": 15e4},
    "gemma2": _GROUPED
    | {"head_dim": 48, "query_pre_attn_scalar": 20, "sliding_window": 70}
    | {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 0.5},
    "gemma3_text": _GROUPED
    | {"num_hidden_layers": 3, "head_dim": 48, "sliding_window": 70, "sliding_window_pattern": 3}
    | {"rope_theta": 3e5, "rope_local_base_freq": 5e3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "gpt_neox as released": _WIDTHS | {"intermediate_size": 320, "hidden_act": "gelu_fast", "rotary_pct": 0.25},
    "llama linear": _GROUPED | {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "qwen3 yarn": _GROUPED
    | {"head_dim": 48, "rope_theta": 1e6, "rope_scaling": _YARN | {"original_max_position_embeddings": 64}},
    "qwen2 yarn of its own": _GROUPED
    | {"rope_scaling": _YARN | {"beta_fast": 16, "beta_slow": 2, "truncate": False, "attention_factor": 1.5}},
    "mistral yarn of DeepSeek's": _GROUPED
    | {"sliding_window": None, "rope_scaling": _YARN | {"mscale": 0.707, "mscale_all_dim": 0.5}},
}
"""Small configurations, as files state them; the earlier names of rotary positions among them.

A name begins with the type of the model.
"""


def filled(table: dict[str, Any]) -> dict[str, Any]:
    """What a campaign file completes."""
    return {"kv_heads": table["heads"], "ffn_hidden": 4 * table["hidden"]} | table


def reduced(name: str) -> Model:
    """The preset's form with two layers, heads of 32, two groups of keys and values and at most 16 experts."""
    table = model_preset(name)
    full = read_plain(Model, filled(table), "model")
    heads = 2 * full.heads // full.kv_heads
    hidden = 32 * heads * full.hidden // full.q_hidden
    if full.key_value_rank:
        hidden, query_rank = 64, 40 if full.query_rank else None
        full = replace(full, key_value_rank=24, query_rank=query_rank, dense_layers=1, dense_ffn_hidden=96)
        full = replace(full, ffn_hidden=48 * full.hidden // hidden)
    return replace(
        full,
        layers=max(2, full.full_attention_every),
        attention_window=full.attention_window and 100,
        attention_softcap=full.attention_softcap and 1.0,
        logits_softcap=full.logits_softcap and 0.5,
        hidden=hidden,
        heads=heads,
        kv_heads=2,
        head_width=32,
        rotary_width=16 if full.key_value_rank else 32 * full.rotary_width // full.head_dim,
        ffn_hidden=full.ffn_hidden * hidden // full.hidden,
        experts=min(full.experts, 16),
        experts_per_token=min(full.experts_per_token, 4),
        vocabulary=VOCABULARY,
        vocabulary_multiple=1,
        max_positions=SEQUENCE_LENGTH if full.positions == "learned" else full.max_positions,
    )


def ours(model: Model) -> Gpt:
    """The trainer's model with every parameter random: biases, norms, and embeddings so small that epsilons count."""
    found = Gpt(model, sequence_length=SEQUENCE_LENGTH, layers=range(model.layers))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            is_norm, is_matrix = "norm" in name and name.endswith("weight"), parameter.dim() > 1
            deviation = 0.01 if "embedding" in name else parameter.shape[1] ** -0.5 if is_matrix else 0.3
            parameter.normal_(1.0 if is_norm else 0.0, deviation, generator=generator)
        for mixture in found.mixtures.values():
            if mixture.balance is not None:
                mixture.balance.bias.normal_(0.0, 0.3, generator=generator)
    return found.eval()


def theirs(model: Model) -> Any:  # noqa: C901, PLR0911 - a list of architectures
    """The model of `transformers` of the same form."""
    common: dict[str, Any] = {"vocab_size": model.vocabulary, "tie_word_embeddings": model.tied_embeddings}
    if model.positions == "learned":
        config: Any = transformers.GPT2Config(
            n_positions=model.max_positions,
            n_embd=model.hidden,
            n_layer=model.layers,
            n_head=model.heads,
            n_inner=model.ffn_hidden,
            activation_function={"gelu": "gelu", "gelu_tanh": "gelu_new"}[model.activation],
            layer_norm_epsilon=model.norm_epsilon,
            **common,
        )
        return transformers.GPT2LMHeadModel(config).eval()
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": model.rotary_theta}
    if model.norm == "layernorm":  # GPT-NeoX, and the Frontier study's
        config = transformers.GPTNeoXConfig(
            hidden_size=model.hidden,
            num_hidden_layers=model.layers,
            num_attention_heads=model.heads,
            intermediate_size=model.ffn_hidden,
            hidden_act="gelu_new",
            layer_norm_eps=model.norm_epsilon,
            max_position_embeddings=model.max_positions,
            rope_parameters=rope | {"partial_rotary_factor": (model.rotary_width or model.head_dim) / model.head_dim},
            use_parallel_residual=model.parallel_residual,
            **common,
        )
        return transformers.GPTNeoXForCausalLM(config).eval()
    if (scaling := model.rotary_scaling) is not None:
        rope |= {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            rope |= {"low_freq_factor": scaling.low_frequency_factor, "high_freq_factor": scaling.high_frequency_factor}
        if scaling.kind == "yarn":
            rope |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow, "truncate": scaling.truncate}
        if scaling.kind != "linear":
            rope |= {"original_max_position_embeddings": scaling.original_positions}
    common |= {
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn_hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "rms_norm_eps": model.norm_epsilon,
        "max_position_embeddings": model.max_positions,
        "rope_parameters": rope,
    }
    if model.post_norms:
        return gemma(model, common)
    if model.experts:
        return (of_deepseek if model.key_value_rank else of_experts)(model, common)
    if model.attention_window is not None:
        config = transformers.MistralConfig(sliding_window=model.attention_window, **common)
        return transformers.MistralForCausalLM(config).eval()
    if model.biases == "qkv":
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**common)).eval()
    if model.qk_norm:
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(head_dim=model.head_dim, **common)).eval()
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(head_dim=model.head_dim, **common)).eval()


def gemma(model: Model, common: dict[str, Any]) -> Any:
    """Gemma 2 or 3; of the kernels that transformers has, only the eager one caps scores."""
    scalar = int(model.query_scalar or model.head_dim)
    common |= {"query_pre_attn_scalar": scalar, "sliding_window": model.attention_window}
    common |= {"attn_logit_softcapping": model.attention_softcap, "final_logit_softcapping": model.logits_softcap}
    common |= {"head_dim": model.head_dim, "attn_implementation": "eager"}
    if not model.qk_norm:
        return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**common)).eval()
    in_windows = {"rope_type": "default", "rope_theta": model.window_rotary_theta}
    common["rope_parameters"] = {"full_attention": common["rope_parameters"], "sliding_attention": in_windows}
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**common)).eval()


def of_deepseek(model: Model, common: dict[str, Any]) -> Any:
    rope = {"rope_theta": model.rotary_theta}
    if (scaling := model.rotary_scaling) is not None:
        every = (scaling.score_factor**0.5 - 1) / (0.1 * math.log(scaling.factor))
        of_yarn = {"rope_type": "yarn", "mscale": every, "mscale_all_dim": every, "factor": scaling.factor}
        common["rope_parameters"] = rope | of_yarn | {"original_max_position_embeddings": scaling.original_positions}
    common |= {
        "num_experts_per_tok": model.experts_per_token,
        "n_routed_experts": model.experts,
        "n_shared_experts": model.shared_experts,
        "moe_intermediate_size": model.ffn_hidden,
        "intermediate_size": model.dense_ffn_hidden,
        "first_k_dense_replace": model.dense_layers,
        "routed_scaling_factor": model.routed_scale,
        "n_group": model.router_groups,
        "topk_group": model.router_groups_kept,
        "norm_topk_prob": model.renormalized_experts,
        "kv_lora_rank": model.key_value_rank,
        "q_lora_rank": model.query_rank,
        "qk_nope_head_dim": model.head_dim - model.rotary_width,
        "qk_rope_head_dim": model.rotary_width,
        "v_head_dim": model.value_dim,
    }
    if model.router == "sigmoid":
        return transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**common)).eval()
    method = "greedy" if model.router_groups == 1 else "group_limited_greedy"
    config = transformers.DeepseekV2Config(topk_method=method, **common)
    return transformers.DeepseekV2ForCausalLM(config).eval()


def of_experts(model: Model, common: dict[str, Any]) -> Any:
    common |= {"num_experts_per_tok": model.experts_per_token, "num_local_experts": model.experts}
    if model.attention_sinks:
        common |= {"head_dim": model.head_dim, "sliding_window": model.attention_window}
        config = transformers.GptOssConfig(attn_implementation="eager", **common)
        return transformers.GptOssForCausalLM(config).eval()
    if not model.qk_norm:
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(sliding_window=None, **common)).eval()
    common |= {"norm_topk_prob": model.renormalized_experts, "head_dim": model.head_dim}
    config = transformers.Qwen3MoeConfig(moe_intermediate_size=model.ffn_hidden, **common)
    return transformers.Qwen3MoeForCausalLM(config).eval()


def gpt2_weights(taken: Callable[[str], Tensor], model: Model) -> dict[str, Tensor]:
    """Ours by the names of GPT-2, whose matrices are transposed, with query, key and value joined."""
    found = {
        "transformer.wte.weight": taken("embedding.tokens.weight"),
        "transformer.wpe.weight": taken("embedding.positions.weight"),
    }
    for kind in ("weight", "bias"):
        found[f"transformer.ln_f.{kind}"] = taken(f"norm.{kind}")
        for layer in range(model.layers):
            here, there = f"blocks.{layer}", f"transformer.h.{layer}"
            joined = torch.cat([taken(f"{here}.attention.{part}.{kind}") for part in ("query", "key", "value")])
            matrices = {
                "attn.c_attn": joined,
                "attn.c_proj": taken(f"{here}.attention.output.{kind}"),
                "mlp.c_fc": taken(f"{here}.feed_forward.up.{kind}"),
                "mlp.c_proj": taken(f"{here}.feed_forward.down.{kind}"),
            }
            found |= {f"{there}.{name}.{kind}": value.t() for name, value in matrices.items()}
            found[f"{there}.ln_1.{kind}"] = taken(f"{here}.attention_norm.{kind}")
            found[f"{there}.ln_2.{kind}"] = taken(f"{here}.feed_forward_norm.{kind}")
    return found


def neox_weights(taken: Callable[[str], Tensor], model: Model) -> dict[str, Tensor]:
    """Ours by the names of GPT-NeoX, with query, key and value of each head beside one another."""
    found = {"gpt_neox.embed_in.weight": taken("embedding.tokens.weight")}
    names = {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "feed_forward_norm",
        "attention.dense": "attention.output",
        "mlp.dense_h_to_4h": "feed_forward.up",
        "mlp.dense_4h_to_h": "feed_forward.down",
    }
    for kind in ("weight", "bias"):
        found[f"gpt_neox.final_layer_norm.{kind}"] = taken(f"norm.{kind}")
        for layer in range(model.layers):
            here, there = f"blocks.{layer}", f"gpt_neox.layers.{layer}"
            parts = [taken(f"{here}.attention.{part}.{kind}") for part in ("query", "key", "value")]
            by_head = torch.stack([part.unflatten(0, (model.heads, model.head_dim)) for part in parts], dim=1)
            found[f"{there}.attention.query_key_value.{kind}"] = by_head.flatten(0, 2)
            found |= {f"{there}.{name}.{kind}": taken(f"{here}.{own}.{kind}") for name, own in names.items()}
    return found


def expert_weights(taken: Callable[[str], Tensor], here: str, model: Model) -> Iterator[tuple[str, Tensor]]:
    """The experts of a layer; gpt-oss has gate and up by turns, and matrices transposed."""
    for form in ("weight", "bias") if model.biases == "all" else ("weight",):
        each = {part: taken(f"{here}.feed_forward.experts.{part}.{form}") for part in ("gate", "up", "down")}
        if form == "weight":  # of all experts one way
            each = {part: weight.unflatten(0, (model.experts, -1)) for part, weight in each.items()}
            each = {part: weight if part == "down" else weight.mT for part, weight in each.items()}
        if model.attention_sinks:
            ending = "" if form == "weight" else "_bias"
            joined = torch.stack([each["gate"], each["up"]], dim=2).flatten(1, 2)
            yield f"gate_up_proj{ending}", joined.transpose(1, -1)
            yield f"down_proj{ending}", each["down"].transpose(1, -1)
        else:
            yield "gate_up_proj", torch.cat([each["gate"], each["up"]], dim=1)
            yield "down_proj", each["down"]


def llama_weights(taken: Callable[[str], Tensor], model: Model) -> dict[str, Tensor]:  # noqa: C901 - a list of names
    """Ours by the names of Llama, Qwen, DeepSeek, Gemma and gpt-oss."""
    found = {"model.embed_tokens.weight": taken("embedding.tokens.weight"), "model.norm.weight": taken("norm.weight")}
    for layer in range(model.layers):
        here, there, kind = f"blocks.{layer}", f"model.layers.{layer}", model.kind_of(layer)
        names = {
            "input_layernorm.weight": "attention_norm.weight",
            "post_attention_layernorm.weight": "feed_forward_norm.weight",
            "self_attn.o_proj.weight": "attention.output.weight",
        }
        if model.post_norms:
            names |= {
                "post_attention_layernorm.weight": "attention_output_norm.weight",
                "pre_feedforward_layernorm.weight": "feed_forward_norm.weight",
                "post_feedforward_layernorm.weight": "feed_forward_output_norm.weight",
            }
        gated, of_shared = ("gate", "up", "down"), ("gate", "up", "down") if kind.shared_experts else ()
        names |= {f"mlp.shared_experts.{part}_proj.weight": f"feed_forward.shared.{part}.weight" for part in of_shared}
        if model.attention_sinks:
            names |= {f"mlp.router.{form}": f"feed_forward.router.{form}" for form in ("weight", "bias")}
            names |= {"self_attn.o_proj.bias": "attention.output.bias", "self_attn.sinks": "attention.sinks.weight"}
        elif kind.experts:
            names["mlp.gate.weight"] = "feed_forward.router.weight"
        else:
            names |= {f"mlp.{part}_proj.weight": f"feed_forward.{part}.weight" for part in gated}
        for part in ("query", "key", "value") if kind.key_value_rank is None else ():
            names[f"self_attn.{part[0]}_proj.weight"] = f"attention.{part}.weight"
            if model.biases != "none":
                names[f"self_attn.{part[0]}_proj.bias"] = f"attention.{part}.bias"
            if model.qk_norm and part != "value":
                names[f"self_attn.{part[0]}_norm.weight"] = f"attention.{part}_norm.weight"
        found |= {f"{there}.{name}": taken(f"{here}.{own}") for name, own in names.items()}
        if kind.key_value_rank:
            found |= {f"{there}.self_attn.{name}.weight": value for name, value in latent_weights(taken, here, model)}
        if kind.experts:
            found |= {f"{there}.mlp.experts.{name}": value for name, value in expert_weights(taken, here, model)}
        if kind.balancing == "bias":
            found[f"{there}.mlp.gate.e_score_correction_bias"] = taken(f"{here}.bias")
    if model.post_norms:  # Gemma keeps a norm's weight without the 1 that is added to it
        found |= {name: weight - 1 for name, weight in found.items() if "norm." in name}
    return found


def latent_weights(taken: Callable[[str], Tensor], here: str, model: Model) -> Iterator[tuple[str, Tensor]]:
    """Latent attention's, by the names of DeepSeek, whose rotated pairs are neighbors where ours are halves."""

    def paired(rows: Tensor) -> Tensor:
        plain, first, second = rows.split([rows.shape[0] - model.rotary_width, *[model.rotary_width // 2] * 2])
        return torch.cat([plain, torch.stack([first, second], dim=1).flatten(0, 1)])

    names = {"kv_a_layernorm": "key_value_norm", "kv_b_proj": "key_value"}
    names |= {"q_a_proj": "query_down", "q_a_layernorm": "query_norm"} if model.query_rank else {}
    yield from ((there, taken(f"{here}.attention.{own}.weight")) for there, own in names.items())
    yield "kv_a_proj_with_mqa", paired(taken(f"{here}.attention.key_value_down.weight"))
    heads = taken(f"{here}.attention.query.weight").unflatten(0, (model.heads, -1))
    yield "q_b_proj" if model.query_rank else "q_proj", torch.cat([paired(head) for head in heads])


def logits(model: Model, reference: Any) -> tuple[Tensor, Tensor]:
    """Ours and theirs of the same weights; each of ours is theirs exactly once, and no weight of theirs is left."""
    mine = ours(model)
    weights = {name: parameter.detach() for name, parameter in mine.named_parameters()}
    weights |= {f"{name}.bias": one.balance.bias for name, one in mine.mixtures.items() if one.balance is not None}
    rotary = neox_weights if model.norm == "layernorm" else llama_weights
    renamed = (gpt2_weights if model.positions == "learned" else rotary)(weights.pop, model)
    renamed["lm_head.weight"] = renamed_embedding(renamed) if model.tied_embeddings else weights.pop("head.weight")
    assert not weights
    if reference.config.model_type == "phi3":
        joined = {"self_attn.qkv_proj": "self_attn.{}_proj qkv", "mlp.gate_up_proj": "mlp.{}_proj gate up"}
        for layer in range(model.layers):
            for name, parts in joined.items():
                form, *of = parts.split()
                of = list(of[0]) if len(of) == 1 else of
                taken = [renamed.pop(f"model.layers.{layer}.{form.format(part)}.weight") for part in of]
                renamed[f"model.layers.{layer}.{name}.weight"] = torch.cat(taken)
    reference.load_state_dict(renamed)
    tokens = torch.randint(0, VOCABULARY, (1, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return mine(tokens), reference(tokens).logits


def renamed_embedding(weights: dict[str, Tensor]) -> Tensor:
    return next(weight for name, weight in weights.items() if name.endswith(("wte.weight", "embed_tokens.weight")))


def apart(first: Tensor, second: Tensor) -> float:
    """The largest difference, relative to the scale of the second."""
    return ((first - second).abs().max() / second.abs().max()).item()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_compute_what_the_published_models_do(name: str) -> None:
    assert apart(*logits(reduced(name), theirs(reduced(name)))) < RELATIVE


@pytest.mark.parametrize("kind", PUBLISHED)
def test_configurations_are_read_as_transformers_builds_them(kind: str) -> None:
    config = {"model_type": kind.split(maxsplit=1)[0], **PUBLISHED[kind]}
    built = transformers.AutoConfig.for_model(**config)
    if kind in ("gemma2", "gpt_oss"):  # whose capped scores and sinks have no other kernel
        built._attn_implementation = "eager"
    reference = transformers.AutoModelForCausalLM.from_config(built).eval()
    model = read_plain(Model, {"vocabulary_multiple": 1, **filled(model_of_config(config))}, "model")
    assert model.parameters == sum(parameter.numel() for parameter in reference.parameters())
    assert apart(*logits(model, reference)) < RELATIVE


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_key_that_is_left_out_has_the_value_that_transformers_gives_it(kind: str) -> None:
    def read(given: dict[str, Any]) -> object:
        try:
            return replace(read_plain(Model, filled(model_of_config(given)), "model"), name="")
        except InvalidInput as error:
            return error.message.partition(" = ")[0].rpartition(".")[2]

    for key in (
        *ARCHITECTURES[kind].defaults,
        "head_dim",
        "num_key_value_heads",
        "rope_theta",
        "rotary_pct",
        "n_inner",
    ):
        config = {"model_type": kind, **PUBLISHED[kind]}
        config.pop(key, None)
        whole = json.loads(json.dumps(transformers.AutoConfig.for_model(**config).to_dict()))
        assert read(config) == read(whole), key


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_another_value_of_a_field_is_another_model(name: str, change: dict[str, Any]) -> None:
    """Each field reaches the logits by ten times and more what the comparison allows."""
    model = reduced(name)
    tokens = torch.randint(0, VOCABULARY, (1, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        other, expected = ours(replace(model, **change))(tokens), ours(model)(tokens)
    assert apart(other, expected) > 10 * RELATIVE


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_are_those_of_the_trainer_s_modules(name: str) -> None:
    table = model_preset(name)
    model = read_plain(Model, filled(table), "model")
    model = model.of_layers(model.dense_layers + 2)
    with torch.device("meta"):
        built = Gpt(model, sequence_length=model.max_positions or 1, layers=range(model.layers))
    assert model.parameters == sum(parameter.numel() for parameter in built.parameters())


def test_the_balancing_loss_is_that_of_transformers_mixtral() -> None:
    """Of one layer and one sequence: the value, and what it adds to the gradients of all weights."""
    model = replace(reduced("mixtral-8x7b"), layers=1, balancing="loss", balancing_weight=0.5)
    reference, mine = theirs(model), ours(model)
    names = llama_weights({name: weight.detach() for name, weight in mine.named_parameters()}.pop, model)
    reference.load_state_dict(names | {"lm_head.weight": mine.head.weight})
    tokens = torch.randint(0, VOCABULARY, (1, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(2))

    found = reference(tokens, output_router_logits=True)
    (found.logits.square().mean() + 0.5 * found.aux_loss).backward()
    mine(tokens).square().mean().backward()

    router = reference.model.layers[0].mlp.gate.weight.grad
    assert apart(mine.blocks["0"].feed_forward.router.weight.grad, router) < RELATIVE
    assert apart(mine.embedding.tokens.weight.grad, reference.model.embed_tokens.weight.grad) < RELATIVE
    mine.zero_grad()
    mine.blocks["0"].feed_forward.weigh = lambda loss: 0 * loss
    mine(tokens).square().mean().backward()
    assert apart(mine.blocks["0"].feed_forward.router.weight.grad, router) > 10 * RELATIVE
