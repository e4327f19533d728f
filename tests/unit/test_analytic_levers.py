"""The analytic model's levers: context parallelism, host memory, compilation and the second engine,
by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from frontrunner.evaluators.analytic.codes import DEEPSPEED, FRONTRUNNER, MEGATRON
from frontrunner.evaluators.analytic.communication import (
    all_to_all_s,
    exchanges_s,
    host_transfer_s,
    replicas_s,
)
from frontrunner.evaluators.analytic.compute import HOST_ADAM_S_PER_PARAMETER, layer
from frontrunner.evaluators.analytic.machine import FP8_SHARES
from frontrunner.evaluators.analytic.memory import host_memory, peak_memory
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.spaces.cluster import ByPrecision
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
from support.analytic import A100, GPT_22B, PROBLEM, machine, recipe, without_latency, work

TORCH = machine(software=FRONTRUNNER)
HOST = replace(A100, links=replace(A100.links, host_gb_per_s=20))
ON_HOST = machine(HOST, FRONTRUNNER)
NOTHING = (np.zeros(1), np.zeros(1))


def zero_3(**changes: Any) -> Recipe:
    """8 devices of a node, ZeRO-3 over all, micro-batch 1 x 4, unless changed."""
    plan = recipe(
        **({"devices": 8, "tensor_parallel": 1, "micro_batch_seqs": 1, "accumulation": 4} | changes)
    )
    return replace(plan, sharding=Sharding.named("zero-3", plan.copies))


def test_an_all_to_all_in_a_node_and_over_nodes() -> None:
    """By hand: a rank sends 7 / 8 of its message; over two nodes half of all that 8 devices hold
    leaves by 200 GB/s.
    """
    size, eff = np.array([8e9]), TORCH.efficiencies
    inside = all_to_all_s(TORCH, size, group=np.array([8.0]), stride=np.ones(1))[0]
    across = all_to_all_s(TORCH, size, group=np.array([16.0]), stride=np.ones(1))[0]
    strided = all_to_all_s(TORCH, size, group=np.array([2.0]), stride=np.array([8.0]))[0]

    assert inside == pytest.approx(7 / 8 * 8e9 / (300e9 * eff.node_links), rel=0.01)
    assert across == pytest.approx(8 * 8e9 / 2 / (200e9 * eff.network_links), rel=0.01)
    assert strided == pytest.approx(across, rel=0.01)
    assert all_to_all_s(TORCH, size, group=np.ones(1), stride=np.ones(1))[0] == 0


@pytest.mark.parametrize(("recompute", "times"), [("none", 1.0), ("selective", 1.0), ("full", 1.5)])
def test_context_ranks_exchange_what_docs_engines_says(recompute: str, times: float) -> None:
    """2 (1 - 1 / c) B S / c (2 H + 2 max(K, c)) d b bytes a layer and micro-batch, half again under
    full recompute.
    """
    grouped = replace(PROBLEM, model=GPT_22B.with_keys(kv_heads=4))
    plan = recipe(
        devices=8, tensor_parallel=1, context_parallel=8, micro_batch_seqs=2, recompute=recompute
    )
    tokens, heads, kv_heads, width = 2 * 2048 / 8, 64, 8, 6144 / 64

    free = replace(TORCH.efficiencies, node_latency_s=0.0, kernel_s=0.0)

    told = exchanges_s(replace(TORCH, efficiencies=free), work(plan, problem=grouped))[0]

    moved = times * 2 * (1 - 1 / 8) * tokens * (2 * heads + 2 * kv_heads) * width * 2
    assert told == pytest.approx(moved / (300e9 * TORCH.efficiencies.node_links))


def test_context_ranks_share_tokens_and_hold_copies() -> None:
    """A quarter of four times the sequences: the same work a rank, with what is exchanged beside
    it.
    """
    zero_1 = Sharding.named("zero-1", 32)
    whole, shared = (
        recipe(tensor_parallel=2, micro_batch_seqs=2 * c, context_parallel=c, sharding=zero_1)
        for c in (1, 4)
    )

    times, sizes = (of(TORCH, work(whole, shared)) for of in (step_time, peak_memory))

    exchanged = work(shared).tokens * 2 * GPT_22B.hidden / 2 * len(GPT_22B.layers)
    assert sizes.activations[1] == pytest.approx(sizes.activations[0] + exchanged[0])
    assert sizes.optimizer[1] == sizes.optimizer[0]  # both over 32 copies
    assert sizes.logits[1] == pytest.approx(sizes.logits[0])
    assert times.compute[1] == pytest.approx(times.compute[0])
    assert times.context_parallel[0] == 0 < times.context_parallel[1]


def test_what_is_offloaded_leaves_the_device_and_lies_on_the_host() -> None:
    plans = [zero_3(offload=word) for word in ("none", "optimizer", "optimizer+parameters")]
    parameters = np.array([1e9])

    sizes = peak_memory(ON_HOST, work(*plans))
    kept = host_memory(ON_HOST, work(*plans), parameters)

    assert sizes.optimizer[0] > 0
    assert (sizes.optimizer[1:] == 0).all()
    assert sizes.gradients[1] < sizes.gradients[0]
    # Masters, two moments and gradients in fp32, an eighth of each; FSDP2's masters are its
    # parameters.
    assert kept == pytest.approx([0, 2e9, 2e9])


def test_offloaded_parameters_travel_for_each_use() -> None:
    """Four micro-batches fetch an eighth of the fp32 parameters twice and send an eighth of their
    gradients.
    """
    plan = zero_3(offload="optimizer+parameters")

    told = host_transfer_s(ON_HOST, work(plan), np.array([8e9]), layers=np.ones(1), passes=NOTHING)[
        0
    ]
    hidden = host_transfer_s(
        ON_HOST, work(plan), np.array([8e9]), layers=np.ones(1), passes=(np.ones(1) * 9,) * 2
    )[0]

    assert told == pytest.approx(4 * (2 + 1) * 4e9 / 20e9)
    assert hidden < told / 10


def test_the_host_updates_what_is_offloaded_for_all_of_its_devices() -> None:
    """A node's host updates the parameters of its 8 ranks, a share of 8 each."""
    plain, offloaded = step_time(ON_HOST, work(zero_3(), zero_3(offload="optimizer"))).optimizer

    parameters = (
        len(GPT_22B.layers) * GPT_22B.layers[-1].matmul_parameters
        + GPT_22B.embedding.padded_vocabulary * GPT_22B.hidden
    )
    assert offloaded == pytest.approx(parameters * HOST_ADAM_S_PER_PARAMETER)
    assert plain < offloaded / 10


