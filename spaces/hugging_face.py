"""A model from the `config.json` of a published one, read as `transformers` builds it, and a
`config.json` of a model.

What trains another function than the trainer's own model is refused by name: another architecture,
another activation, another scaling of rotary frequencies. Dropout, the dtype and tokens' numbers
belong to no model's shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from frontrunner.spaces.document import read_plain
from frontrunner.spaces.errors import InvalidInput, bad_value, shown
from frontrunner.spaces.model.attention import LatentAttention
from frontrunner.spaces.model.model import KEYS, Model
from frontrunner.spaces.model.positions import RotaryScaling

Table = dict[str, Any]

ACTIVATIONS = {
    "gelu": "gelu",
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh"),
    "relu": "relu",
    "relu2": "relu2",
}
_COMMON = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "vocabulary": "vocab_size",
    "tied_embeddings": "tie_word_embeddings",
    "max_positions": "max_position_embeddings",
    "ffn_hidden": "intermediate_size",
}
_GROUPED = _COMMON | {
    "kv_heads": "num_key_value_heads",
    "norm_epsilon": "rms_norm_eps",
    "head_width": "head_dim",
}
_LATENT = _COMMON | {
    "norm_epsilon": "rms_norm_eps",
    "head_width": "qk_nope_head_dim",
    "rotary_width": "qk_rope_head_dim",
    "value_width": "v_head_dim",
    "key_value_rank": "kv_lora_rank",
    "query_rank": "q_lora_rank",
    "experts": "n_routed_experts",
    "experts_per_token": "num_experts_per_tok",
    "ffn_hidden": "moe_intermediate_size",
    "shared_experts": "n_shared_experts",
    "dense_layers": "first_k_dense_replace",
    "dense_ffn_hidden": "intermediate_size",
    "routed_scale": "routed_scaling_factor",
    "router_groups": "n_group",
    "router_groups_kept": "topk_group",
}
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

    Of `full_every` layers that many come to one without the sliding window, unless that is stated.

    `names` are its keys by ours, `defaults` what it takes for one that is left out, `model` what is
    always so, and `only` the one value of a key that is modeled.
    """

    names: Mapping[str, str] = field(default_factory=lambda: _GROUPED)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any]
    only: Mapping[str, Any] = field(default_factory=dict)
    full_every: int = 0

    @property
    def has_windows(self) -> bool:
        """Whether it reads `sliding_window`."""
        return "sliding_window" in self.defaults

    @property
    def types_layers(self) -> bool:
        """Whether its layers may differ in having the window: it reads `layer_types`."""
        return self.full_every > 0 or "max_window_layers" in self.defaults


