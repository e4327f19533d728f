"""The analytic model's memory, against the formulas and figures of the papers that it follows."""

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from frontrunner.evaluators.analytic import stage_layers
from frontrunner.evaluators.analytic.codes import (
    ALEPH_ALPHA,
    CODES,
    FRONTRUNNER,
    MEGATRON_GPT,
    UNKNOWN,
)
from frontrunner.evaluators.analytic.estimates import memory_bounds
from frontrunner.evaluators.analytic.memory import (
    MemoryKind,
    PeakMemory,
    communicators,
    layer_memory,
    log_deviation,
    memory_of_each,
    memory_of_ranks,
    peak_memory,
    verdict,
)
from frontrunner.evaluators.analytic.training_code import TrainingCode
from frontrunner.spaces.sharding import Sharding
from support.analytic import (
    A100,
    GPT_22B,
    PROBLEM,
    machine,
    problem_with,
    recipe,
    with_code,
    work,
)

FUSED = problem_with(attention="flash")
WIDE = problem_with(vocabulary=512_000, tied_embeddings=False)


@pytest.mark.parametrize(("sequence_parallel", "outside"), [(False, 10.0), (True, 10.0 / 8)])
def test_layer_memory_is_what_korthikanti_counts(sequence_parallel: bool, outside: float) -> None:
    """arXiv 2205.05198, table 2, without sequence parallelism s b h (10 + 24 / t + 5 a s / (h t));
    with it all / t.
    """
    model, batch, length = GPT_22B, 4, PROBLEM.sequence_length
    rows = work(recipe(sequence_parallel=sequence_parallel))

    memory = layer_memory(machine(), rows, model.layers[0])

    inside = (24 + 5 * model.attention.heads * length / model.hidden) / 8
    assert memory.kept[0] == pytest.approx(length * batch * model.hidden * (outside + inside))
    assert memory.whole[0] == memory.kept[0]


def test_layer_memory_under_full_recompute_is_a_layer_s_input() -> None:
    memory = layer_memory(machine(), work(recipe(recompute="full")), GPT_22B.layers[0])

    assert memory.kept[0] == pytest.approx(2 * PROBLEM.sequence_length * 4 * GPT_22B.hidden)
    assert memory.whole[0] > memory.kept[0]


@pytest.mark.parametrize(
    ("name", "bytes_per_parameter"),
    [("none", 16.0), ("zero-1", 4 + 12 / 64), ("zero-2", 2 + 14 / 64), ("zero-3", 16 / 64)],
)
def test_peak_memory_of_states_shrinks_as_zero_says(name: str, bytes_per_parameter: float) -> None:
    """arXiv 1910.02054, figure 1, with K = 12: parameters and gradients in 16 bits, 12 bytes of
    optimizer states.
    """
    plan = recipe(
        tensor_parallel=1, micro_batch_seqs=1, accumulation=1, sharding=Sharding.named(name, 64)
    )

    told = peak_memory(machine(), work(plan))

    model = GPT_22B
    norms = 2 * len(model.layers) * model.hidden
    parameters = model.matmul_parameters + model.embedding.padded_vocabulary * model.hidden + norms
    states = (told.parameters + told.gradients + told.optimizer)[0]
    assert states == pytest.approx(bytes_per_parameter * parameters, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "bytes_per_parameter", "is_sharded"),
    [("none", 8.0, False), ("zero-3", 12 / 64, True), ("hybrid-8", 12 / 8, True)],
)
def test_sharded_fp32_parameters_are_counted_once(
    name: str, bytes_per_parameter: float, is_sharded: bool
) -> None:
    """FSDP2 has two moments and an fp32 value of each parameter on one rank, and two gathered
    layers. Without sharding the fp32 values are the parameters of the computation.
    """
    in_fp32 = replace(PROBLEM, precision="fp32")
    plan = recipe(
        tensor_parallel=1, micro_batch_seqs=1, accumulation=1, sharding=Sharding.named(name, 64)
    )

    told = peak_memory(machine(code=FRONTRUNNER), work(plan, problem=in_fp32))

    model = GPT_22B
    norms = 2 * len(model.layers) * model.hidden
    count = model.matmul_parameters + model.embedding.padded_vocabulary * model.hidden + norms
    whole = 2 * model.layers[0].matmul_parameters if is_sharded else count
    assert told.optimizer[0] == pytest.approx(bytes_per_parameter * count)
    assert told.parameters[0] == pytest.approx(4 * whole)


