"""Detection: what is found makes a valid cluster, and odd processors are described without a
guess.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from frontrunner.config.campaign import read_campaign_file
from frontrunner.evaluators.nodes import this_machine
from frontrunner.evaluators.nodes.this_machine import (
    Torch,
    cpu_fields,
    detect,
    peak_tflops,
    share_processors,
)
from frontrunner.evaluators.programs.preflight import prepare_recipe
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.validation import validate

EXAMPLES = Path(__file__).parents[2] / "examples"
ZEN = """processor\t: 0
model name\t: AMD EPYC 7A53 64-Core Processor
cpu MHz\t\t: 2000.000
flags\t\t: fpu sse2 avx fma avx2

processor\t: 1
model name\t: another
flags\t\t: fpu avx512f
"""
GRAVITON = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd sve
CPU implementer\t: 0x41
"""
TABLE = {
    "name": "this-machine",
    "device": "cpu",
    "backend": "cpu",
    "nodes": 1,
    "devices_per_node": 8,
    "memory_gib_per_device": 4.0,
    "source": "detected",
    "peak_tflops": {"fp32": 0.1},
}


def test_what_is_detected_makes_a_cluster() -> None:
    cluster = validate(Cluster, detect(), prefix="cluster")
    assert cluster.name == "this-machine"
    assert cluster.nodes == 1
    assert cluster.device


def test_processors_are_a_choice_where_there_are_accelerators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = {"name": "NVIDIA A100-SXM4-80GB", "memory_bytes": 80 * 2**30}
    monkeypatch.setattr(this_machine, "ACCELERATOR_NODES", ("/",))
    monkeypatch.setattr(this_machine, "torch_facts", lambda: Torch(cuda="12.8", devices=[one]))
    assert (detect()["backend"], detect()["devices_per_node"]) == ("cuda", 1)
    recipe = Recipe(devices=4, micro_batch_seqs=1, accumulation=4)
    for name in ("laptop", "laptop-experts"):
        cluster = read_campaign_file(EXAMPLES / f"{name}.toml").spec.problem.cluster
        assert (cluster.backend, cluster.devices) == ("cpu", 4)
        assert prepare_recipe("1a2b", recipe, cluster, None, doing="replay", anyway=False) == ()
    with pytest.raises(InvalidInput, match="backend rocm there, cuda here"):
        prepare_recipe(
            "1a2b", recipe, replace(cluster, backend="rocm"), None, doing="replay", anyway=False
        )


@pytest.mark.parametrize(
    ("devices", "gib", "tflops"), [(8, 4.0, 0.1), (4, 8.0, 0.2), (16, 2.0, 0.05), (1, 32.0, 0.8)]
)
def test_processors_are_shared_out_evenly(devices: int, gib: float, tflops: float) -> None:
    shared = share_processors(TABLE, devices)
    assert (shared["devices_per_node"], shared["memory_gib_per_device"]) == (devices, gib)
    assert shared["peak_tflops"] == {"fp32": pytest.approx(tflops)}
    assert validate(Cluster, shared, prefix="cluster").devices == devices
    assert TABLE["devices_per_node"] == 8


@pytest.mark.parametrize("devices", [5000, 2**62])
def test_more_processes_than_the_memory_holds_are_refused(devices: int) -> None:
    with pytest.raises(
        InvalidInput, match=rf"^cluster\.devices_per_node = {devices}: expected at most 3200"
    ):
        share_processors(TABLE, devices)


def test_the_first_processor_speaks_for_all() -> None:
    assert cpu_fields(ZEN)["model name"] == "AMD EPYC 7A53 64-Core Processor"
    assert "avx512f" not in cpu_fields(ZEN)["flags"]


@pytest.mark.parametrize("text", ["", "\n\n\n", "no colon here\nnor here", "\x00\x01", ":\n:"])
def test_a_broken_cpuinfo_tells_nothing(text: str) -> None:
    assert peak_tflops(4, 3000.0, cpu_fields(text)) is None


@pytest.mark.parametrize(
    ("flags", "operations_a_cycle"),
    [("avx2 fma avx512f", 64), ("avx2 fma", 32), ("avx2", 16), ("avx", 16), ("sse2", 16), ("", 16)],
)
def test_the_peak_is_cores_times_clock_times_operations_a_cycle(
    flags: str, operations_a_cycle: int
) -> None:
    assert peak_tflops(4, 2500.0, {"flags": flags}) == pytest.approx(
        4 * 2.5e9 * operations_a_cycle / 1e12
    )


def test_no_peak_is_guessed_without_a_clock_or_for_other_architectures() -> None:
    assert peak_tflops(4, 0.0, cpu_fields(ZEN)) is None
    assert peak_tflops(4, float("nan"), cpu_fields(ZEN)) is None
    assert peak_tflops(4, 3000.0, cpu_fields(GRAVITON)) is None
