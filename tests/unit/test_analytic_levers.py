"""The analytic model's levers: context parallelism, host memory, compilation and the second engine,
by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from frontrunner.evaluators.analytic.arrays import number
from frontrunner.evaluators.analytic.codes import CODES, DEEPSPEED, FRONTRUNNER, MEGATRON
from frontrunner.evaluators.analytic.communication import all_to_all_s
from frontrunner.evaluators.analytic.layer_time import layer_time
from frontrunner.evaluators.analytic.machine import FP8_SHARES
from frontrunner.evaluators.analytic.memory import host_memory, layer_memory, peak_memory
from frontrunner.evaluators.analytic.operations import Product
from frontrunner.evaluators.analytic.parts import layer
from frontrunner.evaluators.analytic.parts.setting import Setting
from frontrunner.evaluators.analytic.pricing import EXPERT_START_S, HOST_ADAM_S_PER_PARAMETER
from frontrunner.evaluators.analytic.replicas import host_transfer_s
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.analytic.training_code import TrainingCode
from frontrunner.evaluators.analytic.workload import RecomputeRows, Workload
from frontrunner.spaces.cluster import ByPrecision
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
from support.analytic import (
    A100,
    GPT_22B,
    machine,
    problem_with,
    recipe,
    replica_waits_s,
    without_latency,
    without_losses,
    work,
)

TORCH = machine(code=FRONTRUNNER)
HOST = replace(A100, links=replace(A100.links, host_gb_per_s=20))
ON_HOST = machine(HOST, FRONTRUNNER)


def zero_3(**changes: Any) -> Recipe:
    """8 devices of a node, ZeRO-3 over all, micro-batch 1 x 4, unless changed."""
    plan = recipe(
        **({"devices": 8, "tensor_parallel": 1, "micro_batch_seqs": 1, "accumulation": 4} | changes)
    )
    return replace(plan, sharding=Sharding.named("zero-3", plan.copies))


def test_all_to_all_in_a_node_and_over_nodes() -> None:
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
def test_context_parallel_time_is_what_docs_engines_says(recompute: str, times: float) -> None:
    """2 (1 - 1 / c) B S / c (2 H + 2 max(K, c)) d b bytes a layer and micro-batch, half again under
    full recompute.
    """
    plan = recipe(
        devices=8, tensor_parallel=1, context_parallel=8, micro_batch_seqs=2, recompute=recompute
    )
    tokens, heads, kv_heads, width = 2 * 2048 / 8, 64, 8, 6144 / 64
    problem = problem_with(kv_heads=4)

    time = layer_time(without_latency(TORCH), work(plan, problem=problem), problem.model.layers[0])

    moved = times * 2 * (1 - 1 / 8) * tokens * (2 * heads + 2 * kv_heads) * width * 2
    assert time.context_parallel[0] == pytest.approx(moved / TORCH.node_bytes_per_s)


def test_context_parallel_ranks_share_tokens_and_hold_copies() -> None:
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


def test_host_memory_has_the_states_that_leave_the_device() -> None:
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


def test_host_transfer_of_parameters_is_for_each_use() -> None:
    """Four micro-batches fetch an eighth of the fp32 parameters twice and send an eighth of their
    gradients.
    """
    plan = zero_3(offload="optimizer+parameters")

    exposed, hidden = (
        host_transfer_s(
            ON_HOST,
            work(plan),
            number(8e9),
            activation_bytes=number(0),
            passes=(number(pass_s), number(pass_s)),
        )[0]
        for pass_s in (0, 9)
    )

    assert exposed == pytest.approx(4 * (2 + 1) * 4e9 / 20e9)
    assert hidden < exposed / 10


def test_optimizer_time_on_the_host_is_for_all_of_its_devices() -> None:
    """A node's host updates the parameters of its 8 ranks, a share of 8 each."""
    plain, offloaded = step_time(ON_HOST, work(zero_3(), zero_3(offload="optimizer"))).optimizer

    parameters = (
        len(GPT_22B.layers) * GPT_22B.layers[-1].matmul_parameters
        + GPT_22B.embedding.padded_vocabulary * GPT_22B.hidden
    )
    assert offloaded == pytest.approx(parameters * HOST_ADAM_S_PER_PARAMETER)
    assert plain < offloaded / 10


