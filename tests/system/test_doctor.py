"""doctor as a person runs it, and tests of real ranks of which one is stopped, killed or slowed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

import frontrunner as api
from frontrunner.evaluators.diagnostics.doctor.collective_test import RANK_MODULE
from frontrunner.spaces.errors import InvalidInput
from support.campaigns import (
    command,
    environment,
    frontrunner,
    is_alive,
    needless_imports,
    tiny,
    write_toml,
)
from support.collective_tests import ranks_below, slowed, start_test
from support.terminals import run_on_terminal

pytestmark = pytest.mark.alone

RANKS = 3


def ranks_section(output: str) -> list[dict[str, str]]:
    return [check for check in json.loads(output)["checks"] if check["section"] == "ranks"]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_machine_that_can_run_campaigns_has_no_problem(columns: int) -> None:
    with (
        tempfile.TemporaryDirectory() as name
    ):  # paths are shown whole, and pytest's own are wider than a terminal
        folder = Path(name)
        named = [str(write_toml(folder / "campaign.toml", tiny()))] if columns == 120 else []
        screen, status = run_on_terminal(folder, "doctor", *named, columns=columns, rows=60)
        assert not (folder / "frontrunner.db").exists()

    assert status == 0, screen.lines
    assert screen.wraps == 0
    shown = [line.rstrip() for line in screen.lines if line.strip()]
    found = {words[1] for words in map(str.split, shown) if words[0] in ("ok", "note", "warning")}
    assert {"python:", "torch:", "store:", "memory:"} <= found
    assert shown[-1].endswith(" 0 problems")


def test_a_campaign_for_other_devices_is_a_problem_with_exit_code_1(tmp_path: Path) -> None:
    table = tiny()
    table["cluster"] = {"preset": "frontier", "nodes": 2}
    file = write_toml(tmp_path / "campaign.toml", table)
    done = frontrunner("doctor", "--json", str(file), cwd=tmp_path)

    assert done.returncode == 1
    problems = {
        check["name"]: check
        for check in json.loads(done.stdout)["checks"]
        if check["status"] == "problem"
    }
    assert problems["campaign"]["found"].startswith("its cluster has rocm devices, this machine ")
    assert (
        "several" in problems["run folder"]["found"]
        or "2 nodes do not share" in problems["run folder"]["found"]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "2"], "--ranks and --deadline are for --run"),
        (["--run", "--ranks", "0"], "--ranks = 0: expected 1 to 1024"),
        (["--run", "--deadline", "0"], "--deadline = 0.0: expected between 5 and 3600"),
    ],
)
def test_mistakes_are_one_message(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = frontrunner("doctor", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_ranks_for_devices_that_are_not_here_are_refused(tmp_path: Path) -> None:
    table = tiny()
    table["cluster"] = {"preset": "aurora"}
    with pytest.raises(InvalidInput, match=r'cluster\.backend = "xpu": expected'):
        api.call_ranks(write_toml(tmp_path / "campaign.toml", table), ranks=1)


def test_ranks_that_work_together_are_timed_and_leave_nothing(tmp_path: Path) -> None:
    process = start_test(RANKS, 60, tmp_path)
    ranks = ranks_below(process.pid, RANKS)
    output, errors = process.communicate(timeout=600)

    assert process.returncode == 0, errors
    assert (
        ranks_section(output)[0]["found"] == f"{RANKS} ranks, cpu: all arrived, all sums are right"
    )
    rows = json.loads(output)["all_reduce"]
    assert len(rows) >= 2
    for row in rows:
        assert row["algorithm_bytes_per_s"] == pytest.approx(row["bytes"] / row["time_s"])
        assert row["bus_bytes_per_s"] == pytest.approx(
            row["algorithm_bytes_per_s"] * 2 * (RANKS - 1) / RANKS
        )
    assert not any(map(is_alive, ranks))
    assert not list(tmp_path.iterdir())


def test_a_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    process = start_test(RANKS, 60, tmp_path)
    ranks = ranks_below(process.pid, RANKS)
    ranks[1].kill()
    output, errors = process.communicate(timeout=600)

    assert process.returncode == 1, errors
    (check,) = ranks_section(output)
    assert check["status"] == "problem"
    assert check["found"].startswith("rank 1")
    assert check["found"].endswith("was killed by SIGKILL")
    assert not any(map(is_alive, ranks))


def wait_until_they_work(ranks: list[psutil.Process]) -> None:
    """Until the ranks have connected to one another: gloo then holds sockets to each peer beside
    the board's two.
    """
    deadline = time.monotonic() + 60
    while (
        min(len(rank.net_connections("tcp")) for rank in ranks) < 4 and time.monotonic() < deadline
    ):
        time.sleep(0.05)


@pytest.mark.nightly
def test_a_rank_that_stands_still_is_named_long_before_collectives_give_up(tmp_path: Path) -> None:
    process = start_test(RANKS, 200, tmp_path)
    ranks = ranks_below(process.pid, RANKS)
    wait_until_they_work(ranks)
    ranks[2].suspend()
    output, errors = process.communicate(timeout=600)

    assert process.returncode == 1, errors
    (check,) = ranks_section(output)
    assert check["found"].startswith("rank 2 on ")
    assert f"(process {ranks[2].pid}) stands still" in check["found"]
    assert not any(map(is_alive, ranks))


@pytest.mark.nightly
def test_a_rank_that_never_arrives_is_named(tmp_path: Path) -> None:
    process = start_test(RANKS, 20, tmp_path)
    ranks = ranks_below(process.pid, RANKS)
    ranks[0].suspend()
    output, errors = process.communicate(timeout=600)

    assert process.returncode == 1, errors
    (check,) = ranks_section(output)
    assert check["found"].startswith("rank 0 on ")
    assert "never arrived within 20 s; 2 of 3 did" in check["found"]


@pytest.mark.nightly
def test_a_rank_that_is_slowed_is_named(tmp_path: Path) -> None:
    process = start_test(RANKS, 60, tmp_path)
    ranks = ranks_below(process.pid, RANKS)
    wait_until_they_work(ranks)
    with slowed(ranks[1], runs_s=0.01, stands_s=0.3):
        output, errors = process.communicate(timeout=600)

    assert process.returncode == 0, errors
    named = [check["found"] for check in ranks_section(output) if check["name"] == "laggard"]
    assert named, output
    assert named[0].startswith("rank 1 on ")


@pytest.mark.skipif(shutil.which("mpiexec") is None, reason="no MPI launcher is installed")
def test_ranks_of_a_launcher_meet_and_one_process_tells(tmp_path: Path) -> None:
    called = ["mpiexec", "-n", "2", *command("doctor", "--run", "--json")]
    done = subprocess.run(
        called,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    checks = {check["name"]: check["found"] for check in json.loads(done.stdout)["checks"]}
    assert checks["launcher"].startswith("mpich: rank 0 of 2, 2 per node")
    assert checks["all-reduce"] == "2 ranks, cpu: all arrived, all sums are right"


@pytest.mark.nightly
def test_a_rank_of_torchrun_that_is_killed_is_named_and_all_processes_end(tmp_path: Path) -> None:
    launcher = [
        sys.executable,
        "-P",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    called = [*launcher, "-m", "--", "frontrunner.cli", "doctor", "--run", "--json"]
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        process = subprocess.Popen(called, cwd=tmp_path, env=environment(), stdout=out, stderr=err)
    ranks = ranks_below(process.pid, 2)
    victim = next(rank for rank in ranks if rank.parent().environ()["RANK"] == "1")
    os.kill(victim.pid, signal.SIGKILL)
    assert process.wait(timeout=600) != 0
    output = (tmp_path / "out").read_text()
    assert output, (tmp_path / "err").read_text()
    (check,) = ranks_section(output)
    assert check["found"].startswith("rank 1")
    assert check["found"].endswith("was killed by SIGKILL")
    assert not any(map(is_alive, ranks))


def test_a_called_rank_imports_torch_and_the_trainer_alone() -> None:
    assert needless_imports(RANK_MODULE) == "[]"
