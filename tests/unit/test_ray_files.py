"""Run folders of nodes that do not see the driver's files: what their copies hold, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from frontrunner.evaluators.cluster.agent import Step, StepFolder
from frontrunner.evaluators.cluster.ray_agent import RunFolderCopy
from frontrunner.evaluators.cluster.ray_holder import apply_changes, brief
from frontrunner.evaluators.probe.run_folder import MEETING, STEP


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    folder = tmp_path / "driver" / "00001.1"
    folder.mkdir(parents=True)
    Step(
        token="00001.1",
        run_folder=str(folder),
        world_size=2,
        nodes=2,
        ranks_per_node=1,
        engines=("torch",),
        environment={},
        deadline_s=60.0,
        lifeline=str(tmp_path / "driver" / "lifeline"),
        silence_s=10.0,
    ).write()
    StepFolder(folder).prepare(2)
    job: dict[str, Any] = {"run_folder": str(folder), "data": {"path": "/data/a"}, "more_data": [{"path": "/data/b"}]}
    (folder / "job.json").write_text(json.dumps(job))
    return folder


@pytest.fixture
def copy(driver: Path, tmp_path: Path) -> RunFolderCopy:
    sent = {name: (driver / name).read_bytes() for name in (STEP, "job.json")}
    return RunFolderCopy(tmp_path / "node" / "00001.1", str(driver), sent, {"/data/a": "/here/a", "/data/b": "/here/b"})


def test_a_copy_names_its_own_places(copy: RunFolderCopy) -> None:
    job, step = json.loads((copy.path / "job.json").read_text()), Step.read(copy.path / STEP)
    assert (job["run_folder"], step.run_folder) == (str(copy.path), str(copy.path))
    assert [job["data"]["path"], job["more_data"][0]["path"]] == ["/here/a", "/here/b"]
    assert Path(step.lifeline).read_text() == "0"
    assert copy.changes(at_last=False) == []


def test_what_a_node_writes_comes_back_once_and_names_the_drivers_folder(copy: RunFolderCopy, driver: Path) -> None:
    (copy.path / "rank-0.log").write_text("one\n")
    (copy.path / "result.json").write_text(json.dumps({"run_folder": str(copy.path)}))
    (copy.path / ".result.json.77").write_text("half")
    apply_changes(driver, copy.changes(at_last=False))
    with (copy.path / "rank-0.log").open("a") as log:
        log.write("two\n")
    changes = copy.changes(at_last=False)
    assert [(name, offset) for name, offset, _ in changes] == [("rank-0.log", 4)]
    apply_changes(driver, changes)
    assert (driver / "rank-0.log").read_text() == "one\ntwo\n"
    assert json.loads((driver / "result.json").read_text()) == {"run_folder": str(driver)}
    assert not (driver / ".result.json.77").exists()


def test_a_report_comes_after_the_files_that_it_speaks_of(copy: RunFolderCopy) -> None:
    for name in ("node-0.json", "result.json", "progress.jsonl"):
        (copy.path / name).write_text("{}")
    assert copy.changes(at_last=False)[-1][0] == "node-0.json"


def test_a_trace_comes_once_it_is_whole(copy: RunFolderCopy) -> None:
    (copy.path / "rank-0.trace.json.gz").write_bytes(b"half of it")
    assert copy.changes(at_last=False) == []
    assert copy.changes(at_last=True) == [("rank-0.trace.json.gz", None, b"half of it")]


def test_the_place_to_meet_is_passed_on_and_not_returned(copy: RunFolderCopy) -> None:
    copy.put(MEETING, b'{"port": 1}')
    assert (copy.path / MEETING).read_bytes() == b'{"port": 1}'
    assert copy.changes(at_last=False) == []


RAY_ERRORS = {
    "The actor died unexpectedly before finishing this task.\n\tclass_name: RayAgent\n\tip: 10.0.0.7\n"
    "The actor died because its node has died. Node Id: 939dbda01313\n\tthe actor's node was terminated "
    "unexpectedly: health check failed due to missing too many heartbeats\n": "The actor died because its node has "
    "died. the actor's node was terminated unexpectedly: health check failed due to missing too many heartbeats",
    "The actor 41e1 is unavailable: Socket closed": "The actor 41e1 is unavailable: Socket closed",
    "ray::RayAgent.__init__()\n  File x\nModuleNotFoundError: No module named 'frontrunner'": "ModuleNotFoundError: "
    "No module named 'frontrunner'",
}


@pytest.mark.parametrize("text", RAY_ERRORS)
def test_an_error_of_ray_is_one_line_without_ids(text: str) -> None:
    assert brief(Exception(text)) == RAY_ERRORS[text]
