"""Profiles of a measured recipe: four real ranks, the parts of their steps, traces that load."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.diagnostics.profile import newest_measured_step
from frontrunner.spaces.errors import installing
from support.campaigns import (
    command,
    environment,
    frontrunner,
    launched,
    processes_of,
    ranks_of,
    started,
    steps_written,
    tiny,
    wait_for,
)

HIDE_PYINSTRUMENT = 'import sys\nsys.modules["pyinstrument"] = None\n'


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a store, and the id of its one measured recipe: tensor parallelism by pipeline,
    four ranks.
    """
    folder = tmp_path_factory.mktemp("measured")
    space = {
        "tensor_parallel": [2],
        "pipeline_parallel": [2],
        "micro_batch_seqs": [2],
        "schedule": ["1f1b"],
    }
    found = launched(
        folder, tiny(space=space, budget={"probes": 1}, cluster={"devices_per_node": 4})
    )
    return folder, found["best"][0]["recipe_id"]


def assert_parts_sum(breakdown: dict[str, Any]) -> None:
    assert sum(breakdown["seconds"].values()) == pytest.approx(breakdown["step_time_s"], rel=1e-6)
    assert all(time >= 0 for time in breakdown["seconds"].values())


def without_pyinstrument(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line on a machine that does not have it."""
    hiding = folder / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text(HIDE_PYINSTRUMENT)
    path = os.pathsep.join(filter(None, (str(hiding), os.environ.get("PYTHONPATH"))))
    variables = environment() | {"PYTHONPATH": path}
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.nightly
def test_parts_of_every_rank_and_traces_without_pyinstrument(measured: tuple[Path, str]) -> None:
    home, recipe = measured
    options = ("--anyway", "--steps", "2", "--json", "--folder", "profiled")
    done = without_pyinstrument(home, "profile", recipe, *options)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "pyinstrument" in line]
    command = installing("frontrunner[profile]")
    assert said == [f"pyinstrument is not installed, so the host side is left out: {command}"]
    report = json.loads(done.stdout)
    assert (report["recipe_id"], report["steps"], len(report["ranks"])) == (recipe, 2, 4)
    for breakdown in (*report["ranks"], report["mean"], *report["stages"].values()):
        assert_parts_sum(breakdown)
        for part in ("compute", "optimizer", "data", "all-reduce", "send/recv"):
            assert breakdown["seconds"][part] > 0, part
        assert breakdown["seconds"]["all-gather"] == 0
    assert report["measured_step_time_s"] > 0
    assert report["host_trees"] == []
    for rank, path in enumerate(report["traces"]):
        assert Path(path) == home / "profiled" / f"rank-{rank}.trace.json.gz"
        with gzip.open(path, "rt") as file:
            events = json.load(file)["traceEvents"]
        steps = [event for event in events if event["name"] == "frontrunner::step"]
        assert len(steps) == 2, "the step that warms the profiler up is not among them"
        seconds = report["ranks"][rank]["step_time_s"]
        assert sum(step["dur"] for step in steps) / 2e6 == pytest.approx(seconds, rel=1e-6)
    assert_all_ranks_are_joined(Path(report["joined_trace"]))


def assert_all_ranks_are_joined(trace: Path) -> None:
    """Each rank is a process of its own, and their steps run at the same time."""
    with gzip.open(trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    names = {
        event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"
    }
    assert sorted(name[:6] for name in names) == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert len(set(names.values())) == 4
    steps = [event for event in events if event["name"] == "frontrunner::step"]
    first = {
        event["pid"]: event for event in sorted(steps, key=lambda event: event["ts"], reverse=True)
    }
    assert set(first) == set(names.values())
    assert max(e["ts"] for e in first.values()) < min(e["ts"] + e["dur"] for e in first.values())


def test_what_a_person_reads(measured: tuple[Path, str]) -> None:
    pytest.importorskip("pyinstrument")
    home, recipe = measured
    done = frontrunner("profile", recipe[:6], "--anyway", "--steps", "1", cwd=home)
    assert done.returncode == 0, done.stderr
    for words in (
        "compute (forward, backward)",
        "all-reduce",
        "send/recv, pipeline bubble",
        "host (Python, dispatch)",
        "stage 1",
        "the campaign's probe measured",
        "RunContext.timed_step",
    ):
        assert words in done.stdout
    folder = home / "frontrunner-runs" / "profiles" / recipe / "1"
    assert str(folder / "trace.json.gz") in done.stdout
    assert "Schedule1F1B.step" in (folder / "rank-3.host.txt").read_text()
    found = newest_measured_step(home / "frontrunner-runs", recipe)
    assert found is not None
    assert len(found.ranks) == 2, "one row per pipeline rank"
    for row in found.ranks:
        assert {"compute", "send/recv"} <= {part for part, _, _ in row}
        assert all(0 <= begin < end <= found.step_time_s * (1 + 1e-9) for _, begin, end in row)
        assert all(one[2] <= other[1] + 1e-9 for one, other in itertools.pairwise(row))
    assert newest_measured_step(home / "frontrunner-runs", "0" * 12) is None


def test_an_interrupt_ends_it_with_everything_behind_it(measured: tuple[Path, str]) -> None:
    home, recipe = measured
    with started(
        "profile", recipe, "--anyway", "--steps", "50", "--folder", "interrupted", cwd=home
    ) as running:
        wait_for(lambda: steps_written(home / "interrupted") > 2)
        assert len(ranks_of(running.pid)) == 4
        os.kill(running.pid, signal.SIGINT)
        assert running.wait(timeout=600) == 130
        assert not processes_of(running.pid)
    said = (home / "stderr").read_text()
    assert said.endswith("error: interrupted\n")
    assert "Traceback" not in said
    again = frontrunner("profile", recipe, "--anyway", "--folder", "interrupted", cwd=home)
    assert again.returncode == 2
    assert "not an empty folder" in again.stderr


def test_refusals(measured: tuple[Path, str]) -> None:
    home, recipe = measured
    elsewhere = frontrunner("profile", recipe, cwd=home)
    assert elsewhere.returncode == 2
    assert "device test-cpu there" in elsewhere.stderr
    unknown = frontrunner("profile", "abcdefabcdef", cwd=home)
    assert unknown.returncode == 2
    assert "abcdefabcdef" in unknown.stderr
    used = frontrunner("profile", recipe, "--anyway", "--folder", ".", cwd=home)
    assert used.returncode == 2
    assert "not an empty folder" in used.stderr
    many = frontrunner("profile", recipe, "--steps", "0", cwd=home)
    assert many.returncode == 2
