"""A model from the `config.json` of a published one, read as `transformers` builds it.

What trains another function than the trainer's own model is refused by name: another architecture, another activation,
rotary positions of a part of each head. Dropout, the dtype and tokens' numbers belong to no model's shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from frontrunner.spaces.errors import InvalidInput, bad_value, shown

Table = dict[str, Any]

ACTIVATIONS = {"gelu": "gelu", **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh")}
_COMMON = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "vocabulary": "vocab_size",
    "tied_embeddings": "tie_word_embeddings",
    "max_positions": "max_position_embeddings",
    "ffn_hidden": "intermediate_size",
}
_GROUPED = _COMMON | {"kv_heads": "num_key_value_heads", "norm_epsilon": "rms_norm_eps", "head_width": "head_dim"}
_GPT2 = {
    "layers": "n_layer",
    "hidden": "n_embd",
    "heads": "n_head",
    "vocabulary": "vocab_size",
    "tied_embeddings": "tie_word_embeddings",
    "max_positions": "n_positions",
    "ffn_hidden": "n_inner",
    "norm_epsilon": "layer_norm_epsilon",
}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How the configurations of one `model_type` are read.

    `names` are its keys by ours, `defaults` what it takes for one that is left out, `model` what is always so, and
    `only` the one value of a key that is modeled.
    """

    names: Mapping[str, str] = field(default_factory=lambda: _GROUPED)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any]
    only: Mapping[str, Any] = field(default_factory=dict)


_EPSILON = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu"}
_GATED = {"norm": "rmsnorm", "activation": "swiglu"}
ARCHITECTURES = {
    "llama": Architecture(
        defaults=_EPSILON | {"attention_bias": False, "mlp_bias": False},
        model=_GATED,
        only={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    ),
    "mistral": Architecture(
        defaults=_EPSILON | {"num_key_value_heads": 8, "sliding_window": 4096},
        model=_GATED,
        only={"hidden_act": "silu"},
    ),
    "qwen2": Architecture(
        defaults=_EPSILON | {"num_key_value_heads": 32, "use_sliding_window": False},
        model=_GATED | {"biases": "qkv"},
        only={"hidden_act": "silu"},
    ),
    "qwen3": Architecture(
        defaults=_EPSILON
        | {"num_key_value_heads": 32, "head_dim": 128, "attention_bias": False, "use_sliding_window": False},
        model=_GATED | {"qk_norm": True},
        only={"hidden_act": "silu", "attention_bias": False},
    ),
    "mixtral": Architecture(
        names=_GROUPED | {"experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"},
        defaults=_EPSILON
        | {
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        model=_GATED,
        only={"hidden_act": "silu"},
    ),
    "qwen3_moe": Architecture(
        names=_GROUPED
        | {
            "ffn_hidden": "moe_intermediate_size",
            "experts": "num_experts",
            "experts_per_token": "num_experts_per_tok",
            "renormalized_experts": "norm_topk_prob",
        },
        defaults=_EPSILON
        | {"num_key_value_heads": 4, "attention_bias": False, "use_sliding_window": False, "norm_topk_prob": False}
        | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
        | {"decoder_sparse_step": 1, "mlp_only_layers": []},
        model=_GATED | {"qk_norm": True},
        only={"hidden_act": "silu", "attention_bias": False, "decoder_sparse_step": 1, "mlp_only_layers": []},
    ),
    "phi3": Architecture(defaults=_EPSILON | {"rms_norm_eps": 1e-5}, model=_GATED, only={"hidden_act": "silu"}),
    "gpt2": Architecture(
        names=_GPT2,
        defaults={
            "n_positions": 1024,
            "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": True,
            "activation_function": "gelu_new",
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
        model={"positions": "learned", "biases": "all"},
        only={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    ),
    "gpt_neox": Architecture(
        names=_COMMON | {"norm_epsilon": "layer_norm_eps"},
        defaults={
            "layer_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "hidden_act": "gelu",
            "attention_bias": True,
            "use_parallel_residual": True,
            "rotary_pct": 0.25,
        },
        model={"biases": "all"},
        only={"attention_bias": True, "use_parallel_residual": False},
    ),
}
"""Of `transformers`, whose classes' defaults these are."""
NEEDED = ("layers", "hidden", "heads", "vocabulary")
_ROTARY_SCALING = {
    "factor": "factor",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "original_positions": "original_max_position_embeddings",
}


def model_of_config(config: Mapping[str, Any]) -> Table:
    """Return the keys of [model] for a configuration; raises `InvalidInput` for one that is not modeled."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise bad_value(
            "model_type", kind, "an architecture that is modeled", hint=f"known: {', '.join(ARCHITECTURES)}"
        )
    architecture = ARCHITECTURES[kind]
    stated = {key: value for key, value in config.items() if value is not None}
    later_names = {"num_experts": stated.get("num_local_experts")}  # as transformers writes it from version 5 on
    given = {**architecture.defaults, **{key: value for key, value in later_names.items() if value}, **stated}
    for key, value in architecture.only.items():
        if given[key] != value:
            raise bad_value(key, given[key], f"{shown(value)}: no other is modeled")
    found: Table = {"name": config.get("_name_or_path") or kind, **architecture.model}
    found |= {own: given[key] for own, key in architecture.names.items() if key in given}
    for own in NEEDED:
        if own not in found:
            raise InvalidInput(f"no {architecture.names[own]}", hint="take the config.json of the whole model")
    if "activation" not in found:
        key = "activation_function" if kind == "gpt2" else "hidden_act"
        if given[key] not in ACTIVATIONS:
            raise bad_value(key, given[key], f"one of {', '.join(ACTIVATIONS)}")
        found["activation"] = ACTIVATIONS[given[key]]
    if "positions" not in found:
        found |= _rotary(given)
    if given.get("use_sliding_window", True) and given.get("sliding_window") is not None:
        found["attention_window"] = given["sliding_window"]
    return found


def _rotary(given: Mapping[str, Any]) -> Table:
    """Return the rotary positions: `rope_parameters`, or `rope_theta`, `rope_scaling` and a share of earlier files."""
    key = "rope_parameters" if "rope_parameters" in given else "rope_scaling"
    table = given.get(key, {})
    if not isinstance(table, dict) or any(isinstance(value, dict) for value in table.values()):
        raise bad_value(key, str(table), "one table for all layers")
    share = table.get("partial_rotary_factor", given.get("partial_rotary_factor", given.get("rotary_pct", 1.0)))
    if share != 1:
        raise bad_value(f"{key}.partial_rotary_factor", share, "1: rotation of a part is not modeled")
    theta = given.get("rope_theta", given.get("rotary_emb_base", 10_000.0))
    found: Table = {"rotary_theta": table.get("rope_theta", theta)}
    kind = table.get("rope_type", table.get("type", "default"))
    if kind == "default":
        return found
    if kind != "llama3":
        raise bad_value(f"{key}.rope_type", kind, "default or llama3")
    if missing := [theirs for theirs in _ROTARY_SCALING.values() if theirs not in table]:
        raise InvalidInput(f"{key} has no {missing[0]}")
    return found | {"rotary_scaling": {own: table[theirs] for own, theirs in _ROTARY_SCALING.items()}}
