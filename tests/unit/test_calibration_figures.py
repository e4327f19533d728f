"""Figures of a cluster from timings: what was put in comes out, and what was not measured stays
out.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from frontrunner.config.campaign import read_cluster_file
from frontrunner.evaluators.analytic.codes import FRONTRUNNER
from frontrunner.evaluators.analytic.communication import ring_s
from frontrunner.evaluators.analytic.machine import Machine, assumptions
from frontrunner.evaluators.analytic.pricing import matmul_s
from frontrunner.evaluators.diagnostics.calibration import (
    Calibration,
    calibration,
    lines,
    link_bytes,
    ring,
    write_measured,
)
from frontrunner.evaluators.trainer.calibration import expected
from frontrunner.spaces.cluster import ByPrecision, Cluster, Links
from support.calibrations import (
    BYTES_PER_S,
    COMPUTE_UNITS,
    LATENCY_S,
    MATMUL_FLOPS,
    RANKS,
    REDUCTION_DEPTH,
    TILE_WAVES,
    product,
    ring_row,
    seen,
    shapes,
)

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
BASE = Cluster(
    name="base",
    device="test",
    backend="cuda",
    nodes=1,
    devices_per_node=8,
    memory_gib_per_device=80,
    compute_units=COMPUTE_UNITS,
    peak_tflops=ByPrecision(fp32=40, bf16=300, fp16=300),
    links=Links(nics_per_node=4),
)


@pytest.fixture(scope="module")
def found() -> Calibration:
    return calibration(BASE, seen(), NOON)


def row(
    collective: str, size: int, time_s: float, level: str = "node", ranks: int = 4
) -> dict[str, object]:
    return {
        "collective": collective,
        "level": level,
        "ranks": ranks,
        "bytes": size,
        "time_s": time_s,
    }


def test_a_line_is_the_latency_and_bandwidth_that_made_it() -> None:
    sizes = [2**power for power in range(10, 27, 3)]
    rows = [
        row(name, size, 5e-5 + link_bytes(name, 4, size) / 3e9)
        for name in ("broadcast", "scatter")
        for size in sizes
    ]

    for line in lines({"collectives": rows}):
        assert line.latency_s == pytest.approx(5e-5)
        assert line.bytes_per_s == pytest.approx(3e9)
        assert line.residual < 1e-6
        assert line.points == len(sizes)


def test_noise_is_reported_and_no_figure_falls_below_nothing() -> None:
    mib = 2**20
    growing = [
        row("reduce", size * mib, size / 1e3 * factor)
        for size, factor in ((1, 0.8), (8, 1.2), (64, 1.0))
    ]
    flat = [row("scatter", size * mib, 0.002) for size in (1, 8)]
    once = [row("broadcast", 1000, 0.002)]

    reduce, scatter = lines({"collectives": growing + flat + once})

    assert reduce.latency_s >= 0
    assert 0.1 < reduce.residual < 0.3
    assert scatter.bytes_per_s is None
    assert scatter.latency_s == pytest.approx(0.002)


def test_the_bytes_of_a_link_are_those_of_a_ring() -> None:
    assert link_bytes("all-reduce", 4, 1000) == pytest.approx(1500)
    assert (
        link_bytes("all-gather", 4, 1000) == link_bytes("all-to-all", 4, 1000) == pytest.approx(750)
    )
    assert link_bytes("broadcast", 4, 1000) == link_bytes("point-to-point", 4, 1000) == 1000


@pytest.mark.parametrize("level", RANKS)
def test_a_level_is_the_hop_and_the_link_that_made_it(level: str) -> None:
    fitted = ring(seen(), level)

    assert fitted is not None
    assert fitted.latency_s == pytest.approx(LATENCY_S[level])
    assert fitted.bytes_per_s == pytest.approx(BYTES_PER_S[level])
    assert ring(seen(), "pair") is None


def test_products_tell_their_losses(found: Calibration) -> None:
    efficiencies = found.cluster.efficiencies

    assert efficiencies["tile_waves"] == pytest.approx(TILE_WAVES, rel=0.25)
    assert efficiencies["reduction_depth"] == pytest.approx(
        REDUCTION_DEPTH, rel=0.35
    )  # a part is in the fastest rate
    assert "kernel_s" not in efficiencies  # of an accelerator it cannot be told from the host
    assert found.cluster.matmul_tflops.fp16 is None
    assert found.cluster.matmul_tflops.bf16 == pytest.approx(
        max(2 * m * n * k / product("bf16", m, n, k)["time_s"] for m, n, k in shapes()) / 1e12,
        rel=1e-3,
    )


def test_estimates_of_the_measured_cluster_are_what_was_measured(found: Calibration) -> None:
    """From the timings through the file's figures to the formulas: every time comes back."""
    machine = Machine.of(found.cluster, "bf16", FRONTRUNNER)

    for m, n, k in shapes():
        told = matmul_s(machine, *(np.array([float(side)]) for side in (m, n, k)), np.array([2.0]))
        assert told[0] == pytest.approx(product("bf16", m, n, k)["time_s"], rel=0.1)
    for level, stride in (("node", 1), ("network", 8)):
        for size in (2**16, 2**28):
            told = ring_s(
                machine,
                np.array([float(size)]),
                group=np.array([RANKS[level]]),
                stride=np.array([stride]),
                passes=2,
            )
            assert told[0] == pytest.approx(ring_row("all-reduce", level, size)["time_s"], rel=0.05)
    assert machine.memory_bytes_per_s == pytest.approx(1.5e12)
    assert machine.code.host_layer_s == pytest.approx(3e-4)
    assert MATMUL_FLOPS["bf16"] > machine.matmul_flops