def test_activations_cross_the_hosts_link_beside_both_passes() -> None:
    plain, moved = (recipe(tensor_parallel=1, activation_offload=word) for word in (False, True))

    sizes = peak_memory(ON_HOST, work(plain, moved))
    kept, layers = (
        host_memory(ON_HOST, work(moved), np.zeros(1))[0],
        np.array([float(len(GPT_22B.layers))]),
    )
    unhidden = host_transfer_s(
        ON_HOST, work(plain, moved), np.zeros(1), layers=layers, passes=NOTHING
    )
    hidden = host_transfer_s(
        ON_HOST, work(moved), np.zeros(1), layers=layers, passes=(np.ones(1), np.zeros(1))
    )

    assert kept == pytest.approx(sizes.activations[0])
    assert sizes.activations[1] == pytest.approx(
        kept / len(GPT_22B.layers)
    )  # one layer's are on their way
    assert unhidden == pytest.approx([0, 2 * moved.accumulation * kept / 20e9])
    assert hidden[0] == pytest.approx(moved.accumulation * ((kept / 20e9 - 1) + kept / 20e9))


def test_a_secondary_partition_gathers_near_for_the_backward_pass() -> None:
    """ZeRO++ hpZ (arXiv 2306.10209): over 64 devices forward, over a node's 8 backward, for an
    eighth more kept.
    """
    plain = zero_3(devices=64, engine="deepspeed", accumulation=1)
    near = replace(plain, secondary_partition=8)
    found, parameters = without_latency(machine(software=DEEPSPEED)), np.array([1e10])

    waits = replicas_s(found, work(plain, near), parameters, *NOTHING)
    sizes = peak_memory(found, work(plain, near)).parameters

    eff = found.efficiencies
    far = 63 / 64 * 2e10 / (200e9 * eff.network_links)
    close = 7 / 8 * 2e10 / (300e9 * eff.node_links)
    assert waits[0] - waits[1] == pytest.approx(far - close, rel=0.02)
    model = GPT_22B
    count = len(model.layers) * (model.layers[0].matmul_parameters + 2 * model.hidden)
    assert sizes[1] - sizes[0] == pytest.approx(
        2 * (count + model.embedding.padded_vocabulary * model.hidden) / 8
    )


