"""Calibration with real ranks: on this machine, in an allocation, and interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import frontrunner
from frontrunner.config.campaign import read_cluster_file
from frontrunner.evaluators.diagnostics.calibration import CHILD, measure
from frontrunner.evaluators.diagnostics.ranks import Place, allocated
from frontrunner.evaluators.trainer.calibration import COLLECTIVES
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput
from support.campaigns import command, environment, needless_imports, tiny, write_toml

pytestmark = pytest.mark.alone

ALLOCATION = {
    "RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "1",
}  # fmt: skip


def ranks_below(pid: int) -> list[psutil.Process]:
    """The measuring ranks among a process's children."""
    return [
        child for child in psutil.Process(pid).children(recursive=True) if CHILD in child.cmdline()
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"MASTER_ADDR": None, "LOCAL_RANK": None}, "RANK is set, but not LOCAL_RANK, MASTER_ADDR"),
        ({"WORLD_SIZE": "four"}, 'WORLD_SIZE = "four": expected a whole number'),
        ({"RANK": "4"}, "torchrun reports rank 4 of 4, 2 per node"),
        ({"LOCAL_WORLD_SIZE": "3"}, "rank 0 of 4, 3 per node, local rank 0: expected equal nodes"),
    ],
)
def test_an_allocation_that_cannot_be_is_refused(
    change: dict[str, str | None], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (ALLOCATION | change).items():
        (
            monkeypatch.delenv(name, raising=False)
            if value is None
            else monkeypatch.setenv(name, value)
        )

    with pytest.raises(InvalidInput, match=message):
        allocated(None)


def test_ranks_of_an_allocation_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ALLOCATION.items():
        monkeypatch.setenv(name, value)

    found, named = allocated(None), allocated(4)
    assert found is not None
    assert found == named
    assert (found.ranks, found.ranks_per_node, found.environment) == (4, 2, ALLOCATION)
    with pytest.raises(InvalidInput, match="--ranks = 8: expected the allocation's 4"):
        allocated(8)


def test_four_ranks_measure_every_level_and_a_campaign_uses_it(tmp_path: Path) -> None:
    out = tmp_path / "cluster.toml"
    called = command("calibrate", "--out", str(out), "--ranks", "4", "--seconds", "8", "--json")
    done = subprocess.run(
        called, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    told, raw = (
        json.loads(done.stdout),
        json.loads((tmp_path / "cluster.measured.json").read_text()),
    )
    cluster = read_cluster_file(out)
    assert (cluster.nodes, cluster.devices_per_node, cluster.backend) == (1, 4, "cpu")
    assert {row["collective"] for row in raw["collectives"]} == set(COLLECTIVES)
    assert {row["level"] for row in raw["collectives"]} == {"pair", "node"}
    assert {row["precision"] for row in raw["matmul"]} == {"fp32", "bf16", "fp16"}
    assert all(
        row["time_s"] > 0
        for part in ("matmul", "memory", "collectives", "layer")
        for row in raw[part]
    )
    # On a busy machine there is no time for large products; the file then says so.
    lacks_rate = "not written: matmul_tflops.fp32" in out.read_text()
    assert (cluster.matmul_tflops.fp32 is None) == lacks_rate
    assert cluster.memory_gb_per_s == told["cluster"]["memory_gb_per_s"]
    assert (cluster.links.nic_gb_per_s, cluster.links.host_gb_per_s) == (None, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cluster.measured.json",
        "cluster.toml",
    ]
    table = tiny(space={"tensor_parallel": [1, 2, 4], "pipeline_parallel": [1]})
    table["cluster"] = {"file": "cluster.toml", "memory_gib_per_device": 1.0}
    found = frontrunner.plan(write_toml(tmp_path / "campaign.toml", table))
    assert found.table.fitting == found.legal > 0
    unwritten = (
        {"links.node_gb_per_s"} if "not written: links of a node" in out.read_text() else set()
    )
    assert lacks_rate or set(found.trust.assumed) <= unwritten


@pytest.mark.nightly
def test_an_allocation_of_torchrun_is_measured_and_written_once(tmp_path: Path) -> None:
    launcher = [
        sys.executable,
        "-P",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    arguments = [
        "-m",
        "frontrunner.cli",
        "calibrate",
        "--out",
        "cluster.toml",
        "--seconds",
        "5",
        "--device",
        "cpu",
    ]
    done = subprocess.run(
        [*launcher, *arguments],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert read_cluster_file(tmp_path / "cluster.toml").devices_per_node == 2
    assert [line for line in done.stdout.splitlines() if line.startswith("written: ")] == [
        "written: cluster.toml"
    ]


@pytest.mark.parametrize(
    "how", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.nightly)]
)
def test_an_interrupted_calibration_leaves_no_file_and_no_rank(
    how: signal.Signals, tmp_path: Path
) -> None:
    called = command("calibrate", "--out", "cluster.toml", "--ranks", "2", "--seconds", "60")
    process = subprocess.Popen(
        called,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while len(ranks := ranks_below(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(how)
    process.wait(timeout=600)

    _, left = psutil.wait_procs(ranks, timeout=30)
    assert len(ranks) == 2
    assert not left
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_is_killed_is_told_and_the_others_are_ended() -> None:
    """Real ranks over gloo, of which one goes: an error with its rank, within seconds."""
    program = (
        "import sys; from frontrunner.evaluators.diagnostics.calibration import measure\n"
        "from frontrunner.evaluators.diagnostics.ranks import Place\n"
        "try: measure(Place(ranks=2, ranks_per_node=2), device='cpu', seconds=60)\n"
        "except Exception as error: print(error); sys.exit(3)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", program], env=environment(), stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while len(ranks := ranks_below(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    ranks[1].kill()
    output, _ = process.communicate(timeout=600)

    assert process.returncode == 3
    assert "measuring rank 1 was killed by SIGKILL" in output
    assert not psutil.wait_procs(ranks, timeout=30)[1]


def test_a_device_that_is_not_there_ends_with_the_rank_s_own_words() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has such a device")
    with pytest.raises(
        FrontrunnerError,
        match=r"(?s)measuring rank 0 ended with status 1:.*(CUDA|NVIDIA|accelerator)",
    ):
        measure(Place(ranks=1, ranks_per_node=1), device="cuda", seconds=5)


def test_calibrating_rank_imports_only_torch_trainer_and_spaces() -> None:
    assert needless_imports(CHILD) == "[]"
