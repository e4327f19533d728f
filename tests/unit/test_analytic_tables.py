"""The analytic model against tables of measurements: one in tests/tables, and more where they lie
in ../shared/landscapes beside the checkout.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from table_accuracy import judged, predicted

from frontrunner.evaluators.tables.workloads import Table, read

ROOT = Path(__file__).parents[2]
TABLES = ROOT.parent / "shared" / "landscapes"
VTRAIN = Path(__file__).parents[1] / "tables" / "vtrain.csv"
COLUMNS = {
    "# GPUs": "gpus",
    "global batch": "gbs",
    "micro batch": "mbs",
    "hidden size": "hidden",
    "attention heads": "heads",
    "# layers": "layers",
    "sequence length": "seq",
    "tensor parallelism": "tp",
    "data parallelism": "dp",
    "pipeline parallelism": "pp",
}


@pytest.fixture(scope="module")
def vtrain(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """vTrain's rows in our columns, with what its configurations say of all of them: nodes of 8,
    `use_checkpoint`.
    """
    lines = [line for line in VTRAIN.read_text().splitlines() if not line.startswith("# ")]
    rows = [
        {ours: row[theirs] for theirs, ours in COLUMNS.items()}
        | {
            "source": "VIA-Research/vTrain",
            "model": f"gpt-{row['Parameters (billion)']}b",
            "ffn_hidden": 4 * int(row["hidden size"]),
            "hardware": "A100",
            "gpus_per_node": 8,
            "recompute": "full",
            "precision": "fp16",
            "step_time_s": float(row["iteration time (ms)"]) / 1000,
            "status": "ok",
        }
        for row in csv.DictReader(lines)
    ]
    path = tmp_path_factory.mktemp("tables") / "vtrain.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return read(path)


def test_predictions_of_the_shipped_table_have_its_measured_error_and_no_bias(
    vtrain: Table,
) -> None:
    """Measured: a mean error of 7.5 %, and 8.8, 7.9 and 5.8 % by model; estimates 0.1 % too short
    in the mean of their logarithms.

    The mean of the errors' sizes hardly sees a term that is wrong in the direction of the others'
    errors (with a quarter less tensor-parallel traffic it is 7.4 %), but their mean does (3.5 %).
    """
    assert (len(vtrain.rows), vtrain.refused) == (62, {})
    found = predicted(vtrain, {})
    measured = np.array([row.step_time_s for row in vtrain.rows])
    models = np.array([row.model for row in vtrain.rows])

    off = np.abs(found / measured - 1)

    assert off.mean() < 0.083
    for model, most in (("gpt-3.6b", 0.095), ("gpt-18.4b", 0.09), ("gpt-175b", 0.07)):
        assert off[models == model].mean() < most, model
    assert abs(np.log(found / measured).mean()) < 0.025
    assert 0.9 <= judged(vtrain, found)["inside"] <= 0.98


def test_predictions_of_the_shipped_table_order_recipes_as_measured(vtrain: Table) -> None:
    """Measured: 0.97, 0.68 and 0.88 by model; without the pipeline's bubble 0.89, -0.05, 0.03."""
    problems = judged(vtrain, predicted(vtrain, {}))["problems"]

    found = {name.split()[0]: problem for name, problem in problems.items()}

    for model, least in (("gpt-3.6b", 0.95), ("gpt-18.4b", 0.6), ("gpt-175b", 0.8)):
        assert found[model]["spearman"] > least, model
        assert found[model]["probes_to_5pct"] == 1, model


@pytest.mark.skipif(not TABLES.is_dir(), reason="no tables of measurements beside this checkout")
def test_predictions_of_published_measurements_are_within_the_stated_error() -> None:
    """Bounds a little above what docs/measurements.md states, so that a change for the worse
    shows.
    """
    names = (
        "vtrain_multi_a100",
        "hagemann_seqpara_a100",
        "korthikanti2022",
        "megatron_sc21_table1",
    )

    tables = {name: read(TABLES / f"{name}.csv") for name in names}
    found = {name: judged(table, predicted(table, {})) for name, table in tables.items()}

    error = {name: found[name]["mape"] for name in names}
    assert error["vtrain_multi_a100"] < 0.095
    assert error["hagemann_seqpara_a100"] < 0.06
    assert error["korthikanti2022"] < 0.08
    assert error["megatron_sc21_table1"] < 0.03
    assert found["korthikanti2022"]["memory_mape"] < 0.04
    assert found["vtrain_multi_a100"]["problems"].popitem()[1]["probes_to_5pct"] == 1
    oom = found["hagemann_seqpara_a100"]["oom"]
    assert (oom["tp"] + oom["tn"]) / sum(oom.values()) > 0.98
    assert oom["fp"] == 0


def test_frontier_predictions_stand_beside_the_published_figures(tmp_path: Path) -> None:
    """What is met is held; what misses is docs/measurements.md's to say."""
    out = tmp_path / "out.json"

    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "frontier_predictions.py"), "--json", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    lines = json.loads(out.read_text())
    assert {line["published"] for line in lines} == {
        0.3838,
        0.3614,
        0.3196,
        1.0,
        0.89,
        0.87,
        1.71,
        1.405,
        0.94,
    }
    scaling = [line for line in lines if "scaling" in line["name"]]
    assert len(scaling) == 11
    assert all(abs(line["off"]) <= line["bar"] for line in scaling)
    assert all(abs(line["off"]) <= line["bar"] for line in lines if "share" in line["name"])
    levels = [
        line for line in lines if "/ ZeRO" in line["name"] and "micro-batch 2" in line["assumed"]
    ]
    assert len(levels) == 4
    assert all(abs(line["off"]) <= line["bar"] for line in levels)