def test_host_transfer_of_activations_is_beside_both_passes() -> None:
    plain, moved = (recipe(tensor_parallel=1, activation_offload=word) for word in (False, True))

    sizes = peak_memory(ON_HOST, work(plain, moved))
    kept = host_memory(ON_HOST, work(moved), np.zeros(1))
    exposed, hidden = (
        host_transfer_s(
            ON_HOST,
            work(plain, moved),
            number(0),
            activation_bytes=kept,
            passes=(number(forward_s), number(0)),
        )
        for forward_s in (0, 1)
    )

    one_way_s = kept[0] / 20e9
    assert kept[0] == pytest.approx(sizes.activations[0])
    # One layer's are on their way.
    assert sizes.activations[1] == pytest.approx(kept[0] / len(GPT_22B.layers))
    assert exposed == pytest.approx([0, 2 * moved.accumulation * one_way_s])
    assert hidden[1] == pytest.approx(moved.accumulation * ((one_way_s - 1) + one_way_s))


def test_replica_waits_with_a_secondary_partition_gather_near_for_the_backward_pass() -> None:
    """ZeRO++ hpZ (arXiv 2306.10209): over 64 devices forward, over a node's 8 backward, for an
    eighth more kept.
    """
    plain = zero_3(devices=64, engine="deepspeed", accumulation=1)
    near = replace(plain, secondary_partition=8)
    found = without_latency(machine(code=DEEPSPEED))

    waits = replica_waits_s(found, work(plain, near), 1e10)
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


def test_replica_waits_under_zero_plus_plus_send_a_quarter_between_nodes() -> None:
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
    free = without_latency(machine(code=DEEPSPEED.changed(gradients__wide=False)))
    free = replace(free, memory_bytes_per_s=1e30, node_bytes_per_s=1e30, pair_bytes_per_s=1e30)

    waits = replica_waits_s(free, work(*plans), 1e10)

    assert waits[0] == pytest.approx(3 * 2e10 / free.network_bytes_per_s_per_node, rel=0.01)
    assert waits / waits[0] == pytest.approx([1, 2 / 3, 2.25 / 3, 0.25], rel=0.02)


def test_quantized_messages_pass_through_memory_and_need_a_layer_more_of_it() -> None:
    plain = zero_3(devices=64, engine="deepspeed", accumulation=1)
    weights, gradients = (
        replace(plain, quantized_weights=True),
        replace(plain, quantized_gradients=True),
    )
    slow = replace(without_latency(machine(code=DEEPSPEED)), memory_bytes_per_s=1.0)

    waits = replica_waits_s(slow, work(plain, weights, gradients), 1e10)
    sizes = peak_memory(slow, work(plain, weights)).parameters

    # Int8 in, fp16 out and in, bf16 out; for both passes.
    assert waits[1] - waits[0] == pytest.approx(2 * 7 * 1e10)
    assert waits[2] - waits[0] == pytest.approx(
        (2 + 2 + 2 + 0.5 + 0.5 * 9 / 8 + 4.5 / 8) * 1e10, rel=0.01
    )
    assert sizes[1] - sizes[0] == pytest.approx(3 * GPT_22B.layers[-1].matmul_parameters)


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

    of_torch = peak_memory(TORCH, work(ours))
    of_deepspeed = peak_memory(machine(code=DEEPSPEED), work(theirs))

    table = GPT_22B.embedding.padded_vocabulary * GPT_22B.hidden
    assert of_deepspeed.parameters[0] - of_torch.parameters[0] == pytest.approx(2 * table * 7 / 8)
    # Whole logits are widened by rows.
    assert of_deepspeed.logits[0] == pytest.approx(8 * of_torch.logits[0] * 4 / 16)


