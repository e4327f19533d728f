"""The analytic model against tables of measurements, where they lie in ../shared/landscapes beside
the checkout.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from table_accuracy import judged, predicted

from frontrunner.evaluators.tables.workloads import read

ROOT = Path(__file__).parents[2]
TABLES = ROOT.parent / "shared" / "landscapes"


@pytest.mark.skipif(not TABLES.is_dir(), reason="no tables of measurements beside this checkout")
def test_published_measurements_are_predicted_within_the_stated_error() -> None:
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


def test_the_frontier_studies_stand_beside_what_the_formulas_tell(tmp_path: Path) -> None:
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