def test_zero_plus_plus_leaves_a_quarter_of_the_bytes_between_nodes() -> None:
    """The paper's table 1 (arXiv 2306.10209): M + M + M values of 16 bits become M / 2 + 0 + M /
    4.
    """
    plain = zero_3(devices=512, engine="deepspeed", accumulation=1)
    plans = [
        plain,
        replace(plain, quantized_weights=True),
        replace(plain, quantized_gradients=True),
        replace(plain, quantized_weights=True, quantized_gradients=True, secondary_partition=8),
    ]
    free = without_latency(machine(software=replace(DEEPSPEED, wide_gradients=False)))
    free = replace(free, memory_bytes_per_s=1e30, node_bytes_per_s=1e30, pair_bytes_per_s=1e30)

    waits = replicas_s(free, work(*plans), np.array([1e10]), *NOTHING)

    assert waits[0] == pytest.approx(3 * 2e10 / free.network_bytes_per_s_per_node, rel=0.01)
    assert waits / waits[0] == pytest.approx([1, 2 / 3, 2.25 / 3, 0.25], rel=0.02)


def test_quantized_messages_pass_through_memory_and_need_a_layer_more_of_it() -> None:
    plain = zero_3(devices=64, engine="deepspeed", accumulation=1)
    weights, gradients = (
        replace(plain, quantized_weights=True),
        replace(plain, quantized_gradients=True),
    )
    slow = replace(without_latency(machine(software=DEEPSPEED)), memory_bytes_per_s=1.0)
    layer = GPT_22B.layers[-1].matmul_parameters

    waits = replicas_s(slow, work(plain, weights, gradients), np.array([1e10]), *NOTHING)
    sizes = peak_memory(slow, work(plain, weights)).parameters

    assert waits[1] - waits[0] == pytest.approx(
        2 * 7 * 1e10
    )  # int8 in, fp16 out and in, bf16 out; twice
    assert waits[2] - waits[0] == pytest.approx(
        (2 + 2 + 2 + 0.5 + 0.5 * 9 / 8 + 4.5 / 8) * 1e10, rel=0.01
    )
    assert sizes[1] - sizes[0] == pytest.approx(3 * layer)


def test_compiled_layers_move_and_keep_less() -> None:
    plain, compiled = recipe(tensor_parallel=1), recipe(tensor_parallel=1, compile=True)

    times, sizes = (of(TORCH, work(plain, compiled)) for of in (step_time, peak_memory))

    assert 0.7 * times.compute[0] < times.compute[1] < times.compute[0]
    assert sizes.activations[1] < sizes.activations[0]
    assert sizes.logits[1] == sizes.logits[0]  # neither holds an fp32 copy


def test_deepspeed_leaves_embedding_and_head_whole() -> None:
    """Each of 8 tensor-parallel ranks holds the table of 51,200 x 6,144, where the torch engine's
    hold an eighth.
    """
    ours, theirs = recipe(), recipe(engine="deepspeed")

    sizes = [
        peak_memory(machine(software=s), work(p))
        for s, p in ((FRONTRUNNER, ours), (DEEPSPEED, theirs))
    ]

    table = GPT_22B.embedding.padded_vocabulary * GPT_22B.hidden
    assert sizes[1].parameters[0] - sizes[0].parameters[0] == pytest.approx(2 * table * 7 / 8)
    assert sizes[1].logits[0] == pytest.approx(
        8 * sizes[0].logits[0] * 4 / 16
    )  # whole ones are widened by rows


