"""What an attempt is charged whose driver died: by the heartbeat of what ran for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from frontrunner.evaluators.runs import heartbeat
from frontrunner.evaluators.runs.heartbeat import BEAT_S, HEARTBEAT, RunHeartbeat
from frontrunner.evaluators.runs.run_folder import RunFolder
from support.doubles import Clock


def test_a_heartbeat_is_written_no_more_often_than_it_has_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(heartbeat, "time", clock)
    alive, file = RunHeartbeat(), tmp_path / HEARTBEAT
    written = []
    for _ in range(6):
        alive.beat([tmp_path, tmp_path / "removed"])
        written.append(file.read_text())
        clock.now_s += BEAT_S / 2
    assert written == ["1", "1", "2", "2", "3", "3"]


@pytest.mark.parametrize(
    ("files", "busy_s"),
    [
        ({"job.json": 100.0}, 0.0),
        ({"job.json": 100.0, "rank-0.log": 104.0}, 4.0),
        ({"job.json": 100.0, "rank-0.log": 104.0, HEARTBEAT: 130.0}, 30.0 + BEAT_S),
        ({"command.json": 100.0, HEARTBEAT: 130.0}, 30.0 + BEAT_S),
        ({"command.json": 10.0, "step.json": 100.0, HEARTBEAT: 130.0}, 30.0 + BEAT_S),
        ({}, 0.0),
    ],
)
def test_a_silent_trainer_is_charged_up_to_its_last_heartbeat(
    files: dict[str, float], busy_s: float, tmp_path: Path
) -> None:
    for name, written_s in files.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (written_s, written_s))
    assert RunFolder(tmp_path).busy_seconds() == busy_s
