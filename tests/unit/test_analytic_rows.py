"""Reading tables of measurements: what is filled in, and that a row which cannot be judged is
refused with a reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from table_accuracy import judged, predicted

from frontrunner.evaluators.tables.workloads import Table, read
from support.tables import write_table

GOOD = {
    "model": "gpt-1.3B", "layers": 24, "hidden": 2048, "heads": 16, "seq": 1024, "vocab": 51200,
    "hardware": "A100-80GB", "gpus": 8, "gpus_per_node": 8, "tp": 2, "pp": 1, "dp": 4, "mbs": 1,
    "gbs": 64,
    "recompute": "full", "precision": "fp16", "step_time_s": 1.5, "status": "ok",
}  # fmt: skip


def table(path: Path, *rows: dict[str, Any]) -> Table:
    """The rows as a file; what a row leaves out is an empty cell."""
    return read(write_table(path / "rows.csv", *rows))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"vocab": "", "model": "llama"}, "no vocab"),
        ({"layers": "many"}, "no layers"),
        ({"hardware": "TPU v5p"}, "no preset for TPU v5p"),
        ({"hardware": ""}, "no preset for unnamed hardware"),
        ({"hardware": "GH200"}, "no preset for GH200"),
        ({"hardware": "H100 PCIe 80GB"}, "no preset for H100 PCIe 80GB"),
        ({"hardware": "GH200", "peak_tflops": 989}, "no memory size for GH200"),
        ({"hardware": "V100-32GB", "precision": "bf16"}, "no peak in bf16 for V100-32GB"),
        ({"peak_tflops": -1}, "peak_tflops not above 0"),
        ({"precision": "fp8"}, "no peak in fp8 for A100-80GB"),
        ({"precision": "NVFP4"}, "precision nvfp4 is not modeled"),
        ({"recompute": "sometimes"}, "recompute sometimes is unknown"),
        ({"zero": 7}, "ZeRO stage 7 does not exist"),
        ({"tp": 0}, "tp below 1"),
        ({"mbs": -2}, "mbs, gas below 1"),
        ({"dp": 2}, "tp x pp x cp x dp is not the number of devices"),
        ({"cp": 2}, "tp x pp x cp x dp is not the number of devices"),
        ({"gas": 3}, "micro-batch x accumulation x dp is not the global batch"),
        ({"pp": 4, "dp": 1, "vpp": 8}, "more pipeline stages than layers"),
        ({"dp": "", "gpus": 7}, "no dp, gas"),
        ({"step_time_s": 0}, "step time 0 s"),
        ({"step_time_s": "inf"}, "step time inf s"),
        ({"status": "fail"}, "status fail"),
        ({"note": "SUSPECT: the same as the row before"}, "its note calls it suspect"),
        ({"status": "", "step_time_s": ""}, "status unknown"),
    ],
)
def test_table_refuses_a_row_that_cannot_be_judged_with_the_reason(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    found = table(tmp_path, GOOD, GOOD | change)

    assert found.refused == {reason: 1}
    assert judged(found, predicted(found, {}))["rows"] == 1


@pytest.mark.parametrize(
    "left_out", ["gpus_per_node", "gbs", "dp", "recompute", "precision", "status", "vocab"]
)
def test_table_fills_in_a_missing_column_where_it_can(left_out: str, tmp_path: Path) -> None:
    given = GOOD | {"gas": 16}
    plain = table(tmp_path, given)

    found = table(tmp_path, {name: value for name, value in given.items() if name != left_out})

    assert found.refused == {}
    if left_out not in ("recompute", "precision"):
        assert predicted(found, {}) == pytest.approx(predicted(plain, {}))


@pytest.mark.parametrize(
    "rows",
    [[], [{"model": "gpt"}], [dict.fromkeys(GOOD, "?")], [GOOD | {"hardware": "TPU"}]],
    ids=["empty", "one column", "nonsense", "unknown hardware"],
)
def test_table_of_which_nothing_can_be_judged_still_has_figures(
    rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    found = table(tmp_path, *rows) if rows else _empty(tmp_path)

    told = judged(found, predicted(found, {}))

    assert (told["rows"], told["mape"], told["problems"]) == (0, None, {})
    assert sum(told["refused"].values()) == len(rows)


def _empty(path: Path) -> Table:
    (path / "rows.csv").write_text(",".join(GOOD) + "\n")
    return read(path / "rows.csv")


def test_parts_have_a_row_s_own_figures_before_a_preset_s(tmp_path: Path) -> None:
    found = table(
        tmp_path,
        GOOD,
        GOOD | {"peak_tflops": 624, "memory_gib_per_device": 40},
        GOOD | {"nic_gb_per_s": 50},
    )

    peaks = [part.cluster.peak_flops("fp16") for _, part in found.parts]
    assert sorted(peaks, key=float) == [312e12, 312e12, 624e12]
    assert {part.cluster.memory_gib_per_device for _, part in found.parts} == {40, 79.2}
    assert {part.cluster.links.nic_gb_per_s for _, part in found.parts} == {25, 50}


def test_device_name_states_its_memory_and_its_power_limit(tmp_path: Path) -> None:
    """By hand: the clock falls with the cube root of 500 W of 700; 1000 W are no limit, 500 weeks
    no power.
    """
    names = (
        "H100-80GB",
        "H100-96GB HBM2e 500W",
        "H100-80GB 350 W",
        "H100-80GB 1000W",
        "H100-80GB 500 weeks",
    )
    found = table(tmp_path, *(GOOD | {"hardware": name} for name in names))

    machines = {found.rows[places[0]].hardware: part.cluster for places, part in found.parts}
    share = machines["H100-80GB"].matmul_share or 0
    reached = [
        (machines[name].memory_gb_per_s, (machines[name].matmul_share or 0) / share)
        for name in names
    ]
    assert reached == [
        (3350, 1), (2400, pytest.approx(0.894, abs=1e-3)), (3350, pytest.approx(0.794, abs=1e-3)),
        (3350, 1), (3350, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("note", "columns", "expected"),
    [
        ("framework=OneFlow; IB 100Gb/s; recompute inferred", {}, (12.5, 1)),
        ("8 x InfiniBand 200 Gbps", {}, (25, 8)),
        ("IB 100Gb/s", {"nic_gb_per_s": 50, "nics_per_node": 4}, (50, 4)),
        ("RoCE 400Gb/s per GPU", {}, (25, 8)),
    ],
)
def test_network_is_stated_by_columns_by_the_note_or_by_the_preset(
    note: str, columns: dict[str, Any], expected: tuple[float, int], tmp_path: Path
) -> None:
    ((_, part),) = table(tmp_path, GOOD | columns | {"note": note}).parts

    assert (part.cluster.links.nic_gb_per_s, part.cluster.links.nics_per_node) == expected


def test_table_judges_unknown_hardware_with_a_peak_of_its_own(tmp_path: Path) -> None:
    found = table(tmp_path, GOOD | {"hardware": "GH200-96GB", "peak_tflops": 989})

    assert found.refused == {}
    assert np.isfinite(predicted(found, {})).all()


def test_context_parallelism_is_a_column_or_stands_in_the_note(tmp_path: Path) -> None:
    shared = GOOD | {"dp": 2, "gbs": 32}

    found = table(tmp_path, shared | {"cp": 2}, shared | {"note": "tok/s=7; CP=2; FSDP=0"})

    assert found.refused == {}
    times = predicted(found, {})
    assert times[0] == times[1]


def test_vocabulary_follows_from_an_exact_number_of_parameters(tmp_path: Path) -> None:
    """Llama 3 8B has 8.030261248e9 parameters, of which 2 x 128,256 x 4,096 are embedding and
    head.
    """
    llama = GOOD | {
        "model": "llama-3-8B", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8,
        "ffn_hidden": 14336,
        "vocab": "", "n_params_b": 8.030261248,
    }  # fmt: skip

    exact, rounded = table(tmp_path, llama), table(tmp_path, llama | {"n_params_b": 8})

    assert exact.rows[0].vocab == pytest.approx(128_256, abs=1)
    assert rounded.refused == {"no vocab": 1}


def test_judged_counts_the_best_rows_that_are_refused_for_memory(tmp_path: Path) -> None:
    rows = [
        GOOD | {"mbs": size, "gbs": 64, "recompute": "none", "step_time_s": 2 - size / 10}
        for size in (1, 2, 4, 8)
    ]
    small = [row | {"memory_gib_per_device": 12} for row in rows]

    told = [
        judged(found, predicted(found, {}))
        for found in (table(tmp_path, *rows), table(tmp_path, *small))
    ]

    assert [figures["best_rows"] for figures in told] == [4, 4]
    assert told[0]["best_refused"] == 0 < told[1]["best_refused"] == told[1]["oom"]["fp"]


def test_judged_lists_what_is_too_fast(tmp_path: Path) -> None:
    found = table(tmp_path, GOOD, GOOD | {"step_time_s": 0.01})

    told = judged(found, predicted(found, {}))

    assert [row["step_time_s"] for row in told["implausible"]] == [0.01]
