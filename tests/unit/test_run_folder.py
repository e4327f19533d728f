"""The outcome in a run folder: written, read again, and read as an earlier version wrote it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.results.outcome import (
    Failure,
    FailureKind,
    Measurement,
    Outcome,
    ProbeEnding,
    Telemetry,
)
from support.store_contract import measurement

RECORDED = Telemetry(
    idle_memory_bytes=(250, 220, 200, 210),
    memory_above_idle_bytes_max_rank=300,
    clock_mhz=(1500.0, 1510.0, 1490.0, 1500.0),
    versions=("torch 2.13.0",),
)
OUTCOMES: dict[str, Outcome] = {
    "measured": replace(
        measurement(),
        peak_memory_bytes=(520, 300),
        telemetry=RECORDED,
        ended=ProbeEnding.SLOWER,
    ),
    "without-telemetry": measurement(),
    "failed": Failure(kind=FailureKind.CRASHED, message="rank 1 ended", log_path="rank-1.log"),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_run_folder_reads_the_outcome_that_it_wrote(name: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_outcome(OUTCOMES[name])
    assert folder.outcome() == OUTCOMES[name]


def test_run_folder_reads_an_outcome_with_the_peak_of_each_rank(tmp_path: Path) -> None:
    """Earlier versions wrote one peak per rank, and not what is above an idle rank."""
    RunFolder(tmp_path).write_outcome(OUTCOMES["measured"])
    path = tmp_path / "outcome.json"
    written = json.loads(path.read_text())
    written["outcome"]["peak_memory_bytes"] = [500, 520, 300, 290]
    del written["outcome"]["telemetry"]["memory_above_idle_bytes_max_rank"]
    path.write_text(json.dumps(written))
    found = RunFolder(tmp_path).outcome()
    assert isinstance(found, Measurement)
    assert found.peak_memory_bytes_max_rank == 520
    assert found.memory_above_idle_bytes_max_rank == 520 - 220