def test_deepspeed_reduces_through_a_bucket() -> None:
    plan = recipe(tensor_parallel=1, engine="deepspeed")

    gradients = peak_memory(machine(software=DEEPSPEED), work(plan)).gradients[0]

    model = GPT_22B
    count = len(model.layers) * (model.layers[0].matmul_parameters + 2 * model.hidden)
    count += model.embedding.padded_vocabulary * model.hidden
    assert gradients == pytest.approx(4 * count + 4 * 5e8)


H100 = replace(
    A100, device="h100-80gb", peak_tflops=ByPrecision(fp16=989.4, fp8=1978.9), matmul_share=0.73
)


@pytest.mark.parametrize(
    ("fp8", "cast", "of_weights"), [("tensorwise", 6, 8), ("rowwise", 8, 10), ("mxfp8", 6, 6)]
)
def test_products_in_8_bits_are_twice_as_fast_but_for_their_casts(
    fp8: str, cast: float, of_weights: float
) -> None:
    """A compiled layer's products take half as long (less FP8's own loss), and values and weights
    are read to cast.
    """
    plan = recipe(devices=8, tensor_parallel=1, micro_batch_seqs=4, compile=True)
    on_h100, eff = machine(H100, FRONTRUNNER), machine(H100, FRONTRUNNER).efficiencies
    wide, narrow = (layer(on_h100, work(replace(plan, fp8=one))) for one in ("none", fp8))
    tokens, hidden, gate = 4 * 2048, GPT_22B.hidden, GPT_22B.feed_forward.ffn_hidden
    flops = 2 * tokens * (4 * hidden**2 + 2 * hidden * gate)
    saved = flops / (989.4e12 * 0.73) - flops / (1978.9e12 * 0.73 * FP8_SHARES[H100.device])
    moved = (
        tokens * (3 * hidden + gate) * cast + (4 * hidden**2 + 2 * hidden * gate) * of_weights / 2
    )
    casts = moved / on_h100.memory_bytes_per_s
    assert wide.forward - narrow.forward == pytest.approx(saved - casts, rel=0.1)
    assert eff.kernel_s < casts < saved


def test_only_transformer_engine_s_experts_are_in_8_bits() -> None:
    experts = replace(work(recipe(fp8="tensorwise")), experts=np.array([8.0]))
    assert not FRONTRUNNER.has_feed_forward_in_8_bits(experts).any()
    assert MEGATRON.has_feed_forward_in_8_bits(experts).all()


@pytest.mark.parametrize(
    ("fp8", "cast", "of_weights"), [("tensorwise", 6, 8), ("rowwise", 8, 10), ("mxfp8", 6, 6)]
)
def test_backward_passes_in_8_bits_cast_the_gradients_of_what_products_give(
    fp8: str, cast: float, of_weights: float
) -> None:
    """Those of queries, keys and values (3 hidden), of the two outputs and of the inner width."""
    plan = recipe(devices=8, tensor_parallel=1, micro_batch_seqs=4, compile=True)
    on_h100 = machine(H100, FRONTRUNNER)
    wide, narrow = (layer(on_h100, work(replace(plan, fp8=one))) for one in ("none", fp8))
    tokens, hidden, gate = 4 * 2048, GPT_22B.hidden, GPT_22B.feed_forward.ffn_hidden
    matrices = 4 * hidden**2 + 2 * hidden * gate
    flops = 2 * 2 * tokens * matrices
    saved = flops / (989.4e12 * 0.73) - flops / (1978.9e12 * 0.73 * FP8_SHARES[H100.device])

    casts = saved - (wide.backward - narrow.backward)

    moved = tokens * (5 * hidden + gate) * cast + matrices * of_weights / 2
    assert casts == pytest.approx(moved / on_h100.memory_bytes_per_s, rel=0.2)
