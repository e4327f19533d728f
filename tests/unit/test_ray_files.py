"""Run folders of nodes that do not see the driver's files: what their copies hold, and what comes
back.
"""

from __future__ import annotations

import json
import threading
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from frontrunner.evaluators.nodes import ray_holder
from frontrunner.evaluators.nodes.agent import Step, StepFolder
from frontrunner.evaluators.nodes.ray_agent import RunFolderCopy
from frontrunner.evaluators.nodes.ray_allocation import ray_environment
from frontrunner.evaluators.nodes.ray_holder import Holder, HoldOrder, apply_changes, brief
from frontrunner.evaluators.runs.run_folder import MEETING, STEP


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
    job: dict[str, Any] = {
        "run_folder": str(folder),
        "data": {"path": "/data/a"},
        "more_data": [{"path": "/data/b"}],
    }
    (folder / "job.json").write_text(json.dumps(job))
    return folder


@pytest.fixture
def copy(driver: Path, tmp_path: Path) -> RunFolderCopy:
    sent = {name: (driver / name).read_bytes() for name in (STEP, "job.json")}
    return RunFolderCopy(
        tmp_path / "node" / "00001.1",
        str(driver),
        sent,
        {"/data/a": "/here/a", "/data/b": "/here/b"},
    )


def test_a_copy_names_its_own_places(copy: RunFolderCopy) -> None:
    job, step = json.loads((copy.path / "job.json").read_text()), Step.read(copy.path / STEP)
    assert (job["run_folder"], step.run_folder) == (str(copy.path), str(copy.path))
    assert [job["data"]["path"], job["more_data"][0]["path"]] == ["/here/a", "/here/b"]
    assert copy.changes(at_last=False) == []


def test_a_copy_of_the_drivers_heartbeat_changes_at_each_beat(copy: RunFolderCopy) -> None:
    lifeline = Path(Step.read(copy.path / STEP).lifeline)
    beats = [lifeline.read_text()]
    for _ in range(2):
        copy.beat()
        beats.append(lifeline.read_text())
    assert len(set(beats)) == 3


def test_what_a_node_writes_comes_back_once_and_names_the_drivers_folder(
    copy: RunFolderCopy, driver: Path
) -> None:
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
    "The actor died unexpectedly before finishing this task.\n\tclass_name: RayAgent\n\tip: "
    "10.0.0.7\nThe actor died because its node has died. Node Id: 939dbda01313\n\tthe actor's "
    "node was terminated unexpectedly: health check failed due to missing too many heartbeats\n": (
        "The actor died because its node has died. the actor's node was terminated unexpectedly:"
        " health check failed due to missing too many heartbeats"
    ),
    "The actor 48bccba605dbc733c998d53902000000 is unavailable: The actor is temporarily "
    "unavailable: RpcError: RPC error: Socket closed rpc_code: 14. The task may or may not have "
    "been executed on the actor.": (
        "The actor is temporarily unavailable: RpcError: RPC error: Socket closed rpc_code: 14."
    ),
    "The actor died unexpectedly before finishing this task.\n\tclass_name: RayAgent\n\tactor_id: "
    "6a59bf8ef6b7d63e7fb286e401000000\n\tpid: 7\nThe actor is dead because its worker process has "
    "died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a "
    "connection error code 2. End of file. Some common causes include: (1) the process was killed "
    "by the OOM killer due to high memory usage, (2) ray stop --force was called, or (3) the "
    "worker crashed unexpectedly due to SIGSEGV or another unexpected error.": (
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"
        " Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of"
        " file."
    ),
    "No such object 6a59bf8ef6b7d63e7fb286e401000000 here (pid=1, actor_id=6a59bf8ef6b7d63e7f)": (
        "No such object here (pid=1)"
    ),
    "ray::RayAgent.__init__()\n  File x\nModuleNotFoundError: No module named 'frontrunner'": (
        "ModuleNotFoundError: No module named 'frontrunner'"
    ),
}


