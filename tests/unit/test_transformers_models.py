"""The trainer's models compute what the published ones do: logits against `transformers`, with the
same random weights.

Presets are reduced in depth, width and vocabulary; what a preset states beside them stays: the
ratio of heads to groups of keys and values, rotary frequencies, norms and their epsilon, biases,
activation. Megatron's GPT is GPT-2's form.
"""

from __future__ import annotations

import copy
import json
import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from frontrunner.evaluators.checkpoint.weights import shapes_of, weights
from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.spaces.document import read_plain
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.hugging_face import ARCHITECTURES, config_of_model, model_of_config
from frontrunner.spaces.model.attention import LatentAttention
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.model.positions import RotaryScaling
from frontrunner.spaces.presets import model_preset, preset_names
from frontrunner.spaces.validation import validate

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
    (
        "gpt-oss-20b",
        {"rotary_scaling": RotaryScaling(factor=32.0, kind="yarn", original_positions=4096)},
    ),
    ("gpt-neox-20b", {"rotary_width": 16}),
    ("gpt-neox-20b", {"parallel_residual": False}),
]

_WIDTHS = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
} | {"max_position_embeddings": SEQUENCE_LENGTH}
_GROUPED = _WIDTHS | {"num_key_value_heads": 2, "intermediate_size": 176}
_LLAMA_3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_YARN = {"rope_type": "yarn", "factor": 8.0}
_DEEPSEEK = _WIDTHS | {
    "num_key_value_heads": 4, "intermediate_size": 176, "moe_intermediate_size": 80,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3, "n_shared_experts": 2, "moe_layer_freq": 1, "kv_lora_rank": 24,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16, "v_head_dim": 32, "rms_norm_eps": 1e-6,
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama": (
        _GROUPED
        | {
            "rms_norm_eps": 1e-5,
            "head_dim": 16,
            "rope_theta": 5e5,
            "tie_word_embeddings": True,
            "attention_bias": False,
        }
        | {
            "rope_scaling": _LLAMA_3 | {"factor": 32.0, "original_max_position_embeddings": 64},
            "pretraining_tp": 1,
        }
    ),
    "mistral": (
        _GROUPED | {"sliding_window": SEQUENCE_LENGTH, "rms_norm_eps": 1e-5, "rope_theta": 1e6}
    ),
    "qwen2": (
        _GROUPED
        | {
            "sliding_window": 64,
            "use_sliding_window": False,
            "rope_theta": 1e6,
            "max_window_layers": 1,
        }
    ),
    "qwen3": (
        _GROUPED | {"head_dim": 48, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    ),
    "mixtral": (
        _GROUPED
        | {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_theta": 1e6,
            "sliding_window": None,
        }
    ),
    "qwen3_moe": (
        _GROUPED
        | {
            "head_dim": 48,
            "moe_intermediate_size": 80,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
        }
    ),
    "deepseek_v2": (
        _DEEPSEEK
        | {
            "q_lora_rank": None,
            "topk_method": "greedy",
            "scoring_func": "softmax",
            "aux_loss_alpha": 0.001,
            "n_group": 1,
        }
        | {"topk_group": 1, "first_k_dense_replace": 0, "norm_topk_prob": False}
    ),
    "deepseek_v3": (
        _DEEPSEEK
        | {
            "q_lora_rank": 40,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "n_group": 4,
            "topk_group": 2,
        }
        | {
            "num_nextn_predict_layers": 1,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 2.5,
            "ep_size": 1,
        }
        | {"rope_scaling": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}
    ),
    "phi3": (
        _GROUPED
        | {"rms_norm_eps": 1e-6, "sliding_window": None, "rope_scaling": None, "pad_token_id": 0}
        | {"partial_rotary_factor": 0.75}
    ),
    "gpt2": {
        "n_embd": 128,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": VOCABULARY,
        "n_positions": SEQUENCE_LENGTH,
    }
    | {"activation_function": "gelu", "n_inner": 192, "layer_norm_epsilon": 1e-4},
    "gpt_neox": (
        _WIDTHS
        | {
            "intermediate_size": 320,
            "hidden_act": "gelu_fast",
            "rotary_pct": 1.0,
            "rotary_emb_base": 5e3,
        }
        | {"use_parallel_residual": False, "layer_norm_eps": 1e-4}
    ),
    "mistral in windows": _GROUPED | {"sliding_window": 70},
    "qwen2 in windows": (
        _GROUPED | {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 0}
    ),
    "gpt_oss": (
        _GROUPED
        | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 60}
        | {
            "rope_scaling": _YARN | {"original_max_position_embeddings": 64, "truncate": False},
            "rope_theta": 15e4,
        }
    ),
    "gemma2": (
        _GROUPED
        | {"head_dim": 48, "query_pre_attn_scalar": 20, "sliding_window": 70}
        | {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 0.5}
    ),
    "gemma3_text": (
        _GROUPED
        | {
            "num_hidden_layers": 3,
            "head_dim": 48,
            "sliding_window": 70,
            "sliding_window_pattern": 3,
        }
        | {
            "rope_theta": 3e5,
            "rope_local_base_freq": 5e3,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        }
    ),
    "gpt_neox as released": (
        _WIDTHS | {"intermediate_size": 320, "hidden_act": "gelu_fast", "rotary_pct": 0.25}
    ),
    "llama with another's window": _GROUPED | {"sliding_window": 70},
    "mixtral in windows": _GROUPED | {"num_local_experts": 4, "sliding_window": 70},
    "qwen3_moe in windows": (
        _GROUPED
        | {"moe_intermediate_size": 80, "num_experts": 8, "num_experts_per_tok": 3}
        | {"sliding_window": 70, "use_sliding_window": True, "max_window_layers": 48}
    ),
    "gpt_oss by default": (
        _GROUPED
        | {
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 60,
            "rope_scaling": None,
        }
    ),
    "llama linear": _GROUPED | {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "qwen3 yarn": (
        _GROUPED
        | {
            "head_dim": 48,
            "rope_theta": 1e6,
            "rope_scaling": _YARN | {"original_max_position_embeddings": 64},
        }
    ),
    "qwen2 yarn of its own": (
        _GROUPED
        | {
            "rope_scaling": (
                _YARN
                | {
                    "beta_fast": 16,
                    "beta_slow": 2,
                    "truncate": False,
                    "attention_factor": 1.5,
                }
            )
        }
    ),
    "mistral yarn of DeepSeek's": (
        _GROUPED
        | {
            "sliding_window": None,
            "rope_scaling": _YARN | {"mscale": 0.707, "mscale_all_dim": 0.5},
        }
    ),
}
"""Small configurations, as files state them; the earlier names of rotary positions among them.

A name begins with the type of the model.
"""


