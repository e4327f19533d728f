"""What grows with the number of ranks: rings' latency, a step's messages, and how pipelines are
cut.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from frontrunner.evaluators.analytic.codes import NANOTRON
from frontrunner.evaluators.analytic.communication import ring_s
from frontrunner.evaluators.analytic.parts.layer import weights
from frontrunner.evaluators.analytic.stage_layers import by_kind, ends, split_layers
from frontrunner.evaluators.analytic.training_code import LayerSplit
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.spaces.cluster import Links
from frontrunner.spaces.presets import cluster_preset
from frontrunner.spaces.sharding import Sharding
from support.analytic import (
    A100,
    GPT_22B,
    machine,
    problem_with,
    recipe,
    replica_waits_s,
    with_code,
    without_latency,
    work,
)


def test_ring_has_a_hop_for_every_rank_and_an_all_reduce_a_tree() -> None:
    """By hand: 64 nodes of 8 ranks are 64 hops of 14 us and 448 of 3.4 us (NCCL's tuning.cc, ring,
    simple).
    """
    found = machine(replace(A100, nodes=128))
    ranks = np.array([512.0, 1024.0])

    gathers = ring_s(found, np.zeros(1), group=ranks, stride=np.ones(1), passes=1)
    reduces = ring_s(found, np.zeros(1), group=ranks, stride=np.ones(1), passes=2)

    assert gathers[0] == pytest.approx(64 * 14e-6 + 448 * 3.4e-6)
    assert gathers[1] == pytest.approx(2 * gathers[0])
    assert reduces[1] == pytest.approx(reduces[0] * 10 / 9, rel=0.01)


def test_ring_over_many_nodes_slows_as_was_measured() -> None:
    """Published for nodes of 8 H100 (Ultra-Scale Playbook of Hugging Face, bandwidth by nodes),
    GB/s of a ring.

    The size of its messages is not stated; with 32 MB, which are assumed, each figure is told
    within a factor of two, of a fall by 17. By bandwidth and a tree's latency it would be told to
    fall by less than 2.
    """
    h100 = replace(A100, nodes=64, links=replace(A100.links, node_gb_per_s=450, nic_gb_per_s=50))
    measured = {2: 184.6, 4: 119.0, 8: 69.0, 16: 55.0, 32: 28.0, 64: 11.0}
    size, ranks = 32e6, 8.0 * np.array(list(measured))

    told = (
        size
        * (ranks - 1)
        / ranks
        / ring_s(machine(h100), np.array([size]), group=ranks, stride=np.ones(1), passes=1)
    )

    off = told / 1e9 / np.array(list(measured.values()))
    assert 0.5 < off.min() < off.max() < 2
    assert told[0] / told[-1] > 6


@pytest.mark.parametrize(
    ("preset", "measured_ms", "off"),
    [
        ("frontier", {32: 5.8, 64: 5.8, 128: 5.9, 256: 22, 512: 42, 1024: 82, 2048: 157}, 0.15),
        ("perlmutter", {32: 7.4, 64: 7.7, 128: 8, 256: 9, 512: 10.6, 1024: 18, 2048: 32}, 0.4),
    ],
)
def test_ring_of_presets_gathers_512_mb_as_was_measured_there(
    preset: str, measured_ms: dict[int, float], off: float
) -> None:
    """By devices (arXiv 2504.18658, figures 3, 8 and 10): on Frontier, twice the dies take twice
    the time from 256.
    """
    table = cluster_preset(preset)
    stated = {key: table[key] for key in ("devices_per_node", "efficiencies")} | {
        "links": Links(**table["links"])
    }
    found, ranks = (
        machine(replace(A100, nodes=512, **stated)),
        np.array(list(measured_ms), dtype=float),
    )

    told_ms = 1e3 * ring_s(found, np.array([2.0**29]), group=ranks, stride=np.ones(1), passes=1)
    reduced = ring_s(found, np.zeros(1), group=ranks, stride=np.ones(1), passes=2)

    assert told_ms == pytest.approx(list(measured_ms.values()), rel=off)
    assert reduced[-1] < 3 * reduced[0]  # all-reduces have trees


def test_replica_waits_have_a_message_for_each_gather_of_a_layer() -> None:
    """By hand: three more for each of 10 layers, forward and backward."""
    plan = recipe(
        tensor_parallel=1, micro_batch_seqs=1, accumulation=1, sharding=Sharding.named("zero-3", 64)
    )
    ten_layers = 10 * weights(GPT_22B.layers[0], work(plan)).on_rank(work(plan))[0]

    by_matrix = with_code(machine(), replicas__gathers_per_layer=4.0)

    by_matrix_s, by_layer_s = (
        replica_waits_s(base, work(plan), ten_layers) for base in (by_matrix, machine())
    )

    one = ring_s(machine(), np.zeros(1), group=np.array([64.0]), stride=np.ones(1), passes=1)
    assert by_matrix_s - by_layer_s == pytest.approx(2 * 10 * 3 * one)


def test_replica_waits_have_a_message_for_each_bucket_of_gradients() -> None:
    """By hand: 13.1e6 values fill one, 25 MiB in 16 bits, unless a matrix is larger; bytes are the
    same.
    """
    plan = recipe(
        tensor_parallel=8, micro_batch_seqs=1, accumulation=8, sharding=Sharding.named("zero-1", 8)
    )
    bucketed = machine(code=NANOTRON)
    whole = with_code(bucketed, replicas__message_elements=np.inf)

    waits = [replica_waits_s(base, work(plan), 1e9)[0] for base in (bucketed, whole)]
    free = [
        replica_waits_s(without_latency(base), work(plan), 1e9)[0] for base in (bucketed, whole)
    ]

    matrix = GPT_22B.layers[-1].matmul_parameters / 8 / 4
    one = ring_s(bucketed, np.zeros(1), group=np.array([8.0]), stride=np.array([8.0]), passes=1)[0]
    assert waits[0] - waits[1] == pytest.approx((1e9 / max(25 * 2**19, matrix) - 1) * one)
    assert free[0] == free[1]


def test_replica_waits_of_scattered_gradients_are_hidden_only_where_the_code_lets_them() -> None:
    """nanotron hides all-reduces, and no reduce-scatters: half a second of a backward pass makes no
    difference.
    """
    plans = [
        recipe(
            tensor_parallel=8, micro_batch_seqs=1, accumulation=8, sharding=Sharding.named(name, 8)
        )
        for name in ("none", "zero-1")
    ]
    nanotron = machine(code=NANOTRON)

    idle = replica_waits_s(nanotron, work(*plans), 5e9)
    busy = replica_waits_s(nanotron, work(*plans), 5e9, forward=0.25, backward=0.5)

    hidden = NANOTRON.gradient_overlap * 0.5
    assert idle - busy == pytest.approx([hidden, 0])


@pytest.mark.parametrize(
    ("layers", "ranks", "heads", "balanced", "even", "modules"),
    [
        (28, 1, 3.56, (28, 0, 28), (28, 0, 28), (28, 0, 28)),
        (
            28,
            4,
            3.56,
            (8, 8, 4),
            (7, 7, 7),
            (7, 8, 5),
        ),  # shares of 7.89: 8, 16 and 24 are the first above; 8 8 8 7
        (28, 2, 3.56, (16, 0, 12), (14, 0, 14), (15, 0, 13)),
        # 14 ranks have two, one the head alone, and the last nothing; of 31 modules the last has
        # one
        (28, 16, 3.56, (2, 2, 0), (2, 2, 1), (1, 2, 0)),
        (6, 4, 0.0, (2, 2, 1), (2, 2, 1), (2, 2, 0)),
    ],
)
def test_split_layers_is_by_layers_by_cost_with_the_head_or_by_modules(
    layers: int,
    ranks: int,
    heads: float,
    balanced: tuple[int, int, int],
    even: tuple[int, int, int],
    modules: tuple[int, int, int],
) -> None:
    model = GPT_22B.with_keys(layers=layers)
    found = {}
    for split in get_args(LayerSplit):
        ranks_of_split = by_kind(split_layers(split, layers, ranks, heads), model)
        found[split] = tuple(count for (count,) in ends(ranks_of_split))

    assert found == {"even": even, "cost": balanced, "ends": modules}


@pytest.mark.parametrize(("split", "expected"), [("even", (7, 7, 7)), ("ends", (7, 8, 5))])
def test_workload_splits_layers_as_the_code_unless_a_recipe_states_them_or_stages_are_virtual(
    split: LayerSplit, expected: tuple[int, int, int]
) -> None:
    shape = {"devices": 16, "tensor_parallel": 1, "pipeline_parallel": 4, "accumulation": 8}
    plain = recipe(**shape, schedule="1f1b")
    stated = replace(plain, layers_per_stage=(6, 9, 9, 4))
    looped = recipe(**shape, schedule="interleaved-1f1b", virtual_stages=7)

    layers = Workload.of([plain, stated, looped], problem_with(layers=28), split).layers

    found = zip(layers.first[0], layers.middle[0], layers.last[0], strict=True)
    assert list(found) == [expected, (6, 9, 4), (7, 7, 7)]