@pytest.mark.parametrize("text", RAY_ERRORS)
def test_an_error_of_ray_is_one_line_without_ids(text: str) -> None:
    assert brief(Exception(text)) == RAY_ERRORS[text]


def test_a_long_error_of_ray_ends_after_a_whole_word() -> None:
    told = brief(Exception("The actor died because " + 100 * "unavailability "))
    assert 280 < len(told) <= 300
    assert told.endswith("unavailability ...")


def test_an_error_of_ray_is_that_of_its_first_cause() -> None:
    refused = RuntimeError(
        "Traceback:\nray.exceptions.AuthenticationError: RPC error: InvalidAuthToken: it is missing"
    )
    error = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
    error.__cause__ = refused
    assert (
        brief(error)
        == "ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken: it is missing"
    )


def test_a_token_is_used_where_the_cluster_misses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def modes(address: str = "head:1") -> list[str | None]:
        return [
            ray_environment(address, refused).get("RAY_AUTH_MODE")
            for refused in ("", "error: InvalidAuthToken: x")
        ]

    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert modes() == [None, None]
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    assert modes() == [None, None]
    (tmp_path / "token").touch()
    assert modes() == ["disabled", "token"]
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").touch()
    assert modes() == ["disabled", "token"]
    assert modes("local") == [None, None], "Ray itself decides"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert modes() == ["disabled", "disabled"]


class FakeAgent:
    """An agent whose calls return at once, but its step, and what was called on it, in order."""

    def __init__(self, *, has_data: bool) -> None:
        self.called: list[str] = []
        self.heard = threading.Event()
        self._has_data = has_data

    def __getattr__(self, name: str) -> Any:
        return type("Method", (), {"remote": lambda *given, **more: self._call(name)})()

    def _call(self, name: str) -> Any:
        if name == "beat":
            return self.heard.set()
        if name == "receive":
            assert self.heard.wait(60), "it would have been ended meanwhile"
        self.called.append(name)
        if name == "data_here":
            return "/there" if self._has_data or "receive" in self.called else None
        return [] if name == "exchange" else "under way"


def test_nodes_exchange_files_and_get_signs_of_life_while_a_data_file_is_sent_to_others(
    driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.bin"
    text.write_bytes(b"0123456789")
    (driver / "job.json").write_text(
        json.dumps({"run_folder": str(driver), "data": {"path": str(text)}})
    )
    (driver / MEETING).write_bytes(b"")
    monkeypatch.setattr(ray_holder.ray, "get", lambda found: found)
    monkeypatch.setattr(ray_holder.ray, "put", lambda chunk: chunk)
    monkeypatch.setattr(ray_holder, "is_done", lambda reference: reference == [])
    monkeypatch.setattr(ray_holder, "CHUNK_BYTES", 1)
    monkeypatch.setattr(ray_holder, "EXCHANGE_S", 0.0)
    monkeypatch.setattr(ray_holder, "BEAT_S", 0.001)
    order = HoldOrder(address="local", nodes=2, resources={}, shares_files=False, visible="")
    holder = Holder(order, Pipe()[0])
    first, second = agents = [FakeAgent(has_data=has_data) for has_data in (True, False)]
    for node, agent in zip(holder._nodes, agents, strict=True):
        node.agent, node.name, node.life = agent, f"n{node.index}", "lives"
    holder._heart.start()
    holder._start(driver / STEP, 1)
    holder._start(driver / STEP, 1)
    assert first.heard.wait(60)
    assert second.called.count("receive") == 10
    assert first.called.count("exchange") == 10
    assert [step.nodes for step in holder._steps] == [[node] for node in holder._nodes]
    waited: list[Any] = []
    monkeypatch.setattr(ray_holder.ray, "wait", lambda ended, **_: waited.extend(ended))
    monkeypatch.setattr(ray_holder.ray, "shutdown", lambda: waited.append("shut down"))
    holder.close()
    assert waited == ["under way", "under way", "shut down"], "no agent is cut off"
    assert first.called[-1] == second.called[-1] == "close"
