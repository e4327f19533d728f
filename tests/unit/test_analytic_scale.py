"""What grows with the number of ranks: rings' latency, a step's messages, and how pipelines are
cut.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from frontrunner.evaluators.analytic.codes import MEGATRON_GPT, NANOTRON
from frontrunner.evaluators.analytic.communication import replicas_s, ring_s
from frontrunner.evaluators.analytic.workload import Split, Workload, ends, split_layers
from frontrunner.spaces.cluster import Links
from frontrunner.spaces.presets import cluster_preset
from frontrunner.spaces.sharding import Sharding
from support.analytic import A100, GPT_22B, PROBLEM, machine, recipe, without_latency, work

NOTHING = (np.zeros(1), np.zeros(1))


def test_an_all_gather_has_a_hop_for_every_rank_and_an_all_reduce_a_tree() -> None:
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


def test_all_gathers_over_many_nodes_fall_as_they_were_measured() -> None:
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
def test_presets_gather_512_mb_as_was_measured_there(
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


def test_each_gather_of_a_layer_is_a_message() -> None:
    """By hand: three more for each of 10 layers, forward and backward."""
    plan = recipe(
        tensor_parallel=1, micro_batch_seqs=1, accumulation=1, sharding=Sharding.named("zero-3", 64)
    )
    parameters = work(plan).layer_share * 10
    by_matrix, by_layer = (
        machine(software=replace(MEGATRON_GPT, gathers_per_layer=count)) for count in (4.0, 1.0)
    )

    waits = [
        replicas_s(found, work(plan), parameters, *NOTHING)[0] for found in (by_matrix, by_layer)
    ]

    one = ring_s(by_layer, np.zeros(1), group=np.array([64.0]), stride=np.ones(1), passes=1)[0]
    assert waits[0] - waits[1] == pytest.approx(2 * 10 * 3 * one)


def test_each_bucket_of_gradients_is_a_message() -> None:
    """By hand: 13.1e6 values fill one, 25 MiB in 16 bits, unless a matrix is larger; bytes are the
    same.
    """
    plan = recipe(
        tensor_parallel=8, micro_batch_seqs=1, accumulation=8, sharding=Sharding.named("zero-1", 8)
    )
    parameters = np.array([1e9])
    found, whole = (
        machine(software=replace(NANOTRON, message_elements=size)) for size in (25 * 2**19, np.inf)
    )

    waits = [
        replicas_s(a_machine, work(plan), parameters, *NOTHING)[0] for a_machine in (found, whole)
    ]
    free = [
        replicas_s(without_latency(m), work(plan), parameters, *NOTHING)[0] for m in (found, whole)
    ]

    matrix = GPT_22B.layers[-1].matmul_parameters / 8 / 4
    one = ring_s(found, np.zeros(1), group=np.array([8.0]), stride=np.array([8.0]), passes=1)[0]
    assert waits[0] - waits[1] == pytest.approx((1e9 / max(25 * 2**19, matrix) - 1) * one)
    assert free[0] == free[1]


def test_scattered_gradients_travel_beside_computation_only_where_the_code_lets_them() -> None:
    """nanotron hides all-reduces, and no reduce-scatters: half a second of a backward pass makes no
    difference.
    """
    plans = [
        recipe(
            tensor_parallel=8, micro_batch_seqs=1, accumulation=8, sharding=Sharding.named(name, 8)
        )
        for name in ("none", "zero-1")
    ]
    found, second = machine(software=NANOTRON), (np.full(1, 0.25), np.full(1, 0.5))

    idle, busy = (
        replicas_s(found, work(*plans), np.array([5e9]), *passes) for passes in (NOTHING, second)
    )

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
def test_pipelines_are_cut_by_layers_or_by_their_cost_with_the_head(
    layers: int,
    ranks: int,
    heads: float,
    balanced: tuple[int, int, int],
    even: tuple[int, int, int],
    modules: tuple[int, int, int],
) -> None:
    cut = {split: split_layers(split, layers, ranks, heads) for split in get_args(Split)}
    found = {split: ends(held, [0] * ranks)[::2] for split, held in cut.items()}

    assert found == {"even": even, "cost": balanced, "ends": modules}
    chosen, model = (
        recipe(
            devices=16,
            tensor_parallel=1,
            pipeline_parallel=ranks,
            schedule="1f1b" if ranks > 1 else "none",
        ),
        GPT_22B.with_keys(layers=layers),
    )
    splits: tuple[Split, ...] = ("even", "ends")  # a head's cost is the model's own
    for split in splits:
        told = Workload.of([chosen], replace(PROBLEM, model=model), split)
        assert (told.layers_first[0], told.layers_middle[0], told.layers_last[0]) == found[split]