def test_first_rank_of_a_pipeline_holds_a_micro_batch_for_each_rank() -> None:
    shared = {"tensor_parallel": 8, "pipeline_parallel": 8, "micro_batch_seqs": 1}
    plain, all_kept, looped = (
        recipe(**shared, accumulation=32, schedule=schedule, virtual_stages=stages)
        for schedule, stages in (("1f1b", 1), ("gpipe", 1), ("interleaved-1f1b", 3))
    )
    one = peak_memory(
        machine(), work(recipe(tensor_parallel=8, devices=8, micro_batch_seqs=1, accumulation=32))
    )

    told = peak_memory(machine(), work(plain, all_kept, looped)).activations / one.activations

    assert told[0] == pytest.approx(1.0)
    assert told[1] == pytest.approx(32 / 8)
    assert told[2] == pytest.approx(1 + 7 / (8 * 3))  # arXiv 2205.05198, section 4.2.3


def test_peak_memory_is_that_of_the_fullest_rank() -> None:
    """With a large vocabulary and one micro-batch in flight the last rank, which holds the logits,
    is fullest.
    """
    plan = recipe(
        pipeline_parallel=2, micro_batch_seqs=8, accumulation=2, schedule="1f1b", recompute="full"
    )

    narrow, told = (peak_memory(machine(), work(plan, problem=p)) for p in (PROBLEM, WIDE))

    assert narrow.logits[0] == 0
    assert told.logits[0] == pytest.approx(10 * 8 * 2048 * 512_000 / 8)
    assert told.total[0] > narrow.total[0]


def test_pipeline_that_keeps_outputs_holds_those_of_all_micro_batches() -> None:
    """Logits in 16 bits of the last rank, and the other ranks' of micro-batches that are not in
    flight.
    """
    plan = recipe(
        pipeline_parallel=2, micro_batch_seqs=1, accumulation=32, schedule="1f1b", recompute="full"
    )
    codes = (FRONTRUNNER, FRONTRUNNER.changed(pipeline__keeps_outputs=True))
    ranks = [memory_of_ranks(machine(code=code), work(plan, problem=WIDE)) for code in codes]
    first, _, last = (
        more.activations[0] - one.activations[0] for one, more in zip(*ranks, strict=True)
    )
    assert last == pytest.approx(2 * 32 * 2048 * 512_000 / 8)
    assert first == pytest.approx((32 - 2) * 2048 * 6144 * 2)
    alone = [
        memory_of_ranks(machine(code=code), work(recipe(accumulation=32)))[0] for code in codes
    ]
    assert alone[0].total == alone[1].total


@pytest.mark.parametrize(
    ("schedule", "stages", "first", "last"),
    [("1f1b", 1, 16, 15), ("interleaved-1f1b", 2, 2 * 16 + 16 - 2.5, 2 * 14.5 + 16)],
)
def test_pipeline_of_torch_has_a_buffer_for_all_that_each_stage_receives(
    schedule: str, stages: int, first: float, last: float
) -> None:
    """By hand: of 16 micro-batches the gradients, and the activations but of those in flight, which
    layers keep.
    """
    shape = {
        "tensor_parallel": 1,
        "pipeline_parallel": 2,
        "micro_batch_seqs": 1,
        "accumulation": 16,
    }
    plan = recipe(**shape, schedule=schedule, virtual_stages=stages)
    codes = (FRONTRUNNER, FRONTRUNNER.changed(pipeline__receives_apart=False))
    ranks = [memory_of_ranks(machine(code=code), work(plan)) for code in codes]
    found = [
        (one.activations - other.activations)[0] / (2048 * 6144 * 2)
        for one, other in zip(*ranks, strict=True)
    ]
    assert (found[0], found[2]) == pytest.approx((first, last))


def test_loss_pieces_share_their_logits() -> None:
    whole, pieces = (
        peak_memory(machine(), work(recipe(loss_chunks=chunks))).logits[0] for chunks in (1, 4)
    )

    assert pieces == pytest.approx(whole / 4)