def test_the_cluster_is_as_large_as_the_allocation_and_states_no_false_peak(
    found: Calibration,
) -> None:
    assert (found.cluster.nodes, found.cluster.devices_per_node) == (4, 8)
    assert found.cluster.peak_tflops == ByPrecision(
        bf16=300, fp16=300
    )  # fp32 ran faster than what was stated
    assert found.cluster.links.nic_gb_per_s == pytest.approx(6 * 8 / 4, rel=1e-3)
    assert found.cluster.links.host_gb_per_s == pytest.approx(20)
    assert not assumptions(found.cluster, "bf16")
    assert "matmul_tflops.bf16" in found.notes


def test_what_was_not_measured_is_not_in_it() -> None:
    """One device alone: no links, no transfers, and a base that states none."""
    alone = seen(ranks=1, ranks_per_node=1, collectives=[], transfers=[])

    cluster = calibration(replace(BASE, links=Links()), alone, NOON).cluster

    assert cluster.links == Links()
    assert not {"node_links", "network_links", "node_latency_s"} & set(cluster.efficiencies)


def test_timings_that_follow_no_line_change_nothing_and_are_told() -> None:
    wild = [row("all-reduce", 2**power, 10.0 ** (power % 3 - 3)) for power in range(16, 27)]
    rows = [
        product("fp32", 128, 512, 512),
        *(timed for timed in seen()["matmul"] if timed["precision"] != "fp32"),
    ]

    found = calibration(BASE, seen(collectives=wild, matmul=rows), NOON)

    assert found.cluster.links.node_gb_per_s is None
    assert "node_links" not in found.cluster.efficiencies
    assert found.cluster.matmul_tflops.fp32 is None
    assert [untold.split(":")[0] for untold in found.untold] == [
        "matmul_tflops.fp32",
        "links of a node",
    ]


def test_a_written_file_reads_back_equal(found: Calibration, tmp_path: Path) -> None:
    odd = replace(
        found,
        cluster=replace(found.cluster, name='a "quoted" name \\ \u00e9', source="# no comment"),
    )
    out = tmp_path / "cluster.toml"

    write_measured(out, odd)

    assert read_cluster_file(out) == odd.cluster
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cluster.measured.json",
        "cluster.toml",
    ]
    assert "# the fastest of 27 shapes" in out.read_text()


def test_time_to_come_follows_the_line_through_least_and_most() -> None:
    assert expected(8.0, []) == 0.0
    assert expected(8.0, [(1.0, 3.0)]) == 3.0
    assert expected(8.0, [(1.0, 3.0), (2.0, 4.0)]) == pytest.approx(10.0)
    assert expected(8.0, [(2.0, 4.0), (1.5, 9.0), (1.0, 3.0)]) == pytest.approx(10.0)
    assert expected(8.0, [(1.0, 3.0), (2.0, 2.0)]) == 3.0