_EPSILON = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu"}
_GATED = {"norm": "rmsnorm", "activation": "swiglu"}
_QWEN_WINDOW = {"use_sliding_window": False, "sliding_window": 4096}
_GEMMA_NAMES = _GROUPED | {
    "query_scalar": "query_pre_attn_scalar",
    "attention_softcap": "attn_logit_softcapping",
    "logits_softcap": "final_logit_softcapping",
}
_GEMMA_SIZES = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_GEMMA_ONLY = {
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "use_bidirectional_attention": False,
}
_GEMMA = {"norm": "rmsnorm", "activation": "geglu", "post_norms": True, "scaled_embedding": True}
_GEMMA_DEFAULTS = _GEMMA_SIZES | _GEMMA_ONLY | {"rms_norm_eps": 1e-6, "tie_word_embeddings": True}
_GPT_OSS_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
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
        defaults=_EPSILON | {"num_key_value_heads": 32} | _QWEN_WINDOW | {"max_window_layers": 28},
        model=_GATED | {"biases": "qkv"},
        only={"hidden_act": "silu"},
    ),
    "qwen3": Architecture(
        defaults=_EPSILON
        | {"num_key_value_heads": 32, "head_dim": 128, "attention_bias": False}
        | _QWEN_WINDOW
        | {"max_window_layers": 28},
        model=_GATED | {"qk_norm": True},
        only={"hidden_act": "silu", "attention_bias": False},
    ),
    "mixtral": Architecture(
        names=_GROUPED
        | {"experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"},
        defaults=_EPSILON
        | {
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "sliding_window": None,
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
        | {"num_key_value_heads": 4, "attention_bias": False, "norm_topk_prob": False}
        | _QWEN_WINDOW
        | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
        | {"decoder_sparse_step": 1, "mlp_only_layers": []},
        model=_GATED | {"qk_norm": True},
        only={
            "hidden_act": "silu",
            "attention_bias": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
    ),
    "deepseek_v2": Architecture(
        names=_LATENT,
        defaults=_EPSILON
        | {
            "first_k_dense_replace": 0,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
        }
        | {"qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2}
        | {"moe_intermediate_size": 1407, "intermediate_size": 11008, "routed_scaling_factor": 1.0}
        | {
            "topk_method": "greedy",
            "scoring_func": "softmax",
            "moe_layer_freq": 1,
            "norm_topk_prob": False,
        }
        | {
            "attention_bias": False,
            "mlp_bias": False,
            "vocab_size": 102400,
            "max_position_embeddings": 2048,
        },
        model=_GATED | {"renormalized_experts": False},
        only={
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "scoring_func": "softmax",
        }
        | {"moe_layer_freq": 1, "norm_topk_prob": False},
    ),
    "deepseek_v3": Architecture(
        names=_LATENT
        | {"kv_heads": "num_key_value_heads", "renormalized_experts": "norm_topk_prob"},
        defaults=_EPSILON
        | {
            "first_k_dense_replace": 3,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
        }
        | {
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
        }
        | {"moe_intermediate_size": 2048, "intermediate_size": 18432, "routed_scaling_factor": 2.5}
        | {"n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "norm_topk_prob": True}
        | {
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "moe_layer_freq": 1,
            "attention_bias": False,
        }
        | {"num_key_value_heads": 128, "vocab_size": 129280, "max_position_embeddings": 4096},
        model=_GATED | {"router": "sigmoid", "balancing": "bias"},
        only={
            "hidden_act": "silu",
            "attention_bias": False,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
        }
        | {"moe_layer_freq": 1},
    ),
    "phi3": Architecture(
        defaults=_EPSILON | {"rms_norm_eps": 1e-5, "sliding_window": None},
        model=_GATED,
        only={"hidden_act": "silu"},
    ),
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
        only={
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
    ),
    "gpt_neox": Architecture(
        names=_COMMON
        | {"norm_epsilon": "layer_norm_eps", "parallel_residual": "use_parallel_residual"},
        defaults={
            "layer_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "hidden_act": "gelu",
            "attention_bias": True,
            "use_parallel_residual": True,
            "rotary_pct": 0.25,
        },
        model={"biases": "all"},
        only={"attention_bias": True},
    ),
    "gpt_oss": Architecture(
        names=_GROUPED
        | {"experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"},
        defaults={
            "num_hidden_layers": 36,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "vocab_size": 201088,
        }
        | {
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "sliding_window": 128,
        }
        | {
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
        }
        | {"hidden_act": "silu", "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "attention_bias": True}
        | {
            "max_position_embeddings": 131072,
            "rope_theta": 150_000.0,
            "rope_scaling": _GPT_OSS_YARN,
        },
        model={
            "norm": "rmsnorm",
            "activation": "swiglu_clamped",
            "biases": "all",
            "attention_sinks": True,
        },
        only={
            "hidden_act": "silu",
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
            "attention_bias": True,
        },
        full_every=2,
    ),
    "gemma2": Architecture(
        names=_GEMMA_NAMES,
        defaults=_GEMMA_DEFAULTS
        | {"vocab_size": 256_000, "max_position_embeddings": 8192}
        | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        model=_GEMMA,
        only=_GEMMA_ONLY,
        full_every=2,
    ),
    "gemma3_text": Architecture(
        names=_GEMMA_NAMES,
        defaults=_GEMMA_DEFAULTS
        | {"vocab_size": 262_208, "max_position_embeddings": 131_072, "sliding_window_pattern": 6}
        | {"rope_theta": 1e6, "rope_local_base_freq": 1e4},
        model=_GEMMA | {"qk_norm": True},
        only=_GEMMA_ONLY,
        full_every=6,
    ),
}
"""Of `transformers`, whose classes' defaults these are."""
OTHER_NAMES = {"kimi_k2": "deepseek_v3"}
"""Types whose published models name another type's class in `architectures`."""
LATENT_EPSILON = 1e-6
"""Epsilon of the norms of latent vectors in `transformers`, whatever `rms_norm_eps` is."""
NEEDED = ("layers", "hidden", "heads", "vocabulary", "ffn_hidden")
_ROTARY_SCALING = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_frequency_factor": "low_freq_factor",
        "high_frequency_factor": "high_freq_factor",
        "original_positions": "original_max_position_embeddings",
    },
    "yarn": {"factor": "factor", "original_positions": "original_max_position_embeddings"},
}
_WINDOW, _FULL = "sliding_attention", "full_attention"
_PERIODS = ("sliding_window", "sliding_window_pattern")
_COUNTS = (*_PERIODS, "max_window_layers")
MOST, MOST_LAYERS = 2**31 - 1, 100_000
"""Of any number of a configuration, beyond what any model states; and of layers, which are looked
at one by one.
"""
_ROTARY_OPTIONS = ("beta_fast", "beta_slow", "attention_factor", "truncate")


def model_of_config(config: Mapping[str, Any]) -> Table:
    """Return the keys of [model] for a configuration; raises `InvalidInput` for one that is not
    modeled.
    """
    kind = OTHER_NAMES.get(str(config.get("model_type")), config.get("model_type"))
    config = {**config, "model_type": kind}
    if kind == "gemma3" and isinstance(
        text := config.get("text_config"), dict
    ):  # without the part for images
        return model_of_config(
            {"_name_or_path": config.get("_name_or_path"), **text, "model_type": "gemma3_text"}
        )
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise bad_value(
            "model_type",
            kind,
            "an architecture that is modeled",
            hint=f"known: {', '.join(ARCHITECTURES)}; keys of [model] can state the shape of any"
            " other, as layers, hidden, heads, ffn_hidden",
        )
    architecture = ARCHITECTURES[kind]
    later_names = {
        "num_experts": config.get("num_local_experts")
    }  # as transformers writes it from version 5 on
    plain = {
        key: value for key, value in config.items() if key != "rope_scaling" or value is not None
    }
    stated = {
        **architecture.defaults,
        **{key: value for key, value in later_names.items() if value},
        **plain,
    }
    given = {key: value for key, value in stated.items() if value is not None}
    for key, value in architecture.only.items():
        if (False if value is False and given.get(key) is None else given.get(key)) != value:
            raise bad_value(key, given.get(key), f"{shown(value)}: no other is modeled")
    _check_values(given, architecture)
    found: Table = {"name": config.get("_name_or_path") or kind, **architecture.model}
    found |= {own: given[key] for own, key in architecture.names.items() if key in given}
    for own in NEEDED:
        if (
            own not in found and architecture.names[own] != "n_inner"
        ):  # which is by default 4 * hidden
            raise InvalidInput(
                f"no {architecture.names[own]}", hint="take the config.json of the whole model"
            )
    if "activation" not in found:
        key = "activation_function" if kind == "gpt2" else "hidden_act"
        if given.get(key) not in [*ACTIVATIONS]:
            raise bad_value(key, given.get(key), f"one of {', '.join(ACTIVATIONS)}")
        found["activation"] = ACTIVATIONS[given[key]]
    if "positions" not in found:
        found |= _rotary(given, found.get("head_width", found["hidden"] // found["heads"]))
    found = _completed(found, given)
    return found | _windows(given, architecture, found["layers"])


def _check_values(given: Mapping[str, Any], architecture: Architecture) -> None:
    """Raise `InvalidInput` for a value of another kind than its key's: the model's field of that
    key says which.
    """
    kinds: dict[str, Any] = {key: KEYS[own].type for own, key in architecture.names.items()}
    kinds["use_sliding_window"] = bool
    kinds |= dict.fromkeys(_COUNTS, int)
    needed = [architecture.names[own] for own in NEEDED]
    for key, kind in kinds.items():
        value = given.get(key)
        if value is None:
            continue
        if kind is bool and not isinstance(value, bool):
            raise bad_value(key, value, "true or false")
        least, most = int(key in (*needed, *_PERIODS)), MOST_LAYERS if key == needed[0] else MOST
        if kind in (int, int | None) and (type(value) is not int or not least <= value <= most):
            raise bad_value(key, value, f"a whole number from {least} to {most:,}")
        if kind in (float, float | None):
            _number(key, value)


def _number(key: str, value: Any) -> float:
    """Return a value that is a number above 0; raise `InvalidInput` for any other."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MOST:
        raise bad_value(key, value, f"a number above 0 and below {MOST:,}")
    return float(value)


CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}
"""What a model is written as, the first of them that has its form, with the class of
`transformers`.
"""


def config_of_model(model: Model, *, positions: int) -> Table:
    """Return a configuration of which `model_of_config` makes this model, for sequences of up to
    `positions` tokens.

    The vocabulary is the tokenizer's, without padding. Biases that an architecture always has are 0
    where the model has none. Raises `InvalidInput` for a model of no architecture, with what the
    nearest one lacks.
    """
    differing: dict[str, dict[str, Any]] = {}
    for kind in CLASSES:
        wanted = model.with_keys(max_positions=positions)
        try:
            if ARCHITECTURES[kind].model.get("biases") == "all":
                wanted = wanted.with_keys(biases="all")
            config = _config_as(kind, wanted)
            table = model_of_config(config)
            read = read_plain(
                Model,
                {"kv_heads": table["heads"], "ffn_hidden": 4 * table["hidden"]} | table,
                "model",
            )
        except ValueError:  # that architecture has no such value
            continue
        first, second = _function(wanted), _function(read)
        if isinstance(read.attention, LatentAttention):
            second["norm_epsilon"] = LATENT_EPSILON
        differing[kind] = {key: second[key] for key in first if first[key] != second[key]}
        if not differing[kind]:
            return config
    nearest = min(differing, key=lambda kind: len(differing[kind]))
    keys = model.keys()
    values = ", ".join(f"model.{key} = {shown(keys[key])}" for key in differing[nearest])
    instead = ", ".join(
        f"model.{key} = {shown(value)}" for key, value in differing[nearest].items()
    )
    raise InvalidInput(
        f"transformers has no architecture of this model; {nearest} comes nearest, without"
        f" {values}",
        hint=f"a model that {nearest} can hold has {instead}",
    )


def _function(model: Model) -> dict[str, Any]:
    """Return the fields of a model that its logits depend on."""
    trained = ("name", "vocabulary_multiple", "routing", "balancing_weight", "attention")
    found = {key: value for key, value in model.plain_keys().items() if key not in trained}
    found["balancing"] = model.mixture is not None and model.mixture.balancing == "bias"
    if model.rotary is None:
        found["rotary_theta"] = None
    elif (scaling := model.rotary.scaling) is not None:
        names = ("kind", *_ROTARY_SCALING[scaling.kind])
        found["rotary_scaling"] = {key: getattr(scaling, key) for key in names}
        if scaling.kind == "yarn":
            derived = {"attention_factor": scaling.magnitude, "score_factor": scaling.score_factor}
            found["rotary_scaling"] |= {
                key: getattr(scaling, key) for key in ("beta_fast", "beta_slow", "truncate")
            }
            found["rotary_scaling"] |= {
                key: round(value, 12) for key, value in derived.items()
            }  # as read, by logarithms
    return found


def _config_as(kind: str, model: Model) -> Table:
    architecture = ARCHITECTURES[kind]
    own = model.keys()
    own["head_width"] = model.attention.plain_width
    own["value_width"] = model.attention.value_dim
    own["dense_ffn_hidden"] = (model.dense or model.feed_forward).ffn_hidden
    own["query_scalar"] = own["query_scalar"] or model.attention.head_dim
    config: Table = {"architectures": [CLASSES[kind]], "model_type": kind, **architecture.only}
    # What the architecture fixes stays as it has it, so that the difference is seen by its name.
    names = architecture.names.items()
    config |= {key: own[name] for name, key in names if key not in architecture.only}
    if kind.startswith("gemma") and float(own["query_scalar"]).is_integer():
        config["query_pre_attn_scalar"] = int(own["query_scalar"])
    if "activation" not in architecture.model:
        words = {own: word for word, own in reversed(ACTIVATIONS.items())}  # the first word of each
        key = "activation_function" if kind == "gpt2" else "hidden_act"
        config[key] = words.get(model.feed_forward.activation, "gelu")
    if kind == "deepseek_v2":
        config["topk_method"] = "greedy" if own["router_groups"] == 1 else "group_limited_greedy"
    config |= _windows_as(architecture, model)
    return config | (
        {} if architecture.model.get("positions") == "learned" else _rotary_as(kind, model)
    )


def _windows_as(architecture: Architecture, model: Model) -> Table:
    if not architecture.has_windows:
        return {}
    found: Table = {"sliding_window": model.attention.window}
    if "use_sliding_window" in architecture.defaults:
        found["use_sliding_window"] = model.attention.window is not None
    if architecture.types_layers and (architecture.full_every or found["use_sliding_window"]):
        found["layer_types"] = [
            _FULL if layer.attention.window is None else _WINDOW for layer in model.layers
        ]
    return found


def _rotary_as(kind: str, model: Model) -> Table:
    own, width = model.keys(), model.attention.head_dim
    if kind == "gpt_neox":
        share = (own["rotary_width"] or width) / width
        return {"rotary_emb_base": own["rotary_theta"], "rotary_pct": share}
    found: Table = {"rope_theta": own["rotary_theta"]}
    if own["window_rotary_theta"] and "rope_local_base_freq" in ARCHITECTURES[kind].defaults:
        found["rope_local_base_freq"] = own["window_rotary_theta"]
    scaling: RotaryScaling | None = own["rotary_scaling"]
    if scaling is None:  # where null stands for the architecture's own
        is_own = "rope_scaling" in ARCHITECTURES[kind].defaults
        return found | {"rope_scaling": {"rope_type": "default"} if is_own else None}
    stated = asdict(scaling)
    table: Table = {"rope_type": scaling.kind} | {
        key: stated[own] for own, key in _ROTARY_SCALING[scaling.kind].items()
    }
    if scaling.kind == "yarn":
        table |= {key: stated[key] for key in _ROTARY_OPTIONS if stated[key] is not None}
    if scaling.score_factor != 1:
        every = (scaling.score_factor**0.5 - 1) / (0.1 * math.log(scaling.factor))
        table |= {"mscale": every, "mscale_all_dim": every}
    return found | {"rope_scaling": table}


def _windows(given: Mapping[str, Any], architecture: Architecture, layers: int) -> Table:
    """Return which layers have the sliding window. Gemma 3 rotates differently in those that have
    it.
    """
    types = _layer_types(given, architecture, layers)
    if _WINDOW not in types:
        return {}
    every = types.index(_FULL) + 1 if _FULL in types else 0
    if types != _every(every, layers):
        key = "layer_types" if "layer_types" in given else "max_window_layers"
        raise bad_value(key, given.get(key), "the window in all layers but each n-th one")
    found = {"attention_window": given["sliding_window"], "full_attention_every": every}
    if "rope_local_base_freq" not in given:
        return found
    stated = given.get("rope_parameters", {}).get(_WINDOW, {})
    if not isinstance(stated, dict) or stated.get("rope_type", "default") != "default":
        raise bad_value(f"rope_parameters.{_WINDOW}", stated, 'rope_type = "default"')
    theta = stated.get("rope_theta", given["rope_local_base_freq"])
    return found | {"window_rotary_theta": _number("rope_local_base_freq", theta)}


def _layer_types(given: Mapping[str, Any], architecture: Architecture, layers: int) -> list[str]:
    """Return the stated types; else the window in all layers but one of so many, or but Qwen's
    `max_window_layers`.

    Empty where nothing is stated and no window is in use. Raises `InvalidInput` for a type that is
    not modeled.
    """
    has_window = (
        architecture.has_windows
        and given.get("sliding_window")
        and given.get("use_sliding_window", True)
    )
    if has_window and "max_window_layers" in architecture.defaults:
        first = given.get("max_window_layers", architecture.defaults["max_window_layers"])
        built = [_FULL if layer < first else _WINDOW for layer in range(layers)]
    else:
        built = (
            _every(given.get("sliding_window_pattern", architecture.full_every), layers)
            if has_window
            else []
        )
    if "layer_types" not in given:
        return built
    types = given["layer_types"]
    if not isinstance(types, list) or len(types) != layers:
        raise bad_value("layer_types", types, f"a list of {layers}, one for each layer")
    modeled = [_FULL, _WINDOW] if has_window else [_FULL]
    if others := [name for name in types if name not in modeled]:
        windowless = "" if has_window else ": no sliding_window is in use"
        raise bad_value("layer_types", others[0], f"{' or '.join(modeled)}{windowless}")
    return types if architecture.types_layers else built


def _every(every: int, layers: int) -> list[str]:
    return [_FULL if every and (layer + 1) % every == 0 else _WINDOW for layer in range(layers)]


def _completed(found: Table, given: Mapping[str, Any]) -> Table:
    """Complete what is read of a model with latent attention: layers without experts, groups of
    these, score factor.
    """
    if "key_value_rank" not in found:
        return found
    method = given.get("topk_method")
    if given["model_type"] == "deepseek_v2" and method not in ("greedy", "group_limited_greedy"):
        raise bad_value("topk_method", method, "greedy or group_limited_greedy")
    left_out = [] if found.get("dense_layers") else ["dense_ffn_hidden"]
    if method == "greedy":
        left_out += ["router_groups", "router_groups_kept"]
    table = given.get("rope_parameters", given.get("rope_scaling", {}))
    if "rotary_scaling" in found and (every := table.get("mscale_all_dim")):
        found["rotary_scaling"]["score_factor"] = (0.1 * every * math.log(table["factor"]) + 1) ** 2
    return {key: value for key, value in found.items() if key not in left_out}


def _rotary(given: Mapping[str, Any], head_width: int) -> Table:
    """Return the rotary positions: `rope_parameters`, or `rope_theta`, `rope_scaling` and a share
    of earlier files.
    """
    key = "rope_parameters" if "rope_parameters" in given else "rope_scaling"
    stated = given.get(key, {})
    if (
        isinstance(stated, dict)
        and isinstance(stated.get("full_attention"), dict)
        and "rope_local_base_freq" in given
    ):
        stated = stated["full_attention"]
    if not isinstance(stated, dict) or any(isinstance(value, dict) for value in stated.values()):
        raise bad_value(key, str(stated), "one table for all layers")
    table: Table = {
        "original_max_position_embeddings": given.get("max_position_embeddings")
    } | stated
    share = table.get(
        "partial_rotary_factor", given.get("partial_rotary_factor", given.get("rotary_pct", 1.0))
    )
    theta = given.get("rope_theta", given.get("rotary_emb_base", 10_000.0))
    found: Table = {"rotary_theta": _number("rope_theta", table.get("rope_theta", theta))}
    if share != 1:
        if given["model_type"] not in (
            "gpt_neox",
            "phi3",
        ):  # transformers rotates whole heads of others
            raise bad_value("partial_rotary_factor", share, "1: no other is modeled")
        if _number("partial_rotary_factor", share) > 1:
            raise bad_value("partial_rotary_factor", share, "a share of at most 1")
        found["rotary_width"] = int(head_width * share)
    kind = table.get("rope_type", table.get("type", "default"))
    if kind == "default":
        return found
    if (
        kind not in [*_ROTARY_SCALING] or given["model_type"] == "phi3"
    ):  # of which transformers makes another kind
        known = () if given["model_type"] == "phi3" else _ROTARY_SCALING
        raise bad_value(f"{key}.rope_type", kind, f"one of {', '.join(('default', *known))}")
    return found | {"rotary_scaling": _rotary_scaling(key, kind, table)}


def _rotary_scaling(key: str, kind: str, table: Table) -> Table:
    names = _ROTARY_SCALING[kind]
    if missing := [theirs for theirs in names.values() if table.get(theirs) is None]:
        raise InvalidInput(f"{key} has no {missing[0]}")
    if not isinstance(table.get("truncate", True), bool):
        raise bad_value(f"{key}.truncate", table["truncate"], "true or false")
    for name in (*names.values(), *_ROTARY_OPTIONS[:-1], "mscale", "mscale_all_dim"):
        if table.get(name) is not None and (name in names.values() or table[name] != 0):
            _number(f"{key}.{name}", table[name])
    scaling = {"kind": kind} | {own: table[theirs] for own, theirs in names.items()}
    if kind == "yarn":
        scaling |= {name: table[name] for name in _ROTARY_OPTIONS if table.get(name) is not None}
        if (
            table.get("attention_factor") is None
            and table.get("mscale")
            and table.get("mscale_all_dim")
        ):
            by, over = (
                0.1 * table[name] * math.log(table["factor"]) + 1
                for name in ("mscale", "mscale_all_dim")
            )
            scaling["attention_factor"] = by / over
    return scaling