def test_selective_recompute_keeps_more_than_full_and_less_than_none() -> None:
    for code in (FRONTRUNNER, MEGATRON_GPT):
        none, selective, full = (
            layer_memory(machine(code=code), work(recipe(recompute=word)), GPT_22B.layers[0]).kept[
                0
            ]
            for word in ("none", "selective", "full")
        )
        assert full < selective < none


@pytest.mark.parametrize(("compiled", "values"), [(False, 31_744), (True, 27_648)])
def test_selective_recompute_of_torchtitan_keeps_every_second_product(
    *, compiled: bool, values: int
) -> None:
    """Llama 3.1 8B by hand: input, queries, values, attention, the gate's first product; eager, the
    last one's too.
    """
    llama = problem_with(
        hidden=4096,
        heads=32,
        kv_heads=8,
        ffn_hidden=14336,
        activation="swiglu",
        attention="flash",
    )
    plan = recipe(recompute="selective", compile=compiled, tensor_parallel=1, micro_batch_seqs=1)

    memory = layer_memory(
        machine(code=CODES["torchtitan"]), work(plan, problem=llama), llama.model.layers[0]
    )

    assert memory.kept[0] == pytest.approx(2 * values * PROBLEM.sequence_length)


def test_loss_that_is_not_compiled_holds_wide_logits() -> None:
    rows = work(recipe(compile=True, micro_batch_seqs=1, recompute="full"))
    wide, narrow = (
        peak_memory(machine(code=CODES[name]), rows).logits[0]
        for name in ("torchtitan-2024", "torchtitan")
    )
    assert wide == pytest.approx(14 / 4 * narrow)


def test_head_under_sequence_parallelism_has_two_whole_sequences() -> None:
    """By hand: its input, gathered, and that input's gradient before it is scattered, in 16
    bits.
    """
    whole, split = (
        peak_memory(
            machine(), work(recipe(tensor_parallel=8, sequence_parallel=on, recompute="full"))
        ).logits[0]
        for on in (True, False)
    )
    plan = recipe(tensor_parallel=8)
    assert whole - split == pytest.approx(
        2 * 2 * plan.micro_batch_seqs * PROBLEM.sequence_length * PROBLEM.model.hidden
    )


def test_selective_recompute_of_an_unknown_code_is_of_what_it_can_spare() -> None:
    """Of scores where there are any, as Megatron's; where attention is fused, of what lies between
    products.
    """
    for problem, like in ((PROBLEM, "attention"), (FUSED, "products")):
        rows = work(recipe(recompute="selective"), problem=problem)
        unknown, known = (
            layer_memory(machine(code=code), rows, problem.model.layers[0]).kept[0]
            for code in (UNKNOWN, UNKNOWN.changed(activations__selective=like))
        )
        assert unknown == known


