"""The analytic model's step times, against a clock that runs the schedule, closed forms and each
other.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontrunner.evaluators.analytic.bubbles import bubble_s
from frontrunner.evaluators.analytic.codes import MEGATRON, MEGATRON_GPT
from frontrunner.evaluators.analytic.communication import (
    pipeline_transfer_s,
    point_to_point_s,
    ring_s,
)
from frontrunner.evaluators.analytic.operations import Product
from frontrunner.evaluators.analytic.pricing import head_s, linear
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.spaces.sharding import Sharding
from support.analytic import (
    A100,
    GPT_22B,
    PROBLEM,
    gpipe,
    machine,
    makespan,
    one_f_one_b,
    problem_with,
    recipe,
    replica_waits_s,
    with_code,
    without_latency,
    work,
)

HOSTLESS = machine(code=MEGATRON_GPT.changed(host_layer_s=0.0, host_collective_s=0.0))
"""A machine whose host starts everything at once."""
FUSED = problem_with(attention="flash")


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.integers(2, 6),
    rounds=st.integers(1, 4),
    times=st.lists(st.floats(0.5, 2.0), min_size=12, max_size=12),
    heavy=st.sampled_from(["first", "last", "none"]),
)
def test_bubble_is_what_a_clock_of_the_schedule_says(
    ranks: int, rounds: int, times: list[float], heavy: str
) -> None:
    """Exact where ranks are equal and where the last, with the head, has more to do; else at most
    so long.

    The first rank's own forward passes ahead fill a part of its bubble where it is the slowest.
    """
    micro_batches = ranks * rounds
    forward, backward = [times[0]] * ranks, [times[1]] * ranks
    if heavy != "none":
        place = 0 if heavy == "first" else ranks - 1
        forward[place] += times[2]
        backward[place] += times[3]
    each = [f + b for f, b in zip(forward, backward, strict=True)]
    slowest, through = max(each), sum(each)
    plain = work(recipe(pipeline_parallel=ranks, tensor_parallel=1, devices=ranks, schedule="1f1b"))

    told = (
        micro_batches * slowest
        + bubble_s(plain, slowest=np.array([slowest]), through=np.array([through]))[0]
    )

    clock = makespan(one_f_one_b(ranks, micro_batches), forward, backward)
    if heavy == "first":
        assert micro_batches * slowest * (1 - 1e-9) <= clock <= told * (1 + 1e-9)
    else:
        assert told == pytest.approx(clock, rel=1e-9)
    if heavy == "none":
        assert told == pytest.approx(
            makespan(gpipe(ranks, micro_batches), forward, backward), rel=1e-9
        )


def test_bubble_shrinks_with_virtual_stages_and_split_backward_passes() -> None:
    base = {"pipeline_parallel": 4, "tensor_parallel": 8, "accumulation": 32, "micro_batch_seqs": 1}
    plain, looped, split = (
        recipe(**base, schedule=schedule, virtual_stages=stages)
        for schedule, stages in (("1f1b", 1), ("interleaved-1f1b", 4), ("zbv", 2))
    )

    bubbles = step_time(machine(), work(plain, looped, split)).bubble

    assert bubbles[1] == pytest.approx(bubbles[0] / 4, rel=0.02)
    # Were the three parts of the work equal, a third of one stage's would be left of two chunks: a
    # sixth. Attention and what lies between products take longer backward, which the gradients of
    # weights do not fill.
    assert bubbles[0] / 6 < bubbles[2] < bubbles[0] / 4


def test_step_time_parts_add_up_and_a_recipe_alone_takes_as_long() -> None:
    recipes = [
        recipe(),
        recipe(
            tensor_parallel=1,
            sharding=Sharding.named("zero-3", 64),
            micro_batch_seqs=1,
            accumulation=1,
        ),
        recipe(
            pipeline_parallel=8,
            micro_batch_seqs=1,
            accumulation=64,
            schedule="1f1b",
            recompute="full",
        ),
        recipe(pipeline_parallel=4, accumulation=8, schedule="interleaved-1f1b", virtual_stages=2),
    ]

    together = step_time(machine(), work(*recipes))

    parts = [getattr(together, name) for name in vars(together)]
    assert together.total == pytest.approx(sum(parts))
    assert all((part >= 0).all() for part in parts)
    for row, alone in enumerate(recipes):
        assert step_time(machine(), work(alone)).total[0] == pytest.approx(
            together.total[row], rel=1e-12
        )


def test_ring_of_an_all_reduce_uses_the_slowest_link() -> None:
    """By hand: 2 (g - 1) / g of the message over the slowest link; 8 rings of a node share 8 ports
    of 25 GB/s.
    """
    found = machine()
    size, eight, sixteen = np.array([8e9]), np.array([8.0]), np.array([16.0])

    inside = ring_s(found, size, group=eight, stride=np.ones(1), passes=2)[0]
    across = ring_s(found, size, group=eight, stride=eight, passes=2)[0]
    both = ring_s(found, size, group=sixteen, stride=np.ones(1), passes=2)[0]

    assert inside == pytest.approx(
        2 * 7 / 8 * 8e9 / (300e9 * found.efficiencies.node_links), rel=0.01
    )
    assert across == pytest.approx(
        2 * 7 / 8 * 8e9 / (25e9 * found.efficiencies.network_links), rel=0.01
    )
    assert both == pytest.approx(
        2 * 15 / 16 * 8e9 / (200e9 * found.efficiencies.network_links), rel=0.01
    )
    assert ring_s(found, size, group=np.ones(1), stride=np.ones(1), passes=2)[0] == 0


def test_ring_of_a_pair_uses_its_own_link() -> None:
    paired = replace(A100, links=replace(A100.links, pair_gb_per_s=600))

    times = [
        ring_s(
            machine(paired),
            np.array([1e9]),
            group=np.array([2.0]),
            stride=np.array([stride]),
            passes=1,
        )[0]
        for stride in (1.0, 2.0)
    ]

    assert times[1] == pytest.approx(2 * times[0], rel=0.05)


def test_ring_in_a_mesh_uses_the_links_between_its_ranks() -> None:
    """Seven links of 64 GB/s to seven neighbors: one for two ranks, three for four, all for
    eight.
    """
    mesh = without_latency(
        machine(replace(A100, links=replace(A100.links, pair_gb_per_s=64, node_gb_per_s=448)))
    )
    one, size = 64e9 * mesh.efficiencies.node_links, np.array([1e9])

    for group, links in ((2.0, 1), (4.0, 3), (8.0, 7)):
        found = ring_s(mesh, size, group=np.array([group]), stride=np.ones(1), passes=1)[0]
        assert found == pytest.approx((group - 1) / group * 1e9 / (links * one), rel=0.01)
    apart = ring_s(mesh, size, group=np.array([2.0]), stride=np.array([4.0]), passes=1)[0]
    assert apart == pytest.approx(1e9 / 2 / one, rel=0.01)
    assert point_to_point_s(mesh, size, np.ones(1))[0] == pytest.approx(1e9 / one, rel=0.01)


def test_point_to_point_between_nodes_shares_the_ports() -> None:
    found = machine()
    near, far = (
        point_to_point_s(found, np.array([1e9]), np.array([stride]))[0] for stride in (4.0, 8.0)
    )

    assert near == pytest.approx(1e9 / (300e9 * found.efficiencies.node_links), rel=0.02)
    assert far == pytest.approx(1e9 / (25e9 * found.efficiencies.network_links), rel=0.02)


@pytest.mark.parametrize(
    ("name", "gathers", "scatters", "reduces", "published"),
    [
        ("none", 0, 0, 2, 0),
        ("zero-1", 0, 0, 1, 1),
        ("zero-2", 0, 4, 0, 1),
        ("zero-3", 8, 4, 0, 0),
    ],
)
def test_replica_waits_are_the_messages_of_each_sharding(
    name: str, gathers: int, scatters: int, reduces: int, published: int
) -> None:
    """In messages of all parameters over 8 replicas of a node, for 4 micro-batches and nothing to
    hide behind.

    Each replica sends 7 / 8 of the model's bytes a pass of a ring: arXiv 1910.02054, section 7.
    """
    found = without_latency(machine())
    plan = recipe(
        devices=8,
        tensor_parallel=1,
        micro_batch_seqs=1,
        accumulation=4,
        sharding=Sharding.named(name, 8),
    )
    told = replica_waits_s(found, work(plan), 1e10)[0]

    one = 7 / 8 * 2e10 / (300e9 * found.efficiencies.node_links)
    assert told == pytest.approx((gathers + scatters + reduces + published) * one, rel=0.01)


def test_replica_waits_of_hybrid_sharding_sum_copies_at_each_micro_batch_if_told_to() -> None:
    """By hand: of 64 ranks 8 of a node share each shard, and an all-reduce over the 8 nodes sums an
    eighth of the gradients: four times in place of once.
    """
    found = without_latency(machine())
    plan = recipe(
        tensor_parallel=1,
        micro_batch_seqs=1,
        accumulation=4,
        sharding=Sharding.named("hybrid-8", 64),
    )
    rows = work(plan, replace(plan, gradient_sync="each"))

    last, each = replica_waits_s(found, rows, 1e10)

    one = 2 * 7 / 8 * 2e10 / 8 / (25e9 * found.efficiencies.network_links)
    assert each - last == pytest.approx((4 - 1) * one, rel=0.01)


def test_data_parallel_time_of_three_levels_keeps_off_the_network() -> None:
    """Parameters over pairs and gradients over nodes: ZeRO-3 over 64 devices waits longer (arXiv
    2501.04266).
    """
    shared = {"tensor_parallel": 1, "micro_batch_seqs": 1, "accumulation": 4}
    recipes = [
        recipe(**shared, sharding=Sharding.named(name, 64)) for name in ("zero-3", "3-level-2/8")
    ]
    slow = replace(A100, links=replace(A100.links, nics_per_node=1))

    waits = step_time(
        machine(slow), work(*recipes, problem=replace(PROBLEM, cluster=slow))
    ).data_parallel

    assert waits[1] < waits[0] / 3


def test_full_recompute_costs_a_forward_pass() -> None:
    """A third of forward and backward, a little less where attention's backward is dear, and the
    traffic again.
    """
    kept, again = (step_time(machine(), work(recipe(recompute=word))) for word in ("none", "full"))

    assert 0.25 < again.recompute[0] / kept.compute[0] < 0.36
    assert again.tensor_parallel[0] == pytest.approx(1.5 * kept.tensor_parallel[0])


@pytest.mark.parametrize(("sequence_parallel", "shards"), [(False, 1), (True, 8)])
def test_eager_norms_move_their_bytes_on_every_rank_that_does_not_share_the_sequence(
    sequence_parallel: bool, shards: int
) -> None:
    """By hand: per value 36 bytes forward and 76 back in place of 4 and 10, 2 norms in each of 48
    layers.
    """
    plan = recipe(sequence_parallel=sequence_parallel)
    found = HOSTLESS
    eager = with_code(found, kernels__norm="eager")

    fused_s, eager_s = (step_time(m, work(plan)).compute[0] for m in (found, eager))

    values = (
        2 * 4 * 2048 * 6144 * 48 * 2 / shards
    )  # norms, micro-batch, tokens, hidden, layers, accumulation
    moved = values * (36 + 76 - 4 - 10) * found.efficiencies.elementwise
    assert eager_s - fused_s == pytest.approx(moved / found.memory_bytes_per_s, rel=1e-6)


def test_eager_softmax_is_paid_again_under_recompute() -> None:
    """By hand: 33 bytes a score forward in place of 8, with all 48 layers' forward pass run
    again.
    """
    found = HOSTLESS
    eager = with_code(found, kernels__softmax="eager")

    fused_s, eager_s = (
        step_time(m, work(recipe(recompute="full"))).recompute[0] for m in (found, eager)
    )

    scores = 4 * 2048 * 2048 * 64 / 8 * 48 * 2
    assert eager_s - fused_s == pytest.approx(
        scores * (33 - 8) * found.efficiencies.scores / found.memory_bytes_per_s, rel=1e-6
    )


@pytest.mark.parametrize(
    ("activation", "sequence_parallel", "times"),
    [("swiglu", False, 5 / 4), ("gelu", False, 1), ("swiglu", True, 1), ("gelu", True, 1)],
)
def test_tensor_parallel_time_has_a_second_reduction_of_a_gate_s_input_gradient(
    activation: str, sequence_parallel: bool, times: float
) -> None:
    """Two products of a gate each reduce it, unless sequence parallelism gathered their input
    once.
    """
    once = machine()
    twice = with_code(once, products__reduces_gate_twice=True)
    plan = recipe(sequence_parallel=sequence_parallel)
    rows = work(plan, problem=problem_with(activation=activation))

    told, reference = (step_time(of, rows).tensor_parallel[0] for of in (twice, once))

    assert told == pytest.approx(times * reference)


@pytest.mark.parametrize(("micro_batch", "is_fused"), [(1, False), (2, True), (3, False)])
def test_fused_softmax_of_megatron_runs_on_multiples_of_four_heads_of_a_rank(
    micro_batch: int, is_fused: bool
) -> None:
    """Of 64 heads 32 ranks have 2 each: otherwise an eager one moves 33 and 41 bytes per score in
    place of 8 and 14.
    """
    found = machine(code=MEGATRON.changed(host_layer_s=0.0, host_collective_s=0.0))
    any_count = with_code(found, kernels__fused_softmax_heads=1)
    plan = recipe(tensor_parallel=32, micro_batch_seqs=micro_batch)

    eager_s, fused_s = (step_time(of, work(plan)).compute[0] for of in (found, any_count))
    one_kernel_s = step_time(found, work(plan, problem=FUSED)).compute[0]

    scores = micro_batch * 2 * 2048 * 2048 * 48 * plan.accumulation
    moved = scores * (33 + 41 - 8 - 14) * found.efficiencies.scores / found.memory_bytes_per_s
    assert eager_s - fused_s == pytest.approx(0 if is_fused else moved, rel=1e-6, abs=1e-9)
    assert one_kernel_s < eager_s


def test_flash_attention_1_is_slower_by_its_papers_figures() -> None:
    found = HOSTLESS
    first = with_code(found, kernels__flash=1)

    second_s, first_s = (
        step_time(m, work(recipe(), problem=FUSED)).compute[0] for m in (found, first)
    )

    flops = 4 * 4 * 2048 * 2048 * 6144 / 8 / 2 * 48 * 2
    forward, backward = (
        found.efficiencies.fused_attention_forward,
        found.efficiencies.fused_attention_backward,
    )
    attention = flops / found.matmul_flops * (1 / forward + 2.5 / backward)
    assert first_s - second_s == pytest.approx(attention * (1 / 0.53 - 1), rel=1e-6)


@pytest.mark.parametrize("name", ["none", "zero-1"])
def test_gradients_reduced_whole_in_fp32_cost_two_wide_passes(name: str) -> None:
    whole = {"gradients__reduced_wide": True, "gradients__reduced_whole": True}
    found = without_latency(with_code(machine(), **whole))
    plan = recipe(
        devices=8,
        tensor_parallel=1,
        micro_batch_seqs=1,
        accumulation=4,
        sharding=Sharding.named(name, 8),
    )

    told = replica_waits_s(found, work(plan), 1e10)[0]

    one = 7 / 8 * 2e10 / (300e9 * found.efficiencies.node_links)
    published = 1 if name == "zero-1" else 0
    assert told == pytest.approx((4 + published) * one, rel=0.01)


def test_exchange_wait_is_between_nodes_alone() -> None:
    plans = work(
        recipe(
            tensor_parallel=2,
            pipeline_parallel=4,
            micro_batch_seqs=1,
            accumulation=8,
            schedule="1f1b",
        ),
        recipe(
            tensor_parallel=1,
            pipeline_parallel=2,
            micro_batch_seqs=1,
            accumulation=2,
            schedule="1f1b",
        ),
        recipe(tensor_parallel=8, micro_batch_seqs=1, accumulation=8),
    )
    found, waiting = (with_code(machine(), exchange_s=seconds) for seconds in (0.0, 0.5))

    waits = pipeline_transfer_s(waiting, plans) - pipeline_transfer_s(found, plans)

    assert waits == pytest.approx([0.5, 0.5, 0.0])


def test_transfers_in_turn_take_twice_as_long_but_fill_the_pipeline_as_fast() -> None:
    plan = work(
        recipe(
            tensor_parallel=8,
            pipeline_parallel=8,
            micro_batch_seqs=1,
            accumulation=16,
            schedule="1f1b",
        )
    )

    at_once, in_turn = (
        step_time(with_code(machine(), pipeline__sends_in_turn=in_turn), plan)
        for in_turn in (False, True)
    )

    assert in_turn.pipeline_transfer == pytest.approx(2 * at_once.pipeline_transfer)
    assert in_turn.bubble == at_once.bubble


def test_further_predicted_token_costs_a_layer_a_projection_and_a_head() -> None:
    plan = recipe(tensor_parallel=1, devices=1, accumulation=1, micro_batch_seqs=1)
    deeper, further = (
        work(plan, problem=problem_with(**change)) for change in ({"layers": 49}, {"mtp_layers": 1})
    )

    more_s = step_time(machine(), further).compute - step_time(machine(), deeper).compute

    hidden = GPT_22B.hidden
    projection = Product(rows=deeper.tokens, inputs=2 * hidden, outputs=(hidden,))
    projection_s = linear(machine(), projection, deeper.bytes_per_value).total
    assert more_s == pytest.approx(head_s(machine(), deeper).total + projection_s)


def test_tensor_parallel_time_under_transformer_engine_is_less_in_8_bits_alone() -> None:
    """Of a gather and a reduce-scatter of the same bytes, the gather is half: 3/4 are left."""
    plan = recipe(sequence_parallel=True)
    rows = work(plan, replace(plan, fp8="tensorwise"))
    engine = without_latency(machine(code=MEGATRON.changed(host_collective_s=0.0)))
    torchao = with_code(engine, products__transformer_engine=False)

    of_engine, of_torchao = (step_time(of, rows).tensor_parallel for of in (engine, torchao))

    assert of_engine[0] == pytest.approx(of_torchao[0])
    assert of_engine[1] == pytest.approx(0.75 * of_torchao[1])