def filled(table: dict[str, Any]) -> dict[str, Any]:
    """What a campaign file completes."""
    return {"kv_heads": table["heads"], "ffn_hidden": 4 * table["hidden"]} | table


def reduced(name: str) -> Model:
    """The preset's form with two layers, heads of 32, two groups of keys and values and at most 16
    experts.
    """
    table = model_preset(name)
    full = read_plain(Model, filled(table), "model")
    attention, embedding, mixture = full.attention, full.embedding, full.mixture
    rotated = full.keys()["rotary_width"]
    heads = 2 * attention.heads // attention.kv_heads
    hidden = 32 * heads * full.hidden // attention.q_hidden
    ffn_hidden = full.feed_forward.ffn_hidden * hidden // full.hidden
    latent: dict[str, Any] = {"rotary_width": 32 * rotated // attention.head_dim}
    if isinstance(attention, LatentAttention):
        hidden, ffn_hidden = 64, 48
        latent = {"key_value_rank": 24, "query_rank": 40 if attention.query_rank else None}
        latent |= {"rotary_width": 16, "dense_layers": 1, "dense_ffn_hidden": 96}
    return full.with_keys(
        layers=max(2, full.keys()["full_attention_every"]),
        attention_window=attention.window and 100,
        attention_softcap=attention.softcap and 1.0,
        logits_softcap=full.head.softcap and 0.5,
        hidden=hidden,
        heads=heads,
        kv_heads=2,
        head_width=32,
        ffn_hidden=ffn_hidden,
        experts=min(mixture.experts, 16) if mixture else 0,
        experts_per_token=min(mixture.experts_per_token, 4) if mixture else 0,
        vocabulary=VOCABULARY,
        vocabulary_multiple=1,
        max_positions=(
            SEQUENCE_LENGTH if embedding.has_learned_positions else embedding.max_positions
        ),
        **latent,
    )


def ours(model: Model) -> Gpt:
    """The trainer's model with every parameter random: biases, norms, and embeddings so small that
    epsilons count.
    """
    found = Gpt(model, sequence_length=SEQUENCE_LENGTH, layers=range(len(model.layers)))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            is_norm, is_matrix = "norm" in name and name.endswith("weight"), parameter.dim() > 1
            deviation = (
                0.01 if "embedding" in name else parameter.shape[1] ** -0.5 if is_matrix else 0.3
            )
            parameter.normal_(1.0 if is_norm else 0.0, deviation, generator=generator)
        for mixture in found.mixtures.values():
            if mixture.balance is not None:
                mixture.balance.bias.normal_(0.0, 0.3, generator=generator)
    return found.eval()


def theirs(model: Model) -> Any:
    """The model of `transformers` that an export's configuration is of."""
    config = transformers.AutoConfig.for_model(**config_of_model(model, positions=SEQUENCE_LENGTH))
    return built(config)


def built(config: Any) -> Any:
    if config.model_type in (
        "gemma2",
        "gemma3_text",
        "gpt_oss",
    ):  # of whose kernels only this one caps scores
        config._attn_implementation = "eager"
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def published(mine: Gpt, model: Model, kind: str) -> dict[str, Tensor]:
    """The weights of an export; each of ours is needed, and no other."""
    own = {f"model.{name}": parameter.detach() for name, parameter in mine.named_parameters()}
    own |= {
        f"balance.{name}": one.balance.bias
        for name, one in mine.mixtures.items()
        if one.balance is not None
    }
    assert {name: tensor.shape for name, tensor in own.items()} == shapes_of(
        model, sequence_length=SEQUENCE_LENGTH
    )
    made = weights(kind, model)
    assert {source for weight in made for source in weight.sources} == set(own)
    return {
        weight.name: weight.make(*(own[source] for source in weight.sources)).contiguous()
        for weight in made
    }


def loaded(reference: Any, named: dict[str, Tensor]) -> Any:
    """The reference with these weights, read as those of a published checkpoint, of which none is
    left or missing.
    """
    config = reference.config
    kernel = {"attn_implementation": config._attn_implementation}
    found, info = type(reference).from_pretrained(
        None, config=config, state_dict=named, output_loading_info=True, **kernel
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), (
        info
    )
    return found.eval()


def logits(model: Model, reference: Any) -> tuple[Tensor, Tensor]:
    """Ours and theirs of the same weights."""
    mine, kind = ours(model), reference.config.model_type
    named = published(mine, model, {"phi3": "llama"}.get(kind, kind))
    if kind == "phi3":
        joined = {
            "self_attn.qkv_proj": "self_attn.{}_proj qkv",
            "mlp.gate_up_proj": "mlp.{}_proj gate up",
        }
        for layer in range(len(model.layers)):
            for name, parts in joined.items():
                form, *of = parts.split()
                of = list(of[0]) if len(of) == 1 else of
                taken = [
                    named.pop(f"model.layers.{layer}.{form.format(part)}.weight") for part in of
                ]
                named[f"model.layers.{layer}.{name}.weight"] = torch.cat(taken)
    reference = loaded(reference, named)
    tokens = torch.randint(
        0, VOCABULARY, (1, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(2)
    )
    with torch.no_grad():
        return mine(tokens), reference(tokens).logits


def apart(first: Tensor, second: Tensor) -> float:
    """The largest difference, relative to the scale of the second."""
    return ((first - second).abs().max() / second.abs().max()).item()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_compute_what_the_published_models_do(name: str) -> None:
    assert apart(*logits(reduced(name), theirs(reduced(name)))) < RELATIVE


def test_a_model_without_its_architecture_s_scaling_of_positions_is_written_so() -> None:
    """Where a configuration states none, `transformers` gives a model of gpt-oss's kind YaRN."""
    model = reduced("gpt-oss-20b").with_keys(rotary_scaling=None)
    assert apart(*logits(model, theirs(model))) < RELATIVE


@pytest.mark.parametrize("name", ["gpt2-small", "gpt-neox-20b"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "relu2"])
def test_an_activation_without_a_gate_is_written_by_its_name(name: str, activation: str) -> None:
    model = reduced(name).with_keys(activation=activation)
    assert apart(*logits(model, theirs(model))) < RELATIVE


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_an_activation_that_an_architecture_does_not_have_here_is_refused_by_name(
    kind: str,
) -> None:
    example = next(name for name in PUBLISHED if name.split()[0] == kind)
    key = {"gpt2": "activation_function"}.get(kind, "hidden_act")
    key = "hidden_activation" if kind.startswith("gemma") else key
    others = ["silu", "quick_gelu"] if kind in ("gpt2", "gpt_neox") else ["relu2", "relu", "gelu"]
    for word in (*others, "laplace", None):
        config = {"model_type": kind, **PUBLISHED[example], key: word}
        with pytest.raises(InvalidInput, match=f"^{key} (= |is missing)"):
            model_of_config(config)


@pytest.mark.parametrize("kind", PUBLISHED)
def test_configurations_are_read_as_transformers_builds_them(kind: str) -> None:
    config = {"model_type": kind.split(maxsplit=1)[0], **PUBLISHED[kind]}
    reference = built(transformers.AutoConfig.for_model(**config))
    model = read_plain(
        Model, {"vocabulary_multiple": 1, **filled(model_of_config(config))}, "model"
    )
    assert model.parameters == sum(parameter.numel() for parameter in reference.parameters())
    assert apart(*logits(model, reference)) < RELATIVE


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_key_that_is_left_out_has_the_value_that_transformers_gives_it(kind: str) -> None:
    def read(given: dict[str, Any]) -> object:
        try:
            return replace(read_plain(Model, filled(model_of_config(given)), "model"), name="")
        except InvalidInput as error:
            return error.message.partition(" = ")[0].rpartition(".")[2]

    of_type = kind.split(maxsplit=1)[0]
    for key in (
        *ARCHITECTURES[of_type].defaults,
        "head_dim",
        "num_key_value_heads",
        "rope_theta",
        "rotary_pct",
        "n_inner",
    ):
        config = {"model_type": of_type, **PUBLISHED[kind]}
        config.pop(key, None)
        whole = json.loads(json.dumps(transformers.AutoConfig.for_model(**config).to_dict()))
        assert read(config) == read(whole), key


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_value_of_another_kind_is_refused_by_its_key(kind: str) -> None:
    """No value of any key ends in another exception than `InvalidInput`, which shows what it
    names.
    """
    config = {"model_type": kind.split(maxsplit=1)[0], **PUBLISHED[kind]}
    scaling = next(
        (key for key in ("rope_scaling", "rope_parameters") if config.get(key)), "rope_scaling"
    )
    inside = [(scaling, key) for key in config.get(scaling) or {}]
    keys = [
        *config,
        *ARCHITECTURES[config["model_type"]].defaults,
        "layer_types",
        "max_window_layers",
        "text_config",
    ]
    for place in (*((key,) for key in keys), *inside):
        for value in ("4096", None, 0, -1, 1.5, math.inf, True, ["4096"], {"type": []}, 10**400):
            changed = copy.deepcopy(config)
            table = changed if len(place) == 1 else changed[place[0]]
            table[place[-1]] = value
            with suppress(InvalidInput):
                validate(Model, filled(model_of_config(changed)), prefix="model")


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (
            "llama",
            {"hidden_size": "4096"},
            'hidden_size = "4096": expected a whole number from 1 to',
        ),
        (
            "llama",
            {"num_attention_heads": 0},
            "num_attention_heads = 0: expected a whole number from 1 to",
        ),
        ("qwen2", {"layer_types": 5}, "layer_types = 5: expected a list of 2, one for each layer"),
        (
            "gemma3_text",
            {"sliding_window_pattern": "6"},
            'sliding_window_pattern = "6": expected a whole number',
        ),
        ("llama", {"intermediate_size": None}, "no intermediate_size"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "expected greedy or group_limited_greedy"),
        (
            "llama",
            {"partial_rotary_factor": 0.5},
            "partial_rotary_factor = 0.5: expected 1: no other is modeled",
        ),
        ("llama", {"rms_norm_eps": "1e-5"}, 'rms_norm_eps = "1e-5": expected a number above 0'),
        ("llama", {"tie_word_embeddings": 1}, "tie_word_embeddings = 1: expected true or false"),
        (
            "qwen2",
            {"layer_types": ["linear_attention"] * 2},
            'layer_types = "linear_attention": expected full_attention',
        ),
        (
            "qwen3",
            {"layer_types": ["full_attention", "chunked_attention"]},
            'layer_types = "chunked_attention"',
        ),
        (
            "qwen2",
            {"layer_types": ["sliding_attention"] * 2},
            "expected full_attention: no sliding_window is in use",
        ),
        (
            "gpt_oss",
            {"layer_types": ["full_attention", "chunked_attention"]},
            "full_attention or sliding_attention",
        ),
    ],
)
def test_a_configuration_that_is_not_modeled_is_refused(
    kind: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        model_of_config({"model_type": kind, **PUBLISHED[kind], **given})
    assert message in refused.value.message


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_another_value_of_a_field_is_another_model(name: str, change: dict[str, Any]) -> None:
    """Each field reaches the logits by ten times and more what the comparison allows."""
    model = reduced(name)
    tokens = torch.randint(
        0, VOCABULARY, (1, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(2)
    )
    with torch.no_grad():
        other, expected = ours(model.with_keys(**change))(tokens), ours(model)(tokens)
    assert apart(other, expected) > 10 * RELATIVE


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_are_those_of_the_trainer_s_modules(name: str) -> None:
    table = model_preset(name)
    model = read_plain(Model, filled(table), "model")
    model = model.of_layers(model.dense_layers + 2)
    with torch.device("meta"):
        built = Gpt(
            model,
            sequence_length=model.embedding.max_positions or 1,
            layers=range(len(model.layers)),
        )
    assert model.parameters == sum(parameter.numel() for parameter in built.parameters())


def test_the_balancing_loss_is_that_of_transformers_mixtral() -> None:
    """Of one layer and one sequence: the value, and what it adds to the gradients of all
    weights.
    """
    model = reduced("mixtral-8x7b").with_keys(layers=1, balancing="loss", balancing_weight=0.5)
    mine = ours(model)
    reference = loaded(theirs(model), published(mine, model, "mixtral"))
    tokens = torch.randint(
        0, VOCABULARY, (1, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(2)
    )

    found = reference(tokens, output_router_logits=True)
    (found.logits.square().mean() + 0.5 * found.aux_loss).backward()
    mine(tokens).square().mean().backward()

    router = reference.model.layers[0].mlp.gate.weight.grad
    assert apart(mine.blocks["0"].feed_forward.router.weight.grad, router) < RELATIVE
    assert (
        apart(mine.embedding.tokens.weight.grad, reference.model.embed_tokens.weight.grad)
        < RELATIVE
    )
    mine.zero_grad()
    mine.blocks["0"].feed_forward.scale_loss = lambda loss: 0 * loss
    mine(tokens).square().mean().backward()
    assert apart(mine.blocks["0"].feed_forward.router.weight.grad, router) > 10 * RELATIVE


def test_the_frequency_of_windows_is_written_as_it_is() -> None:
    """Another than the 10,000 that Gemma 3's configuration has where it states none."""
    model = reduced("gemma-3-27b").with_keys(window_rotary_theta=9e3)
    written = config_of_model(model, positions=4096)
    assert written["rope_local_base_freq"] == 9e3
    assert model_of_config(written)["window_rotary_theta"] == 9e3


def test_an_epsilon_blocks_no_planning_and_is_named_where_transformers_lacks_it() -> None:
    moonlight = PUBLISHED["deepseek_v3"] | {"model_type": "deepseek_v3", "rms_norm_eps": 1e-5}
    table = model_of_config(moonlight)
    assert table["norm_epsilon"] == 1e-5
    model = read_plain(Model, {"kv_heads": table["heads"]} | table, "model")
    with pytest.raises(InvalidInput, match=r"nearest, without model.norm_epsilon = 1e-05"):
        config_of_model(model, positions=64)


def test_kimi_k2_is_read_as_deepseek_v3() -> None:
    kimi = model_of_config(
        PUBLISHED["deepseek_v3"] | {"model_type": "kimi_k2", "n_group": 1, "topk_group": 1}
    )
    deepseek = model_of_config(
        PUBLISHED["deepseek_v3"] | {"model_type": "deepseek_v3", "n_group": 1, "topk_group": 1}
    )
    assert kimi == deepseek
    with pytest.raises(InvalidInput) as refused:
        model_of_config({"model_type": "olmo2"})
    assert "keys of [model] can state the shape" in str(refused.value.hint)
