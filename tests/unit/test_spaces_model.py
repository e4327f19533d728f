"""Parameters and floating-point operations against counts written out matrix by matrix."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from frontrunner.spaces.cluster import ByPrecision, Cluster, Links
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.model.positions import RotaryScaling

GPT2_SMALL = Model.from_keys(
    name="gpt2-small",
    layers=12,
    hidden=768,
    heads=12,
    kv_heads=12,
    ffn_hidden=3072,
    vocabulary=50257,
    vocabulary_multiple=1,
    positions="learned",
    max_positions=1024,
    activation="gelu_tanh",
    biases="all",
    tied_embeddings=True,
)
LLAMA_8B = Model.from_keys(
    name="llama-3-8b",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    ffn_hidden=14336,
    vocabulary=128256,
    max_positions=8192,
    activation="swiglu",
    norm="rmsnorm",
)
SMALL = Model.from_keys(
    name="small",
    layers=2,
    hidden=12,
    heads=6,
    kv_heads=2,
    ffn_hidden=20,
    vocabulary=100,
    activation="swiglu",
)


def matrices_of_a_layer(model: Model) -> list[tuple[int, int]]:
    """The (in, out) shapes of one layer's matrices, drawn as in a textbook."""
    width, q_width, kv_width = (
        model.hidden,
        model.attention.head_dim * model.attention.heads,
        model.attention.head_dim * model.attention.kv_heads,
    )
    attention = [(width, q_width), (width, kv_width), (width, kv_width), (q_width, width)]
    up = [(width, model.feed_forward.ffn_hidden)] * (
        2 if model.feed_forward.activation == "swiglu" else 1
    )
    return [*attention, *up, (model.feed_forward.ffn_hidden, width)]


def counted_parameters(model: Model, rows: int) -> int:
    has_norm_bias = model.norm.kind == "layernorm" and model.norm.has_biases
    norm = [(model.hidden,)] * (2 if has_norm_bias else 1)
    matrices = matrices_of_a_layer(model)
    with_bias = {"none": [], "qkv": matrices[:3], "all": matrices}[model.attention.biases]
    shapes: list[tuple[int, ...]] = [(rows, model.hidden)]
    shapes += [] if model.head.tied else [(model.hidden, rows)]
    shapes += (
        [(model.embedding.max_positions or 0, model.hidden)]
        if model.embedding.positions == "learned"
        else []
    )
    for _ in range(len(model.layers)):
        shapes += [*norm, *matrices, *norm, *((out,) for _, out in with_bias)]
        shapes += [(model.attention.head_dim,)] * (2 * len(norm) if model.attention.qk_norm else 0)
    return sum(prod(shape) for shape in [*shapes, *norm])


@pytest.mark.parametrize("model", [GPT2_SMALL, LLAMA_8B], ids=lambda model: model.name)
def test_parameters_are_the_sum_of_all_shapes(model: Model) -> None:
    assert model.parameters == counted_parameters(model, rows=model.embedding.vocabulary)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"activation": "gelu"},
        {"norm": "rmsnorm"},
        {"tied_embeddings": True},
        {"positions": "learned", "max_positions": 7},
        {"kv_heads": 6},
        {"head_width": 4},
        {"biases": "qkv"},
        {"biases": "all"},
        {"biases": "all", "norm": "rmsnorm", "qk_norm": True},
        {"biases": "all", "activation": "gelu", "qk_norm": True, "head_width": 6},
    ],
)
def test_each_choice_of_shape_changes_parameters_as_its_matrices_do(change: dict[str, Any]) -> None:
    model = SMALL.with_keys(**change)
    assert model.parameters == counted_parameters(model, rows=128)


@pytest.mark.parametrize(
    ("vocabulary", "multiple", "rows"), [(257, 128, 384), (256, 128, 256), (50257, 1, 50257)]
)
def test_vocabulary_is_padded_upwards(vocabulary: int, multiple: int, rows: int) -> None:
    model = SMALL.with_keys(vocabulary=vocabulary, vocabulary_multiple=multiple)
    assert model.embedding.padded_vocabulary == rows