def test_deepspeed_reduces_through_a_bucket() -> None:
    plan = recipe(tensor_parallel=1, engine="deepspeed")

    gradients = peak_memory(machine(code=DEEPSPEED), work(plan)).gradients[0]

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
@pytest.mark.parametrize(("of_pass", "products", "widths"), [("forward", 1, 3), ("backward", 2, 5)])
def test_layer_time_in_8_bits_is_half_its_products_and_the_casts(
    fp8: str, cast: float, of_weights: float, of_pass: str, products: int, widths: int
) -> None:
    """A compiled layer's products take half as long, less FP8's own loss. Forward, inputs are cast:
    three of the hidden width and the inner one. Backward, gradients of results are: of queries,
    keys and values, of the two outputs, and of the inner width. Weights are cast for each pass.
    """
    plan = recipe(devices=8, tensor_parallel=1, micro_batch_seqs=4, compile=True)
    on_h100 = machine(H100, FRONTRUNNER)
    wide_s, narrow_s = (
        getattr(layer_time(on_h100, work(replace(plan, fp8=word)), GPT_22B.layers[0]), of_pass)
        for word in ("none", fp8)
    )
    tokens, hidden, inner = 4 * 2048, GPT_22B.hidden, GPT_22B.feed_forward.ffn_hidden
    matrices = 4 * hidden**2 + 2 * hidden * inner
    flops = 2 * products * tokens * matrices
    saved_s = flops / (989.4e12 * 0.73) - flops / (1978.9e12 * 0.73 * FP8_SHARES[H100.device])

    casts_s = saved_s - (wide_s - narrow_s)

    moved = tokens * (widths * hidden + inner) * cast + matrices * of_weights / 2
    assert casts_s == pytest.approx(moved / on_h100.memory_bytes_per_s, rel=0.2)
    assert on_h100.efficiencies.kernel_s < moved / on_h100.memory_bytes_per_s < saved_s


KINDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "experts": {"experts": 8, "experts_per_token": 2, "shared_experts": 1},
    "latent": {"key_value_rank": 512, "query_rank": 1536, "rotary_width": 64},
}


@pytest.mark.parametrize(
    ("kind", "code", "in_16_bits"),
    [
        ("dense", FRONTRUNNER, 0),
        ("latent", FRONTRUNNER, 0),
        ("latent", MEGATRON, 0),
        ("experts", FRONTRUNNER, 1 + 2 + 2),
        ("experts", MEGATRON, 1),
    ],
)
def test_products_may_be_in_8_bits_but_for_routers_and_torchao_s_experts(
    kind: str, code: TrainingCode, in_16_bits: int
) -> None:
    """A layer with experts has a router, and two products each of its experts and of the shared
    one.
    """
    problem = problem_with(**KINDS[kind])
    setting = Setting(work=work(recipe(), problem=problem), code=code)
    operations = layer.operations(problem.model.layers[-1], setting)

    products = [operation for operation in operations if isinstance(operation, Product)]

    others = [product for product in products if not product.may_be_narrow]
    assert len(others) == in_16_bits
    routers = [product for product in products if product.outputs == (8,)]
    assert all(not router.may_be_narrow for router in routers)
    assert len(routers) == (kind == "experts")


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_layer_memory_has_nothing_of_a_tiled_feed_forward_s_activation(kind: str) -> None:
    """Nor is anything saved of it where products keep their inputs in 8 bits."""
    problem = problem_with(activation="swiglu", **KINDS[kind])
    engine = machine(code=MEGATRON)
    plan = recipe(fp8="tensorwise")

    whole, tiled = (
        layer_memory(
            engine,
            work(replace(plan, feed_forward_tiles=tiles), problem=problem),
            problem.model.layers[-1],
        ).kept[0]
        for tiles in (1, 2)
    )

    paths = 1 if kind == "dense" else 2 + 1  # two experts and the shared one
    values = 4 * 2048 * GPT_22B.feed_forward.ffn_hidden / 8 * paths
    # Each value of the result is one byte in place of two.
    assert whole - tiled == pytest.approx((6 - 1) * values)


def test_recompute_of_every_second_product_has_their_own_shapes() -> None:
    """By hand, of a grouped attention: keys, the projection of attention's result, and a gate's
    second product.
    """
    problem = problem_with(kv_heads=8, activation="swiglu")
    model = problem.model
    plan = recipe(tensor_parallel=1, micro_batch_seqs=1, recompute="selective")
    torchtitan = without_losses(machine(code=CODES["torchtitan"]))
    torchtitan = replace(torchtitan, memory_bytes_per_s=1e18)

    again_s = layer_time(torchtitan, work(plan, problem=problem), model.layers[0]).recompute[0]

    widths = model.attention.kv_hidden + model.hidden + model.feed_forward.ffn_hidden
    flops = 2 * 2048 * model.hidden * widths
    assert again_s == pytest.approx(flops / torchtitan.matmul_flops, rel=1e-6)


def recomputing(part: str, rows: Workload) -> Workload:
    """Return the recipes with one named part recomputed."""
    return replace(rows, recompute=RecomputeRows(**{part: np.array([True])}))