def test_peak_memory_never_grows_with_sharding_or_smaller_micro_batches() -> None:
    """Deeper sharding and smaller micro-batches never need more memory."""
    names = ("none", "zero-1", "zero-2", "zero-3")
    sharded = [
        recipe(
            tensor_parallel=1, micro_batch_seqs=1, accumulation=1, sharding=Sharding.named(name, 64)
        )
        for name in names
    ]
    smaller = [recipe(micro_batch_seqs=size, accumulation=8 // size) for size in (8, 4, 2, 1)]

    for recipes in (sharded, smaller):
        totals = peak_memory(machine(), work(*recipes)).total
        assert (np.diff(totals) <= 0).all()


UNBUFFERED = {"replicas__reduce_bytes_once": 0.0, "replicas__reduce_bytes_each": 0.0}
"""A code that needs nothing besides gradients to reduce them."""


@pytest.mark.parametrize(("accumulation", "gradients"), [(1, 0.0), (2, 1.0), (3, 1.0)])
def test_gradients_of_one_micro_batch_come_when_its_activations_are_gone(
    accumulation: int, gradients: float
) -> None:
    """By hand: fp32 gradients of all parameters from the second micro-batch on; with one, shards
    that come later.
    """
    plan = recipe(
        devices=8,
        tensor_parallel=1,
        accumulation=accumulation,
        micro_batch_seqs=4,
        sharding=Sharding.named("zero-1", 8),
    )

    told = peak_memory(machine(code=FRONTRUNNER.changed(**UNBUFFERED)), work(plan))

    assert told.gradients[0] == pytest.approx(gradients * 2 * told.parameters[0])


def test_gradients_of_a_pipeline_come_when_one_micro_batch_is_gone() -> None:
    """With as many micro-batches as ranks the fullest rank has one fewer when its gradients are
    there.
    """
    code = FRONTRUNNER.changed(
        **UNBUFFERED, activations__fragmentation=0.0, pipeline__receives_apart=False
    )
    shared = {
        "devices": 32,
        "tensor_parallel": 1,
        "pipeline_parallel": 4,
        "schedule": "1f1b",
        "micro_batch_seqs": 1,
    }
    plans = [recipe(**shared, accumulation=count) for count in (4, 5)]

    told = [peak_memory(machine(code=code), work(plan)) for plan in plans]

    assert told[0].activations[0] == told[1].activations[0]
    assert told[1].total[0] - told[0].total[0] == pytest.approx(told[0].activations[0] / 4)
    assert told[0].gradients[0] > 0


@pytest.mark.parametrize(("kernel", "widths"), [("norm", 2 * 2 * 6144), ("gate", 24576 / 8)])
def test_eager_kernels_keep_what_lies_between_them(kernel: str, widths: float) -> None:
    """Two norms keep an fp32 copy and the normalized value in place of the input; an eager gate a
    fourth width.
    """
    problem = problem_with(activation="swiglu")
    rows = work(recipe(), problem=problem)

    fused, eager = (
        layer_memory(base, rows, problem.model.layers[0]).kept[0]
        for base in (machine(), with_code(machine(), **{f"kernels__{kernel}": "eager"}))
    )

    assert eager - fused == pytest.approx(2 * widths * 4 * PROBLEM.sequence_length)


def test_log_deviation_grows_with_what_nobody_counts() -> None:
    """States are counted; logits and what the device's libraries take are not. By hand: both parts
    alone, and 6 %.
    """
    plan = recipe(tensor_parallel=1, micro_batch_seqs=1, accumulation=1)
    told = peak_memory(machine(), work(plan))
    nothing = replace(told, **{name: np.zeros(1) for name in vars(told)})
    states, logits = (
        replace(nothing, gradients=told.gradients),
        replace(nothing, logits=told.logits),
    )
    used = replace(nothing, gradients=told.gradients, runtime=told.gradients)

    def off(peak: PeakMemory, kind: MemoryKind | None = None) -> float:
        return float(log_deviation(machine(), work(plan), peak, kind)[0])

    assert off(states) == pytest.approx(math.hypot(0.05, 0.06))
    assert off(logits) == pytest.approx(math.hypot(0.3, 0.06))
    assert off(used) == pytest.approx(math.hypot(0.05 / 2, 1.0 / 2, 0.06))
    assert off(used, "allocated") == off(states)
    assert off(states, "reserved") == pytest.approx(math.hypot(0.05 / 1.1, 0.1 / 1.1, 0.06))


def test_verdict_on_a_small_peak_with_a_wide_interval_is_that_it_fits() -> None:
    """The tutorial's processes take 0.28 GiB of 1, of which 0.26 GiB are Python and torch."""
    cluster = replace(A100, backend="cpu", device="laptop")
    tiny = replace(PROBLEM, model=GPT_22B.with_keys(layers=1, hidden=128, heads=4, kv_heads=4,
                                          ffn_hidden=512, vocabulary=256))  # fmt: skip
    plan, on_cpu = recipe(micro_batch_seqs=1, accumulation=8), machine(cluster)
    peak = peak_memory(on_cpu, work(plan, problem=tiny))
    total = float(peak.total[0])

    deviation = float(log_deviation(on_cpu, work(plan, problem=tiny), peak)[0])
    low, high = memory_bounds(total, deviation)

    assert 0.2 < total / 2**30 < 0.4
    assert 0 < low < total < high < 2 * total
    assert verdict(total, 2**30, (low, high)) == "fits"
    assert verdict(total, 1.2 * total, (low, high)) == "may not fit"


def test_peak_memory_has_three_kinds() -> None:
    """By hand: the allocator keeps a tenth of what tensors hold for later, which counts in no
    recipe that must fit.
    """
    told = peak_memory(machine(), work(recipe()))

    allocated, reserved, device = (told.of_kind(kind) for kind in get_args(MemoryKind))

    assert device - reserved == pytest.approx(told.runtime)
    assert reserved == pytest.approx(1.1 * allocated)
    assert told.of_kind(None) == pytest.approx(allocated + told.runtime)


def test_communicators_are_counted_by_kind_of_group() -> None:
    """By hand: replicas alone share one with all ranks; two kinds of groups have two, and one for
    all ranks.
    """
    plans = [
        recipe(
            devices=8,
            tensor_parallel=ways,
            pipeline_parallel=ranks,
            schedule="1f1b" if ranks > 1 else "none",
        )
        for ways, ranks in ((1, 1), (2, 1), (2, 4), (1, 8))
    ]

    together, singly = (
        communicators(machine(code=code), work(*plans)) for code in (MEGATRON_GPT, ALEPH_ALPHA)
    )

    assert together.tolist() == [1, 3, 3, 1]
    assert (singly - together).tolist() == [0, 0, 2, 2]


def test_attention_keeps_the_joint_product_of_which_values_are_a_view() -> None:
    """Two widths more than queries, keys, values and result; and from two sequences on the result
    again.
    """
    plain = ALEPH_ALPHA.changed(
        activations__keeps_packed_qkv=False, activations__copies_attention_from=float("inf")
    )

    def widths_kept(code: TrainingCode, sequences: int) -> float:
        plan = recipe(micro_batch_seqs=sequences, accumulation=4)
        memory = layer_memory(machine(code=code), work(plan, problem=FUSED), FUSED.model.layers[0])
        tokens = PROBLEM.sequence_length * sequences
        return float(memory.kept[0] / (2 * tokens * GPT_22B.hidden / 8))

    assert widths_kept(ALEPH_ALPHA, 1) - widths_kept(plain, 1) == pytest.approx(2)
    assert widths_kept(ALEPH_ALPHA, 2) - widths_kept(plain, 2) == pytest.approx(3)


def test_ranks_that_are_more_than_the_key_value_heads_have_one_each() -> None:
    """By hand: in place of an eighth of the only head a rank has all of it, its keys and values, 2
    x 96 wide; of 16 heads it has two.
    """
    one, eight, sixteen = (
        peak_memory(machine(), work(recipe(), problem=problem_with(kv_heads=heads)))
        for heads in (1, 8, 16)
    )

    head = len(GPT_22B.layers) * 2 * 96
    tokens = 4 * PROBLEM.sequence_length
    assert one.activations == eight.activations
    assert one.parameters == eight.parameters
    assert sixteen.activations - one.activations == pytest.approx(head * tokens * 2)
    assert sixteen.parameters - one.parameters == pytest.approx(head * 6144 * 2)


@pytest.mark.parametrize("tied", [False, True])
def test_memory_of_each_rank_sums_to_the_model_and_a_copy_of_the_embedding_for_further_tokens(
    tied: bool,
) -> None:
    problem = problem_with(mtp_layers=2, tied_embeddings=tied)
    model = problem.model
    plan = recipe(tensor_parallel=1, pipeline_parallel=8, accumulation=64)
    counts = np.array(stage_layers.of_stages(plan, model, "even"), dtype=float)

    told = memory_of_each(
        machine(),
        work(plan, problem=problem),
        tuple(counts.T),
        in_flight=np.ones(8),
        ends=(0, 7),
    )

    # The norms before heads, and of a projection's inputs.
    left_out = (1 + 3 * model.prediction.layers) * model.hidden
    copy = model.embedding.padded_vocabulary * model.hidden
    assert told.parameters.sum() / 2 == pytest.approx(model.parameters - left_out + copy)
    further, single = (
        memory_of_ranks(machine(), work(plan, problem=of))[2].logits
        for of in (problem, problem_with(tied_embeddings=tied))
    )
    assert further == 3 * single