def test_flops_are_twice_the_multiplications_of_forward_and_two_backward() -> None:
    length, width = 32, SMALL.hidden
    layer = sum(2 * rows * columns for rows, columns in matrices_of_a_layer(SMALL))
    scores_and_values = (
        2 * 2 * length * width
    )  # for each head: length x head_dim twice, two operations each
    forward = len(SMALL.layers) * (layer + scores_and_values) + 2 * width * 128
    assert SMALL.model_flops_per_token(length) == 3 * forward
    masked = 3 * len(SMALL.layers) * scores_and_values / 2
    assert SMALL.model_flops_per_token(length / 2) == 3 * forward - masked


@pytest.mark.parametrize(
    ("window", "every", "layers"), [(5, 0, 2), (5, 2, 2), (5, 3, 7), (40, 0, 2)]
)
def test_flops_of_a_window_are_of_what_it_and_the_causal_mask_leave(
    window: int, every: int, layers: int
) -> None:
    model, length = (
        SMALL.with_keys(layers=layers, attention_window=window, full_attention_every=every),
        32,
    )
    pairs = sum(
        min(place + 1, layer.attention.window or length)
        for place in range(length)
        for layer in model.layers
    )
    attention = (
        3 * 2 * 2 * model.attention.q_hidden * pairs / length
    )  # per token: two products, forward and backward
    plain = model.with_keys(attention_window=None, full_attention_every=0)
    besides = plain.model_flops_per_token(length) - 3 * layers * plain.attention_flops_per_token(
        length
    )
    # As PaLM counts a sequence twice what the mask leaves of it, but for the own position's half.
    assert model.model_flops_per_token(length, causal=True) - besides == pytest.approx(
        attention, rel=0.15
    )
    assert model.model_flops_per_token(length) - besides == pytest.approx(
        2 * (model.model_flops_per_token(length, causal=True) - besides)
    )


def test_mtp_layer_has_a_projection_and_three_norms_besides() -> None:
    layer = SMALL.with_keys(layers=3).parameters - SMALL.parameters
    added = SMALL.with_keys(mtp_layers=1).parameters - SMALL.parameters
    assert added == layer + 2 * SMALL.hidden * SMALL.hidden + 3 * SMALL.hidden


def test_flops_of_an_mtp_layer_are_a_layer_s_its_projection_s_and_the_head_s() -> None:
    added = SMALL.with_keys(mtp_layers=2).model_flops_per_token(32) - SMALL.model_flops_per_token(
        32
    )
    projection = 2 * 2 * SMALL.hidden * SMALL.hidden
    forward = SMALL.layer_flops_per_token(32) + projection + SMALL.head_flops_per_token()
    assert added == 3 * 2 * forward


def test_flops_of_attention_follow_the_heads_own_width() -> None:
    wide = SMALL.with_keys(head_width=4)  # twice hidden / heads
    more = (
        2 * (2 * SMALL.hidden * SMALL.hidden + 2 * SMALL.hidden * SMALL.attention.kv_hidden)
        + 4 * 32 * SMALL.hidden
    )
    assert wide.layer_flops_per_token(32) == SMALL.layer_flops_per_token(32) + more


def test_flops_are_near_six_times_the_parameters_for_short_sequences_of_a_large_model() -> None:
    per_token = LLAMA_8B.model_flops_per_token(128)
    without_embedding = LLAMA_8B.parameters - 128256 * 4096  # looking a row up multiplies nothing
    assert 6 * without_embedding < per_token < 6 * without_embedding * 1.02


