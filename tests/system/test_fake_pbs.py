"""A campaign through PBS's commands and MPICH's mpiexec: a stand-in for PBS runs the real submit
scripts.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.nodes.agent import StepFolder
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.evaluators.runs.training import ReplayStopped
from frontrunner.results.outcome import Failure, FailureKind
from support.campaigns import (
    frontrunner,
    metrics,
    run_folders,
    started,
    steps_written,
    tiny,
    wait_for,
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


@pytest.mark.nightly
def test_a_deleted_job_is_followed_by_another(tmp_path: Path, pbs: Path) -> None:
    name = campaign(tmp_path, measured_steps=60)
    first = tmp_path / "frontrunner-runs" / "tiny" / "00001.1"
    with started("launch", name, cwd=tmp_path) as process:
        wait_for(lambda: steps_written(first) > 3)
        subprocess.run(["qdel", "1.fake"], check=True)
        assert process.wait(120) == 0, (tmp_path / "stderr").read_text()
    cut, measured = outcomes(tmp_path)
    assert isinstance(cut, Failure)
    assert cut.kind is FailureKind.LOST
    assert "allocation 1.fake has ended: PBS: exit status 271, ended by qdel" in cut.message
    assert not isinstance(measured, Failure)
    assert [StepFolder(first).report(node) is not None for node in range(3)] == [True, True, False]
    assert json.loads((pbs / "2.exit").read_text()) == 271, "the second is given back in the end"


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


@pytest.mark.nightly
def test_a_replay_stops_on_a_signal_and_goes_on_after_a_deleted_job(
    tmp_path: Path, pbs: Path
) -> None:
    launched = frontrunner(
        "launch", campaign(tmp_path, dispatch={"lifeline_s": 10}), "--json", cwd=tmp_path
    )
    assert launched.returncode == 0, launched.stderr
    recipe, folder = json.loads(launched.stdout)["best"][0]["recipe_id"], tmp_path / "r"
    arguments = ("replay", recipe, "--steps", "500", "--checkpoint-every", "50", "--folder", "r")
    with started(*arguments, cwd=tmp_path) as process:
        wait_for(lambda: steps_written(folder) > 60)
        subprocess.run(["qdel", "2.fake"], check=True)
        wait_for((folder / "starts" / "0002").exists)
        before = steps_written(folder)
        wait_for(lambda: steps_written(folder) > before + 20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == ReplayStopped.exit_code, (tmp_path / "stderr").read_text()
    assert "exit status 271, ended by qdel" in (folder / "replay.log").read_text()
    assert json.loads((pbs / "3.exit").read_text()) == 271, "the second is given back"
    done = frontrunner(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    stopped = int(
        re.findall(
            r"stopped after step (\d+), with a checkpoint, on SIGTERM",
            (tmp_path / "stderr").read_text(),
        )[0]
    )
    assert f"resumed  step {stopped}" in done.stderr
    assert [int(row["step"]) for row in metrics(folder)] == list(range(1, 501))
