"""A campaign through PBS's commands and MPICH's mpiexec: a stand-in for PBS runs the real submit
scripts.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.runs.run_folder import RunFolder
from support.campaigns import (
    frontrunner,
    run_folders,
    tiny,
    write_toml,
)
from support.fake_pbs import install

pytestmark = [
    pytest.mark.skipif(
        shutil.which("mpiexec") is None, reason="there is no mpiexec: apt-get install mpich"
    ),
]
ASKED = {
    "backend": "parsl",
    "scheduler": "pbs",
    "walltime": "01:00:00",
    "network_interface": "lo",
    "driver_address": "127.0.0.1",
    "launcher_options": ["-launcher", "fork"],
}


@pytest.fixture
def pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "pbs"
    for key, value in install(folder).items():
        monkeypatch.setenv(key, value)
    return folder


def campaign(folder: Path, *, dispatch: dict[str, Any] | None = None, **probe: Any) -> str:
    space = {
        "tensor_parallel": [1],
        "pipeline_parallel": [1],
        "micro_batch_seqs": [2],
        "devices": [2],
    }
    table = tiny(
        cluster={"nodes": 2, "devices_per_node": 1},
        space=space,
        dispatch=ASKED | (dispatch or {}),
        probe=probe,
    )
    return write_toml(folder / "tiny.toml", table).name


def outcomes(folder: Path) -> list[Any]:
    return [RunFolder(path).outcome() for path in run_folders(folder)]


def test_a_refused_job_pauses_the_campaign(tmp_path: Path, pbs: Path) -> None:
    done = frontrunner("launch", campaign(tmp_path, dispatch={"queue": "closed"}), cwd=tmp_path)
    assert done.returncode == 6
    assert "queue is disabled: closed" in done.stderr


def test_a_job_that_waits_too_long_pauses_the_campaign(tmp_path: Path, pbs: Path) -> None:
    waiting = {"queue": "never", "queue_limit_minutes": 0.02}
    done = frontrunner("launch", campaign(tmp_path, dispatch=waiting), cwd=tmp_path)
    assert done.returncode == 6
    assert (
        "allocation 1.fake has waited for more than dispatch.queue_limit_minutes = 0.02"
        in done.stderr
    )
    assert (pbs / "1.exit").exists(), "it is not left in the queue"