def test_flops_agree_with_the_megatron_formula() -> None:
    # arXiv 2104.04473, equation 3 without its activation recomputation (72 instead of 96), a
    # token's share.
    model = GPT2_SMALL.with_keys(positions="rotary", max_positions=None)
    length, layers, width, rows = 1024, 12, 768, 50257
    megatron = 72 * layers * width**2 * (1 + length / (6 * width) + rows / (12 * layers * width))
    assert model.model_flops_per_token(length) == pytest.approx(megatron, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "model.layers = 0: expected at least 1"),
        ({"layers": 10_001}, "model.layers = 10001: expected at most 10,000"),
        (
            {"experts": 10_001, "experts_per_token": 1},
            "model.experts = 10001: expected at most 10,000",
        ),
        ({"heads": 5}, "model.heads = 5: expected a divisor of model.hidden = 12"),
        ({"kv_heads": 4}, "model.kv_heads = 4: expected a divisor of model.heads = 6"),
        (
            {"heads": 4, "kv_heads": 4},
            "model.heads = 4: expected an even hidden / heads for rotary positions, not 3",
        ),
        ({"vocabulary": 1}, "model.vocabulary = 1: expected at least 2"),
        ({"vocabulary_multiple": 0}, "model.vocabulary_multiple = 0: expected at least 1"),
        ({"max_positions": 0}, "model.max_positions = 0: expected at least 1"),
        (
            {"activation": "tanh"},
            (
                'model.activation = "tanh": expected one of gelu, gelu_tanh, relu, relu2, swiglu,'
                " swiglu_clamped, geglu"
            ),
        ),
        ({"biases": "some"}, 'model.biases = "some": expected one of none, qkv, all'),
        ({"rotary_width": 3}, "model.rotary_width = 3: expected an even number, at most 2"),
        ({"rotary_width": 4}, "model.rotary_width = 4: expected an even number, at most 2"),
        ({"head_width": 5}, "model.head_width = 5: expected an even number for rotary positions"),
        ({"rotary_theta": 0.0}, "model.rotary_theta = 0.0: expected above 0"),
        ({"norm_epsilon": -1e-5}, "model.norm_epsilon = -1e-05: expected above 0"),
        ({"attention": "flash2"}, 'model.attention = "flash2": expected one of flash, math'),
    ],
)
def test_a_shape_that_cannot_be_says_why(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        SMALL.with_keys(**change)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factor": 0.5}, "model.rotary_scaling.factor = 0.5: expected at least 1"),
        ({"kind": "su"}, 'model.rotary_scaling.kind = "su": expected one of llama3, yarn, linear'),
        (
            {"beta_slow": 32.0},
            "model.rotary_scaling.beta_slow = 32.0: expected above 0 and below beta_fast = 32.0",
        ),
        (
            {"low_frequency_factor": 4.0},
            (
                "model.rotary_scaling.low_frequency_factor = 4.0: expected above 0 and below"
                " high_frequency_factor = 4.0"
            ),
        ),
        (
            {"original_positions": 0},
            "model.rotary_scaling.original_positions = 0: expected at least 1",
        ),
    ],
)
def test_a_scaling_of_frequencies_that_cannot_be_says_why(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        RotaryScaling(**{"factor": 8.0} | change)
    assert caught.value.message == message


def test_a_cluster_counts_its_devices_and_bytes() -> None:
    cluster = Cluster(
        name="c", device="d", backend="cuda", nodes=3, devices_per_node=4,
        memory_gib_per_device=0.5,
        peak_tflops=ByPrecision(bf16=312),
    )  # fmt: skip
    assert cluster.devices == 12
    assert cluster.memory_bytes_per_device == 536_870_912
    assert cluster.peak_flops("bf16") == 312e12
    assert cluster.peak_flops("fp32") is None


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["memory_gib_per_device", "memory_gb_per_s"])
def test_a_cluster_refuses_sizes_that_no_device_has(key: str, value: float) -> None:
    fields: dict[str, Any] = {
        "name": "c",
        "device": "d",
        "backend": "cpu",
        "nodes": 1,
        "devices_per_node": 1,
    }
    with pytest.raises(InvalidInput, match=rf"cluster\.{key} = "):
        Cluster(**fields, **({"memory_gib_per_device": 1.0} | {key: value}))
    with pytest.raises(InvalidInput, match=r"cluster\.peak_tflops\.fp16 = "):
        Cluster(**fields, memory_gib_per_device=1.0, peak_tflops=ByPrecision(fp16=value))
    with pytest.raises(InvalidInput, match=r"cluster\.links\.nic_gb_per_s = "):
        Links(nic_gb_per_s=value)