@pytest.mark.parametrize(
    ("kind", "part", "dropped", "multiplied", "moved", "starts"),
    [
        # The outputs of two norms; each norm moves 4 bytes a value.
        ("dense", "norms", 2 * 2 * 6144, 0, 2 * 4 * 6144, 0),
        ("experts", "norms", 2 * 2 * 6144, 0, 2 * 4 * 6144, 0),
        # Scores of 64 heads and 2,048 positions; products of queries and values with them.
        ("dense", "attention", 4 * 64 * 2048, 2 * 6144 * 2048, 8 * 64 * 2048, 0),
        # A gate's result, of two experts and the shared one; eager, a gate moves 10 bytes.
        ("experts", "activation", 3 * 2 * 24576, 0, 3 * 10 * 24576, 0),
        ("dense", "activation", 0, 0, 0, 0),
        # All that an eager gate keeps, and three matrices.
        ("dense", "dense", 8 * 24576, 3 * 6144 * 24576, 10 * 24576, 0),
        ("experts", "dense", 0, 0, 0, 0),
        # Besides, rows that are permuted, and the router. Two products of 8 experts start.
        (
            "experts",
            "experts",
            3 * 8 * 24576 + 2 * 4 * 6144,
            3 * 3 * 6144 * 24576 + 6144 * 8,
            3 * 10 * 24576 + 2 * 14 * 6144,
            2 * 7,
        ),
        ("dense", "experts", 0, 0, 0, 0),
        # Queries, keys and values of 64 heads, the latter padded to 96 + 64. Queries, keys and
        # values are made from their latent vectors, reshaped (4 bytes, values not padded), and
        # queries and the shared key are rotated in fp32.
        (
            "latent",
            "latents",
            3 * 2 * 64 * 160,
            1536 * 64 * 160 + 512 * 64 * (96 + 96),
            4 * 64 * (160 + (160 + 96) / 2) + 48 * (64 + 1) * 64,
            0,
        ),
        ("dense", "latents", 0, 0, 0, 0),
    ],
)
def test_named_part_is_dropped_and_runs_again(
    kind: str, part: str, dropped: float, multiplied: float, moved: float, starts: int
) -> None:
    """By hand, for each of 2,048 tokens: the bytes that are dropped, and the multiplications and
    moved bytes that run again.
    """
    ideal = without_losses(machine(code=FRONTRUNNER.changed(experts__widens_router=False)))
    plain = {"elementwise": 1.0, "scores": 1.0}
    ideal = replace(
        ideal, memory_bytes_per_s=1e15, efficiencies=replace(ideal.efficiencies, **plain)
    )
    problem = problem_with(activation="swiglu", **KINDS[kind])
    kept_all = work(recipe(devices=1, tensor_parallel=1, micro_batch_seqs=1), problem=problem)
    rows = recomputing(part, kept_all)
    last = problem.model.layers[-1]

    before, after = (layer_memory(ideal, one, last) for one in (kept_all, rows))
    again_s = layer_time(ideal, rows, last).recompute[0]

    assert after.whole == before.whole
    assert before.kept[0] - after.kept[0] == pytest.approx(2048 * dropped)
    expected_s = 2048 * (2 * multiplied / ideal.matmul_flops + moved / 1e15)
    assert again_s == pytest.approx(expected_s + starts * EXPERT_START_S, rel=1e-6)


def test_tensor_parallel_time_of_a_recomputed_feed_forward_part_has_its_sum_again() -> None:
    """Attention and feed-forward part each have a sum in both passes: five for four."""
    problem = problem_with(activation="swiglu")
    rows = work(recipe(devices=8), problem=problem)

    before, after = (
        layer_time(TORCH, one, problem.model.layers[0]).tensor_parallel
        for one in (rows, recomputing("dense", rows))
    )

    assert after == pytest.approx(5 / 4 * before)


def test_host_memory_counts_what_each_kind_of_layer_keeps() -> None:
    """Of 48 layers two have no experts."""
    experts = {"experts": 8, "experts_per_token": 2, "dense_layers": 2, "dense_ffn_hidden": 12288}
    problem = problem_with(**experts)
    plan = recipe(devices=8, tensor_parallel=1, micro_batch_seqs=1, activation_offload=True)
    rows = work(plan, problem=problem)

    told = host_memory(ON_HOST, rows, np.zeros(1))[0]

    dense, mixed = (layer_memory(ON_HOST, rows, kind).kept[0] for _, kind in problem.model.kinds)
    assert dense < mixed
    assert told == pytest.approx(2 * dense + 46 * mixed)
